//! The records that a ledger is held against.

use crate::kernel::Kernel;
use crate::record::{Kind, Record};
use crate::store::{self, record_file};
use eightfold::{Error, Result};
use std::path::{Path, PathBuf};

/// A record, and what was passed over on the way to it.
#[derive(Debug)]
pub struct Found {
    /// The newest that fits, with its path.
    pub record: Option<(PathBuf, Record)>,
    /// Why newer ones could not be read.
    pub unreadable: Vec<Error>,
}

/// The newest ladder record of a kernel, without a mask, among the runs in these folders; folders need not exist.
pub fn newest(folders: &[&Path], kernel: Kernel) -> Found {
    let mut unreadable = Vec::new();
    for path in runs(folders, Kind::Ladder) {
        match Record::read(&path) {
            Ok(record) if kernel_of(&record) == Some(kernel) => {
                return Found { record: Some((path, record)), unreadable };
            }
            Ok(_) => {}
            Err(error) => unreadable.push(error),
        }
    }
    Found { record: None, unreadable }
}

/// The records of all runs of a kind in these folders, newest first; folders need not exist.
pub fn runs(folders: &[&Path], kind: Kind) -> Vec<PathBuf> {
    let kind = format!("-{kind}");
    let mut runs: Vec<(String, PathBuf)> = folders
        .iter()
        .flat_map(|folder| store::folders_of_runs(folder))
        .filter_map(|folder| Some((folder.file_name()?.to_str()?.to_string(), record_file(&folder))))
        // A run's name begins with its time, then its kind. Names that begin with a dot are not complete.
        .filter(|(name, path)| !name.starts_with('.') && name.contains(&kind) && path.is_file())
        .collect();
    runs.sort_by(|a, b| b.cmp(a));
    runs.into_iter().map(|(_, path)| path).collect()
}

/// Records of comparisons, and what was passed over on the way to them.
#[derive(Debug, Default)]
pub struct Comparisons {
    /// Those that could be read, with their paths, in the order of the runs.
    pub records: Vec<(PathBuf, Record)>,
    /// Why others could not be.
    pub unreadable: Vec<Error>,
}

/// The records of these runs, as far as they hold comparisons.
pub fn comparisons(runs: Vec<PathBuf>) -> Comparisons {
    let mut found = Comparisons::default();
    for path in runs {
        match Record::read(&path) {
            Ok(record) if record.comparisons.is_empty() => {}
            Ok(record) => found.records.push((path, record)),
            Err(error) => found.unreadable.push(error),
        }
    }
    found
}

/// The ladder record at this path, a file or the folder of its run, and the kernel whose stages it measures.
pub fn load(path: &Path) -> Result<(PathBuf, Record, Kernel)> {
    let file = record_file(path);
    let record = Record::read(&file)?;
    let kernel = kernel_of(&record).ok_or_else(|| {
        Error::invalid(
            "record",
            format!("{} does not measure the stages of a ladder without a mask", file.display()),
            "give the record of `eightfold ladder` or `eightfold ladder --kernel K`, run without --causal",
        )
    })?;
    Ok((file, record, kernel))
}

/// The kernel whose ladder a record climbs without a mask, which is what predictions are for.
pub fn kernel_of(record: &Record) -> Option<Kernel> {
    if record.kind != Kind::Ladder {
        return None;
    }
    let group = record.groups.iter().find(|group| !group.problem.causal && !group.sweep)?;
    let entry = group.entries.iter().find(|entry| !entry.peer)?;
    entry.implementation.split(':').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::RECORD_FILE;

    /// Kept for tests; what is in `results` comes and goes.
    fn results() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/records")
    }

    #[test]
    fn the_newest_record_without_a_mask_is_found_for_each_kernel() {
        for kernel in [Kernel::CPU, Kernel::LADDER] {
            let found = newest(&[&results(), Path::new("/nowhere")], kernel);
            let (_, record) = found.record.unwrap();
            assert!(found.unreadable.is_empty());
            assert_eq!((record.kind, kernel_of(&record)), (Kind::Ladder, Some(kernel)));
            assert!(record.groups.iter().all(|group| !group.problem.causal));
        }
    }

    #[test]
    fn what_cannot_be_read_is_passed_over_and_named_and_what_is_incomplete_is_not_looked_at() {
        let place = tempfile::tempdir().unwrap();
        for name in ["20990101T000000Z-ladder", ".20990101T000000Z-ladder.1.tmp", "20990101T000000Z-bench"] {
            std::fs::create_dir(place.path().join(name)).unwrap();
            std::fs::write(place.path().join(name).join(RECORD_FILE), "{}").unwrap();
        }
        let found = newest(&[place.path(), &results()], Kernel::CPU);
        assert!(found.record.is_some());
        assert_eq!(found.unreadable.len(), 1);
        assert!(found.unreadable[0].to_string().contains("20990101T000000Z-ladder"));
        assert!(newest(&[place.path()], Kernel::CPU).record.is_none());
    }

    #[test]
    fn comparisons_come_newest_first_and_what_cannot_be_read_is_named() {
        let place = tempfile::tempdir().unwrap();
        let run = |name: &str, text: &str| {
            std::fs::create_dir(place.path().join(name)).unwrap();
            std::fs::write(place.path().join(name).join(RECORD_FILE), text).unwrap();
            place.path().join(name).join(RECORD_FILE)
        };
        let committed = |name: &str| store::read_text(&record_file(&results().join(name))).unwrap();
        let old = run("20260101T000000Z-compare", &committed("planted/20261115T112839Z-compare"));
        let new = run("20260102T000000Z-compare-2", &committed("planted/20261115T113231Z-compare"));
        run("20260103T000000Z-compare", "{}");
        run("20260104T000000Z-ladder", "{}");
        let found = comparisons(runs(&[place.path(), Path::new("/nowhere")], Kind::Compare));
        assert_eq!(found.records.iter().map(|(path, _)| path).collect::<Vec<_>>(), [&new, &old]);
        assert_eq!(found.unreadable.len(), 1);
        assert!(found.unreadable[0].to_string().contains("20260103T000000Z-compare"));
    }

    #[test]
    fn a_record_of_something_else_is_refused() {
        for name in ["ladder/20261115T090626Z-bench", "ladder/20261115T090533Z-ladder"] {
            let error = load(&results().join(name)).unwrap_err().to_string();
            assert!(error.contains("does not measure the stages of a ladder without a mask"), "{error}");
        }
    }
}
