//! The device's quantiser beside copies that move as many bytes, the verdict last: how near it comes to their rate.

use super::compare_table::gpu_words;
use super::numbers::{NONE, percent, time};
use super::{table, text};
use eightfold_lab::measure::Cache;
use eightfold_lab::numbers;
use eightfold_lab::quantizer::{BYTES_MEANT, QuantizerGroup};

/// The table of one shape, with what needs more words below it.
pub fn render(group: &QuantizerGroup) -> String {
    let mut table = table(&["contestant", "runs", "p50", "±", "bytes", "rate", "of copy"], false);
    for entry in &group.entries {
        let summary = entry.timing.as_ref().map(|timing| timing.summary);
        table.add_row([
            entry.name.clone(),
            summary.map_or(NONE.into(), |summary| summary.iterations.to_string()),
            time(summary.map(|summary| summary.p50_us)),
            time(summary.map(|summary| summary.std_us)),
            numbers::moved(entry.least_bytes),
            entry.bytes_per_second().map_or(NONE.into(), numbers::bandwidth),
            group.share_of_copy(entry).map_or(NONE.into(), percent),
        ]);
    }
    format!("{}\n{}{}", group.title(), text(&table), remarks(group))
}

fn remarks(group: &QuantizerGroup) -> String {
    let mut lines = format!("  {BYTES_MEANT}\n");
    if group.entries.iter().filter_map(|entry| entry.timing.as_ref()).any(|timing| timing.cache == Cache::Cold) {
        lines.push_str("  caches were emptied before every run\n");
    }
    for entry in &group.entries {
        if let Some(gate) = entry.gate.as_ref().filter(|_| entry.timing.is_none()) {
            lines.push_str(&format!("  {}: {} {}\n", entry.name, gate.outcome, gate.summary));
        }
    }
    if let Some(gpu) = &group.conditions.gpu {
        lines.push_str(&format!("  {}\n", gpu_words(gpu)));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use eightfold_lab::gates::{Gate, GateReport, Outcome};
    use eightfold_lab::measure::{Conditions, Samples, Timer};
    use eightfold_lab::quantizer::QuantizerEntry;
    use eightfold_lab::record::Timing;

    fn entry(name: &str, least_bytes: usize, ns: &[u64]) -> QuantizerEntry {
        let copy = name.starts_with("copy");
        let outcome = if ns.is_empty() { Outcome::Fail } else { Outcome::Pass };
        let report = GateReport {
            gate: Gate::Correctness,
            outcome,
            summary: format!("the reason for {name}"),
            checks: Vec::new(),
        };
        QuantizerEntry {
            name: name.into(),
            copy,
            least_bytes,
            gate: (!copy).then_some(report),
            timing: Timing::new(Timer::GraphReplay, Samples { ns: ns.to_vec(), rounds: Vec::new() }),
        }
    }

    #[test]
    fn layout() {
        let group = QuantizerGroup {
            shape: "4,16,4096,128".into(),
            batch: 4,
            heads: 16,
            len: 4096,
            head_dim: 128,
            entries: vec![
                entry("copy of little", 100_663_296, &[25_000, 26_000]),
                entry("K", 100_663_296, &[50_000, 52_000]),
                entry("wrong", 100_663_296, &[]),
                entry("copy of much", 167_772_160, &[42_000]),
                entry("V", 167_772_160, &[70_000]),
            ],
            conditions: Conditions::default(),
        };
        insta::assert_snapshot!(render(&group));
    }
}
