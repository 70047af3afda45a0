//! One value at a time: what the vectorised conversions must agree with, bit for bit.

use super::Fp8Format;

/// The numbers that define a format, as the conversions need them.
pub(super) struct Constants {
    /// Bits of the mantissa that f32 has and the format has not.
    pub(super) dropped_bits: u32,
    /// The bits of the largest finite value, as f32.
    pub(super) max: u32,
    /// The bits of the smallest normal value, as f32.
    pub(super) min_normal: u32,
    /// What to subtract from the shifted bits of an f32 to change one exponent bias into the other.
    pub(super) rebias: u32,
    /// A power of two whose last mantissa bit weighs as much as the format's smallest subnormal:
    /// adding it makes the FPU round to a multiple of that.
    pub(super) subnormal_magic: f32,
}

impl Constants {
    pub(super) const fn of(format: Fp8Format) -> Constants {
        let (mantissa_bits, bias, max) = match format {
            Fp8Format::E4m3 => (3, 7, 448.0f32),
            Fp8Format::E5m2 => (2, 15, 57344.0f32),
            Fp8Format::Int8 => panic!("integers have neither mantissa nor exponent"),
        };
        let smallest_exponent = 128 - bias;
        Constants {
            dropped_bits: 23 - mantissa_bits,
            max: max.to_bits(),
            min_normal: smallest_exponent << 23,
            rebias: (127 - bias) << mantissa_bits,
            subnormal_magic: f32::from_bits((smallest_exponent + 23 - mantissa_bits) << 23),
        }
    }
}

/// The code of the nearest value: ties to even, saturating, NaN for NaN, the sign of zero kept.
pub fn encode(format: Fp8Format, value: f32) -> u8 {
    const E4M3: Constants = Constants::of(Fp8Format::E4m3);
    const E5M2: Constants = Constants::of(Fp8Format::E5m2);
    let constants = match format {
        Fp8Format::E4m3 => &E4M3,
        Fp8Format::E5m2 => &E5M2,
        Fp8Format::Int8 => return encode_int8(value),
    };
    let sign = (value.to_bits() >> 24) as u8 & 0x80;
    let magnitude = value.to_bits() & 0x7fff_ffff;
    if value.is_nan() {
        return sign | 0x7f;
    }
    let magnitude = magnitude.min(constants.max);
    let code = if magnitude < constants.min_normal {
        let sum = f32::from_bits(magnitude) + constants.subnormal_magic;
        sum.to_bits() - constants.subnormal_magic.to_bits()
    } else {
        let odd = (magnitude >> constants.dropped_bits) & 1;
        let just_below_half = (1 << (constants.dropped_bits - 1)) - 1;
        ((magnitude + just_below_half + odd) >> constants.dropped_bits) - constants.rebias
    };
    sign | code as u8
}

/// The nearest integer; zero has no sign.
fn encode_int8(value: f32) -> u8 {
    match value.is_nan() {
        true => 0x80,
        false => (value.round_ties_even().clamp(-127.0, 127.0) as i8).cast_unsigned(),
    }
}

/// The value of a code.
pub fn decode(format: Fp8Format, code: u8) -> f32 {
    table(format)[usize::from(code)]
}

pub(super) fn encode_slice(format: Fp8Format, values: &[f32], codes: &mut [u8]) {
    for (code, &value) in codes.iter_mut().zip(values) {
        *code = encode(format, value);
    }
}

pub(super) fn decode_slice(format: Fp8Format, codes: &[u8], values: &mut [f32]) {
    let table = table(format);
    for (value, &code) in values.iter_mut().zip(codes) {
        *value = table[usize::from(code)];
    }
}

fn table(format: Fp8Format) -> &'static [f32; 256] {
    static E4M3: [f32; 256] = values_of(Fp8Format::E4m3);
    static E5M2: [f32; 256] = values_of(Fp8Format::E5m2);
    static INT8: [f32; 256] = integers();
    match format {
        Fp8Format::E4m3 => &E4M3,
        Fp8Format::E5m2 => &E5M2,
        Fp8Format::Int8 => &INT8,
    }
}

/// The values of all codes of integers.
const fn integers() -> [f32; 256] {
    let mut values = [f32::NAN; 256];
    let mut code = 0;
    while code < 256 {
        if code != 0x80 {
            values[code] = (code as u8).cast_signed() as f32;
        }
        code += 1;
    }
    values
}

/// The values of all codes of floats.
const fn values_of(format: Fp8Format) -> [f32; 256] {
    let Constants { dropped_bits, min_normal, rebias, .. } = Constants::of(format);
    let smallest = f32::from_bits(min_normal - ((23 - dropped_bits) << 23));
    let mut values = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        let magnitude = code as u32 & 0x7f;
        let value = match (format, magnitude) {
            (Fp8Format::E4m3, 0x7f) | (Fp8Format::E5m2, 0x7d..) => f32::NAN,
            (Fp8Format::E5m2, 0x7c) => f32::INFINITY,
            _ if magnitude >> (23 - dropped_bits) == 0 => magnitude as f32 * smallest,
            _ => f32::from_bits((magnitude + rebias) << dropped_bits),
        };
        values[code] = if code < 128 || value.is_nan() { value } else { -value };
        code += 1;
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What runs where there are no vectors, against what runs here.
    #[test]
    fn the_portable_loops_agree_with_the_bulk_conversions() {
        let codes: Vec<u8> = (0..=255).collect();
        for format in [Fp8Format::E4m3, Fp8Format::E5m2, Fp8Format::Int8] {
            let (mut portable, mut bulk) = (vec![0.0; 256], vec![0.0; 256]);
            decode_slice(format, &codes, &mut portable);
            crate::fp8::decode_slice(format, &codes, &mut bulk).unwrap();
            let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&portable), bits(&bulk));

            let values: Vec<f32> = bulk.iter().map(|value| value * 1.07).collect();
            let (mut portable, mut bulk) = (vec![0; 256], vec![0; 256]);
            encode_slice(format, &values, &mut portable);
            crate::fp8::encode_slice(format, &values, &mut bulk).unwrap();
            assert_eq!(portable, bulk);
        }
    }
}
