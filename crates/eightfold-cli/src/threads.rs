//! The pool of threads that a command runs in.

use eightfold::{Error, Result};

/// Runs the work in a pool of this many threads, or of as many as there are cores.
pub fn run<T: Send>(threads: Option<usize>, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    if threads == Some(0) {
        return Err(Error::invalid("threads", "must be at least 1, got 0", "leave it out for all cores"));
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads.unwrap_or(cores)).build();
    let pool = pool
        .map_err(|error| Error::unavailable("the thread pool", error.to_string(), format!("try --threads {cores}")))?;
    pool.install(work)
}
