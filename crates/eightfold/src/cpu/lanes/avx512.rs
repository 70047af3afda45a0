//! Sixteen lanes in one AVX-512 register.

use super::avx2::{Avx2, e4m3_as_f16, e5m2_as_f16};
use super::{Lanes, ROUNDER};
use std::arch::asm;
use std::arch::x86_64::*;

/// AVX-512 F, BW, DQ and VL; with `VNNI`, 16-bit products are summed by one instruction.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Avx512<const VNNI: bool>;

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

// SAFETY of every block: inlined into a function with the instruction set named above, and pointers
// are valid for 16 elements, as the contract of `Lanes` demands.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<const VNNI: bool> Lanes for Avx512<VNNI> {
    type F = __m512;
    type I = __m512i;
    type Power = __m512;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self::F {
        unsafe { _mm512_set1_ps(value) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self::F {
        unsafe { _mm512_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, a: Self::F) {
        unsafe { _mm512_storeu_ps(to, a) }
    }
    #[inline(always)]
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F {
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul_add(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F {
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn abs(a: Self::F) -> Self::F {
        unsafe { _mm512_abs_ps(a) }
    }
    #[inline(always)]
    unsafe fn reduce_max(a: Self::F) -> f32 {
        unsafe { _mm512_reduce_max_ps(a) }
    }
    #[inline(always)]
    unsafe fn reduce_add(a: Self::F) -> f32 {
        unsafe { _mm512_reduce_add_ps(a) }
    }
    #[inline(always)]
    unsafe fn first_or(a: Self::F, count: usize, other: Self::F) -> Self::F {
        unsafe { _mm512_mask_mov_ps(other, first(count), a) }
    }

    #[inline(always)]
    unsafe fn decode_e4m3(codes: *const u8) -> Self::F {
        unsafe { _mm512_cvtph_ps(e4m3_as_f16(codes)) }
    }
    #[inline(always)]
    unsafe fn decode_e5m2(codes: *const u8) -> Self::F {
        unsafe { _mm512_cvtph_ps(e5m2_as_f16(codes)) }
    }

    #[inline(always)]
    unsafe fn splat_int(value: i32) -> Self::I {
        unsafe { _mm512_set1_epi32(value) }
    }
    #[inline(always)]
    unsafe fn load_int(from: *const i32) -> Self::I {
        unsafe { _mm512_loadu_si512(from.cast()) }
    }
    #[inline(always)]
    unsafe fn store_int(to: *mut i32, a: Self::I) {
        unsafe { _mm512_storeu_si512(to.cast(), a) }
    }
    #[inline(always)]
    unsafe fn add_int(a: Self::I, b: Self::I) -> Self::I {
        unsafe { _mm512_add_epi32(a, b) }
    }
    #[inline(always)]
    unsafe fn max_int(a: Self::I, b: Self::I) -> Self::I {
        unsafe { _mm512_max_epi32(a, b) }
    }
    #[inline(always)]
    unsafe fn reduce_max_int(a: Self::I) -> i32 {
        unsafe { _mm512_reduce_max_epi32(a) }
    }
    #[inline(always)]
    unsafe fn reduce_add_int(a: Self::I) -> i32 {
        unsafe { _mm512_reduce_add_epi32(a) }
    }
    #[inline(always)]
    unsafe fn first_or_int(a: Self::I, count: usize, other: Self::I) -> Self::I {
        unsafe { _mm512_mask_mov_epi32(other, first(count), a) }
    }
    #[inline(always)]
    unsafe fn to_float(a: Self::I) -> Self::F {
        unsafe { _mm512_cvtepi32_ps(a) }
    }
    #[inline(always)]
    unsafe fn round_to_int(a: Self::F) -> Self::I {
        unsafe { _mm512_cvtps_epi32(a) }
    }
    #[inline(always)]
    unsafe fn round_to_i16(a: Self::F) -> (Self::F, Self::I) {
        // Two additions, which have units to spare, for two conversions, which have not.
        unsafe {
            let rounder = _mm512_set1_ps(ROUNDER);
            let shifted = _mm512_add_ps(a, rounder);
            (_mm512_sub_ps(shifted, rounder), _mm512_castps_si512(shifted))
        }
    }
    #[inline(always)]
    unsafe fn store_narrow(to: *mut i16, a: Self::I) {
        unsafe { _mm256_storeu_si256(to.cast(), _mm512_cvtepi32_epi16(a)) }
    }
    #[inline(always)]
    unsafe fn pair(a: Self::I, b: Self::I) -> Self::I {
        unsafe { _mm512_mask_mov_epi16(a, 0xaaaa_aaaa, _mm512_slli_epi32::<16>(b)) }
    }
    #[inline(always)]
    unsafe fn dot_pairs(sum: Self::I, a: Self::I, b: Self::I) -> Self::I {
        if VNNI { unsafe { dpwssd(sum, a, b) } } else { unsafe { _mm512_add_epi32(sum, _mm512_madd_epi16(a, b)) } }
    }

    #[inline(always)]
    unsafe fn split_exponent(a: Self::F) -> (Self::F, Self::Power) {
        unsafe {
            let power = _mm512_roundscale_ps::<0>(a);
            (_mm512_sub_ps(a, power), power)
        }
    }
    #[inline(always)]
    unsafe fn scale_by(a: Self::F, power: Self::Power) -> Self::F {
        unsafe { _mm512_scalef_ps(a, power) }
    }

    #[inline(always)]
    unsafe fn transpose_8x8(from: *const u32, from_stride: usize, to: *mut u32, to_stride: usize) {
        unsafe { Avx2::transpose_8x8(from, from_stride, to, to_stride) }
    }
}
