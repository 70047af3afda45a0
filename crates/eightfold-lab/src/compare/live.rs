//! Two variants against each other, now: gates first, then rounds until it is decided.

use super::contest::{Contest, note, unfinished};
use super::{Comparison, Side};
use crate::examine::{Candidate, Examination, Examined};
use crate::gates::{Case, Gate, GateReport, Outcome, Thresholds};
use crate::measure::{Contestant, Manner, Plant, Rotation, Samples, contestant};
use crate::progress::{Part, Progress};
use crate::record::{Entry, Group};
use eightfold::{Error, Problem, Result};

/// What to compare, and how.
pub struct Live<'a> {
    /// What a person calls the shape.
    pub shape: &'a str,
    /// The inputs, which rounds go around.
    pub cases: &'a [Case],
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
    /// How times are taken.
    pub manner: Manner,
    /// A difference to put there, as a test of the comparison: at 0.05 the baseline makes 5 % more runs than are counted,
    /// at −0.05 the candidate does.
    pub planted: Option<f64>,
}

/// A comparison, and the entries that it rests on: the baseline, the baseline again, the candidate.
pub struct Compared {
    /// The entries.
    pub group: Group,
    /// The verdict.
    pub comparison: Comparison,
}

/// The part of the work that gating is, for the progress bar.
const GATING_SHARE: f64 = 0.2;

impl Live<'_> {
    /// Gates both, and times them if both pass. The error is that of variants that cannot be compared here.
    pub fn run(&self, problem: &Problem, progress: &mut dyn Progress) -> Result<Compared> {
        same_device(self.baseline, self.candidate)?;
        let candidates = [self.baseline.clone(), self.candidate.clone()];
        let examination = Examination {
            shape: self.shape,
            cases: self.cases,
            candidates: &candidates,
            thresholds: self.thresholds,
            timed: None,
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
        let timing = &mut Part { whole: progress, start: GATING_SHARE, share: 1.0 - GATING_SHARE };
        self.judge(&mut group, &mut comparison, &what, timing)?;
        Ok(Compared { group, comparison })
    }

    fn unjudged(&self, group: &Group) -> Comparison {
        let side = |candidate: &Candidate| Side {
            name: candidate.name.clone(),
            implementation: candidate.implementation(),
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
            cache: self.manner.cache,
            inputs: 1,
        }
    }

    /// Times both, the baseline twice, and fills in what that says.
    fn judge(
        &self,
        group: &mut Group,
        comparison: &mut Comparison,
        what: &str,
        progress: &mut dyn Progress,
    ) -> Result<()> {
        let planted = self.planted.unwrap_or(0.0);
        // Both sides are timed alike: one that is not slowed down has a plant of nothing.
        let plant = |share: f64| self.planted.map(|_| Plant::slower_by(share.max(0.0))).transpose();
        let [baseline, candidate] = [0, 1].map(|place| &group.entries[place]);
        let lanes = [
            (self.baseline, baseline, plant(planted)?),
            (self.baseline, baseline, plant(planted)?),
            (self.candidate, candidate, plant(-planted)?),
        ];
        let mut field = Vec::new();
        for (candidate, entry, plant) in lanes {
            let nothing = || Error::invalid("compare", "there are no inputs", "give a shape");
            let inputs = Rotation::of(self.cases, entry).ok_or_else(nothing)?;
            comparison.inputs = inputs.len();
            field.push(contestant(candidate, inputs, self.manner.cache, plant)?);
        }
        comparison.timer = Some(field[0].0);
        let [a, b, c] = &mut field[..] else { unreachable!("three lanes were made") };
        let contestants: [&mut dyn Contestant; 3] = [&mut *a.1, &mut *b.1, &mut *c.1];
        let so_far = comparison.clone();
        let tick = &mut |share: f64, samples: &[Samples]| {
            progress.at(share, what);
            progress.unfinished(&unfinished(group, &so_far, samples));
        };
        let times = Contest {
            seed: self.seed,
            most_rounds: self.most_rounds,
            thresholds: self.thresholds,
            manner: self.manner,
            on_gpu: self.baseline.on_gpu(),
        }
        .judge(contestants, comparison, tick);
        if let Some(times) = times {
            note(group, comparison, &times);
        }
        self.note_plant(group);
        Ok(())
    }

    /// Says which entries were slowed down.
    fn note_plant(&self, group: &mut Group) {
        let Some(planted) = self.planted else { return };
        let delayed = if planted > 0.0 { 0..2 } else { 2..3 };
        for entry in group.entries.get_mut(delayed).into_iter().flatten() {
            let percent = (1e4 * planted.abs()).round() / 1e2;
            entry.note = Some(format!("PLANTED: {percent} % more runs were made than counted, to test the comparison"));
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
