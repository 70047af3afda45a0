//! Those that passed, against the clock, in one interleaved run.

use super::{Candidate, Examination, admissible};
use crate::gates::{Case, Gate, GateReport, Outcome};
use crate::measure::{
    Cache, Conditions, Contestant, Interleaved, Manner, Measured, Method, PageReading, ReadContestant, Reading,
    Rotation, Timer, contestants, interleave,
};
use crate::paged::Paged;
use crate::peers::{Backend, Torch, TorchContestant, TorchCudaContestant};
use crate::record::{Entry, Timing};
use eightfold::Result;
use std::cell::RefCell;
use std::collections::BTreeSet;

/// What went on while contestants took turns, and what took turns with them.
pub(super) struct Timed {
    pub conditions: Conditions,
    pub reading: Option<Reading>,
    pub page_readings: Vec<PageReading>,
}

/// Whose times a contestant's are, and what they are taken with. Those behind the entries are readings'.
type Lane<'a> = (usize, Timer, Box<dyn Contestant + 'a>);

impl Examination<'_> {
    /// Times those that passed, fills in their entries, and says what else went on; none if there was nobody to time.
    /// `tick` is told how far the work is, and after every round what the entries are so far.
    pub(super) fn time(
        &self,
        entries: &mut [Entry],
        peer: Option<(&mut Torch, &Case)>,
        manner: Manner,
        tick: &mut dyn FnMut(f64, Option<Vec<Entry>>),
    ) -> Option<Timed> {
        let on_gpu = self.candidates.iter().any(Candidate::on_gpu);
        let hot = manner.cache == Cache::Hot;
        // Declared before the field, whose contestants borrow them.
        let shared;
        let paged: Vec<(usize, Paged)>;
        let mut field: Vec<Lane<'_>> = Vec::new();
        let mut entry_inputs = vec![1; entries.len()];
        for (place, (entry, candidate)) in entries.iter_mut().zip(self.candidates).enumerate() {
            if admissible(entry) {
                let inputs = Rotation::of(self.cases, entry)?;
                entry_inputs[place] = inputs.len();
                match contestants(candidate, inputs, manner.cache, None) {
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
                    let timers = [Timer::GraphReplay, Timer::Event];
                    for timer in timers.into_iter().filter(|timer| hot || *timer == Timer::Event) {
                        let contestant = TorchCudaContestant::new(&shared, backend, timer).with_cache(manner.cache);
                        field.push((place, timer, Box::new(contestant)));
                    }
                }
            } else {
                let mut torch: Vec<_> = torch.on_host().iter_mut().map(Some).collect();
                for (place, _) in peers {
                    if let Some(torch) = torch[place - first].take() {
                        let contestant = TorchContestant::new(torch, case).with_cache(manner.cache);
                        field.push((place, Timer::HostClock, Box::new(contestant)));
                    }
                }
            }
        }
        // The page size, if any, and the bytes of each reading.
        let mut reads: Vec<(Option<usize>, usize)> = Vec::new();
        let case = self.cases.first()?;
        if let Some(of_tensors) = ReadContestant::new(case, manner.cache).filter(|_| !on_gpu && !field.is_empty()) {
            paged = self.pages_of(entries, case);
            let of_pages =
                paged.iter().map(|(size, paged)| (Some(*size), ReadContestant::in_pages(paged, manner.cache)));
            for (size, contestant) in std::iter::once((None, of_tensors)).chain(of_pages) {
                let (place, bytes) = (entries.len() + reads.len(), contestant.bytes());
                field.push((place, Timer::HostClock, Box::new(contestant)));
                reads.push((size, bytes));
            }
        }
        let policy = if on_gpu { &self.thresholds.cuda_timing } else { &self.thresholds.timing };
        let mut contestants: Vec<&mut dyn Contestant> = Vec::new();
        let mut places = Vec::new();
        for (place, timer, contestant) in &mut field {
            places.push((*place, *timer));
            contestants.push(&mut **contestant);
        }
        if contestants.is_empty() {
            return None;
        }
        let method = Method { policy, manner, on_gpu };
        let note = |entries: &mut [Entry], lane: usize, measured: Measured| {
            let (place, timer): (usize, Timer) = places[lane];
            if place >= entries.len() {
                return;
            }
            let (cache, inputs) = (manner.cache, entry_inputs[place]);
            let timing =
                measured.map(|samples| Timing::new(timer, samples).map(|timing| Timing { cache, inputs, ..timing }));
            note_timing(&mut entries[place], timer, hot, timing);
        };
        let Interleaved { measured, conditions } = interleave(&mut contestants, &method, &mut |share, so_far| {
            let so_far = so_far.map(|lanes| {
                let mut entries = entries.to_vec();
                for (lane, samples) in lanes.iter().enumerate() {
                    if let Some(samples) = samples {
                        note(&mut entries, lane, Ok((*samples).clone()));
                    }
                }
                entries
            });
            tick(share, so_far);
        });
        let (mut reading, mut page_readings) = (None, Vec::new());
        for ((pages, bytes), measured) in reads.iter().zip(&measured[measured.len() - reads.len()..]) {
            let timing = measured.as_ref().ok().and_then(|samples| Timing::new(Timer::HostClock, samples.clone()));
            let Some(timing) = timing else { continue };
            let found = Reading { bytes: *bytes, timing: Timing { cache: manner.cache, ..timing } };
            match pages {
                Some(page_size) => page_readings.push(PageReading { page_size: *page_size, reading: found }),
                None => reading = Some(found),
            }
        }
        for (lane, measured) in measured.into_iter().enumerate() {
            note(entries, lane, measured);
        }
        entries.iter_mut().for_each(withdraw_if_unsound);
        Some(Timed { conditions, reading, page_readings })
    }

    /// K and V of a case in pages of every size from which a variant that passed reads.
    fn pages_of(&self, entries: &[Entry], Case { problem, q, k, v, .. }: &Case) -> Vec<(usize, Paged)> {
        let passed = entries.iter().zip(self.candidates).filter(|(entry, _)| admissible(entry));
        let sizes: BTreeSet<usize> = passed.filter_map(|(_, candidate)| candidate.pages).collect();
        sizes.into_iter().filter_map(|size| Some((size, Paged::new(problem, q, k, v, size).ok()?))).collect()
    }
}

fn note_timing(entry: &mut Entry, timer: Timer, hot: bool, timing: Result<Option<Timing>>) {
    match timing {
        Ok(timing) if timer == Timer::Event && hot => entry.launch_timing = timing,
        Ok(timing) if timer == Timer::SeparateReplay => entry.separate_timing = timing,
        Ok(timing) => entry.timing = timing,
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
        entry.separate_timing = None;
    }
}
