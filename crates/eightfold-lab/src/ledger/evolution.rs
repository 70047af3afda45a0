//! A ledger beside a record: what was predicted, what was measured, and whether the one was right about the other.

use super::{Ledger, Optimisation, Prediction, StageEntry, stages};
use crate::gates::{Gate, Outcome};
use crate::kernel::Kernel;
use crate::provenance::Provenance;
use crate::record::{Entry, Group, Record};
use crate::verdict::SpeedUp;
use serde::Serialize;
use std::fmt;
use std::path::{Path, PathBuf};

/// A claim to be bound by a part of the machine stands if that part alone needs this share of the measured time.
const SHARE_THAT_BOUNDS: f64 = 0.5;

/// Every stage of a ladder, predicted and, where there is a record, measured.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Evolution {
    /// The kernel.
    pub kernel: String,
    /// The machine that the floors are computed for.
    pub predicted_for: String,
    /// Where the measurements come from.
    pub measured: Option<Measured>,
    /// The stages, in order.
    pub stages: Vec<Row>,
    /// What is measured for itself.
    pub optimisations: Vec<Optimisation>,
}

/// Where measurements come from.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Measured {
    /// The record.
    pub record: String,
    /// The machine that was measured.
    pub machine: String,
    /// Whether floors apply to it.
    pub machine_matches: bool,
    /// Why the run ended before its end, if it did.
    pub ended_early: Option<String>,
}

/// One stage.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Its name.
    pub stage: String,
    /// What changed since the stage before.
    pub what: String,
    /// The shape that was predicted and measured.
    pub shape: String,
    /// What it should bring; none for the first.
    pub prediction: Option<Prediction>,
    /// Its median time.
    pub p50_us: Option<f64>,
    /// The measured speed-up over the stage before; none unless both have a time.
    pub gain: Option<Gain>,
    /// The ratio of medians, first stage to this one.
    pub over_baseline: Option<f64>,
    /// What the record's performance gate says.
    pub verdict: Option<StageVerdict>,
    /// How prediction and measurement agree.
    pub judgement: Option<Judgement>,
    /// What could go wrong.
    pub risk: String,
    /// What to do then.
    pub fallback: String,
    /// The least time that the arithmetic allows.
    pub floor: Option<Floor>,
}

/// A measured speed-up.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Gain {
    /// The speed-up: median over rounds, or the ratio of medians in records that do not keep rounds.
    pub ratio: f64,
    /// The 95 % interval over rounds.
    pub interval: Option<(f64, f64)>,
}

/// What the record's performance gate says about a stage.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StageVerdict {
    /// Its decision.
    pub outcome: Outcome,
    /// Why.
    pub summary: String,
}

/// How a prediction fared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Judgement {
    /// The measured interval lies within the predicted range.
    Right,
    /// It lies below: more was promised.
    TooHigh,
    /// It lies above: less was promised.
    TooLow,
    /// An end of the range lies within it.
    Undecided,
}

impl fmt::Display for Judgement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Judgement::Right => "right",
            Judgement::TooHigh => "too high",
            Judgement::TooLow => "too low",
            Judgement::Undecided => "undecided",
        })
    }
}

/// The least time that a stage can take on the ledger's machine, and what was measured of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Floor {
    /// The shape that was counted.
    pub shape: String,
    /// What each part of the machine needs at least, longest first.
    pub terms: Vec<FloorTerm>,
    /// The median time of the stage at that shape, on that machine.
    pub p50_us: Option<f64>,
    /// The longest term over the measured time.
    pub share: Option<f64>,
    /// The part that is claimed to bound the stage.
    pub bound: Option<String>,
    /// What the measured time says about the claim, or about the arithmetic.
    pub standing: Option<Standing>,
}

/// What one part of the machine needs at least.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FloorTerm {
    /// The part.
    pub uses: String,
    /// The time.
    pub time_us: f64,
    /// How it is counted.
    pub arithmetic: String,
}

/// What a measured time says about a floor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// The claimed part alone needs at least half of the time.
    Stands,
    /// It needs less than half: something else bounds the stage, and be it latency.
    Refuted,
    /// The stage took less than the least time: the arithmetic, the rates or the measurement are wrong.
    Impossible,
}

impl Judgement {
    /// Compares a measured speed-up with a predicted range.
    pub fn of(prediction: &Prediction, gain: &Gain) -> Self {
        let (lower, upper) = gain.interval.unwrap_or((gain.ratio, gain.ratio));
        if upper < prediction.least {
            Judgement::TooHigh
        } else if lower > prediction.most {
            Judgement::TooLow
        } else if lower >= prediction.least && upper <= prediction.most {
            Judgement::Right
        } else {
            Judgement::Undecided
        }
    }
}

impl Evolution {
    /// The ledger of a kernel, beside a record of its ladder if there is one. The path is how the record is named.
    pub fn new(kernel: Kernel, record: Option<(&Path, &Record)>) -> Self {
        Evolution::of(kernel, &Ledger::of(kernel), record)
    }

    fn of(kernel: Kernel, ledger: &Ledger, record: Option<(&Path, &Record)>) -> Self {
        let measured = record.map(|(path, record)| Measured {
            record: path.display().to_string(),
            machine: machine(&record.provenance),
            machine_matches: ledger.applies_to(kernel, &record.provenance),
            ended_early: record.ended_early.clone(),
        });
        let applies = measured.as_ref().is_some_and(|measured| measured.machine_matches);
        let record = record.map(|(_, record)| record);
        let mut before: Option<&str> = None;
        let mut rows = Vec::new();
        for (entry, (stage, what)) in ledger.stages.iter().zip(stages(kernel)) {
            let shape = entry.shape.as_str();
            let seen = record.and_then(|record| Seen::of(record, shape, stage));
            let gain = seen.as_ref().zip(before).and_then(|(seen, before)| seen.gain_over(before));
            rows.push(Row {
                stage: stage.into(),
                what: what.into(),
                shape: shape.into(),
                prediction: entry.prediction.clone(),
                p50_us: seen.as_ref().and_then(|seen| seen.entry.p50_us()),
                gain,
                over_baseline: seen.as_ref().and_then(Seen::over_baseline),
                verdict: seen.as_ref().and_then(Seen::verdict),
                judgement: entry
                    .prediction
                    .as_ref()
                    .zip(gain)
                    .map(|(prediction, gain)| Judgement::of(prediction, &gain)),
                risk: entry.risk.clone(),
                fallback: entry.fallback.clone(),
                floor: floor(ledger, entry, record.filter(|_| applies)),
            });
            before = Some(stage);
        }
        let threads = ledger.threads.map_or(String::new(), |threads| format!(", {threads} threads"));
        Evolution {
            kernel: kernel.to_string(),
            predicted_for: format!("{}{threads}", ledger.machine),
            measured,
            stages: rows,
            optimisations: ledger.optimisations.iter().cloned().map(Optimisation::untested).collect(),
        }
    }

    /// The same with what these records of comparisons, newest first, say about the optimisations.
    pub fn with_comparisons(mut self, records: &[(PathBuf, Record)]) -> Self {
        self.optimisations = self.optimisations.into_iter().map(|one| one.tested_by(records)).collect();
        self
    }
}

impl Ledger {
    /// Whether the rates are those of the machine that a record comes from.
    pub fn applies_to(&self, kernel: Kernel, provenance: &Provenance) -> bool {
        let name = match kernel.on_gpu() {
            false => Some(provenance.machine.cpu.as_str()),
            true => provenance.gpu.as_ref().map(|gpu| gpu.name.as_str()),
        };
        name == Some(&self.machine) && self.threads.is_none_or(|threads| threads == provenance.threads)
    }

    /// What each part of the machine needs at least for a stage, longest first.
    pub(crate) fn floor_terms(&self, entry: &StageEntry) -> Vec<FloorTerm> {
        let terms = entry.arithmetic.iter().filter_map(|term| {
            let rate = self.rate(&term.uses)?;
            let amount = term.factors.iter().map(f64::to_string).collect::<Vec<_>>().join(" × ");
            let per_second: f64 = rate.factors.iter().product();
            let arithmetic =
                format!("{amount} {} ({}) at {per_second:.3e} a second ({})", rate.unit, term.what, rate.from);
            Some(FloorTerm { uses: term.uses.clone(), time_us: self.time_us(term)?, arithmetic })
        });
        let mut terms: Vec<FloorTerm> = terms.collect();
        terms.sort_by(|a, b| b.time_us.total_cmp(&a.time_us));
        terms
    }
}

/// The machine that matters to a record, in words: a job notes the GPU where it used it.
pub(super) fn machine(provenance: &Provenance) -> String {
    match &provenance.gpu {
        Some(gpu) => gpu.name.clone(),
        None => format!("{}, {} threads", provenance.machine.cpu, provenance.threads),
    }
}

/// A stage as a record has it at one shape.
struct Seen<'a> {
    group: &'a Group,
    entry: &'a Entry,
}

impl<'a> Seen<'a> {
    fn of(record: &'a Record, shape: &str, stage: &str) -> Option<Self> {
        let group = record.groups.iter().find(|group| group.shape == shape && !group.problem.causal && !group.sweep)?;
        Some(Seen { group, entry: named(group, stage)? })
    }

    fn gain_over(&self, before: &str) -> Option<Gain> {
        let (before, own) = (named(self.group, before)?.timing.as_ref()?, self.entry.timing.as_ref()?);
        if let Some(SpeedUp { ratio, lower, upper, .. }) = SpeedUp::between(&before.samples, &own.samples) {
            return Some(Gain { ratio, interval: Some((lower, upper)) });
        }
        let ratio = before.summary.p50_us / own.summary.p50_us;
        ratio.is_finite().then_some(Gain { ratio, interval: None })
    }

    fn over_baseline(&self) -> Option<f64> {
        let baseline = self.group.entries.iter().find(|entry| !entry.peer)?;
        Some(baseline.p50_us()? / self.entry.p50_us()?)
    }

    fn verdict(&self) -> Option<StageVerdict> {
        // Without a time the reason lies with an earlier gate, and that one is the verdict.
        let performance = self.entry.gate(Gate::Performance);
        let gate = performance.or_else(|| self.entry.gates.iter().find(|gate| gate.outcome != Outcome::Pass))?;
        Some(StageVerdict { outcome: gate.outcome, summary: gate.summary.clone() })
    }
}

fn named<'a>(group: &'a Group, stage: &str) -> Option<&'a Entry> {
    group.entries.iter().find(|entry| !entry.peer && entry.name == stage)
}

fn floor(ledger: &Ledger, entry: &StageEntry, record: Option<&Record>) -> Option<Floor> {
    let shape = entry.floor_shape.as_ref()?;
    let terms = ledger.floor_terms(entry);
    let longest_us = terms.first()?.time_us;
    let p50_us = record.and_then(|record| Seen::of(record, shape, &entry.name)).and_then(|seen| seen.entry.p50_us());
    let share = p50_us.map(|p50_us| longest_us / p50_us);
    let standing = share.and_then(|share| match share {
        share if share > 1.0 => Some(Standing::Impossible),
        _ if entry.bound.is_none() => None,
        share if share >= SHARE_THAT_BOUNDS => Some(Standing::Stands),
        _ => Some(Standing::Refuted),
    });
    Some(Floor { shape: shape.clone(), terms, p50_us, share, bound: entry.bound.clone(), standing })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::{Origin, load};

    fn prediction(least: f64, most: f64) -> Prediction {
        let (moves, because) = (String::new(), String::new());
        Prediction { least, most, origin: Origin::Plan, moves, because }
    }

    #[test]
    fn a_prediction_is_judged_by_the_whole_interval() {
        let judge = |lower, upper| {
            let gain = Gain { ratio: (lower + upper) / 2.0, interval: Some((lower, upper)) };
            Judgement::of(&prediction(1.1, 1.2), &gain)
        };
        assert_eq!(judge(1.12, 1.18), Judgement::Right);
        assert_eq!(judge(1.1, 1.2), Judgement::Right);
        assert_eq!(judge(1.0, 1.09), Judgement::TooHigh);
        assert_eq!(judge(1.21, 1.4), Judgement::TooLow);
        assert_eq!(judge(1.05, 1.15), Judgement::Undecided);
        assert_eq!(judge(1.0, 1.4), Judgement::Undecided);
        let point = |ratio| Judgement::of(&prediction(1.1, 1.2), &Gain { ratio, interval: None });
        assert_eq!([1.0, 1.15, 1.3].map(point), [Judgement::TooHigh, Judgement::Right, Judgement::TooLow]);
    }

    fn committed(name: &str) -> (Record, Kernel) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/records").join(name);
        let (_, record, kernel) = load(&path).unwrap();
        (record, kernel)
    }

    fn row<'a>(evolution: &'a Evolution, stage: &str) -> &'a Row {
        evolution.stages.iter().find(|row| row.stage == stage).unwrap()
    }

    #[test]
    fn measurements_and_verdicts_are_the_records() {
        let (record, kernel) = committed("ladder/20261115T090438Z-ladder");
        let evolution = Evolution::new(kernel, Some((Path::new("r"), &record)));
        for row in &evolution.stages {
            let group = record.groups.iter().find(|group| group.shape == row.shape).unwrap();
            let entry = named(group, &row.stage).unwrap();
            assert_eq!(row.p50_us, entry.p50_us());
            let gate = entry.gate(Gate::Performance);
            assert_eq!(row.verdict.as_ref().map(|verdict| &verdict.summary), gate.map(|gate| &gate.summary));
            if let Some(gain) = row.gain {
                let (lower, upper) = gain.interval.unwrap();
                let said = format!("{:.3}× ", gain.ratio);
                let summary = &row.verdict.as_ref().unwrap().summary;
                assert!(summary.contains(&said) && summary.contains(&format!("{lower:.3} to {upper:.3}")), "{summary}");
            }
        }
        assert_eq!(row(&evolution, "async-copy").judgement, Some(Judgement::TooHigh));
        assert_eq!(row(&evolution, "mma-pv").judgement, Some(Judgement::TooLow));
        assert_eq!(row(&evolution, "baseline").judgement, None);
    }

    #[test]
    fn a_record_without_rounds_is_judged_by_its_medians() {
        let (record, kernel) = committed("cpu/20261115T064004Z-ladder");
        let evolution = Evolution::new(kernel, Some((Path::new("r"), &record)));
        let avx2 = row(&evolution, "avx2");
        assert_eq!(avx2.gain.unwrap().interval, None);
        assert_eq!(avx2.verdict, None);
        assert_eq!(row(&evolution, "avx512").judgement, Some(Judgement::Right));
        assert_eq!(avx2.floor.as_ref().unwrap().standing, Some(Standing::Stands));
    }

    #[test]
    fn no_committed_time_is_below_its_floor_and_no_claim_is_refuted() {
        for name in ["ladder/20261115T090438Z-ladder", "cpu/20261115T064004Z-ladder"] {
            let (record, kernel) = committed(name);
            let stages = Evolution::new(kernel, Some((Path::new("r"), &record))).stages;
            // A stage may be newer than the record.
            let measured: Vec<_> = stages.into_iter().filter(|row| row.p50_us.is_some()).collect();
            assert!(measured.len() >= 9, "{name}: {} stages were measured", measured.len());
            for row in measured {
                let floor = row.floor.unwrap();
                assert!(floor.share.unwrap() > 0.0, "{}", row.stage);
                assert!(!matches!(floor.standing, Some(Standing::Impossible | Standing::Refuted)), "{}", row.stage);
            }
        }
    }

    #[test]
    fn a_claim_stands_or_falls_with_the_measured_time() {
        let (mut record, kernel) = committed("cpu/20261115T064004Z-ladder");
        let mut standing = |factor: f64| {
            for entry in record.groups.iter_mut().flat_map(|group| &mut group.entries) {
                entry.timing.as_mut().unwrap().summary.p50_us *= factor;
            }
            let evolution = Evolution::new(kernel, Some((Path::new("r"), &record)));
            ["avx2", "queue"].map(|stage| row(&evolution, stage).floor.clone().unwrap().standing)
        };
        assert_eq!(standing(10.0), [Some(Standing::Refuted), None]);
        assert_eq!(standing(0.01), [Some(Standing::Impossible); 2]);
    }

    #[test]
    fn another_machine_is_not_held_against_these_floors() {
        let (mut record, kernel) = committed("cpu/20261115T064004Z-ladder");
        record.provenance.threads = 16;
        let evolution = Evolution::new(kernel, Some((Path::new("r"), &record)));
        assert!(!evolution.measured.as_ref().unwrap().machine_matches);
        let avx512 = row(&evolution, "avx512");
        assert!(avx512.judgement.is_some());
        assert_eq!(avx512.floor.as_ref().unwrap().share, None);
    }

    #[test]
    fn a_stage_without_a_time_has_no_gain_and_neither_has_the_next() {
        let (mut record, kernel) = committed("cpu/20261115T064004Z-ladder");
        for group in &mut record.groups {
            group.entries.iter_mut().find(|entry| entry.name == "avx2").unwrap().timing = None;
        }
        let evolution = Evolution::new(kernel, Some((Path::new("r"), &record)));
        for stage in ["avx2", "avx512"] {
            assert_eq!((row(&evolution, stage).gain, row(&evolution, stage).judgement), (None, None));
        }
        assert!(row(&evolution, "int16-avx2").gain.is_some());
    }

    #[test]
    fn without_a_record_there_are_predictions_alone() {
        let evolution = Evolution::new(Kernel::LADDER, None);
        assert!(evolution.measured.is_none());
        assert!(evolution.stages.iter().all(|row| row.p50_us.is_none() && row.judgement.is_none()));
        assert!(evolution.stages.iter().skip(1).all(|row| row.prediction.is_some()));
    }
}
