//! Every micro-kernel of every instruction set that this machine has, against plain arithmetic.

use super::*;
use crate::cpu::lanes::LANES;
use crate::fp8;
use crate::tensor::Fp8Format;

/// The tables that this CPU can run, by name. A CPU with VNNI also runs the AVX-512 table without it.
fn tables() -> Vec<(&'static str, Kernels)> {
    #[allow(unused_mut)]
    let mut tables = vec![("portable", portable::KERNELS)];
    #[cfg(target_arch = "x86_64")]
    {
        let features = isa::Features::detect();
        if features.avx2 {
            tables.push(("avx2", avx2::KERNELS));
        }
        if features.avx512 {
            tables.push(("avx512", avx512::KERNELS));
        }
        if features.avx512_vnni {
            tables.push(("avx512 vnni", avx512_vnni::KERNELS));
        }
    }
    tables
}

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

/// Pairs of i16 in −3000..3000.
fn pairs(count: usize, seed: u64) -> Vec<i32> {
    let halves: Vec<i32> = noise(2 * count, 6000, seed).map(|value| value as i32 - 3000).collect();
    halves.chunks_exact(2).map(|pair| (pair[0] & 0xffff) | (pair[1] << 16)).collect()
}

fn dot_pairs(a: i32, b: i32) -> i32 {
    i32::from(a as i16) * i32::from(b as i16) + (a >> 16) * (b >> 16)
}

/// Visible keys of rows under a causal edge: every panel count, partial panels, and rows that see nothing.
const VISIBLE: [usize; 21] = [0, 0, 1, 2, 7, 15, 16, 17, 20, 31, 32, 33, 40, 47, 48, 49, 55, 60, 63, 64, 64];
const STRIDE: usize = 64;

#[test]
fn codes_decode_exactly() {
    for (name, kernels) in tables() {
        for format in [Fp8Format::E4m3, Fp8Format::E5m2] {
            let codes: Vec<u8> = (0..=255).map(|code| if format.is_non_finite(code) { 0 } else { code }).collect();
            let mut values = vec![f32::NAN; 256];
            let rows = Codes { bytes: &codes, stride: 32, rows: 8, format, factors: &[] };
            kernels.pack_queries_float(&rows, 32, &mut values);
            for (code, value) in codes.iter().zip(&values) {
                assert_eq!(*value, fp8::decode(format, *code), "{name}, {format}, code {code:#04x}");
            }
        }
    }
}

#[test]
fn scores_are_dot_products_where_rows_see_keys() {
    const DEPTH: usize = 24;
    let rows = VISIBLE.len();
    let (queries, keys) = (floats(rows * DEPTH, 1), floats(4 * DEPTH * LANES, 2));
    let (int_queries, int_keys) = (pairs(rows * DEPTH, 3), pairs(4 * DEPTH * LANES, 4));
    for (name, kernels) in tables() {
        let mut scores = vec![f32::NAN; rows * STRIDE];
        kernels.scores_float(&queries, &keys, DEPTH, &VISIBLE, &mut scores, STRIDE);
        let mut int_scores = vec![i32::MIN; rows * STRIDE];
        kernels.scores_int(&int_queries, &int_keys, DEPTH, &VISIBLE, &mut int_scores, STRIDE);
        for (row, &visible) in VISIBLE.iter().enumerate() {
            for key in 0..visible {
                let at = |channel: usize| (key / LANES * DEPTH + channel) * LANES + key % LANES;
                let exact: f64 = (0..DEPTH)
                    .map(|channel| f64::from(queries[row * DEPTH + channel]) * f64::from(keys[at(channel)]))
                    .sum();
                let score = f64::from(scores[row * STRIDE + key]);
                assert!((score - exact).abs() < 1e-5, "{name}: row {row}, key {key}: {score} for {exact}");
                let int: i32 = (0..DEPTH)
                    .map(|channel| dot_pairs(int_queries[row * DEPTH + channel], int_keys[at(channel)]))
                    .sum();
                assert_eq!(int_scores[row * STRIDE + key], int, "{name}: row {row}, key {key}");
            }
        }
    }
}

#[test]
fn values_are_weighted_sums_over_visible_keys() {
    const CHUNKS: usize = 3;
    let (rows, width) = (VISIBLE.len(), CHUNKS * LANES);
    let alpha = floats(rows, 5);
    let beta = floats(rows, 6);
    let before = floats(rows * width, 7);
    let units: Vec<f32> = (0..width).map(|channel| 1.0 / (1 << (channel % 5)) as f32).collect();
    let (mut weights, values) = (floats(rows * STRIDE, 8), floats(width * STRIDE, 9));
    let (mut int_weights, int_values) = (pairs(rows * STRIDE / 2, 10), pairs(width * STRIDE / 2, 11));
    // The products run to the end of the row group, so weights beyond what a row sees are zero, as softmax leaves them.
    for (row, &visible) in VISIBLE.iter().enumerate() {
        weights[row * STRIDE + visible..(row + 1) * STRIDE].fill(0.0);
        int_weights[(row * STRIDE + visible.next_multiple_of(2)) / 2..(row + 1) * STRIDE / 2].fill(0);
        if visible % 2 == 1 {
            int_weights[(row * STRIDE + visible) / 2] &= 0xffff;
        }
    }
    for (name, kernels) in tables() {
        let mut output = before.clone();
        let float = Weights { words: &weights, stride: STRIDE, alpha: &alpha, beta: &beta };
        kernels.values_float(&float, &values, STRIDE * LANES, &units, &VISIBLE, &mut output);
        let mut int_output = before.clone();
        let int = Weights { words: &int_weights, stride: STRIDE / 2, alpha: &alpha, beta: &beta };
        kernels.values_int(&int, &int_values, STRIDE * LANES / 2, &units, &VISIBLE, &mut int_output);
        for (row, &visible) in VISIBLE.iter().enumerate() {
            for (channel, unit) in units.iter().enumerate() {
                let index = row * width + channel;
                // A row group that sees nothing is left alone; one that sees something is decayed by alpha, and
                // rows in it that see nothing have alpha 1 in practice.
                if visible == 0 {
                    continue;
                }
                let chunk = channel / LANES * STRIDE * LANES + channel % LANES;
                let sum: f64 = (0..visible)
                    .map(|key| f64::from(weights[row * STRIDE + key]) * f64::from(values[chunk + key * LANES]))
                    .sum();
                let exact = f64::from(alpha[row]) * f64::from(before[index]) + sum;
                let error = (f64::from(output[index]) - exact).abs();
                assert!(error < 1e-4, "{name}: row {row}, channel {channel}: off by {error}");

                let chunk = channel / LANES * STRIDE * LANES / 2 + channel % LANES;
                let sum: i32 = (0..visible.div_ceil(2))
                    .map(|pair| dot_pairs(int_weights[row * STRIDE / 2 + pair], int_values[chunk + pair * LANES]))
                    .sum();
                let scaled = f64::from(sum) * f64::from(beta[row]) * f64::from(*unit);
                let exact = f64::from(alpha[row]) * f64::from(before[index]) + scaled;
                let error = (f64::from(int_output[index]) - exact).abs();
                assert!(error <= 1e-6 * scaled.abs() + 1e-6, "{name}: row {row}, channel {channel}: off by {error}");
            }
        }
    }
}

#[test]
fn softmax_weights_are_powers_of_two_and_masked_ones_are_zero() {
    let rows = VISIBLE.len();
    // Scores from 0 down to −140, where weights leave the range of normal numbers.
    let original: Vec<f32> = noise(rows * STRIDE, 14000, 12).map(|value| value as f32 / -100.0).collect();
    for (name, kernels) in tables() {
        for exact in [false, true] {
            let mut scores = original.clone();
            let mut states = vec![RowState { max: -3.0, sum: 2.0 }; rows];
            let mut alpha = vec![f32::NAN; rows];
            kernels.softmax_float(&mut FloatTile {
                scores: &mut scores,
                stride: STRIDE,
                visible: &VISIBLE,
                states: &mut states,
                alpha: &mut alpha,
                exact,
            });
            for (row, &visible) in VISIBLE.iter().enumerate() {
                let original = &original[row * STRIDE..][..visible];
                let max = original.iter().copied().fold(-3.0, f32::max);
                assert_eq!(states[row].max, max, "{name}: row {row}");
                assert!((alpha[row] - (-3.0 - max).exp2()).abs() < 1e-6, "{name}: row {row}");
                let mut sum = 2.0 * (f64::from(-3.0 - max)).exp2();
                for (key, score) in original.iter().enumerate() {
                    let weight = f64::from(scores[row * STRIDE + key]);
                    let expected = (f64::from(*score) - f64::from(max)).exp2();
                    sum += expected;
                    // The difference of the scores is itself rounded to f32.
                    let tolerance = (4e-7 + 1e-7 * f64::from(max - score)) * expected + 2f64.powi(-125);
                    assert!((weight - expected).abs() <= tolerance, "{name}: 2^{} gave {weight}", score - max);
                }
                assert!((f64::from(states[row].sum) - sum).abs() < 1e-6 * sum, "{name}: row {row}");
                let padding = &scores[row * STRIDE + visible..row * STRIDE + visible.next_multiple_of(LANES)];
                assert!(padding.iter().all(|weight| *weight == 0.0), "{name}: row {row} is not padded with zeros");
            }
        }
    }
}

/// Runs the integer softmax on one row; gives its weights as reals, its state, and whether it asked for refinement.
fn int_softmax(kernels: &Kernels, scores: &[i32], unit: f32) -> (Vec<f64>, RowState, bool) {
    let stride = scores.len();
    let mut weights = vec![-1; stride / 2];
    let (mut alpha, mut beta, mut coarse) = ([f32::NAN], [f32::NAN], Vec::new());
    let mut states = [RowState::EMPTY];
    kernels.softmax_int(&mut IntTile {
        scores,
        stride,
        units: &[unit],
        key_scales: &[],
        value_scales: &[],
        visible: &[stride],
        states: &mut states,
        weights: &mut weights,
        alpha: &mut alpha,
        beta: &mut beta,
        coarse: &mut coarse,
        exact: false,
    });
    let halves = weights.iter().flat_map(|pair| [*pair as i16, (pair >> 16) as i16]);
    let reals = halves.map(|half| f64::from(half) * f64::from(beta[0])).collect();
    assert_eq!(alpha, [0.0], "nothing was seen before");
    (reals, states[0], !coarse.is_empty())
}

#[test]
fn integer_weights_round_powers_of_two() {
    let scores: Vec<i32> = noise(256, 400_000, 13).map(|score| score as i32 - 300_000).collect();
    let unit = 1.0 / 50_000.0;
    for (name, kernels) in tables() {
        let (weights, state, _) = int_softmax(&kernels, &scores, unit);
        let max = *scores.iter().max().unwrap();
        assert!((state.max - max as f32 * unit).abs() < 1e-5, "{name}");
        let sum: f64 = weights.iter().sum();
        for (score, weight) in scores.iter().zip(&weights) {
            let expected = (f64::from(score - max) * f64::from(unit)).exp2();
            // Half a step of 2^-14, and half of one of 2^-13 on top where the row's sum took a bit.
            let step = if sum < 32.0 { 2f64.powi(-14) } else { 2f64.powi(-13) };
            assert!((weight - expected).abs() < 0.75 * step + 1e-5, "{name}: {weight} for {expected}");
        }
        assert!((f64::from(state.sum) - sum).abs() < 1e-5 * sum, "{name}: the state's sum is that of the weights");
    }
}

#[test]
fn flat_rows_give_up_low_bits_so_that_sums_cannot_overflow() {
    for (name, kernels) in tables() {
        let (weights, state, refine) = int_softmax(&kernels, &[12345; 1024], 0.01);
        assert!(weights.iter().all(|weight| *weight == 1.0), "{name}: equal scores weigh 1 each, exactly");
        assert_eq!((state.sum, refine), (1024.0, false), "{name}");
    }
}

#[test]
fn rows_that_lose_their_small_weights_ask_for_a_second_limb() {
    let mut scores = vec![-16 << 10; 256];
    scores[0] = 0;
    for (name, kernels) in tables() {
        let (_, _, refine) = int_softmax(&kernels, &scores, 1.0 / 1024.0);
        assert!(refine, "{name}: 255 weights of 2^-16 are 0.4 % of the sum and all round to zero");
    }
}

#[test]
fn packing_keeps_every_value_in_its_place() {
    const WIDTH: usize = 48;
    let codes: Vec<u8> = noise(LANES * WIDTH, 256, 14).map(|code| (code as u8) & !0x08 & 0xbf).collect();
    let value = |row: usize, channel: usize| fp8::decode(Fp8Format::E4m3, codes[row * WIDTH + channel]);
    let factors: Vec<f32> = (0..WIDTH).map(|channel| 512.0 / (1 << (channel % 3)) as f32).collect();
    let integer = |row: usize, channel: usize| (value(row, channel) * factors[channel]).round_ties_even() as i32;
    let rows = Codes { bytes: &codes, stride: WIDTH, rows: LANES, format: Fp8Format::E4m3, factors: &[] };
    let half = |word: i32, second: bool| if second { word >> 16 } else { i32::from(word as i16) };
    for (name, kernels) in tables() {
        let mut panel = vec![f32::NAN; LANES * WIDTH];
        kernels.pack_keys_float(&rows, WIDTH, &mut panel);
        let mut chunks = vec![f32::NAN; LANES * WIDTH];
        kernels.pack_values_float(&rows, WIDTH, &mut chunks, LANES * LANES);
        let mut rounding = Rounding::default();
        let mut int_rows = vec![-1; LANES * WIDTH / 2];
        let mut int_panel = vec![-1; LANES * WIDTH / 2];
        let mut int_chunks = vec![-1; LANES * WIDTH / 2];
        rounding.reset(WIDTH);
        kernels.pack_queries_int(&rows, WIDTH, &factors, &mut rounding, &mut int_rows);
        let energy: f64 = (0..LANES).map(|row| f64::from(value(row, 5) * factors[5]).powi(2)).sum();
        assert!((f64::from(rounding.size[5]) / energy - 1.0).abs() < 1e-5, "{name}: the energy of channel 5");
        rounding.reset(WIDTH);
        kernels.pack_keys_int(&rows, WIDTH, &factors, &mut rounding, &mut int_panel);
        rounding.reset(WIDTH);
        kernels.pack_values_int(&rows, WIDTH, &factors, &mut rounding, &mut int_chunks, LANES * LANES / 2);
        for row in 0..LANES {
            for channel in 0..WIDTH {
                let place = format!("{name}: row {row}, channel {channel}");
                assert_eq!(panel[channel * LANES + row], value(row, channel), "{place}");
                let chunk = channel / LANES * LANES * LANES + channel % LANES;
                assert_eq!(chunks[chunk + row * LANES], value(row, channel), "{place}");
                let word = int_rows[(row * WIDTH + channel) / 2];
                assert_eq!(half(word, channel % 2 == 1), integer(row, channel), "{place}");
                let word = int_panel[channel / 2 * LANES + row];
                assert_eq!(half(word, channel % 2 == 1), integer(row, channel), "{place}");
                let word = int_chunks[channel / LANES * LANES * LANES / 2 + row / 2 * LANES + channel % LANES];
                assert_eq!(half(word, row % 2 == 1), integer(row, channel), "{place}");
            }
        }
    }
}

#[test]
fn the_scalar_baseline_computes_what_the_lanes_do() {
    const DEPTH: usize = 16;
    let rows = VISIBLE.len();
    let (queries, keys) = (floats(rows * DEPTH, 15), floats(4 * DEPTH * LANES, 16));
    let run = |kernels: &Kernels| {
        let mut scores = vec![0.0; rows * STRIDE];
        kernels.scores_float(&queries, &keys, DEPTH, &VISIBLE, &mut scores, STRIDE);
        let mut states = vec![RowState::EMPTY; rows];
        let mut alpha = vec![1.0; rows];
        kernels.softmax_float(&mut FloatTile {
            scores: &mut scores,
            stride: STRIDE,
            visible: &VISIBLE,
            states: &mut states,
            alpha: &mut alpha,
            exact: true,
        });
        let mut output = vec![0.0; rows * DEPTH];
        let weights = Weights { words: &scores, stride: STRIDE, alpha: &alpha, beta: &alpha };
        kernels.values_float(&weights, &keys, STRIDE * LANES, &[1.0; DEPTH], &VISIBLE, &mut output);
        output
    };
    for (plain, lanes) in run(&SCALAR).iter().zip(run(&portable::KERNELS)) {
        assert!((plain - lanes).abs() < 1e-5, "{plain} and {lanes}");
    }
}
