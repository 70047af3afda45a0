//! The oracle for sequences of different lengths: each as a problem of its own, gathered token by token.

use super::{Reference, attention};
use crate::error::Result;
use crate::problem::Problem;
use crate::serving::{Call, KeyValues, Packed};
use crate::tensor::Fp8Tensor;

/// Attention in float64 on what [`serving::attention`](crate::serving::attention) takes, with values in `[Hq,Sq,D]` order and the
/// log-sum-exp in `[Hq,Sq]` order, over the rows of the packed Q.
pub fn ragged_attention(problem: &Problem, q: &Fp8Tensor, queries: &Packed, keys: KeyValues) -> Result<Reference> {
    let call = Call::new(problem, q, queries, keys)?;
    let (shape, dims) = (problem.shape(), q.dims());
    let mut reference =
        Reference { values: vec![0.0; dims.count()], lse: vec![f64::NEG_INFINITY; dims.count() / dims.head_dim] };
    for sequence in 0..queries.sequences() {
        let (rows, length) = (queries.rows(sequence), keys.length(sequence));
        if rows.is_empty() || length == 0 {
            continue;
        }
        let of_heads =
            |of_head: &dyn Fn(usize) -> Vec<f64>, heads: usize| (0..heads).flat_map(of_head).collect::<Vec<_>>();
        let q = of_heads(&|head| q.dequantize_rows(0, head, rows.clone()), shape.query_heads);
        let [k, v] = match keys {
            KeyValues::Paged { k, v, table } => [k, v].map(|tensor| {
                of_heads(&|head| tensor.dequantize_rows(table, sequence, head, 0..length), shape.kv_heads)
            }),
            KeyValues::Packed { k, v, rows } => [k, v]
                .map(|tensor| of_heads(&|head| tensor.dequantize_rows(0, head, rows.rows(sequence)), shape.kv_heads)),
        };
        let of_sequence = attention(&call.problem_of(sequence), &q, &k, &v)?;
        for head in 0..shape.query_heads {
            let (from, to) = (head * rows.len(), head * dims.len + rows.start);
            reference.lse[to..][..rows.len()].copy_from_slice(&of_sequence.lse[from..][..rows.len()]);
            let [from, to, count] = [from, to, rows.len()].map(|row| row * dims.head_dim);
            reference.values[to..][..count].copy_from_slice(&of_sequence.values[from..][..count]);
        }
    }
    Ok(reference)
}
