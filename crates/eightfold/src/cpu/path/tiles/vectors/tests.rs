use super::*;
use crate::cpu::source::Apart;
use crate::fp8;
use crate::tensor::Fp8Format;

/// Reproducible noise in `0..range`.
fn noise(count: usize, range: u64, seed: u64) -> impl Iterator<Item = u64> {
    let mut state = seed | 1;
    (0..count).map(move |_| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) % range
    })
}

fn floats(count: usize, seed: u64) -> Vec<f32> {
    noise(count, 2001, seed).map(|value| value as f32 / 1000.0 - 1.0).collect()
}

/// Finite codes.
fn codes(count: usize, format: Fp8Format, seed: u64) -> Vec<u8> {
    noise(count, 256, seed).map(|code| if format.is_non_finite(code as u8) { 0 } else { code as u8 }).collect()
}

/// Runs the same steps of every implementation that this CPU has.
macro_rules! for_all {
    ($vectors:ident, $name:ident => $body:block) => {{
        let mut results = Vec::new();
        {
            type $vectors = Portable;
            let $name = "portable";
            results.push(($name, $body));
        }
        #[cfg(target_arch = "x86_64")]
        if avx512_is_here() {
            type $vectors = Avx512;
            let $name = "avx512";
            results.push(($name, $body));
        }
        let (_, first) = &results[0];
        for (name, result) in &results[1..] {
            assert!(result == first, "{name} differs");
        }
        results.swap_remove(0).1
    }};
}

const FORMATS: [Fp8Format; 3] = [Fp8Format::E4m3, Fp8Format::E5m2, Fp8Format::Int8];

#[test]
fn every_code_is_exact_in_bf16() {
    for format in FORMATS {
        let codes: Vec<u8> = (0..=255).filter(|code| !format.is_non_finite(*code)).collect();
        let rows = Codes { bytes: &codes, stride: 0, rows: 1, format, factors: &[], apart: Apart::default() };
        let steps = codes.len().div_ceil(BLOCK);
        let mut packed = vec![1; STRIP * steps * BLOCK];
        // SAFETY: the portable one asks for nothing.
        unsafe { Portable::pack_queries(Rows { codes: rows, channels: codes.len() }, steps, &mut packed, &mut [0.0]) };
        for (channel, code) in codes.iter().enumerate() {
            let bf16 = packed[channel / BLOCK * TILE + channel % BLOCK];
            assert_eq!(f32::from_bits(u32::from(bf16) << 16), fp8::decode(format, *code), "{format}, {code:#04x}");
        }
    }
}

#[test]
fn packing_puts_every_value_in_its_place() {
    for (channels, count, format) in [
        (64usize, 32, FORMATS[0]),
        (8, 3, FORMATS[1]),
        (40, 17, FORMATS[0]),
        (136, 1, FORMATS[1]),
        (256, 32, FORMATS[0]),
    ] {
        let (stride, steps, tiles) = (channels + 5, channels.div_ceil(BLOCK), channels.div_ceil(16));
        let bytes = codes(count * stride, format, 3);
        // The last row ends where the slice does: nothing may be read behind it.
        let bytes = bytes[..(count - 1) * stride + channels].to_vec();
        let rows = |count: usize| Rows {
            codes: Codes { bytes: &bytes, stride, rows: count, format, factors: &[], apart: Apart::default() },
            channels,
        };
        let value = |row: usize, channel: usize| {
            if row < count && channel < channels { fp8::decode(format, bytes[row * stride + channel]) } else { 0.0 }
        };
        let float = |bf16: u16| f32::from_bits(u32::from(bf16) << 16);

        let queries = for_all!(V, name => {
            let (mut packed, mut norms) = (vec![1; STRIP * steps * BLOCK], vec![0.0; count]);
            // SAFETY: the CPU has it.
            unsafe { V::pack_queries(rows(count), steps, &mut packed, &mut norms) };
            for (row, norm) in norms.iter().enumerate() {
                let expected: f64 = (0..channels).map(|channel| f64::from(value(row, channel)).powi(2)).sum();
                assert!((f64::from(*norm) / expected - 1.0).abs() < 1e-5, "{name}: the norm of row {row}");
            }
            packed
        });
        for row in 0..STRIP {
            for channel in 0..steps * BLOCK {
                let place = (row / 16 * steps + channel / BLOCK) * TILE + row % 16 * BLOCK + channel % BLOCK;
                assert_eq!(float(queries[place]), value(row, channel), "row {row}, channel {channel} of Q");
            }
        }

        let count_of_keys = count.min(16);
        let scales: Vec<f32> = (0..count_of_keys).map(|key| 1.0 / (1 + key) as f32).collect();
        let keys = for_all!(V, name => {
            let mut packed = vec![1; steps * TILE];
            for scales in [&[][..], &scales] {
                // SAFETY: the CPU has it.
                let norm = unsafe { V::pack_keys(rows(count_of_keys), steps, scales, &mut packed) };
                let square = |key, channel| {
                    (f64::from(value(key, channel)) * f64::from(*scales.get(key).unwrap_or(&1.0))).powi(2)
                };
                let norms = (0..count_of_keys).map(|key| (0..channels).map(|channel| square(key, channel)).sum::<f64>());
                let expected = norms.fold(0.0, f64::max);
                assert!((f64::from(norm) / expected - 1.0).abs() < 1e-5, "{name}: the largest norm of K");
            }
            packed
        });
        for key in 0..16 {
            for channel in 0..steps * BLOCK {
                let expected = if key < count_of_keys { value(key, channel) } else { 0.0 };
                assert_eq!(float(keys[channel / 2 * BLOCK + 2 * key + channel % 2]), expected, "key {key}, {channel}");
            }
        }

        let values = for_all!(V, _name => {
            let mut packed = vec![1; tiles * TILE];
            // SAFETY: the CPU has it.
            unsafe { V::pack_values(rows(count), tiles, TILE, &mut packed) };
            packed
        });
        for key in 0..BLOCK {
            for channel in 0..tiles * 16 {
                let place = channel / 16 * TILE + key % 16 * BLOCK + channel % 16 * 2 + key / 16;
                assert_eq!(float(values[place]), value(key, channel), "key {key}, channel {channel} of V");
            }
        }
    }
}

/// Weights of made-up scores: the tiles, the remainders, the sums.
type Weighed = (Vec<u16>, Vec<u16>, Vec<u32>);

#[test]
fn weights_are_powers_of_two_and_what_is_not_seen_weighs_nothing() {
    const ROWS: usize = 19;
    let scores = floats(BLOCKS * BLOCK_SCORES, 5);
    let scales: Vec<f32> = (0..ROWS).map(|row| 0.3 * (row * row) as f32 + 0.5).collect();
    let references: Vec<f32> = (0..ROWS).map(|row| row as f32 - 7.0).collect();
    let of_keys: Vec<f32> = noise(BLOCKS * BLOCK, 1000, 6).map(|value| value as f32 / 1000.0).collect();
    let all: Vec<Range<usize>> = (0..ROWS).map(|_| 0..96).collect();
    let some: Vec<Range<usize>> = (0..ROWS).map(|row| row..(5 * row + 3).min(96)).collect();
    for (visible, key_scales, value_scales) in [
        (&all, &[][..], &[][..]),
        (&some, &[], &[]),
        (&all, &of_keys, &[]),
        (&some, &of_keys, &of_keys),
        (&all, &[], &of_keys),
    ] {
        let chunk =
            Chunk { scores: &mut scores.clone(), blocks: 3, scales: &scales, visible, key_scales, value_scales };
        for precise in [false, true] {
            let (weights, remainders, sums): Weighed = for_all!(V, _name => {
                let mut weights = vec![0; 2 * BLOCKS * TILE];
                let mut remainders = if precise { weights.clone() } else { Vec::new() };
                let mut sums = vec![0.25; ROWS];
                let receive = &mut Weights {
                    references: &references,
                    weights: &mut weights,
                    remainders: &mut remainders,
                    sums: &mut sums,
                };
                // SAFETY: the CPU has it.
                unsafe { V::weigh(&chunk, receive) };
                (weights, remainders, sums.iter().map(|sum| sum.to_bits()).collect())
            });
            let float = |bf16: u16| f64::from(f32::from_bits(u32::from(bf16) << 16));
            for row in 0..ROWS {
                let (mut exact_sum, mut packed_sum) = (0.25, 0.25);
                for key in 0..96 {
                    let place = weight_place(row) + key / BLOCK * TILE + key % 16 * 2 + key % BLOCK / 16;
                    let mut weight = float(weights[place]);
                    if precise {
                        weight += float(remainders[place]);
                    }
                    if !visible[row].contains(&key) {
                        assert_eq!(weight, 0.0, "row {row}, key {key} is not seen");
                        continue;
                    }
                    let score = scores[key / BLOCK * BLOCK_SCORES + row * BLOCK + key % BLOCK];
                    let score = score * key_scales.get(key).unwrap_or(&1.0);
                    let exponent = f64::from(score) * f64::from(scales[row]) - f64::from(references[row]);
                    let expected = exponent.exp2() * f64::from(*value_scales.get(key).unwrap_or(&1.0));
                    // The exponent itself is rounded to f32.
                    let tolerance = if precise { 2e-5 } else { 8.1e-3 } + 1e-7 * exponent.abs();
                    assert!((weight - expected).abs() <= tolerance * expected + 1e-36, "2^{exponent}: {weight:e}");
                    exact_sum += exponent.exp2();
                    packed_sum += weight;
                }
                let sum = f64::from(f32::from_bits(sums[row]));
                let expected = if precise || !value_scales.is_empty() { exact_sum } else { packed_sum };
                let tolerance = if precise || value_scales.is_empty() { 2e-6 } else { 2e-4 };
                let exponents = f64::from(scales[row]) + f64::from(references[row]).abs();
                assert!((sum / expected - 1.0).abs() < tolerance + 1e-7 * exponents, "row {row}: {sum} for {expected}");
            }
        }
        let maxima = for_all!(V, _name => {
            let mut maxima = vec![f32::NEG_INFINITY; ROWS];
            // SAFETY: the CPU has it.
            unsafe { V::raise_maxima(&chunk, &mut maxima) };
            maxima
        });
        for (row, max) in maxima.iter().enumerate() {
            let of_key = |key: usize| {
                scores[key / BLOCK * BLOCK_SCORES + row * BLOCK + key % BLOCK] * key_scales.get(key).unwrap_or(&1.0)
            };
            let expected = visible[row].clone().map(of_key).fold(f32::NEG_INFINITY, f32::max) * scales[row];
            assert_eq!(*max, expected, "row {row}");
        }
        let scaled = for_all!(V, _name => {
            let mut scores = scores.clone();
            let chunk = &mut Chunk { scores: &mut scores, blocks: 3, scales: &scales, visible, key_scales, value_scales };
            // SAFETY: the CPU has it.
            unsafe { V::scale(chunk) };
            scores
        });
        for (index, (scaled, score)) in scaled.iter().zip(&scores).enumerate() {
            let (block, row, key) = (index / BLOCK_SCORES, index / BLOCK % STRIP, index % BLOCK);
            let is_scaled = block < 3 && row < ROWS;
            let factor = key_scales.get(block * BLOCK + key).unwrap_or(&1.0);
            let expected = if is_scaled { score * factor * scales[row] } else { *score };
            assert_eq!(*scaled, expected, "block {block}, row {row}, key {key}");
        }
    }
}

#[test]
fn the_polynomials_are_as_exact_as_they_say() {
    for (precise, limit) in [(false, 7.6e-5), (true, 2e-7)] {
        let worst = (0..4096)
            .map(|step| {
                let exponent = step as f32 / 4096.0;
                let mut scores = vec![exponent; BLOCK_SCORES];
                let (mut weights, mut sums) = (vec![0; 2 * BLOCKS * TILE], [0.0]);
                let mut remainders = if precise { weights.clone() } else { Vec::new() };
                let visible = std::slice::from_ref(&(0..1));
                let chunk = Chunk {
                    scores: &mut scores,
                    blocks: 1,
                    scales: &[1.0],
                    visible,

                    key_scales: &[],
                    // A value's scale of 1 leaves the sum as it is before rounding.
                    value_scales: &[1.0; BLOCK],
                };
                let receive = &mut Weights {
                    references: &[0.0],
                    weights: &mut weights,
                    remainders: &mut remainders,
                    sums: &mut sums,
                };
                // SAFETY: the portable one asks for nothing.
                unsafe { Portable::weigh(&chunk, receive) };
                (f64::from(sums[0]) / f64::from(exponent).exp2() - 1.0).abs()
            })
            .fold(0.0, f64::max);
        assert!(worst < limit, "{worst:e}");
    }
}
