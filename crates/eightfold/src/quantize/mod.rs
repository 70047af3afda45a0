//! f32, f16 or bf16 → FP8 codes and scales.

mod centre;
mod codes;
mod run;
mod scales;
mod source;
mod transpose;

pub use crate::fp8::Element;
pub(crate) use centre::ROWS_PER_SUM;

use crate::error::{Error, Result};
use crate::fp8;
use crate::tensor::{Dims, Fp8Format, Fp8Tensor, Granularity, Layout};
use source::Source;

/// How to quantise: format, scales, layout in memory, centring.
///
/// ```
/// use eightfold::quantize::Quantizer;
/// use eightfold::{Dims, Fp8Format, Granularity, Layout};
///
/// // V of one head of 4 rows × 8 channels, transposed, with one scale for every 2 rows.
/// let values: Vec<f32> = (0..32).map(|index| index as f32).collect();
/// let v = Quantizer::new(Fp8Format::E4m3)
///     .with_granularity(Granularity::Block { rows: 2 })
///     .with_layout(Layout::Bhds)
///     .quantize(&values, Dims { batch: 1, heads: 1, len: 4, head_dim: 8 }, Layout::Bhsd)?;
/// assert_eq!(v.scales().values(), [15.0 / 448.0, 31.0 / 448.0]);
/// assert!((v.dequantize()[10] - 10.0).abs() < 0.5);
/// # Ok::<(), eightfold::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Quantizer {
    format: Fp8Format,
    granularity: Granularity,
    layout: Layout,
    centered: bool,
    largest_code: f32,
}

impl Quantizer {
    /// E4M3 or E5M2 codes with one scale per (batch, head), laid out `[B,H,S,D]`, not centred.
    pub fn new(format: Fp8Format) -> Self {
        Quantizer {
            format,
            granularity: Granularity::Head,
            layout: Layout::Bhsd,
            centered: false,
            largest_code: format.max(),
        }
    }

    /// The same with other scales.
    pub fn with_granularity(self, granularity: Granularity) -> Self {
        Quantizer { granularity, ..self }
    }

    /// The same with the codes laid out otherwise, for example transposed for V.
    pub fn with_layout(self, layout: Layout) -> Self {
        Quantizer { layout, ..self }
    }

    /// The same, with each channel's mean over the rows subtracted before quantising and kept beside the codes.
    pub fn centered(self) -> Self {
        Quantizer { centered: true, ..self }
    }

    /// The same with larger scales, so that no code stands for more than this; it must be a value of the format.
    ///
    /// Relative precision hardly changes, and sums of products of small codes fit narrower numbers: with Q and K up to
    /// [`SMALL_CODES`] the hopper kernel keeps its scores in f16.
    pub fn with_largest_code(self, largest_code: f32) -> Self {
        Quantizer { largest_code, ..self }
    }

    /// What no code stands for more than.
    pub fn largest_code(&self) -> f32 {
        self.largest_code
    }

    /// Quantises values that lie in memory in `layout` order.
    ///
    /// Each scale is the largest magnitude among its values divided by the largest code, so that
    /// nothing saturates; it is 1 where all values are zero. A value that is not finite is an error.
    pub fn quantize<T: Element>(&self, values: &[T], dims: Dims, layout: Layout) -> Result<Fp8Tensor<'static>> {
        if self.granularity == (Granularity::Block { rows: 0 }) {
            return Err(Error::invalid(
                "granularity",
                "a block of 0 rows holds nothing",
                "give at least 1 row per block",
            ));
        }
        for layout in [self.layout, layout] {
            layout.check_on_host()?;
        }
        check_largest_code(self.format, self.largest_code)?;
        let source = Source::new(values, dims, layout)?;
        let means = self.centered.then(|| centre::means(&source)).transpose()?;
        let scales = scales::find(&source, means.as_deref(), self.largest_code, self.granularity)?;
        let codes = codes::encode(&source, means.as_deref(), &scales, self.format, self.layout);
        let tensor = Fp8Tensor::new(dims, self.layout, self.format, codes, scales)?;
        match means {
            Some(means) => tensor.with_means(means),
            None => Ok(tensor),
        }
    }
}

/// The largest code of Q and K with which sums of their products over 128 channels stay finite in f16.
pub const SMALL_CODES: f32 = 16.0;

/// Whether codes can go up to this very value: only then does nothing round above it.
pub(crate) fn check_largest_code(format: Fp8Format, largest_code: f32) -> Result<()> {
    let nearest = fp8::decode(format, fp8::encode(format, largest_code));
    if !(largest_code > 0.0 && nearest == largest_code) {
        return Err(Error::invalid(
            "largest_code",
            format!("{largest_code} is not a positive value of {format}"),
            format!("choose a power of two, or {} for the largest", format.max()),
        ));
    }
    Ok(())
}

/// Quantises `[B,H,S,D]` values to E4M3 with one scale per (batch, head).
pub fn quantize<T: Element>(values: &[T], dims: Dims) -> Result<Fp8Tensor<'static>> {
    Quantizer::new(Fp8Format::E4m3).quantize(values, dims, Layout::Bhsd)
}
