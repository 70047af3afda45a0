//! Whether a stage gained what it had to, over the stage before: yes, no, or not to be told from this run.

use crate::gates::{Check, Gate, GateReport, Outcome};
use crate::measure::Samples;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

/// A speed-up with its uncertainty.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SpeedUp {
    /// The median over the rounds of p50(before) / p50(candidate).
    pub ratio: f64,
    /// The lower end of the 95 % interval.
    pub lower: f64,
    /// The upper end.
    pub upper: f64,
    /// Rounds in which both ran.
    pub rounds: usize,
}

/// Differences below this share are not told from what differs when a kernel is compared with itself: where the layout
/// of its memory fell, which core it ran on.
pub const RESOLUTION: f64 = 0.02;

/// With fewer rounds even agreement of all of them is luck too often: 1 in 16 for four.
const LEAST_ROUNDS: usize = 5;

/// Resamplings of the rounds: the ends of the interval are then off by far less than its width.
const RESAMPLINGS: usize = 2000;

/// The share of resamplings below the interval, and above it.
const TAIL: f64 = 0.025;

/// The same for everyone, so that the same samples always give the same verdict.
const SEED: u64 = 8;

impl SpeedUp {
    /// The speed-up of a candidate over what it follows, from one interleaved run of both; none with too few rounds.
    ///
    /// What disturbs the machine disturbs whole rounds, so runs of one round are not independent of each other: the
    /// interval comes from resampling the rounds.
    pub fn between(before: &Samples, candidate: &Samples) -> Option<SpeedUp> {
        Self::at_one_of(1, before, candidate)
    }

    /// The same for data that is looked at several times as it grows, until it decides: the interval is wide enough
    /// that all of the looks together keep to 95 %.
    pub fn at_one_of(looks: usize, before: &Samples, candidate: &Samples) -> Option<SpeedUp> {
        let pairs = before.round_p50_us().into_iter().zip(candidate.round_p50_us());
        let logs: Vec<f64> = pairs
            .filter_map(|(before, candidate)| Some((before?, candidate?)))
            .filter(|(before, candidate)| *before > 0.0 && *candidate > 0.0)
            .map(|(before, candidate)| (before / candidate).ln())
            .collect();
        if logs.len() < LEAST_ROUNDS {
            return None;
        }
        let mut resampled = vec![0.0; logs.len()];
        let (lower, upper) = interval(TAIL / looks as f64, &mut |generator| {
            resample(&logs, &mut resampled, generator);
            median(&mut resampled)
        });
        let rounds = logs.len();
        Some(SpeedUp { ratio: median(&mut { logs }).exp(), lower, upper, rounds })
    }

    /// The speed-up between two separate runs, whose rounds have nothing to do with each other: each run's rounds are
    /// resampled for themselves. What changed between the runs is not in the interval.
    pub fn of_separate_runs(before: &Samples, candidate: &Samples) -> Option<SpeedUp> {
        let logs = |samples: &Samples| -> Vec<f64> {
            let p50_us = samples.round_p50_us().into_iter().flatten().filter(|p50_us| *p50_us > 0.0);
            p50_us.map(f64::ln).collect()
        };
        let (before, candidate) = (logs(before), logs(candidate));
        let rounds = before.len().min(candidate.len());
        if rounds < LEAST_ROUNDS {
            return None;
        }
        let (mut first, mut second) = (vec![0.0; before.len()], vec![0.0; candidate.len()]);
        let (lower, upper) = interval(TAIL, &mut |generator| {
            resample(&before, &mut first, generator);
            resample(&candidate, &mut second, generator);
            median(&mut first) - median(&mut second)
        });
        let ratio = (median(&mut { before }) - median(&mut { candidate })).exp();
        Some(SpeedUp { ratio, lower, upper, rounds })
    }

    /// The smallest gain that a run as noisy as this one tells from none in four of five tries: 0.03 for 3 %.
    pub fn smallest_detectable(&self) -> f64 {
        // Normal quantiles: an interval reaches 1.96 standard errors to each side, and 0.84 more are needed so that
        // four of five intervals lie beyond.
        const REACH: f64 = (1.96 + 0.84) / 1.96;
        ((self.upper / self.lower).ln() / 2.0 * REACH).exp_m1()
    }
}

/// The ends of the interval that this share of the resampled statistics lies below, and above.
fn interval(tail: f64, statistic: &mut dyn FnMut(&mut ChaCha8Rng) -> f64) -> (f64, f64) {
    let mut generator = ChaCha8Rng::seed_from_u64(SEED);
    let mut statistics: Vec<f64> = (0..RESAMPLINGS).map(|_| statistic(&mut generator)).collect();
    statistics.sort_unstable_by(f64::total_cmp);
    let at = |share: f64| statistics[((share * RESAMPLINGS as f64) as usize).min(RESAMPLINGS - 1)].exp();
    (at(tail), at(1.0 - tail))
}

fn resample(values: &[f64], into: &mut [f64], generator: &mut ChaCha8Rng) {
    for value in into {
        *value = values[(generator.next_u64() % values.len() as u64) as usize];
    }
}

fn median(values: &mut [f64]) -> f64 {
    let middle = values.len() / 2;
    let even = values.len().is_multiple_of(2);
    let (below, upper, _) = values.select_nth_unstable_by(middle, f64::total_cmp);
    if !even {
        return *upper;
    }
    below.iter().copied().fold(f64::NEG_INFINITY, f64::max) / 2.0 + *upper / 2.0
}

/// The performance gate of a stage: `Pass` where the whole interval is at or above the required speed-up, `Negative`
/// where all of it is below, `Inconclusive` otherwise.
///
/// A stage that did not gain what was hoped for is a finding and no fault: `Negative` fails no run.
pub fn judge(before_name: &str, speed_up: Option<SpeedUp>, required_gain: f64) -> GateReport {
    let required = 1.0 + required_gain;
    let report = |outcome, summary, checks| GateReport { gate: Gate::Performance, outcome, summary, checks };
    let Some(SpeedUp { ratio, lower, upper, rounds }) = speed_up else {
        let summary = format!("fewer than {LEAST_ROUNDS} rounds in common with {before_name}");
        return report(Outcome::Inconclusive, summary, Vec::new());
    };
    let measured = format!("{ratio:.3}× {before_name} (95 % interval {lower:.3} to {upper:.3}, {rounds} rounds)");
    let check = Check::at_least(format!("speed-up over {before_name}, lower end"), lower, required);
    let (outcome, summary) = if lower >= required {
        (Outcome::Pass, measured)
    } else if upper < required {
        let kind = if upper < 1.0 && ratio < 1.0 - RESOLUTION {
            "a regression"
        } else if lower > 1.0 && ratio > 1.0 + RESOLUTION {
            "a small gain"
        } else {
            "no gain"
        };
        (Outcome::Negative, format!("{kind}: {measured}, required {required:.2}×"))
    } else {
        (Outcome::Inconclusive, format!("{measured}, required {required:.2}× lies within"))
    };
    report(outcome, summary, vec![check])
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_distr::{Distribution, StandardNormal};

    const GAIN: f64 = 0.10;

    fn decide(before: &Samples, candidate: &Samples) -> GateReport {
        judge("before", SpeedUp::between(before, candidate), GAIN)
    }

    /// Ten rounds of twenty runs: noise of the machine per round, noise of each run, and a rare slow run.
    fn noisy(us: f64, generator: &mut ChaCha8Rng) -> Samples {
        let mut normal = |spread: f64| -> f64 {
            let value: f64 = StandardNormal.sample(generator);
            (spread * value).exp()
        };
        let mut ns = Vec::new();
        for _ in 0..10 {
            let round = normal(0.03);
            for run in 0..20 {
                let slow = if run == 7 { 2.0 } else { 1.0 };
                ns.push((us * 1000.0 * round * normal(0.02) * slow) as u64);
            }
        }
        Samples { ns, rounds: vec![20; 10] }
    }

    /// How often a true speed-up is given each outcome.
    fn simulate(speed_up: f64, outcome: Outcome) -> f64 {
        const RUNS: u64 = 300;
        let count = (0..RUNS).filter(|seed| {
            let generator = &mut ChaCha8Rng::seed_from_u64(*seed);
            let (before, candidate) = (noisy(100.0, generator), noisy(100.0 / speed_up, generator));
            decide(&before, &candidate).outcome == outcome
        });
        count.count() as f64 / RUNS as f64
    }

    #[test]
    fn a_gain_just_short_of_the_required_one_rarely_passes() {
        assert!(simulate(1.0 + GAIN, Outcome::Pass) <= 0.05, "{}", simulate(1.0 + GAIN, Outcome::Pass));
    }

    #[test]
    fn twice_the_required_gain_is_seen() {
        assert!(simulate(1.0 + 2.0 * GAIN, Outcome::Pass) >= 0.8);
    }

    #[test]
    fn no_gain_at_all_is_seen_to_be_none() {
        assert!(simulate(1.0, Outcome::Negative) >= 0.8);
        assert_eq!(simulate(1.0, Outcome::Pass), 0.0);
    }

    fn steady(us: u64) -> Samples {
        Samples { ns: vec![us * 1000; 50], rounds: vec![5; 10] }
    }

    #[test]
    fn every_verdict_in_words() {
        let words = |before, candidate| {
            let report = decide(&steady(before), &steady(candidate));
            (report.outcome, report.summary)
        };
        let (outcome, summary) = words(200, 100);
        assert_eq!(outcome, Outcome::Pass);
        assert_eq!(summary, "2.000× before (95 % interval 2.000 to 2.000, 10 rounds)");
        for (candidate, kind) in [
            (125, "a regression: 0.800×"),
            (95, "a small gain: 1.053×"),
            (100, "no gain: 1.000×"),
            (101, "no gain: 0.990×"),
        ] {
            let (outcome, summary) = words(100, candidate);
            assert_eq!(outcome, Outcome::Negative);
            assert!(summary.starts_with(kind) && summary.ends_with("required 1.10×"), "{summary}");
        }
    }

    #[test]
    fn rounds_that_disagree_decide_nothing() {
        let mut candidate = steady(90);
        candidate.ns[..25].fill(70_000);
        let report = decide(&steady(100), &candidate);
        let between = decide(&steady(100), &Samples { ns: [[70_000; 25], [120_000; 25]].concat(), ..candidate });
        assert_eq!(between.outcome, Outcome::Inconclusive, "{}", between.summary);
        assert_eq!(report.outcome, Outcome::Pass, "{}", report.summary);
    }

    #[test]
    fn few_rounds_decide_nothing() {
        let few = Samples { ns: vec![1000; 4], rounds: vec![1, 1, 1, 1] };
        assert_eq!(decide(&few, &few).outcome, Outcome::Inconclusive);
        let old = Samples { ns: vec![1000; 50], rounds: Vec::new() };
        assert_eq!(decide(&old, &steady(1)).outcome, Outcome::Inconclusive);
    }

    #[test]
    fn more_looks_ask_for_a_wider_interval() {
        let generator = &mut ChaCha8Rng::seed_from_u64(3);
        let (before, candidate) = (noisy(100.0, generator), noisy(90.0, generator));
        let one = SpeedUp::between(&before, &candidate).unwrap();
        let three = SpeedUp::at_one_of(3, &before, &candidate).unwrap();
        assert!(three.lower < one.lower && three.upper > one.upper && three.ratio == one.ratio);
        assert!(three.smallest_detectable() > one.smallest_detectable());
    }

    #[test]
    fn separate_runs_need_not_have_met_the_same_noise_round_by_round() {
        let generator = &mut ChaCha8Rng::seed_from_u64(4);
        let (before, candidate) = (noisy(100.0, generator), noisy(50.0, generator));
        let speed_up = SpeedUp::of_separate_runs(&before, &candidate).unwrap();
        assert!(speed_up.lower < 2.0 && 2.0 < speed_up.upper && speed_up.upper < 2.3, "{speed_up:?}");
        let few = Samples { ns: vec![1000; 4], rounds: vec![1; 4] };
        assert_eq!(SpeedUp::of_separate_runs(&before, &few), None);
    }

    #[test]
    fn the_median_of_an_odd_and_of_an_even_number() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [4.0, 1.0, 3.0, 2.0]), 2.5);
    }

    #[test]
    fn the_same_samples_always_give_the_same_interval() {
        let samples = [(); 2].map(|()| {
            let generator = &mut ChaCha8Rng::seed_from_u64(3);
            SpeedUp::between(&noisy(100.0, generator), &noisy(90.0, generator))
        });
        assert_eq!(samples[0], samples[1]);
    }
}
