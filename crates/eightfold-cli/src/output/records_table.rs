//! The list of records: where each comes from, and whether what it measured has changed since.

use super::{table, text};
use eightfold_lab::archive::{Age, Filed};
use serde::Serialize;

/// A record in the list.
#[derive(Debug, Serialize)]
pub struct Row {
    topic: String,
    record: String,
    commit: String,
    ran: String,
    device: String,
    date: String,
    state: String,
}

impl Row {
    /// The row of a record; `removable` says why it may go.
    pub fn new(filed: &Filed, removable: Option<&str>, age: &Age) -> Self {
        Row {
            topic: filed.topic.clone(),
            record: filed.name.clone(),
            commit: filed.short_commit(),
            ran: filed.ran(),
            device: filed.device(),
            date: filed.date(),
            state: removable.map_or_else(|| age.to_string(), String::from),
        }
    }
}

/// The table, and how many are stale.
pub fn render(rows: &[Row]) -> String {
    let mut table = table(&["topic", "record", "commit", "date", "state"], true).with_words(1);
    for row in rows {
        table.add_row([&row.topic, &row.record, &row.commit, &row.date, &row.state]);
    }
    let count = |start: &str| rows.iter().filter(|row| row.state.starts_with(start)).count();
    let (all, current, stale) = (rows.len(), count("current"), count("stale"));
    let counts = format!("{all} records: {current} current, {stale} stale, {} other", all - current - stale);
    format!("{}\n{counts}\n{EXPLAINED}", text(&table))
}

/// What the states mean.
const EXPLAINED: &str = "\
Current: the sources of the record's kernels are those of this program.
Stale: they have changed since, or the record is older than fingerprints of sources. Its numbers are
    those of its commit.
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout() {
        let row = |record: &str, state: &str| Row {
            topic: "hopper".into(),
            record: record.into(),
            commit: "0123456".into(),
            ran: "0123456789abcdef".into(),
            device: "NVIDIA H200".into(),
            date: "2026-11-16".into(),
            state: state.into(),
        };
        let rows = [
            row("20261116T070735Z-bench", "current"),
            row("20261115T070735Z-bench", "stale: hopper changed"),
            row("20261114T070735Z-bench", "replaced by a newer one"),
        ];
        insta::assert_snapshot!(render(&rows));
    }
}
