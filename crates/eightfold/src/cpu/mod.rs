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
mod path;
mod pool;
mod ragged;
mod schedule;
mod scratch;
mod source;
mod stages;
mod task;
mod together;

pub(crate) use choose::consider;
pub use choose::{best, describe};
pub use config::{Config, Exp, KNOBS, Numbers, Schedule, Simd};
pub use isa::Features;
pub use path::tiles;
pub(crate) use ragged::run as run_ragged;
pub use scratch::working_bytes;
pub use stages::{STAGES, Stage, find as find_stage};

use crate::error::Result;
use crate::output::{Output, Values};
use crate::problem::Problem;
use crate::report::RunReport;
use crate::tensor::{Fp8Tensor, Layout};
use attend::Attended;
use finish::{Partial, Rows};
use kernels::InstructionSet;
use schedule::Partition;
use scratch::Scratch;
use std::cell::RefCell;
use task::{Block, Job};

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
    /// One for each head that a thread attends to together with others.
    static SCRATCH_OF_HEADS: RefCell<Vec<Scratch>> = RefCell::default();
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
    let instructions = InstructionSet::of(config.simd)?;
    let job = Job { problem, config, instructions, q: q.into(), k: k.into(), v: v.into() };
    let lse = output.lse.as_deref_mut();
    Ok(match &mut output.values {
        Values::F32(values) => run_blocks(&job, values, lse),
        Values::F16(values) => run_blocks(&job, values, lse),
        Values::Bf16(values) => run_blocks(&job, values, lse),
    })
}

/// One block with the rows of the output that it fills.
struct BlockOutput<'a, T> {
    block: Block,
    values: Rows<'a, T>,
    lse: Option<Rows<'a, f32>>,
}

fn run_blocks<T: finish::Element>(job: &Job, values: &mut [T], lse: Option<&mut [f32]>) -> RunReport {
    let problem = job.problem;
    let shape = problem.shape();
    let partition = Partition::choose(problem, job.config.schedule, rayon::current_num_threads());
    let lse_rows = lse.map(|lse| Rows::of_blocks(lse, problem, Layout::Bhsd, 1, &partition));
    let mut lse_rows = lse_rows.into_iter().flatten();
    let value_rows =
        Rows::of_blocks(values, problem, problem.output_layout(), problem.value_dims().head_dim, &partition);
    let tasks: Vec<BlockOutput<T>> = value_rows
        .into_iter()
        .enumerate()
        .map(|(index, values)| {
            let (head, block) = (index / partition.query_blocks, index % partition.query_blocks);
            let block = Block {
                batch: head / shape.kv_heads,
                kv_head: head % shape.kv_heads,
                queries: partition.queries(problem, block),
                keys: 0..shape.key_len,
            };
            BlockOutput { block, values, lse: lse_rows.next() }
        })
        .collect();
    if partition.key_splits == 1 { run_whole(job, &partition, tasks) } else { run_split(job, &partition, tasks) }
}

/// Every block attends to all keys and stores its rows at once.
fn run_whole<T: finish::Element>(job: &Job, partition: &Partition, mut tasks: Vec<BlockOutput<T>>) -> RunReport {
    tasks.sort_by_cached_key(|task| std::cmp::Reverse(schedule::cost(job.problem, &task.block)));
    schedule::for_each(tasks, job.config.schedule, partition.threads, job.problem.flop(), |mut task| {
        SCRATCH.with_borrow_mut(|scratch| {
            let attended = attend::attend(job, &task.block, scratch);
            finish::store(job, &task.block, &attended, &mut task.values, task.lse.as_mut());
            attended.report
        })
    })
}

/// Every block attends to several ranges of keys, each a task of its own, whose results are merged.
fn run_split<T: finish::Element>(job: &Job, partition: &Partition, tasks: Vec<BlockOutput<T>>) -> RunReport {
    let mut partials: Vec<Option<Partial>> = Vec::new();
    partials.resize_with(tasks.len() * partition.key_splits, || None);
    let splits = partials.iter_mut().enumerate().map(|(index, partial)| {
        let (task, split) = (&tasks[index / partition.key_splits], index % partition.key_splits);
        (Block { keys: partition.keys(job.problem, split), ..task.block.clone() }, partial)
    });
    let (schedule, threads, flop) = (job.config.schedule, partition.threads, job.problem.flop());
    let report = schedule::for_each(splits.collect(), schedule, threads, flop, |(block, partial)| {
        SCRATCH.with_borrow_mut(|scratch| {
            let Attended { output, value_scale, states, report } = attend::attend(job, &block, scratch);
            *partial = Some(Partial { output: output.to_vec(), value_scale, states: states.to_vec() });
            report
        })
    });
    let mut partials = partials.into_iter().flatten();
    for mut task in tasks {
        let Partial { output, value_scale, states } =
            finish::merge(partials.by_ref().take(partition.key_splits).collect());
        let attended = Attended { output: &output, value_scale, states: &states, report };
        finish::store(job, &task.block, &attended, &mut task.values, task.lse.as_mut());
    }
    report
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
        let instructions = InstructionSet::of(config.simd).unwrap();
        let (q, k, v) = ((&q).into(), (&k).into(), (&v).into());
        let job = Job { problem: &problem, config: &config, instructions, q, k, v };
        let partition = Partition::choose(&problem, Schedule::Serial, 1);
        let mut scratch = Scratch::default();
        for block in 0..partition.query_blocks {
            let queries = partition.queries(&problem, block);
            let block = Block { batch: 0, kv_head: 0, queries, keys: 0..shape.key_len };
            attend::attend(&job, &block, &mut scratch);
        }
        (scratch.bytes(), working_bytes(&config, &problem))
    }

    #[test]
    fn working_memory_is_bounded_and_independent_of_the_sequence() {
        let paths =
            [(Numbers::F32, Simd::Portable), (Numbers::Int16, Simd::Portable), (Numbers::Bf16x2, Simd::AmxTwin)];
        for (numbers, simd) in paths {
            let config = Config { numbers, simd, tile_queries: 32, tile_keys: 64, ..Config::default() };
            let mut sizes = Vec::new();
            for len in [600, 900, 1200] {
                let (used, bound) = scratch_after(config, Shape::new(1, 1, len, 40));
                assert!(used <= bound, "{numbers}, {len}: {used} bytes used, {bound} promised");
                sizes.push(bound);
            }
            assert_eq!(sizes[0], sizes[2], "the bound grew with the sequence");
            // Packed, and read where it lies.
            for (head_dim, tile_queries, tile_keys) in [(40, 32, 64), (32, 32, 64), (16, 8, 512)] {
                let config = Config { tile_queries, tile_keys, ..config };
                for len in [1, 5000] {
                    let decode = Shape { query_len: 1, ..Shape::new(1, 1, len, head_dim) };
                    let (used, bound) = scratch_after(config, decode);
                    assert!(used <= bound, "one query, {len} keys: {used} used, {bound} promised");
                }
            }
        }
    }
}
