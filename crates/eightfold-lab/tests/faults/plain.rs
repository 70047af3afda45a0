//! A plain attention loop whose every decision can be broken.

use eightfold::{Output, Problem, Shape, Values};
use half::{bf16, f16};

/// The decisions of the loop; the default ones are right.
pub struct Plain {
    /// How many keys a query sees.
    pub visible_keys: fn(&Problem, usize) -> usize,
    /// The key/value head of a query head.
    pub kv_head: fn(Shape, usize) -> usize,
    /// What happens to the accumulator of P·V after every addition.
    pub accumulator: fn(f32) -> f32,
    /// What happens to each score.
    pub score: fn(f32) -> f32,
    /// What happens to each weight.
    pub weight: fn(f32) -> f32,
}

impl Default for Plain {
    fn default() -> Self {
        Plain {
            visible_keys: |problem, query| problem.visible(query).end,
            kv_head: |shape, head| head / shape.group(),
            accumulator: |sum| sum,
            score: |score| score,
            weight: |weight| weight,
        }
    }
}

impl Plain {
    /// Attention on values in `[B,H,S,D]` order.
    pub fn run(&self, problem: &Problem, [q, k, v]: [&[f64]; 3], output: &mut Output) {
        let shape = problem.shape();
        let Shape { batch, query_heads, kv_heads, query_len, key_len, head_dim } = shape;
        let [q, k, v] = [q, k, v].map(|values| values.iter().map(|value| *value as f32).collect::<Vec<_>>());
        for (row, q) in q.chunks(head_dim).enumerate().take(batch * query_heads * query_len) {
            let (head, query) = (row / query_len, row % query_len);
            let kv_head = head / query_heads * kv_heads + (self.kv_head)(shape, head % query_heads);
            let keys = kv_head * key_len * head_dim..(kv_head + 1) * key_len * head_dim;
            let visible = (self.visible_keys)(problem, query);
            let scores: Vec<f32> = k[keys.clone()]
                .chunks(head_dim)
                .take(visible)
                .map(|key| (self.score)(dot(q, key) * problem.softmax_scale()))
                .collect();
            let most = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let (mut sum, mut mean) = (0.0, vec![0.0; head_dim]);
            for (score, value) in scores.iter().zip(v[keys].chunks(head_dim)) {
                let weight = (self.weight)((score - most).exp());
                sum += weight;
                mean.iter_mut().zip(value).for_each(|(o, v)| *o = (self.accumulator)(*o + weight * v));
            }
            if visible > 0 {
                mean.iter_mut().for_each(|value| *value /= sum);
            }
            store_row(problem, output, row, &mean);
            if let Some(lse) = &mut output.lse {
                lse[row] = if visible > 0 { most + sum.ln() } else { f32::NEG_INFINITY };
            }
        }
    }
}

/// Where channel 0 of a row of `[B,Hq,Sq]` lies in the output.
pub fn row_offset(problem: &Problem, row: usize) -> usize {
    let Shape { query_heads, query_len, .. } = problem.shape();
    let head = row / query_len;
    let strides = problem.output_layout().strides(problem.shape().query_dims());
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
    }
}

/// Eight sums side by side, so that the compiler makes a vector of them; head_dim is a multiple of 8.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0f32; 8];
    for (a, b) in a.chunks_exact(8).zip(b.chunks_exact(8)) {
        for lane in 0..8 {
            sums[lane] += a[lane] * b[lane];
        }
    }
    sums.iter().sum()
}
