//! Sixteen lanes in two AVX2 registers.

use super::{Lanes, ROUNDER};
use std::arch::x86_64::*;

/// AVX2 with FMA.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Avx2;

/// Two registers side by side: lanes 0–7 and 8–15.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Two<T>(T, T);

inlined! {
    /// Lane numbers less than `count` as all-ones masks.
    fn first(count: usize) -> Two<__m256i> {
        let limit = _mm256_set1_epi32(count as i32);
        Two(
            _mm256_cmpgt_epi32(limit, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)),
            _mm256_cmpgt_epi32(limit, _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)),
        )
    }

    /// 16 E4M3 codes as f16 of the same exponent and mantissa bits: their values times 2^-8.
    pub(super) fn e4m3_as_f16(codes: *const u8) -> __m256i {
        let wide = _mm256_cvtepi8_epi16(_mm_loadu_si128(codes.cast()));
        // The sign's copy in bit 15 stays; its original lands in the exponent and goes.
        _mm256_and_si256(_mm256_slli_epi16::<7>(wide), _mm256_set1_epi16(0xbfff_u16 as i16))
    }

    /// 16 E5M2 codes as f16, of which they are the upper halves.
    pub(super) fn e5m2_as_f16(codes: *const u8) -> __m256i {
        _mm256_slli_epi16::<8>(_mm256_cvtepu8_epi16(_mm_loadu_si128(codes.cast())))
    }

    /// 16 f16 as f32.
    fn widen(halves: __m256i) -> Two<__m256> {
        Two(_mm256_cvtph_ps(_mm256_castsi256_si128(halves)), _mm256_cvtph_ps(_mm256_extracti128_si256::<1>(halves)))
    }
}

/// Applies an intrinsic to both registers.
macro_rules! both {
    ($intrinsic:ident, $($operand:expr),+) => {
        Two($intrinsic($($operand.0),+), $intrinsic($($operand.1),+))
    };
}

impl Lanes for Avx2 {
    type F = Two<__m256>;
    type I = Two<__m256i>;
    type Power = Two<__m256i>;

    inlined! {
        fn splat(value: f32) -> Self::F {
            let register = _mm256_set1_ps(value);
            Two(register, register)
        }
        fn load(from: *const f32) -> Self::F { Two(_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))) }
        fn store(to: *mut f32, a: Self::F) {
            _mm256_storeu_ps(to, a.0);
            _mm256_storeu_ps(to.add(8), a.1);
        }
        fn add(a: Self::F, b: Self::F) -> Self::F { both!(_mm256_add_ps, a, b) }
        fn sub(a: Self::F, b: Self::F) -> Self::F { both!(_mm256_sub_ps, a, b) }
        fn mul(a: Self::F, b: Self::F) -> Self::F { both!(_mm256_mul_ps, a, b) }
        fn div(a: Self::F, b: Self::F) -> Self::F { both!(_mm256_div_ps, a, b) }
        fn mul_add(a: Self::F, b: Self::F, c: Self::F) -> Self::F { both!(_mm256_fmadd_ps, a, b, c) }
        fn max(a: Self::F, b: Self::F) -> Self::F { both!(_mm256_max_ps, a, b) }
        fn abs(a: Self::F) -> Self::F {
            let sign = Self::splat(-0.0);
            both!(_mm256_andnot_ps, sign, a)
        }
        fn reduce_max(a: Self::F) -> f32 {
            let a = _mm256_max_ps(a.0, a.1);
            let a = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let a = _mm_max_ps(a, _mm_movehl_ps(a, a));
            _mm_cvtss_f32(_mm_max_ss(a, _mm_shuffle_ps::<1>(a, a)))
        }
        fn reduce_add(a: Self::F) -> f32 {
            let a = _mm256_add_ps(a.0, a.1);
            let a = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let a = _mm_add_ps(a, _mm_movehl_ps(a, a));
            _mm_cvtss_f32(_mm_add_ss(a, _mm_shuffle_ps::<1>(a, a)))
        }
        fn sum_each(vectors: &[Self::F; 16]) -> Self::F {
            // Halves of a vector added, then two vectors side by side with four lanes left of each, then four, then eight.
            let mut sums = [_mm256_setzero_ps(); 16];
            for vector in 0..16 {
                sums[vector] = _mm256_add_ps(vectors[vector].0, vectors[vector].1);
            }
            for vector in [0, 1, 2, 3, 8, 9, 10, 11] {
                let (a, b) = (sums[vector], sums[vector + 4]);
                sums[vector] = _mm256_add_ps(_mm256_permute2f128_ps::<0x20>(a, b), _mm256_permute2f128_ps::<0x31>(a, b));
            }
            for vector in [0, 2, 8, 10] {
                let (a, b) = (sums[vector], sums[vector + 1]);
                sums[vector] = _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
            }
            for vector in [0, 8] {
                let (a, b) = (sums[vector], sums[vector + 2]);
                sums[vector] = _mm256_add_ps(_mm256_shuffle_ps::<0x44>(a, b), _mm256_shuffle_ps::<0xee>(a, b));
            }
            Two(sums[0], sums[8])
        }
        fn first_or(a: Self::F, count: usize, other: Self::F) -> Self::F {
            let mask = first(count);
            let mask = both!(_mm256_castsi256_ps, mask);
            both!(_mm256_blendv_ps, other, a, mask)
        }

        fn decode_e4m3(codes: *const u8) -> Self::F { widen(e4m3_as_f16(codes)) }
        fn decode_e5m2(codes: *const u8) -> Self::F { widen(e5m2_as_f16(codes)) }
        fn decode_int8(codes: *const u8) -> Self::F {
            let codes = _mm_loadu_si128(codes.cast());
            let integers = Two(_mm256_cvtepi8_epi32(codes), _mm256_cvtepi8_epi32(_mm_srli_si128::<8>(codes)));
            both!(_mm256_cvtepi32_ps, integers)
        }

        fn splat_int(value: i32) -> Self::I {
            let register = _mm256_set1_epi32(value);
            Two(register, register)
        }
        fn load_int(from: *const i32) -> Self::I {
            Two(_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(8).cast()))
        }
        fn store_int(to: *mut i32, a: Self::I) {
            _mm256_storeu_si256(to.cast(), a.0);
            _mm256_storeu_si256(to.add(8).cast(), a.1);
        }
        fn add_int(a: Self::I, b: Self::I) -> Self::I { both!(_mm256_add_epi32, a, b) }
        fn max_int(a: Self::I, b: Self::I) -> Self::I { both!(_mm256_max_epi32, a, b) }
        fn reduce_max_int(a: Self::I) -> i32 {
            let a = _mm256_max_epi32(a.0, a.1);
            let a = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256::<1>(a));
            let a = _mm_max_epi32(a, _mm_shuffle_epi32::<0b01_00_11_10>(a));
            _mm_cvtsi128_si32(_mm_max_epi32(a, _mm_shuffle_epi32::<0b10_11_00_01>(a)))
        }
        fn reduce_add_int(a: Self::I) -> i32 {
            let a = _mm256_add_epi32(a.0, a.1);
            let a = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256::<1>(a));
            let a = _mm_add_epi32(a, _mm_shuffle_epi32::<0b01_00_11_10>(a));
            _mm_cvtsi128_si32(_mm_add_epi32(a, _mm_shuffle_epi32::<0b10_11_00_01>(a)))
        }
        fn first_or_int(a: Self::I, count: usize, other: Self::I) -> Self::I {
            let mask = first(count);
            both!(_mm256_blendv_epi8, other, a, mask)
        }
        fn to_float(a: Self::I) -> Self::F { both!(_mm256_cvtepi32_ps, a) }
        fn round_to_int(a: Self::F) -> Self::I { both!(_mm256_cvtps_epi32, a) }
        fn round_to_i16(a: Self::F) -> (Self::F, Self::I) {
            // Whole integers, since the narrowing of AVX2 saturates.
            let integers = Self::round_to_int(a);
            (Self::to_float(integers), integers)
        }
        fn store_narrow(to: *mut i16, a: Self::I) {
            let packed = _mm256_packs_epi32(a.0, a.1);
            _mm256_storeu_si256(to.cast(), _mm256_permute4x64_epi64::<0b11_01_10_00>(packed));
        }
        fn pair(a: Self::I, b: Self::I) -> Self::I {
            Two(
                _mm256_blend_epi16::<0b1010_1010>(a.0, _mm256_slli_epi32::<16>(b.0)),
                _mm256_blend_epi16::<0b1010_1010>(a.1, _mm256_slli_epi32::<16>(b.1)),
            )
        }
        fn dot_pairs(sum: Self::I, a: Self::I, b: Self::I) -> Self::I {
            let products = both!(_mm256_madd_epi16, a, b);
            both!(_mm256_add_epi32, sum, products)
        }

        fn split_exponent(a: Self::F) -> (Self::F, Self::Power) {
            let a = Self::max(a, Self::splat(-126.0));
            let rounded = Self::add(a, Self::splat(ROUNDER));
            let fraction = Self::sub(a, Self::sub(rounded, Self::splat(ROUNDER)));
            let power = Two(
                _mm256_slli_epi32::<23>(_mm256_castps_si256(rounded.0)),
                _mm256_slli_epi32::<23>(_mm256_castps_si256(rounded.1)),
            );
            (fraction, power)
        }
        fn scale_by(a: Self::F, power: Self::Power) -> Self::F {
            Two(
                _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a.0), power.0)),
                _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a.1), power.1)),
            )
        }

        fn transpose_8x8(from: *const u32, from_stride: usize, to: *mut u32, to_stride: usize) {
            let row = |index: usize| _mm256_loadu_ps(from.add(index * from_stride).cast());
            let pairs = |a: usize| {
                let (a, b) = (row(a), row(a + 1));
                (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b))
            };
            let quads = |a: usize| {
                let ((low0, high0), (low1, high1)) = (pairs(a), pairs(a + 2));
                [
                    _mm256_shuffle_ps::<0x44>(low0, low1),
                    _mm256_shuffle_ps::<0xee>(low0, low1),
                    _mm256_shuffle_ps::<0x44>(high0, high1),
                    _mm256_shuffle_ps::<0xee>(high0, high1),
                ]
            };
            let (top, bottom) = (quads(0), quads(4));
            for column in 0..4 {
                let low = _mm256_permute2f128_ps::<0x20>(top[column], bottom[column]);
                let high = _mm256_permute2f128_ps::<0x31>(top[column], bottom[column]);
                _mm256_storeu_ps(to.add(column * to_stride).cast(), low);
                _mm256_storeu_ps(to.add((column + 4) * to_stride).cast(), high);
            }
        }
    }
}
