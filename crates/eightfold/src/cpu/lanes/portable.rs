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

/// Codes shifted into the bits of an f32 and multiplied by what the exponents' biases differ by.
#[inline(always)]
unsafe fn decode(codes: *const u8, shift: u32, rebias: f32) -> [f32; LANES] {
    // SAFETY: the caller promises 16 readable codes.
    let codes = unsafe { codes.cast::<[u8; LANES]>().read() };
    map(codes, |code| {
        let code = u32::from(code);
        f32::from_bits((code & 0x7f) << shift | (code & 0x80) << 24) * rebias
    })
}

// SAFETY of every method: no instruction set is assumed; the pointers are the caller's promise.
impl Lanes for Portable {
    type F = [f32; LANES];
    type I = [i32; LANES];
    type Power = [i32; LANES];

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self::F {
        [value; LANES]
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self::F {
        // SAFETY: the caller promises 16 readable elements.
        unsafe { from.cast::<Self::F>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, a: Self::F) {
        // SAFETY: the caller promises 16 writable elements.
        unsafe { to.cast::<Self::F>().write_unaligned(a) }
    }
    #[inline(always)]
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a + b)
    }
    #[inline(always)]
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a - b)
    }
    #[inline(always)]
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a * b)
    }
    #[inline(always)]
    unsafe fn mul_add(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        // Not `f32::mul_add`: without FMA in the target that is a library call for every lane.
        std::array::from_fn(|lane| a[lane] * b[lane] + c[lane])
    }
    #[inline(always)]
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    unsafe fn abs(a: Self::F) -> Self::F {
        map(a, f32::abs)
    }
    #[inline(always)]
    unsafe fn reduce_max(a: Self::F) -> f32 {
        a.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }
    #[inline(always)]
    unsafe fn reduce_add(a: Self::F) -> f32 {
        a.into_iter().sum()
    }
    #[inline(always)]
    unsafe fn first_or(a: Self::F, count: usize, other: Self::F) -> Self::F {
        std::array::from_fn(|lane| if lane < count { a[lane] } else { other[lane] })
    }

    #[inline(always)]
    unsafe fn decode_e4m3(codes: *const u8) -> Self::F {
        // The code's exponent and mantissa in the places of an f32's, which has 120 more of bias.
        // SAFETY: the caller promises 16 readable codes.
        unsafe { decode(codes, 20, 2f32.powi(120 - 8)) }
    }
    #[inline(always)]
    unsafe fn decode_e5m2(codes: *const u8) -> Self::F {
        // As above, with 112 more of bias.
        // SAFETY: the caller promises 16 readable codes.
        unsafe { decode(codes, 21, 2f32.powi(112)) }
    }

    #[inline(always)]
    unsafe fn splat_int(value: i32) -> Self::I {
        [value; LANES]
    }
    #[inline(always)]
    unsafe fn load_int(from: *const i32) -> Self::I {
        // SAFETY: the caller promises 16 readable elements.
        unsafe { from.cast::<Self::I>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store_int(to: *mut i32, a: Self::I) {
        // SAFETY: the caller promises 16 writable elements.
        unsafe { to.cast::<Self::I>().write_unaligned(a) }
    }
    #[inline(always)]
    unsafe fn add_int(a: Self::I, b: Self::I) -> Self::I {
        zip(a, b, i32::wrapping_add)
    }
    #[inline(always)]
    unsafe fn max_int(a: Self::I, b: Self::I) -> Self::I {
        zip(a, b, i32::max)
    }
    #[inline(always)]
    unsafe fn reduce_max_int(a: Self::I) -> i32 {
        a.into_iter().fold(i32::MIN, i32::max)
    }
    #[inline(always)]
    unsafe fn reduce_add_int(a: Self::I) -> i32 {
        a.into_iter().fold(0, i32::wrapping_add)
    }
    #[inline(always)]
    unsafe fn first_or_int(a: Self::I, count: usize, other: Self::I) -> Self::I {
        std::array::from_fn(|lane| if lane < count { a[lane] } else { other[lane] })
    }
    #[inline(always)]
    unsafe fn to_float(a: Self::I) -> Self::F {
        map(a, |a| a as f32)
    }
    #[inline(always)]
    unsafe fn round_to_int(a: Self::F) -> Self::I {
        map(a, |a| ((a + ROUNDER).to_bits() as i32).wrapping_sub(ROUNDER.to_bits() as i32))
    }
    #[inline(always)]
    unsafe fn round_to_i16(a: Self::F) -> (Self::F, Self::I) {
        let shifted = map(a, |a| a + ROUNDER);
        (map(shifted, |shifted| shifted - ROUNDER), map(shifted, |shifted| shifted.to_bits().cast_signed()))
    }
    #[inline(always)]
    unsafe fn store_narrow(to: *mut i16, a: Self::I) {
        let narrow = map(a, |a| a as i16);
        // SAFETY: the caller promises 16 writable elements.
        unsafe { to.cast::<[i16; LANES]>().write_unaligned(narrow) }
    }
    #[inline(always)]
    unsafe fn pair(a: Self::I, b: Self::I) -> Self::I {
        zip(a, b, |a, b| (a & 0xffff) | (b << 16))
    }
    #[inline(always)]
    unsafe fn dot_pairs(sum: Self::I, a: Self::I, b: Self::I) -> Self::I {
        std::array::from_fn(|lane| {
            let (a, b) = (a[lane], b[lane]);
            let low = i32::from(a as i16) * i32::from(b as i16);
            let high = (a >> 16) * (b >> 16);
            sum[lane].wrapping_add(low).wrapping_add(high)
        })
    }

    #[inline(always)]
    unsafe fn split_exponent(a: Self::F) -> (Self::F, Self::Power) {
        let rounded = map(a, |a| a.max(-126.0) + ROUNDER);
        let fraction = zip(a, rounded, |a, rounded| a.max(-126.0) - (rounded - ROUNDER));
        (fraction, map(rounded, |rounded| (rounded.to_bits() << 23) as i32))
    }
    #[inline(always)]
    unsafe fn scale_by(a: Self::F, power: Self::Power) -> Self::F {
        std::array::from_fn(|lane| f32::from_bits(a[lane].to_bits().wrapping_add(power[lane] as u32)))
    }

    #[inline(always)]
    unsafe fn transpose_8x8(from: *const u32, from_stride: usize, to: *mut u32, to_stride: usize) {
        for row in 0..8 {
            for column in 0..8 {
                // SAFETY: the caller promises eight rows of eight words on either side.
                unsafe { *to.add(column * to_stride + row) = *from.add(row * from_stride + column) }
            }
        }
    }
}
