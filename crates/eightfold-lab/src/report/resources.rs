//! What each kernel takes of the device, and whether every knob reaches the machine code.

use super::table;
use super::words;
use crate::gates::{Build, GateReport, ToggleReport};
use crate::numbers;
use crate::record::{BuildGroup, Group};
use maud::{Markup, html};

/// The resources of a record's kernels, each once: most are the same for every problem. Nothing where none were compiled.
pub fn of_groups(groups: &[Group]) -> Option<Markup> {
    let mut shown: Vec<(&str, Option<&Build>)> = Vec::new();
    let mut rows = Vec::new();
    for entry in groups.iter().flat_map(|group| &group.entries) {
        let gate = entry.gates.iter().find(|gate| gate.gate == crate::gates::Gate::Resource);
        let this = (entry.name.as_str(), entry.build.as_ref());
        if (entry.build.is_some() || gate.is_some()) && !shown.contains(&this) {
            shown.push(this);
            rows.push(row(&entry.name, entry.peer, gate, entry.build.as_ref()));
        }
    }
    (!rows.is_empty())
        .then(|| table::render("Each kernel once, for the first problem that it ran on", &columns(), rows))
}

/// The resources of what was compiled without being run.
pub fn of_builds(group: &BuildGroup) -> Markup {
    let rows = group.entries.iter().map(|entry| row(&entry.name, entry.peer, Some(&entry.gate), entry.build.as_ref()));
    table::render("Resources", &columns(), rows.collect())
}

/// The proof that every knob has an effect.
pub fn of_toggles(report: &ToggleReport) -> Markup {
    let compared: usize = report.knobs.iter().map(|knob| knob.compared.len()).sum();
    let failures: Vec<String> = report.knobs.iter().flat_map(|knob| knob.failures()).collect();
    html! {
        p {
            (words::badge(report.gate.outcome)) " " (numbers::counted(compared, "other value", "other values"))
            " of " (numbers::counted(report.knobs.len(), "knob", "knobs")) " compared for " (report.arch)
            ", head dim " (report.head_dim) @if report.causal { ", causal" } "."
        }
        @if !failures.is_empty() { ul { @for failure in failures { li { (failure) } } } }
    }
}

fn columns() -> Vec<table::Column> {
    let mut columns = vec![table::words("kernel"), table::words("gate")];
    columns.extend(["registers", "shared bytes", "spill stores", "spill loads", "stack bytes"].map(table::numbers));
    columns.extend(["threads", "blocks per SM", "occupancy", "warnings"].map(table::numbers));
    columns
}

fn row(name: &str, peer: bool, gate: Option<&GateReport>, build: Option<&Build>) -> Vec<Markup> {
    let value = |of: fn(&Build) -> usize| table::optional(build.map(of), numbers::whole);
    vec![
        html! { span class=[peer.then_some("peer")] { (name) } },
        gate.map_or_else(|| table::text(numbers::NONE), |gate| words::badge(gate.outcome)),
        value(|build| build.registers as usize),
        value(Build::shared_bytes),
        value(|build| build.spill_store_bytes),
        value(|build| build.spill_load_bytes),
        value(|build| build.stack_bytes),
        value(|build| build.threads),
        value(|build| build.blocks_per_multiprocessor),
        table::optional(build, |build| format!("{:.0} %", 100.0 * build.occupancy)),
        value(|build| build.warnings.len()),
    ]
}
