//! Timing: contestants take turns in one run, so that whatever disturbs the machine disturbs them all alike.

mod conditions;
mod contestants;
mod cuda;
mod flush;
mod host;
mod interleave;
mod kernel;
mod monitor;
mod race;
mod reading;
mod rotation;
mod samples;
mod stopwatch;
mod watch;
mod work;

pub use conditions::{Conditions, GpuConditions};
pub use contestants::{Plant, brief_contestant, contestant, contestants};
pub use cuda::{CudaContestant, GRAPH_LAUNCHES};
pub(crate) use flush::flush_bytes;
pub use host::{HostEntry, HostGroup, measure as measure_host};
pub use interleave::{Interleaved, Measured, SoFar, interleave};
pub use kernel::KernelContestant;
pub use race::{Looks, Race, Raced};
pub use reading::{PageReading, ReadContestant, Reading};
pub use rotation::Rotation;
pub use samples::{Cache, Samples, Summary, Timer};
pub use work::{Work, WorkContestant};

use crate::gates::TimingPolicy;
use eightfold::{OutputFormat, Result};
use std::time::Duration;

/// Something that can be timed: a variant in this process, or a peer in another one.
pub trait Contestant {
    /// Everything that must not be timed: inputs loaded, memory allocated.
    fn prepare(&mut self) -> Result<()>;

    /// Before a turn, outside of the timed region: takes up the inputs of this round.
    fn begin_round(&mut self, _round: usize) -> Result<()> {
        Ok(())
    }

    /// Runs this many times in a row and returns the nanoseconds of each run.
    fn run_block(&mut self, iterations: usize) -> Result<Vec<u64>>;

    /// How many times the nanoseconds of a run it really takes: more than one where a run is one launch of many.
    fn launches_per_run(&self) -> usize {
        1
    }

    /// After a turn: an error unless the runs since the last poisoning computed what they should.
    fn verify(&mut self) -> Result<()>;
}

/// What is timed writes what its peers write, unless a user asks for something else: bf16 on a GPU, f32 on a CPU.
pub fn timed_output(on_gpu: bool) -> OutputFormat {
    if on_gpu { OutputFormat::Bf16 } else { OutputFormat::F32 }
}

/// What a user may choose about timing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Manner {
    /// Where the inputs are when a run begins.
    pub cache: Cache,
    /// Whether there is an idle gap before every turn, so that short bursts meet a device that has cooled down.
    pub burst: bool,
}

/// How times are taken, in the same way for everyone.
#[derive(Debug, Clone, Copy)]
pub struct Method<'a> {
    /// Warm-up and number of runs.
    pub policy: &'a TimingPolicy,
    /// What was chosen.
    pub manner: Manner,
    /// Whether the contestants run on a GPU, whose clocks are then watched.
    pub on_gpu: bool,
}

impl Method<'_> {
    /// Rest before a turn. Worker threads of the contestant before may still spin for work; OpenMP's do for milliseconds.
    fn rest(&self) -> Duration {
        Duration::from_millis(if self.manner.burst { 200 } else { 5 })
    }

    /// Runs before those that count, at this pace: worker threads that fell asleep in the rest can need milliseconds to
    /// wake on a virtual machine, and caches are as the contestant before left them. Cold runs have one, since nothing
    /// is to be warm.
    fn lead_in(&self, pace_s: f64) -> usize {
        const SECONDS: f64 = 0.005;
        match self.manner.cache {
            Cache::Hot => (SECONDS / pace_s).round().max(1.0) as usize,
            Cache::Cold => 1,
        }
    }
}
