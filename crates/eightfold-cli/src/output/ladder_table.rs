//! The ladder: each stage's time, its gain over the one before and over the baseline, its error, its gates.

use super::numbers::{NONE, error, ratio, time};
use super::page::page;
use super::{compare_table, gpu_ladder_table, table, text};
use eightfold_lab::gates::{Gate, Outcome};
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
        let is_step = is_step(group, entry);
        let over = |other: Option<f64>| other.zip(p50).map(|(other, p50)| other / p50);
        table.add_row([
            entry.name.clone(),
            time(p50),
            if is_step { ratio(over(before)) } else { NONE.into() },
            ratio(over(baseline)),
            error(entry.worst_relative_l2()),
            gates(entry),
        ]);
        if is_step {
            before = p50.or(before);
        }
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

/// Whether an entry is a step of the ladder: not a peer, and of the kernel of the first.
pub fn is_step(group: &Group, entry: &Entry) -> bool {
    let kernel = |entry: &Entry| entry.implementation.split(':').next().map(String::from);
    !entry.peer && group.entries.first().is_some_and(|first| kernel(first) == kernel(entry))
}

/// What the gates said: PASS where every gate that was reached was passed, the verdict on the speed-up where that alone was
/// not, else every gate.
pub fn gates(entry: &Entry) -> String {
    gates_in(entry, page().verbose)
}

fn gates_in(entry: &Entry, verbose: bool) -> String {
    let unpassed: Vec<_> = entry.gates.iter().filter(|gate| gate.outcome != Outcome::Pass).collect();
    match unpassed.as_slice() {
        [] if !verbose && !entry.gates.is_empty() => Outcome::Pass.to_string(),
        [one] if !verbose && one.gate == Gate::Performance => compare_table::outcome_word(one.outcome),
        _ => {
            let all = entry.gates.iter().map(|gate| format!("{} {}", gate.gate, gate.outcome));
            all.collect::<Vec<_>>().join(", ")
        }
    }
}

/// Why a gate was not passed, why a time is missing, and what a peer died of, one line each.
pub fn remarks(group: &Group) -> String {
    let mut lines = String::new();
    for entry in &group.entries {
        let unpassed = entry.gates.iter().filter(|gate| gate.outcome != Outcome::Pass);
        let crash = entry.crash.as_ref().map(ToString::to_string);
        let reasons = unpassed.map(|gate| gate.summary.clone()).chain(crash).chain(entry.note.clone());
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

    #[test]
    fn gates_are_spelt_out_where_they_are_not_passed_or_asked_for() {
        let group = fixed_data::gpu_group(false);
        let entry = |name: &str| group.entries.iter().find(|entry| entry.name == name).unwrap();
        assert_eq!(gates_in(entry("async-copy"), false), "PASS");
        assert_eq!(gates_in(entry("async-copy"), true), "resource PASS, correctness PASS, performance PASS");
        assert_eq!(gates_in(entry("simd-pv"), false), "VALID NEGATIVE");
        assert_eq!(gates_in(entry("mma-pv"), false), "resource FAIL");
    }

    #[test]
    fn what_stands_beside_the_ladder_is_no_step_of_it() {
        let mut group = fixed_data::gpu_group(false);
        let beside =
            Entry { implementation: "hopper:fast".into(), name: "hopper fast".into(), ..group.entries[1].clone() };
        assert!(is_step(&group, &group.entries[1]) && !is_step(&group, &beside));
        group.entries.push(beside);
        let text = render(&group);
        let line = text.lines().find(|line| line.contains("hopper fast")).unwrap();
        assert!(line.contains(" –  "), "{line}");
    }
}
