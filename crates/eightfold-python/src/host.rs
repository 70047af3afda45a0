//! Calls on the CPU: arrays by address, without gaps, in the order that `tensor_layout` names.

use crate::failure::raise;
use crate::processes;
use crate::words::{self, InputFormat, Scoring, Sizes, Wishes};
use eightfold::quantize::Quantizer;
use eightfold::{
    Dims, Error, Fp8Tensor, Output, Problem, Result, Scales, Shape, Values, attention, reference as oracle,
};
use half::{bf16, f16};
use pyo3::prelude::*;
use std::slice;

/// Attention on f32, f16 or bf16 arrays, quantised on the way. Writes `output`, and `lse` unless it is 0.
#[pyfunction]
#[pyo3(signature = (
    q, k, v, output, lse, sizes, dtype, tensor_layout, *, scoring, accuracy, output_dtype, centre_keys, input_format,
))]
#[expect(clippy::too_many_arguments, reason = "they come from Python by name")]
pub(crate) fn attend_values(
    py: Python<'_>,
    q: usize,
    k: usize,
    v: usize,
    output: usize,
    lse: usize,
    sizes: Sizes,
    dtype: &str,
    tensor_layout: &str,
    scoring: Scoring,
    accuracy: &str,
    output_dtype: &str,
    centre_keys: bool,
    input_format: &str,
) -> PyResult<()> {
    let wishes = Wishes { sizes, scoring: &scoring, accuracy, output: output_dtype, lse: lse != 0 };
    let attend = || {
        let layout = words::layout(tensor_layout)?;
        let problem = wishes.problem()?.with_output_layout(layout)?;
        let (format, _) = InputFormat::of(input_format)?.choose(None, &problem)?;
        let problem = problem.with_input_format(format);
        let (queries, keys) = (problem.shape().query_dims(), problem.shape().key_dims());
        let [of_q, of_k, of_v] = quantizers(&problem, centre_keys);
        let quantized = |quantizer: Quantizer, address, dims| {
            // SAFETY: the Python package passes the address of an array of this dtype and these sizes without gaps, and holds it.
            unsafe { quantize(&quantizer, address, dtype, dims, tensor_layout) }
        };
        let q = with_sinks(named("q", quantized(of_q, q, queries))?, &scoring)?;
        let k = named("k", quantized(of_k, k, keys))?;
        let v = named("v", quantized(of_v, v, problem.value_dims()))?;
        // SAFETY: as above, of the output.
        unsafe { attend(&problem, [&q, &k, &v], output, lse) }
    };
    py.detach(|| processes::work(attend).and_then(|done| done)).map_err(raise)
}

/// Attention on FP8 arrays; `scales` are those of Q, K and V, one or one for each batch and head.
#[pyfunction]
#[pyo3(signature = (q, k, v, output, lse, sizes, dtype, tensor_layout, scales, *, scoring, accuracy, output_dtype))]
#[expect(clippy::too_many_arguments, reason = "they come from Python by name")]
pub(crate) fn attend_codes(
    py: Python<'_>,
    q: usize,
    k: usize,
    v: usize,
    output: usize,
    lse: usize,
    sizes: Sizes,
    dtype: &str,
    tensor_layout: &str,
    scales: (Vec<f32>, Vec<f32>, Vec<f32>),
    scoring: Scoring,
    accuracy: &str,
    output_dtype: &str,
) -> PyResult<()> {
    let wishes = Wishes { sizes, scoring: &scoring, accuracy, output: output_dtype, lse: lse != 0 };
    let attend = || {
        let layout = words::layout(tensor_layout)?;
        let format = words::fp8_format(dtype)?;
        let problem = wishes.problem()?.with_output_layout(layout)?.with_input_format(format);
        let (queries, keys) = (problem.shape().query_dims(), problem.shape().key_dims());
        let tensor = |address, dims: Dims, scales: Vec<f32>| {
            let scales = Scales::new(words::granularity(scales.len() != 1), scales)?;
            // SAFETY: the Python package passes the address of an array of one byte per element without gaps, and holds it.
            let codes: &[u8] = unsafe { slice::from_raw_parts(address as *const u8, words::count(dims)?) };
            Fp8Tensor::new(dims, layout, format, codes, scales)
        };
        let (q_scales, k_scales, v_scales) = scales;
        let q = with_sinks(named("q", tensor(q, queries, q_scales))?, &scoring)?;
        let k = named("k", tensor(k, keys, k_scales))?;
        let v = named("v", tensor(v, problem.value_dims(), v_scales))?;
        // SAFETY: as above, of the output.
        unsafe { attend(&problem, [&q, &k, &v], output, lse) }
    };
    py.detach(|| processes::work(attend).and_then(|done| done)).map_err(raise)
}

/// How Q, K and V are quantised; in INT8 K is centred whatever is asked for.
fn quantizers(problem: &Problem, centre_keys: bool) -> [Quantizer; 3] {
    let [q, k, v] = Quantizer::for_attention(problem);
    [q, if centre_keys { k.centered() } else { k }, v]
}

/// What quantising leaves of values, as float64 in (batch, head, row, channel) order; `operand` is 0 for Q, 1 for K and 2 for V.
#[pyfunction]
#[pyo3(signature = (values, dims, dtype, tensor_layout, output, *, operand, input_format, centre_keys))]
#[expect(clippy::too_many_arguments, reason = "they come from Python by name")]
pub(crate) fn round_trip(
    py: Python<'_>,
    values: usize,
    dims: (usize, usize, usize, usize),
    dtype: &str,
    tensor_layout: &str,
    output: usize,
    operand: usize,
    input_format: &str,
    centre_keys: bool,
) -> PyResult<()> {
    let dims = Dims::new(dims.0, dims.1, dims.2, dims.3);
    let run = || {
        let problem = Problem::new(Shape::new(dims.batch, dims.heads, dims.len, dims.head_dim))?;
        let (format, _) = InputFormat::of(input_format)?.choose(None, &problem)?;
        let quantizer = quantizers(&problem.with_input_format(format), centre_keys)[operand.min(2)];
        // SAFETY: the Python package passes the address of an array of this dtype and these sizes without gaps, and holds it.
        let tensor = unsafe { quantize(&quantizer, values, dtype, dims, tensor_layout)? };
        // SAFETY: the Python package allocated one float64 for each value.
        unsafe { slice::from_raw_parts_mut(output as *mut f64, dims.count()) }.copy_from_slice(&tensor.dequantize());
        Ok(())
    };
    py.detach(|| processes::work(run).and_then(|done| done)).map_err(raise)
}

/// Attention in float64 on arrays in (batch, head, row, channel) order.
#[pyfunction]
#[pyo3(signature = (q, k, v, output, sizes, *, scoring))]
pub(crate) fn reference(
    py: Python<'_>,
    q: usize,
    k: usize,
    v: usize,
    output: usize,
    sizes: Sizes,
    scoring: Scoring,
) -> PyResult<()> {
    let run = || {
        let wishes = Wishes { sizes, scoring: &scoring, accuracy: "precise", output: "f32", lse: false };
        let problem = wishes.problem()?;
        let (queries, keys) = (problem.shape().query_dims(), problem.shape().key_dims());
        let values = |address, dims: Dims| {
            // SAFETY: the Python package passes the address of a float64 array of these sizes without gaps, and holds it.
            unsafe { slice::from_raw_parts(address as *const f64, dims.count()) }
        };
        let sinks: Vec<f64> = scoring.sinks.iter().flatten().map(|sink| f64::from(*sink)).collect();
        let (q, k, v) = (values(q, queries), values(k, keys), values(v, problem.value_dims()));
        let exact = oracle::attention_with_sinks(&problem, q, k, v, &sinks)?;
        // SAFETY: the Python package allocated one float64 for each value.
        unsafe { slice::from_raw_parts_mut(output as *mut f64, problem.output_dims().count()) }
            .copy_from_slice(&exact.values);
        Ok(())
    };
    py.detach(|| processes::work(run).and_then(|done| done)).map_err(raise)
}

/// Queries with the logits of their heads.
pub(crate) fn with_sinks<'a>(q: Fp8Tensor<'a>, scoring: &Scoring) -> Result<Fp8Tensor<'a>> {
    match &scoring.sinks {
        Some(sinks) => q.with_sinks(sinks.clone()),
        None => Ok(q),
    }
}

/// # Safety
/// At the address there must be an array of this dtype and these sizes, without gaps, in this layout.
unsafe fn quantize(
    quantizer: &Quantizer,
    address: usize,
    dtype: &str,
    dims: Dims,
    tensor_layout: &str,
) -> Result<Fp8Tensor<'static>> {
    let (layout, count) = (words::layout(tensor_layout)?, words::count(dims)?);
    // SAFETY: the caller's word, for all three.
    unsafe {
        match dtype {
            "f32" => quantizer.quantize(slice::from_raw_parts(address as *const f32, count), dims, layout),
            "f16" => quantizer.quantize(slice::from_raw_parts(address as *const f16, count), dims, layout),
            "bf16" => quantizer.quantize(slice::from_raw_parts(address as *const bf16, count), dims, layout),
            other => {
                Err(Error::invalid("dtype", format!("{other} is not f32, f16 or bf16"), "convert it to one of them"))
            }
        }
    }
}

/// # Safety
/// At the addresses there must be room for the output and, unless it is 0, for the log-sum-exp.
unsafe fn attend(problem: &Problem, [q, k, v]: [&Fp8Tensor; 3], output: usize, lse: usize) -> Result<()> {
    let Output { values, lse: row_sums, .. } = attention(problem, q, k, v)?;
    // SAFETY: the caller's word, for all of them.
    unsafe {
        match values {
            Values::F32(values) => copy(&values, output),
            Values::F16(values) => copy(&values, output),
            Values::Bf16(values) => copy(&values, output),
            _ => {
                let rule = format!("{} is none that NumPy or PyTorch takes from here", problem.output_format());
                return Err(Error::invalid("out_dtype", rule, "choose float32, float16 or bfloat16"));
            }
        }
        if let Some(row_sums) = row_sums {
            copy(&row_sums, lse);
        }
    }
    Ok(())
}

/// # Safety
/// At the address there must be room for as many values.
pub(crate) unsafe fn copy<T: Copy>(values: &[T], to: usize) {
    // SAFETY: the caller's word; the values were made here, so that they do not overlap.
    unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), to as *mut T, values.len()) }
}

/// An error of one tensor, with its name.
pub(crate) fn named<T>(name: &str, result: Result<T>) -> Result<T> {
    result.map_err(|error| match error {
        Error::Invalid { argument, rule, fix } => Error::invalid(format!("{name} ({argument})"), rule, fix),
        other => other,
    })
}
