//! From sums to results: merge splits of the keys, divide by the softmax sum, convert, store.

use super::attend::Attended;
use super::kernels::{InstructionSet, Normalise, RowState, Sums};
use super::schedule::Partition;
use super::source::Head;
use super::task::{Block, Job, mean_score};
use crate::problem::{MAX_HEAD_DIM, Problem};
use crate::tensor::Layout;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use std::f64::consts::{LN_2, LOG2_E};

/// A number type that results are stored in.
pub(super) trait Element: Copy + Send {
    const ZERO: Self;
    /// Stores sums · factors + means in rows of `width`.
    fn store_rows(instructions: InstructionSet, rows: &Sums, width: usize, values: &mut [Self]);
}

impl Element for f32 {
    const ZERO: Self = 0.0;
    fn store_rows(instructions: InstructionSet, rows: &Sums, width: usize, values: &mut [Self]) {
        instructions.run(Normalise { rows, width, values });
    }
}

/// The half types are converted from f32 row by row.
macro_rules! half_element {
    ($half:ty) => {
        impl Element for $half {
            const ZERO: Self = <$half>::ZERO;
            fn store_rows(instructions: InstructionSet, rows: &Sums, width: usize, values: &mut [Self]) {
                let mut floats = [0.0; MAX_HEAD_DIM];
                for (row, values) in values.chunks_exact_mut(width).enumerate() {
                    let (sums, factor) = (&rows.sums[row * rows.stride..], row * rows.factor_stride);
                    let (factors, shares) = (&rows.factors[factor..], rows.shares.get(factor..).unwrap_or(&[]));
                    let rows = &Sums { sums, factors, shares, ..*rows };
                    instructions.run(Normalise { rows, width, values: &mut floats[..width] });
                    values.convert_from_f32_slice(&floats[..width]);
                }
            }
        }
    };
}

half_element!(f16);
half_element!(bf16);

/// The part of an output that belongs to one block of rows.
pub(super) enum Rows<'a, T> {
    /// All of it side by side: one head, laid out by heads. The common case, and the one that costs least to hand to
    /// another thread.
    Whole(&'a mut [T]),
    /// For every query head of the group, its queries side by side.
    ByHead(Vec<&'a mut [T]>),
    /// For every query, its heads of the group side by side.
    ByQuery(Vec<&'a mut [T]>),
}

impl<'a, T> Rows<'a, T> {
    /// Splits an output (`width` elements per row) into the rows of each block, in the order of (batch, kv head,
    /// block of queries).
    pub(super) fn of_blocks(
        values: &'a mut [T],
        problem: &Problem,
        layout: Layout,
        width: usize,
        partition: &Partition,
    ) -> Vec<Self> {
        let shape = problem.shape();
        let group = shape.group();
        let by_query = layout == Layout::Bshd;
        let mut rest = values;
        let mut next_run = |rows: usize| {
            let (run, tail) = std::mem::take(&mut rest).split_at_mut(rows * width);
            rest = tail;
            run
        };
        let queries = |block: usize| partition.queries(problem, block).len();
        let blocks = shape.batch * shape.kv_heads * partition.query_blocks;
        if group == 1 && !by_query {
            return (0..blocks).map(|index| Rows::Whole(next_run(queries(index % partition.query_blocks)))).collect();
        }
        let mut runs: Vec<Vec<&mut [T]>> = (0..blocks).map(|_| Vec::new()).collect();
        for batch in 0..shape.batch {
            let index =
                |kv_head: usize, block: usize| (batch * shape.kv_heads + kv_head) * partition.query_blocks + block;
            if by_query {
                for block in 0..partition.query_blocks {
                    for _ in 0..queries(block) {
                        for kv_head in 0..shape.kv_heads {
                            runs[index(kv_head, block)].push(next_run(group));
                        }
                    }
                }
            } else {
                for head in 0..shape.query_heads {
                    for block in 0..partition.query_blocks {
                        runs[index(head / group, block)].push(next_run(queries(block)));
                    }
                }
            }
        }
        runs.into_iter().map(if by_query { Rows::ByQuery } else { Rows::ByHead }).collect()
    }

    /// Hands on every run of neighbouring rows as (first row, distance to the next row, elements). Rows count by
    /// query first, then by the `group` heads of a query.
    fn for_runs(&mut self, group: usize, mut consume: impl FnMut(usize, usize, &mut [T])) {
        match self {
            Rows::Whole(run) => consume(0, 1, run),
            Rows::ByHead(runs) => runs.iter_mut().enumerate().for_each(|(head, run)| consume(head, group, run)),
            Rows::ByQuery(runs) => runs.iter_mut().enumerate().for_each(|(query, run)| consume(query * group, 1, run)),
        }
    }
}

/// What a split of the keys leaves for the merge.
pub(super) struct Partial {
    pub output: Vec<f32>,
    pub value_scale: f32,
    pub states: Vec<RowState>,
}

/// Merges splits of the keys of the same rows into the first of them.
pub(super) fn merge(mut partials: Vec<Partial>) -> Partial {
    let mut merged = partials.swap_remove(0);
    let width = merged.output.len() / merged.states.len();
    for partial in partials {
        // The same units where scales do not vary: 1, exactly.
        let unit = partial.value_scale / merged.value_scale;
        for (row, (state, other)) in merged.states.iter_mut().zip(&partial.states).enumerate() {
            if other.sum == 0.0 {
                continue;
            }
            let max = state.max.max(other.max);
            let (rescale, other_rescale) = ((state.max - max).exp2(), (other.max - max).exp2());
            *state = RowState { max, sum: state.sum * rescale + other.sum * other_rescale };
            let (rows, other_rescale) = (row * width..(row + 1) * width, other_rescale * unit);
            for (value, other) in merged.output[rows.clone()].iter_mut().zip(&partial.output[rows]) {
                *value = *value * rescale + other * other_rescale;
            }
        }
    }
    merged
}

/// Normalises the rows of a block and stores them, and their log-sum-exp where it is wanted.
pub(super) fn store<T: Element>(
    job: &Job,
    block: &Block,
    attended: &Attended,
    values: &mut Rows<T>,
    lse: Option<&mut Rows<f32>>,
) {
    let group = job.problem.shape().group();
    let value_dim = job.problem.output_dims().head_dim;
    let Attended { output, value_scale, states, .. } = *attended;
    let width = output.len() / states.len();
    let means = Head::new(job.v, block.batch, block.kv_head).means().unwrap_or(&[]);
    let factors: Vec<f32> = states.iter().map(|state| value_scale / state.sum).collect();
    let sinks = Sinks::new(job, block, states);
    let shares: &[f32] = sinks.as_ref().map_or(&[], |sinks| &sinks.shares);
    values.for_runs(group, |first, step, values| {
        let (sums, stride) = (&output[first * width..], step * width);
        let (factors, shares) = (&factors[first..], shares.get(first..).unwrap_or(&[]));
        let rows = Sums { sums, stride, factors, factor_stride: step, means, shares };
        T::store_rows(job.instructions, &rows, value_dim, values);
        // A row without keys has no mean to fall back on either.
        for (row, values) in values.chunks_exact_mut(value_dim).enumerate() {
            if states[first + row * step].sum == 0.0 {
                values.fill(T::ZERO);
            }
        }
    });
    let Some(lse) = lse else { return };
    lse.for_runs(group, |first, step, lse| {
        for (row, lse) in (first..).step_by(step).zip(lse) {
            *lse = match &sinks {
                Some(sinks) => sinks.lse[row],
                None => keys_lse(job, block, row, states[row]) as f32,
            };
        }
    });
}

/// The natural log-sum-exp of the keys that a row sees.
fn keys_lse(job: &Job, block: &Block, row: usize, state: RowState) -> f64 {
    let of_softmax = f64::from(state.max + state.sum.log2()) * LN_2;
    // Where scores are bounded, that of the mean key is in them.
    let means = Head::new(job.k, block.batch, block.kv_head).means().filter(|_| job.problem.softcap().is_none());
    of_softmax + means.map_or(0.0, |means| f64::from(mean_score(job, block, row, means)))
}

/// The sinks of rows, which join the softmax when all keys are in it.
struct Sinks {
    /// What share of each row's sum its keys have.
    shares: Vec<f32>,
    /// Each row's log-sum-exp.
    lse: Vec<f32>,
}

impl Sinks {
    fn new(job: &Job, block: &Block, states: &[RowState]) -> Option<Self> {
        let (sinks, group) = (job.q.sinks()?, job.problem.shape().group());
        let of_row = |(row, state): (usize, &RowState)| {
            let (_, head) = block.query_and_head(row, group);
            let (sink, keys) = (f64::from(sinks[head]), keys_lse(job, block, row, *state));
            let largest = sink.max(keys);
            let power = |logit: f64| ((logit - largest) * LOG2_E).exp2();
            let sum = power(sink) + power(keys);
            ((power(keys) / sum) as f32, (largest + sum.ln()) as f32)
        };
        let (shares, lse) = states.iter().enumerate().map(of_row).unzip();
        Some(Sinks { shares, lse })
    }
}
