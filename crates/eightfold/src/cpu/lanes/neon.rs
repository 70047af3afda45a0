//! Sixteen lanes in four ASIMD registers: what every 64-bit Arm has, with neither f16 arithmetic nor dot products of bytes.

use super::Lanes;
use std::arch::aarch64::*;

/// ASIMD.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Neon;

/// Four registers side by side: lanes 0–3, 4–7, 8–11 and 12–15.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Four<T>(T, T, T, T);

/// Applies an intrinsic to all registers.
macro_rules! four {
    ($intrinsic:path, $($operand:expr),+) => {
        Four($intrinsic($($operand.0),+), $intrinsic($($operand.1),+), $intrinsic($($operand.2),+), $intrinsic($($operand.3),+))
    };
}

/// Merges all registers into one.
macro_rules! merged {
    ($intrinsic:ident, $four:expr) => {
        $intrinsic($intrinsic($four.0, $four.1), $intrinsic($four.2, $four.3))
    };
}

inlined! {
    fn whole<T: Copy>(register: T) -> Four<T> { Four(register, register, register, register) }

    /// Lane numbers less than `count` as all-ones masks.
    fn first(count: usize) -> Four<uint32x4_t> {
        let numbers = vld1q_u32([0, 1, 2, 3].as_ptr());
        let from = |lane: u32| vaddq_u32(numbers, vdupq_n_u32(lane));
        let numbers = Four(numbers, from(4), from(8), from(12));
        let limit = whole(vdupq_n_u32(count as u32));
        four!(vcltq_u32, numbers, limit)
    }

    /// 16 codes in the upper bytes of two registers of 16-bit lanes, zeros below.
    fn upper_bytes(codes: *const u8) -> (int16x8_t, int16x8_t) {
        let codes = vld1q_s8(codes.cast());
        (vshll_n_s8::<8>(vget_low_s8(codes)), vshll_high_n_s8::<8>(codes))
    }

    /// Codes whose sign fills the bits before their exponent: those bits go, and what the exponents' biases differ by comes.
    fn rebias(bits: Four<int32x4_t>, kept: i32) -> Four<float32x4_t> {
        let kept = whole(vdupq_n_s32(kept));
        let bits = four!(vandq_s32, bits, kept);
        let values = four!(vreinterpretq_f32_s32, bits);
        let factor = whole(vdupq_n_f32(f32::from_bits((112 + 127) << 23)));
        four!(vmulq_f32, values, factor)
    }
}

impl Lanes for Neon {
    type F = Four<float32x4_t>;
    type I = Four<int32x4_t>;
    type Power = Four<int32x4_t>;

    inlined! {
        fn splat(value: f32) -> Self::F { whole(vdupq_n_f32(value)) }
        fn load(from: *const f32) -> Self::F {
            Four(vld1q_f32(from), vld1q_f32(from.add(4)), vld1q_f32(from.add(8)), vld1q_f32(from.add(12)))
        }
        fn store(to: *mut f32, a: Self::F) {
            vst1q_f32(to, a.0);
            vst1q_f32(to.add(4), a.1);
            vst1q_f32(to.add(8), a.2);
            vst1q_f32(to.add(12), a.3);
        }
        fn add(a: Self::F, b: Self::F) -> Self::F { four!(vaddq_f32, a, b) }
        fn sub(a: Self::F, b: Self::F) -> Self::F { four!(vsubq_f32, a, b) }
        fn mul(a: Self::F, b: Self::F) -> Self::F { four!(vmulq_f32, a, b) }
        fn div(a: Self::F, b: Self::F) -> Self::F { four!(vdivq_f32, a, b) }
        fn mul_add(a: Self::F, b: Self::F, c: Self::F) -> Self::F { four!(vfmaq_f32, c, a, b) }
        fn max(a: Self::F, b: Self::F) -> Self::F { four!(vmaxq_f32, a, b) }
        fn abs(a: Self::F) -> Self::F { four!(vabsq_f32, a) }
        fn reduce_max(a: Self::F) -> f32 { vmaxvq_f32(merged!(vmaxq_f32, a)) }
        fn reduce_add(a: Self::F) -> f32 { vaddvq_f32(merged!(vaddq_f32, a)) }
        fn sum_each(vectors: &[Self::F; 16]) -> Self::F {
            let quad = |of: usize| {
                let sums = |vector: usize| merged!(vaddq_f32, vectors[of + vector]);
                vpaddq_f32(vpaddq_f32(sums(0), sums(1)), vpaddq_f32(sums(2), sums(3)))
            };
            Four(quad(0), quad(4), quad(8), quad(12))
        }
        fn first_or(a: Self::F, count: usize, other: Self::F) -> Self::F {
            let mask = first(count);
            four!(vbslq_f32, mask, a, other)
        }

        fn decode_e4m3(codes: *const u8) -> Self::F {
            // The code's exponent and mantissa in the places of an f32's, which has 120 more of bias; the factor of 2^-8 stays.
            let (low, high) = upper_bytes(codes);
            let bits = Four(
                vshll_n_s16::<12>(vget_low_s16(low)),
                vshll_high_n_s16::<12>(low),
                vshll_n_s16::<12>(vget_low_s16(high)),
                vshll_high_n_s16::<12>(high),
            );
            rebias(bits, 0x87f0_0000_u32.cast_signed())
        }
        fn decode_e5m2(codes: *const u8) -> Self::F {
            // As above, with 112 more of bias.
            let (low, high) = upper_bytes(codes);
            let bits = Four(
                vshll_n_s16::<13>(vget_low_s16(low)),
                vshll_high_n_s16::<13>(low),
                vshll_n_s16::<13>(vget_low_s16(high)),
                vshll_high_n_s16::<13>(high),
            );
            rebias(bits, 0x8fe0_0000_u32.cast_signed())
        }
        fn decode_int8(codes: *const u8) -> Self::F {
            let codes = vld1q_s8(codes.cast());
            let (low, high) = (vmovl_s8(vget_low_s8(codes)), vmovl_high_s8(codes));
            let integers = Four(
                vmovl_s16(vget_low_s16(low)),
                vmovl_high_s16(low),
                vmovl_s16(vget_low_s16(high)),
                vmovl_high_s16(high),
            );
            four!(vcvtq_f32_s32, integers)
        }

        fn splat_int(value: i32) -> Self::I { whole(vdupq_n_s32(value)) }
        fn load_int(from: *const i32) -> Self::I {
            Four(vld1q_s32(from), vld1q_s32(from.add(4)), vld1q_s32(from.add(8)), vld1q_s32(from.add(12)))
        }
        fn store_int(to: *mut i32, a: Self::I) {
            vst1q_s32(to, a.0);
            vst1q_s32(to.add(4), a.1);
            vst1q_s32(to.add(8), a.2);
            vst1q_s32(to.add(12), a.3);
        }
        fn add_int(a: Self::I, b: Self::I) -> Self::I { four!(vaddq_s32, a, b) }
        fn max_int(a: Self::I, b: Self::I) -> Self::I { four!(vmaxq_s32, a, b) }
        fn reduce_max_int(a: Self::I) -> i32 { vmaxvq_s32(merged!(vmaxq_s32, a)) }
        fn reduce_add_int(a: Self::I) -> i32 { vaddvq_s32(merged!(vaddq_s32, a)) }
        fn first_or_int(a: Self::I, count: usize, other: Self::I) -> Self::I {
            let mask = first(count);
            four!(vbslq_s32, mask, a, other)
        }
        fn to_float(a: Self::I) -> Self::F { four!(vcvtq_f32_s32, a) }
        fn round_to_int(a: Self::F) -> Self::I { four!(vcvtnq_s32_f32, a) }
        fn round_to_i16(a: Self::F) -> (Self::F, Self::I) {
            let integers = Self::round_to_int(a);
            (Self::to_float(integers), integers)
        }
        fn store_narrow(to: *mut i16, a: Self::I) {
            vst1q_s16(to, vcombine_s16(vmovn_s32(a.0), vmovn_s32(a.1)));
            vst1q_s16(to.add(8), vcombine_s16(vmovn_s32(a.2), vmovn_s32(a.3)));
        }
        fn pair(a: Self::I, b: Self::I) -> Self::I { four!(vsliq_n_s32::<16>, a, b) }
        fn dot_pairs(sum: Self::I, a: Self::I, b: Self::I) -> Self::I {
            let pairs = |a: int32x4_t, b: int32x4_t| {
                let (a, b) = (vreinterpretq_s16_s32(a), vreinterpretq_s16_s32(b));
                vpaddq_s32(vmull_s16(vget_low_s16(a), vget_low_s16(b)), vmull_high_s16(a, b))
            };
            let products = Four(pairs(a.0, b.0), pairs(a.1, b.1), pairs(a.2, b.2), pairs(a.3, b.3));
            four!(vaddq_s32, sum, products)
        }

        fn split_exponent(a: Self::F) -> (Self::F, Self::Power) {
            let a = Self::max(a, Self::splat(-126.0));
            let rounded = four!(vrndnq_f32, a);
            let integers = four!(vcvtq_s32_f32, rounded);
            (Self::sub(a, rounded), four!(vshlq_n_s32::<23>, integers))
        }
        fn scale_by(a: Self::F, power: Self::Power) -> Self::F {
            let bits = four!(vreinterpretq_s32_f32, a);
            let bits = four!(vaddq_s32, bits, power);
            four!(vreinterpretq_f32_s32, bits)
        }

        fn transpose_8x8(from: *const u32, from_stride: usize, to: *mut u32, to_stride: usize) {
            for row in [0, 4] {
                for column in [0, 4] {
                    let load = |offset: usize| vld1q_u32(from.add((row + offset) * from_stride + column));
                    let (a, b, c, d) = (load(0), load(1), load(2), load(3));
                    let [ab_even, ab_odd] = [vtrn1q_u32(a, b), vtrn2q_u32(a, b)].map(|a| vreinterpretq_u64_u32(a));
                    let [cd_even, cd_odd] = [vtrn1q_u32(c, d), vtrn2q_u32(c, d)].map(|a| vreinterpretq_u64_u32(a));
                    let columns = [
                        vtrn1q_u64(ab_even, cd_even),
                        vtrn1q_u64(ab_odd, cd_odd),
                        vtrn2q_u64(ab_even, cd_even),
                        vtrn2q_u64(ab_odd, cd_odd),
                    ];
                    for (offset, values) in columns.into_iter().enumerate() {
                        vst1q_u32(to.add((column + offset) * to_stride + row), vreinterpretq_u32_u64(values));
                    }
                }
            }
        }
    }
}
