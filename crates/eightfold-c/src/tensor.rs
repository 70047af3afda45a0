//! Tensors in host memory, and quantising there.

use crate::border::{self, Grows, array, check_count, named};
use crate::constants::{self, granularity, layout_number};
use crate::status::{ef_status, guard, quietly};
use eightfold::cuda::quantize::ValueFormat;
use eightfold::quantize::{Element, Quantizer};
use eightfold::{Dims, Error, Fp8Format, Fp8Tensor, Granularity, Layout, Result, Scales};
use half::{bf16, f16};
use std::ffi::c_void;
use std::mem::offset_of;
use std::ptr;

/// Values in host memory, without gaps.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ef_values {
    /// `sizeof(ef_values)`.
    pub struct_size: u32,
    /// `EF_F32`, `EF_F16` or `EF_BF16`.
    pub format: i32,
    /// Independent sequences.
    pub batch: u64,
    /// Heads per sequence.
    pub heads: u64,
    /// Rows (tokens) per head.
    pub len: u64,
    /// Channels per row.
    pub head_dim: u64,
    /// The values; aligned as their format needs.
    pub data: *const c_void,
    /// How many values there are.
    pub count: u64,
    /// `EF_BHSD` or `EF_BSHD`.
    pub layout: i32,
    /// Zero.
    pub reserved: i32,
}

// SAFETY: it begins with its size, has 64 bytes, and zero is a value of every field.
unsafe impl Grows for ef_values {
    const REQUIRED: usize = offset_of!(ef_values, layout);
}

/// An FP8 tensor in host memory, without gaps: value = code x scale (+ the channel's mean, where there are means).
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ef_fp8_tensor {
    /// `sizeof(ef_fp8_tensor)`.
    pub struct_size: u32,
    /// `EF_E4M3`, `EF_E5M2` or, for Q and K, `EF_INT8`.
    pub format: i32,
    /// Independent sequences.
    pub batch: u64,
    /// Heads per sequence.
    pub heads: u64,
    /// Rows (tokens) per head.
    pub len: u64,
    /// Channels per row.
    pub head_dim: u64,
    /// The codes, all finite.
    pub codes: *const u8,
    /// How many codes there are.
    pub code_count: u64,
    /// The scales in [batch, head, block] order, each finite and positive.
    pub scales: *const f32,
    /// How many scales there are.
    pub scale_count: u64,
    /// `EF_BHSD`, `EF_BSHD`, or for V also `EF_BHDS`.
    pub layout: i32,
    /// `EF_PER_HEAD`, `EF_PER_TENSOR` or `EF_PER_BLOCK`.
    pub granularity: i32,
    /// Rows of a block, for `EF_PER_BLOCK`.
    pub block_rows: u64,
    /// The means of the channels in [batch, head, channel] order, for K and V; null where nothing was centred.
    pub means: *const f32,
    /// How many means there are.
    pub mean_count: u64,
}

// SAFETY: it begins with its size, has 104 bytes, and zero is a value of every field.
unsafe impl Grows for ef_fp8_tensor {
    const REQUIRED: usize = offset_of!(ef_fp8_tensor, layout);
}

/// How to quantise. All is optional, and zero is the default.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ef_quantize_args {
    /// `sizeof(ef_quantize_args)`.
    pub struct_size: u32,
    /// `EF_E4M3`, `EF_E5M2` or, for Q and K, `EF_INT8`.
    pub format: i32,
    /// The layout of the codes: `EF_BHSD`, `EF_BSHD`, or for V also `EF_BHDS`.
    pub layout: i32,
    /// `EF_PER_HEAD`, `EF_PER_TENSOR` or `EF_PER_BLOCK`.
    pub granularity: i32,
    /// Rows of a block, for `EF_PER_BLOCK`.
    pub block_rows: u64,
    /// The largest code in magnitude: a value of the format, or 0 for its largest.
    pub largest_code: f32,
    /// 1 to subtract each channel's mean before, for K and V.
    pub centred: i32,
}

// SAFETY: it begins with its size, has 32 bytes, and zero is a value of every field.
unsafe impl Grows for ef_quantize_args {
    const REQUIRED: usize = 8;
}

/// An FP8 tensor that this library quantised, in host memory.
#[allow(non_camel_case_types)]
#[derive(Debug)]
pub struct ef_quantized(Fp8Tensor<'static>);

/// A caller's tensor, used where it lies.
///
/// # Safety
/// `tensor` must be null or a struct whose addresses and counts are true, and stay so while the result is used.
pub(crate) unsafe fn fp8_tensor<'a>(name: &str, tensor: *const ef_fp8_tensor) -> Result<Fp8Tensor<'a>> {
    // SAFETY: the caller's word.
    let given = unsafe { border::read(name, tensor) }?;
    let dims = border::dims([given.batch, given.heads, given.len, given.head_dim])?;
    let part = |what: &str| format!("{name}.{what}");
    let format = constants::fp8_format(&part("format"), given.format)?;
    let layout = constants::layout(&part("layout"), given.layout)?;
    let granularity =
        granularity(&part("granularity"), given.granularity, border::size("block_rows", given.block_rows)?)?;
    // Counts are compared before anything is read by them.
    check_count(&part("codes"), border::size("code_count", given.code_count)?, dims.count())?;
    check_count(&part("scales"), border::size("scale_count", given.scale_count)?, granularity.count(dims))?;
    // SAFETY: the caller's word.
    let (codes, scales) = unsafe {
        (
            array(&part("codes"), given.codes, given.code_count)?,
            array(&part("scales"), given.scales, given.scale_count)?,
        )
    };
    let scales = named(name, Scales::new(granularity, scales.to_vec()))?;
    let tensor = named(name, Fp8Tensor::new(dims, layout, format, codes, scales))?;
    if given.means.is_null() {
        return Ok(tensor);
    }
    check_count(
        &part("means"),
        border::size("mean_count", given.mean_count)?,
        dims.batch * dims.heads * dims.head_dim,
    )?;
    // SAFETY: the caller's word.
    let means = unsafe { array(&part("means"), given.means, given.mean_count) }?;
    named(name, tensor.with_means(means.to_vec()))
}

/// Quantises a caller's values.
///
/// # Safety
/// `values` must be null or a struct whose address and count are true.
pub(crate) unsafe fn quantized(
    name: &str,
    values: *const ef_values,
    quantizer: impl FnOnce(Dims) -> Result<Quantizer>,
) -> Result<Fp8Tensor<'static>> {
    // SAFETY: the caller's word.
    let given = unsafe { border::read(name, values) }?;
    let dims = border::dims([given.batch, given.heads, given.len, given.head_dim])?;
    let layout = constants::row_layout(&format!("{name}.layout"), given.layout)?;
    check_count(name, border::size("count", given.count)?, dims.count())?;
    let quantizer = quantizer(dims)?;
    // SAFETY: the caller's word, for each.
    unsafe {
        match constants::value_format(&format!("{name}.format"), given.format)? {
            ValueFormat::F32 => run::<f32>(name, &given, dims, layout, quantizer),
            ValueFormat::F16 => run::<f16>(name, &given, dims, layout, quantizer),
            ValueFormat::Bf16 => run::<bf16>(name, &given, dims, layout, quantizer),
        }
    }
}

/// # Safety
/// As for [`quantized`].
unsafe fn run<T: Element>(
    name: &str,
    given: &ef_values,
    dims: Dims,
    layout: Layout,
    quantizer: Quantizer,
) -> Result<Fp8Tensor<'static>> {
    // SAFETY: the caller's word.
    let values = unsafe { array::<T>(name, given.data.cast(), given.count) }?;
    quantizer.quantize(values, dims, layout).map_err(|error| match error {
        // They are the argument itself.
        Error::Invalid { argument, rule, fix } if argument == "values" => Error::invalid(name, rule, fix),
        error => error,
    })
}

/// Quantises values in host memory. Each scale is the largest magnitude of what shares it divided by the largest code.
///
/// `args` may be null for the defaults: E4M3, one scale per (batch, head), codes in `EF_BHSD`, not centred.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ef_quantize(
    values: *const ef_values,
    args: *const ef_quantize_args,
    out: *mut *mut ef_quantized,
) -> ef_status {
    // SAFETY: the caller's word, by the conventions of the header.
    guard(|| unsafe {
        border::give(out, || {
            let quantizer =
                if args.is_null() { Quantizer::new(Fp8Format::E4m3) } else { of_args(border::read("args", args)?)? };
            Ok(ef_quantized(quantized("values", values, |_| Ok(quantizer))?))
        })
    })
}

fn of_args(args: ef_quantize_args) -> Result<Quantizer> {
    let rows = border::size("block_rows", args.block_rows)?;
    let quantizer = Quantizer::new(constants::fp8_format("format", args.format)?)
        .with_layout(constants::layout("layout", args.layout)?)
        .with_granularity(granularity("granularity", args.granularity, rows)?);
    let quantizer = if args.largest_code == 0.0 { quantizer } else { quantizer.with_largest_code(args.largest_code) };
    Ok(if constants::flag("centred", args.centred)? { quantizer.centered() } else { quantizer })
}

/// Says where a quantised tensor lies: `out`, whose struct_size must be set, is filled with addresses that are valid until the
/// tensor is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ef_quantized_tensor(quantized: *const ef_quantized, out: *mut ef_fp8_tensor) -> ef_status {
    // SAFETY: the caller's word, by the conventions of the header.
    guard(|| unsafe {
        let tensor = &border::handle("quantized", quantized)?.0;
        border::answer("out", out, view(tensor))
    })
}

fn view(tensor: &Fp8Tensor) -> ef_fp8_tensor {
    let Dims { batch, heads, len, head_dim, .. } = tensor.dims();
    let (granularity, block_rows) = match tensor.scales().granularity() {
        Granularity::Tensor => (constants::EF_PER_TENSOR, 0),
        Granularity::Block { rows } => (constants::EF_PER_BLOCK, rows),
        // The quantiser made it, of a granularity that C has a number for.
        _ => (constants::EF_PER_HEAD, 0),
    };
    let format = match tensor.format() {
        Fp8Format::E4m3 => constants::EF_E4M3,
        Fp8Format::E5m2 => constants::EF_E5M2,
        Fp8Format::Int8 => constants::EF_INT8,
    };
    let means = tensor.means();
    ef_fp8_tensor {
        struct_size: size_of::<ef_fp8_tensor>() as u32,
        format,
        batch: batch as u64,
        heads: heads as u64,
        len: len as u64,
        head_dim: head_dim as u64,
        codes: tensor.codes().as_ptr(),
        code_count: tensor.codes().len() as u64,
        scales: tensor.scales().values().as_ptr(),
        scale_count: tensor.scales().values().len() as u64,
        layout: layout_number(tensor.layout()),
        granularity,
        block_rows: block_rows as u64,
        means: means.map_or(ptr::null(), <[f32]>::as_ptr),
        mean_count: means.map_or(0, <[f32]>::len) as u64,
    }
}

/// Frees a quantised tensor; null is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ef_quantized_free(quantized: *mut ef_quantized) {
    // SAFETY: the caller's word, by the conventions of the header.
    quietly(|| unsafe { border::take(quantized) });
}
