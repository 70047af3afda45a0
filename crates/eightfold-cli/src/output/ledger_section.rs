//! A part of the ledger: a table under its title, how the predictions fared, and what each row was about.

use super::numbers::NONE;
use super::{table, text};
use eightfold_lab::ledger::{Judgement, Origin, Prediction};

/// The same for a terminal and for documents.
pub struct Section {
    /// What it is of, measured where.
    pub title: String,
    /// Its columns.
    pub header: &'static [&'static str],
    /// Columns of words, which are aligned to the left; the first and the last are, too.
    pub words: &'static [usize],
    /// Columns that may be left out, the last named first.
    pub extras: &'static [&'static str],
    /// Its cells.
    pub rows: Vec<Vec<String>>,
    /// What the rows come to.
    pub tally: String,
    /// Rows at length.
    pub details: Vec<Details>,
}

/// A row at length.
pub struct Details {
    /// Its name.
    pub name: String,
    /// What it is.
    pub what: String,
    /// More about it, line by line, each under its own name.
    pub lines: Vec<(&'static str, String)>,
}

impl Section {
    /// For a terminal; `long` adds what each row was about.
    pub fn render(&self, long: bool) -> String {
        let mut table = self.words.iter().fold(table(self.header, true), |table, column| table.with_words(*column));
        table = table.with_extras(self.extras);
        for row in &self.rows {
            table.add_row(row);
        }
        let mut whole = format!("{}\n{}\n{}\n", self.title, text(&table), self.tally);
        for Details { name, what, lines } in self.details.iter().filter(|_| long) {
            whole.push_str(&format!("\n{name}: {what}\n"));
            for (name, words) in lines {
                whole.push_str(&format!("  {name}: {words}\n"));
            }
        }
        whole
    }

    /// The same as Markdown, for documents.
    pub fn markdown(&self, long: bool) -> String {
        let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
        let mut whole = format!("{}\n\n", self.title);
        whole.push_str(&line(self.header.iter().map(|cell| cell.to_string()).collect()));
        whole.push_str(&line(self.header.iter().map(|_| "---".to_string()).collect()));
        for row in &self.rows {
            whole.push_str(&line(row.iter().map(|cell| cell.replace('|', "\\|")).collect()));
        }
        whole.push_str(&format!("\n{}\n", self.tally));
        for Details { name, what, lines } in self.details.iter().filter(|_| long) {
            whole.push_str(&format!("\n**{name}**: {what}\n\n"));
            for (name, words) in lines {
                whole.push_str(&format!("- {name}: {words}\n"));
            }
        }
        whole
    }
}

/// The predicted range, and where it comes from.
pub fn predicted(prediction: Option<&Prediction>) -> String {
    prediction.map_or(NONE.into(), |one| format!("{:.2} to {:.2}× ({})", one.least, one.most, one.origin))
}

/// How many predictions of each origin were right: those from before the kernel existed count for more.
pub fn tally(judged: &[(Origin, Judgement)]) -> String {
    let of = |origin: Origin| {
        let count = |judgement| judged.iter().filter(|one| **one == (origin, judgement)).count();
        let kinds = [Judgement::Right, Judgement::TooHigh, Judgement::TooLow, Judgement::Undecided];
        let counts = kinds.map(|kind| (kind, count(kind)));
        let words = counts.iter().filter(|(_, count)| *count > 0).map(|(kind, count)| format!("{count} {kind}"));
        let words = words.collect::<Vec<_>>().join(", ");
        (!words.is_empty()).then(|| match origin {
            Origin::Plan => format!("predictions of the plan: {words}"),
            Origin::Arithmetic => format!("by arithmetic, written down after first measurements: {words}"),
        })
    };
    let parts: Vec<_> = [Origin::Plan, Origin::Arithmetic].into_iter().filter_map(of).collect();
    if parts.is_empty() { "no prediction is tested".into() } else { parts.join("; ") }
}
