//! The arithmetic of `kernels/quantize/quotient.cuh`, step by step, and that it gives the codes of a division.
//!
//! A code depends on where the quotient, rounded to f32, lies with respect to the points half way between two values of
//! the format. Those have at most eight significant bits, so that there are 128 of them up to a power of two; a scale has
//! 2²³ mantissas; and powers of two change nothing while nothing overflows or underflows, for which the factor cares.
//! The corrected guess and the rounded quotient are both within 0.6 ulp of the quotient. So it is enough to look at
//! every mantissa, every half-way point, and the few values whose quotients are within an ulp of it.

use crate::fp8;
use crate::tensor::Fp8Format;
use rayon::prelude::*;
use std::cmp::Ordering;

/// `Divisor` of the device code.
#[derive(Debug, Clone, Copy)]
struct Divisor {
    factor: f32,
    mantissa: f32,
    inverse: f32,
}

#[inline(always)]
fn divisor(scale: f32) -> Divisor {
    let bits = scale.to_bits();
    let exponent = 254 - (bits >> 23);
    let factor = f32::from_bits(if exponent == 0 { 0x0040_0000 } else { exponent << 23 });
    let mantissa = f32::from_bits((bits & 0x007f_ffff) | 0x3f80_0000);
    Divisor { factor, mantissa, inverse: 1.0 / mantissa }
}

#[inline(always)]
fn quotient(value: f32, by: Divisor) -> f32 {
    let scaled = value * by.factor;
    let guess = scaled * by.inverse;
    let excess = by.mantissa.mul_add(guess, -scaled);
    excess.mul_add(-by.inverse, guess)
}

/// The mantissas among `mantissas` for which some value is on another side of a half-way point than its quotient.
#[inline(always)]
fn failures(mantissas: std::ops::Range<u32>) -> Vec<u32> {
    // A step of a value is more than half an ulp of the quotient, and the one in the middle is within half a step.
    const STEPS: u32 = 3;
    let side = |quotient: f32, point: f32| quotient.partial_cmp(&point).unwrap_or(Ordering::Less);
    mantissas
        .filter(|mantissa| {
            let by = divisor(f32::from_bits(0x3f80_0000 | mantissa));
            let wrong = |point: f32| {
                let middle = (by.mantissa * point).to_bits();
                let differs = |bits| {
                    let value = f32::from_bits(bits);
                    side(quotient(value, by), point) != side(value / by.mantissa, point)
                };
                (middle - STEPS..=middle + STEPS).fold(false, |any, bits| any | differs(bits))
            };
            (128..=255u8).any(|parts| wrong(f32::from(parts) / 128.0))
        })
        .collect()
}

/// The same with the instruction for `mul_add`, where a call of a library would take minutes.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn failures_with_fma(mantissas: std::ops::Range<u32>) -> Vec<u32> {
    failures(mantissas)
}

/// Every mantissa where the CPU has the instruction, and elsewhere one in fifty.
#[test]
fn no_mantissa_puts_a_value_on_the_wrong_side() {
    const TASK: u32 = 1 << 14;
    const TASKS: u32 = (1 << 23) / TASK;
    let failed: Vec<u32> = (0..TASKS)
        .into_par_iter()
        .flat_map_iter(|task| {
            let all = task * TASK..(task + 1) * TASK;
            #[cfg(target_arch = "x86_64")]
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                // SAFETY: the CPU has what the function needs.
                return unsafe { failures_with_fma(all) };
            }
            let some = TASK / 100;
            let mut failed = failures(all.start..all.start + some);
            failed.extend(failures(all.end - some..all.end));
            failed
        })
        .collect();
    assert_eq!(failed, Vec::<u32>::new());
}

/// Without the correction, the same test finds plenty.
#[test]
fn a_product_with_the_inverse_would_not_do() {
    let by = divisor(f32::from_bits(0x3f80_0000 | 0x0012_3457));
    let wrong = (16..32u8).any(|sixteenths| {
        let point = f32::from(sixteenths) / 16.0;
        let middle = (by.mantissa * point).to_bits();
        (middle - 8..=middle + 8)
            .map(f32::from_bits)
            .any(|value| (value * by.inverse).partial_cmp(&point) != (value / by.mantissa).partial_cmp(&point))
    });
    assert!(wrong);
}

const FORMATS: [Fp8Format; 3] = [Fp8Format::E4m3, Fp8Format::E5m2, Fp8Format::Int8];

fn assert_codes(value: f32, scale: f32) {
    for format in FORMATS {
        let (got, expected) = (quotient(value, divisor(scale)), value / scale);
        let code = |quotient| fp8::encode(format, quotient);
        assert_eq!(code(got), code(expected), "{value:e} / {scale:e} is {expected:e}, not {got:e}, in {format}");
    }
}

/// Scales of every exponent that they can have, and values from zero to the largest that such a scale is for.
#[test]
fn no_exponent_changes_a_code() {
    let mantissas = [0, 1, 0x0012_3457, 0x003f_ffff, 0x0040_0000, 0x0060_0001, 0x007f_fffe, 0x007f_ffff];
    for exponent in 1..255 {
        for scale in mantissas.map(|mantissa| f32::from_bits(exponent << 23 | mantissa)) {
            for code in 0..=0x7b {
                // The values of each format, and the points half way to the next.
                for format in FORMATS {
                    let (low, high) = (fp8::decode(format, code), fp8::decode(format, code + 1));
                    for quotient in [low, low + (high - low) / 2.0] {
                        let middle = (scale * quotient).to_bits();
                        for value in (middle.saturating_sub(2)..=middle + 2).map(f32::from_bits) {
                            if value.is_finite() && value / scale <= format.max() {
                                assert_codes(value, scale);
                                assert_codes(-value, scale);
                            }
                        }
                    }
                }
            }
            for value in [0.0, f32::from_bits(1), f32::from_bits(0x007f_ffff), f32::MIN_POSITIVE] {
                if value / scale <= 448.0 {
                    assert_codes(value, scale);
                    assert_codes(-value, scale);
                }
            }
        }
    }
}
