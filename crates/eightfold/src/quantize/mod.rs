//! f32, f16 or bf16 → FP8 codes and scales.

use crate::error::Result;
use crate::tensor::{Dims, Fp8Format, Fp8Tensor, Granularity, Layout};

/// A number type that can be quantised: `f32`, `half::f16`, `half::bf16`.
pub trait Element: Copy + Send + Sync {}
impl Element for f32 {}
impl Element for half::f16 {}
impl Element for half::bf16 {}

/// How to quantise: format, scales, layout in memory, centring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quantizer {
    format: Fp8Format,
    granularity: Granularity,
    layout: Layout,
    centered: bool,
}

impl Quantizer {
    /// E4M3 or E5M2 codes with one scale per (batch, head), laid out `[B,H,S,D]`, not centred.
    pub fn new(format: Fp8Format) -> Self {
        Quantizer { format, granularity: Granularity::Head, layout: Layout::Bhsd, centered: false }
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

    /// Quantises values that lie in memory in `layout` order.
    pub fn quantize<T: Element>(
        &self,
        values: &[T],
        dims: Dims,
        layout: Layout,
    ) -> Result<Fp8Tensor<'static>> {
        let _ = (values, dims, layout, self.format, self.granularity, self.layout, self.centered);
        unimplemented!()
    }
}

/// Quantises `[B,H,S,D]` values to E4M3 with one scale per (batch, head).
pub fn quantize<T: Element>(values: &[T], dims: Dims) -> Result<Fp8Tensor<'static>> {
    Quantizer::new(Fp8Format::E4m3).quantize(values, dims, Layout::Bhsd)
}
