//! Threads that stay awake between calls for a moment, for work of some twenty microseconds.
//!
//! Waking a sleeping thread takes longer than a small attention problem: measured at 1,8,32,64 on two threads, calls
//! through rayon alone took 38 µs at the median where 20 µs were possible. Workers here spin for [`LINGER`] after a
//! job before they sleep, and a job never waits for a worker that has not begun: whoever calls does the work itself,
//! and workers that come in time take their part of it.
//!
//! A caller on a rayon thread stays in its own pool instead, so that nested parallelism keeps to one set of threads.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// How long a worker waits for the next job before it sleeps.
const LINGER: Duration = Duration::from_micros(200);

/// Work for the thread of a given number.
type Work<'a> = dyn Fn(usize) + Sync + 'a;

/// Runs `work(0)` on the calling thread and, as they become free, `work(1)` … on up to `threads` − 1 others at the same
/// time. Returns when all of them are done. `work` must share what there is to do among its calls by itself, and
/// `work(0)` alone must be able to do all of it. The same thread gets the same number from call to call.
pub(super) fn run(threads: usize, work: &Work<'_>) {
    if threads > 1 && rayon::current_thread_index().is_none() {
        let pool = POOL.get_or_init(|| Pool::new(rayon::current_num_threads().saturating_sub(1)));
        match pool.turn.try_lock() {
            Ok(_turn) => return pool.run(threads, work),
            Err(TryLockError::Poisoned(_turn)) => return pool.run(threads, work),
            // One job at a time: a second caller has rayon.
            Err(TryLockError::WouldBlock) => {}
        }
    }
    rayon::in_place_scope(|scope| {
        for number in 1..threads {
            scope.spawn(move |_| work(number));
        }
        work(0);
    });
}

static POOL: OnceLock<Pool> = OnceLock::new();

/// What is to be done, by threads of numbers below `threads`.
#[derive(Clone, Copy)]
struct Job {
    work: &'static Work<'static>,
    threads: usize,
}

struct Pool {
    turn: Mutex<()>,
    shared: Arc<Shared>,
    workers: Vec<(Thread, Arc<AtomicBool>)>,
}

/// What the caller and the workers share, on one cache line, which is all that a new job has to move between them.
#[repr(align(64))]
struct Shared {
    /// Counts jobs, so that a spinning worker sees a new one without a lock.
    posted: AtomicU64,
    /// The job in hand, while it is open to workers.
    job: Mutex<Option<Job>>,
    /// Workers inside the job.
    active: AtomicUsize,
    panicked: AtomicBool,
}

impl Pool {
    fn new(workers: usize) -> Self {
        let shared = Arc::new(Shared {
            posted: AtomicU64::new(0),
            job: Mutex::new(None),
            active: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
        });
        let workers = (1..=workers).filter_map(|number| {
            let (shared, asleep) = (shared.clone(), Arc::new(AtomicBool::new(false)));
            let flag = asleep.clone();
            let builder = thread::Builder::new().name(format!("eightfold-{number}"));
            // A machine that grants no more threads still gets its work done, by those there are.
            let handle = builder.spawn(move || serve(number, &shared, &flag)).ok()?;
            Some((handle.thread().clone(), asleep))
        });
        Pool { turn: Mutex::new(()), workers: workers.collect(), shared: shared.clone() }
    }

    /// Posts the job, works on it, closes it, and waits for the workers that are in it.
    fn run(&self, threads: usize, work: &Work<'_>) {
        self.shared.panicked.store(false, Ordering::Relaxed);
        // SAFETY: the reference outlives its use. It is only reachable through `job`, from which `Closed` removes it,
        // and by workers counted in `active` (they count themselves while they hold the lock on `job`), for which
        // `Closed` waits; and `Closed` is dropped before `work` can be, even if `work` panics.
        let lasting = unsafe { std::mem::transmute::<&Work<'_>, &'static Work<'static>>(work) };
        *lock(&self.shared.job) = Some(Job { work: lasting, threads });
        let closed = Closed { shared: &self.shared };
        self.shared.posted.fetch_add(1, Ordering::SeqCst);
        for (thread, asleep) in self.workers.iter().take(threads - 1) {
            if asleep.load(Ordering::SeqCst) {
                thread.unpark();
            }
        }
        work(0);
        drop(closed);
        if self.shared.panicked.load(Ordering::Relaxed) {
            panic!("a worker thread panicked");
        }
    }
}

/// Closes the job when dropped and waits until no worker is in it.
struct Closed<'a> {
    shared: &'a Shared,
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        *lock(&self.shared.job) = None;
        while self.shared.active.load(Ordering::Acquire) > 0 {
            std::hint::spin_loop();
        }
    }
}

/// A worker's life: wait for a job, join it if it is still open and has room, repeat.
fn serve(number: usize, shared: &Shared, asleep: &AtomicBool) {
    let mut seen = 0;
    loop {
        seen = wait_for_job(shared, asleep, seen);
        let open = lock(&shared.job);
        let joined = open.filter(|job| number < job.threads);
        if joined.is_some() {
            shared.active.fetch_add(1, Ordering::Relaxed);
        }
        // Not before the count is up: whoever closes the job under this lock must find this worker counted.
        drop(open);
        if let Some(Job { work, .. }) = joined {
            if catch_unwind(AssertUnwindSafe(|| work(number))).is_err() {
                shared.panicked.store(true, Ordering::Relaxed);
            }
            shared.active.fetch_sub(1, Ordering::Release);
        }
    }
}

/// Spins for a while, then sleeps, until a job beyond number `seen` is posted; returns its number.
fn wait_for_job(shared: &Shared, asleep: &AtomicBool, seen: u64) -> u64 {
    let start = Instant::now();
    loop {
        // The clock costs more than a look, so it is asked now and then only.
        for _ in 0..64 {
            let posted = shared.posted.load(Ordering::SeqCst);
            if posted != seen {
                return posted;
            }
            std::hint::spin_loop();
        }
        if start.elapsed() > LINGER {
            asleep.store(true, Ordering::SeqCst);
            // A job posted between the last look and the flag is seen here, one posted after it unparks.
            while shared.posted.load(Ordering::SeqCst) == seen {
                thread::park();
            }
            asleep.store(false, Ordering::SeqCst);
        }
    }
}

/// Nothing is left half-done under these locks, so a poisoned one is as good as any.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every task is done exactly once, whoever does it.
    fn count_to(threads: usize, tasks: usize) {
        let next = AtomicUsize::new(0);
        let done: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
        run(threads, &|_| {
            while let Some(task) = done.get(next.fetch_add(1, Ordering::Relaxed)) {
                task.fetch_add(1, Ordering::Relaxed);
            }
        });
        assert!(done.iter().all(|task| task.load(Ordering::Relaxed) == 1));
    }

    #[test]
    fn every_task_is_done_once_in_bursts_and_after_sleep() {
        for round in 0..2000 {
            count_to(2, 7);
            if round % 400 == 0 {
                thread::sleep(2 * LINGER);
            }
        }
    }

    #[test]
    fn callers_at_the_same_time_do_not_disturb_each_other() {
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..300).for_each(|_| count_to(3, 20)));
            }
        });
    }

    #[test]
    fn a_rayon_caller_stays_in_its_pool() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        pool.install(|| {
            run(3, &|_| assert!(rayon::current_thread_index().is_some(), "left the pool"));
            count_to(3, 50);
        });
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_survives() {
        for _ in 0..20 {
            let result = catch_unwind(|| run(2, &|_| panic!("on purpose")));
            assert!(result.is_err());
            count_to(2, 10);
        }
    }
}
