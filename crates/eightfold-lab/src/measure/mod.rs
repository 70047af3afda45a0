//! Timing: contestants take turns in one run, so that whatever disturbs the machine disturbs them all alike.

mod interleave;
mod kernel;
mod samples;

pub use interleave::{Measured, interleave};
pub use kernel::KernelContestant;
pub use samples::{Samples, Summary};

use eightfold::Result;

/// Something that can be timed: a variant in this process, or a peer in another one.
pub trait Contestant {
    /// Everything that must not be timed: inputs loaded, memory allocated.
    fn prepare(&mut self) -> Result<()>;

    /// Runs this many times in a row and returns the nanoseconds of each run.
    fn run_block(&mut self, iterations: usize) -> Result<Vec<u64>>;

    /// After the last block: an error unless the timed runs computed what they should.
    fn verify(&mut self) -> Result<()>;
}
