//! A problem with inputs and references: what every subject is put through.

use super::fingerprint;
use super::sample;
use super::thresholds::ReferencePolicy;
use crate::inputs::{Family, Inputs};
use eightfold::cuda::{Operands, Specialisation};
use eightfold::quantize::Quantizer;
use eightfold::reference::{self, Reference};
use eightfold::{Error, Fp8Tensor, Layout, Problem, Result};

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
    /// code that the quantiser may use is for Q and K, whose products have to fit; the origin tells it.
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
        let q = quantizer.quantize(&inputs.q, shape.query_dims(), Layout::Bhsd)?;
        let k = quantizer.quantize(&inputs.k, shape.key_dims(), Layout::Bhsd)?;
        let format = problem.input_format();
        let of_values = quantizer.with_largest_code(format.max());
        let v = of_values.quantize(&inputs.v, shape.key_dims(), Layout::Bhsd)?;
        let origin = match quantizer.largest_code() {
            largest if largest < format.max() => format!("{}, codes of Q and K up to {largest}", inputs.origin),
            _ => inputs.origin.clone(),
        };
        let mut case = Case::of_tensors(problem, origin, q, k, v, policy)?;
        let [q, k, v] =
            [&inputs.q, &inputs.k, &inputs.v].map(|values| values.iter().copied().map(f64::from).collect::<Vec<_>>());
        (_, case.unquantized) = reference_rows(problem, &q, &k, &v, policy)?;
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
        let dims = [shape.query_dims(), shape.key_dims(), shape.key_dims()];
        for ((name, tensor), dims) in [("q", &q), ("k", &k), ("v", &v)].into_iter().zip(dims) {
            if tensor.dims() != dims {
                return Err(Error::invalid(
                    name,
                    format!("has dims {}, but the problem {problem} needs {dims}", tensor.dims()),
                    "give tensor and problem the same sizes",
                ));
            }
        }
        let (rows, dequantized) = reference_rows(problem, &q.dequantize(), &k.dequantize(), &v.dequantize(), policy)?;
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

/// Float64 attention on the rows that the policy picks, and which rows these are.
fn reference_rows(
    problem: &Problem,
    q: &[f64],
    k: &[f64],
    v: &[f64],
    policy: &ReferencePolicy,
) -> Result<(Vec<usize>, Reference)> {
    let shape = problem.shape();
    let Some(blocks) = sample::blocks(problem, policy) else {
        let rows = (0..shape.batch * shape.query_heads * shape.query_len).collect();
        return Ok((rows, reference::attention(problem, q, k, v)?));
    };
    let head_dim = shape.head_dim;
    let mut rows = Vec::new();
    let mut sampled = Reference { values: Vec::new(), lse: Vec::new() };
    for block in blocks {
        let block_rows = block.global_rows(shape);
        match block.problem(problem)? {
            None => {
                sampled.values.resize(sampled.values.len() + block.rows * head_dim, 0.0);
                sampled.lse.resize(sampled.lse.len() + block.rows, f64::NEG_INFINITY);
            }
            Some(part) => {
                let kv_head = block.batch * shape.kv_heads + block.head / shape.group();
                let keys = kv_head * shape.key_len * head_dim;
                let keys = keys..keys + part.shape().key_len * head_dim;
                let queries = block_rows.start * head_dim..block_rows.end * head_dim;
                let reference = reference::attention(&part, &q[queries], &k[keys.clone()], &v[keys])?;
                sampled.values.extend(reference.values);
                sampled.lse.extend(reference.lse);
            }
        }
        rows.extend(block_rows);
    }
    Ok((rows, sampled))
}
