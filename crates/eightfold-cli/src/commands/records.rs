//! `eightfold records`: which records there are, which are stale, and what may go.

use crate::output::records_table::{self, Row};
use crate::{Verdict, output};
use clap::Args;
use eightfold::{Error, Result};
use eightfold_lab::archive::{self, Filed};
use eightfold_lab::store;
use std::path::PathBuf;

/// What to do with the records.
#[derive(Args, Debug)]
pub struct Arguments {
    /// Folder of the records: one folder per topic, or the runs themselves
    #[arg(value_name = "DIR", default_value = "results")]
    folder: PathBuf,
    /// Write every record compressed, with one check for each case that passed
    #[arg(long)]
    pack: bool,
    /// Remove every record that a newer one of the same job, device and problems replaces
    #[arg(long)]
    prune: bool,
}

/// Packs and prunes if asked to, and lists what is there.
pub fn execute(arguments: &Arguments, json: bool) -> Result<Verdict> {
    if !arguments.folder.is_dir() {
        let rule = format!("`{}` is not a folder", arguments.folder.display());
        return Err(Error::invalid("folder", rule, "name the folder of the records, such as results or runs"));
    }
    if arguments.pack {
        for path in archive::unpacked(&arguments.folder) {
            store::pack(&path)?;
        }
    }
    let mut filed = archive::read(&arguments.folder)?;
    if arguments.prune {
        for old in archive::superseded(&filed) {
            archive::remove(&filed[old])?;
            output::note(&format!("removed {}", filed[old].path.display()));
        }
        filed = archive::read(&arguments.folder)?;
    }
    let superseded = archive::superseded(&filed);
    let rows: Vec<Row> = filed
        .iter()
        .enumerate()
        .map(|(index, filed): (usize, &Filed)| Row::new(filed, superseded.contains(&index), archive::age(filed)))
        .collect();
    match json {
        true => output::print_json(&rows)?,
        false => output::print(&records_table::render(&rows))?,
    }
    Ok(Verdict::Passed)
}
