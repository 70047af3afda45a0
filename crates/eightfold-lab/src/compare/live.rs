//! Two variants against each other, now: gates first, then rounds until it is decided.

use super::{Comparison, Judged, Side, judge};
use crate::examine::{Candidate, Examination, Examined};
use crate::gates::{Case, Gate, GateReport, Outcome, Thresholds};
use crate::measure::{Contestant, CudaContestant, KernelContestant, Race, Raced, Samples, Timer};
use crate::progress::{Part, Progress};
use crate::record::{Entry, Group, Timing};
use eightfold::{Error, Problem, Result, Variant};

/// What to compare, and how.
pub struct Live<'a> {
    /// What a person calls the shape.
    pub shape: &'a str,
    /// The inputs.
    pub case: &'a Case,
    /// Who was there before.
    pub baseline: &'a Candidate,
    /// Who may be faster.
    pub candidate: &'a Candidate,
    /// The limits and the timing policy.
    pub thresholds: &'a Thresholds,
    /// What the candidate must gain: 0.1 asks for a speed-up of 1.1.
    pub required_gain: f64,
    /// The seed of the order of the turns.
    pub seed: u64,
    /// Rounds at the very most.
    pub most_rounds: usize,
    /// A difference to put there, as a test of the comparison: at 0.05 every run of the baseline counts as 5 % longer, at
    /// −0.05 every run of the candidate.
    pub planted: Option<f64>,
}

/// A comparison, and the entries that it rests on: the baseline, the baseline again, the candidate.
pub struct Compared {
    /// The entries.
    pub group: Group,
    /// The verdict.
    pub comparison: Comparison,
}

/// A comparison of slow variants has fewer rounds, so that it ends in about this time.
const MOST_SECONDS: f64 = 60.0;

/// The part of the work that gating is, for the progress bar.
const GATING_SHARE: f64 = 0.2;

impl Live<'_> {
    /// Gates both, and times them if both pass. The error is that of variants that cannot be compared here.
    pub fn run(&self, problem: &Problem, progress: &mut dyn Progress) -> Result<Compared> {
        same_device(self.baseline, self.candidate)?;
        let candidates = [self.baseline.clone(), self.candidate.clone()];
        let examination = Examination {
            shape: self.shape,
            cases: std::slice::from_ref(self.case),
            candidates: &candidates,
            thresholds: self.thresholds,
            timed: false,
            ladder: false,
            sweep: false,
            max_gate_seconds: f64::INFINITY,
        };
        let gating = &mut Part { whole: progress, start: 0.0, share: GATING_SHARE };
        let Examined { mut group, lost } = examination.run(problem, None, gating);
        let mut comparison = self.unjudged(&group);
        if let Some(reason) = first_failure(&group.entries)? {
            comparison.outcome = Outcome::Fail;
            comparison.summary = format!("{reason}; nothing was timed");
            return Ok(Compared { group, comparison });
        }
        lost.map_or(Ok(()), Err)?;
        let what = format!("{} {problem}: timing", self.shape);
        let tick = &mut |share: f64| progress.at(GATING_SHARE + (1.0 - GATING_SHARE) * share, &what);
        self.judge(&mut group, &mut comparison, tick)?;
        Ok(Compared { group, comparison })
    }

    fn unjudged(&self, group: &Group) -> Comparison {
        let side = |candidate: &Candidate| Side {
            name: candidate.name.clone(),
            implementation: candidate.variant.to_string(),
            p50_us: None,
        };
        Comparison {
            shape: group.shape.clone(),
            problem: group.problem.clone(),
            baseline: side(self.baseline),
            candidate: side(self.candidate),
            timer: None,
            required_gain: self.required_gain,
            outcome: Outcome::Inconclusive,
            summary: String::new(),
            speed_up: None,
            itself: None,
            seed: Some(self.seed),
            planted: self.planted,
            conditions: None,
        }
    }

    /// Times both, the baseline twice, and fills in what that says.
    fn judge(&self, group: &mut Group, comparison: &mut Comparison, tick: &mut dyn FnMut(f64)) -> Result<()> {
        let planted = self.planted.unwrap_or(0.0);
        let (before, after) = (planted.max(0.0), (-planted).max(0.0));
        let [baseline, candidate] = [0, 1].map(|place| &group.entries[place]);
        let lanes =
            [(self.baseline, baseline, before), (self.baseline, baseline, before), (self.candidate, candidate, after)];
        let mut field = Vec::new();
        for (candidate, entry, delay) in lanes {
            field.push(contestant(candidate, entry, self.case, delay)?);
        }
        let timer = field[0].0;
        let on_gpu = self.baseline.on_gpu();
        let policy = if on_gpu { &self.thresholds.cuda_timing } else { &self.thresholds.timing };
        let race = Race { policy, seed: self.seed, most_rounds: self.most_rounds, most_seconds: MOST_SECONDS };
        let mut contestants: Vec<&mut dyn Contestant> = field.iter_mut().map(|(_, one)| &mut **one as _).collect();
        let look = |samples: &[Samples]| {
            judge(&self.baseline.name, [&samples[0], &samples[1], &samples[2]], self.required_gain)
        };
        let raced = race.run(&mut contestants, &mut |samples| look(samples).settled, tick);
        comparison.timer = Some(timer);
        let Raced { samples, conditions } = match raced {
            Ok(raced) => raced,
            Err(error) => {
                comparison.outcome = Outcome::Invalid;
                comparison.summary = error.to_string();
                return Ok(());
            }
        };
        let Judged { outcome, summary, speed_up, itself, .. } = look(&samples);
        (comparison.outcome, comparison.summary) = match conditions.differed() {
            Some(reason) => (Outcome::Invalid, reason),
            None => (outcome, summary),
        };
        comparison.speed_up = speed_up;
        comparison.itself = itself;
        comparison.conditions = Some(conditions);
        self.note(group, comparison, timer, samples);
        Ok(())
    }

    /// Puts the times and the verdict into the entries, the baseline's second turn as one of its own.
    fn note(&self, group: &mut Group, comparison: &mut Comparison, timer: Timer, samples: Vec<Samples>) {
        let again = Entry { name: format!("{} again", self.baseline.name), ..group.entries[0].clone() };
        group.entries.insert(1, again);
        for (entry, samples) in group.entries.iter_mut().zip(samples) {
            entry.timing = Timing::new(timer, samples);
        }
        comparison.baseline.p50_us = group.entries[0].p50_us();
        comparison.candidate.p50_us = group.entries[2].p50_us();
        group.entries[2].gates.push(GateReport {
            gate: Gate::Performance,
            outcome: comparison.outcome,
            summary: comparison.summary.clone(),
            checks: Vec::new(),
        });
        if let Some(planted) = self.planted {
            let delayed = if planted > 0.0 { 0..2 } else { 2..3 };
            for entry in &mut group.entries[delayed] {
                let percent = (1e4 * planted.abs()).round() / 1e2;
                entry.note =
                    Some(format!("PLANTED: every timed run was counted as {percent} % longer, to test the comparison"));
            }
        }
    }
}

/// A ratio between a CPU and a GPU would compare machines.
fn same_device(baseline: &Candidate, candidate: &Candidate) -> Result<()> {
    if baseline.on_gpu() == candidate.on_gpu() {
        return Ok(());
    }
    let place = |candidate: &Candidate| if candidate.on_gpu() { "the GPU" } else { "the CPU" };
    let [(first, a), (second, b)] = [baseline, candidate].map(|one| (&one.name, place(one)));
    Err(Error::invalid(
        "compare",
        format!("the devices differ: {first} runs on {a}, {second} on {b}"),
        "compare variants of one device, and see both in a bench",
    ))
}

/// The first gate that failed, in words; an error where a gate could not be applied.
fn first_failure(entries: &[Entry]) -> Result<Option<String>> {
    let mut failure = None;
    for entry in entries {
        let gates = entry.gates.iter().filter(|gate| gate.outcome != Outcome::Pass);
        for GateReport { gate, outcome, summary, .. } in gates {
            match outcome {
                Outcome::Fail => {
                    failure = failure.or(Some(format!("{} failed the {gate} gate: {summary}", entry.name)))
                }
                _ if *gate == Gate::Correctness => {
                    return Err(Error::unavailable(&entry.name, summary, "compare variants that run here"));
                }
                _ => {}
            }
        }
    }
    Ok(failure)
}

/// The contestant for a variant that passed its gates, and what it is timed with.
pub(crate) fn contestant<'a>(
    candidate: &Candidate,
    entry: &Entry,
    case: &'a Case,
    delay: f64,
) -> Result<(Timer, Box<dyn Contestant + 'a>)> {
    let seen = entry.cases.first().filter(|case| case.repeatable);
    let hash = seen.map(|case| case.output_hash);
    Ok(match &candidate.variant {
        Variant::Ladder(config) => {
            let [replayed, _] = CudaContestant::both(&candidate.name, config, case, hash)?;
            (replayed.timer(), Box::new(replayed.delayed_by(delay)?))
        }
        variant => {
            let contestant = KernelContestant::new(&candidate.name, *variant, case, hash)?;
            (Timer::HostClock, Box::new(contestant.delayed_by(delay)))
        }
    })
}
