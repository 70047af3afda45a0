//! Host side of `kernels/paged/validate.cu`: what a launch of attention reads from device memory, looked at before it does.

use super::argument::CacheScales;
use crate::cuda::arch::Arch;
use crate::cuda::compile::Program;
use crate::cuda::counts::{size, stride};
use crate::cuda::driver::{Device, Grid, Stream, download, fill};
use crate::cuda::loaded::Loaded;
use crate::error::{Error, Result};
use crate::problem::Problem;

const THREADS: u32 = 256;

/// Words of the report: kinds of what may be wrong, and two numbers; `Kind` of the device code.
pub(in crate::cuda) const REPORT_WORDS: usize = 6;

/// One launch; `Sound` of the device code, field by field.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Argument {
    block_table: u64,
    lengths: u64,
    query_starts: u64,
    report: u64,
    table_stride: i64,
    sequences: i32,
    pages: i32,
    page_tokens: i32,
    most_keys: i32,
    most_queries: i32,
    query_heads: i32,
    key_starts: u64,
    k_scales: CacheScales,
    v_scales: CacheScales,
    q_scales: CacheScales,
    heads: i32,
    token_scales: i32,
}

/// What is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cuda) struct Tables {
    pub(in crate::cuda) block_table: u64,
    pub(in crate::cuda) max_pages: usize,
    pub(in crate::cuda) lengths: u64,
    pub(in crate::cuda) query_starts: u64,
    pub(in crate::cuda) sequences: usize,
    pub(in crate::cuda) pages: usize,
    pub(in crate::cuda) page_size: usize,
    /// 0 unless keys are packed; then there is no block table.
    pub(in crate::cuda) key_starts: u64,
    pub(in crate::cuda) k_scales: CacheScales,
    pub(in crate::cuda) v_scales: CacheScales,
    /// Of queries that are codes, else none.
    pub(in crate::cuda) q_scales: Option<CacheScales>,
    /// Whether every token has scales of its own.
    pub(in crate::cuda) token_scales: bool,
}

fn program(entry: &'static str) -> Program {
    Program { file: "paged/validate.cu", entry, defines: Vec::new(), dynamic_shared_bytes: 0 }
}

/// Looks at all of it on the device, waits, and names the first that is wrong. `report` is memory for the answer.
///
/// # Safety
/// There must be as much at the addresses as the numbers say, and memory for [`REPORT_WORDS`] at `report`.
pub(in crate::cuda) unsafe fn validate(
    device: &Device,
    stream: &Stream,
    arch: Arch,
    problem: &Problem,
    tables: &Tables,
    report: u64,
) -> Result<Totals> {
    let shape = problem.shape();
    let Tables { block_table, max_pages, lengths, query_starts, sequences, pages, page_size, key_starts, .. } = *tables;
    size("block_table", sequences.saturating_mul(max_pages))?;
    let argument = Argument {
        block_table,
        lengths,
        query_starts,
        report,
        table_stride: stride("max_pages", max_pages)?,
        sequences: size("sequences", sequences)?,
        pages: size("pages", pages)?,
        page_tokens: size("page_size", page_size)?,
        most_keys: size("key_len", shape.key_len)?,
        most_queries: size("query_len", shape.query_len)?,
        query_heads: tables.q_scales.map_or(Ok(0), |_| size("heads", shape.query_heads))?,
        key_starts,
        k_scales: tables.k_scales,
        v_scales: tables.v_scales,
        q_scales: tables.q_scales.unwrap_or(tables.k_scales),
        heads: size("heads", shape.kv_heads)?,
        token_scales: i32::from(tables.token_scales),
    };
    let loaded = Loaded::get(device, &program("paged_validate"), arch)?;
    let blocks = argument.sequences.unsigned_abs().clamp(1, 4096);
    let grid = Grid { blocks, threads: THREADS, dynamic_shared_bytes: 0, cluster: 1 };
    let mut found = [0u32; REPORT_WORDS];
    // SAFETY: the argument is laid out as the kernel takes it (tested); the rest is the caller's word.
    unsafe {
        fill(device.context(), report, size_of_val(&found), stream, 0)?;
        loaded.function().launch(stream, grid, &argument)?;
        download(device.context(), report, stream, &mut found)?;
    }
    let place = |kind: usize| (found[kind] != 0).then(|| (u32::MAX - found[kind]) as usize);
    if let Some(sequence) = place(0) {
        return Err(Error::invalid(
            "lengths",
            format!("that of sequence {sequence} is negative, or more than {} keys or than it has", shape.key_len),
            "count its tokens, or make the call for longer sequences",
        ));
    }
    if let Some(entry) = place(1) {
        let max_pages = max_pages.max(1);
        return Err(Error::invalid(
            "block_table",
            format!(
                "entry {} of sequence {} is no page of the cache, which has pages 0 to {}",
                entry % max_pages,
                entry / max_pages,
                pages - 1
            ),
            "give a page of the cache for every token that the length counts",
        ));
    }
    if let Some(sequence) = place(2) {
        return Err(Error::invalid(
            "query_starts",
            format!(
                "sequence {sequence} begins before 0, ends before it begins, or has more than {} queries",
                shape.query_len
            ),
            "start with 0, and add each sequence's queries",
        ));
    }
    if let Some(sequence) = place(3) {
        return Err(Error::invalid(
            "scales",
            format!("one of the queries, keys or values of sequence {sequence} is not finite and positive"),
            "give the scales by which codes are to be multiplied",
        ));
    }
    Ok(Totals { keys: found[4] as usize, queries: found[5] as usize })
}

/// One launch; `Given` of the device code, field by field.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Given {
    slots: u64,
    report: u64,
    capacity: i64,
    tokens: i32,
    heads: i32,
    k_scales: CacheScales,
    v_scales: CacheScales,
}

/// What an append is given, as far as it is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NewTokens {
    pub(super) slots: u64,
    pub(super) tokens: usize,
    /// Tokens that the cache has room for.
    pub(super) capacity: usize,
    /// Heads whose scales are given; 0 where they are computed.
    pub(super) heads: usize,
    pub(super) k_scales: CacheScales,
    pub(super) v_scales: CacheScales,
}

/// Looks at slots and given scales on the device, waits, and names the first that is wrong.
///
/// # Safety
/// There must be as many slots and scales at the addresses as the numbers say.
pub(super) unsafe fn validate_append(device: &Device, stream: &Stream, given: &NewTokens) -> Result<()> {
    let NewTokens { slots, tokens, capacity, heads, k_scales, v_scales } = *given;
    let mut found = [0u32; 2];
    let report = device.allocate(size_of_val(&found))?;
    report.fill(stream, 0)?;
    let argument = Given {
        slots,
        report: report.pointer(),
        capacity: stride("pages", capacity)?,
        tokens: size("tokens", tokens)?,
        heads: size("heads", heads)?,
        k_scales,
        v_scales,
    };
    let loaded = Loaded::get(device, &program("paged_validate_append"), device.arch()?)?;
    let blocks = argument.tokens.unsigned_abs().div_ceil(THREADS).clamp(1, 4096);
    let grid = Grid { blocks, threads: THREADS, dynamic_shared_bytes: 0, cluster: 1 };
    // SAFETY: the argument is laid out as the kernel takes it (tested); the rest is the caller's word.
    unsafe {
        loaded.function().launch(stream, grid, &argument)?;
        download(device.context(), report.pointer(), stream, &mut found)?;
    }
    let place = |kind: usize| (found[kind] != 0).then(|| u32::MAX - found[kind]);
    if let Some(token) = place(0) {
        return Err(Error::invalid(
            "slots",
            format!("that of token {token} is neither −1 nor one of the cache's {capacity}"),
            "give page · tokens of a page + token of the page, or −1 for a token to leave out",
        ));
    }
    if let Some(head) = place(1) {
        return Err(Error::invalid(
            "scales",
            format!("that of the keys or values of head {head} is not finite and positive"),
            "give the scales by which codes are to be multiplied",
        ));
    }
    Ok(())
}

/// Tokens of all sequences; of queries, where they are packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cuda) struct Totals {
    pub(in crate::cuda) keys: usize,
    pub(in crate::cuda) queries: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn the_layout_is_that_of_the_device_code() {
        assert_eq!((size_of::<Argument>(), align_of::<Argument>()), (176, 8));
        assert_eq!((size_of::<Given>(), offset_of!(Given, tokens), offset_of!(Given, k_scales)), (96, 24, 32));
        assert_eq!(
            [offset_of!(Argument, report), offset_of!(Argument, table_stride), offset_of!(Argument, sequences)],
            [24, 32, 40]
        );
    }
}
