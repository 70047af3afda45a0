//! The float64 oracle.

mod arithmetic;
pub(crate) mod queries;
mod ragged;
mod rows;

use crate::error::{Error, Result};
use crate::problem::{Problem, Shape};
use crate::tensor::check_sinks;
use arithmetic::Arithmetic;
pub use ragged::ragged_attention;
use rayon::prelude::*;
use rows::{LANES, ROWS, Rows};

/// Attention in float64, with the log-sum-exp.
#[derive(Debug, Clone, PartialEq)]
pub struct Reference {
    /// `[B,Hq,Sq,Dv]`, zero for rows that see no key.
    pub values: Vec<f64>,
    /// `[B,Hq,Sq]`; for rows that see no key their sink, or −∞ where they have none.
    pub lse: Vec<f64>,
}

/// Attention in float64 on inputs in `[B,H,S,D]` order, threaded over rows.
pub fn attention(problem: &Problem, q: &[f64], k: &[f64], v: &[f64]) -> Result<Reference> {
    if problem.has_sinks() {
        let fix = "give them to attention_with_sinks";
        return Err(Error::invalid("sinks", format!("the problem {problem} has them, but none are given"), fix));
    }
    attend(problem, q, k, v, &[], Arithmetic::detect())
}

/// The same for a problem that has sinks, one for each query head.
pub fn attention_with_sinks(problem: &Problem, q: &[f64], k: &[f64], v: &[f64], sinks: &[f64]) -> Result<Reference> {
    check_sinks(sinks, if problem.has_sinks() { problem.shape().query_heads } else { 0 })?;
    attend(problem, q, k, v, sinks, Arithmetic::detect())
}

fn attend(
    problem: &Problem,
    q: &[f64],
    k: &[f64],
    v: &[f64],
    sinks: &[f64],
    arithmetic: Arithmetic,
) -> Result<Reference> {
    let shape = problem.shape();
    for (name, input, dims) in
        [("q", q, shape.query_dims()), ("k", k, shape.key_dims()), ("v", v, problem.value_dims())]
    {
        if input.len() != dims.count() {
            return Err(Error::invalid(
                name,
                format!("has {} elements, but its dims {dims} hold {}", input.len(), dims.count()),
                "pass one value per element, in [B,H,S,D] order",
            ));
        }
    }
    let (Shape { query_len, key_len, head_dim, .. }, value_dim) = (shape, problem.value_dims().head_dim);
    let panels = pack(k, key_len, head_dim);
    let panels_per_head = key_len.div_ceil(LANES) * head_dim;

    let mut values = vec![0.0; problem.output_dims().count()];
    let mut lse = vec![0.0; q.len() / head_dim];
    let blocks = query_len.div_ceil(ROWS);
    // Blocks of rows do not cross heads, so each reads the keys and values of one head.
    let tasks: Vec<_> = values
        .chunks_mut(query_len * value_dim)
        .zip(lse.chunks_mut(query_len))
        .flat_map(|(values, lse)| values.chunks_mut(ROWS * value_dim).zip(lse.chunks_mut(ROWS)))
        .enumerate()
        .collect();
    tasks.into_par_iter().for_each_init(Vec::new, |weights, (task, (values, lse))| {
        let (head_index, first_row) = (task / blocks, task % blocks * ROWS);
        let (batch, head) = (head_index / shape.query_heads, head_index % shape.query_heads);
        let kv_head = batch * shape.kv_heads + head / shape.group();
        let rows = Rows {
            queries: &q[(head_index * query_len + first_row) * head_dim..][..lse.len() * head_dim],
            panels: &panels[kv_head * panels_per_head..][..panels_per_head],
            values: &v[kv_head * key_len * value_dim..][..key_len * value_dim],
            visible: std::array::from_fn(|row| if row < lse.len() { problem.visible(first_row + row) } else { 0..0 }),
            scoring: problem.scoring(),
            sink: sinks.get(head).copied(),
            head_dim,
            value_dim,
        };
        arithmetic.attend(&rows, weights, values, lse);
    });
    Ok(Reference { values, lse })
}

/// Lays the keys of each head out so that `LANES` of them lie side by side, channel after channel;
/// the last panel of a head is filled up with zeros.
fn pack(k: &[f64], key_len: usize, head_dim: usize) -> Vec<[f64; LANES]> {
    let panels_per_head = key_len.div_ceil(LANES) * head_dim;
    let heads = k.len() / (key_len * head_dim);
    let mut panels = vec![[0.0; LANES]; heads * panels_per_head];
    panels.par_chunks_mut(panels_per_head).zip(k.par_chunks(key_len * head_dim)).for_each(|(panels, keys)| {
        for (panel, keys) in panels.chunks_mut(head_dim).zip(keys.chunks(LANES * head_dim)) {
            for (lane, key) in keys.chunks(head_dim).enumerate() {
                for (channel, value) in panel.iter_mut().zip(key) {
                    channel[lane] = *value;
                }
            }
        }
    });
    panels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fused_and_plain_arithmetic_differ_by_rounding_alone() {
        let shape = Shape { query_len: 33, key_len: 70, kv_heads: 1, ..Shape::new(2, 2, 1, 24) };
        let numbers =
            |count: usize, step: f64| -> Vec<f64> { (0..count).map(|index| (index as f64 * step).sin()).collect() };
        let q = numbers(shape.query_dims().count(), 0.7);
        let k = numbers(shape.key_dims().count(), 1.3);
        let v = numbers(shape.key_dims().count(), 2.9);
        let problem = Problem::new(shape).unwrap().causal();
        let plain = attend(&problem, &q, &k, &v, &[], Arithmetic::Plain).unwrap();
        let best = attention(&problem, &q, &k, &v).unwrap();
        let pairs = plain.values.iter().zip(&best.values).chain(plain.lse.iter().zip(&best.lse));
        for (plain, best) in pairs {
            assert!((plain - best).abs() < 1e-14, "{plain} and {best}");
        }
    }
}
