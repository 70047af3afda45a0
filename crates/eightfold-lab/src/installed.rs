//! Choices that a search installed: which variant runs a problem on a device, in place of what the library would pick.
//!
//! They live in one text file of the user, a line each: device, problem and variant, and where the choice comes from,
//! separated by tabs. `EIGHTFOLD_PLANS` names another file, or is `off`. The file is read once per process. A line that
//! this version does not understand, such as one with a knob that is gone, counts for nothing.

use crate::kernel::recorded;
use crate::provenance::cpu_name;
use eightfold::{Error, Problem, Result, Variant};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Names the file, or is `off`.
pub const VARIABLE: &str = "EIGHTFOLD_PLANS";

/// One choice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Installed {
    /// The device's name; for a CPU with the number of threads.
    pub device: String,
    /// The problem's shape and mask, as it prints itself.
    pub problem: String,
    /// What runs.
    pub variant: Variant,
    /// Where the choice comes from, for a person.
    pub note: String,
}

impl Installed {
    /// Why it runs, for a person.
    pub fn reason(&self) -> String {
        format!("installed for this problem on this device: {} ({VARIABLE}=off ignores it)", self.note)
    }
}

/// This machine's CPU as a key: what is fastest depends on the number of threads, so that is part of it.
pub fn cpu_device() -> String {
    format!("{}, {} threads", cpu_name(), rayon::current_num_threads())
}

/// The user's file; none where `EIGHTFOLD_PLANS` is `off` or there is no home folder.
pub fn file() -> Option<PathBuf> {
    path(|name| std::env::var_os(name).map(PathBuf::from))
}

fn path(variable: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    let set = |name: &str| variable(name).filter(|path| !path.as_os_str().is_empty());
    if let Some(path) = set(VARIABLE) {
        return (path.as_os_str() != "off").then_some(path);
    }
    let absolute = |name: &str| set(name).filter(|path| path.is_absolute());
    let platform = if cfg!(windows) {
        absolute("APPDATA")
    } else if cfg!(target_os = "macos") {
        absolute("HOME").map(|home| home.join("Library/Application Support"))
    } else {
        absolute("XDG_CONFIG_HOME").or_else(|| absolute("HOME").map(|home| home.join(".config")))
    };
    platform.map(|folder| folder.join("eightfold").join("plans.tsv"))
}

/// What was installed on a device for a problem and a kernel, as of the first time that anyone asked.
pub fn find(device: &str, problem: &Problem, kernel: &str) -> Option<&'static Installed> {
    static TABLE: OnceLock<Vec<Installed>> = OnceLock::new();
    let table = TABLE.get_or_init(|| file().map(|path| read(&path)).unwrap_or_default());
    if table.is_empty() {
        return None;
    }
    let problem = problem.to_string();
    let suits = |choice: &Installed| choice.device == device && choice.problem == problem;
    table.iter().find(|choice| suits(choice) && choice.variant.kernel() == kernel)
}

/// Every choice in a file that this version understands; none if there is no file.
pub fn read(path: &Path) -> Vec<Installed> {
    fs::read_to_string(path).unwrap_or_default().lines().filter_map(parse).collect()
}

fn parse(line: &str) -> Option<Installed> {
    let fields: Vec<&str> = line.split('\t').collect();
    let &[device, problem, variant, note] = &fields[..] else { return None };
    let variant = recorded(variant).ok()?;
    Some(Installed { device: device.into(), problem: problem.into(), variant, note: note.into() })
}

/// Puts a choice into a file, in place of any for the same device, problem and kernel. The file is replaced whole; lines
/// that this version does not understand stay.
pub fn install(path: &Path, choice: &Installed) -> Result<()> {
    let plain = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let Installed { device, problem, variant, note } = choice;
    let key = format!("{}\t{}\t", plain(device), plain(problem));
    let replaced = format!("{key}{}:", variant.kernel());
    let old = fs::read_to_string(path).unwrap_or_default();
    let mut text: String =
        old.lines().filter(|line| !line.starts_with(&replaced)).map(|line| format!("{line}\n")).collect();
    text.push_str(&format!("{key}{variant}\t{}\n", plain(note)));
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let written = fs::create_dir_all(folder).and_then(|()| {
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(text.as_bytes())?;
        file.as_file().sync_all()?;
        file.persist(path).map_err(|error| error.error)
    });
    written.map(|_| ()).map_err(|error| {
        let rule = format!("`{}` cannot be written: {error}", path.display());
        Error::invalid("install", rule, format!("name another file in {VARIABLE}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(problem: &str, variant: &str) -> Installed {
        Installed {
            device: "A CPU, 2 threads".into(),
            problem: problem.into(),
            variant: variant.parse().unwrap(),
            note: "1.10× by a search".into(),
        }
    }

    #[test]
    fn a_choice_is_read_back_and_a_second_one_takes_its_place() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("below/plans.tsv");
        assert_eq!(read(&path), []);
        let (first, other) = (choice("1,8,512,64", "cpu:baseline"), choice("1,8,512,64 causal", "cpu:lanes"));
        install(&path, &first).unwrap();
        install(&path, &other).unwrap();
        assert_eq!(read(&path), [first, other.clone()]);
        let second = choice("1,8,512,64", "cpu:lanes");
        install(&path, &second).unwrap();
        assert_eq!(read(&path), [other.clone(), second.clone()]);
        let of_another_kernel = choice("1,8,512,64", "hopper:fast");
        install(&path, &of_another_kernel).unwrap();
        assert_eq!(read(&path), [other, second, of_another_kernel]);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn what_is_not_understood_counts_for_nothing_and_stays() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("plans.tsv");
        fs::write(&path, "a\tb\tgpu:warps=9\tlater\nhello\n").unwrap();
        assert_eq!(read(&path), []);
        install(&path, &choice("1,1,1,8", "cpu:baseline")).unwrap();
        assert!(fs::read_to_string(&path).unwrap().starts_with("a\tb\tgpu:warps=9\tlater\nhello\nA CPU"));
        assert_eq!(read(&path).len(), 1);
    }

    #[test]
    fn the_variable_names_the_file_or_turns_it_off() {
        let with = |value: &str| {
            path(|name| match name {
                VARIABLE => Some(PathBuf::from(value)),
                "HOME" | "APPDATA" => Some(std::env::temp_dir()),
                _ => None,
            })
        };
        assert_eq!(with("off"), None);
        assert_eq!(with("x.tsv"), Some(PathBuf::from("x.tsv")));
        assert!(with("").unwrap().ends_with("eightfold/plans.tsv"));
        assert_eq!(path(|_| None), None);
    }

    #[test]
    fn a_file_that_cannot_be_written_names_the_variable() {
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join("file"), "").unwrap();
        let error = install(&place.path().join("file/plans.tsv"), &choice("1,1,1,8", "cpu:baseline")).unwrap_err();
        assert!(error.to_string().contains(VARIABLE), "{error}");
    }
}
