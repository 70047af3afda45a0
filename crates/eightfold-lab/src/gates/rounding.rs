//! What the output's number format alone costs: rounding, and range.

use eightfold::OutputFormat;
use half::{bf16, f16};

/// The nearest value of a format; a value itself for f32, whose rounding the declared tolerances include.
pub(super) fn nearest(format: OutputFormat, value: f64) -> f64 {
    match format {
        OutputFormat::F16 => f16::from_f64(value).to_f64(),
        OutputFormat::Bf16 => bf16::from_f64(value).to_f64(),
        _ => value,
    }
}

/// Half a unit in the last place of a format at this value; zero for f32, whose rounding the declared
/// tolerances include.
pub(super) fn half_ulp(format: OutputFormat, value: f64) -> f64 {
    let (fraction_bits, min_exponent) = match format {
        OutputFormat::F16 => (10, -14),
        OutputFormat::Bf16 => (7, -126),
        _ => return 0.0,
    };
    // The biased exponent of an f64 is exact where a logarithm would round; 0 gives a subnormal's.
    let exponent = ((value.to_bits() >> 52) & 0x7ff) as i32 - 1023;
    2f64.powi(exponent.max(min_exponent) - fraction_bits - 1)
}

/// The largest finite value of a format.
pub(super) fn max_finite(format: OutputFormat) -> f64 {
    match format {
        OutputFormat::F16 => f16::MAX.to_f64(),
        OutputFormat::Bf16 => bf16::MAX.to_f64(),
        _ => f64::from(f32::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_to_the_format_stays_within_half_an_ulp() {
        for step in 0..4000 {
            let value = 1.7f64.powf(f64::from(step) / 100.0 - 30.0) * if step % 2 == 0 { 1.0 } else { -1.0 };
            for format in OutputFormat::ALL.iter().copied().filter(|format| value.abs() <= max_finite(*format)) {
                let error = (nearest(format, value) - value).abs();
                assert!(error <= half_ulp(format, value), "{value} in {format}");
            }
        }
    }

    #[test]
    fn half_an_ulp_of_one_is_the_formats_unit_roundoff() {
        assert_eq!(half_ulp(OutputFormat::F16, 1.0), 2f64.powi(-11));
        assert_eq!(half_ulp(OutputFormat::Bf16, 1.0), 2f64.powi(-8));
        assert_eq!(half_ulp(OutputFormat::F16, 1e-7), 2f64.powi(-25));
    }
}
