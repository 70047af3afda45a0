//! FP8 conversions against an oracle that searches the whole format for the nearest value.

use eightfold::{Fp8Format, fp8};
use half::{bf16, f16};
use proptest::prelude::*;

const FORMATS: [Fp8Format; 3] = [Fp8Format::E4m3, Fp8Format::E5m2, Fp8Format::Int8];

/// The value of a code by the definition of the format, in f64.
fn value_of(format: Fp8Format, code: u8) -> f64 {
    let (mantissa_bits, bias) = match format {
        Fp8Format::E4m3 => (3, 7),
        Fp8Format::E5m2 => (2, 15),
        Fp8Format::Int8 if code == 0x80 => return f64::NAN,
        Fp8Format::Int8 => return f64::from(code.cast_signed()),
    };
    let sign = if code & 0x80 != 0 { -1.0 } else { 1.0 };
    let exponent = i32::from((code & 0x7f) >> mantissa_bits);
    let fraction = f64::from(code & ((1 << mantissa_bits) - 1)) / f64::from(1 << mantissa_bits);
    match (format, code & 0x7f) {
        (Fp8Format::E4m3, 0x7f) | (Fp8Format::E5m2, 0x7d..) => f64::NAN,
        (Fp8Format::E5m2, 0x7c) => sign * f64::INFINITY,
        _ if exponent == 0 => sign * fraction * 2f64.powi(1 - bias),
        _ => sign * (1.0 + fraction) * 2f64.powi(exponent - bias),
    }
}

/// The magnitudes of the finite codes, in order: a code is its magnitude's place.
fn magnitudes(format: Fp8Format) -> Vec<f64> {
    (0..0x80).map(|code| value_of(format, code)).take_while(|value| value.is_finite()).collect()
}

/// The nearest code by exhaustive search, the even one of two that are equally near.
fn nearest(format: Fp8Format, magnitudes: &[f64], value: f32) -> u8 {
    let sign = if value.is_sign_negative() { 0x80 } else { 0 };
    if value.is_nan() {
        return if format == Fp8Format::Int8 { 0x80 } else { sign | 0x7f };
    }
    let wanted = f64::from(value).abs().min(f64::from(format.max()));
    let distance = |code: &usize| (magnitudes[*code] - wanted).abs();
    let code = (0..magnitudes.len())
        .min_by(|a, b| distance(a).total_cmp(&distance(b)).then((a % 2).cmp(&(b % 2))))
        .expect("a format has values");
    match (format, sign) {
        (Fp8Format::Int8, 0x80) => (code as u8).wrapping_neg(),
        _ => sign | code as u8,
    }
}

/// Checks one value at a time and all in bulk, in every format.
fn check_all(values: &[f32]) {
    for format in FORMATS {
        let magnitudes = magnitudes(format);
        let mut codes = vec![0; values.len()];
        fp8::encode_slice(format, values, &mut codes).unwrap();
        for (value, in_bulk) in values.iter().zip(codes) {
            let bits = value.to_bits();
            let expected = nearest(format, &magnitudes, *value);
            let alone = fp8::encode(format, *value);
            assert_eq!(alone, expected, "{format} {value:e} {bits:#010x}, alone");
            assert_eq!(in_bulk, expected, "{format} {value:e} {bits:#010x}, in bulk");
        }
    }
}

#[test]
fn every_code_decodes_to_its_definition() {
    let codes: Vec<u8> = (0..=255).collect();
    for format in FORMATS {
        let mut values = vec![0.0; 256];
        fp8::decode_slice(format, &codes, &mut values).unwrap();
        for code in 0..=255u8 {
            let (expected, alone) = (value_of(format, code), fp8::decode(format, code));
            assert_eq!(values[usize::from(code)].to_bits(), alone.to_bits(), "{format} {code:#04x}");
            assert_eq!(format.is_non_finite(code), !expected.is_finite(), "{format} {code:#04x}");
            if expected.is_nan() {
                assert!(alone.is_nan(), "{format} {code:#04x}");
            } else {
                assert_eq!(f64::from(alone).to_bits(), expected.to_bits(), "{format} {code:#04x}");
            }
        }
    }
}

#[test]
fn every_finite_code_survives_the_round_trip() {
    for format in FORMATS {
        for code in (0..=255).filter(|code| !format.is_non_finite(*code)) {
            assert_eq!(fp8::encode(format, fp8::decode(format, code)), code, "{format} {code:#04x}");
        }
    }
}

#[test]
fn overflow_and_infinity_saturate_and_zero_keeps_its_sign() {
    for (format, max) in [(Fp8Format::E4m3, 0x7e), (Fp8Format::E5m2, 0x7b)] {
        assert_eq!(f64::from(format.max()), value_of(format, max));
        for value in [f32::INFINITY, f32::MAX, format.max() * 2.0, format.max().next_up()] {
            assert_eq!(fp8::encode(format, value), max);
            assert_eq!(fp8::encode(format, -value), 0x80 | max);
        }
        assert_eq!(fp8::encode(format, 0.0), 0);
        assert_eq!(fp8::encode(format, -0.0), 0x80);
        assert_eq!(fp8::encode(format, f32::NAN), 0x7f);
    }
    for (value, code) in [(f32::INFINITY, 127), (-f32::MAX, -127), (-127.6, -127), (0.5, 0), (-1.5, -2), (-0.0, 0)] {
        assert_eq!(fp8::encode(Fp8Format::Int8, value).cast_signed(), code, "{value}");
    }
}

#[test]
fn every_half_rounds_to_nearest_even() {
    let halves: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
    let wide: Vec<f32> = halves.iter().map(|half| half.to_f32()).collect();
    check_all(&wide);
    check_bulk_of_narrow(&halves, &wide);
}

#[test]
fn every_bfloat_rounds_to_nearest_even() {
    let bfloats: Vec<bf16> = (0..=u16::MAX).map(bf16::from_bits).collect();
    let wide: Vec<f32> = bfloats.iter().map(|bfloat| bfloat.to_f32()).collect();
    check_all(&wide);
    check_bulk_of_narrow(&bfloats, &wide);
}

fn check_bulk_of_narrow<T: fp8::Element>(narrow: &[T], wide: &[f32]) {
    for format in FORMATS {
        let mut codes = vec![0; narrow.len()];
        fp8::encode_slice(format, narrow, &mut codes).unwrap();
        for (value, code) in wide.iter().zip(codes) {
            assert_eq!(code, fp8::encode(format, *value), "{format} {value:e}");
        }
    }
}

#[test]
fn every_tie_and_its_neighbours_round_to_nearest_even() {
    for format in FORMATS {
        let magnitudes = magnitudes(format);
        let mut values = Vec::new();
        for pair in magnitudes.windows(2) {
            let tie = (pair[0] + pair[1]) / 2.0;
            assert_eq!(f64::from(tie as f32), tie, "a tie is exact in f32");
            for centre in [tie as f32, pair[0] as f32, pair[1] as f32] {
                for value in [centre.next_down(), centre, centre.next_up()] {
                    values.extend([value, -value]);
                }
            }
        }
        assert!(values.len() >= 6 * 3 * 100);
        check_all(&values);
    }
}

#[test]
fn agrees_with_the_float8_crate_where_nothing_saturates() {
    for bits in 0..=u16::MAX {
        let value = bf16::from_bits(bits).to_f32();
        if value.abs() <= Fp8Format::E4m3.max() {
            assert_eq!(fp8::encode(Fp8Format::E4m3, value), float8::F8E4M3::from_f32(value).to_bits(), "{value:e}");
        }
        if value.abs() <= Fp8Format::E5m2.max() {
            assert_eq!(fp8::encode(Fp8Format::E5m2, value), float8::F8E5M2::from_f32(value).to_bits(), "{value:e}");
        }
    }
    for code in 0..=255u8 {
        let pairs = [
            (Fp8Format::E4m3, float8::F8E4M3::from_bits(code).to_f32()),
            (Fp8Format::E5m2, float8::F8E5M2::from_bits(code).to_f32()),
        ];
        for (format, theirs) in pairs {
            let ours = fp8::decode(format, code);
            assert!(ours == theirs || ours.is_nan() && theirs.is_nan(), "{format} {code:#04x}");
        }
    }
}

#[test]
fn slices_of_different_lengths_are_refused() {
    let error = fp8::encode_slice(Fp8Format::E4m3, &[1.0f32; 3], &mut [0; 2]).unwrap_err();
    assert!(error.to_string().starts_with("codes: has 2 elements, but values has 3"), "{error}");
    let error = fp8::decode_slice(Fp8Format::E4m3, &[1; 3], &mut [0.0; 4]).unwrap_err();
    assert!(error.to_string().starts_with("values: has 4 elements, but codes has 3"), "{error}");
}

proptest! {
    #[test]
    fn bulk_encoding_is_scalar_encoding(
        bits in prop::collection::vec(any::<u32>(), 0..1200), skipped in 0usize..8,
    ) {
        let values: Vec<f32> = bits.into_iter().map(f32::from_bits).collect();
        // Skipping a few moves the rest off every alignment.
        let values = &values[skipped.min(values.len())..];
        for format in FORMATS {
            let mut codes = vec![0; values.len()];
            fp8::encode_slice(format, values, &mut codes).unwrap();
            let expected: Vec<u8> = values.iter().map(|value| fp8::encode(format, *value)).collect();
            prop_assert_eq!(codes, expected);
        }
    }

    #[test]
    fn bulk_encoding_is_scalar_encoding_where_the_formats_live(
        values in prop::collection::vec(-1.2f32..1.2, 1..200), exponent in -20i32..20,
    ) {
        let values: Vec<f32> = values.iter().map(|value| value * 2f32.powi(exponent)).collect();
        check_all(&values);
    }

    #[test]
    fn bulk_decoding_is_scalar_decoding(
        codes in prop::collection::vec(any::<u8>(), 0..200), skipped in 0usize..16,
    ) {
        let codes = &codes[skipped.min(codes.len())..];
        for format in FORMATS {
            let mut values = vec![0.0; codes.len()];
            fp8::decode_slice(format, codes, &mut values).unwrap();
            for (value, code) in values.iter().zip(codes) {
                prop_assert_eq!(value.to_bits(), fp8::decode(format, *code).to_bits());
            }
        }
    }
}
