//! What every gate said about one variant.

use super::ladder_table::title;
use super::numbers::time;
use super::{table, text};
use eightfold_lab::gates::Gate;
use eightfold_lab::record::{Entry, Group};

const GATES: [Gate; 4] = [Gate::Resource, Gate::Correctness, Gate::Performance, Gate::Profile];

/// A row for each gate, and the times that the performance gate rests on below them.
pub fn render(group: &Group) -> String {
    let judged = |entry: &&Entry| !entry.peer && entry.gates.iter().any(|report| report.gate > Gate::Correctness);
    let ours = || group.entries.iter().filter(|entry| !entry.peer);
    // Without a verdict on its speed it stands alone.
    let Some(entry) = ours().find(judged).or_else(|| ours().next_back()) else { return String::new() };
    let mut table = table(&["gate", "outcome", "evidence"], true);
    for gate in GATES {
        let (outcome, evidence) = match entry.gate(gate) {
            Some(report) => (report.outcome.to_string(), report.summary.clone()),
            None => ("–".into(), "does not apply, or was not reached".into()),
        };
        table.add_row([gate.to_string(), outcome, evidence]);
    }
    let timed = group.entries.iter().filter(|entry| entry.timing.is_some());
    let times: String = timed.map(|entry| format!("  {}: {}\n", entry.name, time(entry.p50_us()))).collect();
    format!("{}, {}\n{}{times}", entry.name, title(group), text(&table))
}

#[cfg(test)]
mod tests {
    use super::*;
    use eightfold::{Problem, Shape};
    use eightfold_lab::gates::{GateReport, Outcome};

    #[test]
    fn every_gate_has_a_row() {
        let report =
            |gate, outcome, summary: &str| GateReport { gate, outcome, summary: summary.into(), checks: vec![] };
        let gates = vec![
            report(Gate::Resource, Outcome::Pass, "168 registers, 40960 bytes of shared memory"),
            report(Gate::Correctness, Outcome::Pass, "24 cases"),
            report(Gate::Performance, Outcome::Regression, "slower: 0.912× ladder:simd-pv"),
        ];
        let before = Entry::new("ladder:simd-pv", "ladder:simd-pv");
        let entries = vec![before, Entry { gates, ..Entry::new("ladder:mma-pv", "ladder:mma-pv") }];
        let problem = Problem::new(Shape::new(1, 8, 512, 64)).unwrap();
        insta::assert_snapshot!(render(&Group { entries, ..Group::new("mission", &problem) }));
    }
}
