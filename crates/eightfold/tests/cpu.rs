//! The CPU kernel against the float64 reference, over shapes, layouts, formats, scales and every knob.

use eightfold::cpu::{Config, Exp, Features, Numbers, Schedule, Simd};
use eightfold::quantize::Quantizer;
use eightfold::{
    Dims, Fp8Format, Fp8Tensor, Granularity, Layout, Mask, Output, OutputFormat, Problem, RunReport, Shape, Variant,
    attention_with, reference,
};
use proptest::prelude::*;

/// Values of N(0, 1), near enough: the sum of twelve uniform numbers.
fn gaussian(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut uniform = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 24) as f32
    };
    (0..count).map(|_| (0..12).map(|_| uniform()).sum::<f32>() - 6.0).collect()
}

fn relative_l2(values: &[f32], expected: &[f64]) -> f64 {
    let error: f64 = values.iter().zip(expected).map(|(value, expected)| (f64::from(*value) - expected).powi(2)).sum();
    let size: f64 = expected.iter().map(|expected| expected * expected).sum();
    if error == 0.0 { 0.0 } else { (error / size).sqrt() }
}

/// An output's values in `[B,H,S,D]` order.
fn in_bhsd_order(problem: &Problem, output: &Output) -> Vec<f32> {
    let dims = problem.shape().query_dims();
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
            q: quantize(shape.query_dims(), seed),
            k: quantize(shape.key_dims(), seed + 1),
            v: quantize(shape.key_dims(), seed + 2),
        }
    }

    /// Runs a config on a poisoned output: the relative error, the largest error of the log-sum-exp, the report.
    fn run(&self, config: Config) -> (f64, f64, RunReport) {
        let Case { problem, q, k, v } = self;
        let mut output = Output::zeros(problem);
        output.poison();
        let report = attention_with(&config, problem, q, k, v, &mut output).unwrap();
        assert_eq!(report.variant, Some(Variant::Cpu(config)));
        let expected = reference::attention(problem, &q.dequantize(), &k.dequantize(), &v.dequantize()).unwrap();
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
        Simd::Scalar | Simd::Portable => true,
        Simd::Avx2 => features.avx2,
        Simd::Avx512 => features.avx512,
    }
}

fn configs() -> impl Strategy<Value = Config> {
    let simd = prop::sample::select(Simd::ALL.iter().copied().filter(|simd| available(*simd)).collect::<Vec<_>>());
    let numbers = prop::sample::select(Numbers::ALL);
    let exp = prop::sample::select(Exp::ALL);
    let schedule = prop::sample::select(Schedule::ALL);
    (numbers, simd, exp, schedule, 1usize..=9, 1usize..=9).prop_map(|(numbers, simd, exp, schedule, queries, keys)| {
        let plain = simd == Simd::Scalar;
        Config {
            numbers: if plain { Numbers::F32 } else { numbers },
            simd,
            exp: if plain { Exp::Exact } else { exp },
            schedule,
            tile_queries: 8 * queries,
            tile_keys: 16 * keys,
        }
    })
}

fn shapes() -> impl Strategy<Value = Shape> {
    let head_dim = prop::sample::select(vec![8, 16, 24, 40, 64, 72, 96, 128, 136, 256]);
    (1usize..=2, 1usize..=3, 1usize..=4, 1usize..=70, 1usize..=150, head_dim).prop_map(
        |(batch, kv_heads, group, query_len, key_len, head_dim)| Shape {
            batch,
            query_heads: kv_heads * group,
            kv_heads,
            query_len,
            key_len,
            head_dim,
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
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever the problem, the tensors and the knobs, the result is attention.
    #[test]
    fn every_config_computes_attention(
        shape in shapes(),
        config in configs(),
        causal in any::<bool>(),
        format in prop::sample::select(vec![Fp8Format::E4m3, Fp8Format::E5m2]),
        output_format in prop::sample::select(vec![OutputFormat::F32, OutputFormat::F16, OutputFormat::Bf16]),
        output_layout in prop::sample::select(vec![Layout::Bhsd, Layout::Bshd]),
        q_style in quantizers(),
        k_style in quantizers(),
        v_style in quantizers(),
        v_transposed in any::<bool>(),
        scale in prop_oneof![Just(None), (0.01f32..2.0).prop_map(Some)],
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
        let quantize = |dims: Dims, (granularity, layout, centered): (Granularity, Layout, bool), seed: u64| {
            let quantizer = Quantizer::new(format).with_granularity(granularity).with_layout(layout);
            let quantizer = if centered { quantizer.centered() } else { quantizer };
            quantizer.quantize(&gaussian(dims.count(), seed), dims, Layout::Bhsd).unwrap()
        };
        let seed = u64::from(seed);
        let case = Case {
            problem,
            q: quantize(shape.query_dims(), (q_style.0, q_style.1, false), seed),
            k: quantize(shape.key_dims(), k_style, seed + 1),
            v: quantize(
                shape.key_dims(),
                (v_style.0, if v_transposed { Layout::Bhds } else { v_style.1 }, v_style.2),
                seed + 2,
            ),
        };
        let (error, lse_error, _) = case.run(config);
        let rounding = match output_format {
            OutputFormat::F32 => 0.0,
            OutputFormat::F16 => 3e-4,
            OutputFormat::Bf16 => 2.5e-3,
        };
        // Scores have a spread of scale·√D, and f32 rounds them in proportion.
        let spread = f64::from(problem.softmax_scale()) * (shape.head_dim as f64).sqrt();
        let limit = rounding + if config.numbers == Numbers::F32 { 2e-6 * spread.max(1.0) } else { 1e-3 };
        prop_assert!(error <= limit, "relative error {error:.2e} above {limit:.1e}");
        let lse_limit = if config.numbers == Numbers::F32 { 1e-5 * spread.max(1.0) } else { 1e-2 };
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
    let problem = Problem::new(Shape { key_len: 1024, ..shape }).unwrap().with_softmax_scale(1.0).unwrap();
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
    assert!(report.rows_refined > 0, "the rows need a second limb: {report:?}");
    assert!(error <= 3e-4, "{error:.2e}");
}

#[test]
fn rows_that_see_nothing_are_zero_with_an_empty_sum() {
    let shape = Shape { query_len: 40, key_len: 8, ..Shape::new(1, 2, 0, 16) };
    let problem = Problem::new(shape).unwrap().causal().with_lse(true);
    let case = Case::gaussian(problem, 1);
    for numbers in [Numbers::F32, Numbers::Int16] {
        let mut output = Output::zeros(&problem);
        output.poison();
        let config = default_with(numbers);
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
    for shape in [Shape { query_len: 1, key_len: 4096, ..Shape::new(1, 2, 0, 64) }, Shape::new(1, 1, 300, 64)] {
        let case = Case::gaussian(Problem::new(shape).unwrap().with_lse(true), 9);
        for threads in [1, 2, 4, 7] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let (error, lse_error, _) = pool.install(|| case.run(default_with(Numbers::F32)));
            assert!(error <= 2e-6 && lse_error <= 1e-5, "{threads} threads: {error:.2e}, {lse_error:.2e}");
        }
    }
}

/// A sequence alone and the same one in a batch: the same bits, where they must be. Else a lone sequence has its keys split.
#[test]
fn a_batch_changes_no_bit_where_it_must_not() {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(4).build().unwrap();
    // Of so many sequences, from the first of them on.
    let run = |problem: Problem, batch: usize, first: usize| {
        let shape = problem.shape();
        let kinds = [(shape.query_dims(), 1), (shape.key_dims(), 2), (shape.key_dims(), 3)];
        let [q, k, v] = kinds.map(|(dims, kind)| {
            let of_sequence = |index| gaussian(dims.count() / batch, 10 * index as u64 + kind);
            let values: Vec<f32> = (first..first + batch).flat_map(of_sequence).collect();
            eightfold::quantize(&values, dims).unwrap()
        });
        pool.install(|| eightfold::attention(&problem, &q, &k, &v)).unwrap()
    };
    let mut differing = 0;
    for shape in ["1,2,300,64", "1,1,1,1,5000,64", "1,4,2,3,700,40", "1,8,33,128"] {
        let shape: Shape = shape.parse().unwrap();
        for mask in [Mask::None, Mask::Causal] {
            let of = |batch| Problem::new(Shape { batch, ..shape }).unwrap().with_mask(mask).with_lse(true);
            let together = run(of(7).batch_invariant(), 7, 0);
            let values = together.values.to_f32();
            for index in [0, 3, 6] {
                let alone = run(of(1).batch_invariant(), 1, index);
                let (of_one, lse) = (alone.values.to_f32(), alone.lse.unwrap());
                assert_eq!(of_one, values[index * of_one.len()..][..of_one.len()], "{shape}, sequence {index}");
                let all = together.lse.as_ref().unwrap();
                assert_eq!(lse, all[index * lse.len()..][..lse.len()], "{shape}, sequence {index}");
            }
            let free = run(of(7), 7, 0).values.to_f32();
            let alone = run(of(1), 1, 0).values.to_f32();
            differing += usize::from(alone != free[..alone.len()]);
        }
    }
    assert!(differing > 0, "the batch never counts, so nothing was tested");
}
