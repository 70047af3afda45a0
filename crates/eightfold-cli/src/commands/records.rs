//! `eightfold records`: which records there are, which are stale, what may go, and how new ones come in.

use super::book;
use crate::output::records_table::{self, Row};
use crate::{Verdict, output};
use clap::Args;
use eightfold::{Error, Result};
use eightfold_lab::archive::{self, Filed};
use eightfold_lab::provenance::Provenance;
use eightfold_lab::python;
use eightfold_lab::record::{Kind, Record};
use eightfold_lab::store::{self, Store};
use eightfold_lab::verification::Verification;
use eightfold_lab::withdrawn::Withdrawn;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What to do with the records.
#[derive(Args, Debug)]
pub struct Arguments {
    /// Folder of the records: one folder per topic, or the runs themselves
    #[arg(value_name = "DIR", default_value = "results")]
    folder: PathBuf,
    /// Fail if a record that a claim of correctness rests on is stale, and the claim is not withdrawn in DIR/withdrawn.toml
    #[arg(long)]
    check: bool,
    /// Compress every record, and keep one check for each case that passed
    #[arg(long)]
    pack: bool,
    /// Remove what a newer record replaces, and comparisons of builds or knobs that are gone
    #[arg(long)]
    prune: bool,
    /// Take over the records below NEW by topic, compress them, prune, take back withdrawals that no stale record needs any more,
    /// and write the book anew
    #[arg(long, value_name = "NEW", conflicts_with = "import")]
    adopt: Option<PathBuf>,
    /// Make a record of what other programs said: the output of cargo test, h200.sh's sanitizer.tsv, or the file of the Python
    /// package's tests/h200.py
    #[arg(long, value_name = "FILE")]
    import: Option<PathBuf>,
}

/// Changes what it is asked to, and lists what is there.
pub fn execute(arguments: &Arguments, json: bool) -> Result<Verdict> {
    if let Some(log) = &arguments.import {
        return import(log, &arguments.folder, json);
    }
    if !arguments.folder.is_dir() {
        let rule = format!("`{}` is not a folder", arguments.folder.display());
        return Err(Error::invalid("folder", rule, "name the folder of the records, such as results or runs"));
    }
    if let Some(new) = &arguments.adopt {
        for path in archive::adopt(new, &arguments.folder)? {
            output::note(&format!("taken over: {}", path.display()));
        }
    }
    if arguments.pack {
        for path in archive::unpacked(&arguments.folder) {
            store::pack(&path)?;
        }
    }
    let mut filed = archive::read(&arguments.folder)?;
    if arguments.prune || arguments.adopt.is_some() {
        for (old, reason) in removable(&filed) {
            archive::remove(&filed[old])?;
            output::note(&format!("removed {}: {reason}", filed[old].path.display()));
        }
        filed = archive::read(&arguments.folder)?;
    }
    if arguments.adopt.is_some() {
        for kernel in Withdrawn::take_back(&arguments.folder, &filed)? {
            output::note(&format!("claimed again: that {kernel} is right on a device"));
        }
        for line in Withdrawn::read(&arguments.folder)?.problems(&filed) {
            output::note(&line);
        }
        book::execute()?;
    }
    let removable = removable(&filed);
    let row = |(index, filed)| Row::new(filed, removable.get(&index).copied(), &archive::age(filed));
    let rows: Vec<Row> = filed.iter().enumerate().map(row).collect();
    match json {
        true => output::print_json(&rows)?,
        false => output::print(&records_table::render(&rows))?,
    }
    if !arguments.check {
        return Ok(Verdict::Passed);
    }
    let withdrawn = Withdrawn::read(&arguments.folder)?;
    for (kernel, withdrawal) in withdrawn.each() {
        output::note(&format!(
            "{kernel}: its claims of correctness are withdrawn since {}: {}",
            withdrawal.since, withdrawal.reason
        ));
    }
    let problems = withdrawn.problems(&filed);
    for line in &problems {
        output::note(line);
    }
    Ok(if problems.is_empty() { Verdict::Passed } else { Verdict::GateFailed })
}

/// What may go, and why.
fn removable(filed: &[Filed]) -> BTreeMap<usize, &'static str> {
    let outlived = archive::outlived(filed).into_iter().map(|index| (index, "its knobs or builds are gone"));
    outlived.chain(archive::superseded(filed).into_iter().map(|index| (index, "replaced by a newer one"))).collect()
}

/// Writes the record of a log that was just made, on this machine.
fn import(log: &Path, folder: &Path, json: bool) -> Result<Verdict> {
    let text = std::fs::read_to_string(log).map_err(|error| {
        let rule = format!("`{}` cannot be read: {error}", log.display());
        Error::invalid("import", rule, "name the log of tests or of compute-sanitizer, or the Python package's file")
    })?;
    let (kind, python, verification) = if text.starts_with('{') {
        let (python, verification) = python::read(&text)?;
        (Kind::Python, Some(python), verification)
    } else {
        let (kind, verification) = Verification::read(&text)?;
        (kind, None, verification)
    };
    let provenance = Provenance::capture(rayon::current_num_threads()).with_cuda();
    let record = Record { python, verification: Some(verification), ..Record::new(kind, provenance) };
    let path = Store::open(folder)?.write(&record)?;
    match json {
        true => output::print_json(&record)?,
        false => output::print(&format!("record: {}\n", path.display()))?,
    }
    Ok(if record.failed() { Verdict::GateFailed } else { Verdict::Passed })
}
