//! Sixteen lanes as an array, for every target that has no room of its own.

use super::{LANES, Lanes, ROUNDER};

/// Lanes that the compiler vectorises as the target allows.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Portable;

#[inline(always)]
fn map<T: Copy, U>(a: [T; LANES], f: impl Fn(T) -> U) -> [U; LANES] {
    a.map(f)
}

#[inline(always)]
fn zip<T: Copy, U>(a: [T; LANES], b: [T; LANES], f: impl Fn(T, T) -> U) -> [U; LANES] {
    std::array::from_fn(|lane| f(a[lane], b[lane]))
}

inlined! {
    /// Codes shifted into the bits of an f32 and multiplied by what the exponents' biases differ by.
    fn decode(codes: *const u8, shift: u32, rebias: f32) -> [f32; LANES] {
        map(codes.cast::<[u8; LANES]>().read(), |code| {
            let code = u32::from(code);
            f32::from_bits((code & 0x7f) << shift | (code & 0x80) << 24) * rebias
        })
    }
}

impl Lanes for Portable {
    type F = [f32; LANES];
    type I = [i32; LANES];
    type Power = [i32; LANES];

    inlined! {
        fn splat(value: f32) -> Self::F { [value; LANES] }
        fn load(from: *const f32) -> Self::F { from.cast::<Self::F>().read_unaligned() }
        fn store(to: *mut f32, a: Self::F) { to.cast::<Self::F>().write_unaligned(a) }
        fn add(a: Self::F, b: Self::F) -> Self::F { zip(a, b, |a, b| a + b) }
        fn sub(a: Self::F, b: Self::F) -> Self::F { zip(a, b, |a, b| a - b) }
        fn mul(a: Self::F, b: Self::F) -> Self::F { zip(a, b, |a, b| a * b) }
        fn div(a: Self::F, b: Self::F) -> Self::F { zip(a, b, |a, b| a / b) }
        fn mul_add(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
            // Not `f32::mul_add`: without FMA in the target that is a library call for every lane.
            std::array::from_fn(|lane| a[lane] * b[lane] + c[lane])
        }
        fn max(a: Self::F, b: Self::F) -> Self::F { zip(a, b, |a, b| if a > b { a } else { b }) }
        fn abs(a: Self::F) -> Self::F { map(a, f32::abs) }
        fn reduce_max(a: Self::F) -> f32 { a.into_iter().fold(f32::NEG_INFINITY, f32::max) }
        fn reduce_add(a: Self::F) -> f32 { a.into_iter().sum() }
        fn sum_each(vectors: &[Self::F; LANES]) -> Self::F { vectors.map(|vector| Self::reduce_add(vector)) }
        fn first_or(a: Self::F, count: usize, other: Self::F) -> Self::F {
            std::array::from_fn(|lane| if lane < count { a[lane] } else { other[lane] })
        }

        fn decode_e4m3(codes: *const u8) -> Self::F {
            // The code's exponent and mantissa in the places of an f32's, which has 120 more of bias.
            decode(codes, 20, 2f32.powi(120 - 8))
        }
        fn decode_e5m2(codes: *const u8) -> Self::F {
            // As above, with 112 more of bias.
            decode(codes, 21, 2f32.powi(112))
        }
        fn decode_int8(codes: *const u8) -> Self::F {
            std::array::from_fn(|lane| f32::from(codes.add(lane).read().cast_signed()))
        }

        fn splat_int(value: i32) -> Self::I { [value; LANES] }
        fn load_int(from: *const i32) -> Self::I { from.cast::<Self::I>().read_unaligned() }
        fn store_int(to: *mut i32, a: Self::I) { to.cast::<Self::I>().write_unaligned(a) }
        fn add_int(a: Self::I, b: Self::I) -> Self::I { zip(a, b, i32::wrapping_add) }
        fn max_int(a: Self::I, b: Self::I) -> Self::I { zip(a, b, i32::max) }
        fn reduce_max_int(a: Self::I) -> i32 { a.into_iter().fold(i32::MIN, i32::max) }
        fn reduce_add_int(a: Self::I) -> i32 { a.into_iter().fold(0, i32::wrapping_add) }
        fn first_or_int(a: Self::I, count: usize, other: Self::I) -> Self::I {
            std::array::from_fn(|lane| if lane < count { a[lane] } else { other[lane] })
        }
        fn to_float(a: Self::I) -> Self::F { map(a, |a| a as f32) }
        fn round_to_int(a: Self::F) -> Self::I {
            map(a, |a| ((a + ROUNDER).to_bits() as i32).wrapping_sub(ROUNDER.to_bits() as i32))
        }
        fn round_to_i16(a: Self::F) -> (Self::F, Self::I) {
            let shifted = map(a, |a| a + ROUNDER);
            (map(shifted, |shifted| shifted - ROUNDER), map(shifted, |shifted| shifted.to_bits().cast_signed()))
        }
        fn store_narrow(to: *mut i16, a: Self::I) {
            to.cast::<[i16; LANES]>().write_unaligned(map(a, |a| a as i16))
        }
        fn pair(a: Self::I, b: Self::I) -> Self::I { zip(a, b, |a, b| (a & 0xffff) | (b << 16)) }
        fn dot_pairs(sum: Self::I, a: Self::I, b: Self::I) -> Self::I {
            std::array::from_fn(|lane| {
                let (a, b) = (a[lane], b[lane]);
                let low = i32::from(a as i16) * i32::from(b as i16);
                let high = (a >> 16) * (b >> 16);
                sum[lane].wrapping_add(low).wrapping_add(high)
            })
        }

        fn split_exponent(a: Self::F) -> (Self::F, Self::Power) {
            let rounded = map(a, |a| a.max(-126.0) + ROUNDER);
            let fraction = zip(a, rounded, |a, rounded| a.max(-126.0) - (rounded - ROUNDER));
            (fraction, map(rounded, |rounded| (rounded.to_bits() << 23) as i32))
        }
        fn scale_by(a: Self::F, power: Self::Power) -> Self::F {
            std::array::from_fn(|lane| f32::from_bits(a[lane].to_bits().wrapping_add(power[lane] as u32)))
        }

        fn transpose_8x8(from: *const u32, from_stride: usize, to: *mut u32, to_stride: usize) {
            for row in 0..8 {
                for column in 0..8 {
                    *to.add(column * to_stride + row) = *from.add(row * from_stride + column);
                }
            }
        }
    }
}
