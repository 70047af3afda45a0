//! `eightfold report`: records as one page.

use crate::{Verdict, output};
use clap::Args;
use eightfold::{Error, Result};
use eightfold_lab::report::{self, Source, Tally};
use eightfold_lab::store;
use serde::Serialize;
use std::path::PathBuf;

/// What to show, and where.
#[derive(Args, Debug)]
pub struct Arguments {
    /// Records to show, in this order: record.json files, or the folders that hold them
    #[arg(value_name = "RECORD", required = true)]
    records: Vec<PathBuf>,
    /// The page to write
    #[arg(long, value_name = "FILE", default_value = "report.html")]
    to: PathBuf,
}

#[derive(Serialize)]
struct Written {
    page: String,
    bytes: usize,
    records: Vec<String>,
    verdict: String,
}

/// Reads every record before anything is written, writes the page, says what the verdict is.
pub fn execute(arguments: &Arguments, json: bool) -> Result<Verdict> {
    let is_out = |path: &PathBuf| {
        let whole = arguments.to.canonicalize();
        whole.is_ok_and(|out| report::record_file(path).canonicalize().is_ok_and(|file| file == out))
    };
    if arguments.records.iter().any(is_out) {
        let rule = format!("`{}` is one of the records", arguments.to.display());
        return Err(Error::invalid("to", rule, "name another file for the page"));
    }
    store::check_file(&arguments.to)?;
    let sources = arguments.records.iter().map(|path| Source::read(path)).collect::<Result<Vec<_>>>()?;
    let page = report::render(&sources);
    store::write_file(&arguments.to, page.as_bytes())?;
    let tally = sources.iter().map(|source| Tally::of(&source.record)).fold(Tally::default(), Tally::and);
    let written = Written {
        page: arguments.to.display().to_string(),
        bytes: page.len(),
        records: sources.into_iter().map(|source| source.name).collect(),
        verdict: tally.in_words(),
    };
    if json {
        output::print_json(&written)?;
    } else {
        output::print(&format!("{}.\npage: {}\n", written.verdict, written.page))?;
    }
    Ok(Verdict::Passed)
}
