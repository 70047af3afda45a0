//! The ladder: each stage's time, its gain over the one before and over the baseline, its error, its gates.

use super::numbers::{error, ratio, time};
use super::{gpu_ladder_table, table, text};
use eightfold_lab::record::{Entry, Group, ProblemRecord};

/// The table of one shape, with what needs more words below it.
pub fn render(group: &Group) -> String {
    if group.entries.iter().any(|entry| entry.build.is_some() || entry.launch_timing.is_some()) {
        return gpu_ladder_table::render(group);
    }
    let mut table = table(&["stage", "p50", "× before", "× baseline", "worst L2", "gates"], true);
    let baseline = group.entries.first().and_then(Entry::p50_us);
    let mut before = None;
    for entry in &group.entries {
        let p50 = entry.p50_us();
        let over = |other: Option<f64>| other.zip(p50).map(|(other, p50)| other / p50);
        table.add_row([
            entry.name.clone(),
            time(p50),
            ratio(over(before)),
            ratio(over(baseline)),
            error(entry.worst_relative_l2()),
            gates(entry),
        ]);
        before = p50.or(before);
    }
    format!("{}\n{}{}", title(group), text(&table), remarks(group))
}

/// The shape's name, its sizes, the mask, the work, what is written.
pub fn title(group: &Group) -> String {
    if group.sweep {
        return group.shape.clone();
    }
    worded(&group.shape, &group.problem, group.outputs())
}

/// The same of a shape and its problem.
pub fn problem_title(shape: &str, problem: &ProblemRecord) -> String {
    worded(shape, problem, problem.outputs())
}

fn worded(shape: &str, problem: &ProblemRecord, outputs: String) -> String {
    // That all outputs are in f32 goes without saying.
    let outputs = if outputs == "outputs in f32" { String::new() } else { format!(", {outputs}") };
    format!("{}, {:.3} GFLOP{outputs}", problem.title(shape), problem.gflop)
}

/// Every gate that was reached, with its outcome.
pub fn gates(entry: &Entry) -> String {
    let outcomes = entry.gates.iter().map(|gate| format!("{} {}", gate.gate, gate.outcome));
    outcomes.collect::<Vec<_>>().join(", ")
}

/// Why a gate was not passed, and why a time is missing, one line each.
pub fn remarks(group: &Group) -> String {
    let mut lines = String::new();
    for entry in &group.entries {
        let unpassed = entry.gates.iter().filter(|gate| gate.outcome != eightfold_lab::gates::Outcome::Pass);
        let reasons = unpassed.map(|gate| &gate.summary).chain(&entry.note);
        for reason in reasons {
            lines.push_str(&format!("  {}: {reason}\n", entry.name));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::fixed_data;

    #[test]
    fn layout() {
        insta::assert_snapshot!(render(&fixed_data::group(false)));
    }
}
