//! Sixteen lanes, whatever the machine: the few vector operations that the kernels are written in.
//!
//! One kernel source serves every instruction set. A panel of keys and a chunk of channels are 16 wide
//! everywhere; AVX-512 holds them in one register, AVX2 in two, the portable lanes in an array that the
//! compiler maps onto what the target has.

/// Unsafe functions that are inlined wherever they are called, as the contract of [`Lanes`] demands.
macro_rules! inlined {
    ($($(#[$attribute:meta])* $visibility:vis fn $name:ident $(<$generic:ident: $bound:ident>)?
        ($(&$self:ident $(,)?)? $($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)? { $($body:tt)* })+) => {
        $($(#[$attribute])*
        #[inline(always)]
        #[allow(unused_unsafe)]
        $visibility unsafe fn $name $(<$generic: $bound>)? ($(&$self,)? $($argument: $type),*) $(-> $result)? {
            // SAFETY: the contract of `Lanes`, which every such function passes on to its caller: the instruction set is
            // there, and pointers are valid for 16 elements.
            unsafe { $($body)* }
        })+
    };
}
pub(super) use inlined;

/// 64 codes, 16 at a time.
macro_rules! by_16 {
    ($codes:expr, $decode:path) => {
        [$decode($codes), $decode($codes.add(16)), $decode($codes.add(32)), $decode($codes.add(48))]
    };
}
pub(super) use by_16;

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;
pub(super) mod bf16;
#[cfg(all(target_arch = "aarch64", target_feature = "neon"))]
pub(super) mod neon;
pub(super) mod portable;

/// The number of lanes.
pub(super) const LANES: usize = 16;

/// Adding 1.5·2^23 to a float below 2^22 rounds it to the nearest integer, ties to even, and leaves that integer in the
/// low bits of the sum; subtracting it again gives the integer as a float.
const ROUNDER: f32 = 12_582_912.0;

/// Sixteen 32-bit lanes, as floats or as integers.
///
/// # Safety
///
/// Every method must be inlined into a function that is compiled for, and runs on, a CPU with the
/// implementor's instruction set; pointers must be valid for 16 elements (of the type named) unless more are named, unaligned.
pub(super) trait Lanes: Copy {
    /// Sixteen f32.
    type F: Copy;
    /// Sixteen i32; also sixteen pairs of i16.
    type I: Copy;
    /// Sixteen powers of two.
    type Power: Copy;

    unsafe fn splat(value: f32) -> Self::F;
    unsafe fn load(from: *const f32) -> Self::F;
    unsafe fn store(to: *mut f32, a: Self::F);
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F;
    /// `a · b + c`; fused where the machine fuses.
    unsafe fn mul_add(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn abs(a: Self::F) -> Self::F;
    unsafe fn reduce_max(a: Self::F) -> f32;
    unsafe fn reduce_add(a: Self::F) -> f32;
    /// Each lane the sum of the lanes of one vector.
    unsafe fn sum_each(vectors: &[Self::F; LANES]) -> Self::F;
    /// The first `count` lanes (at most 16) of `a`, the others of `other`.
    unsafe fn first_or(a: Self::F, count: usize, other: Self::F) -> Self::F;

    /// The values of 16 finite E4M3 codes, times 2^-8.
    unsafe fn decode_e4m3(codes: *const u8) -> Self::F;
    /// The values of 16 finite E5M2 codes.
    unsafe fn decode_e5m2(codes: *const u8) -> Self::F;
    /// The values of 16 INT8 codes.
    unsafe fn decode_int8(codes: *const u8) -> Self::F;

    /// Whether 64 codes are decoded faster together than 16 at a time. Only then are they to be.
    const DECODES_64: bool = false;

    /// The values of 64 finite E4M3 codes, times 2^-8.
    #[inline(always)]
    unsafe fn decode_64_e4m3(codes: *const u8) -> [Self::F; 4] {
        // SAFETY: they are four times 16.
        unsafe { by_16!(codes, Self::decode_e4m3) }
    }
    /// The values of 64 finite E5M2 codes.
    #[inline(always)]
    unsafe fn decode_64_e5m2(codes: *const u8) -> [Self::F; 4] {
        // SAFETY: as above.
        unsafe { by_16!(codes, Self::decode_e5m2) }
    }

    unsafe fn splat_int(value: i32) -> Self::I;
    unsafe fn load_int(from: *const i32) -> Self::I;
    unsafe fn store_int(to: *mut i32, a: Self::I);
    unsafe fn add_int(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn max_int(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn reduce_max_int(a: Self::I) -> i32;
    unsafe fn reduce_add_int(a: Self::I) -> i32;
    /// The first `count` lanes (at most 16) of `a`, the others of `other`.
    unsafe fn first_or_int(a: Self::I, count: usize, other: Self::I) -> Self::I;
    unsafe fn to_float(a: Self::I) -> Self::F;
    /// Nearest integers, ties to even.
    unsafe fn round_to_int(a: Self::F) -> Self::I;
    /// Nearest integers within i16, ties to even, as floats and as lanes of which only `store_narrow` and `pair` may
    /// make use: their upper halves hold anything.
    unsafe fn round_to_i16(a: Self::F) -> (Self::F, Self::I);
    /// The i16 in each lane, stored in order.
    unsafe fn store_narrow(to: *mut i16, a: Self::I);
    /// Each lane the pair (low half of `a`, low half of `b`).
    unsafe fn pair(a: Self::I, b: Self::I) -> Self::I;
    /// `sum + a₀·b₀ + a₁·b₁` in each lane, where `a` and `b` hold pairs of i16.
    unsafe fn dot_pairs(sum: Self::I, a: Self::I, b: Self::I) -> Self::I;

    /// `a` as a fraction in [−½, ½] and the power of two that belongs to the rest; `a` ≤ 127.
    unsafe fn split_exponent(a: Self::F) -> (Self::F, Self::Power);
    /// `a · 2^power`; zero or nearly so where that lies below the normal range.
    unsafe fn scale_by(a: Self::F, power: Self::Power) -> Self::F;

    /// Transposes an 8×8 block of 32-bit words; the strides are in words.
    unsafe fn transpose_8x8(from: *const u32, from_stride: usize, to: *mut u32, to_stride: usize);
}

/// 2^a by a minimax polynomial on the fraction: relative error 2.4e-7 at degree 5, 2.7e-6 at degree 4.
///
/// # Safety
///
/// As for [`Lanes`].
#[inline(always)]
pub(super) unsafe fn exp2<L: Lanes, const DEGREE: usize>(a: L::F) -> L::F {
    const DEGREE_5: [f32; 6] = [1.327_647_2e-3, 9.675_541e-3, 5.550_713e-2, 2.402_212e-1, 6.931_469_4e-1, 1.000_000_1];
    const DEGREE_4: [f32; 5] = [9.570_102e-3, 5.591_786e-2, 2.402_474_4e-1, 6.931_218e-1, 9.999_993e-1];
    let coefficients: &[f32] = if DEGREE == 5 { &DEGREE_5 } else { &DEGREE_4 };
    // SAFETY: the caller upholds the contract of `Lanes`.
    unsafe {
        let (fraction, power) = L::split_exponent(a);
        let mut value = L::splat(coefficients[0]);
        for &coefficient in &coefficients[1..] {
            value = L::mul_add(value, fraction, L::splat(coefficient));
        }
        L::scale_by(value, power)
    }
}
