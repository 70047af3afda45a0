//! Three contestants, of which two are the same, and what their times say.

use super::{Comparison, Judged, judge};
use crate::bound::{Bound, Peaks};
use crate::gates::{Gate, GateReport, Outcome, Thresholds};
use crate::measure::{Cache, Contestant, Manner, Method, Race, Raced, Samples};
use crate::record::{Entry, Group, ProblemRecord, Timing};

/// A comparison of slow variants has fewer rounds, so that it ends in about this time.
const MOST_SECONDS: f64 = 60.0;

/// How the contest is held.
pub(super) struct Contest<'a> {
    /// The seed of the order of the turns.
    pub seed: u64,
    /// Rounds at the very most.
    pub most_rounds: usize,
    /// The timing policy.
    pub thresholds: &'a Thresholds,
    /// How times are taken.
    pub manner: Manner,
    /// Whether it is held on a GPU.
    pub on_gpu: bool,
}

impl Contest<'_> {
    /// Times the baseline, the baseline again and the candidate until it is decided, and fills in the verdict. Their times,
    /// or none if a contestant failed.
    pub fn judge(
        &self,
        mut contestants: [&mut dyn Contestant; 3],
        comparison: &mut Comparison,
        tick: &mut dyn FnMut(f64, &[Samples]),
    ) -> Option<Vec<Samples>> {
        let Contest { seed, most_rounds, thresholds, manner, on_gpu } = *self;
        let policy = if on_gpu { &thresholds.cuda_timing } else { &thresholds.timing };
        let method = Method { policy, manner, on_gpu };
        let race = Race { method, seed, most_rounds, most_seconds: MOST_SECONDS };
        let (name, gain) = (comparison.baseline.name.clone(), comparison.required_gain);
        let look = |samples: &[Samples]| judge(&name, [&samples[0], &samples[1], &samples[2]], gain);
        let Raced { samples, conditions } = match race.run(&mut contestants, &mut |samples| look(samples).settled, tick)
        {
            Ok(raced) => raced,
            Err(error) => {
                comparison.outcome = Outcome::Invalid;
                comparison.summary = error.to_string();
                return None;
            }
        };
        let Judged { outcome, summary, speed_up, itself, .. } = look(&samples);
        let unsound = conditions.differed().or_else(|| impossible(&comparison.problem, &samples, manner.cache, on_gpu));
        (comparison.outcome, comparison.summary) = unsound.map_or((outcome, summary), |why| (Outcome::Invalid, why));
        comparison.speed_up = speed_up;
        comparison.itself = itself;
        comparison.conditions = Some(conditions);
        Some(samples)
    }
}

/// Why a time cannot be, if one is below what the device can do.
pub(crate) fn impossible(problem: &ProblemRecord, samples: &[Samples], cache: Cache, on_gpu: bool) -> Option<String> {
    let bound = Bound::of(problem, &Peaks::here(on_gpu)?, cache)?;
    let p50_us = samples.iter().filter_map(Samples::summary).map(|summary| summary.p50_us).reduce(f64::min)?;
    bound.impossible(p50_us)
}

/// The entries of baseline and candidate with the times so far, the baseline's second turns as an entry of their own.
pub(super) fn unfinished(group: &Group, comparison: &Comparison, samples: &[Samples]) -> Group {
    let mut group = group.clone();
    let Some(timer) = comparison.timer else { return group };
    let again = Entry { name: format!("{} again", comparison.baseline.name), ..group.entries[0].clone() };
    group.entries.insert(1, again);
    for (entry, samples) in group.entries.iter_mut().zip(samples) {
        let (cache, inputs) = (comparison.cache, comparison.inputs);
        entry.timing = Timing::new(timer, samples.clone()).map(|timing| Timing { cache, inputs, ..timing });
    }
    group
}

/// Puts the times and the verdict into the entries.
pub(super) fn note(group: &mut Group, comparison: &mut Comparison, samples: &[Samples]) {
    *group = unfinished(group, comparison, samples);
    let [baseline, _, candidate] = &mut group.entries[..] else { return };
    comparison.baseline.p50_us = baseline.p50_us();
    comparison.candidate.p50_us = candidate.p50_us();
    candidate.gates.push(GateReport {
        gate: Gate::Performance,
        outcome: comparison.outcome,
        summary: comparison.summary.clone(),
        checks: Vec::new(),
    });
}
