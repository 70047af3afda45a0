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
    /// The row of a record.
    pub fn new(filed: &Filed, superseded: bool, age: Age) -> Self {
        let state = match age {
            _ if superseded => "superseded: a newer record replaces it".into(),
            Age::Current => "current".into(),
            Age::Stale(1) => "stale: 1 commit changed its sources".into(),
            Age::Stale(commits) => format!("stale: {commits} commits changed its sources"),
            Age::Unknown => "unknown: git does not know its commit".into(),
        };
        Row {
            topic: filed.topic.clone(),
            record: filed.name.clone(),
            commit: filed.short_commit(),
            ran: filed.ran(),
            device: filed.device(),
            date: filed.date(),
            state,
        }
    }
}

/// The table, and how many are stale.
pub fn render(rows: &[Row]) -> String {
    let mut table = table(&["topic", "record", "commit", "date", "state"], true);
    for row in rows {
        table.add_row([&row.topic, &row.record, &row.commit, &row.date, &row.state]);
    }
    let count = |start: &str| rows.iter().filter(|row| row.state.starts_with(start)).count();
    let [stale, superseded] = ["stale", "superseded"].map(count);
    format!("{}\n{} records: {stale} stale, {superseded} superseded\n", text(&table), rows.len())
}

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
            row("20261115T070735Z-bench", "stale: 3 commits changed its sources"),
            row("20261114T070735Z-bench", "superseded: a newer record replaces it"),
        ];
        insta::assert_snapshot!(render(&rows));
    }
}
