//! How a problem is partitioned into blocks, and how the blocks reach the threads.

use super::config::Schedule;
use super::pool;
use super::task::Block;
use crate::problem::Problem;
use crate::report::RunReport;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Rows per block at most: what bounds the working memory.
pub(super) const MAX_ROWS: usize = 512;
/// Packing a tile of K and V costs about as much as this many query rows: what speaks against small blocks.
pub(super) const PACKING_ROWS: usize = 40;
/// Merging one row of one split costs about as much as this many keys of that row, and the calling thread does it alone:
/// what speaks against splitting the keys of many rows.
const MERGE_KEYS: usize = 32;
/// Keys per split at least: a shorter share costs more to merge than it saves.
const MIN_SPLIT_KEYS: usize = 256;
/// Below this many multiply-adds (some 20 µs of work) waking another thread does not pay.
const MIN_PARALLEL_FLOP: f64 = 1e6;
/// Below this (some 50 µs) a worker that sleeps is not woken for a call that comes alone: waking takes as long, and longer where
/// the system wakes it on the caller's core.
const MIN_WAKING_FLOP: f64 = 4e6;

/// How each head is partitioned: into blocks of queries, and each of those into ranges of keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Partition {
    /// Threads that will work.
    pub threads: usize,
    /// Blocks of queries per head.
    pub query_blocks: usize,
    /// Ranges of keys per block; the results are merged when all are done.
    pub key_splits: usize,
}

impl Partition {
    /// The partition whose slowest thread finishes first. Heads are the natural units; a head is split only where
    /// there are too few of them, by queries first and by keys where even those are few.
    ///
    /// Where results must not depend on the batch, every sequence is partitioned as if it were alone: the rows and
    /// the keys of a block share units of fixed point, and the order of sums.
    pub(super) fn choose(problem: &Problem, schedule: Schedule, threads: usize) -> Self {
        if problem.is_batch_invariant() && problem.shape().batch > 1 {
            let of_one = Partition::choose(&problem.deciding(), schedule, threads);
            let threads = if is_serial(problem.flop(), schedule, threads) { 1 } else { threads };
            return Partition { threads, ..of_one };
        }
        let shape = problem.shape();
        let heads = shape.batch * shape.kv_heads;
        let group = shape.group();
        let needed = (shape.query_len * group).div_ceil(MAX_ROWS).min(shape.query_len);
        if is_serial(problem.flop(), schedule, threads) {
            return Partition { threads: 1, query_blocks: needed, key_splits: 1 };
        }
        // Four tasks a thread even out what a queue can even out; with enough of them nothing need be split further.
        let most_blocks = needed.max((4 * threads).div_ceil(heads).min(shape.query_len));
        let keys = problem.visible_to(&(0..shape.query_len)).len();
        let most_splits = if heads * needed < threads { (keys / MIN_SPLIT_KEYS).clamp(1, threads) } else { 1 };
        let time = |query_blocks: usize, key_splits: usize| {
            let waves = (heads * query_blocks * key_splits).div_ceil(threads);
            let rows = shape.query_len.div_ceil(query_blocks) * group + PACKING_ROWS;
            let merged_rows = if key_splits == 1 { 0 } else { heads * shape.query_len * group * key_splits };
            waves * rows * keys.div_ceil(key_splits) + merged_rows * MERGE_KEYS
        };
        let candidates =
            (1..=most_splits).flat_map(|splits| (needed..=most_blocks).map(move |blocks| (blocks, splits)));
        let (query_blocks, key_splits) =
            candidates.min_by_key(|&(blocks, splits)| (time(blocks, splits), splits, blocks)).unwrap_or((needed, 1));
        Partition { threads, query_blocks, key_splits }
    }

    /// The queries of one block.
    pub(super) fn queries(&self, problem: &Problem, block: usize) -> Range<usize> {
        share(problem.shape().query_len, block, self.query_blocks)
    }

    /// The keys of one split, of all that some query sees.
    pub(super) fn keys(&self, problem: &Problem, split: usize) -> Range<usize> {
        let seen = problem.visible_to(&(0..problem.shape().query_len));
        let split = share(seen.len(), split, self.key_splits);
        seen.start + split.start..seen.start + split.end
    }
}

/// Whether one thread does it all.
pub(super) fn is_serial(flop: f64, schedule: Schedule, threads: usize) -> bool {
    schedule == Schedule::Serial || threads == 1 || flop < MIN_PARALLEL_FLOP
}

/// Part `index` of `parts` nearly equal parts of `0..len`.
pub(super) fn share(len: usize, index: usize, parts: usize) -> Range<usize> {
    len * index / parts..len * (index + 1) / parts
}

/// About how much a block has to do, up to a factor that all blocks share: visible keys grow evenly from its first
/// query to its last.
pub(super) fn cost(problem: &Problem, block: &Block) -> usize {
    let [first, last] = [block.queries.start, block.queries.end - 1].map(|query| problem.visible(query).len());
    (first + last) * block.queries.len()
}

/// Does the work of every task on up to `threads` threads, the calling one among them.
///
/// Every thread has a share of its own: a contiguous one under the static schedule, every `threads`-th task under the
/// queue. It begins with its own share, so that the same thread meets the same heads from call to call and finds them
/// in its cache, and then takes what is left of the others': task by task under the queue, a share that nobody has
/// begun under the static schedule. `flop` is about what there is to do.
pub(super) fn for_each<T: Send>(
    tasks: Vec<T>,
    schedule: Schedule,
    threads: usize,
    flop: f64,
    work: impl Fn(T) -> RunReport + Sync,
) -> RunReport {
    let count = tasks.len();
    let threads = threads.min(count);
    if threads <= 1 {
        return tasks.into_iter().map(work).sum();
    }
    let tasks: Vec<Mutex<Option<T>>> = tasks.into_iter().map(|task| Mutex::new(Some(task))).collect();
    let do_task = |index: usize| match tasks[index].lock().ok().and_then(|mut task| task.take()) {
        Some(task) => work(task),
        None => RunReport::default(),
    };
    let taken: Vec<Counter> = (0..threads).map(|_| Counter::default()).collect();
    let total = Mutex::new(RunReport::default());
    pool::run(threads, flop < MIN_WAKING_FLOP, &|thread| {
        let mut report = RunReport::default();
        for owner in (0..threads).map(|offset| (thread + offset) % threads) {
            let next = || taken[owner].0.fetch_add(1, Ordering::Relaxed);
            match schedule {
                Schedule::Serial | Schedule::Static => {
                    if next() == 0 {
                        report += share(count, owner, threads).map(do_task).sum();
                    }
                }
                Schedule::Queue => {
                    while let Some(index) = Some(owner + next() * threads).filter(|index| *index < count) {
                        report += do_task(index);
                    }
                }
            }
        }
        if let Ok(mut total) = total.lock() {
            *total += report;
        }
    });
    total.into_inner().unwrap_or_default()
}

/// A counter on a cache line of its own.
#[derive(Default)]
#[repr(align(64))]
struct Counter(AtomicUsize);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::Shape;

    #[test]
    fn every_task_is_done_once_under_every_schedule() {
        for schedule in [Schedule::Serial, Schedule::Static, Schedule::Queue] {
            for count in [1, 2, 3, 10, 17] {
                for threads in [1, 2, 3, 5] {
                    let done: Vec<AtomicUsize> = (0..count).map(|_| AtomicUsize::new(0)).collect();
                    let report = for_each(done.iter().collect(), schedule, threads, 1e9, |task| {
                        task.fetch_add(1, Ordering::Relaxed);
                        RunReport { tiles: 1, ..RunReport::default() }
                    });
                    assert_eq!(report.tiles, count as u64);
                    let once = done.iter().all(|task| task.load(Ordering::Relaxed) == 1);
                    assert!(once, "{schedule}, {count} tasks, {threads} threads");
                }
            }
        }
    }

    #[test]
    fn partitions_cover_every_query_and_key_within_the_bounds() {
        let shapes =
            ["1,8,512,64", "1,1,1,1,9000,64", "1,32,4,1,8192,128", "2,1,5000,64", "1,1,4000,64", "1,6,2,3,100,8"];
        for shape in shapes {
            let problem = Problem::new(shape.parse::<Shape>().unwrap()).unwrap();
            for threads in [1, 2, 16, 64] {
                let partition = Partition::choose(&problem, Schedule::Queue, threads);
                let queries: Vec<usize> =
                    (0..partition.query_blocks).flat_map(|block| partition.queries(&problem, block)).collect();
                assert_eq!(queries, (0..problem.shape().query_len).collect::<Vec<_>>(), "{shape} on {threads}");
                let keys: Vec<usize> =
                    (0..partition.key_splits).flat_map(|split| partition.keys(&problem, split)).collect();
                assert_eq!(keys, (0..problem.shape().key_len).collect::<Vec<_>>(), "{shape} on {threads}");
                let rows = partition.queries(&problem, 0).len() * problem.shape().group();
                assert!(rows <= MAX_ROWS.max(problem.shape().group()), "{shape} on {threads}: {rows} rows in a block");
            }
        }
    }

    #[test]
    fn few_heads_are_split_by_queries_and_one_query_by_keys() {
        let partition = |shape: &str, threads| {
            Partition::choose(&Problem::new(shape.parse().unwrap()).unwrap(), Schedule::Queue, threads)
        };
        assert_eq!(partition("1,8,512,64", 2), Partition { threads: 2, query_blocks: 1, key_splits: 1 });
        assert_eq!(partition("1,1,512,64", 2), Partition { threads: 2, query_blocks: 2, key_splits: 1 });
        assert_eq!(partition("1,1,2048,64", 4).key_splits, 1);
        assert_eq!(partition("1,8,512,64", 16), Partition { threads: 16, query_blocks: 2, key_splits: 1 });
        assert_eq!(partition("1,1,1,1,65536,128", 4), Partition { threads: 4, query_blocks: 1, key_splits: 4 });
        assert_eq!(partition("1,1,16,64", 8).threads, 1, "too little work to share");
    }
}
