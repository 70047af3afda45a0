//! The steps between tile operations in AVX-512, with the byte permutations and bf16 products of the CPUs that have AMX.

use super::{BLOCK, BLOCK_SCORES, Chunk, DEGREE_3, DEGREE_5, Rows, STRIP, TILE, Table, Vectors, Weights, weight_place};
use std::arch::x86_64::*;

/// For CPUs with AVX-512 F, BW, DQ, VL, VBMI and BF16.
pub(in super::super) struct Avx512;

impl Avx512 {
    /// Whether this CPU has all of it.
    pub(in super::super) fn is_here() -> bool {
        is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vbmi")
            && is_x86_feature_detected!("avx512bf16")
    }
}

/// Functions that enable the instruction set, one for each method.
macro_rules! with_avx512 {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)?;)+) => {
        impl Vectors for Avx512 {
            $(unsafe fn $name($($argument: $type),*) $(-> $result)? {
                // SAFETY: the caller promises that the CPU has what `Avx512` asks for.
                unsafe { $name($($argument),*) }
            })+
        }
    };
}

with_avx512! {
    fn pack_queries(rows: Rows, steps: usize, packed: &mut [u16], norms: &mut [f32]);
    fn pack_keys(rows: Rows, steps: usize, scales: &[f32], packed: &mut [u16]) -> f32;
    fn pack_values(rows: Rows, tiles: usize, stride: usize, packed: &mut [u16]);
    fn scale(chunk: &mut Chunk);
    fn raise_maxima(chunk: &Chunk, maxima: &mut [f32]);
    fn weigh(chunk: &Chunk, weights: &mut Weights);
    fn rescale(output: &mut [f32], width: usize, factors: &[f32]);
}

macro_rules! avx512_functions {
    ($($(#[$attribute:meta])* fn $name:ident $(<$(const $constant:ident: $constant_type:ty),+>)?
        ($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)? { $($body:tt)* })+) => {
        $($(#[$attribute])*
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512bf16")]
        fn $name $(<$(const $constant: $constant_type),+>)? ($($argument: $type),*) $(-> $result)? { $($body)* })+
    };
}

/// Channels that are converted together.
const GROUP: usize = 64;

/// A table in registers: its low bytes, then its high ones, and which codes are negated where they are negative.
struct Tables {
    halves: [__m512i; 4],
    negated: u64,
}

avx512_functions! {
    #[inline]
    fn tables(table: &Table) -> Tables {
        let Table { low, high, .. } = table;
        Tables {
            // SAFETY: each half of a table is 64 bytes.
            halves: [&low[..64], &low[64..], &high[..64], &high[64..]]
                .map(|half| unsafe { _mm512_loadu_si512(half.as_ptr().cast()) }),
            negated: if table.twos_complement { u64::MAX } else { 0 },
        }
    }

    /// 64 codes as bf16: of each 128 bits the first 8 codes, and the last 8.
    #[inline]
    fn convert(tables: &Tables, codes: __m512i) -> [__m512i; 2] {
        let magnitudes = _mm512_mask_abs_epi8(codes, tables.negated, codes);
        let low = _mm512_permutex2var_epi8(tables.halves[0], magnitudes, tables.halves[1]);
        let high = _mm512_permutex2var_epi8(tables.halves[2], magnitudes, tables.halves[3]);
        // high | codes & 0x80
        let high = _mm512_ternarylogic_epi32::<0xf8>(high, codes, _mm512_set1_epi8(-128));
        [_mm512_unpacklo_epi8(low, high), _mm512_unpackhi_epi8(low, high)]
    }

    /// The codes of a group of channels of a row, zeros behind the last.
    #[inline]
    fn load(row: &[u8], group: usize) -> __m512i {
        let codes = row.get(group * GROUP..).unwrap_or(&[]);
        let count = codes.len().min(GROUP);
        let mask = if count == GROUP { u64::MAX } else { (1 << count) - 1 };
        // SAFETY: the mask leaves out what lies beyond the row.
        unsafe { _mm512_maskz_loadu_epi8(mask, codes.as_ptr().cast()) }
    }

    #[inline]
    fn store(to: &mut [u16], values: __m512i) {
        let to = &mut to[..GROUP / 2];
        // SAFETY: these are 64 bytes.
        unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), values) }
    }

    /// Codes so ordered that `convert` gives the first 32, and the last 32.
    #[inline]
    fn in_halves(codes: __m512i) -> __m512i {
        _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7), codes)
    }

    #[inline]
    fn add_squares(sum: __m512, bf16: __m512i) -> __m512 {
        // SAFETY: both types are 512 bits of anything.
        let bf16: __m512bh = unsafe { std::mem::transmute(bf16) };
        _mm512_dpbf16_ps(sum, bf16, bf16)
    }

    fn pack_queries(rows: Rows, steps: usize, packed: &mut [u16], norms: &mut [f32]) {
        let tables = tables(Table::of(rows.codes.format));
        let padded = rows.codes.rows.next_multiple_of(STRIP);
        assert!(packed.len() >= padded * steps * BLOCK && norms.len() >= rows.codes.rows, "the packed rows have too little room");
        for row in 0..padded {
            let codes = rows.row(row);
            let mut squares = _mm512_setzero_ps();
            for group in 0..steps.div_ceil(2) {
                let halves = convert(&tables, in_halves(load(codes, group)));
                for (step, half) in (2 * group..steps).zip(halves) {
                    squares = add_squares(squares, half);
                    store(&mut packed[(row / 16 * steps + step) * TILE + row % 16 * BLOCK..], half);
                }
            }
            if row < rows.codes.rows {
                norms[row] = _mm512_reduce_add_ps(squares);
            }
        }
    }

    /// Transposes pairs of codes of 8 rows within each 128 bits: result w holds pair w of every row.
    #[inline]
    fn transpose_pairs(rows: [__m512i; 8]) -> [__m512i; 8] {
        let [mut pairs, mut quads, mut result] = [rows; 3];
        for i in 0..4 {
            pairs[2 * i] = _mm512_unpacklo_epi16(rows[2 * i], rows[2 * i + 1]);
            pairs[2 * i + 1] = _mm512_unpackhi_epi16(rows[2 * i], rows[2 * i + 1]);
        }
        for i in 0..2 {
            for j in 0..2 {
                quads[4 * i + 2 * j] = _mm512_unpacklo_epi32(pairs[4 * i + j], pairs[4 * i + 2 + j]);
                quads[4 * i + 2 * j + 1] = _mm512_unpackhi_epi32(pairs[4 * i + j], pairs[4 * i + 2 + j]);
            }
        }
        for j in 0..4 {
            result[2 * j] = _mm512_unpacklo_epi64(quads[j], quads[4 + j]);
            result[2 * j + 1] = _mm512_unpackhi_epi64(quads[j], quads[4 + j]);
        }
        result
    }

    /// Transposes 4×4 blocks of 128 bits.
    #[inline]
    fn transpose_blocks(rows: [__m512i; 4]) -> [__m512i; 4] {
        let [a, b, c, d] = rows;
        let (ab_low, ab_high) = (_mm512_shuffle_i32x4::<0x44>(a, b), _mm512_shuffle_i32x4::<0xee>(a, b));
        let (cd_low, cd_high) = (_mm512_shuffle_i32x4::<0x44>(c, d), _mm512_shuffle_i32x4::<0xee>(c, d));
        [
            _mm512_shuffle_i32x4::<0x88>(ab_low, cd_low),
            _mm512_shuffle_i32x4::<0xdd>(ab_low, cd_low),
            _mm512_shuffle_i32x4::<0x88>(ab_high, cd_high),
            _mm512_shuffle_i32x4::<0xdd>(ab_high, cd_high),
        ]
    }

    fn pack_keys(rows: Rows, steps: usize, scales: &[f32], packed: &mut [u16]) -> f32 {
        let tables = tables(Table::of(rows.codes.format));
        assert!(rows.codes.rows <= 16 && packed.len() >= steps * TILE, "the packed keys have too little room");
        // Four sums, so that none waits long for the one before.
        let mut squares = [_mm512_setzero_ps(); 4];
        for group in 0..steps.div_ceil(2) {
            let half = |first: usize| {
                let mut codes = [_mm512_setzero_si512(); 8];
                for (row, codes) in codes.iter_mut().enumerate() {
                    *codes = in_halves(load(rows.row(first + row), group));
                }
                transpose_pairs(codes)
            };
            let (first, last) = (half(0), half(8));
            for pair in 0..8 {
                let step = 2 * group + pair / 4;
                if step >= steps {
                    break;
                }
                let ([a, b], [c, d]) = (convert(&tables, first[pair]), convert(&tables, last[pair]));
                for (quad, keys) in transpose_blocks([a, b, c, d]).into_iter().enumerate() {
                    squares[quad] = add_squares(squares[quad], keys);
                    store(&mut packed[step * TILE + (4 * quad + pair % 4) * BLOCK..], keys);
                }
            }
        }
        let [a, b, c, d] = squares;
        let mut squares = _mm512_add_ps(_mm512_add_ps(a, b), _mm512_add_ps(c, d));
        if !scales.is_empty() {
            let mut of_rows = [0.0; 16];
            let count = scales.len().min(16);
            of_rows[..count].copy_from_slice(&scales[..count]);
            // SAFETY: there are sixteen.
            let of_rows = unsafe { _mm512_loadu_ps(of_rows.as_ptr()) };
            squares = _mm512_mul_ps(_mm512_mul_ps(squares, of_rows), of_rows);
        }
        _mm512_reduce_max_ps(squares)
    }

    fn pack_values(rows: Rows, tiles: usize, stride: usize, packed: &mut [u16]) {
        let tables = tables(Table::of(rows.codes.format));
        // Words so ordered that unpacking and converting leave channels in their order.
        let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
        for row in 0..16 {
            for group in 0..tiles.div_ceil(4) {
                let load = |row| _mm512_permutexvar_epi32(order, load(rows.row(row), group));
                let (first, second) = (load(row), load(row + 16));
                let [a, b] = convert(&tables, _mm512_unpacklo_epi8(first, second));
                let [c, d] = convert(&tables, _mm512_unpackhi_epi8(first, second));
                for (tile, channels) in (4 * group..tiles).zip([a, b, c, d]) {
                    store(&mut packed[tile * stride + row * BLOCK..], channels);
                }
            }
        }
    }

    /// The scores of a row and block as two registers of 16 keys, with their keys' scales if there are any.
    ///
    /// `Chunk::check` found scores for every row and scales for every key.
    #[inline]
    fn scores_of<const SCALED: bool>(chunk: &Chunk, row: usize, block: usize) -> [__m512; 2] {
        [0, 16].map(|first| {
            // SAFETY: as the function says.
            let score = unsafe { _mm512_loadu_ps(chunk.scores.as_ptr().add(block * BLOCK_SCORES + row * BLOCK + first)) };
            scaled::<SCALED>(score, chunk.key_scales, block * BLOCK + first)
        })
    }

    /// Times the scales of 16 keys.
    #[inline]
    fn scaled<const SCALED: bool>(values: __m512, scales: &[f32], first: usize) -> __m512 {
        if !SCALED || scales.is_empty() {
            return values;
        }
        // SAFETY: `Chunk::check` found a scale for every key.
        _mm512_mul_ps(values, unsafe { _mm512_loadu_ps(scales.as_ptr().add(first)) })
    }

    fn scale(chunk: &mut Chunk) {
        chunk.check(STRIP);
        for row in 0..chunk.visible.len() {
            let scale = _mm512_set1_ps(chunk.scales[row]);
            for block in 0..chunk.blocks {
                let scores = scores_of::<true>(chunk, row, block).map(|scores| _mm512_mul_ps(scores, scale));
                let to = &mut chunk.scores[block * BLOCK_SCORES + row * BLOCK..][..BLOCK];
                for (to, scores) in to.chunks_exact_mut(BLOCK / 2).zip(scores) {
                    // SAFETY: these are 64 bytes.
                    unsafe { _mm512_storeu_ps(to.as_mut_ptr(), scores) }
                }
            }
        }
    }

    fn raise_maxima(chunk: &Chunk, maxima: &mut [f32]) {
        chunk.check(maxima.len());
        for (row, max) in maxima[..chunk.visible.len()].iter_mut().enumerate() {
            let mut largest = _mm512_set1_ps(f32::NEG_INFINITY);
            for block in 0..chunk.blocks {
                let seen = chunk.seen(row, block);
                for (scores, seen) in scores_of::<true>(chunk, row, block).into_iter().zip([seen, seen >> 16]) {
                    largest = _mm512_mask_max_ps(largest, seen as u16, largest, scores);
                }
            }
            *max = max.max(_mm512_reduce_max_ps(largest) * chunk.scales[row]);
        }
    }

    /// 2^exponent of each lane by a polynomial on the fraction.
    #[inline]
    fn power_of_two<const PRECISE: bool>(exponent: __m512) -> __m512 {
        let fraction = _mm512_reduce_ps::<0x01>(exponent);
        let coefficients: &[f32] = if PRECISE { &DEGREE_5 } else { &DEGREE_3 };
        let mut value = _mm512_set1_ps(coefficients[0]);
        for coefficient in &coefficients[1..] {
            value = _mm512_fmadd_ps(value, fraction, _mm512_set1_ps(*coefficient));
        }
        // The instruction takes the whole part of the exponent by itself.
        _mm512_scalef_ps(value, exponent)
    }

    /// The upper halves of two registers of f32, side by side.
    #[inline]
    fn pair(first: __m512i, second: __m512i) -> __m512i {
        _mm512_mask_blend_epi16(0xaaaa_aaaa, _mm512_srli_epi32::<16>(first), second)
    }

    fn weigh(chunk: &Chunk, weights: &mut Weights) {
        weights.check(chunk);
        let all_seen = chunk.visible.iter().all(|keys| *keys == (0..chunk.blocks * BLOCK));
        let plain = all_seen && chunk.key_scales.is_empty() && chunk.value_scales.is_empty();
        match (weights.remainders.is_empty(), plain) {
            (true, true) => weigh_as::<false, false>(chunk, weights),
            (true, false) => weigh_as::<false, true>(chunk, weights),
            (false, true) => weigh_as::<true, false>(chunk, weights),
            (false, false) => weigh_as::<true, true>(chunk, weights),
        }
    }

    /// In two parts if `PRECISE`; `SPECIAL` where keys are masked or have scales.
    #[inline]
    fn weigh_as<const PRECISE: bool, const SPECIAL: bool>(chunk: &Chunk, weights: &mut Weights) {
        let (top, half) = (_mm512_set1_epi32(0xffff_0000_u32.cast_signed()), _mm512_set1_epi32(0x8000));
        let truncated = |value| _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(value), top));
        let rounded = |value| _mm512_add_epi32(_mm512_castps_si512(value), half);
        for row in 0..chunk.visible.len() {
            let (scale, reference) = (_mm512_set1_ps(chunk.scales[row]), _mm512_set1_ps(weights.references[row]));
            let mut sum = _mm512_setzero_ps();
            for block in 0..chunk.blocks {
                let seen = if SPECIAL { chunk.seen(row, block) } else { u32::MAX };
                let scores = scores_of::<SPECIAL>(chunk, row, block);
                let mut pair_of = [_mm512_setzero_ps(); 2];
                for ((weight, score), seen) in pair_of.iter_mut().zip(scores).zip([seen, seen >> 16]) {
                    let power = power_of_two::<PRECISE>(_mm512_fmsub_ps(score, scale, reference));
                    *weight = if SPECIAL { _mm512_maskz_mov_ps(seen as u16, power) } else { power };
                }
                let mut of_values = pair_of;
                for (weight, first) in of_values.iter_mut().zip([0, 16]) {
                    *weight = scaled::<SPECIAL>(*weight, chunk.value_scales, block * BLOCK + first);
                }
                let [first, second] = of_values;
                let is_scaled = SPECIAL && !chunk.value_scales.is_empty();
                let summed = if PRECISE || is_scaled { pair_of } else { [truncated(first), truncated(second)] };
                sum = _mm512_add_ps(sum, _mm512_add_ps(summed[0], summed[1]));
                let place = weight_place(row) + block * TILE;
                let packed = if !PRECISE && is_scaled {
                    pair(rounded(first), rounded(second))
                } else {
                    pair(_mm512_castps_si512(first), _mm512_castps_si512(second))
                };
                store(&mut weights.weights[place..], packed);
                if PRECISE {
                    let [first, second] = [first, second].map(|weight| rounded(_mm512_sub_ps(weight, truncated(weight))));
                    store(&mut weights.remainders[place..], pair(first, second));
                }
            }
            weights.sums[row] += total(sum);
        }
    }

    /// The sum of all lanes, halves to halves.
    #[inline]
    fn total(lanes: __m512) -> f32 {
        let sum = _mm256_add_ps(_mm512_castps512_ps256(lanes), _mm512_extractf32x8_ps::<1>(lanes));
        let sum = _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps::<1>(sum));
        let sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
        _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)))
    }

    fn rescale(output: &mut [f32], width: usize, factors: &[f32]) {
        for (row, factor) in output.chunks_exact_mut(width).zip(factors) {
            row.iter_mut().for_each(|value| *value *= factor);
        }
    }
}
