//! What a mutator is told in words: a template for each thing that it may be asked, in a frame that all have in common. The
//! templates are the files in `prompts/`.

use super::fate::Evidence;
use super::mutator::{Bundle, Parent, Told};
use super::trial::Asked;
use std::fmt::Write;

const FRAME: &str = include_str!("prompts/frame.txt");

impl Asked {
    /// Its template.
    pub fn template(self) -> &'static str {
        match self {
            Asked::Initial => include_str!("prompts/initial.txt"),
            Asked::Mutate => include_str!("prompts/mutate.txt"),
            Asked::Cross => include_str!("prompts/cross.txt"),
            Asked::Explain => include_str!("prompts/explain.txt"),
        }
    }
}

/// The prompt that a bundle amounts to.
pub fn render(bundle: &Bundle) -> String {
    let problems: Vec<_> =
        bundle.targets.iter().map(|one| format!("- {} [{}]", one.problem.title(&one.shape), one.baseline)).collect();
    let knobs: Vec<_> = bundle
        .knobs
        .iter()
        .map(|knob| format!("- {} ({}): {}", knob.name, knob.values.join(", "), knob.what))
        .collect();
    // Rules and notes first: single knobs are many.
    let (words, steps): (Vec<_>, Vec<_>) = bundle.insights.iter().partition(|one| one.speed_up.is_none());
    let insights: Vec<_> = { words.into_iter().chain(steps).take(INSIGHTS) }
        .map(|one| {
            let worth = one.speed_up.map(|gain| format!(", thought to bring {gain:.3}×")).unwrap_or_default();
            format!("- {} (followed {}, helped {}{worth})", one.name, one.followed, one.hits)
        })
        .collect();
    let values = [
        ("clock", bundle.clock.to_string()),
        ("kernel", bundle.kernel.to_string()),
        ("device", bundle.device.to_string()),
        ("problems", problems.join("\n")),
        ("task", bundle.asked.template().trim_end().to_string()),
        ("parents", or_none(bundle.parents.iter().map(parent).collect())),
        ("elite", or_none(bundle.elite.iter().map(told).collect())),
        ("failures", or_none(bundle.failures.iter().map(told).collect())),
        ("insights", or_none(insights)),
        ("knobs", knobs.join("\n")),
        ("sources", or_none(bundle.sources.iter().map(|(name, text)| file(name, text)).collect())),
    ];
    fill(FRAME, &values)
}

/// Insights that are told; the bundle has them all.
const INSIGHTS: usize = 20;

/// Puts values into the places of a template. What a value holds is not looked at again.
fn fill(template: &str, values: &[(&str, String)]) -> String {
    let mut filled = String::new();
    let mut rest = template;
    while let Some(at) = rest.find('{') {
        let (before, after) = rest.split_at(at);
        filled.push_str(before);
        let place =
            values.iter().find(|(name, _)| after[1..].strip_prefix(name).is_some_and(|end| end.starts_with('}')));
        rest = match place {
            Some((name, value)) => {
                filled.push_str(value);
                &after[name.len() + 2..]
            }
            None => {
                filled.push('{');
                &after[1..]
            }
        };
    }
    filled + rest
}

fn or_none(parts: Vec<String>) -> String {
    if parts.is_empty() { "none yet".into() } else { parts.join("\n") }
}

fn told(told: &Told) -> String {
    let source = told.source.map(|source| format!(" from source {source}")).unwrap_or_default();
    let note = told.note.map(|note| format!("; the idea was: {note}")).unwrap_or_default();
    format!("- trial {}: {}{source}: {}{note}{}", told.trial, told.variant, told.fate, seen(told.evidence))
}

fn parent(parent: &Parent) -> String {
    let files: String = parent.files.iter().map(|(name, text)| format!("\n{}", file(name, text))).collect();
    format!("{}{files}", told(&parent.told))
}

fn file(name: &str, text: &str) -> String {
    format!("--- {name}\n{}\n", text.trim_end())
}

fn seen(evidence: &Evidence) -> String {
    let mut lines = String::new();
    let mut tell = |text: String| {
        let _ = write!(lines, "\n    {text}");
    };
    if let Some(registers) = evidence.registers {
        let spilled = evidence.spill_bytes.unwrap_or_default();
        let shared = evidence.shared_bytes.unwrap_or_default();
        let blocks = evidence.blocks_per_multiprocessor.unwrap_or_default();
        tell(format!(
            "{registers} registers, {spilled} bytes spilled, {shared} bytes shared, {blocks} blocks at a time"
        ));
    }
    if let Some(error) = evidence.worst_l2 {
        tell(format!("largest relative L2 error {error:.2e}"));
    }
    for check in &evidence.failed {
        tell(format!("failed: {} is {}, limit {}", check.name, check.value, check.limit));
    }
    evidence.log.iter().for_each(|line| tell(format!("compiler: {line}")));
    evidence.counters.iter().for_each(|(name, count)| tell(format!("{name}: {count}")));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_filled_once_and_other_braces_stay() {
        let values = [("a", "{b} and }".to_string()), ("b", "x".to_string())];
        assert_eq!(fill("{a}, {b}, {c} { {", &values), "{b} and }, x, {c} { {");
    }

    #[test]
    fn every_place_of_the_frame_has_a_value() {
        let places =
            ["clock", "kernel", "device", "problems", "task", "parents", "elite", "failures", "insights", "knobs"];
        for place in places.into_iter().chain(["sources"]) {
            assert_eq!(FRAME.matches(&format!("{{{place}}}")).count(), 1, "{place}");
        }
        for asked in [Asked::Initial, Asked::Mutate, Asked::Cross, Asked::Explain] {
            assert!(!asked.template().contains('{') && asked.template().len() > 100);
        }
    }
}
