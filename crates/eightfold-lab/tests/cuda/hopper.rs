//! The hopper kernel against the float64 reference, on a device that it is for. Most of the time goes into compiling, so cases
//! run side by side.

use crate::support::{device, gaussian, on_simulator, relative_l2, small_tensors, some, tensors, watched};
use eightfold::cuda::driver::{Device, Stream};
use eightfold::cuda::hopper::{Config, Grid, Keys, STAGES, Share, Weights, choose, draws, target};
use eightfold::cuda::tensor::{DeviceOutput, DeviceTensor};
use eightfold::cuda::{Arch, Kernel, Operands, Workspace, attention};
use eightfold::quantize::{Quantizer, SMALL_CODES};
use eightfold::reference::Reference;
use eightfold::{
    Accuracy, Dims, Fp8Format, Fp8Tensor, Granularity, Layout, Mask, Output, OutputFormat, Problem, Result, Shape,
    Target, Variant, reference,
};
use eightfold_lab::choice;
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
    let variant = Variant::Hopper(config);
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
        Shape { query_heads: 4, kv_heads: 2, query_len: 70, key_len: 133, ..Shape::new(2, 4, 1, 128) },
        Shape { query_len: 1, ..Shape::new(1, 2, 65, 64) },
        Shape { query_heads: 8, kv_heads: 1, query_len: 3, key_len: 517, ..Shape::new(2, 8, 1, 128) },
        Shape { query_heads: 6, kv_heads: 2, query_len: 20, key_len: 1000, ..Shape::new(1, 6, 1, 64) },
        Shape { query_len: 300, key_len: 70, ..Shape::new(1, 1, 1, 64) },
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

/// More causal tiles than multiprocessors, which a list of each block's deals out; `attention` has none, and deals them
/// out in rounds.
#[test]
fn causal_tiles_give_the_same_bits_whichever_block_does_them() {
    let Some((device, stream)) = hopper() else { return };
    let multiprocessors = device.info().multiprocessors;
    for (query_len, key_len, head_dim) in some(&[(901, 701, 64), (701, 901, 64), (777, 1001, 128), (777, 333, 128)], 4)
    {
        let shape = Shape { kv_heads: 4, query_len, key_len, ..Shape::new(3, 12, 1, head_dim) };
        let problem = Problem::new(shape).unwrap().causal().with_lse(true);
        let inputs = small_tensors(&problem, 190);
        let expected = expected(&problem, &inputs);
        let layouts = [Layout::Bhsd, Layout::Bshd, Layout::BhdsExchanged];
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
        Shape { query_heads: 4, kv_heads: 2, query_len: 131, key_len: 300, ..Shape::new(2, 4, 1, 64) },
        Shape { query_heads: 8, kv_heads: 2, query_len: 5, key_len: 2500, ..Shape::new(1, 8, 1, 128) },
        Shape { query_len: 77, key_len: 161, ..Shape::new(1, 2, 1, 128) },
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
        config.check_problem(problem, &Operands::assumed(problem), device.arch().unwrap()).is_ok()
    };
    let drawn: Vec<_> = draws(3).zip(prepared.iter().cycle()).filter(suits).take(count).collect();
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
        let shape = Shape { query_heads: 4, kv_heads: 2, query_len, key_len, ..Shape::new(2, 4, 1, head_dim) };
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
        if config.check_problem(problem, &operands, Arch::Sm90a).is_ok() {
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
                let shape = Shape { query_len: 64, key_len, ..Shape::new(1, 2, 1, head_dim) };
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
    let shape = Shape { kv_heads: 4, query_len: 1, key_len: 8192 - 77, ..Shape::new(1, 32, 1, 128) };
    for accuracy in [Accuracy::Fast, Accuracy::Precise] {
        let problem = Problem::new(shape).unwrap().with_lse(true).with_accuracy(accuracy);
        let inputs = small_tensors(&problem, 140);
        let Variant::Hopper(config) = choice::choose(&problem).unwrap().variant else { panic!("not hopper") };
        assert_eq!(config.split_keys.to_string(), "on");
        let expected = expected(&problem, &inputs);
        for config in [config, Config { launch: eightfold::cuda::hopper::Launch::Dependent, ..config }] {
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
    let layouts = [Layout::Bhsd, Layout::Bhsd, Layout::BhdsExchanged];
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
        let outputs = [Layout::BhdsExchanged, Layout::Bhds, Layout::Bhsd, Layout::Bshd].map(|layout| {
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

/// A graph that was captured in a stream of its own after a first launch elsewhere, as PyTorch does; then the same kernel in
/// another stream meanwhile. V in rows, split keys and launches that start early included.
#[test]
fn launches_repeat_in_graphs_and_in_several_streams() {
    let Some((device, stream)) = hopper() else { return };
    let len = if on_simulator() { 300 } else { 700 };
    let problem = Problem::new(Shape::new(2, 4, len, 64)).unwrap().causal().with_output_format(OutputFormat::F16);
    let inputs = small_tensors(&problem, 180);
    let expected = expected(&problem, &inputs);
    let side_stream = device.stream().unwrap();
    for (text, layout) in [
        ("fast", Layout::BhdsExchanged),
        ("fast,launch=dependent", Layout::BhdsExchanged),
        ("balanced,launch=dependent", Layout::Bhsd),
        ("fast,warpgroups=1,split_keys=on", Layout::Bshd),
    ] {
        let config: Config = text.parse().unwrap();
        let layouts = [Layout::Bhsd, Layout::Bshd, layout];
        let [q, k, v]: [DeviceTensor; 3] = std::array::from_fn(|index| {
            DeviceTensor::upload(&device, &stream, &inputs[index], layouts[index]).unwrap()
        });
        let kernel = Kernel::of(&device, &problem, &config.into(), &Operands::of(&q, &k, &v)).unwrap();
        let mut outputs = [(); 2].map(|()| DeviceOutput::new(&device, &problem).unwrap());
        let arguments = outputs.each_ref().map(|output| kernel.arguments(&problem, [&q, &k, &v], output).unwrap());
        let bytes = kernel.workspace_bytes(&problem).unwrap();
        assert!(arguments[0].workspace_bytes() <= bytes);
        let [mut first, mut second] = [&stream, &side_stream].map(|stream| Workspace::new(stream, bytes).unwrap());
        // SAFETY: all that launches use lives until their streams are done, and each stream has a workspace of its own.
        unsafe { kernel.launch(&stream, &arguments[0], &mut first) }.unwrap();
        stream.synchronize().unwrap();
        side_stream.synchronize().unwrap();
        // SAFETY: as above.
        let mut launch = || unsafe { kernel.launch(&side_stream, &arguments[1], &mut second) };
        let mut graph = side_stream.capture(&mut || (0..3).try_for_each(|_| launch())).unwrap();
        outputs[0].poison(&stream).unwrap();
        outputs[1].poison(&side_stream).unwrap();
        for _ in 0..5 {
            // SAFETY: as above.
            unsafe { graph.launch(&side_stream) }.unwrap();
            // SAFETY: as above.
            unsafe { kernel.launch(&stream, &arguments[0], &mut first) }.unwrap();
        }
        let mut got = [Output::zeros(&problem), Output::zeros(&problem)];
        outputs[0].download(&stream, &mut got[0]).unwrap();
        outputs[1].download(&side_stream, &mut got[1]).unwrap();
        assert_close(&got[0], &expected, tolerance(&config), text);
        assert_eq!(got[0], got[1], "{text}");
    }
}

/// One kernel, and each thread with a stream, a workspace and a graph of its own; every thread has other lengths.
#[test]
fn threads_share_a_kernel() {
    let Some((device, stream)) = hopper() else { return };
    let config: Config = "fast,warpgroups=1,split_keys=on".parse().unwrap();
    let problems: Vec<Problem> = (1..9)
        .map(|index| Problem::new(Shape { query_len: index, key_len: 300 + 64 * index, ..Shape::new(1, 2, 1, 64) }))
        .map(|problem| problem.unwrap().causal())
        .collect();
    let first = &problems[0];
    let operands = Operands::assumed(first);
    let kernel = Kernel::of(&device, first, &config.into(), &operands).unwrap();
    stream.synchronize().unwrap();
    std::thread::scope(|scope| {
        for problem in some(&problems, 4) {
            let (kernel, device) = (&kernel, &device);
            scope.spawn(move || {
                let (_, stream) = crate::support::device().unwrap();
                let inputs = small_tensors(&problem, 200);
                let layouts = [Layout::Bhsd, Layout::Bhsd, Layout::BhdsExchanged];
                let [q, k, v]: [DeviceTensor; 3] = std::array::from_fn(|index| {
                    DeviceTensor::upload(device, &stream, &inputs[index], layouts[index]).unwrap()
                });
                let output = DeviceOutput::new(device, &problem).unwrap();
                let arguments = kernel.arguments(&problem, [&q, &k, &v], &output).unwrap();
                let mut workspace = Workspace::new(&stream, arguments.workspace_bytes()).unwrap();
                stream.synchronize().unwrap();
                // SAFETY: all that launches use lives until the stream is done.
                let mut launch = || unsafe { kernel.launch(&stream, &arguments, &mut workspace) };
                launch().unwrap();
                stream.synchronize().unwrap();
                let mut graph = stream.capture(&mut launch).unwrap();
                for _ in 0..3 {
                    // SAFETY: as above.
                    unsafe { graph.launch(&stream) }.unwrap();
                }
                let mut got = Output::zeros(&problem);
                output.download(&stream, &mut got).unwrap();
                assert_close(&got, &expected(&problem, &inputs), tolerance(&config), &problem.to_string());
            });
        }
    });
}

#[test]
fn arguments_and_workspaces_that_do_not_belong_are_refused() {
    let Some((device, stream)) = hopper() else { return };
    let problem = Problem::new(Shape { query_len: 1, ..Shape::new(1, 2, 3000, 64) }).unwrap();
    let inputs = small_tensors(&problem, 210);
    let [q, k, v] = inputs.each_ref().map(|t| DeviceTensor::upload(&device, &stream, t, Layout::Bhsd).unwrap());
    let output = DeviceOutput::new(&device, &problem).unwrap();
    let kernel = |text: &str| {
        let config: Config = text.parse().unwrap();
        Kernel::of(&device, &problem, &config.into(), &Operands::of(&q, &k, &v)).unwrap()
    };
    let [one, other] = ["fast,warpgroups=1,split_keys=on", "fast"].map(kernel);
    let arguments = one.arguments(&problem, [&q, &k, &v], &output).unwrap();
    let launched = |kernel: &Kernel, mut workspace: Workspace| {
        // SAFETY: nothing is launched.
        unsafe { kernel.launch(&stream, &arguments, &mut workspace) }.unwrap_err().to_string()
    };
    assert!(launched(&other, Workspace::none()).starts_with("arguments: were made for another kernel"));
    let small = Workspace::new(&stream, 1 << 16).unwrap();
    assert!(launched(&one, small).starts_with("workspace: "));
    let longer = Problem::new(Shape { query_len: 1, ..Shape::new(1, 2, 3001, 128) }).unwrap();
    assert!(one.arguments(&longer, [&q, &k, &v], &output).unwrap_err().to_string().starts_with("q: has dims"));
    let causal = problem.causal();
    let refused = one.arguments(&causal, [&q, &k, &v], &output).unwrap_err().to_string();
    assert!(refused.starts_with("kernel: it was compiled for another kind"), "{refused}");
}
