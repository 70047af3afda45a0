//! Attention to pages beside a plain read of as many bytes.

use super::compare_table::gpu_words;
use super::numbers::{NONE, percent, time};
use super::{table, text};
use eightfold_lab::decode::{PagedGroup, goals};
use eightfold_lab::numbers;

/// What is meant by the bytes of a case.
pub const BYTES_MEANT: &str =
    "bytes: the codes of all keys and values, of peers the same in bf16, read once, from memory that no cache holds";

/// The table of one case, with what needs more words below it.
pub fn render(group: &PagedGroup) -> String {
    let mut table = table(&["contestant", "runs", "p50", "±", "bytes", "rate", "of read"], false);
    for entry in &group.entries {
        let summary = entry.timing.as_ref().map(|timing| timing.summary);
        table.add_row([
            entry.name.clone(),
            summary.map_or(NONE.into(), |summary| summary.iterations.to_string()),
            time(summary.map(|summary| summary.p50_us)),
            time(summary.map(|summary| summary.std_us)),
            numbers::moved(entry.least_bytes),
            entry.bytes_per_second().map_or(NONE.into(), numbers::bandwidth),
            group.share_of_read(entry).map_or(NONE.into(), percent),
        ]);
    }
    let mut lines = format!("  {BYTES_MEANT}\n");
    for entry in &group.entries {
        if let Some(gate) = entry.gate.as_ref().filter(|_| entry.timing.is_none()) {
            lines.push_str(&format!("  {}: {} {}\n", entry.name, gate.outcome, gate.summary));
        }
    }
    for peer in &group.peers {
        lines.push_str(&format!("  {peer}\n"));
    }
    let (machine, goals) = goals();
    if let Some(goal) = goals.iter().find(|goal| goal.case == group.case) {
        let [least, most] = goal.predicted;
        lines.push_str(&format!(
            "  on an {machine} {least} to {most} us were predicted, and the goal is {} us\n",
            goal.goal
        ));
    }
    if let Some(gpu) = &group.conditions.gpu {
        lines.push_str(&format!("  {}\n", gpu_words(gpu)));
    }
    format!("{} ({})\n{}{lines}", group.title, group.case, text(&table))
}

#[cfg(test)]
mod tests {
    use super::*;
    use eightfold_lab::gates::{Gate, GateReport, Outcome};
    use eightfold_lab::measure::Conditions;
    use eightfold_lab::quantizer::QuantizerEntry;

    #[test]
    fn a_peer_is_told_in_words_and_one_that_refuses_with_its_reason() {
        let entry = |name: &str, gate| QuantizerEntry {
            name: name.into(),
            copy: false,
            least_bytes: 1 << 20,
            gate: Some(gate),
            timing: None,
        };
        let gate = |outcome, summary: &str| GateReport {
            gate: Gate::Correctness,
            outcome,
            summary: summary.into(),
            checks: Vec::new(),
        };
        let group = PagedGroup {
            case: "8,1,128,64,ragged".into(),
            title: "ragged".into(),
            entries: vec![entry("torch-varlen-bf16-contiguous", gate(Outcome::Unavailable, "not found"))],
            peers: vec!["torch-sdpa-bf16-contiguous: PyTorch, 64 calls".into()],
            conditions: Conditions::default(),
        };
        let text = render(&group);
        assert!(text.contains("  torch-varlen-bf16-contiguous: UNAVAILABLE not found\n"), "{text}");
        assert!(text.contains("  torch-sdpa-bf16-contiguous: PyTorch, 64 calls\n"), "{text}");
    }
}
