//! A plain attention loop whose every decision can be broken.

use eightfold::{Fp8Tensor, Output, Problem, Shape, Values};
use eightfold_lab::gates::Case;
use half::{bf16, f16};
use rayon::prelude::*;
use std::ops::Range;

/// The decisions of the loop; the default ones are right.
#[derive(Clone, Copy)]
pub struct Plain {
    /// The keys that a query sees.
    pub visible: fn(&Problem, usize) -> Range<usize>,
    /// The key/value head of a query head.
    pub kv_head: fn(Shape, usize) -> usize,
    /// Which key's row of V goes with a key's weight.
    pub value_of: fn(usize) -> usize,
    /// What happens to the accumulator of P·V after every addition.
    pub accumulator: fn(f64) -> f64,
    /// What happens to each score.
    pub score: fn(f64) -> f64,
    /// The bound of the scores.
    pub softcap: fn(&Problem) -> Option<f32>,
    /// The sink of a query head.
    pub sink: fn(&[f32], usize) -> Option<f32>,
    /// The value that a sink stands for.
    pub sink_value: f64,
    /// What happens to each weight, by its key.
    pub weight: fn(f64, usize) -> f64,
    /// What a key's weight is multiplied by, which is right where it is 1.
    pub factor: fn(usize) -> f64,
    /// Whether weights are summed after what happened to them.
    pub sums_rounded: bool,
    /// What happens to each element of the output.
    pub output: fn(f32) -> f32,
}

impl Default for Plain {
    fn default() -> Self {
        Plain {
            visible: Problem::visible,
            kv_head: |shape, head| head / shape.group(),
            value_of: |key| key,
            accumulator: |sum| sum,
            score: |score| score,
            softcap: Problem::softcap,
            sink: |sinks, head| sinks.get(head).copied(),
            sink_value: 0.0,
            weight: |weight, _| weight,
            factor: |_| 1.0,
            sums_rounded: true,
            output: |value| value,
        }
    }
}

impl Plain {
    /// Attention on values in `[B,H,S,D]` order.
    pub fn run(&self, problem: &Problem, tensors: [&[f64]; 3], sinks: &[f32], output: &mut Output) {
        let Shape { batch, query_heads, query_len, .. } = problem.shape();
        self.run_on(problem, tensors, sinks, 0..batch * query_heads * query_len, output);
    }

    /// Some rows of a case, counted over `[B,Hq,Sq]`.
    pub fn run_rows(&self, case: &Case, rows: Range<usize>, output: &mut Output) {
        let [q, k, v] = [&case.q, &case.k, &case.v].map(Fp8Tensor::dequantize);
        self.run_on(&case.problem, [&q, &k, &v], case.q.sinks().unwrap_or(&[]), rows, output);
    }

    fn run_on(
        &self,
        problem: &Problem,
        [q, k, v]: [&[f64]; 3],
        sinks: &[f32],
        rows: Range<usize>,
        output: &mut Output,
    ) {
        let shape = problem.shape();
        let Shape { query_heads, kv_heads, query_len, key_len, head_dim, .. } = shape;
        let value_dim = problem.value_dims().head_dim;
        let computed: Vec<(usize, Vec<f32>, f64)> = rows
            .into_par_iter()
            .map(|row| {
                let (head, query) = (row / query_len, row % query_len);
                let kv_head = head / query_heads * kv_heads + (self.kv_head)(shape, head % query_heads);
                let first = kv_head * key_len;
                let row_of = |key: usize, dim: usize| (first + key) * dim..(first + key + 1) * dim;
                let visible = (self.visible)(problem, query);
                let q = &q[row * head_dim..(row + 1) * head_dim];
                let score = |key| {
                    let score = (self.score)(dot(q, &k[row_of(key, head_dim)]) * f64::from(problem.softmax_scale()));
                    let bounded = |softcap: f64| softcap * (score / softcap).tanh();
                    (self.softcap)(problem).map_or(score, |softcap| bounded(softcap.into()))
                };
                let scores: Vec<f64> = visible.clone().map(score).collect();
                let sink = (self.sink)(sinks, head % query_heads).map(f64::from);
                let most = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
                let of_sink = sink.map_or(0.0, |sink| (sink - most).exp());
                let (mut sum, mut mean) = (of_sink, vec![of_sink * self.sink_value; value_dim]);
                for (key, score) in visible.clone().zip(&scores) {
                    let exact = (score - most).exp() * (self.factor)(key);
                    let weight = (self.weight)(exact, key);
                    sum += if self.sums_rounded { weight } else { exact };
                    let value = &v[row_of((self.value_of)(key), value_dim)];
                    mean.iter_mut().zip(value).for_each(|(o, v)| *o = (self.accumulator)(*o + weight * v));
                }
                if visible.is_empty() {
                    mean.fill(0.0);
                }
                let divisor = if visible.is_empty() { 1.0 } else { sum };
                let values = mean.iter().map(|value| (self.output)((value / divisor) as f32)).collect();
                (row, values, if sum > 0.0 { most + sum.ln() } else { f64::NEG_INFINITY })
            })
            .collect();
        for (row, values, row_lse) in computed {
            store_row(problem, output, row, &values);
            if let Some(lse) = &mut output.lse {
                lse[row] = row_lse as f32;
            }
        }
    }
}

/// Where channel 0 of a row of `[B,Hq,Sq]` lies in the output.
pub fn row_offset(problem: &Problem, row: usize) -> usize {
    let Shape { query_heads, query_len, .. } = problem.shape();
    let head = row / query_len;
    let strides = problem.output_layout().strides(problem.output_dims());
    strides.row_offset(head / query_heads, head % query_heads, row % query_len)
}

/// Writes one row in the output's layout and number format.
pub fn store_row(problem: &Problem, output: &mut Output, row: usize, values: &[f32]) {
    let offset = row_offset(problem, row);
    for (index, value) in values.iter().enumerate() {
        store(output, offset + index, *value);
    }
}

/// Writes one element in the output's number format.
pub fn store(output: &mut Output, index: usize, value: f32) {
    match &mut output.values {
        Values::F32(values) => values[index] = value,
        Values::F16(values) => values[index] = f16::from_f32(value),
        Values::Bf16(values) => values[index] = bf16::from_f32(value),
        other => panic!("{other:?} is not covered"),
    }
}

/// Eight sums side by side, so that the compiler makes a vector of them; head_dim is a multiple of 8.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    let mut sums = [0f64; 8];
    for (a, b) in a.chunks_exact(8).zip(b.chunks_exact(8)) {
        for lane in 0..8 {
            sums[lane] += a[lane] * b[lane];
        }
    }
    sums.iter().sum()
}
