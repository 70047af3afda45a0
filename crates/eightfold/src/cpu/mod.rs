//! The CPU backend: a tiled online softmax over FP8 codes, SIMD chosen at run time.
//!
//! Memory beyond inputs and outputs: each thread keeps buffers of at most [`working_bytes`], which depends on the
//! tile sizes and the head and never on the number of keys; where the keys of one head are split over threads, each
//! split adds one row of partial sums per query row.

mod attend;
mod choose;
mod config;
mod finish;
mod isa;
mod kernels;
mod lanes;
mod pool;
mod schedule;
mod scratch;
mod source;
mod stages;
mod units;

pub(crate) use choose::consider;
pub use choose::{best, describe};
pub use config::{Config, Exp, KNOBS, Numbers, Schedule, Simd};
pub use isa::{Features, name};
pub use stages::{STAGES, Stage, find as find_stage};

use crate::error::Result;
use crate::output::{Output, Values};
use crate::problem::Problem;
use crate::report::RunReport;
use crate::tensor::{Fp8Tensor, Layout};
use attend::{Attended, Block, Job, Scratch};
use finish::{Partial, Rows};
use kernels::Kernels;
use schedule::Cut;
use source::Head;
use std::cell::RefCell;
use std::sync::Mutex;

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Computes attention; the plan has checked the tensors and the output against the problem.
pub(crate) fn run(
    config: &Config,
    problem: &Problem,
    q: &Fp8Tensor,
    k: &Fp8Tensor,
    v: &Fp8Tensor,
    output: &mut Output,
) -> Result<RunReport> {
    let kernels = Kernels::of(config.simd)?;
    let job = Job { problem, config, kernels: &kernels, q, k, v };
    let lse = output.lse.as_deref_mut();
    Ok(match &mut output.values {
        Values::F32(values) => run_blocks(&job, values, lse),
        Values::F16(values) => run_blocks(&job, values, lse),
        Values::Bf16(values) => run_blocks(&job, values, lse),
    })
}

/// One block with the rows of the output that it fills.
struct Task<'a, T> {
    block: Block,
    values: Rows<'a, T>,
    lse: Option<Rows<'a, f32>>,
}

fn run_blocks<T: finish::Element>(job: &Job, values: &mut [T], lse: Option<&mut [f32]>) -> RunReport {
    let problem = job.problem;
    let shape = problem.shape();
    let cut = Cut::choose(problem, job.config.schedule, rayon::current_num_threads());
    let lse_rows = lse.map(|lse| Rows::cut(lse, problem, Layout::Bhsd, 1, &cut));
    let mut lse_rows = lse_rows.into_iter().flatten();
    let value_rows = Rows::cut(values, problem, problem.output_layout(), shape.head_dim, &cut);
    let tasks: Vec<Task<T>> = value_rows
        .into_iter()
        .enumerate()
        .map(|(index, values)| {
            let (head, block) = (index / cut.query_blocks, index % cut.query_blocks);
            let block = Block {
                batch: head / shape.kv_heads,
                kv_head: head % shape.kv_heads,
                queries: cut.queries(problem, block),
                keys: 0..shape.key_len,
            };
            Task { block, values, lse: lse_rows.next() }
        })
        .collect();
    if cut.key_splits == 1 { run_whole(job, &cut, tasks) } else { run_split(job, &cut, tasks) }
}

/// Every block attends to all keys and stores its rows at once.
fn run_whole<T: finish::Element>(job: &Job, cut: &Cut, mut tasks: Vec<Task<T>>) -> RunReport {
    tasks.sort_by_cached_key(|task| std::cmp::Reverse(schedule::cost(job.problem, &task.block)));
    schedule::for_each(tasks, job.config.schedule, cut.threads, |mut task| {
        SCRATCH.with_borrow_mut(|scratch| {
            let attended = attend::attend(job, &task.block, scratch);
            finish::store(job, &task.block, &attended, &mut task.values, task.lse.as_mut());
            attended.report
        })
    })
}

/// Every block attends to several ranges of keys, each a task of its own, whose results are merged.
fn run_split<T: finish::Element>(job: &Job, cut: &Cut, tasks: Vec<Task<T>>) -> RunReport {
    let partials: Vec<Vec<Mutex<Option<Partial>>>> =
        tasks.iter().map(|_| (0..cut.key_splits).map(|_| Mutex::new(None)).collect()).collect();
    let splits = tasks.iter().zip(&partials).flat_map(|(task, partials)| {
        partials
            .iter()
            .enumerate()
            .map(|(split, partial)| (Block { keys: cut.keys(job.problem, split), ..task.block.clone() }, partial))
    });
    let report = schedule::for_each(splits.collect(), job.config.schedule, cut.threads, |(block, partial)| {
        SCRATCH.with_borrow_mut(|scratch| {
            let Attended { output, states, report, .. } = attend::attend(job, &block, scratch);
            if let Ok(mut partial) = partial.lock() {
                *partial = Some(Partial { output: output.to_vec(), states: states.to_vec() });
            }
            report
        })
    });
    let width = job.problem.shape().head_dim.next_multiple_of(lanes::LANES);
    for (mut task, partials) in tasks.into_iter().zip(partials) {
        let partials = partials.into_iter().filter_map(|partial| partial.into_inner().ok().flatten()).collect();
        let Partial { output, states } = finish::merge(partials, width);
        let value_scale = Head::new(job.v, task.block.batch, task.block.kv_head).largest_scale();
        let attended = Attended { output: &output, width, value_scale, states: &states, report };
        finish::store(job, &task.block, &attended, &mut task.values, task.lse.as_mut());
    }
    report
}

/// The most memory that one thread keeps for this config and problem, in bytes, beyond inputs and outputs: the
/// packed block of Q and its sums, one packed tile of K and V, and one tile of scores and weights, in both numbers.
pub fn working_bytes(config: &Config, problem: &Problem) -> usize {
    attend::working_bytes(config, problem)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::Shape;

    fn scratch_after(config: Config, shape: Shape) -> (usize, usize) {
        let problem = Problem::new(shape).unwrap();
        let quantize = |dims: crate::Dims| {
            let values: Vec<f32> = (0..dims.count()).map(|index| ((index * 7919) % 1000) as f32 - 500.0).collect();
            crate::quantize(&values, dims).unwrap()
        };
        let (q, k, v) = (quantize(shape.query_dims()), quantize(shape.key_dims()), quantize(shape.key_dims()));
        let kernels = Kernels::of(config.simd).unwrap();
        let job = Job { problem: &problem, config: &config, kernels: &kernels, q: &q, k: &k, v: &v };
        let cut = Cut::choose(&problem, Schedule::Serial, 1);
        let mut scratch = Scratch::default();
        for block in 0..cut.query_blocks {
            let queries = cut.queries(&problem, block);
            let block = Block { batch: 0, kv_head: 0, queries, keys: 0..shape.key_len };
            attend::attend(&job, &block, &mut scratch);
        }
        (scratch.bytes(), working_bytes(&config, &problem))
    }

    #[test]
    fn working_memory_is_bounded_and_independent_of_the_sequence() {
        for numbers in [Numbers::F32, Numbers::Int16] {
            let config = Config { numbers, simd: Simd::Portable, tile_queries: 32, tile_keys: 64, ..Config::default() };
            let mut sizes = Vec::new();
            for len in [600, 1200, 2400] {
                let (used, bound) = scratch_after(config, Shape::new(1, 1, len, 40));
                assert!(used <= bound, "{numbers}, {len}: {used} bytes used, {bound} promised");
                sizes.push(bound);
            }
            assert_eq!(sizes[0], sizes[2], "the bound grew with the sequence");
            let decode = Shape { query_len: 1, ..Shape::new(1, 1, 5000, 40) };
            let (used, bound) = scratch_after(config, decode);
            assert!(used <= bound && bound < sizes[0], "one query: {used} used, {bound} promised");
        }
    }
}
