//! The page of the ladder kernel: its best stage beside PyTorch, every stage, and what Nsight Compute counts.

use super::{NONE, best_of_ours, error, of, over, p50, peer_title, shape, source, table, time};
use crate::output::ablation_table;
use eightfold_lab::archive::Filed;
use eightfold_lab::gates::Gate;
use eightfold_lab::profile::{Metric, Profiled};
use eightfold_lab::record::{Entry, Group, Kind};
use std::fmt::Write;

pub(super) fn page(filed: &[Filed]) -> String {
    let mut text = String::from(
        "# Ladder\n\nThe `ladder` kernel runs on Ada and Hopper instructions (`mma.sync`). It has been run on an H200 only. Each \
         stage switches one optimisation on. *Valid negative* means: measured soundly, and gained less than required.\n\n",
    );
    let beside = ["shape", "stage", "Eightfold", "single launch", "error"];
    let beside: Vec<&str> = beside.into_iter().chain(TORCH.iter().map(|(_, title)| *title)).collect();
    for filed in of(filed, "ladder", Kind::Ladder) {
        let mask = if filed.record.groups[0].problem.causal { ", causal" } else { "" };
        let _ = write!(text, "## The fastest stage beside PyTorch{mask}\n\n{}", source(filed));
        text.push_str(
            "Time by graph replay; launches do not overlap. In brackets: how many times faster than FlashAttention-2. \
             *Error* is the largest relative L2 error against float64. ",
        );
        let _ = write!(text, "Formats: {}.\n\n", filed.record.groups[0].outputs());
        text.push_str(&table(&beside, filed.record.groups.iter().filter_map(beside_row)));
    }
    let head = [
        "stage",
        "p50",
        "p90",
        "p99",
        "single launch",
        "error",
        "× before",
        "× baseline",
        "registers",
        "shared bytes",
        "verdict",
    ];
    for filed in of(filed, "ladder", Kind::Ladder) {
        for group in &filed.record.groups {
            let _ = write!(text, "## Stages at {}\n\n{}", shape(group), source(filed));
            let lse = if group.problem.lse { ", with log-sum-exp" } else { "" };
            let _ = write!(text, "Ours: {}{lse}. PyTorch writes bf16. Launches do not overlap.\n\n", group.outputs());
            text.push_str(&table(&head, evolution(group)));
        }
    }
    for filed in of(filed, "ladder", Kind::Ablation) {
        for group in &filed.record.groups {
            let _ = write!(text, "## Each stage alone, and all but it, at {}\n\n{}", shape(group), source(filed));
            text.push_str(
                "*Only this*: the baseline with this change alone over the baseline. *All but this*: everything over everything \
                 but this change. Stages after `swizzle` are held against what they extend. In brackets the 95 % interval, or the rule that forbids it.\n\n",
            );
            let rows = ablation_table::rows(group).into_iter();
            text.push_str(&table(&ablation_table::HEADER, rows.map(|row| format!("| {} |", row.join(" | ")))));
        }
    }
    let head = [
        "stage",
        "time",
        "tensor cores",
        "device memory",
        "SM",
        "warps",
        "special functions",
        "bank conflicts",
        "local memory",
        "profile gate",
        "bound by",
    ];
    for filed in of(filed, "ladder", Kind::Profile) {
        for group in &filed.record.groups {
            let _ = write!(text, "## What Nsight Compute counts at {}\n\n{}", shape(group), source(filed));
            let stages = group.entries.iter().filter(|entry| !is_planned(entry));
            text.push_str(&table(&head, stages.filter_map(profile_row)));
        }
    }
    text
}

/// Whether an entry is what the plan picked, which goes by the name of its kernel; a stage has a name of its own.
fn is_planned(entry: &Entry) -> bool {
    entry.implementation.split(':').next() == Some(&entry.name)
}

/// PyTorch's backends, as records and as people call them.
const TORCH: [(&str, &str); 4] = [
    ("torch-flash", "FlashAttention-2"),
    ("torch-cudnn", "cuDNN"),
    ("torch-efficient", "efficient"),
    ("torch-math", "math"),
];

/// A row of the table beside PyTorch: the fastest stage, its gain over FlashAttention-2, its error, and PyTorch's four
/// backends.
fn beside_row(group: &Group) -> Option<String> {
    let torch: Vec<String> = TORCH.iter().map(|(name, _)| time(p50(group, name))).collect();
    let (best, us) = best_of_ours(group)?;
    let ours = format!("**{}** ({})", time(Some(us)), over(group, &best.name, "torch-flash"));
    let single = time(best.launch_p50_us());
    let wrong = error(best.worst_relative_l2());
    Some(format!("| {} | `{}` | {ours} | {single} | {wrong} | {} |", shape(group), best.name, torch.join(" | ")))
}

/// The rows of the evolution table of one shape: times by graph replay and by event, gains, resources, the verdict on the
/// stage's gain over the one before.
fn evolution(group: &Group) -> Vec<String> {
    let baseline = &group.entries[0].name;
    let mut before: Option<&str> = None;
    let mut rows = Vec::new();
    for entry in group.entries.iter().filter(|entry| !entry.peer || entry.p50_us().is_some()) {
        let summary = entry.timing.as_ref().map(|timing| timing.summary);
        let verdict = entry.gate(Gate::Performance).map_or(NONE.into(), |gate| gate.outcome.to_string().to_lowercase());
        let gain = before.filter(|_| !entry.peer).map_or(NONE.into(), |before| over(group, &entry.name, before));
        let resources = entry
            .build
            .as_ref()
            .map_or(format!("{NONE} | {NONE}"), |build| format!("{} | {}", build.registers, build.shared_bytes()));
        rows.push(format!(
            "| {} | {} | {} | {} | {} | {} | {gain} | {} | {resources} | {verdict} |",
            peer_title(&entry.name),
            time(entry.p50_us()),
            time(summary.map(|summary| summary.p90_us)),
            time(summary.map(|summary| summary.p99_us)),
            time(entry.launch_timing.as_ref().map(|timing| timing.summary.p50_us)),
            error(entry.worst_relative_l2()),
            over(group, &entry.name, baseline),
        ));
        before = Some(&entry.name);
    }
    rows
}

/// A row of the table of profiles: what was counted for a stage, and what bounds it.
fn profile_row(entry: &Entry) -> Option<String> {
    let Profiled { profile, bottleneck, .. } = entry.profile.as_ref()?;
    let shown = [
        Metric::TensorPipe,
        Metric::Dram,
        Metric::SmThroughput,
        Metric::WarpsActive,
        Metric::XuPipe,
        Metric::BankConflicts,
        Metric::LocalInstructions,
    ];
    let shown = shown.map(|metric| profile.get(metric).map_or(NONE.into(), |value| metric.unit().words(value)));
    let verdict = entry.gate(Gate::Profile)?.outcome.to_string().to_lowercase();
    let time = time(profile.time_us().ok());
    Some(format!("| {} | {time} | {} | {verdict} | {} |", entry.name, shown.join(" | "), bottleneck.by))
}
