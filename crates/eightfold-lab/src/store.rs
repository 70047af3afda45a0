//! Where results live on disk: written whole or not at all.

use crate::provenance::TimeUtc;
use crate::record::{Kind, Record};
use eightfold::{Error, Result};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// The name of a record inside its run's folder.
pub const RECORD_FILE: &str = "record.json";
/// The name of a record that is kept compressed.
pub const PACKED_FILE: &str = "record.json.gz";

/// The record in a run's folder, compressed or not; a file is itself.
pub fn record_file(path: &Path) -> PathBuf {
    let packed = path.join(PACKED_FILE);
    match path.is_dir() {
        true if packed.is_file() => packed,
        true => path.join(RECORD_FILE),
        false => path.to_path_buf(),
    }
}

/// The folders of the runs in a folder: those directly in it, and those in its topics, one level below.
pub fn folders_of_runs(folder: &Path) -> Vec<PathBuf> {
    let inside = |folder: &Path| {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        entries.filter(|path| path.is_dir()).collect::<Vec<_>>()
    };
    let (runs, topics): (Vec<_>, Vec<_>) = inside(folder).into_iter().partition(|path| record_file(path).is_file());
    runs.into_iter().chain(topics.iter().flat_map(|topic| inside(topic))).collect()
}

/// The text of a file that may be compressed with gzip.
pub fn read_text(path: &Path) -> io::Result<String> {
    let bytes = fs::read(path)?;
    let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, error);
    if bytes.starts_with(&[0x1f, 0x8b]) {
        let mut text = String::new();
        GzDecoder::new(bytes.as_slice()).read_to_string(&mut text)?;
        return Ok(text);
    }
    String::from_utf8(bytes).map_err(invalid)
}

/// Replaces a record by its compact form, compressed, and returns the path of the new file.
///
/// The file is `record.json.gz` for a `record.json`, and `NAME.json.gz` for a `NAME.json`.
pub fn pack(path: &Path) -> Result<PathBuf> {
    let file = record_file(path);
    let record = Record::read(&file)?.compact();
    let packed = match file.extension() {
        Some(extension) if extension == "gz" => file.clone(),
        _ => PathBuf::from(format!("{}.gz", file.display())),
    };
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    let bytes = encoder.write_all(record.to_json().as_bytes()).and_then(|()| encoder.finish());
    write_in_run(&packed, &bytes.map_err(|error| cannot_write(RECORDS, &packed, &error))?)?;
    if packed != file {
        fs::remove_file(&file).map_err(|error| cannot_write(RECORDS, &file, &error))?;
    }
    Ok(packed)
}

/// A folder of runs, one subfolder each.
#[derive(Debug, Clone)]
pub struct Store {
    folder: PathBuf,
}

impl Store {
    /// A store in this folder, which need not exist yet; an error now if it could not be written later.
    pub fn open(folder: impl Into<PathBuf>) -> Result<Self> {
        let folder = folder.into();
        check_folder(&folder)?;
        Ok(Store { folder })
    }

    /// The folder of the runs.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Writes a record as `<UTC time>-<kind>/record.json` and returns the path of that file.
    ///
    /// The run's folder is filled under a temporary name and renamed when complete, so nobody ever sees half a run.
    pub fn write(&self, record: &Record) -> Result<PathBuf> {
        let bytes = record.to_json().into_bytes();
        let created = missing_ancestors(&self.folder);
        self.write_run(&format!("{}-{}", record.provenance.time_utc.compact(), record.kind), &bytes).map_err(|error| {
            for folder in &created {
                // Only what this call created, and only if it is empty: remove_dir refuses anything else.
                let _ = fs::remove_dir(folder);
            }
            cannot_write(RECORDS, &self.folder, &error)
        })
    }

    /// Makes the folder of a run that fills it as it goes, `<UTC time>-<kind>`, and returns its path.
    pub fn claim(&self, time_utc: &TimeUtc, kind: Kind) -> Result<PathBuf> {
        let name = format!("{}-{kind}", time_utc.compact());
        let claimed = fs::create_dir_all(&self.folder).and_then(|()| {
            let names = std::iter::once(name.clone()).chain((2..).map(|count| format!("{name}-{count}")));
            let mut made = names.map(|name| self.folder.join(name)).map(|path| (fs::create_dir(&path), path));
            // Another run of the same second has the name.
            let taken =
                |made: &io::Result<()>| made.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::AlreadyExists);
            let (made, path) = made.find(|(made, _)| !taken(made)).expect("there is no end of names");
            made.map(|()| path)
        });
        claimed.map_err(|error| cannot_write(RECORDS, &self.folder, &error))
    }

    /// Replaces a record that [`Store::write`] wrote by a longer one of the same run.
    pub fn rewrite(path: &Path, record: &Record) -> Result<()> {
        write_in_run(path, record.to_json().as_bytes())
    }

    fn write_run(&self, name: &str, bytes: &[u8]) -> io::Result<PathBuf> {
        fs::create_dir_all(&self.folder)?;
        let partial = self.folder.join(format!(".{name}.{}.tmp", std::process::id()));
        fs::create_dir(&partial)?;
        let written = write_and_sync(&partial.join(RECORD_FILE), bytes)
            .and_then(|()| sync_folder(&partial))
            .and_then(|()| self.publish(&partial, name));
        if written.is_err() {
            let _ = fs::remove_dir_all(&partial);
        }
        written.map(|folder| folder.join(RECORD_FILE))
    }

    /// Renames the finished folder to its name, or to `name-2`, `name-3`, … where runs share a second.
    fn publish(&self, partial: &Path, name: &str) -> io::Result<PathBuf> {
        let mut attempt = 1;
        loop {
            let suffix = if attempt == 1 { String::new() } else { format!("-{attempt}") };
            let target = self.folder.join(format!("{name}{suffix}"));
            if !target.exists() {
                match fs::rename(partial, &target) {
                    Ok(()) => {
                        sync_folder(&self.folder)?;
                        return Ok(target);
                    }
                    // Another run took the name in between; it holds a record, so the rename was refused.
                    Err(_) if target.exists() => {}
                    Err(error) => return Err(error),
                }
            }
            attempt += 1;
        }
    }
}

/// Writes a file beside its final name and renames it when complete; a failure leaves nothing behind.
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    write(FILE, path, bytes)
}

/// The same for a file in the folder of a run.
pub fn write_in_run(path: &Path, bytes: &[u8]) -> Result<()> {
    write(RECORDS, path, bytes)
}

fn write(argument: &str, path: &Path, bytes: &[u8]) -> Result<()> {
    let partial = partial_name(path)?;
    let written = write_and_sync(&partial, bytes).and_then(|()| fs::rename(&partial, path));
    if written.is_err() {
        let _ = fs::remove_file(&partial);
    }
    written.map_err(|error| cannot_write(argument, path, &error))
}

/// An error now if [`write_file`] could not write to this path later; the file itself is not touched.
pub fn check_file(path: &Path) -> Result<()> {
    let partial = partial_name(path)?;
    if path.is_dir() {
        let error = io::Error::new(io::ErrorKind::IsADirectory, "it is a folder");
        return Err(cannot_write(FILE, path, &error));
    }
    let probed = OpenOptions::new().write(true).create_new(true).open(&partial);
    let _ = fs::remove_file(&partial);
    probed.map(|_| ()).map_err(|error| cannot_write(FILE, path, &error))
}

fn partial_name(path: &Path) -> Result<PathBuf> {
    let name = path.file_name().ok_or_else(|| {
        Error::invalid(FILE, format!("`{}` does not name a file", path.display()), "give the path of a file")
    })?;
    Ok(path.with_file_name(format!(".{}.{}.tmp", name.to_string_lossy(), std::process::id())))
}

/// Whether runs could be written here, found out by making and removing a folder in the nearest one that exists.
fn check_folder(folder: &Path) -> Result<()> {
    let mut nearest = folder;
    while !nearest.exists() {
        nearest = match nearest.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
    }
    let probe = nearest.join(format!(".eightfold-probe.{}.tmp", std::process::id()));
    fs::create_dir(&probe).and_then(|()| fs::remove_dir(&probe)).map_err(|error| cannot_write(RECORDS, folder, &error))
}

/// The folder and its parents that do not exist, innermost first.
fn missing_ancestors(folder: &Path) -> Vec<PathBuf> {
    folder
        .ancestors()
        .take_while(|ancestor| !ancestor.as_os_str().is_empty() && !ancestor.exists())
        .map(Path::to_path_buf)
        .collect()
}

fn write_and_sync(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Makes a rename durable; only Unix lets a folder be opened and synced.
fn sync_folder(folder: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
}

/// The argument that names the folder of the records.
const RECORDS: &str = "records";

/// The argument that names a file to write.
const FILE: &str = "to";

fn cannot_write(argument: &str, path: &Path, error: &io::Error) -> Error {
    Error::invalid(
        argument,
        format!("`{}` cannot be written: {error}", path.display()),
        format!("free some space there, or choose another place with --{argument}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provenance::Provenance;

    fn record() -> Record {
        Record::new(Kind::Ladder, Provenance::capture(1))
    }

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_record_is_read_back_as_it_was_written() {
        let place = tempfile::tempdir().unwrap();
        let record = record();
        let path = Store::open(place.path().join("a/b")).unwrap().write(&record).unwrap();
        assert_eq!(Record::read(&path).unwrap(), record);
        assert_eq!(names(path.parent().unwrap()), [RECORD_FILE]);
    }

    #[test]
    fn a_packed_record_is_read_back_and_packing_again_changes_nothing() {
        let place = tempfile::tempdir().unwrap();
        let record = record();
        let path = Store::open(place.path()).unwrap().write(&record).unwrap();
        let packed = pack(&path).unwrap();
        assert_eq!(names(packed.parent().unwrap()), [PACKED_FILE]);
        assert_eq!(record_file(packed.parent().unwrap()), packed);
        assert_eq!(Record::read(&packed).unwrap(), record);
        let bytes = fs::read(&packed).unwrap();
        assert_eq!((pack(&packed).unwrap(), fs::read(&packed).unwrap()), (packed, bytes));
    }

    #[test]
    fn runs_of_the_same_second_do_not_overwrite_each_other() {
        let place = tempfile::tempdir().unwrap();
        let store = Store::open(place.path()).unwrap();
        let record = record();
        let first = store.write(&record).unwrap();
        let second = store.write(&record).unwrap();
        assert_ne!(first, second);
        assert!(second.parent().unwrap().to_str().unwrap().ends_with("-ladder-2"));
        assert_eq!(names(place.path()).len(), 2);
    }

    #[test]
    fn every_run_has_a_folder_of_its_own() {
        let place = tempfile::tempdir().unwrap();
        let store = Store::open(place.path().join("runs")).unwrap();
        let time = record().provenance.time_utc;
        let folders = [(); 3].map(|()| store.claim(&time, Kind::Evolve).unwrap());
        assert!(folders.iter().all(|folder| folder.is_dir()) && folders[0] != folders[1]);
        assert!(folders[2].to_str().unwrap().ends_with("-evolve-3"), "{}", folders[2].display());
    }

    #[test]
    fn a_record_that_grows_stays_in_its_place() {
        let place = tempfile::tempdir().unwrap();
        let mut record = record();
        let path = Store::open(place.path()).unwrap().write(&record).unwrap();
        record.ended_early = Some("the device went away".into());
        Store::rewrite(&path, &record).unwrap();
        assert_eq!(Record::read(&path).unwrap(), record);
        assert_eq!((names(place.path()).len(), names(path.parent().unwrap())), (1, vec![RECORD_FILE.to_string()]));
    }

    #[test]
    fn opening_leaves_no_trace() {
        let place = tempfile::tempdir().unwrap();
        Store::open(place.path().join("not/yet")).unwrap();
        assert!(names(place.path()).is_empty());
    }

    #[test]
    fn a_file_in_the_way_is_an_error_at_opening() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("file");
        fs::write(&file, "x").unwrap();
        for folder in [file.clone(), file.join("runs")] {
            let error = Store::open(&folder).unwrap_err().to_string();
            assert!(error.contains("--records"), "{error}");
        }
        assert_eq!(names(place.path()), ["file"]);
    }

    #[test]
    fn a_failed_write_removes_what_it_made() {
        let place = tempfile::tempdir().unwrap();
        let store = Store::open(place.path().join("runs")).unwrap();
        // A name too long for any file system fails after the folder was created.
        assert!(store.write_run(&"x".repeat(4096), b"{}").is_err());
        assert!(names(store.folder()).is_empty());
    }

    #[test]
    fn a_file_replaces_the_old_one_whole() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("out.safetensors");
        fs::write(&path, "old").unwrap();
        check_file(&path).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"old");
        write_file(&path, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(names(place.path()), ["out.safetensors"]);
    }

    #[test]
    fn a_file_in_a_missing_folder_is_an_error_before_the_work() {
        let place = tempfile::tempdir().unwrap();
        assert!(check_file(&place.path().join("missing/out")).is_err());
        assert!(check_file(place.path()).is_err());
        assert!(check_file(Path::new("/")).is_err());
    }
}
