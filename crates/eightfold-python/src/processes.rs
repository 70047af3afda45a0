//! Work on the CPU, also in a process that was forked from one that had worked before: its threads were not forked with it.

use eightfold::{Error, Result};
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::process;
use std::sync::{Arc, Mutex, PoisonError};

/// The process that first worked, and the pool of one that was forked from it.
static FIRST: Mutex<Option<u32>> = Mutex::new(None);
static FORKED: Mutex<Option<(u32, Arc<ThreadPool>)>> = Mutex::new(None);

/// Does the work on threads that this process has.
pub(crate) fn work<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T> {
    let own = process::id();
    let first = *FIRST.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(own);
    if first == own {
        return Ok(work());
    }
    let mut forked = FORKED.lock().unwrap_or_else(PoisonError::into_inner);
    let pool = match &*forked {
        Some((id, pool)) if *id == own => pool.clone(),
        _ => {
            let pool = ThreadPoolBuilder::new()
                .build()
                .map(Arc::new)
                .map_err(|error| Error::unavailable("threads", error.to_string(), "allow this process more threads"))?;
            // The pool of the parent, if it had one: its threads are not here, so that to drop it would be to wait for them.
            std::mem::forget(forked.replace((own, pool.clone())));
            pool
        }
    };
    drop(forked);
    Ok(pool.install(work))
}
