//! Threads that stay awake between calls for a moment, for work of some twenty microseconds.
//!
//! Waking a sleeping thread takes longer than a small attention problem: measured at 1,8,32,64 on two threads, calls
//! through rayon alone took 38 µs at the median where 20 µs were possible. Workers here spin for [`LINGER`] after a
//! job before they sleep, and a job never waits for a worker that has not begun: whoever calls does the work itself,
//! and workers that come in time take their part of it. A small job wakes nobody unless one came shortly before: of calls that
//! come alone none would find the worker awake, and each would pay for waking it, the more where that happens on the caller's core.
//!
//! A caller on a rayon thread stays in its own pool instead, so that nested parallelism keeps to one set of threads. A process that
//! was forked from one with workers has none, and works alone.
//!
//! Where there are more threads than cores, some share the caller's. Those do not spin, and a caller that has waited for a
//! moment lets others have its core: the worker that it waits for may need it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// How long a worker waits for the next job before it sleeps.
const LINGER: Duration = Duration::from_micros(200);

/// Looks for a job after which a worker offers its core to others: some 10 µs. A caller may be waiting for just that core.
const PATIENCE: usize = 16 * LOOKS_PER_CLOCK;

/// Looks for a job between looks at the clock, which costs more.
const LOOKS_PER_CLOCK: usize = 64;

/// How often a caller looks for the end of workers before it gives its core away between looks: some 10 µs.
const LOOKS: usize = 1000;

/// Work for the thread of a given number.
type Work<'a> = dyn Fn(usize) + Sync + 'a;

/// Runs `work(0)` on the calling thread and, as they become free, `work(1)` … on up to `threads` − 1 others at the same
/// time. Returns when all of them are done. `work` must share what there is to do among its calls by itself, and
/// `work(0)` alone must be able to do all of it. The same thread gets the same number from call to call. Whether the work is
/// `small` decides whether it is worth waking somebody for.
pub(super) fn run(threads: usize, small: bool, work: &Work<'_>) {
    if threads > 1 && rayon::current_thread_index().is_none() {
        let pool = POOL.get_or_init(|| Pool::new(rayon::current_num_threads().saturating_sub(1)));
        if pool.process != process::id() {
            // A fork has none of its parent's threads, and may find the turn taken for ever.
            return work(0);
        }
        match pool.turn.try_lock() {
            Ok(mut turn) => return pool.run(&mut turn, threads, small, work),
            Err(TryLockError::Poisoned(turn)) => return pool.run(&mut turn.into_inner(), threads, small, work),
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

/// When the last job ended, if there was one.
type LastEnd = Option<Instant>;

struct Pool {
    /// Whose threads these are.
    process: u32,
    turn: Mutex<LastEnd>,
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
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let workers = (1..=workers).filter_map(|number| {
            let linger = if number < cores { LINGER } else { Duration::ZERO };
            let (shared, asleep) = (shared.clone(), Arc::new(AtomicBool::new(false)));
            let flag = asleep.clone();
            let builder = thread::Builder::new().name(format!("eightfold-{number}"));
            // A machine that grants no more threads still gets its work done, by those there are.
            let handle = builder.spawn(move || serve(number, linger, &shared, &flag)).ok()?;
            Some((handle.thread().clone(), asleep))
        });
        Pool { process: process::id(), turn: Mutex::new(None), workers: workers.collect(), shared: shared.clone() }
    }

    /// Posts the job, works on it, closes it, and waits for the workers that are in it.
    fn run(&self, last_end: &mut LastEnd, threads: usize, small: bool, work: &Work<'_>) {
        self.shared.panicked.store(false, Ordering::Relaxed);
        // SAFETY: the reference outlives its use. It is only reachable through `job`, from which `Closed` removes it,
        // and by workers counted in `active` (they count themselves while they hold the lock on `job`), for which
        // `Closed` waits; and `Closed` is dropped before `work` can be, even if `work` panics.
        let lasting = unsafe { std::mem::transmute::<&Work<'_>, &'static Work<'static>>(work) };
        *lock(&self.shared.job) = Some(Job { work: lasting, threads });
        let closed = Closed { shared: &self.shared };
        self.shared.posted.fetch_add(1, Ordering::SeqCst);
        if !small || last_end.is_some_and(|end| end.elapsed() < LINGER) {
            for (thread, asleep) in self.workers.iter().take(threads - 1) {
                if asleep.load(Ordering::SeqCst) {
                    thread.unpark();
                }
            }
        }
        work(0);
        drop(closed);
        *last_end = Some(Instant::now());
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
        let mut looks = 0;
        while self.shared.active.load(Ordering::Acquire) > 0 {
            looks += 1;
            if looks < LOOKS { std::hint::spin_loop() } else { thread::yield_now() }
        }
    }
}

/// A worker's life: wait for a job, join it if it is still open and has room, repeat.
fn serve(number: usize, linger: Duration, shared: &Shared, asleep: &AtomicBool) {
    let mut seen = 0;
    loop {
        seen = wait_for_job(linger, shared, asleep, seen);
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
fn wait_for_job(linger: Duration, shared: &Shared, asleep: &AtomicBool, seen: u64) -> u64 {
    let start = Instant::now();
    let mut looks = 0;
    loop {
        for _ in 0..LOOKS_PER_CLOCK {
            let posted = shared.posted.load(Ordering::SeqCst);
            if posted != seen {
                return posted;
            }
            std::hint::spin_loop();
        }
        looks += LOOKS_PER_CLOCK;
        if looks % PATIENCE == 0 {
            thread::yield_now();
        }
        if start.elapsed() > linger {
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
        run(threads, false, &|_| {
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
    fn more_threads_than_cores_do_every_task_once() {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let pool = Pool::new(4 * cores);
        for _ in 0..200 {
            let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
            pool.run(&mut None, 4 * cores + 1, false, &|_| {
                while next.fetch_add(1, Ordering::Relaxed) < 100 {
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
            assert_eq!(done.load(Ordering::Relaxed), 100);
        }
    }

    #[test]
    fn small_jobs_wake_a_worker_only_where_they_come_in_bursts() {
        let pool = Pool::new(1);
        let is_asleep = || pool.workers[0].1.load(Ordering::SeqCst);
        let fall_asleep = || {
            (0..10_000).any(|_| {
                is_asleep() || {
                    thread::sleep(LINGER);
                    false
                }
            })
        };
        let run = |last_end: &mut LastEnd, small| pool.run(last_end, 2, small, &|_| {});
        assert!(fall_asleep(), "a worker without work does not sleep");
        thread::sleep(100 * LINGER);
        // Whether a worker was woken shows in its flag, which it clears.
        let wakes = |last_end: &mut LastEnd, small| {
            run(last_end, small);
            (0..50).any(|_| {
                !is_asleep() || {
                    thread::sleep(LINGER / 4);
                    false
                }
            })
        };
        let long_ago = Instant::now() - 2 * LINGER;
        assert!(!wakes(&mut None, true) && !wakes(&mut Some(long_ago), true), "a small job alone woke the worker");
        let awake = (0..20).any(|_| wakes(&mut Some(Instant::now()), true));
        assert!(awake, "a burst of small jobs wakes nobody");
        assert!(fall_asleep());
        assert!((0..20).any(|_| fall_asleep() && wakes(&mut None, false)), "a large job wakes nobody");
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
            run(3, false, &|_| assert!(rayon::current_thread_index().is_some(), "left the pool"));
            count_to(3, 50);
        });
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_survives() {
        for _ in 0..20 {
            let result = catch_unwind(|| run(2, false, &|_| panic!("on purpose")));
            assert!(result.is_err());
            count_to(2, 10);
        }
    }
}
