//! A problem with inputs and references: what every subject is put through.

use super::fingerprint;
use super::sample::{self, RowBlock};
use super::thresholds::ReferencePolicy;
use crate::inputs::{Family, Inputs};
use eightfold::cuda::Operands;
use eightfold::lab::{Specialisation, attention_of_queries};
use eightfold::quantize::Quantizer;
use eightfold::reference::{self, Reference};
use eightfold::{Dims, Error, Fp8Format, Fp8Tensor, Layout, Problem, Result};
use rayon::prelude::*;
use std::ops::Range;

/// A problem with its inputs and both references, computed once and shared by all subjects.
#[derive(Debug, Clone)]
pub struct Case {
    /// What to compute.
    pub problem: Problem,
    /// Where the inputs come from.
    pub origin: String,
    /// Their family; none for a user's own inputs.
    pub family: Option<Family>,
    /// Queries.
    pub q: Fp8Tensor<'static>,
    /// Keys.
    pub k: Fp8Tensor<'static>,
    /// Values.
    pub v: Fp8Tensor<'static>,
    /// The rows that the references hold, counted over `[B,Hq,Sq]`.
    pub(super) rows: Vec<usize>,
    /// Attention on the dequantised inputs.
    pub(super) dequantized: Reference,
    /// Attention on the inputs before quantising.
    pub(super) unquantized: Reference,
    /// The hash of the inputs when they were made.
    pub(super) inputs_hash: u64,
    operands: Operands,
}

impl Case {
    /// Quantises the inputs and computes both references, on all rows or on the sample that the policy sets. The largest
    /// code that the quantiser may use is for Q and K, whose products have to fit; the origin tells it. In INT8, Q, K and V
    /// have quantisers of their own.
    pub fn prepare(
        problem: &Problem,
        inputs: &Inputs,
        quantizer: &Quantizer,
        policy: &ReferencePolicy,
    ) -> Result<Case> {
        let shape = problem.shape();
        if inputs.shape != shape {
            return Err(Error::invalid(
                "inputs",
                format!("{} has shape {}, but the problem is {problem}", inputs.origin, inputs.shape),
                "generate or load inputs of the problem's shape",
            ));
        }
        let format = problem.input_format();
        let [of_queries, of_keys, of_values] = match format {
            Fp8Format::Int8 => Quantizer::for_attention(problem),
            _ => [*quantizer, *quantizer, quantizer.with_largest_code(format.max())],
        };
        let q = of_queries.quantize(&inputs.q, shape.query_dims(), Layout::Bhsd)?;
        let k = of_keys.quantize(&inputs.k, shape.key_dims(), Layout::Bhsd)?;
        let v = of_values.quantize(&inputs.v, problem.value_dims(), Layout::Bhsd)?;
        let q = match &inputs.sinks {
            Some(sinks) => q.with_sinks(sinks.clone())?,
            None => q,
        };
        let origin = match quantizer.largest_code() {
            _ if format == Fp8Format::Int8 => format!("{}, Q and K in int8", inputs.origin),
            largest if largest < format.max() => {
                format!("{}, codes of Q and K up to {largest}", inputs.origin)
            }
            _ => inputs.origin.clone(),
        };
        let mut case = Case::of_tensors(problem, origin, q, k, v, policy)?;
        let sinks = sinks_of(problem, &case.q)?;
        let rows_of = |values: &[f32], dims: Dims, batch: usize, head: usize, rows: Range<usize>| -> Vec<f64> {
            let first = (batch * dims.heads + head) * dims.len;
            let values = &values[(first + rows.start) * dims.head_dim..(first + rows.end) * dims.head_dim];
            values.iter().copied().map(f64::from).collect()
        };
        let (queries, keys, values) = (shape.query_dims(), shape.key_dims(), problem.value_dims());
        let q = |batch, head, rows| rows_of(&inputs.q, queries, batch, head, rows);
        let k = |batch, head, rows| rows_of(&inputs.k, keys, batch, head, rows);
        let v = |batch, head, rows| rows_of(&inputs.v, values, batch, head, rows);
        (_, case.unquantized) = reference_rows(problem, [&q, &k, &v], &sinks, policy)?;
        case.family = inputs.family;
        Ok(case)
    }

    /// What decides whether a GPU kernel can take the tensors.
    pub(crate) fn operands(&self) -> &Operands {
        &self.operands
    }

    /// What a GPU kernel for it is compiled for.
    pub(crate) fn specialisation(&self) -> Specialisation {
        self.operands.specialisation(&self.problem)
    }

    /// Takes a user's FP8 tensors as they are: there is no quantiser error, and one reference serves as both.
    pub fn of_tensors(
        problem: &Problem,
        origin: impl Into<String>,
        q: Fp8Tensor<'static>,
        k: Fp8Tensor<'static>,
        v: Fp8Tensor<'static>,
        policy: &ReferencePolicy,
    ) -> Result<Case> {
        let shape = problem.shape();
        let dims = [shape.query_dims(), shape.key_dims(), problem.value_dims()];
        for ((name, tensor), dims) in [("q", &q), ("k", &k), ("v", &v)].into_iter().zip(dims) {
            if tensor.dims() != dims {
                return Err(Error::invalid(
                    name,
                    format!("has dims {}, but the problem {problem} needs {dims}", tensor.dims()),
                    "give tensor and problem the same sizes",
                ));
            }
        }
        let of_q = |batch, head, rows| q.dequantize_rows(batch, head, rows);
        let of_k = |batch, head, rows| k.dequantize_rows(batch, head, rows);
        let of_v = |batch, head, rows| v.dequantize_rows(batch, head, rows);
        let (rows, dequantized) = reference_rows(problem, [&of_q, &of_k, &of_v], &sinks_of(problem, &q)?, policy)?;
        let inputs_hash = fingerprint::of_inputs([&q, &k, &v]);
        let operands = Operands::of_host(&q, &k, &v);
        Ok(Case {
            problem: *problem,
            origin: origin.into(),
            family: None,
            q,
            k,
            v,
            rows,
            unquantized: dequantized.clone(),
            dequantized,
            inputs_hash,
            operands,
        })
    }

    /// The rows that are compared with the references: all of them, or a sample of a large problem's.
    pub fn rows_compared(&self) -> usize {
        self.rows.len()
    }
}

/// The sinks of the query heads in float64; none where the problem has none.
fn sinks_of(problem: &Problem, q: &Fp8Tensor) -> Result<Vec<f64>> {
    let sinks: Vec<f64> = q.sinks().unwrap_or_default().iter().copied().map(f64::from).collect();
    if problem.has_sinks() == sinks.is_empty() {
        let fix = "give them to both the problem and q, or to neither";
        return Err(Error::invalid("sinks", format!("{problem} and q disagree about whether there are any"), fix));
    }
    Ok(sinks)
}

/// Rows of one head of a tensor in float64, by batch and head. Of a large problem they are made when they are needed: as
/// a whole they would take eight times the memory of the codes, and longer than the arithmetic on them.
type RowsOf<'a> = &'a (dyn Fn(usize, usize, Range<usize>) -> Vec<f64> + Sync);

/// Float64 attention on the rows of Q that the policy picks, and which rows these are.
fn reference_rows(
    problem: &Problem,
    tensors: [RowsOf<'_>; 3],
    sinks: &[f64],
    policy: &ReferencePolicy,
) -> Result<(Vec<usize>, Reference)> {
    let shape = problem.shape();
    let Some(blocks) = sample::blocks(problem, policy) else {
        let whole = |rows_of: RowsOf<'_>, dims: Dims| -> Vec<f64> {
            let heads = (0..dims.batch).flat_map(|batch| (0..dims.heads).map(move |head| (batch, head)));
            heads.flat_map(|(batch, head)| rows_of(batch, head, 0..dims.len)).collect()
        };
        let [q, k, v] = tensors;
        let (q, k, v) = (whole(q, shape.query_dims()), whole(k, shape.key_dims()), whole(v, problem.value_dims()));
        let rows = (0..shape.batch * shape.query_heads * shape.query_len).collect();
        return Ok((rows, reference::attention_with_sinks(problem, &q, &k, &v, sinks)?));
    };
    let heads: Vec<_> = blocks.chunk_by(|a, b| (a.batch, a.head) == (b.batch, b.head)).collect();
    let references: Vec<_> =
        { heads.par_iter() }.map(|blocks| reference_of_head(problem, tensors, sinks, blocks)).collect();
    let sampled = Reference {
        values: references.iter().flat_map(|reference| &reference.values).copied().collect(),
        lse: references.iter().flat_map(|reference| &reference.lse).copied().collect(),
    };
    Ok((blocks.iter().flat_map(|block| block.global_rows(shape)).collect(), sampled))
}

/// Float64 attention on blocks of rows of one head.
fn reference_of_head(problem: &Problem, [q, k, v]: [RowsOf<'_>; 3], sinks: &[f64], blocks: &[RowBlock]) -> Reference {
    let mut reference = Reference { values: Vec::new(), lse: Vec::new() };
    let queries = |block: &RowBlock| block.first..block.first + block.rows;
    let seen: Vec<_> = blocks.iter().map(|block| problem.visible_to(&queries(block))).collect();
    let (Some(block), Some(first), Some(end)) =
        (blocks.first(), seen.iter().map(|keys| keys.start).min(), seen.iter().map(|keys| keys.end).max())
    else {
        return reference;
    };
    let (batch, head, group) = (block.batch, block.head, problem.shape().group());
    let (k, v) = (k(batch, head / group, first..end), v(batch, head / group, first..end));
    let of_keys = |keys: &Range<usize>, dim: usize| (keys.start - first) * dim..(keys.end - first) * dim;
    for (block, keys) in blocks.iter().zip(&seen) {
        let q = q(batch, head, queries(block));
        let (head_dim, value_dim) = (problem.shape().head_dim, problem.value_dims().head_dim);
        let seen = [&q, &k[of_keys(keys, head_dim)], &v[of_keys(keys, value_dim)]];
        let Reference { values, lse } = attention_of_queries(problem, queries(block), seen, sinks.get(head).copied());
        reference.values.extend(values);
        reference.lse.extend(lse);
    }
    reference
}
