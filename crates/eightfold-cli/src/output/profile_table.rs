//! What a profiler counted: one row for each variant, and below it what bounds each, with the evidence.

use super::ladder_table::title;
use super::numbers::{NONE, time};
use super::{table, text};
use eightfold_lab::gates::Gate;
use eightfold_lab::numbers;
use eightfold_lab::profile::{Metric, Profiled};
use eightfold_lab::record::{Entry, Group};

/// What a column shows.
const COLUMNS: [(&str, Metric); 9] = [
    ("tensor", Metric::TensorPipe),
    ("SM", Metric::SmThroughput),
    ("DRAM", Metric::Dram),
    ("warps", Metric::WarpsActive),
    ("issue", Metric::IssueSlots),
    ("XU", Metric::XuPipe),
    ("ALU", Metric::AluPipe),
    ("conflicts", Metric::BankConflicts),
    ("local", Metric::LocalInstructions),
];

/// The table of one shape, with what needs more words below it.
pub fn render(group: &Group) -> String {
    let mut header = vec!["variant", "time"];
    header.extend(COLUMNS.map(|(name, _)| name));
    header.extend(["of the roof", "gate"]);
    let mut table =
        table(&header, true).with_extras(&["of the roof", "warps", "local", "conflicts", "ALU", "XU", "issue"]);
    for entry in &group.entries {
        let profile = entry.profile.as_ref().map(|profiled| &profiled.profile);
        let mut row = vec![entry.name.clone(), time(profile.and_then(|profile| profile.time_us().ok()))];
        row.extend(COLUMNS.map(|(_, metric)| {
            profile.and_then(|profile| profile.get(metric).ok()).map_or(NONE.into(), |value| metric.unit().words(value))
        }));
        let position = entry.profile.as_ref().and_then(|profiled| profiled.position);
        row.push(position.map_or(NONE.into(), |position| format!("{:.1} %", 100.0 * position.share())));
        row.push(entry.gate(Gate::Profile).map_or(NONE.into(), |gate| gate.outcome.to_string()));
        table.add_row(row);
    }
    let reasons: String = group.entries.iter().map(reasons).collect();
    format!("{}\n{}{reasons}", title(group), text(&table))
}

/// What bounds a variant and where it stands; or why that is not known.
fn reasons(entry: &Entry) -> String {
    let Some(Profiled { bottleneck, position, .. }) = &entry.profile else {
        let unpassed = entry.gates.iter().map(|gate| &gate.summary).chain(&entry.note);
        return unpassed.map(|reason| format!("  {}: {reason}\n", entry.name)).collect();
    };
    let position = position.map_or(String::new(), |position| {
        format!(
            "; {} FLOP per byte moved, under the roof of {} (ridge at {})",
            numbers::three_digits(position.flop_per_byte),
            position.roof(),
            numbers::three_digits(position.ridge_flop_per_byte)
        )
    });
    format!("  {} is bound by {}\n    {}{position}\n", entry.name, bottleneck.by, bottleneck.evidence)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::fixed_data;

    #[test]
    fn layout() {
        insta::assert_snapshot!(render(&fixed_data::profiled_group()));
    }
}
