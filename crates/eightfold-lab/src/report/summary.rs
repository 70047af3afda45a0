//! The verdict, in words: how many gates passed, failed, or told us something we did not hope for.

use super::words;
use super::{Source, page};
use crate::gates::{GateReport, Outcome};
use crate::numbers::{self, counted};
use crate::record::Record;
use crate::verification::Verification;
use maud::{Markup, html};

/// How many gates of ours ended how; peers are judged by their own projects.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Everything held.
    pub passed: usize,
    /// Something did not hold.
    pub failed: usize,
    /// The run was unsound.
    pub invalid: usize,
    /// The gain that was hoped for is not there, and that is certain.
    pub negative: usize,
    /// The evidence did not decide.
    pub inconclusive: usize,
    /// The gate could not be applied.
    pub unavailable: usize,
}

impl Tally {
    /// Counts the gates of a record.
    pub fn of(record: &Record) -> Tally {
        record.gates().fold(Tally::default(), |mut tally, gate| {
            *match gate.outcome {
                Outcome::Pass => &mut tally.passed,
                Outcome::Fail => &mut tally.failed,
                Outcome::Invalid => &mut tally.invalid,
                Outcome::Negative | Outcome::Regression => &mut tally.negative,
                Outcome::Inconclusive => &mut tally.inconclusive,
                Outcome::Unavailable => &mut tally.unavailable,
            } += 1;
            tally
        })
    }

    /// Both together.
    pub fn and(self, other: Tally) -> Tally {
        Tally {
            passed: self.passed + other.passed,
            failed: self.failed + other.failed,
            invalid: self.invalid + other.invalid,
            negative: self.negative + other.negative,
            inconclusive: self.inconclusive + other.inconclusive,
            unavailable: self.unavailable + other.unavailable,
        }
    }

    /// The verdict as a sentence; what did not happen is left out, but for failures.
    pub fn in_words(&self) -> String {
        if *self == Tally::default() {
            return "No gate was met".into();
        }
        let failed = match self.failed {
            0 => "No gate failed".to_string(),
            count => format!("{} failed", counted(count, "gate", "gates")),
        };
        let others = [
            (self.passed, "passed", "passed"),
            (self.negative, "valid negative", "valid negatives"),
            (self.inconclusive, "inconclusive", "inconclusive"),
            (self.invalid, "invalid", "invalid"),
            (self.unavailable, "not available here", "not available here"),
        ];
        let others =
            others.iter().filter(|(count, ..)| *count > 0).map(|(count, one, many)| counted(*count, one, many));
        format!("{failed}: {}", others.collect::<Vec<_>>().join(", ")).trim_end_matches(": ").to_string()
    }

    fn sound(&self) -> bool {
        self.failed + self.invalid == 0
    }
}

/// The verdict over all records and for each, with the way to its details.
pub fn render(sources: &[Source]) -> Markup {
    let all = sources.iter().map(|source| Tally::of(&source.record)).fold(Tally::default(), Tally::and);
    let class = |tally: &Tally| if tally.sound() { "verdict pass" } else { "verdict fail" };
    html! {
        section aria-labelledby="verdict" {
            h2 #verdict { "Verdict" }
            p class=(class(&all)) { strong { (all.in_words()) "." } }
            @if all.negative > 0 {
                p .aside {
                    "A valid negative is a finding and no failure: the run could have seen the required gain, and it is "
                    "not there."
                }
            }
            ul .records {
                @for (index, source) in sources.iter().enumerate() {
                    li { (line(index, source, sources.len() > 1)) }
                }
            }
        }
    }
}

/// What another program looked at, and what it found.
pub fn verification(verification: &Verification) -> Markup {
    let (looked, found) = (verification.checks.len(), verification.findings());
    html! {
        p { (numbers::counted(looked, "check", "checks")) ", " (numbers::counted(found, "finding", "findings")) ". " (verification.on) "." }
        @if found > 0 {
            ul { @for check in verification.checks.iter().filter(|check| check.findings > 0) {
                li { (check.subject) ", " (check.tool) ": " (check.findings) }
            } }
        }
    }
}

fn line(index: usize, source: &Source, several: bool) -> Markup {
    let record = &source.record;
    let tally = Tally::of(record);
    html! {
        a href={ "#" (page::anchor(index)) } { (source.name) }
        @if several { ": " (tally.in_words()) "." }
        @if let Some(reason) = &record.ended_early { " It ended early: " (reason) "." }
        @let unsound = unsound(record);
        @if !unsound.is_empty() {
            ul { @for (place, gate) in unsound {
                li { (words::badge(gate.outcome)) " " (place) ", " (gate.gate.to_string()) ": " (gate.summary) }
            } }
        }
    }
}

/// The gates of ours that failed or cannot be trusted, with where that was.
fn unsound(record: &Record) -> Vec<(String, &GateReport)> {
    let run = record.groups.iter().flat_map(|group| {
        let ours = group.entries.iter().filter(|entry| !entry.peer);
        ours.flat_map(|entry| entry.gates.iter().map(|gate| (format!("{} on {}", entry.name, group.shape), gate)))
    });
    let built = record.builds.iter().flat_map(|group| {
        let ours = group.entries.iter().filter(|entry| !entry.peer);
        ours.map(|entry| (format!("{} for {}, head dim {}", entry.name, group.arch, group.head_dim), &entry.gate))
    });
    let toggled = record.toggles.iter().map(|toggle| (format!("knobs for {}", toggle.arch), &toggle.gate));
    let all = run.chain(built).chain(toggled);
    all.filter(|(_, gate)| matches!(gate.outcome, Outcome::Fail | Outcome::Invalid)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verdict_is_a_sentence() {
        let words = |tally: Tally| tally.in_words();
        assert_eq!(words(Tally::default()), "No gate was met");
        assert_eq!(words(Tally { passed: 3, ..Tally::default() }), "No gate failed: 3 passed");
        assert_eq!(words(Tally { failed: 1, ..Tally::default() }), "1 gate failed");
        let all = Tally { passed: 1, failed: 2, invalid: 3, negative: 1, inconclusive: 5, unavailable: 6 };
        let sentence = "2 gates failed: 1 passed, 1 valid negative, 5 inconclusive, 3 invalid, 6 not available here";
        assert_eq!(words(all), sentence);
        assert_eq!(all.and(all).passed, 2);
    }
}
