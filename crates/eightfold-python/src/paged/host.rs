//! On the CPU: arrays by address. Each comes with how many elements lie from there on.

use super::cache::Cache;
use crate::failure::raise;
use crate::host::{copy, named, with_sinks};
use crate::processes;
use crate::words::{self, Scoring, Sizes, Wishes};
use eightfold::fp8::Element;
use eightfold::quantize::Quantizer;
use eightfold::serving::{
    self, AppendScales, BlockTable, KeyValues, PageLayout, PageScales, PagedTensor, PagedTensorMut,
};
use eightfold::{
    Dims, Error, Fp8Format, Fp8Tensor, Granularity, Layout, Output, OutputFormat, Problem, Result, Scales, Shape,
    Values,
};
use half::{bf16, f16};
use pyo3::prelude::*;
use std::slice;

/// Where an array is, and how many elements there are from there on.
type Memory = (usize, usize);

/// Rows of queries: of which sequence each is.
type Starts = Vec<i32>;

/// Attention of queries, (row, head, channel) without gaps, to a cache in pages. Writes the output alike, and the log-sum-exp
/// unless its address is 0: (row, head), or (sequence, head, query) where every sequence has as many queries.
#[pyfunction]
#[pyo3(signature = (q, q_scales, starts, cache, k, v, k_scales, v_scales, table, lengths, output, lse, sizes, dtype, *, scoring, dense, batch_invariant, output_dtype))]
#[expect(clippy::too_many_arguments, reason = "they come from Python by name")]
pub(crate) fn paged_attend(
    py: Python<'_>,
    q: Memory,
    q_scales: Vec<f32>,
    starts: Starts,
    cache: Cache,
    k: Memory,
    v: Memory,
    k_scales: Memory,
    v_scales: Memory,
    table: (usize, usize),
    lengths: Vec<i32>,
    output: usize,
    lse: usize,
    sizes: Sizes,
    dtype: &str,
    scoring: Scoring,
    dense: bool,
    batch_invariant: bool,
    output_dtype: &str,
) -> PyResult<()> {
    let attend = || {
        let format = cache.format()?;
        let wishes = Wishes { sizes, scoring: &scoring, accuracy: "precise", output: output_dtype, lse: lse != 0 };
        let mut problem = wishes.problem()?.with_output_layout(Layout::Bshd)?.with_input_format(format);
        if batch_invariant {
            problem = problem.batch_invariant();
        }
        let shape = problem.shape();
        let rows = q.1 / (shape.query_heads * shape.head_dim).max(1);
        let dims = Dims::new(1, shape.query_heads, rows, shape.head_dim);
        let queries = serving::Packed::new(&starts)?;
        let q = match dtype {
            // SAFETY: the Python package passes the address of so many codes without gaps, and holds them.
            "e4m3" | "e5m2" => codes(dims, words::fp8_format(dtype)?, unsafe { bytes(q) }, &q_scales, &queries),
            // SAFETY: as above, of an array of this dtype.
            _ => unsafe { per_token(format, q, dtype, dims) },
        }?;
        let q = with_sinks(q, &scoring)?;
        let scales = cache.scales()?;
        let [k_layout, v_layout] = cache.layouts();
        let tensor = |layout: PageLayout, codes, granularity: PageScales, scales: Memory| {
            // SAFETY: as above, of the cache and its scales, to which nothing writes meanwhile.
            let (codes, scales) = unsafe { (bytes(codes), slice::from_raw_parts(scales.0 as *const f32, scales.1)) };
            PagedTensor::new(layout, format, codes, granularity, scales)
        };
        let k = named("k_cache", tensor(k_layout, k, scales[0], k_scales))?;
        let v = named("v_cache", tensor(v_layout, v, scales[1], v_scales))?;
        let (table, width) = table;
        // SAFETY: as above, of the block table, whose rows follow each other.
        let pages = unsafe { slice::from_raw_parts(table as *const i32, width * lengths.len()) };
        let table = BlockTable::new(pages, width, &lengths)?;
        let Output { values, lse: sums, .. } =
            serving::attention(&problem, &q, &queries, KeyValues::Paged { k: &k, v: &v, table: &table })?;
        // SAFETY: the Python package allocated as much for the output, and for the log-sum-exp.
        unsafe {
            store(&values, output)?;
            if let Some(sums) = sums {
                let heads = shape.query_heads;
                copy(&if dense { by_sequence(&sums, heads, lengths.len()) } else { by_row(&sums, heads) }, lse);
            }
        }
        Ok(())
    };
    py.detach(|| processes::work(attend).and_then(|done| done)).map_err(raise)
}

/// New keys, or new values, (token, head, channel) without gaps, into the pages of a cache. Scales of tokens are written, and others
/// are read.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "they come from Python by name")]
pub(crate) fn paged_append(
    py: Python<'_>,
    cache: Cache,
    is_value: bool,
    values: Memory,
    dtype: &str,
    slots: Vec<i64>,
    codes: Memory,
    scales: Memory,
) -> PyResult<()> {
    let append = || {
        let which = usize::from(is_value);
        // SAFETY: the Python package passes the address of the cache, which may be written, and holds it; nothing else has it now.
        let codes = unsafe { slice::from_raw_parts_mut(codes.0 as *mut u8, codes.1) };
        let mut pages = PagedTensorMut::new(cache.layouts()[which], cache.format()?, codes)?;
        let scales = match cache.scales()?[which] {
            PageScales::Token(strides) => {
                // SAFETY: as above, of the scales.
                let scales = unsafe { slice::from_raw_parts_mut(scales.0 as *mut f32, scales.1) };
                AppendScales::Computed { scales, strides }
            }
            // SAFETY: as above, of scales that are only read.
            _ => AppendScales::Given(unsafe { slice::from_raw_parts(scales.0 as *const f32, scales.1) }),
        };
        // SAFETY: as above, of an array of this dtype without gaps.
        let appended = unsafe {
            match dtype {
                "f32" => pages.append(elements::<f32>(values), &slots, scales),
                "f16" => pages.append(elements::<f16>(values), &slots, scales),
                "bf16" => pages.append(elements::<bf16>(values), &slots, scales),
                other => Err(not_values(other)),
            }
        };
        named(["k", "v"][which], appended)
    };
    py.detach(append).map_err(raise)
}

/// Outputs of parts of the keys, (batch, row, head, channel) or (batch, head, row, channel) without gaps, and their log-sum-exps,
/// (batch, head, row): merged into one of each.
#[pyfunction]
pub(crate) fn merge_parts(
    py: Python<'_>,
    parts: Vec<(usize, usize)>,
    dims: (usize, usize, usize, usize),
    dtype: &str,
    tensor_layout: &str,
    output: usize,
    lse: usize,
) -> PyResult<()> {
    let merge = || {
        let dims = Dims::new(dims.0, dims.1, dims.2, dims.3);
        let count = words::count(dims)?;
        let room = Problem::new(Shape::new(1, 1, 1, 8))?.with_output_format(dtype.parse::<OutputFormat>()?);
        let part = |(values, lse): (usize, usize)| {
            let mut part = Output::zeros(&room);
            // SAFETY: the Python package passes the addresses of arrays of this dtype and these sizes without gaps, and holds them.
            unsafe {
                part.values = match dtype {
                    "f32" => Values::F32(elements((values, count)).to_vec()),
                    "f16" => Values::F16(elements((values, count)).to_vec()),
                    "bf16" => Values::Bf16(elements((values, count)).to_vec()),
                    other => return Err(not_values(other)),
                };
                part.lse = Some(elements((lse, count / dims.head_dim.max(1))).to_vec());
            }
            Ok(part)
        };
        let parts: Vec<Output> = parts.into_iter().map(part).collect::<Result<_>>()?;
        let merged = serving::merge(dims, words::layout(tensor_layout)?, &parts.iter().collect::<Vec<_>>())?;
        // SAFETY: the Python package allocated as much for both.
        unsafe {
            store(&merged.values, output)?;
            copy(merged.lse.as_deref().unwrap_or_default(), lse);
        }
        Ok(())
    };
    py.detach(|| processes::work(merge).and_then(|done| done)).map_err(raise)
}

/// Codes with a scale for each sequence and head, as one tensor with a scale for each row and head.
fn codes<'a>(
    dims: Dims,
    format: Fp8Format,
    codes: &'a [u8],
    scales: &[f32],
    queries: &serving::Packed,
) -> Result<Fp8Tensor<'a>> {
    let sequences = queries.sequences();
    if scales.len() != 1 && scales.len() != sequences * dims.heads {
        return Err(Error::invalid(
            "q_descale",
            format!("{} scales for {sequences} sequences of {} heads", scales.len(), dims.heads),
            "give one, or one for each sequence and head",
        ));
    }
    let mut by_row = vec![1.0; dims.heads * dims.len];
    for sequence in 0..sequences {
        for (head, rows) in by_row.chunks_mut(dims.len).enumerate() {
            let scale = if scales.len() == 1 { scales[0] } else { scales[sequence * dims.heads + head] };
            let own = queries.rows(sequence);
            let end = own.end.min(rows.len());
            rows[own.start.min(end)..end].fill(scale);
        }
    }
    let scales = Scales::new(Granularity::Block { rows: 1 }, by_row)?;
    Fp8Tensor::new(dims, Layout::Bshd, format, codes, scales)
}

/// # Safety
/// At the address there must be so many values of this dtype.
unsafe fn per_token(format: Fp8Format, values: Memory, dtype: &str, dims: Dims) -> Result<Fp8Tensor<'static>> {
    let quantizer = Quantizer::new(format).with_granularity(Granularity::Block { rows: 1 }).with_layout(Layout::Bshd);
    // SAFETY: the caller's word.
    unsafe {
        match dtype {
            "f32" => quantizer.quantize(elements::<f32>(values), dims, Layout::Bshd),
            "f16" => quantizer.quantize(elements::<f16>(values), dims, Layout::Bshd),
            "bf16" => quantizer.quantize(elements::<bf16>(values), dims, Layout::Bshd),
            other => Err(not_values(other)),
        }
    }
}

/// From (head, row) to (sequence, head, query).
fn by_sequence(sums: &[f32], heads: usize, sequences: usize) -> Vec<f32> {
    let queries = sums.len() / (heads * sequences).max(1);
    let of = |sequence: usize, head: usize| &sums[(head * sequences + sequence) * queries..][..queries];
    (0..sequences).flat_map(|sequence| (0..heads).flat_map(move |head| of(sequence, head))).copied().collect()
}

/// From (head, row) to (row, head).
fn by_row(sums: &[f32], heads: usize) -> Vec<f32> {
    let rows = sums.len() / heads.max(1);
    (0..rows).flat_map(|row| (0..heads).map(move |head| sums[head * rows + row])).collect()
}

/// # Safety
/// At the address there must be room for as many values.
unsafe fn store(values: &Values, to: usize) -> Result<()> {
    // SAFETY: the caller's word.
    unsafe {
        match values {
            Values::F32(values) => copy(values, to),
            Values::F16(values) => copy(values, to),
            Values::Bf16(values) => copy(values, to),
            _ => {
                let rule = "is in a format that neither NumPy nor PyTorch takes from here";
                return Err(Error::invalid("out_dtype", rule, "choose float32, float16 or bfloat16"));
            }
        }
    }
    Ok(())
}

/// # Safety
/// At the address there must be so many of them, to which nothing writes for as long as the result lives.
unsafe fn elements<'a, T: Element>((address, count): Memory) -> &'a [T] {
    // SAFETY: the caller's word.
    unsafe { slice::from_raw_parts(address as *const T, count) }
}

/// # Safety
/// As for [`elements`].
unsafe fn bytes<'a>((address, count): Memory) -> &'a [u8] {
    // SAFETY: the caller's word.
    unsafe { slice::from_raw_parts(address as *const u8, count) }
}

fn not_values(dtype: &str) -> Error {
    Error::invalid("dtype", format!("{dtype} is not f32, f16 or bf16"), "convert it to one of them")
}
