//! Caches in pages, in device memory: calls that are made once and launched with addresses.

use crate::border::{self, Grows, handle};
use crate::call::{check_workspace, strides};
use crate::constants;
use crate::context::ef_context;
use crate::paged::{page_layout, page_scales};
use crate::problem::{ef_problem, problem_of};
use crate::status::{ef_status, guard, quietly};
use eightfold::cuda::Workspace;
use eightfold::cuda::driver::{Device, Stream};
use eightfold::cuda::paged::{
    AppendAddresses, MergeOutputs, PagedAddresses, PagedAppend, PagedAttention, PagedKeys, PagedQueries, PartAddresses,
};
use eightfold::{Layout, Problem, Result, Strides};
use std::ffi::c_void;

/// How queries, output and a cache in pages lie on a device. Heads and channels are the problem's.
///
/// Strides of Q and the output are elements from one sequence, head, row and channel to the next; all zero: [sequence, row,
/// head, channel] without gaps. Those of the cache are as in `ef_paged_tensor`, multiples of 16.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ef_paged_call_args {
    /// `sizeof(ef_paged_call_args)`.
    pub struct_size: u32,
    /// The format of Q: `EF_F32`, `EF_F16`, `EF_BF16`, or `EF_FP8` with scales in [sequence, head] order.
    pub query_format: i32,
    /// 1 where sequences differ in their number of queries, whose rows then lie behind each other.
    pub packed: i32,
    /// What of K and of V shares a scale: `EF_SCALE_TENSOR`, `EF_SCALE_HEAD`, `EF_SCALE_SEQUENCE` or `EF_SCALE_TOKEN`.
    pub scales_of: i32,
    /// Pages of the cache.
    pub pages: u64,
    /// Tokens of a page.
    pub page_size: u64,
    /// Strides of Q.
    pub q_strides: [u64; 4],
    /// Strides of the output.
    pub output_strides: [u64; 4],
    /// Strides of a page, a token and a head of K.
    pub k_strides: [u64; 3],
    /// The same of V.
    pub v_strides: [u64; 3],
    /// The same of the scales of tokens, of K as of V.
    pub scale_strides: [u64; 3],
}

// SAFETY: it begins with its size, has 168 bytes, and zero is a value of every field.
unsafe impl Grows for ef_paged_call_args {
    const REQUIRED: usize = size_of::<ef_paged_call_args>();
}

/// Where everything of a launch on pages lies in device memory. Kernels believe it: only null and alignment are checked.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ef_paged_addresses {
    /// `sizeof(ef_paged_addresses)`.
    pub struct_size: u32,
    /// Zero.
    pub reserved: i32,
    /// The address of Q, a multiple of 16, as are those of K, V and the output.
    pub q: u64,
    /// Of Q's scales, f32; 0 for values.
    pub q_scales: u64,
    /// Of the first code of K.
    pub k: u64,
    /// Of K's scales, f32.
    pub k_scales: u64,
    /// Of the first code of V.
    pub v: u64,
    /// Of V's scales, f32.
    pub v_scales: u64,
    /// Of the pages of every sequence, int32, [sequence, page].
    pub block_table: u64,
    /// Entries from one sequence of the block table to the next.
    pub max_pages: u64,
    /// Of the keys of every sequence, int32; those of the queries of this launch included.
    pub lengths: u64,
    /// Of where each sequence's queries begin, and the last end, int32; 0 unless they are packed.
    pub starts: u64,
    /// Of the output.
    pub output: u64,
    /// Of the log-sum-exp, f32, [sequence, head, query], or [query, head] where queries are packed; 0 unless it is asked for.
    pub lse: u64,
}

// SAFETY: it begins with its size, has 104 bytes, and zero is a value of every field.
unsafe impl Grows for ef_paged_addresses {
    const REQUIRED: usize = size_of::<ef_paged_addresses>();
}

/// Attention to a cache in pages on a device, checked and compiled. It never changes and may be shared by threads and streams.
#[allow(non_camel_case_types)]
#[derive(Debug)]
pub struct ef_paged_call {
    device: Device,
    call: PagedAttention,
}

fn attention(device: &Device, problem: &Problem, args: &ef_paged_call_args) -> Result<PagedAttention> {
    let shape = problem.shape();
    let sizes = [args.pages, args.page_size, shape.kv_heads as u64, shape.head_dim as u64];
    let k = page_layout(sizes, args.k_strides)?;
    let scales = page_scales(args.scales_of, args.scale_strides, &k)?;
    let keys = PagedKeys::new(k, scales).with_values(page_layout(sizes, args.v_strides)?);
    let format = constants::query_format("query_format", args.query_format)?;
    let queries = if constants::flag("packed", args.packed)? {
        PagedQueries::packed(problem, format)
    } else {
        PagedQueries::dense(problem, format)
    };
    let lie = |given| strides(given, Layout::Bshd, shape.query_dims());
    PagedAttention::new(device, problem, queries.with_strides(lie(args.q_strides)?, lie(args.output_strides)?), keys)
}

/// Makes a call. The problem says the most sequences of a launch (its batch), and the most queries and keys that one has. As
/// for `ef_call_values_new` kernels may be compiled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ef_paged_call_new(
    context: *const ef_context,
    problem: *const ef_problem,
    args: *const ef_paged_call_args,
    out: *mut *mut ef_paged_call,
) -> ef_status {
    // SAFETY: the caller's word, by the conventions of the header.
    guard(|| unsafe {
        border::give(out, || {
            let device = handle("context", context)?.device()?.clone();
            let call = attention(&device, &problem_of(problem)?, &border::read("args", args)?)?;
            Ok(ef_paged_call { device, call })
        })
    })
}

/// Says how large a workspace a launch needs, as `ef_call_workspace` does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ef_paged_call_workspace(
    call: *const ef_paged_call,
    bytes: *mut u64,
    zeroed: *mut u64,
) -> ef_status {
    // SAFETY: the caller's word, by the conventions of the header.
    guard(|| unsafe {
        let call = &handle("call", call)?.call;
        if !zeroed.is_null() {
            border::put("zeroed", zeroed, call.zeroed_bytes() as u64)?;
        }
        border::put("bytes", bytes, call.workspace_bytes() as u64)
    })
}

/// Puts a launch for so many sequences into the stream and returns; as `ef_call_launch`. Block table, lengths and starts are read
/// when it runs, so that a graph may be replayed after they changed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ef_paged_call_launch(
    call: *const ef_paged_call,
    sequences: u64,
    addresses: *const ef_paged_addresses,
    workspace: u64,
    workspace_bytes: u64,
    stream: *mut c_void,
) -> ef_status {
    // SAFETY: the caller's word, by the conventions of the header.
    guard(|| unsafe {
        let ef_paged_call { device, call } = handle("call", call)?;
        let addresses = of(border::read("addresses", addresses)?)?;
        let bytes = check_workspace(workspace, workspace_bytes)?;
        let mut workspace = Workspace::from_trusted(device, workspace, bytes);
        let stream = Stream::from_raw(device, stream);
        call.launch(&stream, border::size("sequences", sequences)?, &addresses, &mut workspace)
    })
}

/// Looks at block table, lengths, starts and scales on the device and waits: what a launch would read beyond the cache, and a
/// scale that is not finite and positive, is `EF_INVALID`, and `ef_last_error` names the sequence.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ef_paged_call_validate(
    call: *const ef_paged_call,
    sequences: u64,
    addresses: *const ef_paged_addresses,
    workspace: u64,
    workspace_bytes: u64,
    stream: *mut c_void,
) -> ef_status {
    // SAFETY: the caller's word, by the conventions of the header.
    guard(|| unsafe {
        let ef_paged_call { device, call } = handle("call", call)?;
        let addresses = of(border::read("addresses", addresses)?)?;
        let bytes = check_workspace(workspace, workspace_bytes)?;
        let mut workspace = Workspace::from_trusted(device, workspace, bytes);
        let stream = Stream::from_raw(device, stream);
        call.validate(&stream, border::size("sequences", sequences)?, &addresses, &mut workspace)
    })
}

fn of(given: ef_paged_addresses) -> Result<PagedAddresses> {
    let ef_paged_addresses { q, q_scales, k, k_scales, v, v_scales, block_table, lengths, output, lse, .. } = given;
    let max_pages = border::size("max_pages", given.max_pages)?;
    let query_starts = given.starts;
    Ok(PagedAddresses {
        q,
        q_scales,
        k,
        k_scales,
        v,
        v_scales,
        block_table,
        max_pages,
        lengths,
        query_starts,
        output,
        lse,
    })
}

/// Frees a call, whose launches must be done; null is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ef_paged_call_free(call: *mut ef_paged_call) {
    // SAFETY: the caller's word, by the conventions of the header.
    quietly(|| unsafe { border::take(call) });
}

/// How new tokens and a cache in pages lie on a device. Strides of new rows are elements from one token and one head to the next.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ef_append_call_args {
    /// `sizeof(ef_append_call_args)`.
    pub struct_size: u32,
    /// The format of the cache: `EF_E4M3` or `EF_E5M2`.
    pub cache_format: i32,
    /// The format of new keys and values: `EF_F32`, `EF_F16` or `EF_BF16`.
    pub value_format: i32,
    /// `EF_SCALE_TENSOR` and `EF_SCALE_HEAD` are read; those of `EF_SCALE_TOKEN` are computed and written.
    pub scales_of: i32,
    /// Pages of the cache.
    pub pages: u64,
    /// Tokens of a page.
    pub page_size: u64,
    /// Heads of K and V.
    pub kv_heads: u64,
    /// Channels of a head.
    pub head_dim: u64,
    /// Strides of a token and a head of new keys; both zero: [token, head, channel] without gaps.
    pub new_k_strides: [u64; 2],
    /// The same of new values.
    pub new_v_strides: [u64; 2],
    /// Strides of a page, a token and a head of K.
    pub k_strides: [u64; 3],
    /// The same of V.
    pub v_strides: [u64; 3],
    /// The same of the scales of tokens, of K as of V.
    pub scale_strides: [u64; 3],
}

// SAFETY: it begins with its size, has 152 bytes, and zero is a value of every field.
unsafe impl Grows for ef_append_call_args {
    const REQUIRED: usize = size_of::<ef_append_call_args>();
}

/// Where everything of an append lies in device memory.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ef_append_addresses {
    /// `sizeof(ef_append_addresses)`.
    pub struct_size: u32,
    /// Zero.
    pub reserved: i32,
    /// The new keys, a multiple of 16, as are the addresses of values and of the cache.
    pub new_k: u64,
    /// The new values.
    pub new_v: u64,
    /// The slot of every token, int64: page x page_size + token of the page; a negative one leaves the token out.
    pub slots: u64,
    /// The first code of K.
    pub k: u64,
    /// The first code of V.
    pub v: u64,
    /// The scales of K, f32.
    pub k_scales: u64,
    /// The scales of V, f32.
    pub v_scales: u64,
}

// SAFETY: it begins with its size, has 64 bytes, and zero is a value of every field.
unsafe impl Grows for ef_append_addresses {
    const REQUIRED: usize = size_of::<ef_append_addresses>();
}

/// New tokens into a cache in pages on a device, checked and compiled; shared as `ef_paged_call` is.
#[allow(non_camel_case_types)]
#[derive(Debug)]
pub struct ef_append_call {
    device: Device,
    call: PagedAppend,
}

fn append(device: &Device, args: &ef_append_call_args) -> Result<PagedAppend> {
    let sizes = [args.pages, args.page_size, args.kv_heads, args.head_dim];
    let k = page_layout(sizes, args.k_strides)?;
    let scales = page_scales(args.scales_of, args.scale_strides, &k)?;
    let keys = PagedKeys::new(k, scales).with_values(page_layout(sizes, args.v_strides)?);
    let rows = |[token, head]: [u64; 2]| -> Result<Strides> {
        let [token, head] = match [token, head] {
            [0, 0] => [k.heads.saturating_mul(k.head_dim), k.head_dim],
            [token, head] => [border::size("strides", token)?, border::size("strides", head)?],
        };
        Ok(Strides::new(0, head, token, 1))
    };
    let format = constants::fp8_format("cache_format", args.cache_format)?;
    let values = constants::output_format("value_format", args.value_format)?;
    PagedAppend::new(device, keys, format, values, [rows(args.new_k_strides)?, rows(args.new_v_strides)?])
}

/// Makes an append. As for `ef_call_values_new` kernels may be compiled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ef_append_call_new(
    context: *const ef_context,
    args: *const ef_append_call_args,
    out: *mut *mut ef_append_call,
) -> ef_status {
    // SAFETY: the caller's word, by the conventions of the header.
    guard(|| unsafe {
        border::give(out, || {
            let device = handle("context", context)?.device()?.clone();
            Ok(ef_append_call { call: append(&device, &border::read("args", args)?)?, device })
        })
    })
}

/// Puts an append of so many tokens into the stream and returns. Tokens whose slot is not in the cache are left out.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ef_append_call_launch(
    call: *const ef_append_call,
    tokens: u64,
    addresses: *const ef_append_addresses,
    stream: *mut c_void,
) -> ef_status {
    // SAFETY: the caller's word, by the conventions of the header.
    guard(|| unsafe {
        let ef_append_call { device, call } = handle("call", call)?;
        let addresses = new_tokens(&border::read("addresses", addresses)?);
        call.launch(&Stream::from_raw(device, stream), border::size("tokens", tokens)?, &addresses)
    })
}

/// Looks at slots, and at scales unless they are computed, on the device and waits: a slot that is neither -1 nor in the cache,
/// and a scale that is not finite and positive, is `EF_INVALID`, and `ef_last_error` names the token or the head. It allocates a
/// few bytes for the answer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ef_append_call_validate(
    call: *const ef_append_call,
    tokens: u64,
    addresses: *const ef_append_addresses,
    stream: *mut c_void,
) -> ef_status {
    // SAFETY: the caller's word, by the conventions of the header.
    guard(|| unsafe {
        let ef_append_call { device, call } = handle("call", call)?;
        let addresses = new_tokens(&border::read("addresses", addresses)?);
        call.validate(&Stream::from_raw(device, stream), border::size("tokens", tokens)?, &addresses)
    })
}

fn new_tokens(given: &ef_append_addresses) -> AppendAddresses {
    AppendAddresses {
        k: given.new_k,
        v: given.new_v,
        slots: given.slots,
        k_cache: given.k,
        v_cache: given.v,
        k_scales: given.k_scales,
        v_scales: given.v_scales,
    }
}

/// Frees an append, whose launches must be done; null is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ef_append_call_free(call: *mut ef_append_call) {
    // SAFETY: the caller's word, by the conventions of the header.
    quietly(|| unsafe { border::take(call) });
}

/// Outputs of parts of the keys merged on a device, compiled; shared as `ef_paged_call` is.
#[allow(non_camel_case_types)]
#[derive(Debug)]
pub struct ef_merge_call {
    device: Device,
    call: MergeOutputs,
}

/// Makes a merge of rows of so many channels in `EF_F32`, `EF_F16` or `EF_BF16`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ef_merge_call_new(
    context: *const ef_context,
    head_dim: u64,
    format: i32,
    out: *mut *mut ef_merge_call,
) -> ef_status {
    // SAFETY: the caller's word, by the conventions of the header.
    guard(|| unsafe {
        border::give(out, || {
            let device = handle("context", context)?.device()?.clone();
            let format = constants::output_format("format", format)?;
            Ok(ef_merge_call { call: MergeOutputs::new(&device, border::size("head_dim", head_dim)?, format)?, device })
        })
    })
}

/// Puts the merging of so many rows into the stream and returns. `outputs` and `lses` are host arrays of `part_count` device
/// addresses, up to 16, of `[row, channel]` and `[row]`; `lse` may be 0, and `output` one of the parts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ef_merge_call_launch(
    call: *const ef_merge_call,
    rows: u64,
    outputs: *const u64,
    lses: *const u64,
    part_count: u64,
    output: u64,
    lse: u64,
    stream: *mut c_void,
) -> ef_status {
    // SAFETY: the caller's word, by the conventions of the header.
    guard(|| unsafe {
        let ef_merge_call { device, call } = handle("call", call)?;
        let (outputs, lses) =
            (border::array("outputs", outputs, part_count)?, border::array("lses", lses, part_count)?);
        let parts: Vec<PartAddresses> =
            outputs.iter().zip(lses).map(|(output, lse)| PartAddresses { output: *output, lse: *lse }).collect();
        let stream = Stream::from_raw(device, stream);
        call.launch(&stream, border::size("rows", rows)?, &parts, PartAddresses { output, lse })
    })
}

/// Frees a merge, whose launches must be done; null is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ef_merge_call_free(call: *mut ef_merge_call) {
    // SAFETY: the caller's word, by the conventions of the header.
    quietly(|| unsafe { border::take(call) });
}
