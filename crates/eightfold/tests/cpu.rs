//! The CPU kernel against the float64 reference, over shapes, layouts, formats, scales and every knob.

use eightfold::lab::attention_with;
use eightfold::lab::cpu::{Config, Exp, Features, Numbers, Schedule, Simd};
use eightfold::quantize::Quantizer;
use eightfold::{
    Dims, Fp8Format, Fp8Tensor, Granularity, Layout, Mask, Output, OutputFormat, Problem, RunReport, Shape, Variant,
    Window, reference,
};
use proptest::prelude::*;
use std::ops::Range;

/// Values of N(0, 1), near enough: the sum of twelve uniform numbers.
fn gaussian(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut uniform = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state >> 40
    };
    // Summed as integers: floats are what an emulated CPU is slow at.
    (0..count).map(|_| (0..12).map(|_| uniform()).sum::<u64>() as f32 / (1u64 << 24) as f32 - 6.0).collect()
}

fn relative_l2(values: &[f32], expected: &[f64]) -> f64 {
    let error: f64 = values.iter().zip(expected).map(|(value, expected)| (f64::from(*value) - expected).powi(2)).sum();
    let size: f64 = expected.iter().map(|expected| expected * expected).sum();
    if error == 0.0 { 0.0 } else { (error / size).sqrt() }
}

/// An output's values in `[B,H,S,D]` order.
fn in_bhsd_order(problem: &Problem, output: &Output) -> Vec<f32> {
    let dims = problem.output_dims();
    let strides = problem.output_layout().strides(dims);
    let values = output.values.to_f32();
    let mut ordered = Vec::with_capacity(values.len());
    for batch in 0..dims.batch {
        for head in 0..dims.heads {
            for row in 0..dims.len {
                ordered.extend_from_slice(&values[strides.row_offset(batch, head, row)..][..dims.head_dim]);
            }
        }
    }
    ordered
}

/// The queries with sinks of N(0, 2) where the problem has some.
fn with_sinks(problem: &Problem, q: Fp8Tensor<'static>, seed: u64) -> Fp8Tensor<'static> {
    if !problem.has_sinks() {
        return q;
    }
    let sinks = gaussian(problem.shape().query_heads, seed).into_iter().map(|sink| 2.0 * sink);
    q.with_sinks(sinks.collect()).unwrap()
}

struct Case {
    problem: Problem,
    q: Fp8Tensor<'static>,
    k: Fp8Tensor<'static>,
    v: Fp8Tensor<'static>,
}

impl Case {
    fn gaussian(problem: Problem, seed: u64) -> Self {
        let shape = problem.shape();
        let quantize = |dims: Dims, seed| eightfold::quantize(&gaussian(dims.count(), seed), dims).unwrap();
        Case {
            problem,
            q: with_sinks(&problem, quantize(shape.query_dims(), seed), seed + 3),
            k: quantize(shape.key_dims(), seed + 1),
            v: quantize(problem.value_dims(), seed + 2),
        }
    }

    /// Runs a config on a poisoned output: the relative error, the largest error of the log-sum-exp, the report.
    fn run(&self, config: Config) -> (f64, f64, RunReport) {
        let Case { problem, q, k, v } = self;
        let mut output = Output::zeros(problem);
        output.poison();
        let report = attention_with(&config, problem, q, k, v, &mut output).unwrap();
        assert_eq!(report.variant, Some(Variant::Cpu(config)));
        let sinks: Vec<f64> = q.sinks().unwrap_or(&[]).iter().copied().map(f64::from).collect();
        let [queries, keys] = [q, k].map(Fp8Tensor::dequantize);
        let expected = reference::attention_with_sinks(problem, &queries, &keys, &v.dequantize(), &sinks).unwrap();
        let values = in_bhsd_order(problem, &output);
        assert!(values.iter().all(|value| value.is_finite()), "{problem} {config}: an output is not finite");
        let lse = output.lse.iter().flatten().zip(&expected.lse);
        let lse_error = lse.map(|(lse, expected)| {
            if expected.is_infinite() {
                assert_eq!(f64::from(*lse), *expected, "{problem} {config}: an empty row has another log-sum-exp");
                return 0.0;
            }
            (f64::from(*lse) - expected).abs()
        });
        (relative_l2(&values, &expected.values), lse_error.fold(0.0, f64::max), report)
    }
}

fn available(simd: Simd) -> bool {
    let features = Features::detect();
    match simd {
        Simd::Scalar | Simd::Portable | Simd::AmxTwin => true,
        Simd::Avx2 => features.avx2,
        Simd::Avx512 => features.avx512,
        Simd::Amx => features.amx.is_ok(),
        Simd::Neon => features.neon,
    }
}

fn configs() -> impl Strategy<Value = Config> {
    let simd = prop::sample::select(Simd::ALL.iter().copied().filter(|simd| available(*simd)).collect::<Vec<_>>());
    let numbers = prop::sample::select(&[Numbers::F32, Numbers::Int16]);
    let bf16 = prop::sample::select(&[Numbers::Bf16, Numbers::Bf16x2]);
    let exp = prop::sample::select(Exp::ALL);
    let schedule = prop::sample::select(Schedule::ALL);
    let knobs = (numbers, bf16, simd, exp, schedule, 1usize..=9, 1usize..=9);
    knobs.prop_map(|(numbers, bf16, simd, exp, schedule, queries, keys)| {
        let (numbers, exp) = match simd {
            Simd::Scalar => (Numbers::F32, Exp::Exact),
            Simd::Amx | Simd::AmxTwin => (bf16, Exp::Polynomial),
            _ => (numbers, exp),
        };
        let step = if exp == Exp::Polynomial && numbers == bf16 { 32 } else { 8 };
        Config { numbers, simd, exp, schedule, tile_queries: step * queries, tile_keys: 16 * keys }
    })
}

fn shapes() -> impl Strategy<Value = Shape> {
    let head_dim = prop::sample::select(vec![8, 16, 24, 40, 64, 72, 96, 128, 136, 256]);
    (1usize..=2, 1usize..=3, 1usize..=4, 1usize..=70, 1usize..=150, head_dim).prop_map(
        |(batch, kv_heads, group, query_len, key_len, head_dim)| {
            Shape::new(batch, kv_heads * group, query_len, head_dim).with_kv_heads(kv_heads).with_key_len(key_len)
        },
    )
}

fn quantizers() -> impl Strategy<Value = (Granularity, Layout, bool)> {
    let granularity = prop_oneof![
        Just(Granularity::Tensor),
        Just(Granularity::Head),
        (1usize..=40).prop_map(|rows| Granularity::Block { rows }),
    ];
    (granularity, prop::sample::select(vec![Layout::Bhsd, Layout::Bshd]), any::<bool>())
}

proptest! {
    // As many cases as PROPTEST_CASES says: under emulation few.
    #![proptest_config(ProptestConfig::default())]

    /// Whatever the problem, the tensors and the knobs, the result is attention.
    #[test]
    fn every_config_computes_attention(
        shape in shapes(),
        config in configs(),
        causal in any::<bool>(),
        format in prop::sample::select(vec![Fp8Format::E4m3, Fp8Format::E5m2, Fp8Format::Int8]),
        output_format in prop::sample::select(vec![OutputFormat::F32, OutputFormat::F16, OutputFormat::Bf16]),
        output_layout in prop::sample::select(vec![Layout::Bhsd, Layout::Bshd]),
        q_style in quantizers(),
        k_style in quantizers(),
        v_style in quantizers(),
        v_transposed in any::<bool>(),
        scale in prop_oneof![Just(None), (0.01f32..2.0).prop_map(Some)],
        value_dim in prop_oneof![2 => Just(None), 1 => prop::sample::select(vec![8, 40, 128, 136]).prop_map(Some)],
        window in (prop::option::of(0usize..100), prop::option::of(0usize..100)),
        softcap in prop_oneof![Just(None), (0.5f32..60.0).prop_map(Some)],
        sinks in any::<bool>(),
        seed in any::<u32>(),
    ) {
        let mut problem = Problem::new(shape).unwrap()
            .with_input_format(format)
            .with_output_format(output_format)
            .with_output_layout(output_layout).unwrap()
            .with_lse(true);
        if causal {
            problem = problem.causal();
        }
        if let Some(scale) = scale {
            problem = problem.with_softmax_scale(scale).unwrap();
        }
        if let Some(value_dim) = value_dim {
            problem = problem.with_value_dim(value_dim).unwrap();
        }
        if let Some(softcap) = softcap {
            problem = problem.with_softcap(softcap).unwrap();
        }
        if sinks {
            problem = problem.with_sinks();
        }
        problem = problem.with_window(Window::new(window.0, window.1));
        let quantize = |format, dims: Dims, (granularity, layout, centered): (Granularity, Layout, bool), seed: u64| {
            let quantizer = Quantizer::new(format).with_granularity(granularity).with_layout(layout);
            let quantizer = if centered { quantizer.centered() } else { quantizer };
            quantizer.quantize(&gaussian(dims.count(), seed), dims, Layout::Bhsd).unwrap()
        };
        let seed = u64::from(seed);
        let case = Case {
            problem,
            q: with_sinks(&problem, quantize(format, shape.query_dims(), (q_style.0, q_style.1, false), seed), seed + 3),
            k: quantize(format, shape.key_dims(), k_style, seed + 1),
            v: quantize(
                problem.value_format(),
                problem.value_dims(),
                (v_style.0, if v_transposed { Layout::Bhds } else { v_style.1 }, v_style.2),
                seed + 2,
            ),
        };
        let (error, lse_error, _) = case.run(config);
        let rounding = match output_format {
            OutputFormat::F16 => 3e-4,
            OutputFormat::Bf16 => 2.5e-3,
            _ => 0.0,
        };
        // Scores have a spread of scale·√D, and f32 rounds them in proportion.
        let spread = f64::from(problem.softmax_scale()) * (shape.head_dim as f64).sqrt();
        let limit = rounding + match config.numbers {
            Numbers::F32 => 2e-6 * spread.max(1.0),
            Numbers::Int16 => 1e-3,
            Numbers::Bf16 => 6e-3,
            Numbers::Bf16x2 => 2e-5 * spread.max(1.0),
        };
        prop_assert!(error <= limit, "relative error {error:.2e} above {limit:.1e}");
        let is_exact = matches!(config.numbers, Numbers::F32 | Numbers::Bf16x2);
        let lse_limit = if is_exact { 1e-5 * spread.max(1.0) } else { 1e-2 };
        prop_assert!(lse_error <= lse_limit, "log-sum-exp off by {lse_error:.2e}");
    }
}

fn default_with(numbers: Numbers) -> Config {
    Config { numbers, ..Config::default() }
}

#[test]
fn gaussian_inputs_meet_the_declared_errors() {
    for (len, causal) in [(512, false), (512, true), (777, false)] {
        let problem = Problem::new(Shape::new(1, 4, len, 64)).unwrap();
        let problem = if causal { problem.causal() } else { problem };
        let case = Case::gaussian(problem, 7);
        let (float_error, ..) = case.run(default_with(Numbers::F32));
        assert!(float_error <= 2e-6, "f32: {float_error:.2e}");
        let (int_error, _, report) = case.run(default_with(Numbers::Int16));
        assert!(int_error <= 3e-4, "i16: {int_error:.2e}");
        assert_eq!(report.tiles_in_f32, 0, "Gaussian inputs need no fall-back: {report:?}");
    }
}

#[test]
fn block_scales_cost_the_integers_no_precision() {
    let shape = Shape::new(1, 2, 500, 64);
    let problem = Problem::new(shape).unwrap().with_lse(true);
    let quantize = |dims: Dims, seed| {
        let quantizer = Quantizer::new(Fp8Format::E4m3).with_granularity(Granularity::Block { rows: 48 });
        quantizer.quantize(&gaussian(dims.count(), seed), dims, Layout::Bhsd).unwrap()
    };
    let case = Case {
        problem,
        q: quantize(shape.query_dims(), 21),
        k: quantize(shape.key_dims(), 22),
        v: quantize(shape.key_dims(), 23),
    };
    let (error, lse_error, report) = case.run(default_with(Numbers::Int16));
    assert!(error <= 3e-4 && lse_error <= 1e-3, "{error:.2e}, log-sum-exp off by {lse_error:.2e}");
    assert_eq!(report.tiles_in_f32, 0, "{report:?}");
}

/// What a person quantises by default: INT8 with K centred is closer to the values than E4M3, and much closer where the channels
/// of K lie far from zero.
#[test]
fn int8_is_closer_to_the_values_than_e4m3() {
    let shape = Shape::new(1, 2, 300, 64).with_kv_heads(1).with_key_len(700);
    let problem = Problem::new(shape).unwrap();
    let (queries, keys) = (shape.query_dims(), shape.key_dims());
    for (offset, int8_limit, least_gain) in [(0.0, 33e-3, 1.4), (20.0, 33e-3, 8.0)] {
        let q = gaussian(queries.count(), 31);
        let offsets = gaussian(64, 32);
        let shifted = gaussian(keys.count(), 33).into_iter().enumerate();
        let k: Vec<f32> = shifted.map(|(index, value)| value + offset * offsets[index % 64]).collect();
        let v = gaussian(keys.count(), 34);
        let wide = |values: &[f32]| values.iter().map(|value| f64::from(*value)).collect::<Vec<_>>();
        let reference = eightfold::reference::attention(&problem, &wide(&q), &wide(&k), &wide(&v)).unwrap();
        let error_in = |format| {
            let problem = problem.with_input_format(format);
            let [q, k, v] = eightfold::quantize::for_attention(&problem, [&q[..], &k, &v]).unwrap();
            let output = eightfold::attention(&problem, &q, &k, &v).unwrap().values.to_f32();
            let pairs = output.iter().zip(&reference.values);
            let squares = pairs.map(|(found, expected)| (f64::from(*found) - expected).powi(2)).sum::<f64>();
            (squares / reference.values.iter().map(|value| value * value).sum::<f64>()).sqrt()
        };
        let (int8, e4m3) = (error_in(Fp8Format::Int8), error_in(Fp8Format::E4m3));
        assert!(int8 <= int8_limit && e4m3 >= least_gain * int8, "offset {offset}: {int8:.4} and {e4m3:.4}");
    }
}

#[test]
fn outliers_are_met_with_balance_or_fall_back_but_never_with_error() {
    let shape = Shape::new(1, 2, 384, 64);
    let problem = Problem::new(shape).unwrap();
    let base = Case::gaussian(problem, 3);
    let dims = shape.key_dims();
    let with_keys = |edit: &dyn Fn(usize, usize, f32) -> f32| {
        let mut keys = gaussian(dims.count(), 4);
        for (index, key) in keys.iter_mut().enumerate() {
            *key = edit(index / dims.head_dim % dims.len, index % dims.head_dim, *key);
        }
        Case { k: eightfold::quantize(&keys, dims).unwrap(), q: base.q.clone(), v: base.v.clone(), problem }
    };
    let cases: [(&str, Case); 4] = [
        ("a channel x20", with_keys(&|_, channel, key| if channel == 3 { key * 20.0 } else { key })),
        ("a channel x100", with_keys(&|_, channel, key| if channel == 3 { key * 100.0 } else { key })),
        ("a key x50", with_keys(&|row, _, key| if row == 100 { key * 50.0 } else { key })),
        ("every key x1000", with_keys(&|_, _, key| key * 1000.0)),
    ];
    for (name, case) in &cases {
        let (error, _, report) = case.run(default_with(Numbers::Int16));
        assert!(error <= 3e-3, "{name}: {error:.2e} with {report:?}");
    }
    let (_, _, report) = cases[3].1.run(default_with(Numbers::Int16));
    assert!(report.tiles_in_f32 > 0, "scores in the thousands cannot be left to fixed point: {report:?}");
}

#[test]
fn weights_below_the_integer_step_are_not_lost() {
    // One key stands 10.5 nats above the others, whose weights all round to zero: together they are a few per cent.
    let shape = Shape::new(1, 1, 64, 64);
    let problem = Problem::new(shape.with_key_len(1024)).unwrap().with_softmax_scale(1.0).unwrap();
    let (q_dims, k_dims) = (problem.shape().query_dims(), problem.shape().key_dims());
    let q: Vec<f32> = (0..q_dims.count()).map(|index| if index % 64 == 0 { 1.0 } else { 0.0 }).collect();
    let k: Vec<f32> = (0..k_dims.count()).map(|index| if index == 0 { 10.5 } else { 0.0 }).collect();
    let case = Case {
        problem,
        q: eightfold::quantize(&q, q_dims).unwrap(),
        k: eightfold::quantize(&k, k_dims).unwrap(),
        v: eightfold::quantize(&gaussian(k_dims.count(), 5), k_dims).unwrap(),
    };
    let (error, _, report) = case.run(default_with(Numbers::Int16));
    assert!(report.rows_refined > 0, "the rows need a second product: {report:?}");
    assert!(error <= 3e-4, "{error:.2e}");
}

#[test]
fn rows_that_see_nothing_are_zero_with_an_empty_sum() {
    let shape = Shape::new(1, 2, 40, 16).with_key_len(8);
    let problem = Problem::new(shape).unwrap().causal().with_lse(true);
    let case = Case::gaussian(problem, 1);
    let configs = [default_with(Numbers::F32), default_with(Numbers::Int16), twin_with(Numbers::Bf16)];
    for config in configs {
        let mut output = Output::zeros(&problem);
        output.poison();
        attention_with(&config, &problem, &case.q, &case.k, &case.v, &mut output).unwrap();
        let values = output.values.to_f32();
        assert!(values[..32 * 16].iter().all(|value| *value == 0.0));
        assert!(output.lse.unwrap()[..32].iter().all(|lse| *lse == f32::NEG_INFINITY));
        assert_eq!(problem.mask(), Mask::Causal);
    }
}

#[test]
fn results_do_not_depend_on_the_threads() {
    // Few heads and few queries: with four threads the keys are split, and the parts merged.
    for shape in [Shape::new(1, 2, 1, 64).with_key_len(4096), Shape::new(1, 1, 300, 64)] {
        let case = Case::gaussian(Problem::new(shape).unwrap().with_lse(true), 9);
        for threads in [1, 2, 4, 7] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let (error, lse_error, _) = pool.install(|| case.run(default_with(Numbers::F32)));
            assert!(error <= 2e-6 && lse_error <= 1e-5, "{threads} threads: {error:.2e}, {lse_error:.2e}");
        }
    }
}

fn twin_with(numbers: Numbers) -> Config {
    Config { numbers, ..format!("amx,simd={}", Simd::AmxTwin).parse().unwrap() }
}

#[test]
fn tiles_meet_the_declared_errors_whatever_the_scores() {
    for (len, head_dim, scale) in [(300, 64, None), (200, 128, None), (200, 64, Some(3.0)), (140, 96, Some(1e4))] {
        let problem = Problem::new(Shape::new(1, 2, len, head_dim)).unwrap().causal().with_lse(true);
        let problem = scale.map_or(problem, |scale| problem.with_softmax_scale(scale).unwrap());
        let case = Case::gaussian(problem, 11);
        // Where scores are steep, their own rounding shows in f32 as well.
        let (in_f32, ..) = case.run(default_with(Numbers::F32));
        let (error, lse_error, _) = case.run(twin_with(Numbers::Bf16));
        let lse_limit = 5e-3 + 1e-5 * scale.unwrap_or(1.0) as f64 * 100.0;
        assert!(error <= 3e-3 + 2.0 * in_f32 && lse_error <= lse_limit, "{problem}: {error:.2e}, {lse_error:.2e}");
        let (error, lse_error, _) = case.run(twin_with(Numbers::Bf16x2));
        assert!(error <= 8e-6 + 2.0 * in_f32 && lse_error <= lse_limit, "{problem}: {error:.2e}, {lse_error:.2e}");
    }
}

#[test]
fn references_follow_scores_that_rise_along_the_keys() {
    // Every chunk of keys has scores some 25 above those of the one before, in units of log₂.
    let shape = Shape::new(1, 1, 40, 64).with_key_len(700);
    let problem = Problem::new(shape).unwrap().with_softmax_scale(1.0).unwrap().with_lse(true);
    let (q_dims, k_dims) = (shape.query_dims(), shape.key_dims());
    let q: Vec<f32> = (0..q_dims.count()).map(|index| if index % 64 == 0 { 1.0 } else { 0.0 }).collect();
    let row_of = |index: usize| (index / 64) as f32;
    let rising: Vec<f32> =
        (0..k_dims.count()).map(|index| if index % 64 == 0 { row_of(index) / 7.0 } else { 0.0 }).collect();
    let falling: Vec<f32> = rising.iter().map(|key| -key).collect();
    for keys in [rising, falling] {
        let case = Case {
            problem,
            q: eightfold::quantize(&q, q_dims).unwrap(),
            k: eightfold::quantize(&keys, k_dims).unwrap(),
            v: eightfold::quantize(&gaussian(k_dims.count(), 6), k_dims).unwrap(),
        };
        for (numbers, limit) in [(Numbers::Bf16, 6e-3), (Numbers::Bf16x2, 2e-5)] {
            let (error, lse_error, _) = case.run(twin_with(numbers));
            assert!(error <= limit && lse_error <= 1e-2, "{numbers}: {error:.2e}, {lse_error:.2e}");
        }
    }
}

#[test]
fn tiles_hold_values_of_any_size() {
    // The first rows see keys whose scale is far below the largest, under scores that leave weights small.
    let shape = Shape::new(1, 1, 64, 64);
    let problem = Problem::new(shape).unwrap().causal().with_softmax_scale(0.8).unwrap();
    let dims = shape.query_dims();
    let quantizer = Quantizer::new(Fp8Format::E4m3).with_granularity(Granularity::Block { rows: 32 });
    for (first, last) in [(1e-18, 1.0), (1e-30, 1e-30), (1e25, 1e25)] {
        let size = |index: usize| if index < 32 * 64 { first } else { last };
        let v: Vec<f32> = gaussian(dims.count(), 8).iter().enumerate().map(|(index, v)| v * size(index)).collect();
        let case = Case {
            problem,
            q: eightfold::quantize(&vec![1.0f32; dims.count()], dims).unwrap(),
            k: eightfold::quantize(&vec![-1.0f32; dims.count()], dims).unwrap(),
            v: quantizer.quantize(&v, dims, Layout::Bhsd).unwrap(),
        };
        let (error, ..) = case.run(twin_with(Numbers::Bf16x2));
        assert!(error <= 2e-5, "{first:e} and {last:e}: {error:.2e}");
        // Rows that see nothing but the first keys are small beside the others: they are judged alone.
        let mut output = Output::zeros(&problem);
        attention_with(&twin_with(Numbers::Bf16), &problem, &case.q, &case.k, &case.v, &mut output).unwrap();
        let expected =
            reference::attention(&problem, &case.q.dequantize(), &case.k.dequantize(), &case.v.dequantize()).unwrap();
        let error = relative_l2(&output.values.to_f32()[..32 * 64], &expected.values[..32 * 64]);
        assert!(error <= 6e-3, "{first:e}: {error:.2e}");
    }
}

/// A sequence alone and the same one in a batch: the same bits, where they must be. Else a lone sequence has its keys split.
#[test]
fn a_batch_changes_no_bit_where_it_must_not() {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(4).build().unwrap();
    let mut differing = 0;
    for shape in ["1,2,300,64", "1,1,1,1,5000,64", "1,4,2,3,700,40", "1,8,33,128"] {
        let shape: Shape = shape.parse().unwrap();
        // Of seven sequences.
        let values = [(shape.query_dims(), 1), (shape.key_dims(), 2), (shape.key_dims(), 3)]
            .map(|(dims, kind)| [0, 1, 2, 3, 4, 5, 6].map(|index| gaussian(dims.count(), 10 * index + kind)));
        let run = |problem: Problem, sequences: Range<usize>| {
            let quantize =
                |tensor: usize, dims| eightfold::quantize(&values[tensor][sequences.clone()].concat(), dims).unwrap();
            let shape = problem.shape();
            let (queries, keys) = (shape.query_dims(), shape.key_dims());
            let (q, k, v) = (quantize(0, queries), quantize(1, keys), quantize(2, keys));
            pool.install(|| eightfold::attention(&problem, &q, &k, &v)).unwrap()
        };
        for mask in [Mask::None, Mask::Causal] {
            let of = |batch| Problem::new(shape.with_batch(batch)).unwrap().with_mask(mask).with_lse(true);
            let together = run(of(7).batch_invariant(), 0..7);
            let values = together.values.to_f32();
            for index in [0, 3, 6] {
                let alone = run(of(1).batch_invariant(), index..index + 1);
                let (of_one, lse) = (alone.values.to_f32(), alone.lse.unwrap());
                assert_eq!(of_one, values[index * of_one.len()..][..of_one.len()], "{shape}, sequence {index}");
                let all = together.lse.as_ref().unwrap();
                assert_eq!(lse, all[index * lse.len()..][..lse.len()], "{shape}, sequence {index}");
            }
            let free = run(of(7), 0..7).values.to_f32();
            let alone = run(of(1), 0..1).values.to_f32();
            differing += usize::from(alone != free[..alone.len()]);
        }
    }
    assert!(differing > 0, "the batch never counts, so nothing was tested");
}

/// Every head dim with both masks, windows from none to all, sinks and a softcap, on lengths that divide nothing.
#[test]
fn every_head_dim_meets_every_window() {
    const HEAD_DIMS: [usize; 12] = [8, 24, 64, 72, 80, 96, 112, 128, 136, 160, 192, 256];
    const WINDOWS: [usize; 6] = [0, 1, 63, 64, 65, 1000];
    const SCORINGS: [(bool, Option<f32>); 4] = [(false, None), (true, None), (false, Some(2.0)), (true, Some(20.0))];
    // All of them, or by turns as few as `EIGHTFOLD_SAMPLE` says: under emulation one.
    let sample = std::env::var("EIGHTFOLD_SAMPLE").map_or(SCORINGS.len(), |count| count.parse().expect("a number"));
    let mut turn = 0usize;
    for (index, head_dim) in HEAD_DIMS.into_iter().enumerate() {
        for mask in [Mask::None, Mask::Causal] {
            for window in WINDOWS {
                turn += 1;
                // More queries than keys, fewer, and one; heads in groups of 1 and 3.
                let (query_len, key_len) = [(37, 211), (150, 71), (1, 301), (67, 67)][turn % 4];
                let shape = Shape::new(1, 3, query_len, head_dim).with_kv_heads([1, 3][turn % 2]).with_key_len(key_len);
                let sides = [Window::new(Some(window), Some(window)), Window::new(Some(window), None)];
                let problem = Problem::new(shape).unwrap().with_mask(mask).with_window(sides[turn % 2]).with_lse(true);
                for (sinks, softcap) in SCORINGS.into_iter().cycle().skip(turn + turn / 4).take(sample) {
                    let value_dim = if sinks { HEAD_DIMS[(index + turn) % 12] } else { head_dim };
                    let problem = problem.with_value_dim(value_dim).unwrap();
                    let problem = softcap.map_or(problem, |softcap| problem.with_softcap(softcap).unwrap());
                    let problem = if sinks { problem.with_sinks() } else { problem };
                    let numbers = Numbers::ALL[(turn + usize::from(sinks)) % 2];
                    let case = Case::gaussian(problem, turn as u64);
                    let (error, lse_error, _) = case.run(default_with(numbers));
                    let (limit, lse_limit) = if numbers == Numbers::F32 { (3e-6, 1e-5) } else { (1e-3, 1e-2) };
                    assert!(error <= limit, "{problem} in {numbers}: relative error {error:.2e}");
                    assert!(lse_error <= lse_limit, "{problem} in {numbers}: log-sum-exp off by {lse_error:.2e}");
                }
            }
        }
    }
}

#[test]
fn rows_that_a_window_leaves_without_keys_have_their_sink_alone() {
    let shape = Shape::new(1, 2, 40, 16).with_key_len(8);
    let window = Window::new(Some(3), Some(2));
    let problem = Problem::new(shape).unwrap().with_window(window).with_lse(true);
    assert!(problem.visible(29).is_empty() && !problem.visible(30).is_empty());
    // A centred V has a mean that such rows must not be given.
    let centred = |case: Case, problem: Problem| {
        let values = gaussian(shape.key_dims().count(), 3).iter().map(|value| value + 3.0).collect::<Vec<_>>();
        let quantizer = Quantizer::new(Fp8Format::E4m3).centered();
        Case { problem, v: quantizer.quantize(&values, shape.key_dims(), Layout::Bhsd).unwrap(), ..case }
    };
    for numbers in [Numbers::F32, Numbers::Int16] {
        let lse = |problem: Problem| {
            let case = centred(Case::gaussian(problem, 1), problem);
            let (error, lse_error, _) = case.run(default_with(numbers));
            assert!(error <= 1e-3 && lse_error <= 1e-2, "{error:.2e}, {lse_error:.2e}");
            let mut output = Output::zeros(&problem);
            output.poison();
            attention_with(&default_with(numbers), &problem, &case.q, &case.k, &case.v, &mut output).unwrap();
            assert!(output.values.to_f32()[..30 * 16].iter().all(|value| *value == 0.0));
            (output.lse.unwrap()[..30].to_vec(), case.q.sinks().map(|sinks| sinks[0]))
        };
        assert_eq!(lse(problem), (vec![f32::NEG_INFINITY; 30], None));
        let (of_rows, sink) = lse(problem.with_sinks());
        assert_eq!(of_rows, vec![sink.unwrap(); 30]);
    }
}

/// With four threads the keys that one query sees are split; a sink must be counted once.
#[test]
fn split_keys_count_a_sink_once() {
    let shape = Shape::new(1, 4, 1, 64).with_kv_heads(1).with_key_len(9000);
    let problem = Problem::new(shape).unwrap().with_sinks().with_softcap(3.0).unwrap().with_lse(true);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(4).build().unwrap();
    for window in [None, Some(6000), Some(100)] {
        let case = Case::gaussian(problem.with_window(Window::new(window, Some(0))), 5);
        let (error, lse_error, _) = pool.install(|| case.run(default_with(Numbers::F32)));
        assert!(error <= 3e-6 && lse_error <= 1e-5, "{}: {error:.2e}, {lse_error:.2e}", case.problem);
    }
}

#[test]
fn tiles_that_no_query_sees_are_not_computed() {
    let tiles = |window: Option<usize>| {
        let problem = Problem::new(Shape::new(1, 1, 2048, 16)).unwrap().causal().with_window(Window::new(window, None));
        Case::gaussian(problem, 1).run(Config { tile_queries: 64, tile_keys: 64, ..default_with(Numbers::F32) }).2.tiles
    };
    // Of 32 × 32 tiles the causal mask leaves a triangle, and a window of 64 keys the diagonal and the tile before.
    assert_eq!((tiles(None), tiles(Some(64)), tiles(Some(0))), (32 * 33 / 2, 32 + 31, 32));
}

#[test]
fn sinks_that_do_not_belong_are_refused() {
    let problem = Problem::new(Shape::new(1, 2, 9, 16)).unwrap();
    let Case { q, k, v, .. } = Case::gaussian(problem, 1);
    let refused = |problem: Problem, q: &Fp8Tensor, k: &Fp8Tensor| {
        eightfold::attention(&problem, q, k, &v).unwrap_err().to_string()
    };
    let sinks = |tensor: &Fp8Tensor<'static>| tensor.clone().with_sinks(vec![0.5, -0.5]).unwrap();
    assert!(refused(problem.with_sinks(), &q, &k).starts_with("sinks: the problem 1,2,9,16 sinks has them, but"));
    assert!(refused(problem, &sinks(&q), &k).starts_with("sinks: q carries them, but"));
    assert!(refused(problem.with_sinks(), &sinks(&q), &sinks(&k)).starts_with("k: carries sinks"));
    let error = |sinks: Vec<f32>| q.clone().with_sinks(sinks).unwrap_err().to_string();
    assert!(error(vec![1.0]).starts_with("sinks: 1 logits for 2 query heads; give one"));
    assert!(error(vec![1.0, f32::NEG_INFINITY]).starts_with("sinks: that of head 1 is -inf"));
}

/// What else a problem may ask for: a V of other channels, scores that are bounded, sinks and windows.
#[test]
fn tiles_know_every_kind_of_problem() {
    let one = Problem::new(Shape::new(1, 1, 1, 8)).unwrap().with_lse(true);
    let many = Problem::new(Shape::new(1, 4, 70, 72).with_kv_heads(2).with_key_len(200)).unwrap().with_lse(true);
    let window = Window::new(Some(40), Some(0));
    let steep = many.with_softmax_scale(3.0).unwrap();
    let problems = [
        one.with_softcap(0.5).unwrap(),
        one.with_value_dim(40).unwrap(),
        many.with_value_dim(136).unwrap(),
        many.with_value_dim(24).unwrap().with_softcap(2.0).unwrap(),
        // Some scores are beyond the bound, and more than what needs no maximum.
        steep.with_softcap(20.0).unwrap(),
        steep.with_softcap(500.0).unwrap().causal(),
        many.with_window(window).with_sinks().with_softcap(5.0).unwrap(),
    ];
    for (index, problem) in problems.into_iter().enumerate() {
        for (centred, rows) in [(false, 0), (true, 0), (true, 48)] {
            let case = Case::gaussian(problem, index as u64);
            let shape = problem.shape();
            let quantize = |dims: Dims, seed| {
                let granularity = if rows == 0 { Granularity::Head } else { Granularity::Block { rows } };
                let quantizer = Quantizer::new(Fp8Format::E4m3).with_granularity(granularity).centered();
                let values: Vec<f32> = gaussian(dims.count(), seed).iter().map(|value| value + 1.5).collect();
                quantizer.quantize(&values, dims, Layout::Bhsd).unwrap()
            };
            let (k, v) = (quantize(shape.key_dims(), 91), quantize(problem.value_dims(), 92));
            let case = if centred { Case { k, v, ..case } } else { case };
            for (numbers, limit, lse_limit) in [(Numbers::Bf16, 6e-3, 8e-3), (Numbers::Bf16x2, 3e-5, 1e-4)] {
                let (error, lse_error, _) = case.run(twin_with(numbers));
                assert!(error <= limit && lse_error <= lse_limit, "{problem}: {error:.2e}, {lse_error:.2e}");
            }
        }
    }
}

#[test]
fn a_batch_changes_no_bit_in_tiles_either() {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(4).build().unwrap();
    let shape: Shape = "3,2,300,64".parse().unwrap();
    let of = |batch| {
        let problem = Problem::new(shape.with_batch(batch)).unwrap().causal().batch_invariant();
        // The first sequence of a batch has the values of one alone.
        let case = Case::gaussian(problem, 31);
        let mut output = Output::zeros(&problem);
        pool.install(|| {
            attention_with(&twin_with(Numbers::Bf16), &problem, &case.q, &case.k, &case.v, &mut output).unwrap()
        });
        output.values.to_f32()
    };
    let (alone, together) = (of(1), of(3));
    assert_eq!(alone, together[..alone.len()]);
}
