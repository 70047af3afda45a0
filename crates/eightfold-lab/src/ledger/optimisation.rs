//! Optimisations that are knobs: each is measured for itself, by a comparison of two variants that differ in it.

use super::evolution::machine;
use super::{Gain, Judgement, Prediction, StageVerdict};
use crate::compare::Comparison;
use crate::gates::Outcome;
use crate::kernel::{recorded, suited};
use crate::measure::{Cache, timed_output};
use crate::record::Record;
use crate::shapes;
use eightfold::{Mask, Problem, Result, Variant};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What is known about an optimisation without measuring it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OptimisationEntry {
    /// What a person calls it.
    pub name: String,
    /// The shape that it is measured on.
    pub shape: String,
    /// Whether under the causal mask.
    #[serde(default)]
    pub causal: bool,
    /// The variant that has it not.
    pub without: String,
    /// The variant that has it.
    pub with: String,
    /// What it should bring.
    pub prediction: Prediction,
    /// What was learned where it did not.
    pub lesson: Option<String>,
    /// Whether it is history: the knob is gone, and variants are as the record has them.
    #[serde(default)]
    pub retired: bool,
}

/// An optimisation, predicted and, where a record compares it, measured.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Optimisation {
    /// What was known before.
    #[serde(flatten)]
    pub entry: OptimisationEntry,
    /// What the comparison gave.
    pub measured: Option<Tested>,
    /// How prediction and measurement agree; none where nothing sound was measured.
    pub judgement: Option<Judgement>,
}

/// What a comparison gave.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Tested {
    /// The record.
    pub record: String,
    /// The machine that was measured.
    pub machine: String,
    /// The median time without it.
    pub without_us: Option<f64>,
    /// The median time with it.
    pub with_us: Option<f64>,
    /// The speed-up; none where nothing was timed.
    pub gain: Option<Gain>,
    /// What the comparison decided.
    pub verdict: StageVerdict,
}

impl OptimisationEntry {
    /// The problem that it is measured on.
    pub fn problem(&self) -> Result<Problem> {
        Ok(Problem::new(shapes::parse(&self.shape)?.shape)?.with_mask(Mask::causal_if(self.causal)))
    }

    /// What `without` or `with` stands for.
    pub(super) fn variant(&self, text: &str) -> Result<Variant> {
        let problem = self.problem()?;
        suited(text, problem.shape().head_dim, problem.mask())
    }

    /// Whether a comparison measures it as this ledger would: the same variants, however they are written, on the same
    /// problem, taking turns, nothing planted, caches as the runs before left them.
    fn is_tested_by(&self, comparison: &Comparison) -> Result<bool> {
        let Comparison { problem, baseline, candidate, seed, planted, cache, .. } = comparison;
        if seed.is_none() || planted.is_some() || *cache != Cache::Hot {
            return Ok(false);
        }
        if self.retired {
            return Ok(baseline.implementation == self.without && candidate.implementation == self.with);
        }
        let [before, after] = [self.variant(&self.without)?, self.variant(&self.with)?];
        let format = timed_output(before.on_device().is_some());
        Ok(problem.to_problem()? == self.problem()?.with_output_format(format)
            && recorded(&baseline.implementation)? == before
            && recorded(&candidate.implementation)? == after)
    }
}

impl Optimisation {
    /// One that no record has measured.
    pub(super) fn untested(entry: OptimisationEntry) -> Self {
        Optimisation { entry, measured: None, judgement: None }
    }

    /// The same with what the first of these records that compares it says.
    pub(super) fn tested_by(self, records: &[(PathBuf, Record)]) -> Self {
        // A variant that this version does not know is no measurement of one that it does.
        let fits = |comparison: &&Comparison| self.entry.is_tested_by(comparison).unwrap_or(false);
        let found = records.iter().find_map(|(path, record)| {
            let comparison = record.comparisons.iter().rev().find(fits)?;
            Some((path, record, comparison))
        });
        let Some((path, record, comparison)) = found else { return self };
        let Comparison { baseline, candidate, speed_up, outcome, summary, .. } = comparison;
        let gain = speed_up.map(|found| Gain { ratio: found.ratio, interval: Some((found.lower, found.upper)) });
        let sound = gain.filter(|_| *outcome != Outcome::Invalid);
        let measured = Tested {
            record: path.display().to_string(),
            machine: machine(&record.provenance),
            without_us: baseline.p50_us,
            with_us: candidate.p50_us,
            gain,
            verdict: StageVerdict { outcome: *outcome, summary: summary.clone() },
        };
        let judgement = sound.map(|gain| Judgement::of(&self.entry.prediction, &gain));
        Optimisation { measured: Some(measured), judgement, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::Side;
    use crate::kernel::Kernel;
    use crate::ledger::Ledger;
    use crate::measure::Timer;
    use crate::provenance::Provenance;
    use crate::record::Kind;
    use crate::verdict::SpeedUp;

    /// The entry of this name.
    fn named(name: &str) -> OptimisationEntry {
        Ledger::of(Kernel::HOPPER).optimisations.into_iter().find(|entry| entry.name == name).unwrap()
    }

    /// A comparison that measures an optimisation, with variants as records have them: every knob.
    fn comparison(entry: &OptimisationEntry, ratio: f64) -> Comparison {
        let side = |text: &String, us| Side {
            name: text.clone(),
            implementation: entry.variant(text).unwrap().to_string(),
            p50_us: Some(us),
        };
        Comparison {
            shape: entry.shape.clone(),
            problem: (&entry.problem().unwrap().with_output_format(timed_output(true))).into(),
            baseline: side(&entry.without, 100.0 * ratio),
            candidate: side(&entry.with, 100.0),
            timer: Some(Timer::HostClock),
            required_gain: 0.02,
            outcome: Outcome::Pass,
            summary: "as it was".into(),
            speed_up: Some(SpeedUp { ratio, lower: ratio - 0.01, upper: ratio + 0.01, rounds: 20 }),
            itself: None,
            seed: Some(8),
            planted: None,
            conditions: None,
            cache: Cache::Hot,
            inputs: 3,
        }
    }

    fn record(name: &str, comparisons: Vec<Comparison>) -> (PathBuf, Record) {
        (name.into(), Record { comparisons, ..Record::new(Kind::Compare, Provenance::capture(1)) })
    }

    #[test]
    fn the_newest_comparison_of_the_same_variants_is_taken_however_they_are_written() {
        // `hopper:exact-exp` stands for knobs that depend on the head dim.
        let entry = named("scores in f16");
        let other = comparison(&named("long tiles"), 3.0);
        let records = [
            record("newest", vec![other]),
            record("newer", vec![comparison(&entry, 1.3), comparison(&entry, 1.1)]),
            record("old", vec![comparison(&entry, 1.4)]),
        ];
        let found = Optimisation::untested(entry.clone()).tested_by(&records);
        let measured = found.measured.unwrap();
        assert_eq!((measured.record.as_str(), measured.with_us), ("newer", Some(100.0)));
        assert_eq!((measured.gain.unwrap().ratio, found.judgement), (1.1, Some(Judgement::Right)));
        let none = Optimisation::untested(entry).tested_by(&records[..1]);
        assert_eq!((none.measured, none.judgement), (None, None));
    }

    #[test]
    fn a_comparison_of_something_else_is_no_measurement() {
        let entry = named("all keys at once");
        let sound = comparison(&entry, 1.2);
        assert!(entry.is_tested_by(&sound).unwrap());
        let changes: [fn(&mut Comparison); 8] = [
            |one| std::mem::swap(&mut one.baseline, &mut one.candidate),
            |one| one.candidate.implementation = one.candidate.implementation.replace("flight=4", "flight=2"),
            |one| one.candidate.implementation = "hopper:colour=blue".into(),
            |one| one.problem.key_len = 511,
            |one| one.problem.causal = true,
            |one| one.problem.output_format = "f32".into(),
            |one| one.planted = Some(0.05),
            |one| (one.seed, one.cache) = (None, Cache::Cold),
        ];
        for (index, change) in changes.into_iter().enumerate() {
            let mut changed = sound.clone();
            change(&mut changed);
            assert_ne!(changed, sound);
            let found = Optimisation::untested(entry.clone()).tested_by(&[record("r", vec![changed])]);
            assert_eq!(found.measured, None, "change {index}");
        }
    }

    #[test]
    fn an_unsound_run_and_a_failed_gate_are_shown_and_judge_no_prediction() {
        let entry = named("deeper ring");
        let invalid = Comparison { outcome: Outcome::Invalid, ..comparison(&entry, 1.0) };
        let failed = Comparison { outcome: Outcome::Fail, speed_up: None, ..comparison(&entry, 1.0) };
        for (comparison, timed) in [(invalid, true), (failed, false)] {
            let outcome = comparison.outcome;
            let found = Optimisation::untested(entry.clone()).tested_by(&[record("r", vec![comparison])]);
            let measured = found.measured.unwrap();
            assert_eq!((measured.verdict.outcome, measured.gain.is_some(), found.judgement), (outcome, timed, None));
        }
    }
}
