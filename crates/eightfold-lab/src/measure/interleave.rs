//! Rounds in which every contestant runs a short block, in an order that rotates.

use super::conditions::Observer;
use super::{Conditions, Contestant, Method, Samples};
use crate::gates::TimingPolicy;
use eightfold::Result;

/// Blocks that a contestant's runs are spread over: a disturbance of a few seconds touches few of them.
const ROUNDS: usize = 10;

/// What timing one contestant gave: its samples, or why there are none.
pub type Measured = Result<Samples>;

/// The times of each contestant after some rounds; none of one that failed.
pub type SoFar<'a> = &'a [Option<&'a Samples>];

/// What timing everyone gave.
pub struct Interleaved {
    /// One for each contestant, in their order.
    pub measured: Vec<Measured>,
    /// What else went on.
    pub conditions: Conditions,
}

/// Times all contestants in one run.
///
/// Each gets the same warm-up and the same policy. `tick` is told after every block how far the work is, from 0 to 1, and
/// after every round the times so far.
/// A contestant that fails leaves the race; the others go on.
pub fn interleave(
    contestants: &mut [&mut dyn Contestant],
    method: &Method,
    tick: &mut dyn FnMut(f64, Option<SoFar>),
) -> Interleaved {
    let count = contestants.len();
    let mut observer = Observer::new(count, method.on_gpu);
    let mut lanes: Vec<Result<Lane>> = contestants
        .iter_mut()
        .enumerate()
        .map(|(index, contestant)| {
            let lane = Lane::warm_up(*contestant, method);
            tick(index as f64 / (2 * count) as f64, None);
            lane
        })
        .collect();
    for round in 0..ROUNDS {
        for place in 0..count {
            let index = (round + place) % count;
            let contestant = &mut *contestants[index];
            if let Ok(lane) = &mut lanes[index]
                && let Err(error) = observer.turn(index, || lane.run_round(contestant, method, round))
            {
                lanes[index] = Err(error);
            }
            tick(0.5 + (round * count + place + 1) as f64 / (2 * ROUNDS * count) as f64, None);
        }
        let so_far: Vec<Option<&Samples>> =
            lanes.iter().map(|lane| lane.as_ref().ok().map(|lane| &lane.samples)).collect();
        tick(0.5 + (round + 1) as f64 / (2 * ROUNDS) as f64, Some(&so_far));
    }
    let measured = lanes.into_iter().map(|lane| lane.map(|lane| lane.samples)).collect();
    Interleaved { measured, conditions: observer.conditions() }
}

/// One contestant's progress.
struct Lane {
    samples: Samples,
    /// Runs still to come when the rounds begin.
    planned: usize,
    /// Runs before those of a block that count.
    lead_in: usize,
}

impl Lane {
    /// Prepares and warms up, and plans as many runs as the policy allows at the pace seen.
    fn warm_up(contestant: &mut dyn Contestant, method: &Method) -> Result<Self> {
        let policy = method.policy;
        let WarmedUp { counted, fastest_s } = warm_up(contestant, policy)?;
        let samples = Samples { ns: counted, rounds: Vec::new() };
        let most = policy.iterations.max(1);
        let least = policy.min_iterations.clamp(1, most);
        let fitting = (policy.max_seconds_per_cell / fastest_s) as usize;
        let planned = fitting.clamp(least, most).saturating_sub(samples.ns.len());
        Ok(Lane { samples, planned, lead_in: method.lead_in(fastest_s) })
    }

    /// Runs this round's share of the planned runs, which are then verified; a slow contestant sits some rounds out.
    fn run_round(&mut self, contestant: &mut dyn Contestant, method: &Method, round: usize) -> Result<()> {
        let policy = method.policy;
        let due = self.planned * (round + 1) / ROUNDS - self.planned * round / ROUNDS;
        let spent_s = seconds(&self.samples.ns, contestant.launches_per_run());
        let enough = self.samples.ns.len() >= policy.min_iterations;
        if due == 0 || (enough && spent_s >= policy.max_seconds_per_cell) {
            self.samples.rounds.push(0);
            return Ok(());
        }
        contestant.begin_round(round)?;
        std::thread::sleep(method.rest());
        if due > 1 {
            contestant.run_block(self.lead_in)?;
        }
        self.samples.ns.extend(contestant.run_block(due)?);
        self.samples.rounds.push(due);
        contestant.verify()
    }
}

/// What a warm-up showed.
pub(super) struct WarmedUp {
    /// A first run so long that it counts, if there was one.
    pub counted: Vec<u64>,
    /// The time of the fastest run.
    pub fastest_s: f64,
}

/// Prepares and warms up, in the same way for everyone.
pub(super) fn warm_up(contestant: &mut dyn Contestant, policy: &TimingPolicy) -> Result<WarmedUp> {
    contestant.prepare()?;
    let mut counted = Vec::new();
    let launches = contestant.launches_per_run();
    let mut spent_s = 0.0;
    let mut fastest_s = f64::INFINITY;
    for run in 0..policy.warmup_iterations.max(1) {
        let block = contestant.run_block(1)?;
        let run_s = seconds(&block, launches);
        if run == 0 && run_s >= policy.warmup_max_seconds {
            // A run as long as a whole warm-up has warmed itself. It counts: the baseline takes seconds.
            counted = block;
        }
        spent_s += run_s;
        fastest_s = run_s.min(fastest_s);
        if spent_s >= policy.warmup_max_seconds {
            break;
        }
    }
    Ok(WarmedUp { counted, fastest_s })
}

/// The time that these runs took, where each stands for several launches.
fn seconds(ns: &[u64], launches_per_run: usize) -> f64 {
    ns.iter().sum::<u64>() as f64 * launches_per_run as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::{Cache, Manner};
    use eightfold::Error;
    use std::cell::RefCell;
    use std::rc::Rc;

    const POLICY: TimingPolicy = TimingPolicy {
        warmup_iterations: 3,
        warmup_max_seconds: 1.0,
        iterations: 40,
        min_iterations: 3,
        max_seconds_per_cell: 1.0,
    };

    const METHOD: Method<'_> =
        Method { policy: &POLICY, manner: Manner { cache: Cache::Hot, burst: false }, on_gpu: false };

    /// Claims a time per run without spending it, and writes down when it ran.
    struct Scripted {
        name: &'static str,
        ns: u64,
        fails_at: usize,
        ran: usize,
        wrong: bool,
        log: Rc<RefCell<Vec<&'static str>>>,
    }

    impl Scripted {
        fn new(name: &'static str, ns: u64, log: &Rc<RefCell<Vec<&'static str>>>) -> Self {
            Scripted { name, ns, fails_at: usize::MAX, ran: 0, wrong: false, log: log.clone() }
        }
    }

    impl Contestant for Scripted {
        fn prepare(&mut self) -> Result<()> {
            Ok(())
        }

        fn run_block(&mut self, iterations: usize) -> Result<Vec<u64>> {
            self.log.borrow_mut().push(self.name);
            self.ran += iterations;
            if self.ran >= self.fails_at {
                return Err(Error::unavailable(self.name, "it broke", "mend it"));
            }
            Ok(vec![self.ns; iterations])
        }

        fn verify(&mut self) -> Result<()> {
            if self.wrong { Err(Error::unavailable(self.name, "wrong", "mend it")) } else { Ok(()) }
        }
    }

    fn race(contestants: &mut [Scripted]) -> Vec<Measured> {
        let mut field: Vec<&mut dyn Contestant> = contestants.iter_mut().map(|contestant| contestant as _).collect();
        interleave(&mut field, &METHOD, &mut |_, _| {}).measured
    }

    #[test]
    fn everyone_runs_as_often_as_the_policy_asks_and_warm_up_is_not_counted() {
        let log = Rc::default();
        let mut field = [Scripted::new("a", 1000, &log), Scripted::new("b", 2000, &log)];
        let measured = race(&mut field);
        assert_eq!(measured[0].as_ref().unwrap().ns, vec![1000; 40]);
        assert_eq!(measured[0].as_ref().unwrap().rounds, vec![4; ROUNDS]);
        assert_eq!(measured[1].as_ref().unwrap().ns, vec![2000; 40]);
        // Five milliseconds before each block are 5000 runs of one microsecond, or 2500 of two.
        let uncounted = |runs_per_block: usize| POLICY.warmup_iterations + ROUNDS * runs_per_block;
        assert_eq!(field[0].ran, 40 + uncounted(5000));
        assert_eq!(field[1].ran, 40 + uncounted(2500));
    }

    #[test]
    fn blocks_alternate_and_the_order_rotates() {
        let log = Rc::default();
        race(&mut [Scripted::new("a", 1000, &log), Scripted::new("b", 1000, &log)]);
        let ran = log.borrow()[2 * POLICY.warmup_iterations..].to_vec();
        // Each block shows as two calls: the runs that are not counted, and those that are.
        assert_eq!(ran[..8], ["a", "a", "b", "b", "b", "b", "a", "a"]);
    }

    #[test]
    fn a_slow_contestant_runs_fewer_times_but_never_below_the_minimum() {
        let log = Rc::default();
        let mut field = [
            Scripted::new("fast", 1000, &log),
            Scripted::new("slow", 100_000_000, &log),
            Scripted::new("slowest", 9_000_000_000, &log),
        ];
        let counts: Vec<usize> = race(&mut field).into_iter().map(|measured| measured.unwrap().ns.len()).collect();
        assert_eq!(counts, [40, 10, 3]);
        assert_eq!(field[1].ran, 10 + POLICY.warmup_iterations, "blocks of one run have no lead-in");
        assert_eq!(field[2].ran, 3, "a run longer than the warm-up counts");
    }

    #[test]
    fn runs_that_stand_for_many_launches_are_charged_for_them() {
        struct Graph(Scripted);
        impl Contestant for Graph {
            fn prepare(&mut self) -> Result<()> {
                self.0.prepare()
            }
            fn run_block(&mut self, iterations: usize) -> Result<Vec<u64>> {
                self.0.run_block(iterations)
            }
            fn launches_per_run(&self) -> usize {
                20
            }
            fn verify(&mut self) -> Result<()> {
                self.0.verify()
            }
        }
        let log = Rc::default();
        let mut graph = Graph(Scripted::new("graph", 5_000_000, &log));
        let measured = interleave(&mut [&mut graph], &METHOD, &mut |_, _| {}).measured;
        let samples = measured[0].as_ref().unwrap();
        assert_eq!(samples.ns, vec![5_000_000; 10], "ten replays of 0.1 s fill the second");
        assert_eq!(samples.rounds.len(), ROUNDS);
    }

    #[test]
    fn one_that_fails_does_not_stop_the_others() {
        let log = Rc::default();
        let mut field = [
            Scripted { fails_at: 1, ..Scripted::new("dead", 1000, &log) },
            Scripted { fails_at: 20, ..Scripted::new("dies", 1000, &log) },
            Scripted { wrong: true, ..Scripted::new("wrong", 1000, &log) },
            Scripted::new("fine", 1000, &log),
        ];
        let fine: Vec<bool> = race(&mut field).iter().map(Result::is_ok).collect();
        assert_eq!(fine, [false, false, false, true]);
    }

    #[test]
    fn progress_only_grows_and_ends_at_one() {
        let log = Rc::default();
        let mut a = Scripted::new("a", 1000, &log);
        let (mut seen, mut rounds) = (Vec::new(), Vec::new());
        interleave(&mut [&mut a], &METHOD, &mut |share, so_far| {
            seen.push(share);
            rounds.extend(so_far.map(|so_far| so_far[0].unwrap().rounds.len()));
        });
        assert!(seen.is_sorted());
        assert_eq!(seen.last(), Some(&1.0));
        assert_eq!(rounds, (1..=ROUNDS).collect::<Vec<_>>());
    }
}
