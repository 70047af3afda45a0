//! The oracle on a few queries of one head: of a large problem, all would take too long.

use super::arithmetic::Arithmetic;
use super::rows::{ROWS, Rows};
use super::{Reference, pack};
use crate::problem::Problem;
use std::ops::Range;

/// Attention in float64 of some queries of one head: `q` holds those queries, `k` and `v` the keys that some of them
/// [sees](Problem::visible_to).
pub fn attention_of_queries(
    problem: &Problem,
    queries: Range<usize>,
    [q, k, v]: [&[f64]; 3],
    sink: Option<f64>,
) -> Reference {
    let (head_dim, value_dim) = (problem.shape().head_dim, problem.value_dims().head_dim);
    let keys = problem.visible_to(&queries);
    let panels = pack(k, keys.len().max(1), head_dim);
    let mut reference = Reference { values: vec![0.0; queries.len() * value_dim], lse: vec![0.0; queries.len()] };
    let blocks = reference.values.chunks_mut(ROWS * value_dim).zip(reference.lse.chunks_mut(ROWS));
    let mut weights = Vec::new();
    for (block, (values, lse)) in blocks.enumerate() {
        let first = block * ROWS;
        let visible = |row: usize| {
            let seen = problem.visible(queries.start + first + row);
            seen.start.saturating_sub(keys.start)..seen.end.saturating_sub(keys.start)
        };
        let rows = Rows {
            queries: &q[first * head_dim..][..lse.len() * head_dim],
            panels: &panels,
            values: v,
            visible: std::array::from_fn(|row| if row < lse.len() { visible(row) } else { 0..0 }),
            scoring: problem.scoring(),
            sink,
            head_dim,
            value_dim,
        };
        Arithmetic::detect().attend(&rows, &mut weights, values, lse);
    }
    reference
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::{Mask, Shape, Window};
    use crate::reference::attention_with_sinks;

    #[test]
    fn a_part_is_what_it_is_in_the_whole() {
        let numbers =
            |count: usize, step: f64| -> Vec<f64> { (0..count).map(|index| (index as f64 * step).sin()).collect() };
        for (query_len, key_len) in [(50, 90), (90, 50)] {
            let shape = Shape { query_len, key_len, ..Shape::new(1, 1, 1, 24) };
            for (mask, left, right) in
                [(Mask::None, None, None), (Mask::Causal, Some(20), None), (Mask::None, Some(9), Some(7))]
            {
                let problem = Problem::new(shape).unwrap().with_mask(mask).with_window(Window::new(left, right));
                let problem = problem.with_value_dim(16).unwrap().with_sinks();
                let (q, k) = (numbers(query_len * 24, 0.7), numbers(key_len * 24, 1.3));
                let v = numbers(key_len * 16, 2.9);
                let whole = attention_with_sinks(&problem, &q, &k, &v, &[0.5]).unwrap();
                for queries in [0..7, 11..33, query_len - 5..query_len, 0..query_len] {
                    let keys = problem.visible_to(&queries);
                    let inputs = [
                        &q[queries.start * 24..queries.end * 24],
                        &k[keys.start * 24..keys.end * 24],
                        &v[keys.start * 16..keys.end * 16],
                    ];
                    let part = attention_of_queries(&problem, queries.clone(), inputs, Some(0.5));
                    let expected = (&whole.values[queries.start * 16..queries.end * 16], &whole.lse[queries.clone()]);
                    let pairs = part.values.iter().zip(expected.0).chain(part.lse.iter().zip(expected.1));
                    for (found, expected) in pairs {
                        assert!((found - expected).abs() < 1e-14, "{problem}, {queries:?}: {found} for {expected}");
                    }
                }
            }
        }
    }
}
