//! One variant through all gates in a row: resources, correctness, performance, profile. Each is hard: the first that it does
//! not pass ends the passage.

use crate::examine::{Candidate, Examination, Examined};
use crate::gates::{
    Case, Gate, GateReport, Outcome, PerformancePolicy, Thoroughness, Thresholds, prepare_all, quantizer,
    standard_cases, timing_cases,
};
use crate::kernel::Kernel;
use crate::ledger::Ledger;
use crate::measure::{Manner, Samples};
use crate::peers::Torch;
use crate::progress::{Part, Progress};
use crate::record::{Entry, Group};
use crate::verdict::{self, SpeedUp};
use eightfold::{Error, OutputFormat, Problem, Result, Variant};

/// A variant, and what is asked of it.
pub struct Passage<'a> {
    /// What a person calls the shape.
    pub shape: &'a str,
    /// The problem as it is timed.
    pub problem: Problem,
    /// The variant.
    pub candidate: &'a Candidate,
    /// What it must be faster than, and by how much: 0.1 asks for a speed-up of 1.1.
    pub over: Option<(&'a Candidate, f64)>,
    /// What else it must be faster than.
    pub required: &'a [Requirement],
    /// The limits.
    pub thresholds: &'a Thresholds,
    /// How it is timed.
    pub manner: Manner,
    /// The gate that it ends with at the latest.
    pub last: Gate,
}

/// So many times as fast as a peer.
#[derive(Debug, Clone, PartialEq)]
pub struct Requirement {
    /// The speed-up.
    pub factor: f64,
    /// The peer.
    pub peer: String,
}

impl Requirement {
    /// A factor such as `15x` or `1.5`, and a peer.
    pub fn parse(factor: &str, peer: &str) -> Result<Self> {
        let number = factor.trim().trim_end_matches(['x', 'X', '×']);
        let factor =
            number.parse().ok().filter(|factor: &f64| factor.is_finite() && *factor > 0.0).ok_or_else(|| {
                Error::invalid(
                    "require",
                    format!("{factor:?} is no factor"),
                    "give one such as 15x, and a peer behind it",
                )
            })?;
        Ok(Requirement { factor, peer: peer.into() })
    }
}

/// What came of it.
pub struct Passed {
    /// What it was measured beside, the variant with the report of every gate that it met, and peers.
    pub group: Group,
    /// Why nothing more can be done in this process: the device's context is gone.
    pub lost: Option<Error>,
}

/// What a stage is held against, and what it must gain over that: what it extends by its ledger, or the stage before. None for
/// a first stage, for accuracies, and for a variant that is no stage.
pub fn before(variant: &Variant, problem: &Problem, policy: &PerformancePolicy) -> Option<(Candidate, f64)> {
    let kernel: Kernel = variant.kernel().parse().ok().filter(|kernel: &Kernel| kernel.climbs())?;
    let stages = kernel.stages(problem.shape().head_dim, problem.mask());
    let place = stages.iter().position(|stage| stage.variant == *variant)?;
    let name = &stages[place].name;
    let own = format!("{kernel}:{name}");
    let extended = Ledger::of(kernel).optimisations.into_iter().find(|entry| !entry.retired && entry.with == own);
    let before = match extended {
        Some(entry) => stages.iter().find(|stage| format!("{kernel}:{}", stage.name) == entry.without)?,
        None => stages.get(place.checked_sub(1)?)?,
    };
    let before = Candidate { name: format!("{kernel}:{}", before.name), ..before.clone() };
    Some((before, policy.required_of(variant.kernel(), name)))
}

impl Passage<'_> {
    /// The gates that are met, in order.
    pub fn gates(&self) -> impl Iterator<Item = Gate> {
        let on_gpu = self.candidate.on_gpu();
        let last = self.last;
        [Gate::Resource, Gate::Correctness, Gate::Performance, Gate::Profile]
            .into_iter()
            .filter(move |gate| *gate <= last && (on_gpu || !matches!(gate, Gate::Resource | Gate::Profile)))
    }

    /// The first gate that the variant did not pass or did not reach.
    pub fn stopped_by(&self, group: &Group) -> Option<Gate> {
        let entry = self.entry(group);
        self.gates().find(|gate| entry.and_then(|entry| entry.gate(*gate)).is_none_or(|report| !holds(report)))
    }

    /// The variant's entry.
    pub fn entry<'g>(&self, group: &'g Group) -> Option<&'g Entry> {
        group.entries.iter().find(|entry| !entry.peer && entry.name == self.candidate.name)
    }

    /// Takes the variant as far as it comes. `profile` profiles it, and gives the group that the profiler gives.
    pub fn run(
        &self,
        torch: Option<&mut Torch>,
        profile: &mut dyn FnMut() -> Result<Group>,
        progress: &mut dyn Progress,
    ) -> Result<Passed> {
        let Passage { shape, problem, candidate, thresholds, .. } = *self;
        progress.at(0.0, &format!("{shape}: preparing inputs and references"));
        let both = [self.over.map(|(over, _)| over.clone()), Some(candidate.clone())];
        let both: Vec<Candidate> = both.into_iter().flatten().collect();
        let reference = &thresholds.correctness.reference;
        let written = problem.with_output_format(OutputFormat::F32);
        let cases = standard_cases(&written, Thoroughness::Full);
        let cases = prepare_all(&cases, &quantizer(&problem, &both), reference)?;
        let examine = |candidates: &[Candidate], cases: &[Case], timed, torch: Option<&mut Torch>, part: &mut Part| {
            let (ladder, sweep, max_gate_seconds) = (false, false, f64::INFINITY);
            let examination =
                Examination { shape, cases, candidates, thresholds, timed, ladder, sweep, max_gate_seconds };
            examination.run(&problem, torch, part)
        };
        let part = &mut Part { whole: progress, start: 0.0, share: 0.5 };
        let Examined { mut group, lost } = examine(std::slice::from_ref(candidate), &cases, None, None, part);
        let reaches =
            |gate, group: &Group| self.gates().take_while(|one| *one < gate).all(|one| passes(self, group, one));
        if self.last < Gate::Performance || lost.is_some() || !reaches(Gate::Performance, &group) {
            return Ok(Passed { group, lost });
        }
        let cases = timing_cases(&problem, &both, reference)?;
        let part = &mut Part { whole: progress, start: 0.5, share: 0.4 };
        let Examined { group: timed, lost } = examine(&both, &cases, Some(self.manner), torch, part);
        let checked = std::mem::replace(&mut group, timed).entries.swap_remove(0);
        let reports = self.performance(&group);
        let Some(entry) = group.entries.iter_mut().find(|entry| !entry.peer && entry.name == candidate.name) else {
            return Ok(Passed { group, lost });
        };
        if entry.correctness().is_some_and(|report| report.outcome == Outcome::Pass) {
            // What was found on all kinds of inputs says more than what was found on those that were timed.
            entry.gates = checked.gates;
            entry.gates.push(together(reports));
        }
        entry.cases.splice(0..0, checked.cases);
        if lost.is_some() || self.last < Gate::Profile || !reaches(Gate::Profile, &group) || !candidate.on_gpu() {
            return Ok(Passed { group, lost });
        }
        progress.at(0.9, &format!("{shape}: profiling {}", candidate.name));
        let profiled = profile();
        let entry = group.entries.iter_mut().find(|entry| !entry.peer && entry.name == candidate.name);
        if let Some(entry) = entry {
            match profiled.map(|group| group.entries.into_iter().next()) {
                Ok(Some(found)) => {
                    entry.gates.extend(found.gates.into_iter().filter(|report| report.gate == Gate::Profile));
                    (entry.profile, entry.note) = (found.profile, found.note);
                }
                Ok(None) => {}
                Err(error) => entry.gates.push(unavailable(Gate::Profile, error.to_string())),
            }
        }
        Ok(Passed { group, lost })
    }

    /// What the performance gate says about each that the variant must be faster than.
    fn performance(&self, group: &Group) -> Vec<GateReport> {
        let Some(own) = self.entry(group) else { return Vec::new() };
        let refused = own.gates.iter().filter(|report| report.gate == Gate::Performance).cloned();
        let mut reports: Vec<GateReport> = refused.collect();
        if let Some((over, gain)) = self.over {
            let before = group.entries.iter().find(|entry| !entry.peer && entry.name == over.name);
            let samples = before.and_then(|entry| entry.timing.as_ref()).map(|timing| &timing.samples);
            let own = own.timing.as_ref().map(|timing| &timing.samples);
            reports.push(judge(&over.name, before, samples.zip(own), gain));
        }
        for Requirement { factor, peer } in self.required {
            let entry = group.entries.iter().find(|entry| entry.peer && entry.name == *peer);
            let samples = entry.and_then(|entry| entry.timing.as_ref()).map(|timing| &timing.samples);
            // Launches of peers do not overlap.
            let own = own.separate_timing.as_ref().or(own.timing.as_ref()).map(|timing| &timing.samples);
            reports.push(judge(peer, entry, samples.zip(own), factor - 1.0));
        }
        reports
    }
}

fn passes(passage: &Passage, group: &Group, gate: Gate) -> bool {
    passage.entry(group).and_then(|entry| entry.gate(gate)).is_some_and(holds)
}

/// Whether a gate lets a variant through. What a profile finds beside its limits is no fault.
fn holds(report: &GateReport) -> bool {
    report.outcome == Outcome::Pass || report.gate == Gate::Profile && report.outcome == Outcome::Negative
}

fn judge(name: &str, entry: Option<&Entry>, samples: Option<(&Samples, &Samples)>, gain: f64) -> GateReport {
    match samples {
        Some((before, own)) => verdict::judge(name, SpeedUp::between(before, own), gain),
        None => {
            let reason = entry.and_then(|entry| {
                let unpassed = entry.gates.iter().find(|report| report.outcome != Outcome::Pass);
                entry.note.clone().or_else(|| unpassed.map(|report| report.summary.clone()))
            });
            let reason = reason.unwrap_or_else(|| "it was not there".into());
            unavailable(Gate::Performance, format!("there is no time of {name} beside its own: {reason}"))
        }
    }
}

fn unavailable(gate: Gate, summary: String) -> GateReport {
    GateReport { gate, outcome: Outcome::Unavailable, summary, checks: Vec::new() }
}

/// Outcomes, the worst first.
const WORST_FIRST: [Outcome; 7] = [
    Outcome::Invalid,
    Outcome::Fail,
    Outcome::Regression,
    Outcome::Negative,
    Outcome::Inconclusive,
    Outcome::Unavailable,
    Outcome::Pass,
];

/// One report of several, with the worst outcome.
fn together(reports: Vec<GateReport>) -> GateReport {
    let outcome = WORST_FIRST.into_iter().find(|worst| reports.iter().any(|report| report.outcome == *worst));
    let summary = reports.iter().map(|report| report.summary.as_str()).collect::<Vec<_>>().join("; ");
    let checks = reports.into_iter().flat_map(|report| report.checks).collect();
    GateReport { gate: Gate::Performance, outcome: outcome.unwrap_or(Outcome::Unavailable), summary, checks }
}

#[cfg(test)]
mod tests;
