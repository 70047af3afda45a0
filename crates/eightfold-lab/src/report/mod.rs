//! Records as one page that people read: self-contained HTML without scripts, on a screen, a phone or paper.

mod accounts;
mod chart;
mod comparisons;
mod distributions;
mod environment;
mod errors;
mod evolution;
mod fastest;
mod group;
mod ladder;
mod page;
mod profile;
mod quantizer;
mod rates;
mod resources;
mod scale;
mod summary;
mod table;
mod words;

use crate::record::Record;
use crate::store::{self, PACKED_FILE, RECORD_FILE};
use eightfold::{Error, Result};
use std::path::{Path, PathBuf};

pub use summary::Tally;

/// A record with the name that a reader knows it by.
#[derive(Debug, Clone, PartialEq)]
pub struct Source {
    /// The name of the record's folder, or of its file where that tells more.
    pub name: String,
    /// What it says.
    pub record: Record,
}

impl Source {
    /// Reads a record from its file, or from the folder that holds it.
    pub fn read(path: &Path) -> Result<Source> {
        let file = record_file(path);
        if !file.exists() {
            let rule = format!("{} does not exist", file.display());
            return Err(Error::invalid("record", rule, "give a record.json, or the folder that holds one"));
        }
        let record = Record::read(&file)?;
        Ok(Source { name: name(&file), record })
    }
}

/// The file of a record that is named by its file or by the folder that holds it.
pub fn record_file(path: &Path) -> PathBuf {
    store::record_file(path)
}

/// What tells a record from others: its folder's name, since most are called `record.json`.
fn name(file: &Path) -> String {
    let named = match file.file_name() {
        // A path such as `record.json` says nothing about the folder that it is in.
        Some(name) if name == RECORD_FILE || name == PACKED_FILE => {
            let whole = file.canonicalize().unwrap_or_else(|_| file.to_path_buf());
            whole.parent().and_then(Path::file_name).map(ToOwned::to_owned)
        }
        name => name.map(ToOwned::to_owned),
    };
    named.map_or_else(|| RECORD_FILE.into(), |name| name.to_string_lossy().into_owned())
}

/// The whole page for these records, in their order.
pub fn render(sources: &[Source]) -> String {
    page::render(sources).into_string()
}

#[cfg(test)]
mod fixed_data;
#[cfg(test)]
mod tests;
