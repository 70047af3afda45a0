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

/// Two-sided 95 % quantiles of Student's t distribution for 1, 2, … degrees of freedom.
const STUDENT: [f64; 16] =
    [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120];

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
    /// interval comes from resampling the rounds. With fewer than five rounds in common it is Student's, which is wider:
    /// a contestant that takes seconds for a run sits rounds out, and is decided on all the same where the gain is large.
    pub fn between(before: &Samples, candidate: &Samples) -> Option<SpeedUp> {
        Self::at_one_of(1, before, candidate).or_else(|| Self::of_few_rounds(before, candidate))
    }

    /// The speed-up by Student's t on the logarithms of the rounds' medians, whose spread both sides are taken to share.
    /// Each side needs at least two.
    fn of_few_rounds(before: &Samples, candidate: &Samples) -> Option<SpeedUp> {
        let sides = [before, candidate].map(|samples| {
            let medians = samples.warm_up_us().into_iter().chain(samples.round_p50_us().into_iter().flatten());
            medians.filter(|us| *us > 0.0).map(f64::ln).collect::<Vec<f64>>()
        });
        let [(before_mean, before_squares), (mean, squares)] = sides.each_ref().map(|side| mean_and_squares(side));
        let [before_count, count] = sides.each_ref().map(Vec::len);
        let rounds = before_count.min(count);
        if rounds < 2 {
            return None;
        }
        let freedom = before_count + count - 2;
        let variance = (before_squares + squares) / freedom as f64;
        let error = (variance * (1.0 / before_count as f64 + 1.0 / count as f64)).sqrt();
        let reach = STUDENT[freedom.min(STUDENT.len()) - 1] * error;
        let log = before_mean - mean;
        Some(SpeedUp { ratio: log.exp(), lower: (log - reach).exp(), upper: (log + reach).exp(), rounds })
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

/// The mean, and the sum of the squared distances from it.
fn mean_and_squares(values: &[f64]) -> (f64, f64) {
    let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
    (mean, values.iter().map(|value| (value - mean).powi(2)).sum())
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
/// where all of it is below, `Inconclusive` otherwise. Where all of the interval is below 1 by more than [`RESOLUTION`], what is
/// judged is slower than before: `Regression` instead of `Negative`.
///
/// A stage that did not gain what was hoped for is a finding and no fault: neither fails a run.
pub fn judge(before_name: &str, speed_up: Option<SpeedUp>, required_gain: f64) -> GateReport {
    let required = 1.0 + required_gain;
    let report = |outcome, summary, checks| GateReport { gate: Gate::Performance, outcome, summary, checks };
    let Some(SpeedUp { ratio, lower, upper, rounds }) = speed_up else {
        let summary = format!("too few rounds beside {before_name} for an interval: count more runs");
        return report(Outcome::Inconclusive, summary, Vec::new());
    };
    let measured = format!("{ratio:.3}× {before_name} (95 % interval {lower:.3} to {upper:.3}, {rounds} rounds)");
    let check = Check::at_least(format!("speed-up over {before_name}, lower end"), lower, required);
    let (outcome, summary) = if lower >= required {
        (Outcome::Pass, measured)
    } else if upper < required {
        let kind = if upper < 1.0 && ratio < 1.0 - RESOLUTION {
            "slower"
        } else if lower > 1.0 && ratio > 1.0 + RESOLUTION {
            "a small gain"
        } else {
            "no gain"
        };
        let outcome = if upper < 1.0 - RESOLUTION { Outcome::Regression } else { Outcome::Negative };
        (outcome, format!("{kind}: {measured}, required {required:.2}×"))
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
        for (candidate, expected, kind) in [
            (125, Outcome::Regression, "slower: 0.800×"),
            (103, Outcome::Regression, "slower: 0.971×"),
            (95, Outcome::Negative, "a small gain: 1.053×"),
            (100, Outcome::Negative, "no gain: 1.000×"),
            (101, Outcome::Negative, "no gain: 0.990×"),
        ] {
            let (outcome, summary) = words(100, candidate);
            assert_eq!(outcome, expected, "{summary}");
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
    fn a_single_run_decides_nothing() {
        let one = Samples { ns: vec![5_000_000], rounds: vec![1] };
        let report = decide(&one, &steady(1));
        assert_eq!(report.outcome, Outcome::Inconclusive);
        assert_eq!(report.summary, "too few rounds beside before for an interval: count more runs");
    }

    /// A baseline of seconds: a first run that counts, and two of ten rounds.
    fn slow(ms: [u64; 3]) -> Samples {
        Samples { ns: ms.map(|ms| ms * 1_000_000).to_vec(), rounds: vec![0, 0, 0, 0, 1, 0, 0, 0, 0, 1] }
    }

    #[test]
    fn a_large_gain_is_decided_by_three_runs_and_a_small_one_is_not() {
        let before = slow([7000, 7200, 6900]);
        let (fast, slower) = (slow([1400, 1350, 1420]), slow([9000, 9300, 9100]));
        let near = slow([6300, 6000, 6500]);
        let five = decide(&before, &fast);
        assert_eq!(five.outcome, Outcome::Pass, "{}", five.summary);
        assert!(five.summary.ends_with(", 3 rounds)"), "{}", five.summary);
        assert_eq!(decide(&before, &slower).outcome, Outcome::Regression);
        assert_eq!(decide(&before, &near).outcome, Outcome::Inconclusive);
        // A fast candidate that ran in every round has more to show.
        assert_eq!(decide(&before, &noisy(1_400_000.0, &mut ChaCha8Rng::seed_from_u64(1))).outcome, Outcome::Pass);
    }

    #[test]
    fn with_three_runs_each_a_gain_just_short_of_the_required_one_rarely_passes() {
        const RUNS: u64 = 2000;
        let passes = (0..RUNS).filter(|seed| {
            let generator = &mut ChaCha8Rng::seed_from_u64(*seed);
            let mut runs = |ms: f64| {
                let mut run = || -> u64 {
                    let noise: f64 = StandardNormal.sample(generator);
                    (ms * (0.05 * noise).exp()) as u64
                };
                slow([run(), run(), run()])
            };
            let (before, candidate) = (runs(7000.0), runs(7000.0 / (1.0 + GAIN)));
            decide(&before, &candidate).outcome == Outcome::Pass
        });
        let share = passes.count() as f64 / RUNS as f64;
        assert!((0.01..=0.04).contains(&share), "{share}");
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
