//! From a variant that passed its gates to contestants, one for each timer.

use super::{Cache, Contestant, CudaContestant, KernelContestant, Rotation, Timer};
use crate::examine::Candidate;
use eightfold::{Error, Result};

/// A slowdown of known size, for a test of whoever judges the times: of every [`Plant::RUNS`] runs that are timed
/// together, so many more are made than are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plant {
    /// Runs that are made and not counted.
    pub extra_runs: usize,
}

impl Plant {
    /// Runs that are timed together.
    pub const RUNS: usize = 20;

    /// A contestant made this share slower: 0.05 for 5 %. The share is that of whole runs.
    pub fn slower_by(share: f64) -> Result<Plant> {
        let runs = share * Plant::RUNS as f64;
        if (runs - runs.round()).abs() > 1e-6 || runs < 0.0 {
            let step = 100.0 / Plant::RUNS as f64;
            let rule = format!("must be a multiple of {step} %, got {} %", (1e4 * share).round() / 1e2);
            return Err(Error::invalid("plant", rule, format!("give {step}% or a multiple of it")));
        }
        Ok(Plant { extra_runs: runs.round() as usize })
    }
}

/// The contestants of a variant: on the CPU one; on a GPU one by graph replay, one by events around single launches, and one
/// by a replay without overlap where launches may overlap. Runs on cold caches have no replay, whose launches would warm them for each other.
pub fn contestants<'a>(
    candidate: &Candidate,
    inputs: Rotation<'a>,
    cache: Cache,
    plant: Option<Plant>,
) -> Result<Vec<(Timer, Box<dyn Contestant + 'a>)>> {
    match candidate.variant.on_device() {
        Some(config) => {
            let mut lanes: Vec<(Timer, Box<dyn Contestant>)> = Vec::new();
            for one in candidate.from_source(|| CudaContestant::of_each_timer(&candidate.name, &config, inputs))? {
                let timer = one.timer();
                match (timer, cache) {
                    (Timer::GraphReplay, Cache::Hot) => lanes.push((timer, Box::new(one.planted(plant)))),
                    (_, Cache::Hot) => lanes.push((timer, Box::new(one))),
                    (Timer::Event, Cache::Cold) => lanes.push((timer, Box::new(one.planted(plant).on_cold_caches()?))),
                    (_, Cache::Cold) => {}
                }
            }
            Ok(lanes)
        }
        None => {
            let contestant = KernelContestant::new(&candidate.name, candidate.variant, inputs)?.planted(plant);
            let contestant = match candidate.pages {
                Some(tokens) => contestant.in_pages(tokens)?,
                None => contestant,
            };
            let contestant = if cache == Cache::Cold { contestant.on_cold_caches() } else { contestant };
            Ok(vec![(Timer::HostClock, Box::new(contestant))])
        }
    }
}

/// The contestant of a variant with its first timer: by graph replay where there is one.
pub fn contestant<'a>(
    candidate: &Candidate,
    inputs: Rotation<'a>,
    cache: Cache,
    plant: Option<Plant>,
) -> Result<(Timer, Box<dyn Contestant + 'a>)> {
    Ok(contestants(candidate, inputs, cache, plant)?.swap_remove(0))
}

/// The same for a race of many, all of them ours: on a GPU, slow launches are timed few at a time.
pub fn brief_contestant<'a>(candidate: &Candidate, inputs: Rotation<'a>) -> Result<Box<dyn Contestant + 'a>> {
    let Some(config) = candidate.variant.on_device() else {
        return contestant(candidate, inputs, Cache::Hot, None).map(|(_, contestant)| contestant);
    };
    let mut each = candidate.from_source(|| CudaContestant::of_each_timer(&candidate.name, &config, inputs))?;
    Ok(Box::new(each.swap_remove(0).brief()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_planted_share_is_one_of_whole_runs() {
        assert_eq!(Plant::slower_by(0.05), Ok(Plant { extra_runs: 1 }));
        assert_eq!(Plant::slower_by(0.3), Ok(Plant { extra_runs: 6 }));
        assert_eq!(Plant::slower_by(0.0), Ok(Plant { extra_runs: 0 }));
        let error = Plant::slower_by(0.07).unwrap_err().to_string();
        assert_eq!(error, "plant: must be a multiple of 5 %, got 7 %; give 5% or a multiple of it");
        assert!(Plant::slower_by(-0.05).is_err());
    }
}
