//! Attention in device memory: calls that are made once and launched with addresses.

use crate::border::{self, Grows, handle};
use crate::constants::{self, granularity};
use crate::context::ef_context;
use crate::problem::{ef_problem, problem_of};
use crate::status::{ef_status, guard, quietly};
use eightfold::cuda::Workspace;
use eightfold::cuda::call::{Addresses, CodeAttention, Codes, CodesOf, ValueAttention, ValuesOf};
use eightfold::cuda::driver::{Device, Stream};
use eightfold::{Dims, Error, Layout, Problem, Result, Strides};
use std::ffi::{c_char, c_void};
use std::mem::offset_of;

/// What workspaces start at a multiple of.
const WORKSPACE_ALIGNMENT: u64 = 256;

/// How Q, K, V and the output lie on a device, where Q, K and V are values that are quantised on the way.
///
/// Strides are elements from one batch, head, row and channel to the next. Channels are contiguous, the others are multiples
/// of 16 bytes, and 0 repeats a batch or a head of Q, K or V. All zero: without gaps, in `layout`.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ef_value_call_args {
    /// `sizeof(ef_value_call_args)`.
    pub struct_size: u32,
    /// The format of Q, K and V: `EF_F32`, `EF_F16` or `EF_BF16`.
    pub format: i32,
    /// Of everything whose strides are all zero: `EF_BHSD` or `EF_BSHD`.
    pub layout: i32,
    /// 1 to quantise K with its channels' means in it, which is less exact where channels are far from zero.
    pub uncentred_keys: i32,
    /// Strides of Q.
    pub q_strides: [u64; 4],
    /// Strides of K.
    pub k_strides: [u64; 4],
    /// Strides of V.
    pub v_strides: [u64; 4],
    /// Strides of the output.
    pub output_strides: [u64; 4],
}

// SAFETY: it begins with its size, has 144 bytes, and zero is a value of every field.
unsafe impl Grows for ef_value_call_args {
    const REQUIRED: usize = offset_of!(ef_value_call_args, q_strides);
}

/// How Q, K, V and the output lie on a device, where Q, K and V are FP8 in the problem's input format.
///
/// Strides are as in `ef_value_call_args`. No code may be NaN or infinite.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ef_fp8_call_args {
    /// `sizeof(ef_fp8_call_args)`.
    pub struct_size: u32,
    /// Of everything whose strides are all zero: `EF_BHSD` or `EF_BSHD`.
    pub layout: i32,
    /// How much of Q shares a scale: `EF_PER_HEAD`, `EF_PER_TENSOR` or `EF_PER_BLOCK`.
    pub q_granularity: i32,
    /// The same of K.
    pub k_granularity: i32,
    /// The same of V.
    pub v_granularity: i32,
    /// Zero.
    pub reserved: i32,
    /// Rows of a block of Q, for `EF_PER_BLOCK`.
    pub q_block_rows: u64,
    /// The same of K.
    pub k_block_rows: u64,
    /// The same of V.
    pub v_block_rows: u64,
    /// Strides of Q.
    pub q_strides: [u64; 4],
    /// Strides of K.
    pub k_strides: [u64; 4],
    /// Strides of V.
    pub v_strides: [u64; 4],
    /// Strides of the output.
    pub output_strides: [u64; 4],
}

// SAFETY: it begins with its size, has 176 bytes, and zero is a value of every field.
unsafe impl Grows for ef_fp8_call_args {
    const REQUIRED: usize = offset_of!(ef_fp8_call_args, q_granularity);
}

/// Where everything of a launch lies in device memory. Kernels believe it: only null and alignment are checked.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ef_addresses {
    /// `sizeof(ef_addresses)`.
    pub struct_size: u32,
    /// Zero.
    pub reserved: i32,
    /// The address of Q, a multiple of 16.
    pub q: u64,
    /// The address of K, a multiple of 16.
    pub k: u64,
    /// The address of V, a multiple of 16.
    pub v: u64,
    /// The address of the output, a multiple of 16.
    pub output: u64,
    /// The address of the log-sum-exp, f32 in [batch, head, row] order; 0 where the problem does not ask for it.
    pub lse: u64,
    /// The address of Q's scales, f32 in [batch, head, block] order, finite and positive; 0 for values.
    pub q_scales: u64,
    /// The address of K's scales.
    pub k_scales: u64,
    /// The address of V's scales.
    pub v_scales: u64,
}

// SAFETY: it begins with its size, has 72 bytes, and zero is a value of every field.
unsafe impl Grows for ef_addresses {
    const REQUIRED: usize = offset_of!(ef_addresses, lse);
}

/// Attention of one problem on a device, checked and compiled. It never changes and may be shared by threads and streams.
#[allow(non_camel_case_types)]
#[derive(Debug)]
pub struct ef_call {
    device: Device,
    lse: bool,
    way: Way,
}

#[derive(Debug)]
enum Way {
    Values(Box<ValueAttention>),
    Codes(Box<CodeAttention>),
}

/// A caller's strides, or those without gaps.
pub(crate) fn strides([batch, head, row, channel]: [u64; 4], layout: Layout, dims: Dims) -> Result<Strides> {
    if [batch, head, row, channel] == [0; 4] {
        return Ok(layout.strides(dims));
    }
    let size = |value| border::size("strides", value);
    Ok(Strides::new(size(batch)?, size(head)?, size(row)?, size(channel)?))
}

fn values_of(args: &ef_value_call_args, problem: &Problem) -> Result<ValuesOf> {
    let layout = constants::row_layout("layout", args.layout)?;
    let (queries, keys) = (problem.shape().query_dims(), problem.shape().key_dims());
    Ok(ValuesOf {
        format: constants::value_format("format", args.format)?,
        q: strides(args.q_strides, layout, queries)?,
        k: strides(args.k_strides, layout, keys)?,
        v: strides(args.v_strides, layout, keys)?,
        output: strides(args.output_strides, layout, queries)?,
        centre_keys: !constants::flag("uncentred_keys", args.uncentred_keys)?,
    })
}

fn codes_of(args: &ef_fp8_call_args, problem: &Problem) -> Result<CodesOf> {
    let layout = constants::row_layout("layout", args.layout)?;
    let (queries, keys) = (problem.shape().query_dims(), problem.shape().key_dims());
    let codes = |name: &str, given, dims, number, rows| {
        let granularity = granularity(&format!("{name}_granularity"), number, border::size("block_rows", rows)?)?;
        Ok::<_, Error>(Codes { strides: strides(given, layout, dims)?, granularity })
    };
    Ok(CodesOf {
        q: codes("q", args.q_strides, queries, args.q_granularity, args.q_block_rows)?,
        k: codes("k", args.k_strides, keys, args.k_granularity, args.k_block_rows)?,
        v: codes("v", args.v_strides, keys, args.v_granularity, args.v_block_rows)?,
        output: strides(args.output_strides, layout, queries)?,
    })
}

/// # Safety
/// As the conventions of the header say.
unsafe fn make(
    context: *const ef_context,
    problem: *const ef_problem,
    out: *mut *mut ef_call,
    way: impl FnOnce(&Device, &Problem) -> Result<Way>,
) -> Result<()> {
    // SAFETY: the caller's word.
    unsafe {
        border::give(out, || {
            let device = handle("context", context)?.device()?.clone();
            let problem = problem_of(problem)?;
            Ok(ef_call { way: way(&device, &problem)?, lse: problem.lse(), device })
        })
    }
}

/// Makes a call that takes values, quantises them into the workspace with one scale per (batch, head), and attends.
///
/// Its kernels are compiled unless that was done before in this process, or is in the cache. That may take a second.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ef_call_values_new(
    context: *const ef_context,
    problem: *const ef_problem,
    args: *const ef_value_call_args,
    out: *mut *mut ef_call,
) -> ef_status {
    // SAFETY: the caller's word, by the conventions of the header.
    guard(|| unsafe {
        make(context, problem, out, |device, problem| {
            let args = values_of(&border::read("args", args)?, problem)?;
            Ok(Way::Values(ValueAttention::new(device, problem, args)?.into()))
        })
    })
}

/// Makes a call that takes FP8 codes with scales, and attends. As for `ef_call_values_new` kernels may be compiled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ef_call_fp8_new(
    context: *const ef_context,
    problem: *const ef_problem,
    args: *const ef_fp8_call_args,
    out: *mut *mut ef_call,
) -> ef_status {
    // SAFETY: the caller's word, by the conventions of the header.
    guard(|| unsafe {
        make(context, problem, out, |device, problem| {
            let args = codes_of(&border::read("args", args)?, problem)?;
            Ok(Way::Codes(CodeAttention::new(device, problem, args)?.into()))
        })
    })
}

/// Says how large a workspace a launch needs, and how much at its front must be zero before the first launch with it; every
/// launch leaves it so. `zeroed` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ef_call_workspace(call: *const ef_call, bytes: *mut u64, zeroed: *mut u64) -> ef_status {
    // SAFETY: the caller's word, by the conventions of the header.
    guard(|| unsafe {
        let (needed, zero) = match &handle("call", call)?.way {
            Way::Values(call) => (call.workspace_bytes(), call.zeroed_bytes()),
            Way::Codes(call) => (call.workspace_bytes(), call.zeroed_bytes()),
        };
        if !zeroed.is_null() {
            border::put("zeroed", zeroed, zero as u64)?;
        }
        border::put("bytes", bytes, needed as u64)
    })
}

/// Writes the name and the knobs of the kernel that attends; cut and measured as by `ef_explain`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ef_call_kernel(
    call: *const ef_call,
    text: *mut c_char,
    capacity: u64,
    needed: *mut u64,
) -> ef_status {
    // SAFETY: the caller's word, by the conventions of the header.
    guard(|| unsafe {
        let variant = match &handle("call", call)?.way {
            Way::Values(call) => call.variant(),
            Way::Codes(call) => call.variant(),
        };
        border::put_text(&variant.to_string(), text, capacity, needed)
    })
}

/// The bytes of a workspace, if it can be one.
pub(crate) fn check_workspace(workspace: u64, bytes: u64) -> Result<usize> {
    let bytes = border::size("workspace_bytes", bytes)?;
    if bytes > 0 && (workspace == 0 || !workspace.is_multiple_of(WORKSPACE_ALIGNMENT)) {
        return Err(Error::invalid(
            "workspace",
            format!("address {workspace:#x} is null or no multiple of {WORKSPACE_ALIGNMENT} bytes"),
            "pass a device address, or 0 bytes",
        ));
    }
    Ok(bytes)
}

/// Puts the work into the stream and returns. Nothing is allocated, and nothing waits, so it may be captured into a graph.
///
/// `stream` is a CUstream (or cudaStream_t) of the device's primary context; null is the default stream. `workspace` is a
/// device address, a multiple of 256, and may be 0 where none is needed. Launches that share a workspace must follow each other.
/// Tensors, output, workspace and call must live until the work is done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ef_call_launch(
    call: *const ef_call,
    addresses: *const ef_addresses,
    workspace: u64,
    workspace_bytes: u64,
    stream: *mut c_void,
) -> ef_status {
    // SAFETY: the caller's word, by the conventions of the header.
    guard(|| unsafe {
        let ef_call { device, lse, way } = handle("call", call)?;
        let given = border::read("addresses", addresses)?;
        let bytes = check_workspace(workspace, workspace_bytes)?;
        if *lse && !given.lse.is_multiple_of(4) {
            return Err(Error::invalid(
                "lse",
                format!("address {:#x} is no multiple of 4 bytes", given.lse),
                "align it",
            ));
        }
        let ef_addresses { q, k, v, output, .. } = given;
        let addresses = Addresses { q, k, v, output, lse: (given.lse != 0).then_some(given.lse) };
        let mut workspace = Workspace::from_trusted(device, workspace, bytes);
        let stream = Stream::from_raw(device, stream);
        match way {
            Way::Values(call) => call.launch(&stream, &addresses, &mut workspace),
            Way::Codes(call) => {
                call.launch(&stream, &addresses, [given.q_scales, given.k_scales, given.v_scales], &mut workspace)
            }
        }
    })
}

/// Looks at the values of a call from `ef_call_values_new` on the device and waits: a NaN or an infinity is `EF_INVALID`, and
/// `ef_last_error` names tensor, batch, head and row. A launch computes with them without a word. The first look of a kind compiles.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ef_call_validate(
    call: *const ef_call,
    addresses: *const ef_addresses,
    workspace: u64,
    workspace_bytes: u64,
    stream: *mut c_void,
) -> ef_status {
    // SAFETY: the caller's word, by the conventions of the header.
    guard(|| unsafe {
        let ef_call { device, way, .. } = handle("call", call)?;
        let ef_addresses { q, k, v, output, lse, .. } = border::read("addresses", addresses)?;
        let bytes = check_workspace(workspace, workspace_bytes)?;
        let Way::Values(call) = way else {
            return Err(Error::invalid("call", "takes codes, not values", "look at calls from ef_call_values_new"));
        };
        let addresses = Addresses { q, k, v, output, lse: (lse != 0).then_some(lse) };
        let mut workspace = Workspace::from_trusted(device, workspace, bytes);
        call.validate(&Stream::from_raw(device, stream), &addresses, &mut workspace)
    })
}

/// Frees a call, whose launches must be done; null is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ef_call_free(call: *mut ef_call) {
    // SAFETY: the caller's word, by the conventions of the header.
    quietly(|| unsafe { border::take(call) });
}
