//! What people and programs see: one file per output.

pub mod bench_table;
pub mod book;
pub mod build_table;
#[cfg(test)]
pub mod compare_data;
pub mod compare_document;
pub mod compare_table;
#[cfg(test)]
pub mod evolve_data;
pub mod evolve_table;
#[cfg(test)]
mod fixed_data;
pub mod gates_table;
mod gpu_ladder_table;
pub mod ladder_table;
mod ledger_section;
pub mod ledger_table;
mod numbers;
mod optimisations_table;
pub mod profile_difference;
pub mod profile_table;
pub mod quantizer_table;
#[cfg(test)]
mod readme;
pub mod records_table;

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use eightfold::{Error, Result};
use serde::Serialize;
use std::io::{ErrorKind, Write};

/// Writes to standard output. A reader that went away (`| head`) has seen enough and is no error.
pub fn print(text: &str) -> Result<()> {
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
    print(&format!("{text}\n"))
}

/// Says something beside the result, on standard error; nobody listening is no reason to stop.
pub fn note(text: &str) {
    let _ = writeln!(std::io::stderr(), "note: {}", single_line(text));
}

/// Says what went wrong, in one line on standard error.
pub fn complain(text: &str) {
    let _ = writeln!(std::io::stderr(), "error: {}", single_line(text));
}

fn single_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A table without lines: the first column left, numbers right, the last column left if it is words.
fn table(header: &[&str], last_is_words: bool) -> Table {
    let mut table = Table::new();
    table.load_preset(NOTHING).set_header(header);
    let last = header.len() - 1;
    for (index, column) in table.column_iter_mut().enumerate() {
        let words = index == 0 || (index == last && last_is_words);
        column.set_cell_alignment(if words { CellAlignment::Left } else { CellAlignment::Right });
        column.set_padding((if index == 0 { 2 } else { 1 }, 1));
    }
    table
}

/// The table's text, without the blanks that pad its last column.
fn text(table: &Table) -> String {
    table.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}
