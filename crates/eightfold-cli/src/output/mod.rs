//! What people and programs see: one file per output.

pub mod ablation_table;
pub mod bench_table;
pub mod book;
pub mod build_table;
#[cfg(test)]
pub mod compare_data;
pub mod compare_document;
pub mod compare_table;
mod csv;
#[cfg(test)]
pub mod evolve_data;
pub mod evolve_table;
pub mod explain_table;
#[cfg(test)]
mod fixed_data;
pub mod gates_table;
mod gpu_ladder_table;
pub mod host_table;
pub mod ladder_summary;
pub mod ladder_table;
mod ledger_section;
pub mod ledger_table;
pub mod list_table;
pub mod mutants_table;
mod numbers;
mod optimisations_table;
pub mod page;
pub mod paged_table;
pub mod passage_table;
pub mod profile_difference;
pub mod profile_table;
pub mod quantizer_table;
#[cfg(test)]
mod readme;
pub mod records_table;
pub mod survey_table;
mod table;

use eightfold::{Error, Result};
use page::page;
use serde::Serialize;
use std::io::{ErrorKind, Write};
use table::Table;

/// Shows something to a person: on the page, and with outcomes in colour where the terminal wants that.
pub fn print(text: &str) -> Result<()> {
    let text = page::wrapped(text, page().width);
    print_raw(&if page().colour { page::coloured(&text) } else { text })
}

/// Writes to standard output as it is. A reader that went away (`| head`) has seen enough and is no error.
pub fn print_raw(text: &str) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Error::unavailable("standard output", error.to_string(), "send it to a place with room"))
        }
        _ => Ok(()),
    }
}

/// Writes a value as JSON to standard output.
pub fn print_json(value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| Error::unavailable("the JSON output", error.to_string(), "leave out --json"))?;
    print_raw(&format!("{text}\n"))
}

/// Says something beside the result, on standard error, unless results alone are wanted; nobody listening is no reason to
/// stop.
pub fn note(text: &str) {
    if page().quiet {
        return;
    }
    let _ = writeln!(std::io::stderr(), "note: {}", single_line(text));
}

/// Says what went wrong, in one line on standard error.
pub fn complain(text: &str) {
    let _ = writeln!(std::io::stderr(), "error: {}", single_line(text));
}

fn single_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A table: the first column is of words, the last if told so, and the others of numbers.
fn table(header: &[&str], last_is_words: bool) -> Table {
    Table::new(header, last_is_words)
}

/// The table's text on this page.
fn text(table: &Table) -> String {
    table.text()
}
