//! What the compiler made of each kernel, and the proof that every knob reaches the machine code.

use super::numbers::{NONE, percent};
use super::{table, text};
use eightfold_lab::gates::{KnobProof, Outcome, ToggleReport};
use eightfold_lab::record::{BuildGroup, Record};

/// One table per architecture and kind of problem, then the proofs.
pub fn render(record: &Record) -> String {
    let tables = record.builds.iter().map(kernels);
    let proofs = record.toggles.iter().map(proof);
    tables.chain(proofs).collect::<Vec<_>>().join("\n")
}

fn kernels(group: &BuildGroup) -> String {
    let header = [
        "stage",
        "registers",
        "static",
        "dynamic",
        "spill stores",
        "spill loads",
        "stack",
        "warnings",
        "occupancy",
        "code hash",
        "gate",
    ];
    let mut table =
        table(&header, true).with_extras(&["warnings", "spill loads", "occupancy", "static", "stack", "code hash"]);
    let mut remarks = String::new();
    for entry in &group.entries {
        let numbers = entry.build.as_ref().map(|build| {
            let shown = [
                build.registers as usize,
                build.static_shared_bytes,
                build.dynamic_shared_bytes,
                build.spill_store_bytes,
                build.spill_load_bytes,
                build.stack_bytes,
                build.warnings.len(),
            ];
            let rest = [percent(build.occupancy), build.code_hash.clone()];
            shown.iter().map(usize::to_string).chain(rest).collect::<Vec<_>>()
        });
        let mut row = vec![entry.name.clone()];
        row.extend(numbers.unwrap_or_else(|| vec![NONE.into(); header.len() - 2]));
        row.push(format!("{} {}", entry.gate.gate, entry.gate.outcome));
        table.add_row(row);
        if entry.gate.outcome != Outcome::Pass {
            remarks.push_str(&format!("  {}: {}\n", entry.name.trim(), entry.gate.summary));
        }
    }
    format!("{} (memory in bytes)\n{}{remarks}", group.kind(), text(&table))
}

fn proof(report: &ToggleReport) -> String {
    let ToggleReport { arch, head_dim, gate, knobs, .. } = report;
    let compared: usize = knobs.iter().map(|proof| proof.compared.len()).sum();
    let silent: usize = knobs.iter().map(|proof| proof.without_effect.len()).sum();
    let mut lines = format!(
        "{arch}, head dim {head_dim}: {} {}, {compared} other values of knobs compared, {silent} without effect\n",
        gate.gate, gate.outcome
    );
    for failure in knobs.iter().flat_map(KnobProof::failures) {
        lines.push_str(&format!("  {failure}\n"));
    }
    let mut stages: Vec<(&str, Vec<&str>)> = Vec::new();
    for proof in knobs.iter().filter(|proof| proof.compared.is_empty() && proof.errors.is_empty()) {
        match stages.last_mut() {
            Some((stage, names)) if *stage == proof.stage => names.push(&proof.knob),
            _ => stages.push((&proof.stage, vec![&proof.knob])),
        }
    }
    for (stage, names) in stages {
        lines.push_str(&format!("  {stage}: no legal alternative for {}\n", names.join(", ")));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::fixed_data;

    #[test]
    fn layout() {
        insta::assert_snapshot!(render(&fixed_data::builds()));
    }
}
