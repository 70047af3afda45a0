//! Attention on tensors in host memory, by this machine's CPU.

use crate::border::{self, Grows};
use crate::problem::{ef_problem, problem_of};
use crate::status::{ef_status, guard};
use crate::tensor::{ef_fp8_tensor, ef_values, fp8_tensor, quantized};
use eightfold::quantize::Quantizer;
use eightfold::{Dims, Error, Fp8Format, Fp8Tensor, Output, Problem, Result, Values};
use half::{bf16, f16};
use std::ffi::c_void;
use std::mem::offset_of;

/// Room for an output in host memory, without gaps.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ef_output {
    /// `sizeof(ef_output)`.
    pub struct_size: u32,
    /// Zero.
    pub reserved: i32,
    /// Room for the values, in the problem's output format and layout; aligned as the format needs.
    pub values: *mut c_void,
    /// For how many values there is room.
    pub value_count: u64,
    /// Room for the log-sum-exp in [batch, head, row] order; null where the problem does not ask for it.
    pub lse: *mut f32,
    /// For how many there is room.
    pub lse_count: u64,
}

// SAFETY: it begins with its size, has 40 bytes, and zero is a value of every field.
unsafe impl Grows for ef_output {
    const REQUIRED: usize = offset_of!(ef_output, lse);
}

/// Attention on FP8 tensors in host memory. The output may lie where an input does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ef_attention(
    problem: *const ef_problem,
    q: *const ef_fp8_tensor,
    k: *const ef_fp8_tensor,
    v: *const ef_fp8_tensor,
    output: *const ef_output,
) -> ef_status {
    // SAFETY: the caller's word, by the conventions of the header.
    guard(|| unsafe {
        let tensors = [fp8_tensor("q", q)?, fp8_tensor("k", k)?, fp8_tensor("v", v)?];
        attend(&problem_of(problem)?, tensors, output)
    })
}

/// Attention on values in host memory, quantised to the problem's input format with one scale per (batch, head), K centred.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ef_attention_values(
    problem: *const ef_problem,
    q: *const ef_values,
    k: *const ef_values,
    v: *const ef_values,
    output: *const ef_output,
) -> ef_status {
    // SAFETY: the caller's word, by the conventions of the header.
    guard(|| unsafe {
        let problem = problem_of(problem)?;
        let shape = problem.shape();
        let [of_queries, of_keys, of_values] = match problem.input_format() {
            Fp8Format::Int8 => Quantizer::for_attention(&problem),
            format => {
                let quantizer = Quantizer::new(format);
                [quantizer, quantizer.centered(), quantizer]
            }
        };
        let quantized = |name, values, quantizer, expected| {
            quantized(name, values, |dims| {
                // Sizes are compared before time is spent on them.
                if dims != expected {
                    return Err(Error::invalid(
                        name,
                        format!("has dims {dims}, but the problem {problem} needs {expected}"),
                        "give tensor and problem the same sizes",
                    ));
                }
                Ok(quantizer)
            })
        };
        let tensors = [
            quantized("q", q, of_queries, shape.query_dims())?,
            quantized("k", k, of_keys, shape.key_dims())?,
            quantized("v", v, of_values, shape.key_dims())?,
        ];
        attend(&problem, tensors, output)
    })
}

/// # Safety
/// `output` must be null or a struct whose addresses and counts are true.
unsafe fn attend(problem: &Problem, tensors: [Fp8Tensor; 3], output: *const ef_output) -> Result<()> {
    // SAFETY: the caller's word.
    unsafe {
        put(problem, problem.output_dims(), output, || {
            let [q, k, v] = &tensors;
            let result = eightfold::attention(problem, q, k, v);
            // What was borrowed from the caller is let go before anything is written: the output may lie there.
            drop(tensors);
            result
        })
    }
}

/// Computes what there is room for, and puts it there; `dims` are those of the output.
///
/// # Safety
/// `output` must be null or a struct whose addresses and counts are true.
pub(crate) unsafe fn put(
    problem: &Problem,
    dims: Dims,
    output: *const ef_output,
    compute: impl FnOnce() -> Result<Output>,
) -> Result<()> {
    // SAFETY: the caller's word.
    let room = unsafe { border::read("output", output) }?;
    border::check_count("output.values", border::size("value_count", room.value_count)?, dims.count())?;
    if problem.lse() == room.lse.is_null() {
        let rule =
            if problem.lse() { "is null, but the problem asks for it" } else { "has room, but no one asks for it" };
        return Err(Error::invalid(
            "output.lse",
            rule,
            "make the problem with lse set to whether there is room for it",
        ));
    }
    let result = compute()?;
    // SAFETY: the caller's word, for each.
    unsafe {
        if let Some(lse) = &result.lse {
            border::fill("output.lse", room.lse, room.lse_count, lse)?;
        }
        let (start, name) = (room.values, "output.values");
        match &result.values {
            Values::F32(values) => border::fill(name, start.cast::<f32>(), room.value_count, values),
            Values::F16(values) => border::fill(name, start.cast::<f16>(), room.value_count, values),
            Values::Bf16(values) => border::fill(name, start.cast::<bf16>(), room.value_count, values),
            _ => Err(Error::invalid("output_format", "is not one that C has a number for", "choose another")),
        }
    }
}
