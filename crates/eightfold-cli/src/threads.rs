//! How many threads a command uses.

use eightfold::{Error, Result};

/// More than any machine has cores: beyond it, a slip of the finger would take all memory for stacks.
const MOST_THREADS: usize = 1024;

/// Settles the number of threads for the whole process: this many, or as many as there are cores.
///
/// Commands stay on the main thread: a caller inside a rayon pool would keep the kernels to that pool, whose threads
/// take longer to wake than a small problem takes to compute.
pub fn settle(threads: Option<usize>) -> Result<()> {
    if threads == Some(0) {
        return Err(Error::invalid("threads", "must be at least 1, got 0", "leave it out for all cores"));
    }
    if let Some(threads) = threads.filter(|threads| *threads > MOST_THREADS) {
        let reason = format!("{threads} are more than the {MOST_THREADS} that are allowed");
        return Err(Error::invalid("threads", reason, "leave it out for all cores"));
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads.unwrap_or(cores)).build_global();
    pool.map_err(|error| Error::unavailable("the thread pool", error.to_string(), format!("try --threads {cores}")))
}
