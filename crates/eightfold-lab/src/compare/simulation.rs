//! The procedure itself under test: how often it errs on machines that are noisy in known ways.

use super::{Judged, judge};
use crate::gates::Outcome;
use crate::measure::{Looks, Samples};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use rand_distr::{Distribution, StandardNormal};
use rayon::prelude::*;

const GAIN: f64 = 0.05;
const ROUNDS: usize = 80;
const RUNS: u64 = 300;

/// How a machine disturbs whoever has the turn.
#[derive(Debug, Clone, Copy)]
enum Noise {
    /// Every turn is off by 4 %, for itself.
    White,
    /// The machine becomes a third slower over the run.
    Drift,
    /// Now and then it is half as fast for a few turns.
    Bursts,
    /// It wanders by 8 %, and remembers most of it from turn to turn.
    Autocorrelated,
}

const NOISES: [Noise; 4] = [Noise::White, Noise::Drift, Noise::Bursts, Noise::Autocorrelated];

/// The state of the machine.
struct Machine {
    noise: Noise,
    turns: usize,
    wander: f64,
    burst_turns: usize,
    generator: ChaCha8Rng,
}

impl Machine {
    fn new(noise: Noise, seed: u64) -> Self {
        Machine { noise, turns: 0, wander: 0.0, burst_turns: 0, generator: ChaCha8Rng::seed_from_u64(seed) }
    }

    fn normal(&mut self) -> f64 {
        StandardNormal.sample(&mut self.generator)
    }

    fn chance(&mut self) -> f64 {
        self.generator.next_u64() as f64 / u64::MAX as f64
    }

    /// The time of the next turn.
    fn turn(&mut self, us: f64) -> u64 {
        self.turns += 1;
        let own = self.normal();
        let log = match self.noise {
            Noise::White => 0.04 * own,
            Noise::Drift => 0.3 * self.turns as f64 / (3 * ROUNDS) as f64 + 0.02 * own,
            Noise::Bursts => {
                if self.chance() < 0.03 {
                    self.burst_turns = 6;
                }
                let slow = if self.burst_turns > 0 { 0.7 } else { 0.0 };
                self.burst_turns = self.burst_turns.saturating_sub(1);
                slow + 0.02 * own
            }
            Noise::Autocorrelated => {
                const MEMORY: f64 = 0.95;
                self.wander = MEMORY * self.wander + 0.08 * (1.0 - MEMORY * MEMORY).sqrt() * self.normal();
                self.wander + 0.01 * own
            }
        };
        (us * 1000.0 * log.exp()) as u64
    }
}

/// One comparison of a candidate with this true speed-up.
fn compare(noise: Noise, speed_up: f64, seed: u64) -> Judged {
    let mut machine = Machine::new(noise, seed);
    let looks = Looks::up_to(ROUNDS);
    let mut samples = [(); 3].map(|()| Samples::default());
    let us = [1000.0, 1000.0, 1000.0 / speed_up];
    for round in 1..=ROUNDS {
        let mut order = [0, 1, 2];
        for last in [2, 1] {
            order.swap(last, (machine.generator.next_u64() % (last as u64 + 1)) as usize);
        }
        for index in order {
            let ns = machine.turn(us[index]);
            samples[index].ns.push(ns);
            samples[index].rounds.push(1);
        }
        if looks.after(round) {
            let judged = judge("a", samples.each_ref(), GAIN);
            if judged.settled || round == ROUNDS {
                return judged;
            }
        }
    }
    unreachable!("the last round is a look")
}

/// Many comparisons of a candidate with this true speed-up.
fn simulate(noise: Noise, speed_up: f64) -> Vec<Judged> {
    (0..RUNS).into_par_iter().map(|seed| compare(noise, speed_up, seed)).collect()
}

/// The share of comparisons of which something holds.
fn share(judged: &[Judged], holds: impl Fn(&Judged) -> bool) -> f64 {
    judged.iter().filter(|judged| holds(judged)).count() as f64 / judged.len() as f64
}

fn passes(judged: &Judged) -> bool {
    judged.outcome == Outcome::Pass
}

#[test]
fn exactly_the_required_gain_rarely_passes() {
    for noise in NOISES {
        let passing = share(&simulate(noise, 1.0 + GAIN), passes);
        assert!(passing <= 0.05, "{noise:?}: {passing}");
    }
}

#[test]
fn twice_the_required_gain_passes() {
    for noise in NOISES {
        let passing = share(&simulate(noise, 1.0 + 2.0 * GAIN), passes);
        assert!(passing >= 0.8, "{noise:?}: {passing}");
    }
}

#[test]
fn a_slowdown_is_found_to_be_a_regression() {
    for noise in NOISES {
        let judged = simulate(noise, 1.0 / (1.0 + GAIN));
        let found = share(&judged, |judged| judged.outcome == Outcome::Regression);
        assert!(found >= 0.8, "{noise:?}: {found}");
    }
}

/// No gain never passes and is mostly seen to be none; the interval of what is the same holds 1 at its nominal rate, and
/// runs are rarely called invalid for noise alone.
#[test]
fn what_is_the_same_is_seen_to_be_the_same() {
    for noise in NOISES {
        let judged = simulate(noise, 1.0);
        let passing = share(&judged, passes);
        assert!(passing <= 0.05, "{noise:?}: {passing} pass");
        let negative = share(&judged, |judged| judged.outcome == Outcome::Negative);
        assert!(negative >= 0.8, "{noise:?}: {negative} are negative");
        let holds = |judged: &Judged| judged.itself.is_some_and(|itself| itself.lower <= 1.0 && 1.0 <= itself.upper);
        let held = share(&judged, holds);
        assert!(held >= 0.95, "{noise:?}: the interval holds 1 in {held}");
        let invalid = share(&judged, |judged| judged.outcome == Outcome::Invalid);
        assert!(invalid <= 0.05, "{noise:?}: {invalid} are invalid");
    }
}
