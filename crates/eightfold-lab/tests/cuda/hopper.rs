//! The hopper kernel against the float64 reference, on a device that it is for. Most of the time goes into compiling, so cases
//! run side by side.

use crate::support::{device, gaussian, on_simulator, relative_l2, small_tensors, some, tensors, watched};
use eightfold::cuda::driver::{Device, Stream};
use eightfold::cuda::tensor::{DeviceOutput, DeviceTensor};
use eightfold::cuda::{Arch, Kernel, Operands, Workspace, attention};
use eightfold::lab::Config as AnyConfig;
use eightfold::lab::hopper::{Config, Grid, Keys, STAGES, Share, Weights, choose, target};
use eightfold::quantize::{Quantizer, SMALL_CODES};
use eightfold::reference::Reference;
use eightfold::{
    Accuracy, Dims, Fp8Format, Fp8Tensor, Granularity, Layout, Mask, Output, OutputFormat, Problem, Result, Shape,
    Target, Variant, reference,
};
use eightfold_lab::examine::Candidate;
use eightfold_lab::gates::{Thresholds, timing_cases};
use eightfold_lab::measure::{Contestant, CudaContestant, Rotation, Timer};
use eightfold_lab::{choice, kernel};
use rayon::prelude::*;

/// A device that the kernel is for.
fn hopper() -> Option<(Device, Stream)> {
    let (device, stream) = device()?;
    if let Err(error) = target(device.arch().unwrap()) {
        eprintln!("skipped: {error}");
        return None;
    }
    Some((device, stream))
}

fn expected(problem: &Problem, [q, k, v]: &[Fp8Tensor; 3]) -> Reference {
    reference::attention(problem, &q.dequantize(), &k.dequantize(), &v.dequantize()).unwrap()
}

/// Its knobs, if it is of the kernel.
fn hopper_config(variant: &Variant) -> Option<Config> {
    match variant.on_device()? {
        AnyConfig::Hopper(config) => Some(config),
        _ => None,
    }
}

/// The relative error that FP8 weights leave, or pairs of them; over few keys it is larger than over many.
fn tolerance(config: &Config) -> f64 {
    if config.weights == Weights::Split { 0.005 } else { 0.045 }
}

fn run(problem: &Problem, config: Config, inputs: &[Fp8Tensor; 3]) -> Output {
    try_run(problem, config, inputs).unwrap()
}

fn try_run(problem: &Problem, config: Config, [q, k, v]: &[Fp8Tensor; 3]) -> Result<Output> {
    let mut output = Output::zeros(problem);
    output.poison();
    let variant = Variant::from(config);
    let what = format!("{config} {problem} {:?}", problem.output_format());
    watched(&what, || choice::run(&variant, problem, q, k, v, &mut output))?;
    Ok(output)
}

#[track_caller]
fn assert_close(output: &Output, expected: &Reference, most: f64, what: &str) {
    let error = relative_l2(&output.values.to_f32(), &expected.values);
    assert!(error < most, "{what}: {error}");
    for (lse, expected) in output.lse.iter().flatten().zip(&expected.lse) {
        let close = (f64::from(*lse) - expected).abs() < 0.08 || f64::from(*lse) == *expected;
        assert!(close, "{what}: log-sum-exp {lse} instead of {expected}");
    }
}

/// Tails of queries and keys, fewer and more queries than keys, packed heads, rows that see nothing.
fn odd_shapes() -> Vec<Shape> {
    vec![
        Shape::new(1, 2, 200, 64),
        Shape::new(2, 4, 70, 128).with_kv_heads(2).with_key_len(133),
        Shape::new(1, 2, 65, 64).with_query_len(1),
        Shape::new(2, 8, 3, 128).with_kv_heads(1).with_key_len(517),
        Shape::new(1, 6, 20, 64).with_kv_heads(2).with_key_len(1000),
        Shape::new(1, 1, 300, 64).with_key_len(70),
        Shape::new(1, 3, 1025, 128),
    ]
}

#[test]
fn every_stage_computes_attention() {
    if hopper().is_none() {
        return;
    }
    some(&odd_shapes(), 2).into_par_iter().for_each(|shape| {
        for mask in [Mask::None, Mask::Causal] {
            let problem = Problem::new(shape).unwrap().with_lse(true).with_mask(mask);
            let inputs = small_tensors(&problem, 120);
            let expected = expected(&problem, &inputs);
            STAGES.par_iter().for_each(|stage| {
                let config = stage.at(shape.head_dim, mask);
                let what = format!("{} {problem}", stage.name);
                assert_close(&run(&problem, config, &inputs), &expected, tolerance(&config), &what);
            });
        }
    });
}

/// What is timed without overlap is the same launch.
#[test]
fn launches_that_wait_for_each_other_give_the_bits_of_those_that_overlap() {
    let Some((device, stream)) = hopper() else { return };
    let problem = Problem::new(Shape::new(1, 2, 200, 64)).unwrap();
    let [q, k, v] = small_tensors(&problem, 150)
        .map(|tensor| DeviceTensor::upload(&device, &stream, &tensor, Layout::Bhsd).unwrap());
    let output = DeviceOutput::new(&device, &problem).unwrap();
    for (launch, overlaps) in [("dependent", true), ("plain", false)] {
        let variant: Variant = format!("hopper:fast,warpgroups=1,launch={launch}").parse().unwrap();
        let kernel = Kernel::of(&device, &problem, &variant.on_device().unwrap(), &Operands::of(&q, &k, &v)).unwrap();
        let arguments = kernel.arguments(&problem, [&q, &k, &v], &output).unwrap();
        assert_eq!(arguments.may_overlap(), overlaps);
        let separate = arguments.clone().without_overlap();
        assert!(!separate.may_overlap());
        let mut workspace = Workspace::new(&stream, arguments.workspace_bytes()).unwrap();
        let bits = [&arguments, &separate].map(|arguments| {
            let mut values = Output::zeros(&problem);
            watched(launch, || {
                for _ in 0..3 {
                    // SAFETY: all of it lives until the stream is done, and all launches are in one stream.
                    unsafe { kernel.launch(&stream, arguments, &mut workspace) }.unwrap();
                }
                stream.synchronize().unwrap();
            });
            output.download(&stream, &mut values).unwrap();
            values.values.to_f32()
        });
        assert_eq!(bits[0], bits[1], "launch={launch}");
        assert!(bits[0].iter().any(|value| *value != 0.0));
    }
}

/// By replay, singly, and by a replay without overlap; who never overlaps needs no third.
#[test]
fn what_may_overlap_is_also_timed_without_overlap() {
    if hopper().is_none() {
        return;
    }
    let problem = Problem::new(Shape::new(1, 1, 64, 64)).unwrap().with_output_format(OutputFormat::Bf16);
    let policy = Thresholds::embedded().correctness.reference;
    let candidate = Candidate::new("fast", "hopper:fast".parse().unwrap());
    let cases = timing_cases(&problem, &[candidate], &policy).unwrap();
    for (launch, timers) in [
        ("dependent", vec![Timer::GraphReplay, Timer::Event, Timer::SeparateReplay]),
        ("plain", vec![Timer::GraphReplay, Timer::Event]),
    ] {
        let variant: Variant = format!("hopper:fast,warpgroups=1,launch={launch}").parse().unwrap();
        let inputs = Rotation::one(&cases[0], None);
        let mut lanes = CudaContestant::of_each_timer(launch, &variant.on_device().unwrap(), inputs).unwrap();
        assert_eq!(lanes.iter().map(CudaContestant::timer).collect::<Vec<_>>(), timers);
        for lane in &mut lanes {
            watched(launch, || {
                lane.prepare().unwrap();
                assert_eq!(lane.run_block(1).unwrap().len(), 1);
                lane.verify().unwrap();
            });
        }
    }
}

/// More causal tiles than multiprocessors, which a list of each block's deals out; `attention` has none, and deals them
/// out in rounds.
#[test]
fn causal_tiles_give_the_same_bits_whichever_block_does_them() {
    let Some((device, stream)) = hopper() else { return };
    let multiprocessors = device.info().multiprocessors;
    for (query_len, key_len, head_dim) in some(&[(901, 701, 64), (701, 901, 64), (777, 1001, 128), (777, 333, 128)], 4)
    {
        let shape = Shape::new(3, 12, query_len, head_dim).with_kv_heads(4).with_key_len(key_len);
        let problem = Problem::new(shape).unwrap().causal().with_lse(true);
        let inputs = small_tensors(&problem, 190);
        let expected = expected(&problem, &inputs);
        let layouts = [Layout::Bhsd, Layout::Bshd, Layout::Packed];
        let [q, k, v]: [DeviceTensor; 3] = std::array::from_fn(|index| {
            DeviceTensor::upload(&device, &stream, &inputs[index], layouts[index]).unwrap()
        });
        for accuracy in [Accuracy::Fast, Accuracy::Precise] {
            let problem = problem.with_accuracy(accuracy);
            let (config, _) = choose(&problem, &Operands::of(&q, &k, &v), multiprocessors);
            let what = format!("{config} {problem}");
            let tiles = query_len.div_ceil(config.tile_queries()) * 3 * 12;
            assert!(config.warpgroups > 1 && tiles > multiprocessors, "{what}");
            let listed = run(&problem, config, &inputs);
            assert_close(&listed, &expected, tolerance(&config), &what);
            let mut on_device = DeviceOutput::new(&device, &problem).unwrap();
            on_device.poison(&stream).unwrap();
            attention(&stream, &problem, &q, &k, &v, &mut on_device).unwrap();
            let mut in_rounds = Output::zeros(&problem);
            on_device.download(&stream, &mut in_rounds).unwrap();
            assert_eq!(listed, in_rounds, "{what}");
        }
    }
}

/// Knobs in combinations that no stage has.
#[test]
fn configs_drawn_at_random_compute_attention() {
    let Some((device, _)) = hopper() else { return };
    let count: usize = std::env::var("EIGHTFOLD_DRAWS")
        .ok()
        .and_then(|count| count.parse().ok())
        .unwrap_or(if on_simulator() { 8 } else { 40 });
    let shapes = [
        Shape::new(2, 4, 131, 64).with_kv_heads(2).with_key_len(300),
        Shape::new(1, 8, 5, 128).with_kv_heads(2).with_key_len(2500),
        Shape::new(1, 2, 77, 128).with_key_len(161),
        Shape::new(2, 32, 513, 64),
    ];
    let prepared: Vec<_> = shapes
        .into_iter()
        .flat_map(|shape| [Problem::new(shape).unwrap(), Problem::new(shape).unwrap().causal()])
        .map(|problem| {
            let inputs = small_tensors(&problem, 122);
            let expected = expected(&problem, &inputs);
            (problem, inputs, expected)
        })
        .collect();
    let suits = |(config, (problem, ..)): &(Config, &(Problem, _, _))| {
        AnyConfig::from(*config).check_uploaded(problem, &Operands::assumed(problem), device.arch().unwrap()).is_ok()
    };
    let drawn = kernel::Kernel::HOPPER.draws(3).filter_map(|variant| hopper_config(&variant));
    let drawn: Vec<_> = drawn.zip(prepared.iter().cycle()).filter(suits).take(count).collect();
    drawn.into_par_iter().for_each(|(config, (problem, inputs, expected))| {
        let what = format!("{config} {problem}");
        match try_run(problem, config, inputs) {
            Ok(output) => assert_close(&output, expected, tolerance(&config), &what),
            // How many keys a block sums is known when the device is: too many for promote=0 are refused then.
            Err(error) => assert!(error.to_string().starts_with("promote: "), "{what}: {error}"),
        }
    });
}

const FEW_KEYS: [(usize, usize); 9] =
    [(64, 64), (1, 1), (63, 63), (65, 65), (200, 129), (3, 130), (129, 192), (70, 255), (256, 256)];
const MORE_KEYS: [(usize, usize); 5] = [(100, 257), (511, 511), (17, 384), (300, 70), (512, 512)];

/// Every way in which few keys can lie in their tile: none missing, one, almost all; more and fewer queries than keys;
/// packed heads; rows that see nothing; every accuracy, both head dims, either kind of score and of output.
#[test]
fn all_keys_at_once_compute_attention() {
    compute_at_once(&FEW_KEYS, Mask::None);
}

#[test]
fn all_keys_at_once_compute_causal_attention() {
    compute_at_once(&FEW_KEYS, Mask::Causal);
}

#[test]
fn up_to_512_keys_at_once_compute_attention() {
    compute_at_once(&MORE_KEYS, Mask::None);
}

#[test]
fn up_to_512_keys_at_once_compute_causal_attention() {
    compute_at_once(&MORE_KEYS, Mask::Causal);
}

fn compute_at_once(lengths: &[(usize, usize)], mask: Mask) {
    if hopper().is_none() {
        return;
    }
    let lengths: Vec<_> = lengths.iter().copied().zip([64, 128].into_iter().cycle()).collect();
    some(&lengths, 3).into_par_iter().for_each(|((query_len, key_len), head_dim)| {
        let shape = Shape::new(2, 4, query_len, head_dim).with_kv_heads(2).with_key_len(key_len);
        let problem = Problem::new(shape).unwrap().with_lse(true).with_mask(mask);
        let narrow = small_tensors(&problem, 124);
        let wide = tensors(&problem, 125);
        for (inputs, accuracies) in [(narrow, Accuracy::ALL), (wide, &[Accuracy::Precise])] {
            let expected = expected(&problem, &inputs);
            let [q, k, v] = &inputs;
            let operands = Operands::of_host(q, k, v);
            accuracies.par_iter().for_each(|accuracy| {
                let (config, _) = choose(&problem.with_accuracy(*accuracy), &operands, 132);
                let what = format!("{config} {problem}");
                assert!(config.keys == Keys::AtOnce || key_len > 256, "{what}");
                let outputs = [(); 2].map(|()| run(&problem, config, &inputs));
                assert_close(&outputs[0], &expected, tolerance(&config), &what);
                assert_eq!(outputs[0], outputs[1], "{what} differs from run to run");
                let rounded = problem.with_output_format(OutputFormat::Bf16);
                let rounded = run(&rounded, config, &inputs);
                assert_close(&rounded, &expected, tolerance(&config), &format!("{what} in bf16"));
                if config.keys == Keys::AtOnce && matches!(accuracy, Accuracy::Fast | Accuracy::Precise) {
                    compute_as_alone(&problem, config, &inputs, &outputs[0], &expected);
                }
            });
        }
    });
}

/// Blocks that bring V for each other, blocks among others without work and blocks of two warpgroups compute the same bits
/// as blocks on their own; the latter, for which the mask places keys differently, only without it.
fn compute_as_alone(problem: &Problem, alone: Config, inputs: &[Fp8Tensor; 3], bits: &Output, expected: &Reference) {
    let [q, k, v] = inputs;
    let operands = Operands::of_host(q, k, v);
    for (share, grid, warpgroups) in [
        (Share::Nothing, Grid::Rounds, 1),
        (Share::Values, Grid::Rounds, 1),
        (Share::Nothing, Grid::Work, 2),
        (Share::Values, Grid::Rounds, 2),
    ] {
        let config = Config { share, grid, warpgroups, ..alone };
        if AnyConfig::from(config).check_uploaded(problem, &operands, Arch::Sm90a).is_ok() {
            let output = run(problem, config, inputs);
            let what = format!("{config} {problem}");
            assert_close(&output, expected, tolerance(&config), &what);
            let places_keys_alike = problem.mask() == Mask::None || warpgroups == 1;
            assert!(!places_keys_alike || output == *bits, "{what} has other bits than blocks on their own");
        }
    }
}

/// Terms of one sign, which long FP8 sums lose: by blocks that do all keys, and as the plan has them shared.
#[test]
fn values_with_a_mean_are_summed_right() {
    let Some((device, _)) = hopper() else { return };
    for (mean, most) in [(1.0, 5e-3), (0.1, 9e-3)] {
        some(&[(4096, 64), (16384, 128), (131_072, 64), (131_072, 128)], 4).into_par_iter().for_each(
            |(key_len, head_dim)| {
                let shape = Shape::new(1, 2, 64, head_dim).with_key_len(key_len);
                let problem = Problem::new(shape).unwrap();
                let [q, k, _] = small_tensors(&problem, 130);
                let dims = shape.key_dims();
                let values: Vec<f32> = gaussian(dims.count(), 133).iter().map(|value| value + mean).collect();
                let inputs = [q, k, eightfold::quantize(&values, dims).unwrap()];
                let expected = expected(&problem, &inputs);
                let [q, k, v] = &inputs;
                let operands = Operands::of_host(q, k, v);
                let planned = Accuracy::ALL.iter().map(|accuracy| {
                    choose(&problem.with_accuracy(*accuracy), &operands, device.info().multiprocessors).0
                });
                let alone = STAGES.iter().map(|stage| stage.at(head_dim, problem.mask()));
                for config in alone.chain(planned) {
                    let what = format!("{config} {problem} mean {mean}");
                    assert_close(&run(&problem, config, &inputs), &expected, most, &what);
                }
            },
        );
    }
}

#[test]
fn blocks_that_share_keys_add_up_their_parts() {
    if hopper().is_none() {
        return;
    }
    let shape = Shape::new(1, 32, 1, 128).with_kv_heads(4).with_key_len(8192 - 77);
    for accuracy in [Accuracy::Fast, Accuracy::Precise] {
        let problem = Problem::new(shape).unwrap().with_lse(true).with_accuracy(accuracy);
        let inputs = small_tensors(&problem, 140);
        let config = hopper_config(&choice::choose(&problem).unwrap().variant).unwrap();
        assert_eq!(config.split_keys.to_string(), "on");
        let expected = expected(&problem, &inputs);
        for config in [config, Config { launch: eightfold::lab::hopper::Launch::Dependent, ..config }] {
            let outputs = [(); 3].map(|()| run(&problem, config, &inputs));
            assert_close(&outputs[0], &expected, tolerance(&config), &config.to_string());
            assert!(outputs.iter().all(|output| *output == outputs[0]), "{config} differs from run to run");
        }
    }
}

#[test]
fn scales_of_every_granularity_and_centred_tensors_are_used() {
    if hopper().is_none() {
        return;
    }
    some(&[(64, 700), (128, 700), (128, 256), (64, 250)], 2).into_par_iter().for_each(|(head_dim, len)| {
        let problem = Problem::new(Shape::new(2, 2, len, head_dim)).unwrap();
        let dims = problem.shape().key_dims();
        for granularity in [Granularity::Tensor, Granularity::Head, Granularity::Block { rows: 256 }] {
            let plain = Quantizer::new(Fp8Format::E4m3).with_granularity(granularity);
            let small = plain.with_largest_code(SMALL_CODES);
            // Rows of different sizes, so that the scales of blocks differ.
            let values = |seed| -> Vec<f32> {
                let size = |index: usize| 1.0 + (index / dims.head_dim % dims.len / 256) as f32;
                gaussian(dims.count(), seed)
                    .iter()
                    .enumerate()
                    .map(|(index, value)| (value + 0.7) * size(index) / 2.0)
                    .collect()
            };
            let inputs = [(small, 150), (small.centered(), 151), (plain.centered(), 152)]
                .map(|(quantizer, seed)| quantizer.quantize(&values(seed), dims, Layout::Bhsd).unwrap());
            let expected = expected(&problem, &inputs);
            let [q, k, v] = &inputs;
            let (chosen, _) = choose(&problem, &Operands::of_host(q, k, v), 132);
            assert_eq!(chosen.keys == Keys::AtOnce, len <= 512, "{chosen} {granularity}");
            let stages = STAGES.par_iter().map(|stage| stage.at(head_dim, problem.mask()));
            stages.chain([chosen]).for_each(|config| {
                let what = format!("{config} {problem} {granularity}");
                assert_close(&run(&problem, config, &inputs), &expected, tolerance(&config), &what);
            });
        }
    });
}

#[test]
fn codes_of_wide_range_and_e5m2_are_scored_in_f32() {
    if hopper().is_none() {
        return;
    }
    let problem = Problem::new(Shape::new(1, 2, 333, 64)).unwrap();
    let inputs = tensors(&problem, 160);
    let [q, k, v] = &inputs;
    let fast: Variant = "hopper:fast".parse().unwrap();
    let error = choice::run(&fast, &problem, q, k, v, &mut Output::zeros(&problem)).unwrap_err().to_string();
    assert!(error.starts_with("scores: codes of Q up to 448"), "{error}");
    assert_close(&selected(&problem, &inputs), &expected(&problem, &inputs), 0.045, "wide codes");

    let problem = problem.with_input_format(Fp8Format::E5m2);
    let dims = problem.shape().key_dims();
    let quantizer = Quantizer::new(Fp8Format::E5m2);
    let inputs =
        [161, 162, 163].map(|seed| quantizer.quantize(&gaussian(dims.count(), seed), dims, Layout::Bhsd).unwrap());
    assert_close(&selected(&problem, &inputs), &expected(&problem, &inputs), 0.045, "e5m2");
}

/// What the short way computes, and that it ran what is selected.
fn selected(problem: &Problem, inputs: &[Fp8Tensor; 3]) -> Output {
    let (device, stream) = device().unwrap();
    let layouts = [Layout::Bhsd, Layout::Bhsd, Layout::Packed];
    let [q, k, v]: [DeviceTensor; 3] =
        std::array::from_fn(|index| DeviceTensor::upload(&device, &stream, &inputs[index], layouts[index]).unwrap());
    let mut on_device = DeviceOutput::new(&device, problem).unwrap();
    let report = attention(&stream, problem, &q, &k, &v, &mut on_device).unwrap();
    let target = Target::cuda(device.arch().unwrap(), device.info().multiprocessors);
    assert_eq!(report.variant, Some(eightfold::select(problem, &Operands::of(&q, &k, &v), target).unwrap()));
    let mut output = Output::zeros(problem);
    on_device.download(&stream, &mut output).unwrap();
    output
}

#[test]
fn values_in_every_layout_give_the_same_bits() {
    let Some((device, stream)) = hopper() else { return };
    for (shape, query_layout) in [(Shape::new(2, 3, 261, 64), Layout::Bshd), (Shape::new(1, 2, 130, 128), Layout::Bhsd)]
    {
        let problem = Problem::new(shape)
            .unwrap()
            .causal()
            .with_output_format(OutputFormat::Bf16)
            .with_output_layout(query_layout)
            .unwrap();
        let inputs = small_tensors(&problem, 170);
        let upload = |index: usize, layout| DeviceTensor::upload(&device, &stream, &inputs[index], layout).unwrap();
        let (q, k) = (upload(0, query_layout), upload(1, query_layout));
        let outputs = [Layout::Packed, Layout::Bhds, Layout::Bhsd, Layout::Bshd].map(|layout| {
            let v = upload(2, layout);
            let mut on_device = DeviceOutput::new(&device, &problem).unwrap();
            on_device.poison(&stream).unwrap();
            attention(&stream, &problem, &q, &k, &v, &mut on_device).unwrap();
            let mut output = Output::zeros(&problem);
            on_device.download(&stream, &mut output).unwrap();
            output
        });
        assert!(outputs.iter().all(|output| *output == outputs[0]), "{problem}");
        let dims = shape.query_dims();
        let values = outputs[0].values.to_f32();
        let error = relative_l2(&in_order(&values, dims, query_layout), &expected(&problem, &inputs).values);
        assert!(error < 0.045, "{problem}: {error}");
    }
}

/// The values in `[B,H,S,D]` order.
fn in_order(values: &[f32], dims: Dims, layout: Layout) -> Vec<f32> {
    let strides = layout.strides(dims);
    let rows = (0..dims.batch * dims.heads * dims.len).flat_map(|index| {
        let (head, row) = (index / dims.len, index % dims.len);
        let offset = strides.row_offset(head / dims.heads, head % dims.heads, row);
        values[offset..offset + dims.head_dim].to_vec()
    });
    rows.collect()
}
