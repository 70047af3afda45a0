//! What a kernel does on the simulated device, counted. It is no time: it knows no clocks, no caches and no overlap.

use super::{Schedule, begin, explained, installed};
use eightfold::Result;
use serde::{Deserialize, Serialize};

/// Counts over all threads of all launches. The first schedule's, so that they are the same every time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[repr(C)]
pub struct Work {
    /// Accesses of shared memory, whatever their size.
    pub shared: u64,
    /// Accesses of global memory.
    pub global: u64,
    /// Where threads meet or wait for each other: shuffles, matrix loads, barriers. Once for each thread.
    pub met: u64,
    /// Instructions of tensor cores, once for each thread.
    pub products: u64,
    /// `cp.async` and boxes.
    pub copies: u64,
}

impl Work {
    /// All of them, each as one step.
    pub fn steps(&self) -> u64 {
        self.shared + self.global + self.met + self.products + self.copies
    }

    /// Each with its name.
    pub fn named(&self) -> [(&'static str, u64); 5] {
        let Work { shared, global, met, products, copies } = *self;
        [
            ("shared memory accesses", shared),
            ("global memory accesses", global),
            ("meetings of threads", met),
            ("tensor core instructions", products),
            ("copies", copies),
        ]
    }
}

/// Runs something on the simulated device, if that is this process's, and counts what it does.
pub fn count<T>(limit_seconds: Option<f64>, run: impl FnOnce() -> Result<T>) -> Result<Work> {
    let seed = 0;
    begin(Schedule { seed, races: false, limit_seconds });
    run().map_err(|error| explained(error, seed))?;
    Ok(installed().map(|runtime| runtime.work()).unwrap_or_default())
}
