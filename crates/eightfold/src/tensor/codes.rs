//! Codes with what they mean.

use super::{Dims, Layout, Scales, Strides};
use crate::error::{Error, Result};
use crate::fp8::Fp8Format;
use std::borrow::Cow;
use std::ops::Range;

/// FP8 or INT8 codes with their scales: value = code · scale (+ the channel's mean, where the tensor was centred). Q also carries the
/// sinks of its heads, where they have some.
///
/// The codes may be borrowed, so a caller's buffer is used where it lies.
#[derive(Debug, Clone, PartialEq)]
pub struct Fp8Tensor<'a> {
    dims: Dims,
    layout: Layout,
    format: Fp8Format,
    codes: Cow<'a, [u8]>,
    scales: Scales,
    means: Option<Vec<f32>>,
    sinks: Option<Vec<f32>>,
}

impl<'a> Fp8Tensor<'a> {
    /// Wraps codes that were quantised elsewhere. Every code must be finite.
    pub fn new(
        dims: Dims,
        layout: Layout,
        format: Fp8Format,
        codes: impl Into<Cow<'a, [u8]>>,
        scales: Scales,
    ) -> Result<Self> {
        let codes = codes.into();
        layout.check_on_host()?;
        let count = dims.checked_count()?;
        if count == 0 {
            return Err(Error::invalid("dims", format!("{dims} has a zero size"), "give positive sizes"));
        }
        if codes.len() != count {
            return Err(Error::invalid(
                "codes",
                format!("{} codes for dims {dims}, which hold {count}", codes.len()),
                "pass one byte per element",
            ));
        }
        let expected = scales.granularity().count(dims);
        if scales.values().len() != expected {
            return Err(Error::invalid(
                "scales",
                format!("{} scales {}, but dims {dims} need {expected}", scales.values().len(), scales.granularity()),
                "give one scale for each unit of the granularity",
            ));
        }
        if let Some(index) = first_non_finite(format, &codes) {
            return Err(Error::invalid(
                "codes",
                format!("code {:#04x} at index {index} is NaN or infinite in {format}", codes[index]),
                match format {
                    Fp8Format::Int8 => "quantise to -127 to 127",
                    _ => "quantise with saturation",
                },
            ));
        }
        Ok(Fp8Tensor { dims, layout, format, codes, scales, means: None, sinks: None })
    }

    /// The same tensor, whose values have these channel means (in `[batch, head, channel]` order) on top.
    pub fn with_means(self, means: Vec<f32>) -> Result<Self> {
        let expected = self.dims.batch * self.dims.heads * self.dims.head_dim;
        if means.len() != expected || means.iter().any(|mean| !mean.is_finite()) {
            return Err(Error::invalid(
                "means",
                format!("{} values, or one that is not finite, where {expected} finite ones are needed", means.len()),
                "give one mean per batch, head and channel",
            ));
        }
        Ok(Fp8Tensor { means: Some(means), ..self })
    }

    /// The same tensor of queries, whose heads have these attention sinks, one logit each; all must be finite. A head has the
    /// same in every sequence. The problem must [have sinks](crate::Problem::with_sinks), too.
    pub fn with_sinks(self, sinks: Vec<f32>) -> Result<Self> {
        check_sinks(&sinks, self.dims.heads)?;
        Ok(Fp8Tensor { sinks: Some(sinks), ..self })
    }

    /// The logical dimensions.
    pub fn dims(&self) -> Dims {
        self.dims
    }

    /// The order of the dimensions in memory.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The number format of the codes.
    pub fn format(&self) -> Fp8Format {
        self.format
    }

    /// The codes, in the layout's order.
    pub fn codes(&self) -> &[u8] {
        &self.codes
    }

    /// The scales.
    pub fn scales(&self) -> &Scales {
        &self.scales
    }

    /// The largest magnitude of a code, without its scale.
    pub fn largest_code(&self) -> f32 {
        if self.format == Fp8Format::Int8 {
            let largest = self.codes.iter().fold(0, |largest, code| largest.max(code.cast_signed().unsigned_abs()));
            return f32::from(largest);
        }
        // Without the sign, codes order as their values do.
        let largest = self.codes.iter().fold(0, |largest, code| largest.max(code & 0x7f));
        crate::fp8::decode(self.format, largest)
    }

    /// The channel means that were subtracted before quantising, in `[batch, head, channel]` order.
    pub fn means(&self) -> Option<&[f32]> {
        self.means.as_deref()
    }

    /// The attention sink of each head, if it has one.
    pub fn sinks(&self) -> Option<&[f32]> {
        self.sinks.as_deref()
    }

    /// The distances between neighbours in the codes.
    pub fn strides(&self) -> Strides {
        self.layout.strides(self.dims)
    }

    /// The mean of every channel of one head, if the tensor was centred.
    pub fn head_means(&self, batch: usize, head: usize) -> Option<&[f32]> {
        let head_dim = self.dims.head_dim;
        let start = (batch * self.dims.heads + head) * head_dim;
        self.means.as_ref().map(|means| &means[start..start + head_dim])
    }

    /// The values that the tensor stands for, in `[B,H,S,D]` order, exact in f64.
    pub fn dequantize(&self) -> Vec<f64> {
        let Dims { batch, heads, len, .. } = self.dims;
        let mut values = Vec::with_capacity(self.dims.count());
        for b in 0..batch {
            for h in 0..heads {
                values.extend(self.dequantize_rows(b, h, 0..len));
            }
        }
        values
    }

    /// The values that these rows of one head stand for, exact in f64.
    pub fn dequantize_rows(&self, batch: usize, head: usize, rows: Range<usize>) -> Vec<f64> {
        let strides = self.strides();
        let means = self.head_means(batch, head);
        let mut values = Vec::with_capacity(rows.len() * self.dims.head_dim);
        for row in rows {
            let scale = f64::from(self.scales.of_row(self.dims, batch, head, row));
            let offset = strides.row_offset(batch, head, row);
            for channel in 0..self.dims.head_dim {
                let code = self.codes[offset + channel * strides.channel];
                let mean = means.map_or(0.0, |means| f64::from(means[channel]));
                values.push(f64::from(crate::fp8::decode(self.format, code)) * scale + mean);
            }
        }
        values
    }
}

/// Sinks are one finite logit for each of so many heads.
pub(crate) fn check_sinks<T: Copy + Into<f64>>(sinks: &[T], heads: usize) -> Result<()> {
    let fix = "give one finite logit for each query head";
    if sinks.len() != heads {
        return Err(Error::invalid("sinks", format!("{} logits for {heads} query heads", sinks.len()), fix));
    }
    match sinks.iter().map(|sink| (*sink).into()).enumerate().find(|(_, sink)| !sink.is_finite()) {
        Some((head, sink)) => Err(Error::invalid("sinks", format!("that of head {head} is {sink}"), fix)),
        None => Ok(()),
    }
}

/// Where the first code lies that stands for NaN or an infinity.
fn first_non_finite(format: Fp8Format, codes: &[u8]) -> Option<usize> {
    // A block is looked at as a whole, without leaving it early, because that can be vectorised.
    const BLOCK: usize = 1024;
    let is_suspect = |block: &[u8]| block.iter().fold(false, |any, &code| any | format.is_non_finite(code));
    let block = codes.chunks(BLOCK).position(is_suspect)? * BLOCK;
    codes[block..].iter().position(|&code| format.is_non_finite(code)).map(|index| block + index)
}
