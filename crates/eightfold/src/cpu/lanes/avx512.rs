//! Sixteen lanes in one AVX-512 register.

use super::avx2::{Avx2, e4m3_as_f16, e5m2_as_f16};
use super::bf16::{E4M3_BY_256, E5M2, Table};
use super::{Lanes, ROUNDER};
use std::arch::asm;
use std::arch::x86_64::*;

/// AVX-512 F, BW, DQ and VL; with `VNNI`, 16-bit products are summed by one instruction; with `VBMI`, 64 codes are looked up in a
/// table together.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Avx512<const VNNI: bool, const VBMI: bool>;

/// The first `count` lanes as a mask.
#[inline(always)]
fn first(count: usize) -> __mmask16 {
    ((1u32 << count) - 1) as __mmask16
}

/// `vpdpwssd` as it is. LLVM splits `_mm512_dpwssd_epi32` into a product and a sum where it finds the chain of
/// sums long, and two instructions for one cost a quarter of the speed here (measured on Zen 4).
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
fn dpwssd(mut sum: __m512i, a: __m512i, b: __m512i) -> __m512i {
    // SAFETY: the instruction reads and writes these registers only, and the function enables it.
    unsafe {
        asm!("vpdpwssd {0}, {1}, {2}", inout(zmm_reg) sum, in(zmm_reg) a, in(zmm_reg) b,
            options(pure, nomem, nostack, preserves_flags));
    }
    sum
}

/// The bytes of 64 codes in the order in which [`look_up`] takes them: it leaves those of even places of every eighth in one
/// register, and those of odd ones in another.
const ORDER: [u8; 64] = {
    let mut order = [0; 64];
    let mut place = 0;
    while place < 64 {
        let (lane, eighth, word) = (place / 16, place / 8 % 2, place % 8);
        order[place] = (16 * (2 * eighth + word % 2) + 4 * lane + word / 2) as u8;
        place += 1;
    }
    order
};

inlined! {
    /// The values of 64 codes, each by a table of its upper half as f32. The CPU must have VBMI.
    fn look_up(table: &Table, codes: *const u8) -> [__m512; 4] {
        let (low, high, order) = (table.low.as_ptr(), table.high.as_ptr(), ORDER.as_ptr());
        let codes = _mm512_permutexvar_epi8(_mm512_loadu_si512(order.cast()), _mm512_loadu_si512(codes.cast()));
        let (below, above) = (_mm512_loadu_si512(low.cast()), _mm512_loadu_si512(low.add(64).cast()));
        let low = _mm512_permutex2var_epi8(below, codes, above);
        let (below, above) = (_mm512_loadu_si512(high.cast()), _mm512_loadu_si512(high.add(64).cast()));
        let high = _mm512_permutex2var_epi8(below, codes, above);
        // high | codes & 0x80
        let high = _mm512_ternarylogic_epi32::<0xf8>(high, codes, _mm512_set1_epi8(-128));
        let (first, last) = (_mm512_unpacklo_epi8(low, high), _mm512_unpackhi_epi8(low, high));
        let upper = _mm512_set1_epi32(0xffff_0000_u32 as i32);
        [
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(first)),
            _mm512_castsi512_ps(_mm512_and_si512(first, upper)),
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(last)),
            _mm512_castsi512_ps(_mm512_and_si512(last, upper)),
        ]
    }
}

impl<const VNNI: bool, const VBMI: bool> Lanes for Avx512<VNNI, VBMI> {
    type F = __m512;
    type I = __m512i;
    type Power = __m512;

    const DECODES_64: bool = VBMI;

    inlined! {
        fn splat(value: f32) -> Self::F { _mm512_set1_ps(value) }
        fn load(from: *const f32) -> Self::F { _mm512_loadu_ps(from) }
        fn store(to: *mut f32, a: Self::F) { _mm512_storeu_ps(to, a) }
        fn add(a: Self::F, b: Self::F) -> Self::F { _mm512_add_ps(a, b) }
        fn sub(a: Self::F, b: Self::F) -> Self::F { _mm512_sub_ps(a, b) }
        fn mul(a: Self::F, b: Self::F) -> Self::F { _mm512_mul_ps(a, b) }
        fn div(a: Self::F, b: Self::F) -> Self::F { _mm512_div_ps(a, b) }
        fn mul_add(a: Self::F, b: Self::F, c: Self::F) -> Self::F { _mm512_fmadd_ps(a, b, c) }
        fn max(a: Self::F, b: Self::F) -> Self::F { _mm512_max_ps(a, b) }
        fn abs(a: Self::F) -> Self::F { _mm512_abs_ps(a) }
        fn reduce_max(a: Self::F) -> f32 { _mm512_reduce_max_ps(a) }
        fn reduce_add(a: Self::F) -> f32 { _mm512_reduce_add_ps(a) }
        fn sum_each(vectors: &[Self::F; 16]) -> Self::F {
            // Two vectors side by side with eight lanes left of each, then four, then eight, then all.
            let mut sums = *vectors;
            for vector in [0, 1, 2, 3, 8, 9, 10, 11] {
                let (a, b) = (sums[vector], sums[vector + 4]);
                sums[vector] = _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xee>(a, b));
            }
            for vector in 0..4 {
                let (a, b) = (sums[vector], sums[vector + 8]);
                sums[vector] = _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0xdd>(a, b));
            }
            for vector in [0, 2] {
                let (a, b) = (sums[vector], sums[vector + 1]);
                sums[vector] = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
            }
            let (a, b) = (sums[0], sums[2]);
            _mm512_add_ps(_mm512_shuffle_ps::<0x44>(a, b), _mm512_shuffle_ps::<0xee>(a, b))
        }
        fn first_or(a: Self::F, count: usize, other: Self::F) -> Self::F { _mm512_mask_mov_ps(other, first(count), a) }

        fn decode_e4m3(codes: *const u8) -> Self::F { _mm512_cvtph_ps(e4m3_as_f16(codes)) }
        fn decode_e5m2(codes: *const u8) -> Self::F { _mm512_cvtph_ps(e5m2_as_f16(codes)) }
        fn decode_int8(codes: *const u8) -> Self::F {
            _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(codes.cast())))
        }
        fn decode_64_e4m3(codes: *const u8) -> [Self::F; 4] {
            look_up(&E4M3_BY_256, codes)
        }
        fn decode_64_e5m2(codes: *const u8) -> [Self::F; 4] {
            look_up(&E5M2, codes)
        }

        fn splat_int(value: i32) -> Self::I { _mm512_set1_epi32(value) }
        fn load_int(from: *const i32) -> Self::I { _mm512_loadu_si512(from.cast()) }
        fn store_int(to: *mut i32, a: Self::I) { _mm512_storeu_si512(to.cast(), a) }
        fn add_int(a: Self::I, b: Self::I) -> Self::I { _mm512_add_epi32(a, b) }
        fn max_int(a: Self::I, b: Self::I) -> Self::I { _mm512_max_epi32(a, b) }
        fn reduce_max_int(a: Self::I) -> i32 { _mm512_reduce_max_epi32(a) }
        fn reduce_add_int(a: Self::I) -> i32 { _mm512_reduce_add_epi32(a) }
        fn first_or_int(a: Self::I, count: usize, other: Self::I) -> Self::I {
            _mm512_mask_mov_epi32(other, first(count), a)
        }
        fn to_float(a: Self::I) -> Self::F { _mm512_cvtepi32_ps(a) }
        fn round_to_int(a: Self::F) -> Self::I { _mm512_cvtps_epi32(a) }
        fn round_to_i16(a: Self::F) -> (Self::F, Self::I) {
            // Two additions, which have units to spare, for two conversions, which have not.
            let rounder = _mm512_set1_ps(ROUNDER);
            let shifted = _mm512_add_ps(a, rounder);
            (_mm512_sub_ps(shifted, rounder), _mm512_castps_si512(shifted))
        }
        fn store_narrow(to: *mut i16, a: Self::I) { _mm256_storeu_si256(to.cast(), _mm512_cvtepi32_epi16(a)) }
        fn pair(a: Self::I, b: Self::I) -> Self::I { _mm512_mask_mov_epi16(a, 0xaaaa_aaaa, _mm512_slli_epi32::<16>(b)) }
        fn dot_pairs(sum: Self::I, a: Self::I, b: Self::I) -> Self::I {
            if VNNI { dpwssd(sum, a, b) } else { _mm512_add_epi32(sum, _mm512_madd_epi16(a, b)) }
        }

        fn split_exponent(a: Self::F) -> (Self::F, Self::Power) {
            let power = _mm512_roundscale_ps::<0>(a);
            (_mm512_sub_ps(a, power), power)
        }
        fn scale_by(a: Self::F, power: Self::Power) -> Self::F { _mm512_scalef_ps(a, power) }

        fn transpose_8x8(from: *const u32, from_stride: usize, to: *mut u32, to_stride: usize) {
            Avx2::transpose_8x8(from, from_stride, to, to_stride)
        }
    }
}
