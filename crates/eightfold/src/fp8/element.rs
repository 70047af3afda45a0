//! The number types that FP8 is made from.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// A number type that can be quantised: `f32`, `half::f16`, `half::bf16`.
pub trait Element: sealed::Sealed + Copy + Send + Sync {
    /// The value as f32, which holds every value of every element type exactly.
    fn to_f32(self) -> f32;

    /// The values as f32: in place where they are already, else in the front of `buffer`, which must
    /// be at least as long.
    #[doc(hidden)]
    fn widen<'a>(values: &'a [Self], buffer: &'a mut [f32]) -> &'a [f32];
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for half::f16 {}
    impl Sealed for half::bf16 {}
}

impl Element for f32 {
    fn to_f32(self) -> f32 {
        self
    }

    fn widen<'a>(values: &'a [f32], _buffer: &'a mut [f32]) -> &'a [f32] {
        values
    }
}

impl Element for f16 {
    fn to_f32(self) -> f32 {
        f16::to_f32(self)
    }

    fn widen<'a>(values: &'a [f16], buffer: &'a mut [f32]) -> &'a [f32] {
        let buffer = &mut buffer[..values.len()];
        values.convert_to_f32_slice(buffer);
        buffer
    }
}

impl Element for bf16 {
    fn to_f32(self) -> f32 {
        bf16::to_f32(self)
    }

    fn widen<'a>(values: &'a [bf16], buffer: &'a mut [f32]) -> &'a [f32] {
        let buffer = &mut buffer[..values.len()];
        for (wide, value) in buffer.iter_mut().zip(values) {
            // The shift alone would keep a signalling NaN, which is as good as a quiet one here.
            *wide = f32::from_bits(u32::from(value.to_bits()) << 16);
        }
        buffer
    }
}
