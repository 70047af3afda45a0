//! From sums to results: merge splits of the keys, divide by the softmax sum, convert, store.

use super::attend::{Attended, Block, Job};
use super::kernels::{Kernels, RowState};
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
    /// Stores sums · factor + means.
    fn store_row(kernels: &Kernels, sums: &[f32], factor: f32, means: &[f32], values: &mut [Self]);
}

impl Element for f32 {
    const ZERO: Self = 0.0;
    fn store_row(kernels: &Kernels, sums: &[f32], factor: f32, means: &[f32], values: &mut [Self]) {
        kernels.normalise_row(sums, factor, means, values);
    }
}

/// The half types convert a row of f32 at once.
macro_rules! half_element {
    ($half:ty) => {
        impl Element for $half {
            const ZERO: Self = <$half>::ZERO;
            fn store_row(kernels: &Kernels, sums: &[f32], factor: f32, means: &[f32], values: &mut [Self]) {
                let mut row = [0.0; MAX_HEAD_DIM];
                let row = &mut row[..values.len()];
                kernels.normalise_row(sums, factor, means, row);
                values.convert_from_f32_slice(row);
            }
        }
    };
}

half_element!(f16);
half_element!(bf16);

/// The part of the output that belongs to one block of rows, as runs of neighbouring elements.
pub(super) struct Rows<'a, T> {
    runs: Vec<&'a mut [T]>,
    order: Order,
    width: usize,
}

/// Which of (query head of the group, query) a run follows.
#[derive(Clone, Copy, PartialEq)]
enum Order {
    /// A run holds all queries of one head.
    ByHead,
    /// A run holds all heads of one query.
    ByQuery,
}

impl<'a, T> Rows<'a, T> {
    /// Cuts an output (`width` elements per row) into the rows of each block, in the order of (batch, kv head,
    /// block of queries).
    pub(super) fn cut(values: &'a mut [T], problem: &Problem, layout: Layout, width: usize, cut: &Cut) -> Vec<Self> {
        let shape = problem.shape();
        let group = shape.group();
        let order = if layout == Layout::Bshd { Order::ByQuery } else { Order::ByHead };
        let blocks = shape.batch * shape.kv_heads * cut.query_blocks;
        let mut rows: Vec<_> = (0..blocks).map(|_| Rows { runs: Vec::new(), order, width }).collect();
        let mut rest = values;
        let mut next_run = |len: usize| {
            let (run, tail) = std::mem::take(&mut rest).split_at_mut(len * width);
            rest = tail;
            run
        };
        for batch in 0..shape.batch {
            let index = |kv_head: usize, block: usize| (batch * shape.kv_heads + kv_head) * cut.query_blocks + block;
            match order {
                Order::ByHead => {
                    for head in 0..shape.query_heads {
                        for block in 0..cut.query_blocks {
                            let run = next_run(cut.queries(problem, block).len());
                            rows[index(head / group, block)].runs.push(run);
                        }
                    }
                }
                Order::ByQuery => {
                    for block in 0..cut.query_blocks {
                        for _ in cut.queries(problem, block) {
                            for kv_head in 0..shape.kv_heads {
                                rows[index(kv_head, block)].runs.push(next_run(group));
                            }
                        }
                    }
                }
            }
        }
        rows
    }

    /// The elements of one row: the `query`-th of the block, the `head`-th of the group.
    fn row(&mut self, query: usize, head: usize) -> &mut [T] {
        let (run, position) = match self.order {
            Order::ByHead => (head, query),
            Order::ByQuery => (query, head),
        };
        &mut self.runs[run][position * self.width..][..self.width]
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
    let shape = job.problem.shape();
    let group = shape.group();
    let head_dim = shape.head_dim;
    let value_head = Head::new(job.v, block.batch, block.kv_head);
    let means = value_head.means().unwrap_or(&[]);
    let first_query = block.queries.start;
    let places = block.queries.clone().flat_map(|query| (0..group).map(move |head| (query - first_query, head)));
    for ((row, state), (query, head)) in attended.states.iter().enumerate().zip(places) {
        let sums = &attended.output[row * attended.width..][..head_dim];
        let values = values.row(query, head);
        if state.sum == 0.0 {
            values.fill(T::ZERO);
            continue;
        }
        let factor = value_head.scale() / state.sum;
        T::store_row(job.kernels, sums, factor, means, values);
    }
    let Some(lse) = lse else { return };
    for (row, state) in attended.states.iter().enumerate() {
        let value = if state.sum == 0.0 {
            f32::NEG_INFINITY
        } else {
            (state.max + state.sum.log2()) * LN_2 + mean_score(job, block, row)
        };
        lse.row(row / group, row % group)[0] = value;
    }
}

/// The score of a row with the mean key, which a centred K leaves out of every score alike.
fn mean_score(job: &Job, block: &Block, row: usize) -> f32 {
    let Some(means) = Head::new(job.k, block.batch, block.kv_head).means() else { return 0.0 };
    let group = job.problem.shape().group();
    let (query, head) = (block.queries.start + row / group, block.kv_head * group + row % group);
    let mut values = vec![0.0; means.len()];
    fp8::decode_f32(job.q.format(), Head::new(job.q, block.batch, head).row(query), &mut values);
    let scale = job.q.scales().of_row(job.q.dims(), block.batch, head, query) * job.problem.softmax_scale();
    let score: f64 = values.iter().zip(means).map(|(value, mean)| f64::from(*value) * f64::from(*mean)).sum();
    (score * f64::from(scale)) as f32
}
