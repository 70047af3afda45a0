//! One problem: every candidate through the gates, then those that passed against the clock.

mod device;
mod timing;

use crate::bound::{Bound, Peaks};
use crate::build;
use crate::choice;
use crate::gates::{
    self, Case, CorrectnessReport, Gate, GateReport, Outcome, PerformancePolicy, PlannedVariant, Subject, Thresholds,
    Tolerance,
};
use crate::measure::{Conditions, Manner};
use crate::paged::PagedVariant;
use crate::peers::{Backend, HostDtype, Torch, TorchOnCuda, TorchOnHost};
use crate::progress::{Part, Progress};
use crate::record::{Entry, Group};
use crate::verdict::{self, SpeedUp};
use device::OnDevice;
use eightfold::cuda::driver::Device;
use eightfold::lab::compile::{self, Overlay};
use eightfold::lab::cpu;
use eightfold::{Accuracy, Error, OutputFormat, Problem, Result, Variant};
use std::sync::Arc;
use std::time::Instant;
use timing::Timed;

/// A variant under the name that the table will show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// A stage's name, or the variant as the user wrote it.
    pub name: String,
    /// The kernel and its knobs.
    pub variant: Variant,
    /// The accuracy that it is to keep, where it was picked for one; else it is held to its own.
    pub accuracy: Option<Accuracy>,
    /// Tokens of a page, where K and V are read from pages.
    pub pages: Option<usize>,
    /// Files that stand for the kernel's own, where it is one that is being changed.
    pub source: Option<Arc<Overlay>>,
}

impl Candidate {
    /// A variant that is held to its own accuracy.
    pub fn new(name: impl Into<String>, variant: Variant) -> Self {
        Candidate { name: name.into(), variant, accuracy: None, pages: None, source: None }
    }

    /// What the plan picks for a problem, under its kernel's name, held to the accuracy that the problem asks for.
    pub fn planned(problem: &Problem) -> Result<Self> {
        let variant = choice::choose(problem)?.variant;
        Ok(Candidate::new(variant.kernel(), variant).held_to(problem.accuracy()))
    }

    /// The same held to this accuracy, if its kernel has a choice.
    pub fn held_to(self, accuracy: Accuracy) -> Self {
        Candidate { accuracy: self.variant.accuracy().map(|_| accuracy), ..self }
    }

    /// The same that reads K and V from pages of so many tokens.
    pub fn in_pages(&self, tokens: usize) -> Self {
        Candidate { name: format!("{} pages={tokens}", self.name), pages: Some(tokens), ..self.clone() }
    }

    /// The same compiled from these files in place of the kernel's own; an error where the kernel is compiled from none of
    /// them.
    pub fn with_source(self, source: Option<Arc<Overlay>>) -> Result<Self> {
        if let Some(overlay) = &source {
            crate::overlay::check(&self.variant, overlay)?;
        }
        Ok(Candidate { source, ..self })
    }

    /// What an entry says that it is: the variant, and whose sources it was compiled from, if not the kernel's own.
    pub fn implementation(&self) -> String {
        match &self.source {
            Some(source) => format!("{}{OTHER_SOURCE}{}", self.variant, source.fingerprint()),
            None => self.variant.to_string(),
        }
    }

    /// Does something while what is compiled is compiled from its sources.
    pub fn from_source<T>(&self, run: impl FnOnce() -> T) -> T {
        compile::with_overlay(self.source.as_ref(), run)
    }

    /// Whether it runs on a GPU.
    pub fn on_gpu(&self) -> bool {
        self.variant.on_device().is_some()
    }

    fn tolerance<'a>(&self, thresholds: &'a Thresholds) -> &'a Tolerance {
        match self.accuracy {
            Some(accuracy) => thresholds.tolerance_of(accuracy, gates::is_int8(&self.variant)),
            None => thresholds.tolerance(&self.variant),
        }
    }
}

/// Stands between a variant and the fingerprint of the source that it was compiled from in place of the kernel's own.
pub const OTHER_SOURCE: &str = " from source ";

/// What to do with one problem.
pub struct Examination<'a> {
    /// What a person calls the shape.
    pub shape: &'a str,
    /// The inputs to be right on; timing is on the first of them.
    pub cases: &'a [Case],
    /// Our variants.
    pub candidates: &'a [Candidate],
    /// The limits and the timing policy.
    pub thresholds: &'a Thresholds,
    /// How to time what passes; none to time nothing.
    pub timed: Option<Manner>,
    /// Whether each candidate is a step past the one before, and must have gained by it.
    pub ladder: bool,
    /// Whether each case is a problem of its own, which its origin names.
    pub sweep: bool,
    /// A candidate that would take longer than this over all cases is checked on the first alone.
    pub max_gate_seconds: f64,
}

/// What an examination gave.
pub struct Examined {
    /// The entries, as far as it came.
    pub group: Group,
    /// Why nothing more can be examined in this process: the device's context is gone.
    pub lost: Option<Error>,
}

/// The part of the work that gating is, for the progress bar.
const GATING_SHARE: f64 = 0.4;

impl Examination<'_> {
    /// Gates and, if asked to, times every candidate, and the peer beside them.
    pub fn run(&self, problem: &Problem, mut torch: Option<&mut Torch>, progress: &mut dyn Progress) -> Examined {
        let gating_share = if self.timed.is_some() { GATING_SHARE } else { 1.0 };
        let on_gpu = self.candidates.iter().any(Candidate::on_gpu);
        let device = on_gpu.then(|| OnDevice::new(self));
        if let Some(Ok(device)) = &device {
            progress.at(0.0, &format!("{} {problem}: compiling", self.shape));
            build::ahead(self.candidates, self.cases, device.arch());
        }
        let mut lost = None;
        let mut entries = Vec::new();
        for (index, candidate) in self.candidates.iter().enumerate() {
            let share = gating_share * index as f64 / self.candidates.len() as f64;
            progress.at(share, &format!("{} {problem}: checking {}", self.shape, candidate.name));
            entries.push(match (&device, &lost) {
                (_, Some(error)) => unavailable(candidate, format!("not reached: {error}")),
                (Some(Err(error)), _) if candidate.on_gpu() => unavailable(candidate, error.to_string()),
                (Some(Ok(device)), _) if candidate.on_gpu() => {
                    let mut entry = candidate.from_source(|| device.gate(candidate));
                    lost = lost_by(&mut entry);
                    entry
                }
                _ => self.gate(candidate),
            });
        }
        let peer_case = self.cases.first().filter(|_| torch.is_some() && lost.is_none()).map(as_peers_see);
        if let (Some(torch), Some(case)) = (&mut torch, &peer_case) {
            progress.at(gating_share, &format!("{} {problem}: checking torch", self.shape));
            if on_gpu {
                entries.extend(Backend::ALL.map(|backend| gate_torch_on_cuda(torch, backend, case, self.thresholds)));
            } else {
                entries.extend(torch.on_host().iter_mut().map(|torch| gate_torch(torch, case, self.thresholds)));
            }
        }
        let mut group = Group { sweep: self.sweep, ..Group::new(self.shape, problem) };
        if let Some(manner) = self.timed.filter(|_| lost.is_none()) {
            let what = format!("{} {problem}: timing", self.shape);
            progress.at(gating_share, &what);
            let peer = torch.zip(peer_case.as_ref());
            group.bound = Peaks::here(on_gpu).and_then(|peaks| Bound::of(&group.problem, &peaks, manner.cache));
            let part = &mut Part { whole: progress, start: gating_share, share: 1.0 - gating_share };
            let tick = &mut |share: f64, so_far: Option<Vec<Entry>>| {
                part.at(share, &what);
                if let Some(entries) = so_far {
                    part.unfinished(&Group { entries, ..group.clone() });
                }
            };
            if let Some(Timed { conditions, reading, page_readings }) = self.time(&mut entries, peer, manner, tick) {
                (group.conditions, group.reading, group.page_readings) = (Some(conditions), reading, page_readings);
            }
            if let Some(bound) = &group.bound {
                entries.iter_mut().for_each(|entry| refuse_impossible(entry, bound));
            }
            if let Some(reason) = group.conditions.as_ref().and_then(Conditions::slowed_down) {
                entries.iter_mut().for_each(|entry| refuse(entry, &reason));
            }
            lost = if on_gpu { context_lost() } else { None };
            if self.ladder {
                // What the plan picks for an accuracy mode stands beside the ladder and is no step of it.
                let steps = entries.iter_mut().zip(self.candidates).filter(|(_, one)| one.accuracy.is_none());
                decide(steps, &self.thresholds.performance);
            }
        }
        group.entries = entries;
        Examined { group, lost }
    }

    /// The resource gate alone, for a candidate that is compiled at run time; none for others.
    pub fn resources(&self, candidate: &Candidate) -> Option<gates::Built> {
        candidate.on_gpu().then(|| match OnDevice::new(self) {
            Ok(device) => candidate.from_source(|| device.resources(candidate)),
            Err(error) => gates::Built::unavailable(error),
        })
    }

    fn gate(&self, candidate: &Candidate) -> Entry {
        let check = |cases: &[Case]| self.check(candidate, cases);
        if self.max_gate_seconds.is_infinite() || self.cases.len() < 2 {
            return check(self.cases);
        }
        let start = Instant::now();
        let first = check(&self.cases[..1]);
        let seconds = start.elapsed().as_secs_f64();
        let count = self.cases.len();
        if seconds * count as f64 <= self.max_gate_seconds {
            return check(self.cases);
        }
        let note = format!("checked on 1 of {count} cases, which took {seconds:.0} s");
        Entry { note: Some(note), ..first }
    }

    /// The correctness gate on these cases.
    fn check(&self, candidate: &Candidate, cases: &[Case]) -> Entry {
        let tolerance = candidate.tolerance(self.thresholds);
        let variant = candidate.variant;
        let mut paged = candidate.pages.map(|page_size| PagedVariant { variant, page_size });
        let subject: &mut dyn Subject = match &mut paged {
            Some(paged) => paged,
            None => &mut PlannedVariant(variant),
        };
        let report = gates::check(subject, cases, tolerance, self.thresholds);
        let implementation = if candidate.pages.is_some() { subject.name() } else { candidate.implementation() };
        Entry { pages: candidate.pages, ..entry(&candidate.name, implementation, report) }
    }
}

/// A time that cannot be is no time: whatever was timed, it was not this problem.
fn refuse_impossible(entry: &mut Entry, bound: &Bound) {
    let times = [&entry.timing, &entry.separate_timing, &entry.launch_timing];
    let times = times.map(|timing| timing.as_ref().map(|timing| timing.summary.p50_us));
    if let Some(reason) = times.into_iter().flatten().find_map(|p50_us| bound.impossible(p50_us)) {
        refuse(entry, &reason);
    }
}

/// Takes the times of an entry away, with the reason.
fn refuse(entry: &mut Entry, reason: &str) {
    if entry.timing.take().is_none() && entry.launch_timing.take().is_none() {
        return;
    }
    entry.launch_timing = None;
    entry.separate_timing = None;
    if entry.peer {
        entry.note = Some(reason.to_string());
    } else {
        entry.gates.push(GateReport {
            gate: Gate::Performance,
            outcome: Outcome::Invalid,
            summary: reason.to_string(),
            checks: Vec::new(),
        });
    }
}

/// The performance gate of every stage that follows one with a time.
fn decide<'a>(steps: impl Iterator<Item = (&'a mut Entry, &'a Candidate)>, policy: &PerformancePolicy) {
    let mut before: Option<(String, crate::measure::Samples)> = None;
    for (entry, candidate) in steps {
        let Some(timing) = &entry.timing else { continue };
        if let Some((name, samples)) = &before {
            let speed_up = SpeedUp::between(samples, &timing.samples);
            let required = policy.required_of(candidate.variant.kernel(), &candidate.name);
            entry.gates.push(verdict::judge(name, speed_up, required));
        }
        before = Some((entry.name.clone(), timing.samples.clone()));
    }
}

/// Why the device can do nothing more for this process, if it had one and that is so.
fn context_lost() -> Option<Error> {
    let device = Device::default().ok()?;
    // A fault that no call has met yet shows when something is waited for.
    device.loss().or_else(|| device.stream().and_then(|stream| stream.synchronize()).err())
}

/// Looks at the device after a kernel that did not pass: one that took the context with it has failed, whatever its
/// error said, and no other can follow.
fn lost_by(entry: &mut Entry) -> Option<Error> {
    if entry.correctness().is_some_and(|gate| gate.outcome == Outcome::Pass) {
        return None;
    }
    let lost = context_lost()?;
    if let Some(gate) = entry.gates.iter_mut().find(|gate| gate.gate == Gate::Correctness) {
        gate.outcome = Outcome::Fail;
        gate.summary = format!("it took the device's context with it: {}", gate.summary);
    }
    Some(lost)
}

/// The entry of a peer that was wanted and could not be had.
pub fn missing_peer(name: &str, reason: String) -> Entry {
    Entry { peer: true, ..without_run(name, name.into(), reason) }
}

fn unavailable(candidate: &Candidate, reason: String) -> Entry {
    without_run(&candidate.name, candidate.implementation(), reason)
}

fn without_run(name: &str, implementation: String, reason: String) -> Entry {
    let gate =
        GateReport { gate: Gate::Correctness, outcome: Outcome::Unavailable, summary: reason, checks: Vec::new() };
    entry(name, implementation, CorrectnessReport { gate, cases: Vec::new() })
}

fn admissible(entry: &Entry) -> bool {
    entry.correctness().is_some_and(|gate| gate.outcome == Outcome::Pass)
}

fn entry(name: &str, implementation: String, report: CorrectnessReport) -> Entry {
    let CorrectnessReport { gate, cases } = report;
    Entry { gates: vec![gate], cases, ..Entry::new(name, implementation) }
}

/// PyTorch gives no log-sum-exp through its public function, so the peer is not asked for it. Whatever it writes is read
/// in f32, and its tolerance has room for its rounding.
fn as_peers_see(case: &Case) -> Case {
    let mut case = case.clone();
    case.problem = case.problem.with_lse(false).with_output_format(OutputFormat::F32);
    case
}

fn gate_torch(torch: &mut TorchOnHost, case: &Case, thresholds: &Thresholds) -> Entry {
    let tolerance = match torch.dtype() {
        // In f32 it has to be as exact as our own path.
        HostDtype::F32 => {
            let numbers = cpu::Numbers::F32;
            thresholds.tolerance(&Variant::Cpu(cpu::Config { numbers, ..cpu::Config::default() }))
        }
        HostDtype::Bf16 | HostDtype::F16 => &thresholds.correctness.tolerance.bf16,
    };
    let report = gates::check(torch, std::slice::from_ref(case), tolerance, thresholds);
    let output_format = Some(torch.dtype().output_format().into());
    let entry = entry(torch.dtype().name(), torch.describe(), report);
    Entry { peer: true, output_format, crash: torch.crash().cloned(), ..entry }
}

fn gate_torch_on_cuda(torch: &mut Torch, backend: Backend, case: &Case, thresholds: &Thresholds) -> Entry {
    let implementation = torch.describe_cuda(backend);
    let tolerances = &thresholds.correctness.tolerance;
    let tolerance = if backend.is_fp8() { &tolerances.fp8_peer } else { &tolerances.bf16 };
    let report = gates::check(&mut TorchOnCuda { torch, backend }, std::slice::from_ref(case), tolerance, thresholds);
    let output_format = Some(backend.output_format().into());
    Entry { peer: true, output_format, ..entry(backend.name(), implementation, report) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inputs::Family;
    use crate::measure::{Samples, Timer};
    use crate::record::Timing;

    fn timed(name: &str, us: u64) -> Entry {
        let samples = Samples { ns: vec![us * 1000; 100], rounds: vec![10; 10] };
        Entry { timing: Timing::new(Timer::GraphReplay, samples), ..Entry::new(name, name) }
    }

    #[test]
    fn what_was_picked_for_an_accuracy_is_held_to_it() {
        let thresholds = Thresholds::embedded();
        let gaussian =
            |candidate: Candidate| candidate.tolerance(&thresholds).of(Some(Family::Gaussian), 65536).relative_l2;
        for (variant, own, picked) in [("hopper:exact-exp", 0.026, 0.0285), ("cpu:baseline", 1.7e-6, 1.7e-6)] {
            let candidate = Candidate::new("x", variant.parse().unwrap());
            assert_eq!(gaussian(candidate.clone()), own);
            assert_eq!(gaussian(candidate.held_to(Accuracy::Balanced)), picked);
        }
    }

    #[test]
    fn times_that_cannot_be_are_taken_away_with_the_reason() {
        let bound = Bound { floor_us: 50.0, by: "so much work".into() };
        let mut entries = [timed("a", 100), timed("b", 40), Entry { peer: true, ..timed("torch", 40) }];
        entries.iter_mut().for_each(|entry| refuse_impossible(entry, &bound));
        let [a, b, torch] = entries;
        assert!(a.timing.is_some() && a.gates.is_empty());
        assert!(b.timing.is_none() && torch.timing.is_none());
        assert_eq!(b.gates[0].outcome, Outcome::Invalid);
        assert!(torch.gates.is_empty() && torch.note.unwrap().starts_with("impossible: 40.0 µs is less than"));
    }

    #[test]
    fn a_stage_is_judged_against_the_last_one_that_has_a_time() {
        let mut entries = [timed("a", 100), Entry::new("b", "b"), timed("c", 50), timed("d", 60)];
        let steps = ["a", "b", "c", "d"].map(|name| Candidate::new(name, "ladder:unpack".parse().unwrap()));
        decide(entries.iter_mut().zip(&steps), &Thresholds::embedded().performance);
        let outcome = |index: usize| entries[index].gate(Gate::Performance).map(|gate| gate.outcome);
        let expected = [None, None, Some(Outcome::Pass), Some(Outcome::Regression)];
        assert_eq!([0, 1, 2, 3].map(outcome), expected);
        assert!(entries[2].gates[0].summary.starts_with("2.000× a "), "{}", entries[2].gates[0].summary);
    }

    #[test]
    fn more_is_asked_of_tensor_cores_for_the_sums_of_v() {
        let steps = ["simd-pv", "mma-pv", "reuse-scores"]
            .map(|name| Candidate::new(name, format!("ladder:{name}").parse().unwrap()));
        // 1.12 and 1.12 times.
        let mut entries = [timed("simd-pv", 1254), timed("mma-pv", 1120), timed("reuse-scores", 1000)];
        decide(entries.iter_mut().zip(&steps), &Thresholds::embedded().performance);
        let outcome = |index: usize| entries[index].gate(Gate::Performance).map(|gate| gate.outcome);
        assert_eq!([1, 2].map(outcome), [Some(Outcome::Negative), Some(Outcome::Pass)]);
        assert!(entries[1].gates[0].summary.ends_with("required 1.15×"), "{}", entries[1].gates[0].summary);
    }
}
