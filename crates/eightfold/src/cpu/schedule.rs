//! How a problem is cut into blocks, and how the blocks reach the threads.

use super::attend::Block;
use super::config::Schedule;
use super::pool;
use crate::problem::Problem;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Rows per block at most: what bounds the working memory.
pub(super) const MAX_ROWS: usize = 512;
/// Packing a tile of K and V costs about as much as this many query rows: what speaks against small blocks.
const PACKING_ROWS: usize = 40;
/// Keys per split at least: a shorter share costs more to merge than it saves.
const MIN_SPLIT_KEYS: usize = 256;
/// Below this many multiply-adds (some 20 µs of work) waking another thread does not pay.
const MIN_PARALLEL_FLOP: f64 = 1e6;

/// How each head is cut: into blocks of queries, and each of those into ranges of keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cut {
    /// Threads that will work.
    pub threads: usize,
    /// Blocks of queries per head.
    pub query_blocks: usize,
    /// Ranges of keys per block; the results are merged when all are done.
    pub key_splits: usize,
}

impl Cut {
    /// The cut whose slowest thread finishes first. Heads are the natural units; a head is split only where
    /// there are too few of them, by queries first and by keys where even those are few.
    pub(super) fn choose(problem: &Problem, schedule: Schedule, threads: usize) -> Self {
        let shape = problem.shape();
        let heads = shape.batch * shape.kv_heads;
        let group = shape.group();
        let needed = (shape.query_len * group).div_ceil(MAX_ROWS).min(shape.query_len);
        let serial = schedule == Schedule::Serial || threads == 1 || problem.flop() < MIN_PARALLEL_FLOP;
        if serial {
            return Cut { threads: 1, query_blocks: needed, key_splits: 1 };
        }
        let most_blocks = shape.query_len.min(needed * threads * 4);
        let most_splits = (shape.key_len / MIN_SPLIT_KEYS).clamp(1, threads);
        let time = |query_blocks: usize, key_splits: usize| {
            let waves = (heads * query_blocks * key_splits).div_ceil(threads);
            let rows = shape.query_len.div_ceil(query_blocks) * group + PACKING_ROWS;
            waves * rows * shape.key_len.div_ceil(key_splits)
        };
        let cuts = (1..=most_splits).flat_map(|splits| (needed..=most_blocks).map(move |blocks| (blocks, splits)));
        let (query_blocks, key_splits) =
            cuts.min_by_key(|&(blocks, splits)| (time(blocks, splits), splits, blocks)).unwrap_or((needed, 1));
        Cut { threads, query_blocks, key_splits }
    }

    /// The queries of one block.
    pub(super) fn queries(&self, problem: &Problem, block: usize) -> Range<usize> {
        share(problem.shape().query_len, block, self.query_blocks)
    }

    /// The keys of one split.
    pub(super) fn keys(&self, problem: &Problem, split: usize) -> Range<usize> {
        share(problem.shape().key_len, split, self.key_splits)
    }
}

/// Part `index` of `parts` nearly equal parts of `0..len`.
fn share(len: usize, index: usize, parts: usize) -> Range<usize> {
    len * index / parts..len * (index + 1) / parts
}

/// The multiply-adds of a block, up to a factor that all blocks share.
pub(super) fn cost(problem: &Problem, block: &Block) -> usize {
    block
        .queries
        .clone()
        .map(|query| problem.visible_keys(query).min(block.keys.end).saturating_sub(block.keys.start))
        .sum()
}

/// Does the work of every task on up to `threads` threads, the calling one among them. Tasks are taken from an atomic
/// counter: one at a time, or under the static schedule a thread's whole share at once.
pub(super) fn for_each<T: Send>(tasks: Vec<T>, schedule: Schedule, threads: usize, work: impl Fn(T) + Sync) {
    if threads == 1 || tasks.len() == 1 {
        tasks.into_iter().for_each(work);
        return;
    }
    let count = tasks.len();
    let portions = if schedule == Schedule::Static { threads } else { count };
    let tasks: Vec<Mutex<Option<T>>> = tasks.into_iter().map(|task| Mutex::new(Some(task))).collect();
    let next = AtomicUsize::new(0);
    pool::run(threads.min(count), &|| {
        loop {
            let portion = next.fetch_add(1, Ordering::Relaxed);
            if portion >= portions {
                break;
            }
            let taken = share(count, portion, portions).filter_map(|index| tasks[index].lock().ok()?.take());
            taken.for_each(&work);
        }
    });
}
