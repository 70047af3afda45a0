//! E4M3 and E5M2: exact conversions in both directions.

use crate::tensor::Fp8Format;

/// The value of a code.
pub fn decode(format: Fp8Format, code: u8) -> f32 {
    let sign = if code & 0x80 != 0 { -1.0 } else { 1.0 };
    let (mantissa_bits, bias) = match format {
        Fp8Format::E4m3 => (3, 7),
        Fp8Format::E5m2 => (2, 15),
    };
    let magnitude = code & 0x7f;
    if format.is_non_finite(code) {
        let infinite = format == Fp8Format::E5m2 && magnitude == 0x7c;
        return if infinite { sign * f32::INFINITY } else { f32::NAN };
    }
    let exponent = i32::from(magnitude >> mantissa_bits);
    let mantissa = f32::from(magnitude & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits) as f32;
    let value = if exponent == 0 {
        mantissa * 2f32.powi(1 - bias)
    } else {
        (1.0 + mantissa) * 2f32.powi(exponent - bias)
    };
    sign * value
}
