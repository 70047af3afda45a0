//! What things are called on the page.

use crate::gates::{Gate, GateReport, Outcome};
use crate::measure::Timer;
use crate::record::{Group, Record};
use maud::{Markup, html};

/// The shape's name, its sizes and the mask.
pub fn title(group: &Group) -> String {
    if group.sweep {
        return group.shape.clone();
    }
    let problem = &group.problem;
    let sizes = if problem.query_heads == problem.kv_heads && problem.query_len == problem.key_len {
        vec![problem.batch, problem.query_heads, problem.query_len, problem.head_dim]
    } else {
        let (heads, lengths) = ([problem.query_heads, problem.kv_heads], [problem.query_len, problem.key_len]);
        [&[problem.batch][..], &heads, &lengths, &[problem.head_dim]].concat()
    };
    let sizes = sizes.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    let name = if group.shape == sizes { sizes } else { format!("{} ({sizes})", group.shape) };
    format!("{name}{}", if problem.causal { ", causal" } else { "" })
}

/// The device that did the work.
pub fn device(record: &Record) -> &str {
    let provenance = &record.provenance;
    provenance.gpu.as_ref().map_or(provenance.machine.cpu.as_str(), |gpu| gpu.name.as_str())
}

/// What the times were taken with.
pub fn timer(timer: Timer) -> &'static str {
    match timer {
        Timer::HostClock => "the host's clock",
        Timer::GraphReplay => "graph replay (device time)",
        Timer::Event => "events around single launches",
    }
}

/// An outcome as a word in its colour; the word alone says it all.
pub fn badge(outcome: Outcome) -> Markup {
    let class = match outcome {
        Outcome::Pass => "pass",
        Outcome::Fail | Outcome::Invalid => "fail",
        Outcome::Negative => "negative",
        Outcome::Inconclusive | Outcome::Unavailable => "open",
    };
    html! { span class={ "badge " (class) } { (outcome.to_string().to_lowercase()) } }
}

/// The outcome of one gate in a table's cell; a dash where the gate was not reached.
pub fn cell(gates: &[GateReport], gate: Gate) -> Markup {
    match gates.iter().find(|report| report.gate == gate) {
        Some(report) => badge(report.outcome),
        None => html! { (super::numbers::NONE) },
    }
}
