//! One problem: every candidate through the gates, then those that passed against the clock.

use crate::gates::{self, Case, CorrectnessReport, Gate, GateReport, Outcome, PlannedVariant, Thresholds};
use crate::measure::{Contestant, KernelContestant, Measured, interleave};
use crate::peers::{Torch, TorchContestant};
use crate::progress::Progress;
use crate::record::{Entry, Group, Timing};
use eightfold::{Problem, Variant, cpu};
use std::time::Instant;

/// A variant under the name that the table will show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// A stage's name, or the variant as the user wrote it.
    pub name: String,
    /// The kernel and its knobs.
    pub variant: Variant,
}

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
    /// Whether to time what passes.
    pub timed: bool,
    /// A candidate that would take longer than this over all cases is checked on the first alone.
    pub max_gate_seconds: f64,
}

/// The part of the work that gating is, for the progress bar.
const GATING_SHARE: f64 = 0.4;

impl Examination<'_> {
    /// Gates and, if asked to, times every candidate, and the peer beside them.
    pub fn run(&self, problem: &Problem, mut torch: Option<&mut Torch>, progress: &mut dyn Progress) -> Group {
        let gating_share = if self.timed { GATING_SHARE } else { 1.0 };
        let mut entries = Vec::new();
        for (index, candidate) in self.candidates.iter().enumerate() {
            let share = gating_share * index as f64 / self.candidates.len() as f64;
            progress.at(share, &format!("{} {problem}: checking {}", self.shape, candidate.name));
            entries.push(self.gate(candidate));
        }
        let peer_case = torch.as_ref().and_then(|_| self.cases.first()).map(without_lse);
        if let (Some(torch), Some(case)) = (&mut torch, &peer_case) {
            progress.at(gating_share, &format!("{} {problem}: checking torch", self.shape));
            entries.push(gate_torch(torch, case, self.thresholds));
        }
        if self.timed {
            let what = format!("{} {problem}: timing", self.shape);
            progress.at(gating_share, &what);
            let peer = torch.zip(peer_case.as_ref());
            self.time(&mut entries, peer, &mut |share| progress.at(gating_share + (1.0 - gating_share) * share, &what));
        }
        Group { shape: self.shape.into(), problem: problem.into(), entries }
    }

    fn gate(&self, candidate: &Candidate) -> Entry {
        let implementation = candidate.variant.to_string();
        let check = |cases: &[Case]| {
            let tolerance = self.thresholds.tolerance(&candidate.variant);
            gates::check(&mut PlannedVariant(candidate.variant), cases, tolerance, self.thresholds)
        };
        if self.max_gate_seconds.is_infinite() || self.cases.len() < 2 {
            return entry(&candidate.name, implementation, check(self.cases));
        }
        let start = Instant::now();
        let first = check(&self.cases[..1]);
        let seconds = start.elapsed().as_secs_f64();
        let count = self.cases.len();
        if seconds * count as f64 <= self.max_gate_seconds {
            return entry(&candidate.name, implementation, check(self.cases));
        }
        let note = format!("checked on 1 of {count} cases, which took {seconds:.0} s");
        Entry { note: Some(note), ..entry(&candidate.name, implementation, first) }
    }

    /// Times those that passed, in one interleaved run, and fills in their entries.
    fn time(&self, entries: &mut [Entry], peer: Option<(&mut Torch, &Case)>, tick: &mut dyn FnMut(f64)) {
        let Some(case) = self.cases.first() else { return };
        let mut places = Vec::new();
        let mut field: Vec<Box<dyn Contestant + '_>> = Vec::new();
        for (place, (entry, candidate)) in entries.iter_mut().zip(self.candidates).enumerate() {
            if !admissible(entry) {
                continue;
            }
            let seen = entry.cases.first().filter(|case| case.repeatable);
            let hash = seen.map(|case| case.output_hash);
            match KernelContestant::new(&candidate.name, candidate.variant, case, hash) {
                Ok(contestant) => {
                    places.push(place);
                    field.push(Box::new(contestant));
                }
                Err(error) => entry.note = Some(error.to_string()),
            }
        }
        let peer_place = self.candidates.len();
        if let Some((torch, case)) = peer.filter(|_| entries.get(peer_place).is_some_and(admissible)) {
            places.push(peer_place);
            field.push(Box::new(TorchContestant::new(torch, case)));
        }
        let mut contestants: Vec<&mut dyn Contestant> = field.iter_mut().map(|boxed| &mut **boxed as _).collect();
        let measured = interleave(&mut contestants, &self.thresholds.timing, tick);
        for (place, measured) in places.into_iter().zip(measured) {
            note_timing(&mut entries[place], measured);
        }
    }
}

/// The entry of a peer that was wanted and could not be had.
pub fn missing_peer(name: &str, reason: String) -> Entry {
    let gate =
        GateReport { gate: Gate::Correctness, outcome: Outcome::Unavailable, summary: reason, checks: Vec::new() };
    let report = CorrectnessReport { gate, cases: Vec::new() };
    Entry { peer: true, ..entry(name, name.into(), report) }
}

fn admissible(entry: &Entry) -> bool {
    entry.correctness().is_some_and(|gate| gate.outcome == Outcome::Pass)
}

fn note_timing(entry: &mut Entry, measured: Measured) {
    match measured {
        Ok(samples) => {
            entry.timing = samples.summary().map(|summary| Timing { summary, samples });
        }
        Err(error) if entry.peer => entry.note = Some(error.to_string()),
        // A kernel of ours that passed and then failed under the clock is unsound, not merely untimed.
        Err(error) => entry.gates.push(GateReport {
            gate: Gate::Performance,
            outcome: Outcome::Invalid,
            summary: error.to_string(),
            checks: Vec::new(),
        }),
    }
}

fn entry(name: &str, implementation: String, report: CorrectnessReport) -> Entry {
    let CorrectnessReport { gate, cases } = report;
    Entry { name: name.into(), implementation, peer: false, gates: vec![gate], cases, timing: None, note: None }
}

/// PyTorch gives no log-sum-exp through its public function, so the peer is not asked for it.
fn without_lse(case: &Case) -> Case {
    let mut case = case.clone();
    case.problem = case.problem.with_lse(false);
    case
}

fn gate_torch(torch: &mut Torch, case: &Case, thresholds: &Thresholds) -> Entry {
    let implementation = torch.describe();
    // It computes in f32, so it has to be as exact as our f32 path.
    let numbers = cpu::Numbers::F32;
    let like = Variant::Cpu(cpu::Config { numbers, ..cpu::Config::default() });
    let report = gates::check(torch, std::slice::from_ref(case), thresholds.tolerance(&like), thresholds);
    Entry { peer: true, ..entry("torch", implementation, report) }
}
