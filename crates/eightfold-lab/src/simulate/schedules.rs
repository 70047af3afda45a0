//! One computation under several schedules: it must end, find nothing, and give the same bits, whoever runs when.

use super::{Schedule, begin, explained};
use crate::choice;
use crate::gates::{Subject, fingerprint};
use eightfold::{Error, Fp8Tensor, Output, Problem, Result, RunReport, Variant};
use std::sync::{Mutex, PoisonError};

/// The schedules of everything that the gates run on the simulated device.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedules {
    /// Their seeds.
    pub seeds: Vec<u64>,
    /// Whether races are looked for.
    pub races: bool,
    /// How long a launch may take.
    pub limit_seconds: Option<f64>,
}

impl Default for Schedules {
    fn default() -> Self {
        Schedules { seeds: vec![0, 1, 2], races: true, limit_seconds: Some(60.0) }
    }
}

static SCHEDULES: Mutex<Option<Schedules>> = Mutex::new(None);

/// Sets the schedules of this process.
pub fn set_schedules(schedules: Schedules) {
    *SCHEDULES.lock().unwrap_or_else(PoisonError::into_inner) = Some(schedules);
}

/// The schedules of this process.
pub fn schedules() -> Schedules {
    SCHEDULES.lock().unwrap_or_else(PoisonError::into_inner).clone().unwrap_or_default()
}

/// A variant on the simulated device, under schedules of its own.
#[derive(Debug, Clone, PartialEq)]
pub struct SimulatedVariant {
    /// What runs.
    pub variant: Variant,
    /// Under what.
    pub schedules: Schedules,
}

impl Subject for SimulatedVariant {
    fn name(&self) -> String {
        format!("{} on the simulator", self.variant)
    }

    fn run(
        &mut self,
        problem: &Problem,
        q: &Fp8Tensor,
        k: &Fp8Tensor,
        v: &Fp8Tensor,
        output: &mut Output,
    ) -> Result<RunReport> {
        self.schedules.run(output, |output| choice::run(&self.variant, problem, q, k, v, output))
    }
}

impl Schedules {
    /// Runs something under every schedule. The output is that of all of them.
    pub fn run<T>(&self, output: &mut Output, mut run: impl FnMut(&mut Output) -> Result<T>) -> Result<T> {
        let poisoned = output.clone();
        let mut first: Option<(u64, u64, T)> = None;
        for &seed in &self.seeds {
            begin(Schedule { seed, races: self.races, limit_seconds: self.limit_seconds });
            let mut own = poisoned.clone();
            let report = run(&mut own).map_err(|error| explained(error, seed))?;
            let hash = fingerprint::of_output(&own);
            match &first {
                None => {
                    *output = own;
                    first = Some((seed, hash, report));
                }
                Some((other, expected, _)) if hash != *expected => {
                    return Err(Error::invalid(
                        format!("schedule {seed}"),
                        format!("it gives other bits than schedule {other}"),
                        format!("make the result independent of who runs when; --seeds {other},{seed} repeats it"),
                    ));
                }
                Some(_) => {}
            }
        }
        match first {
            Some((_, _, report)) => Ok(report),
            None => Err(Error::invalid("seeds", "there are none", "give at least one")),
        }
    }
}
