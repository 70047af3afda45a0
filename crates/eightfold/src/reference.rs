//! The float64 oracle.

use crate::error::{Error, Result};
use crate::problem::{Problem, Shape};
use rayon::prelude::*;

/// Attention in float64, with the log-sum-exp.
#[derive(Debug, Clone, PartialEq)]
pub struct Reference {
    /// `[B,Hq,Sq,D]`, zero for rows that see no key.
    pub values: Vec<f64>,
    /// `[B,Hq,Sq]`, −∞ for rows that see no key.
    pub lse: Vec<f64>,
}

/// Query rows that share every load of a key or a value.
const ROWS: usize = 4;

/// Keys, or channels, side by side in the vectors of the inner loops.
const LANES: usize = 4;

/// Attention in float64 on inputs in `[B,H,S,D]` order, threaded over rows.
pub fn attention(problem: &Problem, q: &[f64], k: &[f64], v: &[f64]) -> Result<Reference> {
    let shape = problem.shape();
    for (name, input, dims) in
        [("q", q, shape.query_dims()), ("k", k, shape.key_dims()), ("v", v, shape.key_dims())]
    {
        if input.len() != dims.count() {
            return Err(Error::invalid(
                name,
                format!("has {} elements, but its dims {dims} hold {}", input.len(), dims.count()),
                "pass one value per element, in [B,H,S,D] order",
            ));
        }
    }
    let Shape { query_len, key_len, head_dim, .. } = shape;
    let panels_per_head = key_len.div_ceil(LANES);
    let mut panels = vec![[0.0; LANES]; shape.batch * shape.kv_heads * panels_per_head * head_dim];
    panels
        .par_chunks_mut(panels_per_head * head_dim)
        .zip(k.par_chunks(key_len * head_dim))
        .for_each(|(panels, keys)| pack(panels, keys, head_dim));

    let mut values = vec![0.0; q.len()];
    let mut lse = vec![0.0; q.len() / head_dim];
    let blocks = query_len.div_ceil(ROWS);
    // One item per head: the heads' rows are cut into blocks of `ROWS` that do not cross heads.
    let tasks: Vec<(usize, (&mut [f64], &mut [f64]))> = values
        .chunks_mut(query_len * head_dim)
        .zip(lse.chunks_mut(query_len))
        .flat_map(|(values, lse)| values.chunks_mut(ROWS * head_dim).zip(lse.chunks_mut(ROWS)))
        .enumerate()
        .collect();
    tasks.into_par_iter().for_each_init(Vec::new, |weights, (task, (values, lse))| {
        let (head_index, first_row) = (task / blocks, task % blocks * ROWS);
        let (batch, head) = (head_index / shape.query_heads, head_index % shape.query_heads);
        let kv_head = batch * shape.kv_heads + head / shape.group();
        let queries = &q[(head_index * query_len + first_row) * head_dim..][..values.len()];
        let panels = &panels[kv_head * panels_per_head * head_dim..][..panels_per_head * head_dim];
        let v = &v[kv_head * key_len * head_dim..][..key_len * head_dim];
        let visible: [usize; ROWS] = std::array::from_fn(|row| {
            if row < lse.len() { problem.visible_keys(first_row + row) } else { 0 }
        });
        scores(queries, panels, head_dim, visible, weights);
        let scale = f64::from(problem.softmax_scale());
        let sums = softmax(weights, visible, scale, lse);
        weighted_sum(weights, v, head_dim, sums, values);
    });
    Ok(Reference { values, lse })
}

/// Lays the keys out so that `LANES` of them lie side by side, channel after channel.
fn pack(panels: &mut [[f64; LANES]], keys: &[f64], head_dim: usize) {
    for (panel, keys) in panels.chunks_mut(head_dim).zip(keys.chunks(LANES * head_dim)) {
        for (lane, key) in keys.chunks(head_dim).enumerate() {
            for (channel, value) in panel.iter_mut().zip(key) {
                channel[lane] = *value;
            }
        }
    }
}

/// The products of each query with each key that any of them sees, `[key][row]`.
fn scores(
    queries: &[f64],
    panels: &[[f64; LANES]],
    head_dim: usize,
    visible: [usize; ROWS],
    scores: &mut Vec<[f64; ROWS]>,
) {
    let mut columns = vec![[0.0; ROWS]; head_dim];
    for (row, query) in queries.chunks(head_dim).enumerate() {
        for (column, value) in columns.iter_mut().zip(query) {
            column[row] = *value;
        }
    }
    let keys = visible.into_iter().max().unwrap_or(0);
    scores.clear();
    for panel in panels.chunks(head_dim).take(keys.div_ceil(LANES)) {
        let mut sums = [[0.0; ROWS]; LANES];
        for (key, query) in panel.iter().zip(&columns) {
            for lane in 0..LANES {
                for row in 0..ROWS {
                    sums[lane][row] += key[lane] * query[row];
                }
            }
        }
        scores.extend(sums);
    }
    scores.truncate(keys);
}

/// Turns scores into unnormalised weights, gives each row's log-sum-exp, and returns each row's sum.
fn softmax(
    weights: &mut [[f64; ROWS]],
    visible: [usize; ROWS],
    scale: f64,
    lse: &mut [f64],
) -> [f64; ROWS] {
    let mut sums = [0.0; ROWS];
    for row in 0..ROWS {
        let (seen, unseen) = weights.split_at_mut(visible[row]);
        let largest = seen.iter().fold(f64::NEG_INFINITY, |max, score| max.max(score[row]));
        for weight in &mut *seen {
            weight[row] = (scale * (weight[row] - largest)).exp();
            sums[row] += weight[row];
        }
        for weight in unseen {
            weight[row] = 0.0;
        }
        if let Some(lse) = lse.get_mut(row) {
            *lse =
                if seen.is_empty() { f64::NEG_INFINITY } else { scale * largest + sums[row].ln() };
        }
    }
    sums
}

/// The mean of the values under each row's weights; zeros where a row has none.
fn weighted_sum(
    weights: &[[f64; ROWS]],
    v: &[f64],
    head_dim: usize,
    sums: [f64; ROWS],
    output: &mut [f64],
) {
    for first in (0..head_dim).step_by(LANES) {
        let mut totals = [[0.0; LANES]; ROWS];
        for (weight, value) in weights.iter().zip(v.chunks_exact(head_dim)) {
            let Some(value) = value[first..].first_chunk::<LANES>() else { unreachable!() };
            for row in 0..ROWS {
                for lane in 0..LANES {
                    totals[row][lane] += weight[row] * value[lane];
                }
            }
        }
        for (row, output) in output.chunks_mut(head_dim).enumerate() {
            if sums[row] != 0.0 {
                for lane in 0..LANES {
                    output[first + lane] = totals[row][lane] / sums[row];
                }
            }
        }
    }
}
