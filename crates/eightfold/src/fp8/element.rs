//! The number types that FP8 is made from.

#[cfg(target_arch = "x86_64")]
use super::avx2::Avx2;
use half::{bf16, f16};

/// A number type that can be quantised: `f32`, `half::f16`, `half::bf16`.
pub trait Element: Widen {
    /// The value as f32, which holds every value of every element type exactly.
    fn to_f32(self) -> f32;
}

/// What the conversions need of an element; it is out of reach for other crates, which therefore
/// cannot add element types.
pub trait Widen: Copy + Send + Sync {
    /// The values as f32: in place where they are already, else in the front of `buffer`, which must
    /// be at least as long.
    fn widen<'a>(values: &'a [Self], buffer: &'a mut [f32]) -> &'a [f32];
}

impl Element for f32 {
    fn to_f32(self) -> f32 {
        self
    }
}

impl Widen for f32 {
    fn widen<'a>(values: &'a [f32], _buffer: &'a mut [f32]) -> &'a [f32] {
        values
    }
}

impl Element for f16 {
    fn to_f32(self) -> f32 {
        f16::to_f32(self)
    }
}

impl Widen for f16 {
    fn widen<'a>(values: &'a [f16], buffer: &'a mut [f32]) -> &'a [f32] {
        let buffer = &mut buffer[..values.len()];
        widen_f16(values, buffer);
        buffer
    }
}

fn widen_f16(values: &[f16], wide: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    if let Some(avx2) = Avx2::detect() {
        return avx2.widen_f16(values, wide);
    }
    for (wide, value) in wide.iter_mut().zip(values) {
        *wide = value.to_f32();
    }
}

impl Element for bf16 {
    fn to_f32(self) -> f32 {
        bf16::to_f32(self)
    }
}

impl Widen for bf16 {
    fn widen<'a>(values: &'a [bf16], buffer: &'a mut [f32]) -> &'a [f32] {
        let buffer = &mut buffer[..values.len()];
        for (wide, value) in buffer.iter_mut().zip(values) {
            // The shift alone would keep a signalling NaN, which is as good as a quiet one here.
            *wide = f32::from_bits(u32::from(value.to_bits()) << 16);
        }
        buffer
    }
}
