//! Timing: contestants take turns in one run, so that whatever disturbs the machine disturbs them all alike.

mod conditions;
mod cuda;
mod interleave;
mod kernel;
mod race;
mod samples;

pub use conditions::Conditions;
pub use cuda::{CudaContestant, GRAPH_LAUNCHES};
pub use interleave::{Measured, interleave};
pub use kernel::KernelContestant;
pub use race::{Looks, Race, Raced};
pub use samples::{Cache, Samples, Summary, Timer};

use eightfold::Result;

/// Something that can be timed: a variant in this process, or a peer in another one.
pub trait Contestant {
    /// Everything that must not be timed: inputs loaded, memory allocated.
    fn prepare(&mut self) -> Result<()>;

    /// Runs this many times in a row and returns the nanoseconds of each run.
    fn run_block(&mut self, iterations: usize) -> Result<Vec<u64>>;

    /// How many times the nanoseconds of a run it really takes: more than one where a run is one launch of many.
    fn launches_per_run(&self) -> usize {
        1
    }

    /// After the last block: an error unless the timed runs computed what they should.
    fn verify(&mut self) -> Result<()>;
}
