//! What can be named, for people and for programs.

use super::table::Table;
use serde::Serialize;

/// Everything that was asked for; the rest is left out.
#[derive(Debug, Default, Serialize)]
pub struct Listing {
    /// What --kernel takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernels: Option<Vec<Item>>,
    /// What --variant takes after the kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stages: Option<Vec<Stage>>,
    /// The same, knob by knob.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub knobs: Option<Vec<Knob>>,
    /// What --shape takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shapes: Option<Vec<Item>>,
    /// What --families takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub families: Option<Vec<Item>>,
    /// Who is measured beside.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peers: Option<Vec<Item>>,
}

/// A name and what it stands for.
#[derive(Debug, Serialize)]
pub struct Item {
    /// The name.
    pub name: String,
    /// What it is.
    pub what: String,
}

/// A stage of a kernel.
#[derive(Debug, Serialize)]
pub struct Stage {
    /// The kernel.
    pub kernel: &'static str,
    /// The stage.
    pub name: String,
    /// What it changes.
    pub what: String,
}

/// A knob of a kernel.
#[derive(Debug, Serialize)]
pub struct Knob {
    /// The kernel.
    pub kernel: &'static str,
    /// The knob.
    pub name: String,
    /// The values that a search tries; others of numbers may be allowed.
    pub values: Vec<String>,
    /// What it decides.
    pub what: String,
}

/// One table for each part that was asked for.
pub fn render(listing: &Listing) -> String {
    let items = |title: &str, items: &Option<Vec<Item>>| {
        let rows = items.as_ref()?.iter().map(|item| vec![item.name.clone(), item.what.clone()]);
        Some(section(title, &["name", "what it is"], rows))
    };
    let stages = listing.stages.as_ref().map(|stages| {
        let rows = stages.iter().map(|stage| vec![format!("{}:{}", stage.kernel, stage.name), stage.what.clone()]);
        section("stages", &["variant", "what it changes"], rows)
    });
    let knobs = listing.knobs.as_ref().map(|knobs| {
        let name = |knob: &Knob| format!("{}:{}", knob.kernel, knob.name);
        let rows = knobs.iter().map(|knob| vec![name(knob), knob.values.join(", "), phrase(&knob.what)]);
        section("knobs", &["knob", "values", "what it decides"], rows)
    });
    let sections = [
        items("kernels", &listing.kernels),
        stages,
        knobs,
        items("shapes", &listing.shapes),
        items("families of inputs", &listing.families),
        items("peers", &listing.peers),
    ];
    sections.into_iter().flatten().collect::<Vec<_>>().join("\n")
}

/// A sentence as a cell has it: without its full stop, and without a capital that only begins it.
fn phrase(sentence: &str) -> String {
    let sentence = sentence.trim_end_matches('.');
    let mut letters = sentence.chars();
    match (letters.next(), letters.next()) {
        (Some(first), Some(second)) if second.is_lowercase() => {
            first.to_lowercase().chain(sentence.chars().skip(1)).collect()
        }
        _ => sentence.into(),
    }
}

fn section(title: &str, header: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut table = Table::new(header, true).with_words(1);
    rows.for_each(|row| table.add_row(row));
    format!("{title}\n{}", table.text())
}
