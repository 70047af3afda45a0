//! What to compute.

use crate::border::{self, Grows, handle};
use crate::constants;
use crate::status::{ef_status, guard, quietly};
use eightfold::{Problem, Result, Shape};
use std::mem::offset_of;

/// What to compute: sizes, mask, scale, formats. Required up to `head_dim`; what follows is optional, and zero is its default.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ef_problem_args {
    /// `sizeof(ef_problem_args)`.
    pub struct_size: u32,
    /// The format of Q, K and V: `EF_E4M3`, `EF_E5M2`, or `EF_INT8`, beside which V is in E4M3.
    pub input_format: i32,
    /// Independent sequences.
    pub batch: u64,
    /// Heads of Q and of the output; a multiple of `kv_heads`.
    pub query_heads: u64,
    /// Heads of K and V.
    pub kv_heads: u64,
    /// Rows of Q per head.
    pub query_len: u64,
    /// Rows of K and V per head.
    pub key_len: u64,
    /// Channels per head: a multiple of 8 up to 256; on devices 64 or 128.
    pub head_dim: u64,
    /// What scores are multiplied by before the softmax; 0 stands for 1/sqrt(head_dim).
    pub softmax_scale: f32,
    /// `EF_MASK_NONE` or `EF_MASK_CAUSAL`.
    pub mask: i32,
    /// The format of the output: `EF_F32`, `EF_F16` or `EF_BF16`.
    pub output_format: i32,
    /// The layout of a host's output: `EF_BHSD` or `EF_BSHD`. On a device strides say it.
    pub output_layout: i32,
    /// How exact: `EF_FAST`, `EF_BALANCED`, `EF_EXACT_EXP` or `EF_PRECISE`. The CPU's kernel is always precise.
    pub accuracy: i32,
    /// 1 where the log-sum-exp of every row is wanted, too.
    pub lse: i32,
    /// 1 where every sequence's result must be the same, bit for bit, in every batch.
    pub batch_invariant: i32,
    /// Zero.
    pub reserved: i32,
}

// SAFETY: it begins with its size, has 88 bytes, and zero is a value of every field.
unsafe impl Grows for ef_problem_args {
    const REQUIRED: usize = offset_of!(ef_problem_args, softmax_scale);
}

/// One attention problem, every rule checked. It never changes and may be shared by threads.
#[allow(non_camel_case_types)]
#[derive(Debug)]
pub struct ef_problem(pub(crate) Problem);

fn make(args: &ef_problem_args) -> Result<Problem> {
    let size = border::size;
    let shape = Shape::new(
        size("batch", args.batch)?,
        size("query_heads", args.query_heads)?,
        size("query_len", args.query_len)?,
        size("head_dim", args.head_dim)?,
    );
    let shape = shape.with_kv_heads(size("kv_heads", args.kv_heads)?).with_key_len(size("key_len", args.key_len)?);
    let problem = Problem::new(shape)?
        .with_mask(constants::mask("mask", args.mask)?)
        .with_input_format(constants::fp8_format("input_format", args.input_format)?)
        .with_output_format(constants::output_format("output_format", args.output_format)?)
        .with_output_layout(constants::row_layout("output_layout", args.output_layout)?)?
        .with_accuracy(constants::accuracy("accuracy", args.accuracy)?)
        .with_lse(constants::flag("lse", args.lse)?);
    let problem = if args.softmax_scale == 0.0 { problem } else { problem.with_softmax_scale(args.softmax_scale)? };
    let is_invariant = constants::flag("batch_invariant", args.batch_invariant)?;
    Ok(if is_invariant { problem.batch_invariant() } else { problem })
}

/// Makes a problem.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ef_problem_new(args: *const ef_problem_args, out: *mut *mut ef_problem) -> ef_status {
    // SAFETY: the caller's word, by the conventions of the header.
    guard(|| unsafe { border::give(out, || Ok(ef_problem(make(&border::read("args", args)?)?))) })
}

/// Frees a problem; null is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ef_problem_free(problem: *mut ef_problem) {
    // SAFETY: the caller's word, by the conventions of the header.
    quietly(|| unsafe { border::take(problem) });
}

/// # Safety
/// As for [`handle`].
pub(crate) unsafe fn problem_of(problem: *const ef_problem) -> Result<Problem> {
    // SAFETY: the caller's word.
    Ok(unsafe { handle("problem", problem) }?.0)
}
