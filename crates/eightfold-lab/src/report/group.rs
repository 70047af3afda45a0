//! One problem: its times, their spread, the errors, the resources, and what needs words.

use super::{distributions, errors, ladder, profile, words};
use crate::gates::{Gate, GateReport, Outcome};
use crate::numbers;
use crate::record::{Group, Kind};
use maud::{Markup, html};

/// The section of one group, which folds.
pub fn render(group: &Group, kind: Kind, open: bool) -> Markup {
    let times = match kind {
        Kind::Ladder => "Stages",
        _ => "Times",
    };
    html! {
        details .group open[open] {
            summary { h3 { (words::title(group)) } @if let Some(said) = fastest(group) { span .aside { (said) } } }
            @if group.entries.is_empty() {
                p .aside { "No contestant is recorded for this problem." }
            } @else if !group.sweep {
                p .aside { (about(group)) }
            }
            @if let Some(part) = ladder::render(group, kind) { h4 { (times) } (part) }
            @if let Some(part) = errors::render(group) { h4 { "Errors" } (part) }
            @if let Some(part) = profile::render(group) { h4 { "Profile" } (part) }
            @if let Some(part) = distributions::render(group) {
                details .part { summary { h4 { "Timing distributions" } } (part) }
            }
            (remarks(group))
        }
    }
}

/// The fastest of all, for a group that is folded.
fn fastest(group: &Group) -> Option<String> {
    let timed = group.entries.iter().filter_map(|entry| Some((entry, entry.p50_us()?)));
    let (entry, us) = timed.min_by(|a, b| a.1.total_cmp(&b.1))?;
    Some(format!("fastest: {}, {}", entry.name, numbers::time(us)))
}

fn about(group: &Group) -> String {
    let problem = &group.problem;
    format!(
        "{} GFLOP, inputs in {}, {}{}.",
        numbers::three_digits(problem.gflop),
        problem.input_format,
        group.outputs(),
        if problem.lse { ", log-sum-exp" } else { "" }
    )
}

/// Why a gate was not passed, what was gained and how surely, why a time is missing.
fn remarks(group: &Group) -> Markup {
    let remarks: Vec<_> = group
        .entries
        .iter()
        .flat_map(|entry| {
            let telling = |gate: &&GateReport| gate.outcome != Outcome::Pass || gate.gate == Gate::Performance;
            let told = entry.gates.iter().filter(telling);
            let told = told.map(|gate| (Some(gate.outcome), gate.summary.as_str()));
            let reasons = told.chain(entry.note.iter().map(|note| (None, note.as_str())));
            reasons.map(|(outcome, reason)| (entry.name.as_str(), outcome, reason))
        })
        .collect();
    html! {
        @if !remarks.is_empty() {
            details .part open[remarks.len() <= FEW] { summary { h4 { "What the gates said" } }
            ul .remarks { @for (name, outcome, reason) in remarks {
                li {
                    strong { (name) } " "
                    @if let Some(outcome) = outcome { (words::badge(outcome)) " " }
                    (reason)
                }
            } } }
        }
    }
}

/// Remarks that need not be folded.
const FEW: usize = 6;
