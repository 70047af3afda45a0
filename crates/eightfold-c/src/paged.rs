//! Caches in pages, in host memory: attention to them, new tokens into them, and parts of the keys merged.

use crate::border::{self, Grows, array, check_count, named};
use crate::constants;
use crate::host::{ef_output, put};
use crate::problem::{ef_problem, problem_of};
use crate::status::{ef_status, guard};
use crate::tensor::{ef_values, quantized};
use eightfold::quantize::{Element, Quantizer};
use eightfold::serving::{
    self, AppendScales, BlockTable, KeyValues, Packed, PageLayout, PageScales, PageStrides, PagedTensor, PagedTensorMut,
};
use eightfold::{Dims, Error, Fp8Tensor, Granularity, Layout, Output, OutputFormat, Problem, Result, Shape, Values};
use half::{bf16, f16};
use std::ffi::c_void;
use std::mem::offset_of;
use std::slice;

/// K, or V, of a cache in pages, in host memory: FP8 codes with scales. The channels of a row follow each other.
///
/// Strides are elements from one page, one token of a page and one head to the next. All zero: [page, token, head, channel]
/// without gaps.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ef_paged_tensor {
    /// `sizeof(ef_paged_tensor)`.
    pub struct_size: u32,
    /// `EF_E4M3` or `EF_E5M2`.
    pub format: i32,
    /// Pages of the cache.
    pub pages: u64,
    /// Tokens of a page.
    pub page_size: u64,
    /// Heads of K and V.
    pub heads: u64,
    /// Channels of a head.
    pub head_dim: u64,
    /// The first code of the first page. Codes of tokens that a sequence has must be finite.
    pub codes: *mut u8,
    /// How many codes there are from there on.
    pub code_count: u64,
    /// The scales, each finite and positive; an append writes those of tokens.
    pub scales: *mut f32,
    /// How many scales there are.
    pub scale_count: u64,
    /// What shares a scale: `EF_SCALE_TENSOR`, `EF_SCALE_HEAD`, `EF_SCALE_SEQUENCE` or `EF_SCALE_TOKEN`.
    pub scales_of: i32,
    /// Zero.
    pub reserved: i32,
    /// From one page to the next, in elements.
    pub page_stride: u64,
    /// From one token of a page to the next.
    pub token_stride: u64,
    /// From one head of a token to the next.
    pub head_stride: u64,
    /// The same of scales of tokens, in scales; all zero: [page, token, head] without gaps.
    pub scale_page_stride: u64,
    /// From one token of a page to the next.
    pub scale_token_stride: u64,
    /// From one head of a token to the next.
    pub scale_head_stride: u64,
}

// SAFETY: it begins with its size, has 128 bytes, and zero is a value of every field.
unsafe impl Grows for ef_paged_tensor {
    const REQUIRED: usize = offset_of!(ef_paged_tensor, page_stride);
}

/// Whose rows and whose pages are which, in host memory.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ef_tables {
    /// `sizeof(ef_tables)`.
    pub struct_size: u32,
    /// Zero.
    pub reserved: i32,
    /// Where each sequence's rows of Q begin, and behind the last where they end (cu_seqlens).
    pub starts: *const i32,
    /// One more than sequences.
    pub start_count: u64,
    /// The pages of each sequence, [sequence, page]; behind a sequence's last token nothing is read.
    pub block_table: *const i32,
    /// How many entries there are.
    pub block_table_count: u64,
    /// Entries of a sequence.
    pub max_pages: u64,
    /// The keys of each sequence.
    pub lengths: *const i32,
    /// How many sequences there are.
    pub length_count: u64,
}

// SAFETY: it begins with its size, has 64 bytes, and zero is a value of every field.
unsafe impl Grows for ef_tables {
    const REQUIRED: usize = size_of::<ef_tables>();
}

/// New tokens for K, or for V, of a cache.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ef_new_tokens {
    /// `sizeof(ef_new_tokens)`.
    pub struct_size: u32,
    /// `EF_F32`, `EF_F16` or `EF_BF16`.
    pub format: i32,
    /// The values, [token, head, channel].
    pub values: *const c_void,
    /// How many values there are.
    pub value_count: u64,
    /// Where each token goes: page x page_size + token of the page; -1 leaves it out.
    pub slots: *const i64,
    /// How many tokens there are.
    pub slot_count: u64,
}

// SAFETY: it begins with its size, has 40 bytes, and zero is a value of every field.
unsafe impl Grows for ef_new_tokens {
    const REQUIRED: usize = size_of::<ef_new_tokens>();
}

/// Outputs of attention to parts of the keys.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ef_parts {
    /// `sizeof(ef_parts)`.
    pub struct_size: u32,
    /// The format of all outputs: `EF_F32`, `EF_F16` or `EF_BF16`.
    pub format: i32,
    /// Independent sequences.
    pub batch: u64,
    /// Query heads.
    pub heads: u64,
    /// Rows of Q per head.
    pub len: u64,
    /// Channels per head.
    pub head_dim: u64,
    /// Each with its log-sum-exp; only read.
    pub parts: *const *const ef_output,
    /// How many there are.
    pub part_count: u64,
    /// The layout of all outputs: `EF_BHSD` or `EF_BSHD`.
    pub layout: i32,
    /// Zero.
    pub reserved: i32,
}

// SAFETY: it begins with its size, has 64 bytes, and zero is a value of every field.
unsafe impl Grows for ef_parts {
    const REQUIRED: usize = offset_of!(ef_parts, layout);
}

/// Strides as C gives them, where all zero are those without gaps.
pub(crate) fn page_strides(given: [u64; 3], dense: PageStrides) -> Result<PageStrides> {
    if given == [0; 3] {
        return Ok(dense);
    }
    let [page, token, head] = given;
    let size = |value| border::size("strides", value);
    Ok(PageStrides::new(size(page)?, size(token)?, size(head)?))
}

/// Where the rows of a cache lie, by sizes and strides as C gives them.
pub(crate) fn page_layout(sizes: [u64; 4], strides: [u64; 3]) -> Result<PageLayout> {
    let [pages, page_size, heads, head_dim] = sizes;
    let size = border::size;
    let layout = PageLayout::nhd(
        size("pages", pages)?,
        size("page_size", page_size)?,
        size("heads", heads)?,
        size("head_dim", head_dim)?,
    );
    Ok(layout.with_strides(page_strides(strides, layout.strides)?))
}

/// What shares a scale, by numbers as C gives them.
pub(crate) fn page_scales(number: i32, strides: [u64; 3], layout: &PageLayout) -> Result<PageScales> {
    let token = layout.heads;
    let dense = PageStrides::new(layout.page_size.saturating_mul(token), token, 1);
    constants::page_scales("scales_of", number, page_strides(strides, dense)?)
}

impl ef_paged_tensor {
    fn layout(&self) -> Result<PageLayout> {
        let sizes = [self.pages, self.page_size, self.heads, self.head_dim];
        page_layout(sizes, [self.page_stride, self.token_stride, self.head_stride])
    }

    fn scales(&self, layout: &PageLayout) -> Result<PageScales> {
        let strides = [self.scale_page_stride, self.scale_token_stride, self.scale_head_stride];
        page_scales(self.scales_of, strides, layout)
    }
}

/// A caller's cache, read where it lies.
///
/// # Safety
/// `tensor` must be null or a struct whose addresses and counts are true, and stay so while the result is used.
unsafe fn paged<'a>(name: &str, tensor: *const ef_paged_tensor) -> Result<PagedTensor<'a>> {
    // SAFETY: the caller's word, for all.
    unsafe {
        let given = border::read(name, tensor)?;
        let part = |what: &str| format!("{name}.{what}");
        let format = constants::fp8_format(&part("format"), given.format)?;
        let layout = named(name, given.layout())?;
        let granularity = named(name, given.scales(&layout))?;
        let codes = array(&part("codes"), given.codes.cast_const(), given.code_count)?;
        let scales = array(&part("scales"), given.scales, given.scale_count)?;
        named(name, PagedTensor::new(layout, format, codes, granularity, scales))
    }
}

/// Attention of packed queries to a cache in pages, both in host memory.
///
/// `q` has batch 1, and the rows of all sequences behind each other; each is quantised with a scale for each head. The problem
/// says how many sequences there are (its batch), and the most queries and keys that one has. The output is packed as Q is; its
/// log-sum-exp is [head, row]. Rows of no sequence, and of one without keys, are zero, with a log-sum-exp of -infinity. Every
/// entry of the block table that a length reaches is checked.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ef_paged_attention(
    problem: *const ef_problem,
    q: *const ef_values,
    k: *const ef_paged_tensor,
    v: *const ef_paged_tensor,
    tables: *const ef_tables,
    output: *const ef_output,
) -> ef_status {
    // SAFETY: the caller's word, by the conventions of the header.
    guard(|| unsafe {
        let problem = problem_of(problem)?;
        let (q, k, v) = (packed_queries(&problem, q)?, paged("k", k)?, paged("v", v)?);
        let ef_tables { starts, start_count, block_table, block_table_count, max_pages, lengths, length_count, .. } =
            border::read("tables", tables)?;
        let lengths = array("lengths", lengths, length_count)?;
        // A batch without keys may come without a table.
        let pages = if block_table_count == 0 { &[] } else { array("block_table", block_table, block_table_count)? };
        let table = BlockTable::new(pages, border::size("max_pages", max_pages)?, lengths)?;
        let queries = Packed::new(array("starts", starts, start_count)?)?;
        let dims = q.dims();
        // What was borrowed from the caller is let go before anything is written: the output may lie there.
        put(&problem, dims, output, move || {
            serving::attention(&problem, &q, &queries, KeyValues::Paged { k: &k, v: &v, table: &table })
        })
    })
}

/// Values of packed queries, quantised with a scale for each token and head.
///
/// # Safety
/// `q` must be null or a struct whose address and count are true.
pub(crate) unsafe fn packed_queries(problem: &Problem, q: *const ef_values) -> Result<Fp8Tensor<'static>> {
    let quantizer = Quantizer::new(problem.input_format())
        .with_granularity(Granularity::Block { rows: 1 })
        .with_layout(Layout::Bshd);
    // SAFETY: the caller's word.
    unsafe { quantized("q", q, |_| Ok(quantizer)) }
}

/// Quantises new keys, or new values, into the pages of a cache. Scales of tokens are computed and written; with others, what is
/// too large saturates. Where anything is wrong nothing is written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ef_paged_append(cache: *const ef_paged_tensor, tokens: *const ef_new_tokens) -> ef_status {
    // SAFETY: the caller's word, by the conventions of the header.
    guard(|| unsafe {
        let given = border::read("cache", cache)?;
        let new = border::read("tokens", tokens)?;
        if new.slot_count == 0 {
            return Ok(());
        }
        let format = constants::fp8_format("cache.format", given.format)?;
        let layout = named("cache", given.layout())?;
        let granularity = named("cache", given.scales(&layout))?;
        let slots = array("slots", new.slots, new.slot_count)?;
        // Looked at as an array to read, before they are written to.
        let count = array("cache.codes", given.codes.cast_const(), given.code_count)?.len();
        let scale_count = array("cache.scales", given.scales.cast_const(), given.scale_count)?.len();
        let codes = slice::from_raw_parts_mut(given.codes, count);
        let mut pages = named("cache", PagedTensorMut::new(layout, format, codes))?;
        let scales = match granularity {
            PageScales::Token(strides) => {
                AppendScales::Computed { scales: slice::from_raw_parts_mut(given.scales, scale_count), strides }
            }
            _ => AppendScales::Given(slice::from_raw_parts(given.scales, scale_count)),
        };
        let (values, count) = (new.values, new.value_count);
        match constants::output_format("tokens.format", new.format)? {
            OutputFormat::F16 => pages.append(array("values", values.cast::<f16>(), count)?, slots, scales),
            OutputFormat::Bf16 => pages.append(array("values", values.cast::<bf16>(), count)?, slots, scales),
            _ => pages.append(array("values", values.cast::<f32>(), count)?, slots, scales),
        }
    })
}

/// Merges attention to parts of the keys, such as a shared prefix and what follows it, or keys of several machines. `output` has
/// room for the log-sum-exp, too, and may be one of the parts. A row that sees no key in any part is zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ef_merge(parts: *const ef_parts, output: *const ef_output) -> ef_status {
    // SAFETY: the caller's word, by the conventions of the header.
    guard(|| unsafe {
        let given = border::read("parts", parts)?;
        let dims = border::dims([given.batch, given.heads, given.len, given.head_dim])?;
        let format = constants::output_format("format", given.format)?;
        let layout = constants::row_layout("layout", given.layout)?;
        let parts = array("parts", given.parts, given.part_count)?;
        let parts: Vec<Output> =
            parts.iter().map(|part| part_of(border::read("parts", *part)?, dims, format)).collect::<Result<_>>()?;
        let problem = Problem::new(Shape::new(1, 1, 1, 8))?.with_output_format(format).with_lse(true);
        put(&problem, dims, output, || serving::merge(dims, layout, &parts.iter().collect::<Vec<_>>()))
    })
}

/// A copy of a caller's output.
///
/// # Safety
/// Its addresses and counts must be true.
unsafe fn part_of(given: ef_output, dims: Dims, format: OutputFormat) -> Result<Output> {
    /// # Safety
    /// As for [`part_of`].
    unsafe fn values<T: Element>(given: &ef_output, count: usize) -> Result<Vec<T>> {
        check_count("parts.values", border::size("value_count", given.value_count)?, count)?;
        // SAFETY: the caller's word.
        Ok(unsafe { array("parts.values", given.values.cast_const().cast::<T>(), given.value_count) }?.to_vec())
    }
    let rows = dims.count() / dims.head_dim.max(1);
    check_count("parts.lse", border::size("lse_count", given.lse_count)?, rows)?;
    let mut part = Output::zeros(&Problem::new(Shape::new(1, 1, 1, 8))?);
    // SAFETY: the caller's word, for all.
    unsafe {
        part.values = match format {
            OutputFormat::F16 => Values::F16(values(&given, dims.count())?),
            OutputFormat::Bf16 => Values::Bf16(values(&given, dims.count())?),
            _ => Values::F32(values(&given, dims.count())?),
        };
        part.lse = Some(array("parts.lse", given.lse.cast_const(), given.lse_count)?.to_vec());
    }
    if rows == 0 {
        return Err(Error::invalid("sizes", format!("{dims} hold nothing"), "give positive sizes"));
    }
    Ok(part)
}
