//! One problem: its times, their spread, the errors, the resources, and what needs words.

use super::{distributions, errors, ladder, profile, resources, words};
use crate::gates::{Gate, GateReport, Outcome};
use crate::numbers;
use crate::record::{Group, Kind};
use maud::{Markup, html};

/// The section of one group.
pub fn render(group: &Group, kind: Kind) -> Markup {
    let times = match kind {
        Kind::Ladder => "The ladder",
        _ => "Times",
    };
    let parts = [
        (times, ladder::render(group)),
        ("Timing distributions", distributions::render(group)),
        ("Error decomposition", errors::render(group)),
        ("Profile", profile::render(group)),
        ("Resources", resources::of_group(group)),
    ];
    html! {
        section .group {
            h3 { (words::title(group)) }
            @if group.entries.is_empty() {
                p .aside { "No contestant is recorded for this problem." }
            } @else if !group.sweep {
                p .aside { (about(group)) }
            }
            @for (heading, part) in parts {
                @if let Some(part) = part { h4 { (heading) } (part) }
            }
            (remarks(group))
        }
    }
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
            h4 { "What the gates said" }
            ul .remarks { @for (name, outcome, reason) in remarks {
                li {
                    strong { (name) } " "
                    @if let Some(outcome) = outcome { (words::badge(outcome)) " " }
                    (reason)
                }
            } }
        }
    }
}
