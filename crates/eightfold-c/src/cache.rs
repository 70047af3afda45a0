//! A cache of this library's own, behind a handle.

use crate::border::{self, Grows, array, handle};
use crate::constants;
use crate::host::{ef_output, put};
use crate::paged::packed_queries;
use crate::problem::{ef_problem, problem_of};
use crate::status::{ef_status, guard, quietly};
use crate::tensor::ef_values;
use eightfold::quantize::Element;
use eightfold::serving::{KvCache, Packed, Sequence};
use eightfold::{Error, OutputFormat, Result};
use half::{bf16, f16};
use std::ffi::c_void;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The sizes of a cache.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ef_cache_args {
    /// `sizeof(ef_cache_args)`.
    pub struct_size: u32,
    /// Zero.
    pub reserved: i32,
    /// Pages of the cache.
    pub pages: u64,
    /// Tokens of a page; multiples of 16 are read fastest.
    pub page_size: u64,
    /// Heads of K and V.
    pub kv_heads: u64,
    /// Channels of a head.
    pub head_dim: u64,
}

// SAFETY: it begins with its size, has 40 bytes, and zero is a value of every field.
unsafe impl Grows for ef_cache_args {
    const REQUIRED: usize = size_of::<ef_cache_args>();
}

/// Keys and values of growing sequences in host memory, in E4M3 with a scale for each token and head. Threads may share it: an
/// append waits for attention that runs, and attention for an append.
#[allow(non_camel_case_types)]
#[derive(Debug)]
pub struct ef_cache(RwLock<Held>);

/// The cache, and its sequences by the numbers that C has of them.
#[derive(Debug)]
struct Held {
    cache: KvCache,
    sequences: Vec<Option<Sequence>>,
}

impl Held {
    fn sequence(&self, number: u64) -> Result<Sequence> {
        let found = usize::try_from(number).ok().and_then(|number| *self.sequences.get(number)?);
        found.ok_or_else(|| {
            Error::invalid("sequence", format!("{number} is not open in this cache"), "pass what ef_cache_open gave")
        })
    }
}

/// # Safety
/// As for [`handle`].
unsafe fn reading<'a>(cache: *const ef_cache) -> Result<RwLockReadGuard<'a, Held>> {
    // SAFETY: the caller's word. A call that failed leaves the cache as it was.
    Ok(unsafe { handle("cache", cache) }?.0.read().unwrap_or_else(PoisonError::into_inner))
}

/// # Safety
/// As for [`handle`].
unsafe fn writing<'a>(cache: *const ef_cache) -> Result<RwLockWriteGuard<'a, Held>> {
    // SAFETY: as above.
    Ok(unsafe { handle("cache", cache) }?.0.write().unwrap_or_else(PoisonError::into_inner))
}

/// Makes an empty cache.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ef_cache_new(args: *const ef_cache_args, out: *mut *mut ef_cache) -> ef_status {
    // SAFETY: the caller's word, by the conventions of the header.
    guard(|| unsafe {
        border::give(out, || {
            let ef_cache_args { pages, page_size, kv_heads, head_dim, .. } = border::read("args", args)?;
            let codes = border::dims([pages, page_size, kv_heads, head_dim])?.count();
            // Asked for before, since what follows ends the process where there is no memory: K and V, and scales of four bytes.
            let bytes = codes.saturating_mul(2).saturating_add(codes / (head_dim as usize).max(1) * 8);
            if Vec::<u8>::new().try_reserve_exact(bytes).is_err() {
                let rule = format!("there are no {bytes} bytes for it");
                return Err(Error::unavailable("the cache", rule, "make it smaller"));
            }
            let size = border::size;
            let cache = KvCache::new(
                size("pages", pages)?,
                size("page_size", page_size)?,
                size("kv_heads", kv_heads)?,
                size("head_dim", head_dim)?,
            )?;
            Ok(ef_cache(RwLock::new(Held { cache, sequences: Vec::new() })))
        })
    })
}

/// Opens a sequence without tokens, and says its number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ef_cache_open(cache: *const ef_cache, sequence: *mut u64) -> ef_status {
    // SAFETY: the caller's word, by the conventions of the header.
    guard(|| unsafe {
        let mut held = writing(cache)?;
        border::put("sequence", sequence, u64::MAX)?;
        let number = held.sequences.iter().position(Option::is_none).unwrap_or(held.sequences.len());
        let opened = held.cache.open();
        let count = held.sequences.len().max(number + 1);
        held.sequences.resize(count, None);
        held.sequences[number] = Some(opened);
        border::put("sequence", sequence, number as u64)
    })
}

/// Forgets a sequence and frees its pages. Its number may be given to a later one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ef_cache_close(cache: *const ef_cache, sequence: u64) -> ef_status {
    // SAFETY: the caller's word, by the conventions of the header.
    guard(|| unsafe {
        let mut held = writing(cache)?;
        let closed = held.sequence(sequence)?;
        held.sequences[sequence as usize] = None;
        held.cache.close(closed)
    })
}

/// Says how many tokens a sequence has, and how many pages of the cache no sequence has; either may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ef_cache_len(
    cache: *const ef_cache,
    sequence: u64,
    tokens: *mut u64,
    free_pages: *mut u64,
) -> ef_status {
    // SAFETY: the caller's word, by the conventions of the header.
    guard(|| unsafe {
        let held = reading(cache)?;
        let length = held.cache.len_of(held.sequence(sequence)?)?;
        if !free_pages.is_null() {
            border::put("free_pages", free_pages, held.cache.free_pages() as u64)?;
        }
        if tokens.is_null() { Ok(()) } else { border::put("tokens", tokens, length as u64) }
    })
}

/// Quantises the keys and values of a sequence's next tokens, `count` values each, [token, head, channel] in `EF_F32`, `EF_F16` or
/// `EF_BF16`. `EF_UNAVAILABLE` where there are no pages for them; then, as where anything is wrong, nothing is appended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ef_cache_append(
    cache: *const ef_cache,
    sequence: u64,
    format: i32,
    k: *const c_void,
    v: *const c_void,
    count: u64,
) -> ef_status {
    /// # Safety
    /// At the addresses there must be so many.
    unsafe fn append<T: Element>(
        held: &mut Held,
        sequence: Sequence,
        [k, v]: [*const c_void; 2],
        count: u64,
    ) -> Result<()> {
        // SAFETY: the caller's word.
        let (k, v) = unsafe { (array::<T>("k", k.cast(), count)?, array::<T>("v", v.cast(), count)?) };
        held.cache.append(sequence, k, v)
    }
    // SAFETY: the caller's word, by the conventions of the header.
    guard(|| unsafe {
        let mut held = writing(cache)?;
        let sequence = held.sequence(sequence)?;
        match constants::output_format("format", format)? {
            OutputFormat::F16 => append::<f16>(&mut held, sequence, [k, v], count),
            OutputFormat::Bf16 => append::<bf16>(&mut held, sequence, [k, v], count),
            _ => append::<f32>(&mut held, sequence, [k, v], count),
        }
    })
}

/// Attention of packed queries to sequences of the cache; as `ef_paged_attention`, with the numbers of the sequences in place of a
/// block table. `starts` has one entry more than `sequences`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ef_cache_attention(
    cache: *const ef_cache,
    problem: *const ef_problem,
    q: *const ef_values,
    sequences: *const u64,
    sequence_count: u64,
    starts: *const i32,
    output: *const ef_output,
) -> ef_status {
    // SAFETY: the caller's word, by the conventions of the header.
    guard(|| unsafe {
        let held = reading(cache)?;
        let problem = problem_of(problem)?;
        let q = packed_queries(&problem, q)?;
        let numbers = array("sequences", sequences, sequence_count)?;
        let sequences: Vec<Sequence> = numbers.iter().map(|number| held.sequence(*number)).collect::<Result<_>>()?;
        let queries = Packed::new(array("starts", starts, sequence_count.saturating_add(1))?)?;
        put(&problem, q.dims(), output, || held.cache.attention(&problem, &q, &queries, &sequences))
    })
}

/// Frees a cache; null is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ef_cache_free(cache: *mut ef_cache) {
    // SAFETY: the caller's word, by the conventions of the header.
    quietly(|| unsafe { border::take(cache) });
}
