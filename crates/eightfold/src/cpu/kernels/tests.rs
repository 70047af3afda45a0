//! Every micro-kernel of every instruction set that this machine has, against plain arithmetic.

use super::product::Word;
use super::*;
use crate::cpu::source::{Apart, Codes};
use crate::fp8;
use crate::tensor::Fp8Format;

/// The vector instruction sets of this CPU, by name. A CPU with VNNI also has AVX-512 without it.
fn instruction_sets() -> Vec<(&'static str, InstructionSet)> {
    let levels = [("portable", Simd::Portable), ("neon", Simd::Neon), ("avx2", Simd::Avx2), ("avx512", Simd::Avx512)];
    let found = |(name, simd)| Some((name, InstructionSet::of(simd).ok()?));
    let sets: Vec<_> = levels.into_iter().filter_map(found).collect();
    #[cfg(target_arch = "x86_64")]
    let sets = sets
        .into_iter()
        .flat_map(|(name, set)| {
            let plain = InstructionSet { vnni: false, vbmi: false, ..set };
            let with_vnni = set.vnni.then_some(("avx512 vnni", InstructionSet { vbmi: false, ..set }));
            let with_vbmi = set.vbmi.then_some(("avx512 vbmi", set));
            [Some((name, plain)), with_vnni, with_vbmi].into_iter().flatten()
        })
        .collect();
    sets
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

const ROWS: usize = 21;

/// What rows see under a causal edge (every panel count, partial panels, and rows that see nothing), in a window of one key, and
/// in a window of 20 that comes from before the tile and leaves it.
fn visible() -> [[Range<usize>; ROWS]; 3] {
    let ends = [0, 0, 1, 2, 7, 15, 16, 17, 20, 31, 32, 33, 40, 47, 48, 49, 55, 60, 63, 64, 64];
    let starts = [0, 0, 3, 5, 9, 14, 15, 16, 17, 18, 30, 31, 32, 33, 45, 47, 50, 60, 63, 64, 64];
    [
        ends.map(|end| 0..end),
        std::array::from_fn(|row| 3 * row..(3 * row + 1).min(64)),
        starts.map(|start: usize| start..if start == 0 { 0 } else { (start + 20).min(64) }),
    ]
}

const STRIDE: usize = 64;

/// S of rows that see these keys, where it was computed.
fn scores_of<W: Word>(
    instructions: InstructionSet,
    visible: &[Range<usize>],
    queries: &[W],
    keys: &[W],
    depth: usize,
) -> Vec<W>
where
    for<'a> Scores<'a, W>: Kernel,
{
    let mut scores = vec![W::default(); ROWS * STRIDE];
    let visible = Visible::new(visible);
    instructions.run(Scores { queries, keys, depth, visible, scores: &mut scores, stride: STRIDE });
    scores
}

/// O of rows that see these keys; the factors are those before the products and those of the sums.
fn output_of<W: Word>(
    instructions: InstructionSet,
    visible: &[Range<usize>],
    (weights, values): (&[W], &[W]),
    (rescale, weight_units, channel_units): (&[f32], &[f32], &[f32]),
    before: &[f32],
) -> Vec<f32>
where
    for<'a> Values<'a, W>: Kernel,
{
    let mut output = before.to_vec();
    let (stride, chunk_words) = (STRIDE / W::KEYS, STRIDE * LANES / W::KEYS);
    instructions.run(Values {
        weights,
        stride,
        rescale,
        weight_units,
        values,
        chunk_words,
        channel_units,
        visible: Visible::new(visible),
        output: &mut output,
    });
    output
}

#[test]
fn codes_decode_exactly() {
    for (name, instructions) in instruction_sets() {
        for format in [Fp8Format::E4m3, Fp8Format::E5m2, Fp8Format::Int8] {
            let codes: Vec<u8> = (0..=255).map(|code| if format.is_non_finite(code) { 0 } else { code }).collect();
            let mut values = vec![f32::NAN; 256];
            let rows = Codes { bytes: &codes, stride: 32, rows: 8, format, factors: &[], apart: Apart::default() };
            instructions.run(Pack { codes: rows, width: 32, order: Order::Rows, packed: &mut values });
            for (code, value) in codes.iter().zip(&values) {
                assert_eq!(*value, fp8::decode(format, *code), "{name}, {format}, code {code:#04x}");
            }
        }
    }
}

#[test]
fn scores_are_dot_products_where_rows_see_keys() {
    const DEPTH: usize = 24;
    let (queries, keys) = (floats(ROWS * DEPTH, 1), floats(4 * DEPTH * LANES, 2));
    let (int_queries, int_keys) = (pairs(ROWS * DEPTH, 3), pairs(4 * DEPTH * LANES, 4));
    let cases = instruction_sets().into_iter().flat_map(|set| visible().map(|visible| (set, visible)));
    for ((name, instructions), visible) in cases {
        let scores = scores_of(instructions, &visible, &queries, &keys, DEPTH);
        let int_scores = scores_of(instructions, &visible, &int_queries, &int_keys, DEPTH);
        for (row, visible) in visible.into_iter().enumerate() {
            for key in visible {
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
    let (rows, width) = (ROWS, CHUNKS * LANES);
    let (rescale, weight_units) = (floats(rows, 5), floats(rows, 6));
    let before = floats(rows * width, 7);
    let units: Vec<f32> = (0..width).map(|channel| 1.0 / (1 << (channel % 5)) as f32).collect();
    let (all_weights, values) = (floats(rows * STRIDE, 8), floats(width * STRIDE, 9));
    let (all_int_weights, int_values) = (pairs(rows * STRIDE / 2, 10), pairs(width * STRIDE / 2, 11));
    let cases = instruction_sets().into_iter().flat_map(|set| visible().map(|visible| (set, visible)));
    for ((name, instructions), visible) in cases {
        let (mut weights, mut int_weights) = (all_weights.clone(), all_int_weights.clone());
        // The products run from the first to the last key of a row group, so weights outside what a row sees are zero, as softmax
        // leaves them.
        for (row, visible) in visible.iter().enumerate() {
            for key in (0..STRIDE).filter(|key| !visible.contains(key)) {
                weights[row * STRIDE + key] = 0.0;
                int_weights[(row * STRIDE + key) / 2] &= if key % 2 == 0 { !0xffff } else { 0xffff };
            }
        }
        let factors = (&rescale[..], &weight_units[..], &units[..]);
        let output = output_of(instructions, &visible, (&weights, &values), factors, &before);
        let int_output = output_of(instructions, &visible, (&int_weights, &int_values), factors, &before);
        for (row, visible) in visible.into_iter().enumerate() {
            for (channel, unit) in units.iter().enumerate() {
                let index = row * width + channel;
                // A row group that sees nothing is left alone; one that sees something is rescaled, and
                // rows in it that see nothing are so by 1 in practice.
                if visible.is_empty() {
                    continue;
                }
                let chunk = channel / LANES * STRIDE * LANES + channel % LANES;
                let sum: f64 = visible
                    .clone()
                    .map(|key| f64::from(weights[row * STRIDE + key]) * f64::from(values[chunk + key * LANES]))
                    .sum();
                let exact = f64::from(rescale[row]) * f64::from(before[index]) + sum;
                let error = (f64::from(output[index]) - exact).abs();
                assert!(error < 1e-4, "{name}: row {row}, channel {channel}: off by {error}");

                let chunk = channel / LANES * STRIDE * LANES / 2 + channel % LANES;
                let sum: i32 = (visible.start / 2..visible.end.div_ceil(2))
                    .map(|pair| dot_pairs(int_weights[row * STRIDE / 2 + pair], int_values[chunk + pair * LANES]))
                    .sum();
                let scaled = f64::from(sum) * f64::from(weight_units[row]) * f64::from(*unit);
                let exact = f64::from(rescale[row]) * f64::from(before[index]) + scaled;
                let error = (f64::from(int_output[index]) - exact).abs();
                assert!(error <= 1e-6 * scaled.abs() + 1e-6, "{name}: row {row}, channel {channel}: off by {error}");
            }
        }
    }
}

#[test]
fn softmax_weights_are_powers_of_two_and_masked_ones_are_zero() {
    // Scores from 0 down to −140, where weights leave the range of normal numbers.
    let original: Vec<f32> = noise(ROWS * STRIDE, 14000, 12).map(|value| value as f32 / -100.0).collect();
    let cases = instruction_sets().into_iter().flat_map(|set| visible().map(|visible| (set, visible)));
    for ((name, instructions), visible) in cases {
        for exact in [false, true] {
            let mut scores = original.clone();
            let mut states = vec![RowState { max: -3.0, sum: 2.0 }; ROWS];
            let mut rescale = vec![f32::NAN; ROWS];
            instructions.run(Softmax {
                scores: &mut scores,
                stride: STRIDE,
                visible: Visible::new(&visible),
                states: &mut states,
                rescale: &mut rescale,
                exact,
            });
            for (row, visible) in visible.iter().enumerate() {
                let original = &original[row * STRIDE..][visible.clone()];
                let max = original.iter().copied().fold(-3.0, f32::max);
                assert_eq!(states[row].max, max, "{name}: row {row}");
                assert!((rescale[row] - (-3.0 - max).exp2()).abs() < 1e-6, "{name}: row {row}");
                let mut sum = 2.0 * (f64::from(-3.0 - max)).exp2();
                for (key, score) in original.iter().enumerate() {
                    let weight = f64::from(scores[row * STRIDE + visible.start + key]);
                    let expected = (f64::from(*score) - f64::from(max)).exp2();
                    sum += expected;
                    // The difference of the scores is itself rounded to f32.
                    let tolerance = (4e-7 + 1e-7 * f64::from(max - score)) * expected + 2f64.powi(-125);
                    assert!((weight - expected).abs() <= tolerance, "{name}: 2^{} gave {weight}", score - max);
                }
                assert!((f64::from(states[row].sum) - sum).abs() < 1e-6 * sum, "{name}: row {row}");
                let panels = visible.start / LANES * LANES..visible.end.next_multiple_of(LANES);
                let padding = panels.filter(|key| !visible.contains(key));
                let zeros = padding.map(|key| scores[row * STRIDE + key]).all(|weight| weight == 0.0);
                assert!(zeros, "{name}: row {row} is not padded with zeros");
            }
        }
    }
}

/// Runs the integer softmax on one row; gives its weights as reals, its state, and whether it asked for refinement.
fn int_softmax(instructions: InstructionSet, scores: &[i32], unit: f32) -> (Vec<f64>, RowState, bool) {
    let stride = scores.len();
    let mut weights = vec![-1; stride / 2];
    let (mut rescale, mut weight_units, mut imprecise) = ([f32::NAN], [f32::NAN], Vec::new());
    let mut states = [RowState::EMPTY];
    instructions.run(SoftmaxIntegers(&mut IntegerTile {
        scores,
        stride,
        score_units: &[unit],
        key_scales: &[],
        value_scales: &[],
        bound: None,
        visible: Visible::new(std::slice::from_ref(&(0..stride))),
        states: &mut states,
        weights: &mut weights,
        rescale: &mut rescale,
        weight_units: &mut weight_units,
        imprecise: &mut imprecise,
        exact: false,
    }));
    let halves = weights.iter().flat_map(|pair| [*pair as i16, (pair >> 16) as i16]);
    let reals = halves.map(|half| f64::from(half) * f64::from(weight_units[0])).collect();
    assert_eq!(rescale, [0.0], "nothing was seen before");
    (reals, states[0], !imprecise.is_empty())
}

#[test]
fn integer_weights_round_powers_of_two() {
    let scores: Vec<i32> = noise(256, 400_000, 13).map(|score| score as i32 - 300_000).collect();
    let unit = 1.0 / 50_000.0;
    for (name, instructions) in instruction_sets() {
        let (weights, state, _) = int_softmax(instructions, &scores, unit);
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
    for (name, instructions) in instruction_sets() {
        let (weights, state, refine) = int_softmax(instructions, &[12345; 1024], 0.01);
        assert!(weights.iter().all(|weight| *weight == 1.0), "{name}: equal scores weigh 1 each, exactly");
        assert_eq!((state.sum, refine), (1024.0, false), "{name}");
    }
}

#[test]
fn rows_that_lose_their_small_weights_ask_for_a_second_product() {
    let mut scores = vec![-16 << 10; 256];
    scores[0] = 0;
    for (name, instructions) in instruction_sets() {
        let (_, _, refine) = int_softmax(instructions, &scores, 1.0 / 1024.0);
        assert!(refine, "{name}: 255 weights of 2^-16 are 0.4 % of the sum and all round to zero");
    }
}

#[test]
fn packing_keeps_every_value_in_its_place() {
    const WIDTH: usize = 48;
    const KEYS: usize = 2 * LANES;
    let codes: Vec<u8> = noise(KEYS * WIDTH, 256, 14).map(|code| (code as u8) & !0x08 & 0xbf).collect();
    let value = |row: usize, channel: usize| fp8::decode(Fp8Format::E4m3, codes[row * WIDTH + channel]);
    let factors: Vec<f32> = (0..WIDTH).map(|channel| 512.0 / (1 << (channel % 3)) as f32).collect();
    let integer = |row: usize, channel: usize| (value(row, channel) * factors[channel]).round_ties_even() as i32;
    let scales: Vec<f32> = (0..KEYS).map(|row| 1.0 / (1 << (row % 5)) as f32).collect();
    let scaled = |row: usize, channel: usize| value(row, channel) * scales[row];
    let codes = Codes {
        bytes: &codes,
        stride: WIDTH,
        rows: KEYS,
        format: Fp8Format::E4m3,
        factors: &[],
        apart: Apart::default(),
    };
    let half = |word: i32, second: bool| if second { word >> 16 } else { i32::from(word as i16) };
    for (name, instructions) in instruction_sets() {
        let pack = |order, packed: &mut [f32]| {
            instructions.run(Pack { codes: Codes { factors: &scales, ..codes }, width: WIDTH, order, packed });
        };
        let mut panels = vec![f32::NAN; KEYS * WIDTH];
        pack(Order::Panels, &mut panels);
        let mut chunks = vec![f32::NAN; KEYS * WIDTH];
        pack(Order::Chunks { words: KEYS * LANES }, &mut chunks);
        let pack = |order| {
            let (mut packed, mut rounding) = (vec![-1; KEYS * WIDTH / 2], Rounding::default());
            rounding.reset(WIDTH);
            let pack = Pack { codes, width: WIDTH, order, packed: &mut packed };
            instructions.run(PackIntegers { pack, factors: &factors, rounding: &mut rounding });
            (packed, rounding)
        };
        let (int_rows, rounding) = pack(Order::Rows);
        let energy: f64 = (0..KEYS).map(|row| f64::from(value(row, 5) * factors[5]).powi(2)).sum();
        assert!((f64::from(rounding.size[5]) / energy - 1.0).abs() < 1e-5, "{name}: the energy of channel 5");
        let (int_panels, _) = pack(Order::Panels);
        let (int_chunks, _) = pack(Order::Chunks { words: KEYS * LANES / 2 });
        for row in 0..KEYS {
            for channel in 0..WIDTH {
                let place = format!("{name}: row {row}, channel {channel}");
                let (panel, key) = (row / LANES * LANES * WIDTH, row % LANES);
                assert_eq!(panels[panel + channel * LANES + key], scaled(row, channel), "{place}");
                let chunk = channel / LANES * KEYS * LANES + channel % LANES;
                assert_eq!(chunks[chunk + row * LANES], scaled(row, channel), "{place}");
                let word = int_rows[(row * WIDTH + channel) / 2];
                assert_eq!(half(word, channel % 2 == 1), integer(row, channel), "{place}");
                let word = int_panels[panel / 2 + channel / 2 * LANES + key];
                assert_eq!(half(word, channel % 2 == 1), integer(row, channel), "{place}");
                let word = int_chunks[channel / LANES * KEYS * LANES / 2 + row / 2 * LANES + channel % LANES];
                assert_eq!(half(word, row % 2 == 1), integer(row, channel), "{place}");
            }
        }
    }
}

#[test]
fn the_scalar_baseline_computes_what_the_lanes_do() {
    const DEPTH: usize = 16;
    let (queries, keys) = (floats(ROWS * DEPTH, 15), floats(4 * DEPTH * LANES, 16));
    let offsets = floats(ROWS, 17);
    for visible in visible() {
        let run = |simd| {
            let instructions = InstructionSet::of(simd).unwrap();
            let mut scores = scores_of(instructions, &visible, &queries, &keys, DEPTH);
            let (mut states, mut rescale) = (vec![RowState::EMPTY; ROWS], vec![1.0; ROWS]);
            let visible_keys = Visible::new(&visible);
            instructions.run(CapScores {
                scores: &mut scores,
                stride: STRIDE,
                visible: visible_keys,
                bound: Bound { softcap: Softcap::new(1.5), offsets: &offsets },
                exact: true,
            });
            instructions.run(Softmax {
                scores: &mut scores,
                stride: STRIDE,
                visible: visible_keys,
                states: &mut states,
                rescale: &mut rescale,
                exact: true,
            });
            let factors = (&rescale[..], &rescale[..], &[1.0; DEPTH][..]);
            output_of(instructions, &visible, (&scores, &keys), factors, &vec![0.0; ROWS * DEPTH])
        };
        for (plain, lanes) in run(Simd::Scalar).iter().zip(run(Simd::Portable)) {
            assert!((plain - lanes).abs() < 1e-5, "{plain} and {lanes}");
        }
    }
}

#[test]
fn capped_scores_are_tanh_to_f32() {
    let magnitudes = (-40..40).map(|exponent| 2f32.powi(exponent) * 1.37).chain([0.0, 0.5, 30.1, 1e30]);
    let scores: Vec<f32> = magnitudes.flat_map(|score| [score, -score]).collect();
    let scores: Vec<f32> = scores.iter().copied().chain(std::iter::repeat(0.0)).take(256).collect();
    for (name, instructions) in instruction_sets() {
        for (softcap, exact) in [0.01, 1.0, 15.0, 50.0, 1e6, 1e38].map(|cap| [(cap, false), (cap, true)]).concat() {
            let mut capped = scores.clone();
            instructions.run(CapScores {
                scores: &mut capped,
                stride: scores.len(),
                visible: Visible::new(std::slice::from_ref(&(0..scores.len()))),
                bound: Bound { softcap: Softcap::new(softcap), offsets: &[0.0] },
                exact,
            });
            for (score, capped) in scores.iter().zip(capped) {
                let cap = f64::from(softcap) * std::f64::consts::LOG2_E;
                let expected = cap * (f64::from(*score) / cap).tanh();
                let error = (f64::from(capped) - expected).abs();
                assert!(
                    error <= 1e-6 * expected.abs(),
                    "{name}: {capped} for {expected}, a score of {score} under {softcap}"
                );
            }
        }
    }
}

/// The fixed point of scores under a bound, with one key that is hidden and has the largest score.
#[test]
fn integer_weights_are_those_of_capped_scores() {
    const UNIT: f32 = 1.0 / 4096.0;
    let scores: Vec<i32> = noise(64, 80_000, 18).map(|score| score as i32 - 40_000).chain([1 << 20; 16]).collect();
    let (softcap, offset) = (5.0, 0.75);
    let expected = |score: &i32| {
        let cap = softcap * std::f64::consts::LOG2_E;
        cap * ((f64::from(*score) * f64::from(UNIT) + offset) / cap).tanh()
    };
    for (name, instructions) in instruction_sets() {
        let (mut weights, mut rescale, mut weight_units) = (vec![-1; 40], [f32::NAN], [f32::NAN]);
        let (mut states, mut imprecise) = ([RowState::EMPTY], Vec::new());
        instructions.run(SoftmaxIntegers(&mut IntegerTile {
            scores: &scores,
            stride: scores.len(),
            score_units: &[UNIT],
            key_scales: &[],
            value_scales: &[],
            bound: Some(Bound { softcap: Softcap::new(softcap as f32), offsets: &[offset as f32] }),
            visible: Visible::new(std::slice::from_ref(&(3..61))),
            states: &mut states,
            weights: &mut weights,
            rescale: &mut rescale,
            weight_units: &mut weight_units,
            imprecise: &mut imprecise,
            exact: false,
        }));
        let halves = weights.iter().flat_map(|pair| [*pair as i16, (pair >> 16) as i16]);
        let largest = scores[3..61].iter().map(expected).fold(f64::NEG_INFINITY, f64::max);
        assert!((f64::from(states[0].max) - largest).abs() < 1e-5, "{name}");
        for (key, (half, score)) in halves.zip(&scores).take(64).enumerate() {
            let weight = f64::from(half) * f64::from(weight_units[0]);
            let expected = if (3..61).contains(&key) { (expected(score) - largest).exp2() } else { 0.0 };
            assert!((weight - expected).abs() < 1e-4, "{name}: key {key} weighs {weight} for {expected}");
        }
    }
}

#[test]
fn rows_that_see_less_than_those_before_are_refused() {
    let refused = |keys: [Range<usize>; 3]| std::panic::catch_unwind(|| Visible::new(&keys).last()).is_err();
    assert!(!refused([0..0, 0..3, 0..3]) && !refused([0..3, 1..4, 4..4]));
    assert!(refused([0..3, 0..2, 0..4]) && refused([0..3, 1..4, 0..4]));
    #[allow(clippy::reversed_empty_ranges)]
    let reversed = [0..3, 5..4, 5..4];
    assert!(refused(reversed));
}

/// Every number of rows that is computed together, fewer of them, and more; every number of channels at a time.
#[test]
fn codes_are_multiplied_where_they_lie() {
    const KEYS: usize = 40;
    for (name, instructions) in instruction_sets() {
        for (case, (rows, width)) in
            [(1usize, 128usize), (2, 144), (3, 64), (4, 16), (5, 48), (7, 240), (8, 32), (11, 64), (17, 16)]
                .into_iter()
                .enumerate()
        {
            let format = [Fp8Format::E4m3, Fp8Format::E5m2, Fp8Format::Int8][case % 3];
            let (code_stride, seed) = (width + 8 * (case % 3), case as u64);
            // One after the other, or in panels that lie apart and backwards, the last of which is cut.
            let panel = |panel: usize| (KEYS.div_ceil(LANES) - 1 - panel) * LANES * code_stride + 5;
            let starts: Vec<usize> = (0..if case % 3 == 1 { KEYS.div_ceil(LANES) } else { 0 }).map(panel).collect();
            let count = KEYS.next_multiple_of(LANES) * code_stride + 5;
            let bytes: Vec<u8> = noise(count, 256, 30 + seed).map(|code| (code as u8) & 0xbb | 1).collect();
            let value = |row: usize, channel: usize| {
                let start =
                    starts.get(row / LANES).map_or(row * code_stride, |start| start + row % LANES * code_stride);
                f64::from(fp8::decode(format, bytes[start + channel]))
            };
            let scales: Vec<f32> = (0..KEYS.next_multiple_of(LANES)).map(|row| 1.0 / (1 << (row % 5)) as f32).collect();
            let factors = if case % 2 == 0 { &scales[..] } else { &[] };
            let factor = |row: usize| f64::from(factors.get(row).copied().unwrap_or(1.0));
            let codes = Codes {
                bytes: &bytes,
                stride: code_stride,
                rows: KEYS,
                format,
                factors,
                apart: Apart { starts: &starts, ..Apart::default() },
            };
            let queries = floats(rows.next_multiple_of(DIRECT_ROWS) * width, 40 + seed);
            // A causal edge: every row sees one key more than the one before, and the first may see none; with a window of 9 keys
            // in some cases.
            let end = |row: usize| if case == 3 { row } else { (case * 5 + row + 1).min(KEYS) };
            let start = |row: usize| if case % 4 == 2 { end(row).saturating_sub(9) } else { 0 };
            let ends: Vec<Range<usize>> = (0..rows).map(|row| start(row)..end(row)).collect();
            let visible = Visible::new(&ends);
            let mut scores = vec![f32::NAN; rows.next_multiple_of(DIRECT_ROWS) * STRIDE];
            let keys = codes;
            instructions.run(DirectScores {
                queries: &queries,
                keys,
                width,
                visible,
                scores: &mut scores,
                stride: STRIDE,
            });
            for (row, seen) in ends.iter().enumerate() {
                for key in seen.clone() {
                    let product = |channel: usize| f64::from(queries[row * width + channel]) * value(key, channel);
                    let (sum, size) =
                        (0..width).map(product).fold((0.0, 0.0), |(sum, size), one| (sum + one, size + one.abs()));
                    let error = (f64::from(scores[row * STRIDE + key]) - sum * factor(key)).abs();
                    assert!(error <= 1e-6 * size * factor(key), "{name}, {rows} rows of {width}: row {row}, key {key}");
                }
            }
            // As the softmax leaves weights: zeros before and behind what a row sees.
            let mut weights = floats(scores.len(), 50 + seed);
            for (row, weights) in weights.chunks_exact_mut(STRIDE).enumerate() {
                let seen = ends.get(row).cloned().unwrap_or(0..0);
                let unseen = if row < rows { 0.0 } else { f32::NAN };
                weights[..seen.start].fill(unseen);
                weights[seen.end..].fill(unseen);
            }
            let (given, before) = (weights.clone(), floats(rows * width, 60 + seed));
            let mut output = before.clone();
            let rescale: Vec<f32> = (0..rows).map(|row| 1.0 / (row + 1) as f32).collect();
            instructions.run(DirectValues {
                weights: &mut weights,
                stride: STRIDE,
                rescale: &rescale,
                values: codes,
                width,
                visible,
                output: &mut output,
            });
            for (index, output) in output.iter().enumerate() {
                let (row, channel) = (index / width, index % width);
                let product = |key: usize| f64::from(given[row * STRIDE + key]) * factor(key) * value(key, channel);
                let kept = f64::from(rescale[row]) * f64::from(before[index]);
                let (sum, size) = ends[row]
                    .clone()
                    .map(product)
                    .fold((kept, kept.abs()), |(sum, size), one| (sum + one, size + one.abs()));
                let error = (f64::from(*output) - sum).abs();
                assert!(
                    error <= 1e-6 * size,
                    "{name}, {rows} rows of {width}: row {row}, channel {channel}: off by {error}"
                );
            }
        }
    }
}

/// 64 codes that are decoded together.
struct Decode64<'a> {
    format: Fp8Format,
    codes: &'a [u8; 64],
    values: &'a mut [f32; 64],
}

impl Kernel for Decode64<'_> {
    const DECODES: bool = true;

    #[inline(always)]
    unsafe fn run<L: Lanes, const ROWS: usize, const PANELS: usize>(self) {
        let codes = self.codes.as_ptr();
        // SAFETY: the caller upholds the contract of `Lanes`; there are 64 of both.
        unsafe {
            let decoded = if self.format == Fp8Format::E4m3 {
                L::decode_64_e4m3(codes).map(|values| L::mul(values, L::splat(256.0)))
            } else {
                L::decode_64_e5m2(codes)
            };
            for (values, decoded) in self.values.as_chunks_mut::<LANES>().0.iter_mut().zip(decoded) {
                L::store(values.as_mut_ptr(), decoded);
            }
        }
    }
}

#[test]
fn every_code_is_decoded_among_64() {
    for (name, instructions) in instruction_sets() {
        for format in [Fp8Format::E4m3, Fp8Format::E5m2] {
            // Each code in each place.
            for first in 0..=u8::MAX {
                let codes: [u8; 64] = std::array::from_fn(|place| first.wrapping_add(place as u8));
                let codes = codes.map(|code| if fp8::decode(format, code).is_finite() { code } else { 0x80 });
                let mut values = [f32::NAN; 64];
                instructions.run(Decode64 { format, codes: &codes, values: &mut values });
                let expected = codes.map(|code| fp8::decode(format, code));
                assert_eq!(values.map(f32::to_bits), expected.map(f32::to_bits), "{name}, {format}, from {first}");
            }
        }
    }
}
