//! 16 or 32 values at a time, with AVX2 and F16C.

use super::Fp8Format;
use super::scalar::Constants;
use half::f16;
use std::arch::x86_64::*;

/// The proof that this CPU can run what is in this file: only [`Avx2::detect`] makes one.
#[derive(Clone, Copy)]
pub(super) struct Avx2(());

impl Avx2 {
    /// The proof, if this CPU has AVX2 and F16C.
    pub(super) fn detect() -> Option<Self> {
        let found = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c");
        found.then_some(Avx2(()))
    }

    /// Encodes as [`encode_slice`](super::scalar::encode_slice) does.
    pub(super) fn encode_slice(self, format: Fp8Format, values: &[f32], codes: &mut [u8]) {
        // SAFETY: an `Avx2` exists only where the CPU was seen to have AVX2 and F16C.
        unsafe {
            match format {
                Fp8Format::E4m3 => encode_with::<E4M3>(values, codes),
                Fp8Format::E5m2 => encode_with::<E5M2>(values, codes),
                Fp8Format::Int8 => encode_with::<INT8>(values, codes),
            }
        }
    }

    /// Decodes as [`decode_slice`](super::scalar::decode_slice) does.
    pub(super) fn decode_slice(self, format: Fp8Format, codes: &[u8], values: &mut [f32]) {
        // SAFETY: an `Avx2` exists only where the CPU was seen to have AVX2 and F16C.
        unsafe {
            match format {
                Fp8Format::E4m3 => decode_with::<E4M3>(codes, values),
                Fp8Format::E5m2 => decode_with::<E5M2>(codes, values),
                Fp8Format::Int8 => decode_with::<INT8>(codes, values),
            }
        }
    }

    /// Widens as many halves as there are in both slices.
    pub(super) fn widen_f16(self, values: &[f16], wide: &mut [f32]) {
        // SAFETY: an `Avx2` exists only where the CPU was seen to have AVX2 and F16C.
        unsafe { widen_f16(values, wide) }
    }
}

/// Values per step of the encoder: four vectors of f32 make one vector of codes.
const ENCODE_STEP: usize = 32;

/// Codes per step of the decoder: 16 of them widen to one vector of f16.
const DECODE_STEP: usize = 16;

#[target_feature(enable = "avx2,f16c")]
fn widen_f16(values: &[f16], wide: &mut [f32]) {
    let len = values.len().min(wide.len());
    let (values, values_tail) = values[..len].as_chunks::<8>();
    let (wide, wide_tail) = wide[..len].as_chunks_mut::<8>();
    for (values, wide) in values.iter().zip(wide) {
        // SAFETY: `values` holds exactly the eight halves that are loaded; no alignment is needed.
        let halves = unsafe { _mm_loadu_si128(values.as_ptr().cast()) };
        // SAFETY: `wide` holds exactly the eight floats that are stored; no alignment is needed.
        unsafe { _mm256_storeu_ps(wide.as_mut_ptr(), _mm256_cvtph_ps(halves)) }
    }
    for (wide, value) in wide_tail.iter_mut().zip(values_tail) {
        *wide = value.to_f32();
    }
}

/// [`Fp8Format`] as a const parameter, so that every constant is known to the compiler.
const E4M3: u8 = 0;
const E5M2: u8 = 1;
const INT8: u8 = 2;

const fn format_of(format: u8) -> Fp8Format {
    if format == E4M3 { Fp8Format::E4m3 } else { Fp8Format::E5m2 }
}

#[target_feature(enable = "avx2,f16c")]
fn encode_with<const FORMAT: u8>(values: &[f32], codes: &mut [u8]) {
    let len = values.len().min(codes.len());
    let (values, values_tail) = values[..len].as_chunks::<ENCODE_STEP>();
    let (codes, codes_tail) = codes[..len].as_chunks_mut::<ENCODE_STEP>();
    for (values, codes) in values.iter().zip(codes) {
        encode_step::<FORMAT>(values, codes);
    }
    if !values_tail.is_empty() {
        let (mut values, mut codes) = ([0.0; ENCODE_STEP], [0; ENCODE_STEP]);
        values[..values_tail.len()].copy_from_slice(values_tail);
        encode_step::<FORMAT>(&values, &mut codes);
        codes_tail.copy_from_slice(&codes[..codes_tail.len()]);
    }
}

#[target_feature(enable = "avx2,f16c")]
fn encode_step<const FORMAT: u8>(values: &[f32; ENCODE_STEP], codes: &mut [u8; ENCODE_STEP]) {
    let (quarters, _) = values.as_chunks::<8>();
    // Packing works within each 128-bit half, so the four-byte groups come out in the order below.
    let packed = if FORMAT == INT8 {
        let [a, b, c, d] = [0, 1, 2, 3].map(|i| round_vector(&quarters[i]));
        _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d))
    } else {
        let [a, b, c, d] = [0, 1, 2, 3].map(|i| encode_vector::<FORMAT>(&quarters[i]));
        _mm256_packus_epi16(_mm256_packus_epi32(a, b), _mm256_packus_epi32(c, d))
    };
    let ordered = _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    // SAFETY: `codes` holds exactly the 32 bytes that are stored, and the store needs no alignment.
    unsafe { _mm256_storeu_si256(codes.as_mut_ptr().cast(), ordered) }
}

/// The integers of eight values, one in each 32-bit lane; of NaN the smallest there is, which packing makes 0x80 of.
#[target_feature(enable = "avx2,f16c")]
fn round_vector(values: &[f32; 8]) -> __m256i {
    // SAFETY: `values` holds exactly the eight floats that are loaded, and the load needs no alignment.
    let values = unsafe { _mm256_loadu_ps(values.as_ptr()) };
    // Where a value is NaN, these give their second operand.
    let bounded = _mm256_max_ps(_mm256_set1_ps(-127.0), _mm256_min_ps(_mm256_set1_ps(127.0), values));
    _mm256_cvtps_epi32(bounded)
}

/// The codes of eight values, one in each 32-bit lane.
#[target_feature(enable = "avx2,f16c")]
fn encode_vector<const FORMAT: u8>(values: &[f32; 8]) -> __m256i {
    let constants = const { Constants::of(format_of(FORMAT)) };
    let lanes = |bits: u32| _mm256_set1_epi32(bits as i32);
    // SAFETY: `values` holds exactly the eight floats that are loaded, and the load needs no alignment.
    let bits = unsafe { _mm256_loadu_si256(values.as_ptr().cast()) };
    let all = _mm256_and_si256(bits, lanes(0x7fff_ffff));
    let magnitude = _mm256_min_epi32(all, lanes(constants.max));

    let shift = _mm_cvtsi32_si128(constants.dropped_bits as i32);
    let odd = _mm256_and_si256(_mm256_srl_epi32(magnitude, shift), lanes(1));
    let just_below_half = lanes((1 << (constants.dropped_bits - 1)) - 1);
    let rounded = _mm256_add_epi32(_mm256_add_epi32(magnitude, just_below_half), odd);
    let normal = _mm256_sub_epi32(_mm256_srl_epi32(rounded, shift), lanes(constants.rebias));

    let magic = _mm256_set1_ps(constants.subnormal_magic);
    let sum = _mm256_add_ps(_mm256_castsi256_ps(magnitude), magic);
    let subnormal = _mm256_sub_epi32(_mm256_castps_si256(sum), _mm256_castps_si256(magic));

    let is_subnormal = _mm256_cmpgt_epi32(lanes(constants.min_normal), magnitude);
    let is_nan = _mm256_cmpgt_epi32(all, lanes(f32::INFINITY.to_bits()));
    let code = _mm256_blendv_epi8(normal, subnormal, is_subnormal);
    let code = _mm256_blendv_epi8(code, lanes(0x7f), is_nan);
    let sign = _mm256_and_si256(_mm256_srli_epi32::<24>(bits), lanes(0x80));
    _mm256_or_si256(code, sign)
}

#[target_feature(enable = "avx2,f16c")]
fn decode_with<const FORMAT: u8>(codes: &[u8], values: &mut [f32]) {
    let len = values.len().min(codes.len());
    let (codes, codes_tail) = codes[..len].as_chunks::<DECODE_STEP>();
    let (values, values_tail) = values[..len].as_chunks_mut::<DECODE_STEP>();
    for (codes, values) in codes.iter().zip(values) {
        decode_step::<FORMAT>(codes, values);
    }
    if !codes_tail.is_empty() {
        let (mut codes, mut values) = ([0; DECODE_STEP], [0.0; DECODE_STEP]);
        codes[..codes_tail.len()].copy_from_slice(codes_tail);
        decode_step::<FORMAT>(&codes, &mut values);
        values_tail.copy_from_slice(&values[..values_tail.len()]);
    }
}

#[target_feature(enable = "avx2,f16c")]
fn decode_step<const FORMAT: u8>(codes: &[u8; DECODE_STEP], values: &mut [f32; DECODE_STEP]) {
    // SAFETY: `codes` holds exactly the 16 bytes that are loaded, and the load needs no alignment.
    let bytes = unsafe { _mm_loadu_si128(codes.as_ptr().cast()) };
    let (parts, _) = values.as_chunks_mut::<8>();
    if FORMAT == INT8 {
        for (part, bytes) in parts.iter_mut().zip([bytes, _mm_srli_si128::<8>(bytes)]) {
            let integers = _mm256_cvtepi8_epi32(bytes);
            let is_nan = _mm256_castsi256_ps(_mm256_cmpeq_epi32(integers, _mm256_set1_epi32(-128)));
            let value = _mm256_blendv_ps(_mm256_cvtepi32_ps(integers), _mm256_set1_ps(f32::NAN), is_nan);
            // SAFETY: `part` holds exactly the eight floats that are stored; no alignment is needed.
            unsafe { _mm256_storeu_ps(part.as_mut_ptr(), value) }
        }
        return;
    }
    let words = _mm256_cvtepu8_epi16(bytes);
    let magnitude = _mm256_and_si256(words, _mm256_set1_epi16(0x7f));
    let (halves, is_nan, unit) = if FORMAT == E4M3 {
        // The exponent and mantissa in the place of those of an f16, whose bias is greater by 8.
        let sign = _mm256_slli_epi16::<8>(_mm256_xor_si256(words, magnitude));
        let halves = _mm256_or_si256(sign, _mm256_slli_epi16::<7>(magnitude));
        (halves, _mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x7f)), 256.0)
    } else {
        // E5M2 is the high byte of an f16.
        let halves = _mm256_slli_epi16::<8>(words);
        (halves, _mm256_cmpgt_epi16(magnitude, _mm256_set1_epi16(0x7c)), 1.0)
    };
    // 0x7e00 is the f16 that widens to `f32::NAN`.
    let halves = _mm256_blendv_epi8(halves, _mm256_set1_epi16(0x7e00), is_nan);
    let wide = [_mm256_castsi256_si128(halves), _mm256_extracti128_si256::<1>(halves)];
    for (part, wide) in parts.iter_mut().zip(wide) {
        let value = _mm256_mul_ps(_mm256_cvtph_ps(wide), _mm256_set1_ps(unit));
        // SAFETY: `part` holds exactly the eight floats that are stored; no alignment is needed.
        unsafe { _mm256_storeu_ps(part.as_mut_ptr(), value) }
    }
}
