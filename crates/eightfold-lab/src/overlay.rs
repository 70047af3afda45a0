//! Sources of kernels that are being changed: read from a folder, checked, kept under the hash of what they are.

use eightfold::lab::Family;
use eightfold::lab::compile::{self, MOST_OVERLAY_BYTES, Overlay, Program};
use eightfold::{Error, Result, Variant};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The folder of a run that holds sources, each in a folder that is named by its hash.
pub const SOURCES: &str = "sources";

/// The files in a folder that differ from those under `kernels/`: it has the same structure, with as many of the files as one
/// likes.
pub fn read(folder: &Path) -> Result<Overlay> {
    let invalid = |rule: String| {
        let fix = "give a folder that holds files as kernels/ does, such as hopper/scores.cuh";
        Error::invalid("source", format!("{} {rule}", folder.display()), fix)
    };
    let unreadable = |error: io::Error| invalid(format!("cannot be read: {error}"));
    let mut files = BTreeMap::new();
    let mut bytes = 0;
    for part in sorted(folder).map_err(unreadable)? {
        let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !part.is_dir() {
            return Err(invalid(format!("holds {}, which is no folder of kernels/", name(&part))));
        }
        for file in sorted(&part).map_err(unreadable)? {
            let length = file.metadata().map_err(unreadable)?.len();
            bytes += length;
            if bytes > MOST_OVERLAY_BYTES as u64 {
                return Err(invalid(format!("holds more than {MOST_OVERLAY_BYTES} bytes")));
            }
            let path = format!("{}/{}", name(&part), name(&file));
            let text = fs::read_to_string(&file).map_err(|error| invalid(format!("holds {path}: {error}")))?;
            files.insert(path, text);
        }
    }
    changed(files).map_err(|error| invalid(format!("is no source: {error}")))
}

fn sorted(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths =
        fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

/// Those of some files that differ from what is under `kernels/`; an error where none does.
pub fn changed(mut files: BTreeMap<String, String>) -> Result<Overlay> {
    files.retain(|name, text| compile::source_text(name) != Some(text));
    if files.is_empty() {
        return Err(Error::invalid("source", "nothing differs from the kernel's own", "change something"));
    }
    Overlay::new(files)
}

/// An error unless every file is one that the variant's kernel is compiled from.
pub fn check(variant: &Variant, overlay: &Overlay) -> Result<()> {
    let family = Family::find(variant.kernel())?;
    if family.files.is_empty() {
        let rule = format!("the {} kernel is not compiled at run time", family.name);
        return Err(Error::invalid("source", rule, "change knobs, or choose a kernel for GPUs"));
    }
    let reached = reached(family, Some(overlay))?;
    let stray = overlay.files().keys().find(|name| !reached.contains_key(*name));
    if let Some(name) = stray {
        let rule = format!("the {} kernel is not compiled from {name}", family.name);
        let files: Vec<_> = reached.keys().filter(|name| !name.starts_with("ptx/")).cloned().collect();
        return Err(Error::invalid("source", rule, format!("change {}", files.join(", "))));
    }
    let twin = overlay.files().keys().find(|name| crate::simulate::is_installed() && name.starts_with("ptx/"));
    if let Some(name) = twin {
        let rule = format!("the simulator has its own {name}, so that a change there shows nothing");
        return Err(Error::invalid("source", rule, "change another file, or run it on a device"));
    }
    Ok(())
}

/// Every file that a family's programs are compiled from, found by following what they include.
pub fn reached(family: &Family, overlay: Option<&Overlay>) -> Result<BTreeMap<String, String>> {
    let overlay = overlay.cloned().map(Arc::new);
    compile::with_overlay(overlay.as_ref(), || {
        let mut all = BTreeMap::new();
        for file in family.files {
            let program = Program { file, entry: "", defines: Vec::new(), dynamic_shared_bytes: 0 };
            all.extend(compile::files(&program)?);
        }
        Ok(all)
    })
}

/// The folder in which a source is kept below a run's.
pub fn place(run: &Path, fingerprint: &str) -> PathBuf {
    run.join(SOURCES).join(fingerprint)
}

/// Keeps a source below a run's folder, whole or not at all. What is there already is the same, or it is an error.
pub fn keep(run: &Path, overlay: &Overlay) -> Result<PathBuf> {
    let place = place(run, overlay.fingerprint());
    if place.exists() {
        return match read(&place) {
            Ok(found) if found == *overlay => Ok(place),
            _ => {
                let rule = format!("{} is not what its name says", place.display());
                Err(Error::invalid("source", rule, "remove the folder, and resume the search"))
            }
        };
    }
    let folder = run.join(SOURCES);
    let write = || -> io::Result<()> {
        fs::create_dir_all(&folder)?;
        let whole = tempfile::Builder::new().prefix(".unfinished-").tempdir_in(&folder)?;
        let folders: BTreeSet<_> = overlay.files().keys().filter_map(|name| Path::new(name).parent()).collect();
        folders.into_iter().try_for_each(|part| fs::create_dir_all(whole.path().join(part)))?;
        for (name, text) in overlay.files() {
            let mut file = fs::File::create(whole.path().join(name))?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
        }
        fs::rename(whole.keep(), &place)
    };
    write().map_err(|error| {
        let rule = format!("`{}` cannot be written: {error}", place.display());
        Error::invalid("records", rule, "free some space there, or choose another place with --records")
    })?;
    Ok(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overlay(files: &[(&str, &str)]) -> Result<Overlay> {
        changed(files.iter().map(|(name, text)| (name.to_string(), text.to_string())).collect())
    }

    fn edited(name: &str) -> String {
        format!("{}// edited\n", compile::source_text(name).unwrap())
    }

    #[test]
    fn what_is_kept_is_read_back_and_nothing_is_left_over() {
        let place = tempfile::tempdir().unwrap();
        let text = edited("hopper/scores.cuh");
        let source = overlay(&[("hopper/scores.cuh", &text), ("ptx/wgmma.cuh", &edited("ptx/wgmma.cuh"))]).unwrap();
        let kept = keep(place.path(), &source).unwrap();
        assert!(kept.ends_with(source.fingerprint()));
        assert_eq!(read(&kept).unwrap(), source);
        assert_eq!(keep(place.path(), &source), Ok(kept.clone()));
        assert_eq!(fs::read_dir(place.path().join(SOURCES)).unwrap().count(), 1);
        fs::write(kept.join("hopper/scores.cuh"), "damaged").unwrap();
        assert!(keep(place.path(), &source).unwrap_err().to_string().contains("is not what its name says"));
    }

    #[test]
    fn a_whole_copy_counts_as_what_was_changed_in_it() {
        let place = tempfile::tempdir().unwrap();
        let family = Family::find("hopper").unwrap();
        for (name, text) in reached(family, None).unwrap() {
            let path = place.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let error = |place: &Path| read(place).unwrap_err().to_string();
        assert!(error(place.path()).contains("nothing differs"), "{}", error(place.path()));
        fs::write(place.path().join("hopper/tile.cuh"), edited("hopper/tile.cuh")).unwrap();
        assert_eq!(read(place.path()).unwrap().files().keys().collect::<Vec<_>>(), ["hopper/tile.cuh"]);
        fs::write(place.path().join("hopper/tile.cuh"), [0xff, 0xfe]).unwrap();
        assert!(error(place.path()).contains("hopper/tile.cuh: "), "{}", error(place.path()));
        assert!(error(Path::new("/nowhere")).contains("cannot be read"));
        fs::File::create(place.path().join("hopper/tile.cuh")).unwrap().set_len(1 << 30).unwrap();
        assert!(error(place.path()).contains("more than"));
        let other = tempfile::tempdir().unwrap();
        fs::write(other.path().join("notes.txt"), "x").unwrap();
        assert!(error(other.path()).contains("holds notes.txt"));
    }

    #[test]
    fn a_source_is_for_the_kernels_that_are_compiled_from_it() {
        let hopper: Variant = "hopper:fast".parse().unwrap();
        let source = |name: &str| overlay(&[(name, &edited(name))]).unwrap();
        assert_eq!(check(&hopper, &source("hopper/scores.cuh")), Ok(()));
        assert_eq!(check(&hopper, &source("attention/operands.cuh")), Ok(()));
        let error = |variant: &str, source: &Overlay| check(&variant.parse().unwrap(), source).unwrap_err().to_string();
        let ladder = error("hopper:fast", &source("ladder/scores.cuh"));
        assert!(ladder.contains("is not compiled from ladder/scores.cuh; change attention/"), "{ladder}");
        assert!(error("cpu", &source("hopper/scores.cuh")).contains("not compiled at run time"));
        // A file of its own counts once something includes it.
        let new = ("hopper/new.cuh", "// new\n");
        assert!(error("hopper:fast", &overlay(&[new]).unwrap()).contains("hopper/new.cuh"));
        let text = format!("#include \"hopper/new.cuh\"\n{}", edited("hopper/scores.cuh"));
        assert_eq!(check(&hopper, &overlay(&[new, ("hopper/scores.cuh", &text)]).unwrap()), Ok(()));
        let text = format!("#include \"hopper/none.cuh\"\n{}", edited("hopper/scores.cuh"));
        let missing = error("hopper:fast", &overlay(&[("hopper/scores.cuh", &text)]).unwrap());
        assert!(missing.contains("includes \"hopper/none.cuh\""), "{missing}");
    }
}
