//! FP8 tensors: codes, their layout in memory, and the scales without which they mean nothing.

use crate::error::{Error, Result};
use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

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
                Error::invalid("shape", format!("{self} has more elements than can be addressed"), "make it smaller")
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
    /// The same with the rows of every 16 exchanged, for device tensors alone: where the hopper kernel's weights come out
    /// of one product, they go into the next. Position 4q + 2h + e of 16 holds row 8h + 2q + e (q below 4, h and e below
    /// 2).
    BhdsExchanged,
}

impl Layout {
    /// Whether neighbours in memory are rows of one channel.
    pub fn is_transposed(self) -> bool {
        matches!(self, Layout::Bhds | Layout::BhdsExchanged)
    }

    /// The distance between neighbours along each dimension; of exchanged rows, between their positions.
    pub fn strides(self, dims: Dims) -> Strides {
        let Dims { heads, len, head_dim, .. } = dims;
        let batch = heads * len * head_dim;
        match self {
            Layout::Bhsd => Strides { batch, head: len * head_dim, row: head_dim, channel: 1 },
            Layout::Bshd => Strides { batch, head: head_dim, row: heads * head_dim, channel: 1 },
            Layout::Bhds | Layout::BhdsExchanged => Strides { batch, head: len * head_dim, row: 1, channel: len },
        }
    }
}

impl Layout {
    /// Host tensors lie in plain orders.
    pub(crate) fn check_on_host(self) -> Result<()> {
        if self == Layout::BhdsExchanged {
            return Err(Error::invalid(
                "layout",
                "bhds-exchanged is for tensors in device memory",
                "lay it out as bhds; DeviceTensor::upload exchanges the rows",
            ));
        }
        Ok(())
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Layout::Bhsd => "bhsd",
            Layout::Bshd => "bshd",
            Layout::Bhds => "bhds",
            Layout::BhdsExchanged => "bhds-exchanged",
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
            return Err(Error::invalid("scales", "a block of 0 rows holds nothing", "give at least 1 row per block"));
        }
        if let Some((index, scale)) = values.iter().enumerate().find(|(_, scale)| !scale.is_finite() || **scale <= 0.0)
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
            Granularity::Block { rows } => self.values[head_index * dims.len.div_ceil(rows) + row / rows],
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
        let expected = scales.granularity.count(dims);
        if scales.values.len() != expected {
            return Err(Error::invalid(
                "scales",
                format!("{} scales {}, but dims {dims} need {expected}", scales.values.len(), scales.granularity),
                "give one scale for each unit of the granularity",
            ));
        }
        if let Some(index) = first_non_finite(format, &codes) {
            return Err(Error::invalid(
                "codes",
                format!("code {:#04x} at index {index} is NaN or infinite in {format}", codes[index]),
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
                format!("{} values, or one that is not finite, where {expected} finite ones are needed", means.len()),
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

    /// The largest magnitude of a code, without its scale.
    pub fn largest_code(&self) -> f32 {
        // Without the sign, codes order as their values do.
        let largest = self.codes.iter().fold(0, |largest, code| largest.max(code & 0x7f));
        crate::fp8::decode(self.format, largest)
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

/// Where the first code lies that stands for NaN or an infinity.
fn first_non_finite(format: Fp8Format, codes: &[u8]) -> Option<usize> {
    // A block is looked at as a whole, without leaving it early, because that can be vectorised.
    const BLOCK: usize = 1024;
    let is_suspect = |block: &[u8]| block.iter().fold(false, |any, &code| any | format.is_non_finite(code));
    let block = codes.chunks(BLOCK).position(is_suspect)? * BLOCK;
    codes[block..].iter().position(|&code| format.is_non_finite(code)).map(|index| block + index)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIMS: Dims = Dims { batch: 2, heads: 3, len: 5, head_dim: 8 };

    fn scales() -> Scales {
        Scales::per_tensor(0.5).unwrap()
    }

    fn tensor(codes: Vec<u8>) -> Result<Fp8Tensor<'static>> {
        Fp8Tensor::new(DIMS, Layout::Bhsd, Fp8Format::E4m3, codes, scales())
    }

    #[track_caller]
    fn assert_refused<T: std::fmt::Debug>(result: Result<T>, expected: &str) {
        let error = result.unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }

    #[test]
    fn each_layout_gives_every_element_its_own_place() {
        for layout in [Layout::Bhsd, Layout::Bshd, Layout::Bhds] {
            let strides = layout.strides(DIMS);
            let mut taken = vec![false; DIMS.count()];
            for batch in 0..DIMS.batch {
                for head in 0..DIMS.heads {
                    for row in 0..DIMS.len {
                        for channel in 0..DIMS.head_dim {
                            let offset = strides.row_offset(batch, head, row) + channel * strides.channel;
                            assert!(!std::mem::replace(&mut taken[offset], true), "{layout}");
                        }
                    }
                }
            }
        }
        assert_eq!(Layout::Bhsd.strides(DIMS).row, 8);
        assert_eq!(Layout::Bshd.strides(DIMS).row, 24);
        assert_eq!(Layout::Bhds.strides(DIMS).row, 1);
    }

    #[test]
    fn exchanged_rows_are_for_the_device() {
        let tensor = Fp8Tensor::new(DIMS, Layout::BhdsExchanged, Fp8Format::E4m3, vec![0; 240], scales());
        assert_refused(tensor, "layout: bhds-exchanged is for tensors in device memory; ");
        assert!(Layout::BhdsExchanged.is_transposed() && !Layout::Bshd.is_transposed());
    }

    #[test]
    fn a_count_that_overflows_is_refused() {
        assert_eq!(DIMS.checked_count(), Ok(240));
        assert_refused(Dims { len: usize::MAX, ..DIMS }.checked_count(), "shape: [2, 3, ");
        assert_refused(Dims { len: usize::MAX / 240, ..DIMS }.checked_count(), "shape: [2, 3, ");
    }

    #[test]
    fn a_scale_must_be_finite_and_positive() {
        for bad in [0.0, -0.0, -1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert_refused(
                Scales::new(Granularity::Head, vec![1.0, 2.0, bad]),
                &format!("scales: scale 2 is {bad}, not a finite positive number; "),
            );
            assert_refused(Scales::per_tensor(bad), "scales: scale 0 is ");
        }
        assert_refused(Scales::new(Granularity::Block { rows: 0 }, vec![1.0]), "scales: a block of 0 rows");
    }

    #[test]
    fn each_row_finds_its_own_scale() {
        let numbered = |granularity: Granularity| {
            let count = granularity.count(DIMS);
            Scales::new(granularity, (1..=count).map(|index| index as f32).collect()).unwrap()
        };
        let tensor = numbered(Granularity::Tensor);
        assert_eq!(tensor.values(), [1.0]);
        assert_eq!(tensor.of_row(DIMS, 1, 2, 4), 1.0);
        let heads = numbered(Granularity::Head);
        assert_eq!(heads.values().len(), 6);
        assert_eq!(heads.of_row(DIMS, 0, 2, 4), 3.0);
        assert_eq!(heads.of_row(DIMS, 1, 0, 0), 4.0);
        let blocks = numbered(Granularity::Block { rows: 2 });
        assert_eq!(blocks.values().len(), 18);
        let of_rows: Vec<f32> = (0..5).map(|row| blocks.of_row(DIMS, 1, 1, row)).collect();
        assert_eq!(of_rows, [13.0, 13.0, 14.0, 14.0, 15.0]);
    }

    #[test]
    fn wrong_lengths_and_zero_sizes_are_refused() {
        assert_refused(tensor(vec![0; 239]), "codes: 239 codes for dims [2, 3, 5, 8], which hold 240; ");
        for (granularity, given, expected) in
            [(Granularity::Tensor, 2, 1), (Granularity::Head, 5, 6), (Granularity::Block { rows: 2 }, 17, 18)]
        {
            let scales = Scales::new(granularity, vec![1.0; given]).unwrap();
            assert_refused(
                Fp8Tensor::new(DIMS, Layout::Bhsd, Fp8Format::E4m3, vec![0; 240], scales),
                &format!("scales: {given} scales {granularity}, but dims [2, 3, 5, 8] need {expected}; "),
            );
        }
        let dims = Dims { heads: 0, ..DIMS };
        assert_refused(
            Fp8Tensor::new(dims, Layout::Bhsd, Fp8Format::E4m3, vec![], scales()),
            "dims: [2, 0, 5, 8] has a zero size; ",
        );
        let dims = Dims { heads: usize::MAX, ..DIMS };
        assert_refused(Fp8Tensor::new(dims, Layout::Bhsd, Fp8Format::E4m3, vec![], scales()), "shape: ");
    }

    #[test]
    fn a_code_that_is_not_finite_is_refused_with_its_place() {
        let wide = Dims { len: 1000, ..DIMS };
        for (format, code) in (0..=255).flat_map(|code| [(Fp8Format::E4m3, code), (Fp8Format::E5m2, code)]) {
            let mut codes = vec![1; wide.count()];
            for index in [0, 1023, 1024, 47_999] {
                codes[index] = code;
                let tensor = Fp8Tensor::new(wide, Layout::Bhsd, format, &codes, scales());
                if crate::fp8::decode(format, code).is_finite() {
                    assert!(tensor.is_ok(), "{format} {code:#04x}");
                } else {
                    let expected = format!("codes: code {code:#04x} at index {index} is NaN or");
                    assert_refused(tensor, &expected);
                }
                codes[index] = 1;
            }
        }
    }

    #[test]
    fn means_are_one_finite_number_per_channel_of_each_head() {
        let fresh = || tensor(vec![0; 240]).unwrap();
        assert_eq!(fresh().means(), None);
        assert_eq!(fresh().head_means(0, 0), None);
        let means: Vec<f32> = (0..48).map(|index| index as f32).collect();
        let centred = fresh().with_means(means.clone()).unwrap();
        assert_eq!(centred.means(), Some(&means[..]));
        assert_eq!(centred.head_means(1, 2), Some(&means[40..]));
        assert_refused(fresh().with_means(means[..47].to_vec()), "means: 47 values");
        for bad in [f32::NAN, f32::INFINITY] {
            assert_refused(fresh().with_means(vec![bad; 48]), "means: ");
        }
    }

    #[test]
    fn a_value_is_code_times_scale_plus_mean() {
        // 0x38 is 1.0 and 0xc4 is −3.0 in E4M3.
        let mut codes = vec![0x38; 240];
        let strides = Layout::Bhds.strides(DIMS);
        codes[strides.row_offset(1, 0, 3) + 6 * strides.channel] = 0xc4;
        let scales = Scales::new(Granularity::Head, vec![1.0, 2.0, 4.0, 8.0, 16.0, 32.0]).unwrap();
        let means = (0..48).map(|index| index as f32 / 64.0).collect();
        let tensor =
            Fp8Tensor::new(DIMS, Layout::Bhds, Fp8Format::E4m3, &codes, scales).unwrap().with_means(means).unwrap();
        let values = tensor.dequantize();
        assert_eq!(tensor.largest_code(), 3.0);
        assert_eq!(values.len(), 240);
        assert_eq!(values[0], 1.0);
        assert_eq!(values[((2 * 5) + 4) * 8 + 7], 4.0 + 23.0 / 64.0);
        assert_eq!(values[((3 * 5) + 3) * 8 + 6], -24.0 + 30.0 / 64.0);
    }

    #[test]
    fn borrowed_codes_are_not_copied() {
        let codes = vec![0; 240];
        let tensor = Fp8Tensor::new(DIMS, Layout::Bshd, Fp8Format::E5m2, &codes, scales()).unwrap();
        assert!(std::ptr::eq(tensor.codes(), &codes[..]));
        assert_eq!(tensor.format(), Fp8Format::E5m2);
        assert_eq!(tensor.layout(), Layout::Bshd);
        assert_eq!(tensor.strides(), Layout::Bshd.strides(DIMS));
    }
}
