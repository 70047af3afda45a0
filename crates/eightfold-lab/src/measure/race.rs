//! Rounds in a random order, as many as it takes to decide.

use super::conditions::Observer;
use super::interleave::warm_up;
use super::{Cache, Conditions, Contestant, Method, Samples};
use eightfold::Result;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// After how many rounds the times are looked at: few times, because every look is a chance to be fooled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Looks {
    rounds: [usize; Looks::COUNT],
}

impl Looks {
    /// How many there are.
    pub const COUNT: usize = 3;

    /// The last look is after this many rounds, the others after an eighth of it and three eighths.
    pub fn up_to(most_rounds: usize) -> Looks {
        let after = |eighths: usize| (most_rounds * eighths / 8).max(Self::LEAST_ROUNDS.min(most_rounds));
        Looks { rounds: [after(1), after(3), most_rounds] }
    }

    /// Fewer rounds are looked at only where there are no more to come: the resampled interval of the median of ten is
    /// too narrow (simulated, it let up to 5 % pass where 2.5 % should).
    pub const LEAST_ROUNDS: usize = 16;

    /// Whether the times are looked at after this many rounds.
    pub fn after(&self, rounds: usize) -> bool {
        self.rounds.contains(&rounds)
    }

    /// Rounds at the very most.
    pub fn most_rounds(&self) -> usize {
        self.rounds[Self::COUNT - 1]
    }
}

/// How a race is run.
pub struct Race<'a> {
    /// How times are taken.
    pub method: Method<'a>,
    /// The seed of the order within each round.
    pub seed: u64,
    /// Rounds at the very most.
    pub most_rounds: usize,
    /// A race of slow contestants has fewer rounds, so that it ends in about this time.
    pub most_seconds: f64,
}

/// What a race gave.
pub struct Raced {
    /// The times, one for each contestant; each has as many runs in every round as the others.
    pub samples: Vec<Samples>,
    /// What else went on.
    pub conditions: Conditions,
}

/// The time of one turn's counted runs: long enough for a median, short enough that a turn's neighbours meet the same
/// machine.
const TURN_SECONDS: f64 = 0.02;

/// Rounds of a race at the least, however slow the contestants.
const FEWEST_ROUNDS: usize = 10;

/// Runs of one turn at the very most.
const MOST_RUNS: usize = 100;

/// Runs of one turn at the least, where that is not too long.
const FEW_RUNS: usize = 5;

impl Race<'_> {
    /// Runs rounds until a look is told that they are enough, or the last one. The error is the first contestant's that
    /// failed, or that did not compute what it should: then the others' times are of no use either.
    ///
    /// In each round every contestant has one turn, in random order, so that no drift favours anyone. `enough` looks at
    /// the times so far; `tick` is told after every round how far the work is, if all rounds are needed, and the times.
    pub fn run(
        &self,
        contestants: &mut [&mut dyn Contestant],
        enough: &mut dyn FnMut(&[Samples]) -> bool,
        tick: &mut dyn FnMut(f64, &[Samples]),
    ) -> Result<Raced> {
        let method = &self.method;
        let mut observer = Observer::new(contestants.len(), method.on_gpu);
        let mut paces_s = Vec::new();
        for contestant in contestants.iter_mut() {
            paces_s.push(warm_up(*contestant, method.policy)?.fastest_s);
        }
        let runs = match method.manner.cache {
            Cache::Hot => runs_per_turn(paces_s.iter().copied().fold(0.0, f64::max)),
            Cache::Cold => FEW_RUNS,
        };
        let rest_s = method.rest().as_secs_f64();
        let turn_s = |pace_s: &f64| (runs + method.lead_in(*pace_s)) as f64 * pace_s + rest_s;
        let fitting = (self.most_seconds / paces_s.iter().map(turn_s).sum::<f64>()) as usize;
        let looks = Looks::up_to(self.most_rounds.min(fitting.max(FEWEST_ROUNDS)));
        let mut generator = ChaCha8Rng::seed_from_u64(self.seed);
        let mut order: Vec<usize> = (0..contestants.len()).collect();
        let mut samples = vec![Samples::default(); contestants.len()];
        for round in 1..=looks.most_rounds() {
            shuffle(&mut order, &mut generator);
            for &index in &order {
                let (contestant, samples) = (&mut *contestants[index], &mut samples[index]);
                observer.turn(index, || {
                    contestant.begin_round(round)?;
                    turn(contestant, runs, paces_s[index], method, samples)
                })?;
            }
            tick(round as f64 / looks.most_rounds() as f64, &samples);
            if looks.after(round) && enough(&samples) {
                break;
            }
        }
        Ok(Raced { samples, conditions: observer.conditions() })
    }
}

/// The same for all, or the medians of skewed times would not be alike; a slow contestant makes it few.
fn runs_per_turn(slowest_s: f64) -> usize {
    let fitting = (TURN_SECONDS / slowest_s) as usize;
    let least = if slowest_s * FEW_RUNS as f64 <= 10.0 * TURN_SECONDS { FEW_RUNS } else { 1 };
    fitting.clamp(least, MOST_RUNS)
}

/// A rest, runs that do not count, runs that do, and whether they computed what they should.
fn turn(
    contestant: &mut dyn Contestant,
    runs: usize,
    pace_s: f64,
    method: &Method,
    samples: &mut Samples,
) -> Result<()> {
    std::thread::sleep(method.rest());
    if runs > 1 {
        contestant.run_block(method.lead_in(pace_s))?;
    }
    let block = contestant.run_block(runs)?;
    samples.rounds.push(block.len());
    samples.ns.extend(block);
    contestant.verify()
}

fn shuffle(order: &mut [usize], generator: &mut ChaCha8Rng) {
    for last in (1..order.len()).rev() {
        order.swap(last, (generator.next_u64() % (last as u64 + 1)) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gates::TimingPolicy;
    use crate::measure::Manner;
    use eightfold::Error;
    use std::cell::RefCell;
    use std::rc::Rc;

    const POLICY: TimingPolicy = TimingPolicy {
        warmup_iterations: 2,
        warmup_max_seconds: 1.0,
        iterations: 1,
        min_iterations: 1,
        max_seconds_per_cell: 1.0,
    };

    struct Scripted {
        name: &'static str,
        log: Rc<RefCell<Vec<&'static str>>>,
        wrong: bool,
    }

    impl Contestant for Scripted {
        fn prepare(&mut self) -> Result<()> {
            Ok(())
        }

        fn run_block(&mut self, iterations: usize) -> Result<Vec<u64>> {
            if iterations > 1 {
                self.log.borrow_mut().push(self.name);
            }
            // As long as the rest, so that exactly one run is not counted.
            Ok(vec![5_000_000; iterations])
        }

        fn verify(&mut self) -> Result<()> {
            if self.wrong { Err(Error::unavailable(self.name, "wrong", "mend it")) } else { Ok(()) }
        }
    }

    fn field(log: &Rc<RefCell<Vec<&'static str>>>) -> [Scripted; 3] {
        ["a", "again", "b"].map(|name| Scripted { name, log: log.clone(), wrong: false })
    }

    fn race(field: &mut [Scripted], seed: u64, enough: &mut dyn FnMut(&[Samples]) -> bool) -> Result<Raced> {
        let method = Method { policy: &POLICY, manner: Manner::default(), on_gpu: false };
        let race = Race { method, seed, most_rounds: 20, most_seconds: 60.0 };
        let mut contestants: Vec<&mut dyn Contestant> = field.iter_mut().map(|one| one as _).collect();
        race.run(&mut contestants, enough, &mut |_, _| {})
    }

    #[test]
    fn every_round_has_everyone_once_in_an_order_that_the_seed_fixes() {
        let orders = [7, 7, 8].map(|seed| {
            let log = Rc::default();
            race(&mut field(&log), seed, &mut |_| false).unwrap();
            log.take()
        });
        assert_eq!(orders[0], orders[1]);
        assert_ne!(orders[0], orders[2]);
        assert_eq!(orders[0].len(), 3 * 20);
        for round in orders[0].chunks(3) {
            let mut names = round.to_vec();
            names.sort_unstable();
            assert_eq!(names, ["a", "again", "b"]);
        }
        let first: Vec<_> = orders[0].chunks(3).map(|round| round[0]).collect();
        assert!(["a", "again", "b"].iter().all(|name| first.contains(name)), "{first:?}");
    }

    #[test]
    fn the_race_ends_when_a_look_is_satisfied_and_nobody_looks_in_between() {
        let mut looked = Vec::new();
        let raced = race(&mut field(&Rc::default()), 1, &mut |samples| {
            looked.push(samples[0].rounds.len());
            false
        });
        assert_eq!(looked, [16, 20]);
        assert_eq!(raced.unwrap().samples[2].rounds, [FEW_RUNS; 20]);
        let raced = race(&mut field(&Rc::default()), 1, &mut |_| true).unwrap();
        assert_eq!(raced.samples[0].rounds.len(), 16);
    }

    #[test]
    fn one_that_computed_something_else_spoils_the_race() {
        let mut field = field(&Rc::default());
        field[1].wrong = true;
        assert!(race(&mut field, 1, &mut |_| true).is_err());
    }

    #[test]
    fn slow_contestants_run_few_times_and_fast_ones_many() {
        assert_eq!([1e-6, 1e-3, 0.03, 5.0].map(runs_per_turn), [100, 20, 5, 1]);
    }

    #[test]
    fn looks_are_few_and_the_last_is_the_last_round() {
        let rounds = |most| (1..=most).filter(|round| Looks::up_to(most).after(*round)).collect::<Vec<_>>();
        assert_eq!(rounds(160), [20, 60, 160]);
        assert_eq!(rounds(24), [16, 24]);
        assert_eq!(rounds(5), [5]);
    }
}
