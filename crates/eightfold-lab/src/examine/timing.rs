//! Those that passed, against the clock, in one interleaved run.

use super::{Candidate, Examination, admissible};
use crate::gates::{Case, Gate, GateReport, Outcome};
use crate::measure::{Contestant, CudaContestant, KernelContestant, Measured, Timer, interleave};
use crate::peers::{Backend, Torch, TorchContestant, TorchCudaContestant};
use crate::record::{Entry, Timing};
use eightfold::Result;
use std::cell::RefCell;

/// Whose times a contestant's are, and what they are taken with.
type Lane<'a> = (usize, Timer, Box<dyn Contestant + 'a>);

impl Examination<'_> {
    /// Times those that passed and fills in their entries.
    pub(super) fn time(&self, entries: &mut [Entry], peer: Option<(&mut Torch, &Case)>, tick: &mut dyn FnMut(f64)) {
        let Some(case) = self.cases.first() else { return };
        let on_gpu = self.candidates.iter().any(Candidate::on_gpu);
        // Declared before the field, whose contestants borrow it.
        let shared;
        let mut field: Vec<Lane<'_>> = Vec::new();
        for (place, (entry, candidate)) in entries.iter_mut().zip(self.candidates).enumerate() {
            if admissible(entry) {
                match contestants(candidate, entry, case) {
                    Ok(lanes) => field.extend(lanes.into_iter().map(|(timer, contestant)| (place, timer, contestant))),
                    Err(error) => entry.note = Some(error.to_string()),
                }
            }
        }
        if let Some((torch, case)) = peer {
            let first = self.candidates.len();
            let peers = entries.iter_mut().enumerate().skip(first).filter(|(_, entry)| admissible(entry));
            if on_gpu {
                shared = RefCell::new(torch);
                let loaded = shared.borrow_mut().load_on_cuda(case);
                for (place, entry) in peers {
                    if let Err(error) = &loaded {
                        entry.note = Some(error.to_string());
                        continue;
                    }
                    let backend = Backend::ALL[place - first];
                    for timer in [Timer::GraphReplay, Timer::Event] {
                        let contestant = TorchCudaContestant::new(&shared, backend, timer, case);
                        field.push((place, timer, Box::new(contestant)));
                    }
                }
            } else if let Some((place, _)) = { peers }.next() {
                field.push((place, Timer::HostClock, Box::new(TorchContestant::new(torch, case))));
            }
        }
        let policy = if on_gpu { &self.thresholds.cuda_timing } else { &self.thresholds.timing };
        let mut contestants: Vec<&mut dyn Contestant> = Vec::new();
        let mut places = Vec::new();
        for (place, timer, contestant) in &mut field {
            places.push((*place, *timer));
            contestants.push(&mut **contestant);
        }
        let measured = interleave(&mut contestants, policy, tick);
        for ((place, timer), measured) in places.into_iter().zip(measured) {
            note_timing(&mut entries[place], timer, measured);
        }
        entries.iter_mut().for_each(withdraw_if_unsound);
    }
}

/// One contestant for a kernel on the CPU, one per timer for a kernel on a GPU.
fn contestants<'a>(
    candidate: &Candidate,
    entry: &Entry,
    case: &'a Case,
) -> Result<Vec<(Timer, Box<dyn Contestant + 'a>)>> {
    let seen = entry.cases.first().filter(|case| case.repeatable);
    let hash = seen.map(|case| case.output_hash);
    if let Some(config) = candidate.variant.on_device() {
        let both = CudaContestant::both(&candidate.name, &config, case, hash)?;
        return Ok(both.into_iter().map(|one| (one.timer(), Box::new(one) as Box<dyn Contestant>)).collect());
    }
    let contestant = KernelContestant::new(&candidate.name, candidate.variant, case, hash)?;
    Ok(vec![(Timer::HostClock, Box::new(contestant))])
}

fn note_timing(entry: &mut Entry, timer: Timer, measured: Measured) {
    match measured {
        Ok(samples) => {
            let timing = Timing::new(timer, samples);
            if timer == Timer::Event {
                entry.launch_timing = timing;
            } else {
                entry.timing = timing;
            }
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

/// A kernel that was unsound under one timer has no time worth showing under the other.
fn withdraw_if_unsound(entry: &mut Entry) {
    if entry.gate(Gate::Performance).is_some_and(|gate| gate.outcome == Outcome::Invalid) {
        entry.timing = None;
        entry.launch_timing = None;
    }
}
