//! E4M3, E5M2 and INT8: exact conversions in both directions, one value or many at a time.
//!
//! Encoding rounds to nearest, ties to even, and saturates: an overflow or an infinity becomes the
//! largest finite value of its sign, NaN stays NaN, and zero keeps its sign where the format has two. Halves are widened to
//! f32, which is exact, so every value is rounded once.
//!
//! ```
//! use eightfold::{Fp8Format, fp8};
//!
//! let mut codes = [0; 3];
//! fp8::encode_slice(Fp8Format::E4m3, &[1.0f32, -0.3, 1e9], &mut codes)?;
//! let mut values = [0.0; 3];
//! fp8::decode_slice(Fp8Format::E4m3, &codes, &mut values)?;
//! assert_eq!(values, [1.0, -0.3125, 448.0]);
//! # Ok::<(), eightfold::Error>(())
//! ```

#[cfg(target_arch = "x86_64")]
mod avx2;
mod element;
mod format;
mod scalar;

pub use element::Element;
pub use format::Fp8Format;
pub use scalar::{decode, encode};

use crate::error::{Error, Result};

/// Values that are widened at a time: small enough for the stack and the first-level cache.
const CHUNK: usize = 512;

/// Encodes every value; `codes` must be as long as `values`.
pub fn encode_slice<T: Element>(format: Fp8Format, values: &[T], codes: &mut [u8]) -> Result<()> {
    check_lengths("codes", codes.len(), "values", values.len())?;
    let mut buffer = [0.0; CHUNK];
    for (values, codes) in values.chunks(CHUNK).zip(codes.chunks_mut(CHUNK)) {
        encode_f32(format, T::widen(values, &mut buffer), codes);
    }
    Ok(())
}

/// Decodes every code; `values` must be as long as `codes`.
pub fn decode_slice(format: Fp8Format, codes: &[u8], values: &mut [f32]) -> Result<()> {
    check_lengths("values", values.len(), "codes", codes.len())?;
    decode_f32(format, codes, values);
    Ok(())
}

/// Decodes as many codes as there are values, or as many as there are codes if those are fewer.
pub(crate) fn decode_f32(format: Fp8Format, codes: &[u8], values: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    if let Some(avx2) = avx2::Avx2::detect() {
        return avx2.decode_slice(format, codes, values);
    }
    scalar::decode_slice(format, codes, values);
}

/// Encodes as many values as there are codes, or as many as there are values if those are fewer.
pub(crate) fn encode_f32(format: Fp8Format, values: &[f32], codes: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    if let Some(avx2) = avx2::Avx2::detect() {
        return avx2.encode_slice(format, values, codes);
    }
    scalar::encode_slice(format, values, codes);
}

fn check_lengths(argument: &str, len: usize, other: &str, expected: usize) -> Result<()> {
    if len == expected {
        return Ok(());
    }
    Err(Error::invalid(
        argument,
        format!("has {len} elements, but {other} has {expected}"),
        "give both slices the same length",
    ))
}
