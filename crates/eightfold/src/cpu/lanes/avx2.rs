//! Sixteen lanes in two AVX2 registers.

use super::{Lanes, ROUNDER};
use std::arch::x86_64::*;

/// AVX2 with FMA.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Avx2;

/// Two registers side by side: lanes 0–7 and 8–15.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Two<T>(T, T);

/// Lane numbers less than `count` as all-ones masks.
#[inline(always)]
unsafe fn first(count: usize) -> Two<__m256i> {
    // SAFETY: inlined into a function with AVX2, as the contract of `Lanes` demands.
    unsafe {
        let limit = _mm256_set1_epi32(count as i32);
        Two(
            _mm256_cmpgt_epi32(limit, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)),
            _mm256_cmpgt_epi32(limit, _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)),
        )
    }
}

/// 16 E4M3 codes as f16 of the same exponent and mantissa bits: their values times 2^-8.
#[inline(always)]
pub(super) unsafe fn e4m3_as_f16(codes: *const u8) -> __m256i {
    // SAFETY: inlined into a function with AVX2, and 16 codes are readable, as the contract of `Lanes` demands.
    unsafe {
        let wide = _mm256_cvtepi8_epi16(_mm_loadu_si128(codes.cast()));
        // The sign's copy in bit 15 stays; its original lands in the exponent and goes.
        _mm256_and_si256(_mm256_slli_epi16::<7>(wide), _mm256_set1_epi16(0xbfff_u16 as i16))
    }
}

/// 16 E5M2 codes as f16, of which they are the upper halves.
#[inline(always)]
pub(super) unsafe fn e5m2_as_f16(codes: *const u8) -> __m256i {
    // SAFETY: inlined into a function with AVX2, and 16 codes are readable, as the contract of `Lanes` demands.
    unsafe { _mm256_slli_epi16::<8>(_mm256_cvtepu8_epi16(_mm_loadu_si128(codes.cast()))) }
}

/// 16 f16 as f32.
#[inline(always)]
unsafe fn widen(halves: __m256i) -> Two<__m256> {
    // SAFETY: inlined into a function with AVX2 and F16C, as the contract of `Lanes` demands.
    unsafe {
        Two(_mm256_cvtph_ps(_mm256_castsi256_si128(halves)), _mm256_cvtph_ps(_mm256_extracti128_si256::<1>(halves)))
    }
}

/// Applies an intrinsic to both registers.
macro_rules! both {
    ($intrinsic:ident, $($operand:expr),+) => {
        // SAFETY: inlined into a function with AVX2, FMA and F16C, as the contract of `Lanes` demands.
        unsafe { Two($intrinsic($($operand.0),+), $intrinsic($($operand.1),+)) }
    };
}

// SAFETY of every block: inlined into a function with AVX2 and FMA, and pointers are valid for
// 16 elements, as the contract of `Lanes` demands.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Lanes for Avx2 {
    type F = Two<__m256>;
    type I = Two<__m256i>;
    type Power = Two<__m256i>;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self::F {
        let register = unsafe { _mm256_set1_ps(value) };
        Two(register, register)
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self::F {
        unsafe { Two(_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))) }
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, a: Self::F) {
        unsafe {
            _mm256_storeu_ps(to, a.0);
            _mm256_storeu_ps(to.add(8), a.1);
        }
    }
    #[inline(always)]
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_add_ps, a, b)
    }
    #[inline(always)]
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_sub_ps, a, b)
    }
    #[inline(always)]
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_mul_ps, a, b)
    }
    #[inline(always)]
    unsafe fn mul_add(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        both!(_mm256_fmadd_ps, a, b, c)
    }
    #[inline(always)]
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_max_ps, a, b)
    }
    #[inline(always)]
    unsafe fn abs(a: Self::F) -> Self::F {
        let sign = unsafe { Self::splat(-0.0) };
        both!(_mm256_andnot_ps, sign, a)
    }
    #[inline(always)]
    unsafe fn reduce_max(a: Self::F) -> f32 {
        unsafe {
            let a = _mm256_max_ps(a.0, a.1);
            let a = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let a = _mm_max_ps(a, _mm_movehl_ps(a, a));
            _mm_cvtss_f32(_mm_max_ss(a, _mm_shuffle_ps::<1>(a, a)))
        }
    }
    #[inline(always)]
    unsafe fn reduce_add(a: Self::F) -> f32 {
        unsafe {
            let a = _mm256_add_ps(a.0, a.1);
            let a = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let a = _mm_add_ps(a, _mm_movehl_ps(a, a));
            _mm_cvtss_f32(_mm_add_ss(a, _mm_shuffle_ps::<1>(a, a)))
        }
    }
    #[inline(always)]
    unsafe fn first_or(a: Self::F, count: usize, other: Self::F) -> Self::F {
        let mask = unsafe { first(count) };
        let mask = both!(_mm256_castsi256_ps, mask);
        both!(_mm256_blendv_ps, other, a, mask)
    }

    #[inline(always)]
    unsafe fn decode_e4m3(codes: *const u8) -> Self::F {
        unsafe { widen(e4m3_as_f16(codes)) }
    }
    #[inline(always)]
    unsafe fn decode_e5m2(codes: *const u8) -> Self::F {
        unsafe { widen(e5m2_as_f16(codes)) }
    }

    #[inline(always)]
    unsafe fn splat_int(value: i32) -> Self::I {
        let register = unsafe { _mm256_set1_epi32(value) };
        Two(register, register)
    }
    #[inline(always)]
    unsafe fn load_int(from: *const i32) -> Self::I {
        unsafe { Two(_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(8).cast())) }
    }
    #[inline(always)]
    unsafe fn store_int(to: *mut i32, a: Self::I) {
        unsafe {
            _mm256_storeu_si256(to.cast(), a.0);
            _mm256_storeu_si256(to.add(8).cast(), a.1);
        }
    }
    #[inline(always)]
    unsafe fn add_int(a: Self::I, b: Self::I) -> Self::I {
        both!(_mm256_add_epi32, a, b)
    }
    #[inline(always)]
    unsafe fn max_int(a: Self::I, b: Self::I) -> Self::I {
        both!(_mm256_max_epi32, a, b)
    }
    #[inline(always)]
    unsafe fn reduce_max_int(a: Self::I) -> i32 {
        unsafe {
            let a = _mm256_max_epi32(a.0, a.1);
            let a = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256::<1>(a));
            let a = _mm_max_epi32(a, _mm_shuffle_epi32::<0b01_00_11_10>(a));
            _mm_cvtsi128_si32(_mm_max_epi32(a, _mm_shuffle_epi32::<0b10_11_00_01>(a)))
        }
    }
    #[inline(always)]
    unsafe fn reduce_add_int(a: Self::I) -> i32 {
        unsafe {
            let a = _mm256_add_epi32(a.0, a.1);
            let a = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256::<1>(a));
            let a = _mm_add_epi32(a, _mm_shuffle_epi32::<0b01_00_11_10>(a));
            _mm_cvtsi128_si32(_mm_add_epi32(a, _mm_shuffle_epi32::<0b10_11_00_01>(a)))
        }
    }
    #[inline(always)]
    unsafe fn first_or_int(a: Self::I, count: usize, other: Self::I) -> Self::I {
        let mask = unsafe { first(count) };
        both!(_mm256_blendv_epi8, other, a, mask)
    }
    #[inline(always)]
    unsafe fn to_float(a: Self::I) -> Self::F {
        both!(_mm256_cvtepi32_ps, a)
    }
    #[inline(always)]
    unsafe fn round_to_int(a: Self::F) -> Self::I {
        both!(_mm256_cvtps_epi32, a)
    }
    #[inline(always)]
    unsafe fn round_to_i16(a: Self::F) -> (Self::F, Self::I) {
        // Whole integers, since the narrowing of AVX2 saturates.
        unsafe {
            let integers = Self::round_to_int(a);
            (Self::to_float(integers), integers)
        }
    }
    #[inline(always)]
    unsafe fn store_narrow(to: *mut i16, a: Self::I) {
        unsafe {
            let packed = _mm256_packs_epi32(a.0, a.1);
            _mm256_storeu_si256(to.cast(), _mm256_permute4x64_epi64::<0b11_01_10_00>(packed));
        }
    }
    #[inline(always)]
    unsafe fn pair(a: Self::I, b: Self::I) -> Self::I {
        unsafe {
            Two(
                _mm256_blend_epi16::<0b1010_1010>(a.0, _mm256_slli_epi32::<16>(b.0)),
                _mm256_blend_epi16::<0b1010_1010>(a.1, _mm256_slli_epi32::<16>(b.1)),
            )
        }
    }
    #[inline(always)]
    unsafe fn dot_pairs(sum: Self::I, a: Self::I, b: Self::I) -> Self::I {
        let products = both!(_mm256_madd_epi16, a, b);
        both!(_mm256_add_epi32, sum, products)
    }

    #[inline(always)]
    unsafe fn split_exponent(a: Self::F) -> (Self::F, Self::Power) {
        unsafe {
            let a = Self::max(a, Self::splat(-126.0));
            let rounded = Self::add(a, Self::splat(ROUNDER));
            let fraction = Self::sub(a, Self::sub(rounded, Self::splat(ROUNDER)));
            let power = Two(
                _mm256_slli_epi32::<23>(_mm256_castps_si256(rounded.0)),
                _mm256_slli_epi32::<23>(_mm256_castps_si256(rounded.1)),
            );
            (fraction, power)
        }
    }
    #[inline(always)]
    unsafe fn scale_by(a: Self::F, power: Self::Power) -> Self::F {
        unsafe {
            Two(
                _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a.0), power.0)),
                _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a.1), power.1)),
            )
        }
    }

    #[inline(always)]
    unsafe fn transpose_8x8(from: *const u32, from_stride: usize, to: *mut u32, to_stride: usize) {
        unsafe {
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
