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
    group.problem.title(&group.shape)
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
        Timer::SeparateReplay => "graph replay without overlap (device time)",
        Timer::Event => "events around single launches",
    }
}

/// An outcome as a word in its colour; the word alone says it all.
pub fn badge(outcome: Outcome) -> Markup {
    let class = match outcome {
        Outcome::Pass => "pass",
        Outcome::Fail | Outcome::Invalid => "fail",
        Outcome::Negative | Outcome::Regression => "negative",
        Outcome::Inconclusive | Outcome::Unavailable => "open",
    };
    html! { span class={ "badge " (class) } { (outcome.to_string().to_lowercase()) } }
}

/// The outcome of one gate in a table's cell; a dash where the gate was not reached.
pub fn cell(gates: &[GateReport], gate: Gate) -> Markup {
    match gates.iter().find(|report| report.gate == gate) {
        Some(report) => badge(report.outcome),
        None => html! { (crate::numbers::NONE) },
    }
}
