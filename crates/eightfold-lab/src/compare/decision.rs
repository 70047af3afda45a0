//! From times to a verdict.

use crate::gates::{GateReport, Outcome};
use crate::measure::{Looks, Samples};
use crate::verdict::{self, RESOLUTION, SpeedUp};

/// What the times say so far.
#[derive(Debug, Clone, PartialEq)]
pub struct Judged {
    /// The verdict, if no more rounds are to be had.
    pub outcome: Outcome,
    /// The verdict in words.
    pub summary: String,
    /// p50(baseline) / p50(candidate).
    pub speed_up: Option<SpeedUp>,
    /// The baseline against itself.
    pub itself: Option<SpeedUp>,
    /// Whether more rounds could change nothing that matters.
    pub settled: bool,
}

/// Judges the times of a baseline, the same once more, and a candidate, at one of the looks of a race.
pub fn judge(baseline_name: &str, [baseline, again, candidate]: [&Samples; 3], required_gain: f64) -> Judged {
    let speed_up = SpeedUp::at_one_of(Looks::COUNT, baseline, candidate);
    let itself = SpeedUp::at_one_of(Looks::COUNT, baseline, again);
    let GateReport { outcome, summary, .. } = verdict::judge(baseline_name, speed_up, required_gain);
    if let Some(reason) = itself.and_then(|itself| not_itself(baseline_name, &itself)) {
        // Rounds that agree that it is not itself settle that; otherwise more of them may show that it was noise.
        let settled = itself.is_some_and(|itself| itself.lower > 1.0 + RESOLUTION || itself.upper < 1.0 - RESOLUTION);
        return Judged { outcome: Outcome::Invalid, summary: reason, speed_up, itself, settled };
    }
    let settled = match outcome {
        Outcome::Pass | Outcome::Regression => true,
        // Not fast enough is one thing, slower than before is another: what looks slower is pursued.
        Outcome::Negative => !speed_up.is_some_and(|found| found.ratio < 1.0 - RESOLUTION),
        _ => false,
    };
    Judged { outcome, summary, speed_up, itself, settled }
}

/// Why the run is unsound: what is the same did not take the same time.
pub(super) fn not_itself(name: &str, itself: &SpeedUp) -> Option<String> {
    let SpeedUp { ratio, lower, upper, .. } = itself;
    ((ratio - 1.0).abs() > RESOLUTION).then(|| {
        format!(
            "{name} against itself is {ratio:.3}× (95 % interval {lower:.3} to {upper:.3}), more than {:.0} % off",
            100.0 * RESOLUTION
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steady(us: u64) -> Samples {
        Samples { ns: vec![us * 1000; 20], rounds: vec![1; 20] }
    }

    fn outcome(baseline: u64, again: u64, candidate: u64) -> (Outcome, bool) {
        let judged = judge("a", [&steady(baseline), &steady(again), &steady(candidate)], 0.1);
        (judged.outcome, judged.settled)
    }

    #[test]
    fn clear_times_are_settled_at_the_first_look() {
        assert_eq!(outcome(1000, 1010, 800), (Outcome::Pass, true));
        assert_eq!(outcome(1000, 990, 1000), (Outcome::Negative, true));
        assert_eq!(outcome(1000, 1000, 1300), (Outcome::Regression, true));
    }

    #[test]
    fn a_baseline_that_differs_from_itself_makes_the_run_invalid_whatever_the_candidate_does() {
        assert_eq!(outcome(1000, 1030, 500), (Outcome::Invalid, true));
        assert_eq!(outcome(1000, 970, 500), (Outcome::Invalid, true));
    }

    #[test]
    fn a_baseline_that_only_seems_to_differ_from_itself_is_given_more_rounds() {
        let mut again = steady(1000);
        again.ns[..11].fill(900_000);
        let judged = judge("a", [&steady(1000), &again, &steady(500)], 0.1);
        assert_eq!((judged.outcome, judged.settled), (Outcome::Invalid, false));
        assert!(judged.summary.starts_with("a against itself is 1.111×"), "{}", judged.summary);
    }

    #[test]
    fn what_looks_slower_is_pursued() {
        let mut candidate = steady(1050);
        candidate.ns[..9].fill(980_000);
        let judged = judge("a", [&steady(1000), &steady(1000), &candidate], 0.1);
        assert_eq!((judged.outcome, judged.settled), (Outcome::Negative, false), "{}", judged.summary);
    }
}
