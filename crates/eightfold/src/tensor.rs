//! FP8 tensors: codes, their layout in memory, and the scales without which they mean nothing.

use crate::error::{Error, Result};
use std::borrow::Cow;
use std::fmt;

/// An 8-bit float format of the Open Compute Project.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fp8Format {
    /// 4 exponent bits, 3 mantissa bits, largest value 448, no infinities.
    E4m3,
    /// 5 exponent bits, 2 mantissa bits, largest value 57344, with infinities.
    E5m2,
}

impl Fp8Format {
    /// The largest finite value.
    pub fn max(self) -> f32 {
        match self {
            Fp8Format::E4m3 => 448.0,
            Fp8Format::E5m2 => 57344.0,
        }
    }

    /// Whether the code stands for NaN or an infinity.
    pub fn is_non_finite(self, code: u8) -> bool {
        match self {
            Fp8Format::E4m3 => code & 0x7f == 0x7f,
            Fp8Format::E5m2 => code & 0x7f >= 0x7c,
        }
    }
}

impl fmt::Display for Fp8Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fp8Format::E4m3 => "e4m3",
            Fp8Format::E5m2 => "e5m2",
        })
    }
}

/// The logical dimensions of Q, K, V or the output, whatever their order in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Dims {
    /// Independent sequences.
    pub batch: usize,
    /// Heads per sequence.
    pub heads: usize,
    /// Rows (tokens) per head.
    pub len: usize,
    /// Channels per row.
    pub head_dim: usize,
}

impl Dims {
    /// The number of elements.
    pub fn count(&self) -> usize {
        self.batch * self.heads * self.len * self.head_dim
    }

    /// The number of elements, or an error where it does not fit the address space.
    pub fn checked_count(&self) -> Result<usize> {
        [self.heads, self.len, self.head_dim]
            .iter()
            .try_fold(self.batch, |count, &size| count.checked_mul(size))
            .filter(|&count| count <= isize::MAX as usize / 8)
            .ok_or_else(|| {
                Error::invalid(
                    "shape",
                    format!("{self} has more elements than can be addressed"),
                    "make it smaller",
                )
            })
    }
}

/// `[B, H, S, D]`.
impl fmt::Display for Dims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}, {}, {}, {}]", self.batch, self.heads, self.len, self.head_dim)
    }
}

/// The order of the dimensions in memory, outermost first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Layout {
    /// `[batch, head, row, channel]`.
    Bhsd,
    /// `[batch, row, head, channel]`.
    Bshd,
    /// `[batch, head, channel, row]`: V transposed, as the tensor cores want it.
    Bhds,
}

impl Layout {
    /// The distance between neighbours along each dimension.
    pub fn strides(self, dims: Dims) -> Strides {
        let Dims { heads, len, head_dim, .. } = dims;
        let batch = heads * len * head_dim;
        match self {
            Layout::Bhsd => Strides { batch, head: len * head_dim, row: head_dim, channel: 1 },
            Layout::Bshd => Strides { batch, head: head_dim, row: heads * head_dim, channel: 1 },
            Layout::Bhds => Strides { batch, head: len * head_dim, row: 1, channel: len },
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Layout::Bhsd => "bhsd",
            Layout::Bshd => "bshd",
            Layout::Bhds => "bhds",
        })
    }
}

/// Distances, in elements, between neighbours along each dimension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Strides {
    /// From one sequence to the next.
    pub batch: usize,
    /// From one head to the next.
    pub head: usize,
    /// From one row to the next.
    pub row: usize,
    /// From one channel to the next.
    pub channel: usize,
}

impl Strides {
    /// Where channel 0 of a row lies.
    pub fn row_offset(&self, batch: usize, head: usize, row: usize) -> usize {
        batch * self.batch + head * self.head + row * self.row
    }
}

/// How much of a tensor shares one scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Granularity {
    /// One scale for all.
    Tensor,
    /// One scale per (batch, head).
    Head,
    /// One scale per this many consecutive rows of a head; the last block may be shorter.
    Block {
        /// Rows per block.
        rows: usize,
    },
}

impl Granularity {
    /// How many scales a tensor of these dimensions has.
    pub fn count(self, dims: Dims) -> usize {
        match self {
            Granularity::Tensor => 1,
            Granularity::Head => dims.batch * dims.heads,
            Granularity::Block { rows } => dims.batch * dims.heads * dims.len.div_ceil(rows.max(1)),
        }
    }
}

impl fmt::Display for Granularity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Granularity::Tensor => f.write_str("per tensor"),
            Granularity::Head => f.write_str("per head"),
            Granularity::Block { rows } => write!(f, "per block of {rows} rows"),
        }
    }
}

/// The scales of a tensor: value = code · scale.
#[derive(Debug, Clone, PartialEq)]
pub struct Scales {
    granularity: Granularity,
    values: Vec<f32>,
}

impl Scales {
    /// Scales in `[batch, head, block]` order; each must be finite and positive.
    pub fn new(granularity: Granularity, values: Vec<f32>) -> Result<Self> {
        if granularity == (Granularity::Block { rows: 0 }) {
            return Err(Error::invalid(
                "scales",
                "a block of 0 rows holds nothing",
                "give at least 1 row per block",
            ));
        }
        if let Some((index, scale)) =
            values.iter().enumerate().find(|(_, scale)| !scale.is_finite() || **scale <= 0.0)
        {
            return Err(Error::invalid(
                "scales",
                format!("scale {index} is {scale}, not a finite positive number"),
                "divide the largest magnitude by the format's largest value to get a scale, and use 1 where all is zero",
            ));
        }
        Ok(Scales { granularity, values })
    }

    /// One scale for the whole tensor.
    pub fn per_tensor(scale: f32) -> Result<Self> {
        Scales::new(Granularity::Tensor, vec![scale])
    }

    /// How much of the tensor shares a scale.
    pub fn granularity(&self) -> Granularity {
        self.granularity
    }

    /// The scales in `[batch, head, block]` order.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// The scale of one row of a tensor of these dimensions.
    pub fn of_row(&self, dims: Dims, batch: usize, head: usize, row: usize) -> f32 {
        let head_index = batch * dims.heads + head;
        match self.granularity {
            Granularity::Tensor => self.values[0],
            Granularity::Head => self.values[head_index],
            Granularity::Block { rows } => {
                self.values[head_index * dims.len.div_ceil(rows) + row / rows]
            }
        }
    }
}

/// FP8 codes with their scales: value = code · scale (+ the channel's mean, where the tensor was centred).
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
        let count = dims.checked_count()?;
        if count == 0 {
            return Err(Error::invalid(
                "dims",
                format!("{dims} has a zero size"),
                "give positive sizes",
            ));
        }
        if codes.len() != count {
            return Err(Error::invalid(
                "codes",
                format!("{} codes for dims {dims}, which hold {count}", codes.len()),
                "pass one byte per element",
            ));
        }
        let expected = scales.granularity.count(dims);
        if scales.values.len() != expected {
            return Err(Error::invalid(
                "scales",
                format!(
                    "{} scales {}, but dims {dims} need {expected}",
                    scales.values.len(),
                    scales.granularity
                ),
                "give one scale for each unit of the granularity",
            ));
        }
        if let Some(index) = first_non_finite(format, &codes) {
            return Err(Error::invalid(
                "codes",
                format!(
                    "code {:#04x} at index {index} is NaN or infinite in {format}",
                    codes[index]
                ),
                "quantise with saturation",
            ));
        }
        Ok(Fp8Tensor { dims, layout, format, codes, scales, means: None })
    }

    /// The same tensor, whose values have these channel means (in `[batch, head, channel]` order) on top.
    pub fn with_means(self, means: Vec<f32>) -> Result<Self> {
        let expected = self.dims.batch * self.dims.heads * self.dims.head_dim;
        if means.len() != expected || means.iter().any(|mean| !mean.is_finite()) {
            return Err(Error::invalid(
                "means",
                format!(
                    "{} values, or one that is not finite, where {expected} finite ones are needed",
                    means.len()
                ),
                "give one mean per batch, head and channel",
            ));
        }
        Ok(Fp8Tensor { means: Some(means), ..self })
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

    /// The channel means that were subtracted before quantising, in `[batch, head, channel]` order.
    pub fn means(&self) -> Option<&[f32]> {
        self.means.as_deref()
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
        let Dims { batch, heads, len, head_dim } = self.dims;
        let strides = self.strides();
        let mut values = Vec::with_capacity(self.dims.count());
        for b in 0..batch {
            for h in 0..heads {
                let means = self.head_means(b, h);
                for row in 0..len {
                    let scale = f64::from(self.scales.of_row(self.dims, b, h, row));
                    let offset = strides.row_offset(b, h, row);
                    for channel in 0..head_dim {
                        let code = self.codes[offset + channel * strides.channel];
                        let mean = means.map_or(0.0, |means| f64::from(means[channel]));
                        values
                            .push(f64::from(crate::fp8::decode(self.format, code)) * scale + mean);
                    }
                }
            }
        }
        values
    }
}

/// Where the first code lies that stands for NaN or an infinity.
fn first_non_finite(format: Fp8Format, codes: &[u8]) -> Option<usize> {
    // A block is looked at as a whole, without leaving it early, because that can be vectorised.
    const BLOCK: usize = 1024;
    let is_suspect =
        |block: &[u8]| block.iter().fold(false, |any, &code| any | format.is_non_finite(code));
    let block = codes.chunks(BLOCK).position(is_suspect)? * BLOCK;
    codes[block..].iter().position(|&code| format.is_non_finite(code)).map(|index| block + index)
}
