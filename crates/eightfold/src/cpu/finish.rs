//! From sums to results: merge splits of the keys, divide by the softmax sum, convert, store.

use super::attend::{Attended, Block, Job};
use super::kernels::{Kernels, RowState, Sums};
use super::schedule::Cut;
use super::source::Head;
use crate::fp8;
use crate::problem::{MAX_HEAD_DIM, Problem};
use crate::tensor::Layout;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use std::f32::consts::LN_2;

/// A number type that results are stored in.
pub(super) trait Element: Copy + Send {
    const ZERO: Self;
    /// Stores sums · factors + means in rows of `width`.
    fn store_rows(kernels: &Kernels, rows: &Sums, width: usize, values: &mut [Self]);
}

impl Element for f32 {
    const ZERO: Self = 0.0;
    fn store_rows(kernels: &Kernels, rows: &Sums, width: usize, values: &mut [Self]) {
        kernels.normalise(rows, width, values);
    }
}

/// The half types are converted from f32 row by row.
macro_rules! half_element {
    ($half:ty) => {
        impl Element for $half {
            const ZERO: Self = <$half>::ZERO;
            fn store_rows(kernels: &Kernels, rows: &Sums, width: usize, values: &mut [Self]) {
                let mut floats = [0.0; MAX_HEAD_DIM];
                for (row, values) in values.chunks_exact_mut(width).enumerate() {
                    let (sums, factors) = (&rows.sums[row * rows.stride..], &rows.factors[row * rows.factor_stride..]);
                    kernels.normalise(&Sums { sums, factors, ..*rows }, width, &mut floats[..width]);
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
    /// Cuts an output (`width` elements per row) into the rows of each block, in the order of (batch, kv head,
    /// block of queries).
    pub(super) fn cut(values: &'a mut [T], problem: &Problem, layout: Layout, width: usize, cut: &Cut) -> Vec<Self> {
        let shape = problem.shape();
        let group = shape.group();
        let by_query = layout == Layout::Bshd;
        let mut rest = values;
        let mut next_run = |rows: usize| {
            let (run, tail) = std::mem::take(&mut rest).split_at_mut(rows * width);
            rest = tail;
            run
        };
        let queries = |block: usize| cut.queries(problem, block).len();
        let blocks = shape.batch * shape.kv_heads * cut.query_blocks;
        if group == 1 && !by_query {
            return (0..blocks).map(|index| Rows::Whole(next_run(queries(index % cut.query_blocks)))).collect();
        }
        let mut runs: Vec<Vec<&mut [T]>> = (0..blocks).map(|_| Vec::new()).collect();
        for batch in 0..shape.batch {
            let index = |kv_head: usize, block: usize| (batch * shape.kv_heads + kv_head) * cut.query_blocks + block;
            if by_query {
                for block in 0..cut.query_blocks {
                    for _ in 0..queries(block) {
                        for kv_head in 0..shape.kv_heads {
                            runs[index(kv_head, block)].push(next_run(group));
                        }
                    }
                }
            } else {
                for head in 0..shape.query_heads {
                    for block in 0..cut.query_blocks {
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
    pub states: Vec<RowState>,
}

/// Merges splits of the keys of the same rows into the first of them.
pub(super) fn merge(mut partials: Vec<Partial>, width: usize) -> Partial {
    let mut merged = partials.swap_remove(0);
    for partial in partials {
        for (row, (state, other)) in merged.states.iter_mut().zip(&partial.states).enumerate() {
            if other.sum == 0.0 {
                continue;
            }
            let max = state.max.max(other.max);
            let (alpha, beta) = ((state.max - max).exp2(), (other.max - max).exp2());
            *state = RowState { max, sum: state.sum * alpha + other.sum * beta };
            let rows = row * width..(row + 1) * width;
            for (value, other) in merged.output[rows.clone()].iter_mut().zip(&partial.output[rows]) {
                *value = *value * alpha + other * beta;
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
    let head_dim = job.problem.shape().head_dim;
    let Attended { output, width, value_scale, states, .. } = *attended;
    let means = Head::new(job.v, block.batch, block.kv_head).means().unwrap_or(&[]);
    let factors: Vec<f32> = states.iter().map(|state| value_scale / state.sum).collect();
    values.for_runs(group, |first, step, values| {
        let (sums, stride) = (&output[first * width..], step * width);
        let rows = Sums { sums, stride, factors: &factors[first..], factor_stride: step, means };
        T::store_rows(job.kernels, &rows, head_dim, values);
        // A row without keys has no mean to fall back on either.
        for (row, values) in values.chunks_exact_mut(head_dim).enumerate() {
            if states[first + row * step].sum == 0.0 {
                values.fill(T::ZERO);
            }
        }
    });
    let Some(lse) = lse else { return };
    let key_means = Head::new(job.k, block.batch, block.kv_head).means();
    lse.for_runs(group, |first, step, lse| {
        for (row, lse) in (first..).step_by(step).zip(lse) {
            let mean = key_means.map_or(0.0, |means| mean_score(job, block, row, means));
            *lse = (states[row].max + states[row].sum.log2()) * LN_2 + mean;
        }
    });
}

/// The score of a row with the mean key, which a centred K leaves out of every score alike.
fn mean_score(job: &Job, block: &Block, row: usize, means: &[f32]) -> f32 {
    let (query, head) = block.place(row, job.problem.shape().group());
    let mut values = vec![0.0; means.len()];
    fp8::decode_f32(job.q.format(), Head::new(job.q, block.batch, head).row(query), &mut values);
    let scale = job.q.scales().of_row(job.q.dims(), block.batch, head, query) * job.problem.softmax_scale();
    let score: f64 = values.iter().zip(means).map(|(value, mean)| f64::from(*value) * f64::from(*mean)).sum();
    (score * f64::from(scale)) as f32
}
