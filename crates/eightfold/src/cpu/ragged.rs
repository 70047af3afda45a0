//! Sequences of different lengths in one call, their keys packed or in pages.
//!
//! Each sequence is a problem of its own, with its own rows of Q, K and V; what they share is the list of tasks. A task is a
//! block of queries and a range of keys of one head, of a size that evens out the threads.

use super::attend::{self, Attended};
use super::config::{Config, Numbers};
use super::finish::{self, Element, Partial, Rows};
use super::kernels::InstructionSet;
use super::lanes::LANES;
use super::schedule::{self, MAX_ROWS, PACKING_ROWS, is_serial, share};
use super::scratch::Scratch;
use super::source::Source;
use super::task::{Block, Job};
use super::{BlockOutput, SCRATCH, SCRATCH_OF_HEADS, together};
use crate::error::Result;
use crate::output::{Output, Values};
use crate::problem::Problem;
use crate::report::RunReport;
use crate::serving::{Call, KeyValues};
use crate::tensor::Layout;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;

/// Tasks of a thread, more or less: what a queue evens out.
const TASKS_PER_THREAD: usize = 4;
/// Rows of a block at least, where a head's queries are split: a smaller one packs keys for too few of them.
const MIN_BLOCK_ROWS: usize = 64;
/// Keys of a split at least: a shorter one costs more to merge than it saves.
const MIN_SPLIT_KEYS: usize = 512;
/// Computes attention of a call whose every rule was checked, into an output that fits it.
pub(crate) fn run(config: &Config, call: &Call, output: &mut Output) -> Result<RunReport> {
    let instructions = InstructionSet::of(config.simd)?;
    let problems: Vec<Problem> = (0..call.queries.sequences()).map(|sequence| call.problem_of(sequence)).collect();
    let jobs = problems.iter().enumerate().map(|(sequence, problem)| {
        let [k, v] = match call.keys {
            KeyValues::Paged { k, v, table } => {
                [k, v].map(|tensor| Source::Pages { tensor, pages: table.pages_of(sequence), sequence })
            }
            KeyValues::Packed { k, v, rows } => {
                [k, v].map(|tensor| Source::Tensor { tensor, first: rows.rows(sequence).start })
            }
        };
        let q = Source::Tensor { tensor: call.q, first: call.queries.rows(sequence).start };
        Job { problem, config, instructions, q, k, v }
    });
    let (jobs, lse) = (jobs.collect::<Vec<_>>(), output.lse.as_deref_mut());
    Ok(match &mut output.values {
        Values::F32(values) => run_jobs(call, &jobs, values, lse),
        Values::F16(values) => run_jobs(call, &jobs, values, lse),
        Values::Bf16(values) => run_jobs(call, &jobs, values, lse),
    })
}

/// A block of rows, and what is read for it.
struct Work<'a, T> {
    job: &'a Job<'a>,
    output: BlockOutput<'a, T>,
    /// The ranges of keys, each with what it leaves for the merge if there is another.
    parts: Vec<(Range<usize>, Option<Partial>)>,
}

/// What a thread takes at a time.
enum Task<'w, 'a, T> {
    /// All keys of a block, whose rows it stores.
    Whole(&'w mut Work<'a, T>),
    /// Some keys of a block.
    Part(&'a Job<'a>, Block, &'w mut Option<Partial>),
}

fn run_jobs<T: Element>(call: &Call, jobs: &[Job], values: &mut [T], lse: Option<&mut [f32]>) -> RunReport {
    let (problem, schedule) = (call.problem, jobs[0].config.schedule);
    let plan = Plan::choose(call, jobs, rayon::current_num_threads());
    let lse_rows = lse.map(|lse| plan.rows(call, lse, Layout::Bhsd, 1, f32::NEG_INFINITY));
    let mut lse_rows = lse_rows.into_iter().flatten();
    let value_rows = plan.rows(call, values, problem.output_layout(), problem.shape().head_dim, T::ZERO);
    let kv_heads = problem.shape().kv_heads;
    let works = value_rows.into_iter().enumerate().map(|(index, values)| {
        let Segment { sequence, queries, splits, .. } = &plan.segments[index / kv_heads];
        let keys = splits[0].start..splits[splits.len() - 1].end;
        let block = Block { batch: 0, kv_head: index % kv_heads, queries: queries.clone(), keys };
        let parts = splits.iter().map(|keys| (keys.clone(), None)).collect();
        Work { job: &jobs[*sequence], output: BlockOutput { block, values, lse: lse_rows.next() }, parts }
    });
    let mut works: Vec<Work<T>> = works.collect();

    let mut groups: BTreeMap<_, Vec<Task<T>>> = BTreeMap::new();
    for (index, work) in works.iter_mut().enumerate() {
        let (segment, head) = (index / kv_heads, index % kv_heads);
        for (part, task) in work.tasks().into_iter().enumerate() {
            let group = if plan.segments[segment].together { 0 } else { head };
            groups.entry((segment, part, group)).or_default().push(task);
        }
    }
    let mut tasks: Vec<Vec<Task<T>>> = groups.into_values().collect();
    let group = problem.shape().group();
    tasks.sort_by_cached_key(|tasks| Reverse(tasks.iter().map(|task| task.cost(group)).sum::<usize>()));
    let Plan { threads, flop, .. } = plan;
    let report = schedule::for_each(tasks, schedule, threads, flop, run_tasks);
    works.retain(|work| work.parts.len() > 1);
    schedule::for_each(works, schedule, threads, flop, |work| {
        work.merge();
        RunReport::default()
    });
    report
}

impl<'a, T: Element> Work<'a, T> {
    fn tasks<'w>(&'w mut self) -> Vec<Task<'w, 'a, T>> {
        if self.parts.len() == 1 {
            return vec![Task::Whole(self)];
        }
        let Work { job, output, parts } = self;
        let part = |(keys, part): &'w mut (Range<usize>, Option<Partial>)| {
            Task::Part(job, Block { keys: keys.clone(), ..output.block.clone() }, part)
        };
        parts.iter_mut().map(part).collect()
    }

    /// Merges what the parts left, in their order, and stores the rows.
    fn merge(mut self) {
        let parts = self.parts.drain(..).filter_map(|(_, part)| part).collect();
        let Partial { output, value_scale, states } = finish::merge(parts);
        self.store(&Attended { output: &output, value_scale, states: &states, report: RunReport::default() });
    }

    fn store(&mut self, attended: &Attended) {
        let BlockOutput { block, values, lse } = &mut self.output;
        finish::store(self.job, block, attended, values, lse.as_mut());
    }
}

impl<'a, T: Element> Task<'_, 'a, T> {
    fn block(&self) -> &Block {
        match self {
            Task::Whole(work) => &work.output.block,
            Task::Part(_, block, _) => block,
        }
    }

    fn cost(&self, group: usize) -> usize {
        let block = self.block();
        (block.queries.len() * group + PACKING_ROWS) * block.keys.len()
    }

    fn job(&self) -> &'a Job<'a> {
        match self {
            Task::Whole(work) => work.job,
            Task::Part(job, ..) => job,
        }
    }

    /// Stores the rows, or what is left of them for the merge.
    fn keep(self, attended: &Attended) -> RunReport {
        match self {
            Task::Whole(work) => work.store(attended),
            Task::Part(.., part) => {
                let Attended { output, value_scale, states, .. } = *attended;
                *part = Some(Partial { output: output.to_vec(), value_scale, states: states.to_vec() });
            }
        }
        attended.report
    }
}

/// Runs a task, or those of all heads, which have the same queries and keys, together.
fn run_tasks<T: Element>(tasks: Vec<Task<T>>) -> RunReport {
    let Some(job) = tasks.first().map(|task| task.job()) else { return RunReport::default() };
    let blocks: Vec<Block> = tasks.iter().map(|task| task.block().clone()).collect();
    if let [block] = &blocks[..] {
        return SCRATCH.with_borrow_mut(|scratch| {
            let attended = attend::attend(job, block, scratch);
            tasks.into_iter().map(|task| task.keep(&attended)).sum()
        });
    }
    SCRATCH_OF_HEADS.with_borrow_mut(|scratches| {
        scratches.resize_with(scratches.len().max(blocks.len()), Scratch::default);
        let attended = together::attend(job, &blocks, scratches);
        tasks.into_iter().zip(&attended).map(|(task, attended)| task.keep(attended)).sum()
    })
}

/// Queries of one sequence, for each of its heads a block.
#[derive(Debug)]
struct Segment {
    sequence: usize,
    /// Rows of the packed Q.
    rows: Range<usize>,
    /// The same, counted in the sequence.
    queries: Range<usize>,
    /// Ranges of keys, at least one.
    splits: Vec<Range<usize>>,
    /// Whether the heads of a range of keys are one task.
    together: bool,
}

/// How the sequences are partitioned.
struct Plan {
    threads: usize,
    flop: f64,
    /// In the order of the rows.
    segments: Vec<Segment>,
}

impl Plan {
    /// Blocks and ranges of keys of about the same work, a few for each thread. Where results must not depend on the batch, every
    /// sequence is partitioned as if it were alone.
    fn choose(call: &Call, jobs: &[Job], threads: usize) -> Plan {
        let shape = call.problem.shape();
        let schedule = jobs[0].config.schedule;
        let work = |problem: &Problem| {
            let rows = problem.shape().query_len * shape.group();
            let multiply = problem.flop() / (4 * shape.head_dim) as f64;
            multiply + (rows.div_ceil(MAX_ROWS) * PACKING_ROWS * problem.shape().key_len * shape.kv_heads) as f64
        };
        let sum = |of: &dyn Fn(&Problem) -> f64| jobs.iter().map(|job| of(job.problem)).sum::<f64>();
        let flop = sum(&Problem::flop);
        let serial = is_serial(flop, schedule, threads);
        let all = sum(&work);
        let mut segments = Vec::new();
        for (sequence, job) in jobs.iter().enumerate() {
            let problem = job.problem;
            let (all, serial) = match problem.is_batch_invariant() {
                true => (work(problem), is_serial(problem.flop(), schedule, threads)),
                false => (all, serial),
            };
            let tasks = if serial { 1 } else { TASKS_PER_THREAD * threads };
            let parts_of = |work: f64| if all > 0.0 { (work / all * tasks as f64).ceil() as usize } else { 1 };
            let of_sequence = parts_of(work(problem));
            let parts = Parts {
                all: of_sequence,
                head: parts_of(work(problem) / shape.kv_heads as f64),
                busy: of_sequence.min(threads),
            };
            segment(call, sequence, job, parts, &mut segments);
        }
        Plan { threads: if serial { 1 } else { threads }, flop, segments }
    }

    /// Splits an output of `width` elements a row into the rows of each block, segment by segment and head by head. What is no
    /// block's becomes `rest`.
    fn rows<'v, T: Copy>(
        &self,
        call: &Call,
        values: &'v mut [T],
        layout: Layout,
        width: usize,
        rest: T,
    ) -> Vec<Rows<'v, T>> {
        let (shape, total) = (call.problem.shape(), call.q.dims().len);
        let (kv_heads, group) = (shape.kv_heads, shape.group());
        let mut blocks: Vec<Vec<&mut [T]>> = (0..self.segments.len() * kv_heads).map(|_| Vec::new()).collect();
        let mut values = values;
        let mut next = |rows: usize| values.split_off_mut(..rows * width).unwrap_or_default();
        if layout == Layout::Bshd {
            let mut row = 0;
            for (index, segment) in self.segments.iter().enumerate() {
                next((segment.rows.start - row) * shape.query_heads).fill(rest);
                for _ in segment.rows.clone() {
                    (0..kv_heads).for_each(|head| blocks[index * kv_heads + head].push(next(group)));
                }
                row = segment.rows.end;
            }
            next((total - row) * shape.query_heads).fill(rest);
        } else {
            for head in 0..shape.query_heads {
                let mut row = 0;
                for (index, segment) in self.segments.iter().enumerate() {
                    next(segment.rows.start - row).fill(rest);
                    blocks[index * kv_heads + head / group].push(next(segment.rows.len()));
                    row = segment.rows.end;
                }
                next(total - row).fill(rest);
            }
        }
        blocks.into_iter().map(if layout == Layout::Bshd { Rows::ByQuery } else { Rows::ByHead }).collect()
    }
}

/// In how many parts, more or less, the work is to be partitioned.
#[derive(Clone, Copy)]
struct Parts {
    /// Of a sequence.
    all: usize,
    /// Of one head of it, where those are tasks of their own.
    head: usize,
    /// How many keep every thread busy that works on the sequence.
    busy: usize,
}

/// Partitions the queries and keys of a sequence into about so many parts.
fn segment(call: &Call, sequence: usize, job: &Job, parts: Parts, segments: &mut Vec<Segment>) {
    let (rows, shape) = (call.queries.rows(sequence), job.problem.shape());
    let group = shape.group();
    let (count, block_rows) = (rows.len(), rows.len() * group);
    let needed = block_rows.div_ceil(MAX_ROWS).min(count);
    let blocks = parts.head.min(block_rows / MIN_BLOCK_ROWS).max(needed).min(count);
    let neighbours = match call.keys {
        KeyValues::Paged { k, v, .. } => [k, v].iter().all(|tensor| tensor.layout().heads_are_neighbours()),
        KeyValues::Packed { .. } => false,
    };
    // What `together` takes.
    let direct = job.config.numbers == Numbers::F32 && block_rows <= job.instructions.direct_rows();
    for block in 0..blocks {
        let queries = share(count, block, blocks);
        let keys = job.problem.visible_to(&queries);
        let together = neighbours && direct && keys.len() >= MIN_SPLIT_KEYS * parts.busy;
        let splits = if together { parts.all } else { parts.head }.div_ceil(blocks);
        let splits = splits.clamp(1, (keys.len() / MIN_SPLIT_KEYS).max(1));
        let size = keys.len().div_ceil(splits).next_multiple_of(LANES).max(LANES);
        // Ranges begin where panels of keys do.
        let first = keys.start / LANES * LANES;
        let starts = (first..keys.end.max(first + 1)).step_by(size);
        let splits = starts.map(|start| start..keys.end.min(start + size)).collect();
        let rows = rows.start + queries.start..rows.start + queries.end;
        segments.push(Segment { sequence, rows, queries, splits, together });
    }
}
