//! The ladder's stages against the float64 reference, through the plan and directly.

use crate::support::{device, gaussian, on_simulator, relative_l2, small_tensors, some, tensors};
use eightfold::cuda::tensor::{DeviceOutput, DeviceTensor};
use eightfold::cuda::{self, Operands, Workspace, attention};
use eightfold::lab::Config as AnyConfig;
use eightfold::lab::hopper;
use eightfold::lab::ladder::{Config, Pv, STAGES};
use eightfold::quantize::{Quantizer, SMALL_CODES};
use eightfold::reference::Reference;
use eightfold::{
    Accuracy, Dims, Fp8Format, Fp8Tensor, Granularity, Layout, Output, OutputFormat, Problem, Shape, Variant, reference,
};
use eightfold_lab::driver::Record as _;
use eightfold_lab::kernel::Kernel;
use eightfold_lab::{choice, dump};

fn expected(problem: &Problem, [q, k, v]: &[Fp8Tensor; 3]) -> Reference {
    reference::attention(problem, &q.dequantize(), &k.dequantize(), &v.dequantize()).unwrap()
}

/// The relative error that f16 weights leave, or FP8 ones.
fn tolerance(config: &Config) -> f64 {
    if config.pv == Pv::Fp8 { 0.04 } else { 0.004 }
}

#[test]
fn every_stage_computes_attention() {
    if device().is_none() {
        return;
    }
    let shapes = [
        Shape::new(1, 2, 200, 64),
        Shape::new(2, 4, 70, 128).with_kv_heads(2).with_key_len(133),
        Shape::new(1, 2, 65, 64).with_query_len(1),
    ];
    for stage in STAGES {
        for shape in some(&shapes, 2) {
            let config = stage.at(shape.head_dim);
            for causal in [false, true] {
                let problem = Problem::new(shape).unwrap().with_lse(true);
                let problem = if causal { problem.causal() } else { problem };
                let inputs = tensors(&problem, 20);
                let expected = expected(&problem, &inputs);
                let mut output = Output::zeros(&problem);
                output.poison();
                let [q, k, v] = &inputs;
                choice::run(&config.into(), &problem, q, k, v, &mut output).unwrap();
                let error = relative_l2(&output.values.to_f32(), &expected.values);
                assert!(error < tolerance(&config), "{} {problem}: {error}", stage.name);
                for (lse, expected) in output.lse.unwrap().iter().zip(&expected.lse) {
                    assert!((f64::from(*lse) - expected).abs() < 5e-3, "{} {problem}", stage.name);
                }
            }
        }
    }
}

/// Knobs in combinations that no stage has: tails, several tiles, several units of work for each persistent block.
#[test]
fn configs_drawn_at_random_compute_attention() {
    let Some((device, _)) = device() else { return };
    let count: usize = std::env::var("EIGHTFOLD_DRAWS")
        .ok()
        .and_then(|count| count.parse().ok())
        .unwrap_or(if on_simulator() { 8 } else { 40 });
    let shapes = [
        Shape::new(2, 4, 131, 64).with_kv_heads(2).with_key_len(300),
        Shape::new(1, 2, 77, 128).with_key_len(161),
        Shape::new(2, 32, 513, 64),
    ];
    let problems = shapes.map(|shape| Problem::new(shape).unwrap().causal());
    let prepared = problems.map(|problem| {
        let inputs = tensors(&problem, 22);
        let expected = expected(&problem, &inputs);
        (problem, inputs, expected)
    });
    let suits = |(config, (problem, ..)): &(Config, &(Problem, _, _))| {
        let config = AnyConfig::from(*config);
        config.check_uploaded(problem, &Operands::assumed(problem), device.arch().unwrap()).is_ok()
    };
    let drawn = Kernel::LADDER.draws(3).filter_map(|variant| match variant.on_device() {
        Some(AnyConfig::Ladder(config)) => Some(config),
        _ => None,
    });
    for (config, (problem, [q, k, v], expected)) in drawn.zip(prepared.iter().cycle()).filter(suits).take(count) {
        let mut output = Output::zeros(problem);
        output.poison();
        choice::run(&config.into(), problem, q, k, v, &mut output).unwrap();
        let error = relative_l2(&output.values.to_f32(), &expected.values);
        assert!(error < tolerance(&config), "{config} {problem}: {error}");
    }
}

#[test]
fn what_is_chosen_is_for_the_device_and_runs() {
    let Some((device, _)) = device() else { return };
    let kernel = if hopper::target(device.arch().unwrap()).is_ok() { "hopper" } else { "ladder" };
    let problem = Problem::new(Shape::new(1, 2, 130, 64)).unwrap().causal().with_accuracy(Accuracy::Precise);
    let chosen = choice::choose(&problem).unwrap().variant;
    assert_eq!(chosen.kernel(), kernel);
    let inputs = small_tensors(&problem, 21);
    let mut output = Output::zeros(&problem);
    let report = choice::run(&chosen, &problem, &inputs[0], &inputs[1], &inputs[2], &mut output).unwrap();
    assert_eq!(report.variant, Some(chosen));
    assert!(relative_l2(&output.values.to_f32(), &expected(&problem, &inputs).values) < 0.004);
}

/// On host tensors attention is the CPU's, whatever devices there are.
#[test]
fn a_device_does_not_change_what_the_cpu_computes() {
    if device().is_none() {
        return;
    }
    let problem = Problem::new(Shape::new(1, 2, 100, 64)).unwrap();
    let inputs = tensors(&problem, 33);
    let output = eightfold::attention(&problem, &inputs[0], &inputs[1], &inputs[2]).unwrap();
    assert!(relative_l2(&output.values.to_f32(), &expected(&problem, &inputs).values) < 5e-4);
}

#[test]
fn scales_that_do_not_suit_the_tiles_are_refused_by_name() {
    if device().is_none() {
        return;
    }
    let problem = Problem::new(Shape::new(1, 2, 100, 64)).unwrap();
    let dims = problem.shape().key_dims();
    let quantizer = Quantizer::new(Fp8Format::E4m3).with_granularity(Granularity::Block { rows: 10 });
    let inputs =
        [30, 31, 32].map(|seed| quantizer.quantize(&gaussian(dims.count(), seed), dims, Layout::Bhsd).unwrap());
    let [q, k, v] = &inputs;
    let variant: Variant = Config::default().into();
    let error = choice::run(&variant, &problem, q, k, v, &mut Output::zeros(&problem)).unwrap_err().to_string();
    assert!(error.starts_with("k scales: a scale for every 10 rows changes within a tile"), "{error}");
}

#[test]
fn scales_of_every_granularity_and_centred_tensors_are_used() {
    if device().is_none() {
        return;
    }
    let problem = Problem::new(Shape::new(2, 2, 300, 64)).unwrap();
    let dims = problem.shape().key_dims();
    let config: Config = "fused-softmax".parse().unwrap();
    for granularity in [Granularity::Tensor, Granularity::Head, Granularity::Block { rows: 128 }] {
        let plain = Quantizer::new(Fp8Format::E4m3).with_granularity(granularity);
        let values = |seed| -> Vec<f32> { gaussian(dims.count(), seed).iter().map(|value| value + 0.7).collect() };
        let inputs = [(plain, 40), (plain.centered(), 41), (plain.centered(), 42)]
            .map(|(quantizer, seed)| quantizer.quantize(&values(seed), dims, Layout::Bhsd).unwrap());
        let [q, k, v] = &inputs;
        let mut output = Output::zeros(&problem);
        choice::run(&config.into(), &problem, q, k, v, &mut output).unwrap();
        let error = relative_l2(&output.values.to_f32(), &expected(&problem, &inputs).values);
        assert!(error < 0.004, "{granularity}: {error}");
    }
}

#[test]
fn launches_repeat_in_a_graph_and_in_two_streams() {
    let Some((device, stream)) = device() else { return };
    let problem = Problem::new(Shape::new(2, 4, 200, 64)).unwrap().causal().with_output_format(OutputFormat::F16);
    let inputs = tensors(&problem, 50);
    let expected = expected(&problem, &inputs);
    for config in ["persistent", "unpack"] {
        let config: Config = config.parse().unwrap();
        let layouts = [Layout::Bhsd, Layout::Bshd, AnyConfig::from(config).value_layout()];
        let [q, k, v]: [DeviceTensor; 3] = std::array::from_fn(|index| {
            DeviceTensor::upload(&device, &stream, &inputs[index], layouts[index]).unwrap()
        });
        let kernel = cuda::Kernel::of(&device, &problem, &config.into(), &Operands::of(&q, &k, &v)).unwrap();
        let other_stream = device.stream().unwrap();
        let mut first = DeviceOutput::new(&device, &problem).unwrap();
        let second = DeviceOutput::new(&device, &problem).unwrap();
        let [one, other] = [&first, &second].map(|output| kernel.arguments(&problem, [&q, &k, &v], output).unwrap());
        let [mut own, mut others] =
            [&stream, &other_stream].map(|stream| Workspace::new(stream, one.workspace_bytes()).unwrap());
        stream.synchronize().unwrap();
        // SAFETY: all that launches use lives until their streams are done, and each stream has a workspace of its own.
        let mut graph = stream.capture(&mut || unsafe { kernel.launch(&stream, &one, &mut own) }).unwrap();
        for _ in 0..5 {
            // SAFETY: as above.
            unsafe { graph.launch(&stream) }.unwrap();
            // SAFETY: as above.
            unsafe { kernel.launch(&other_stream, &other, &mut others) }.unwrap();
        }
        let mut outputs = [Output::zeros(&problem), Output::zeros(&problem)];
        // What an earlier launch wrote must not stand in for the last.
        first.poison(&stream).unwrap();
        // SAFETY: all that the graph uses lives until the stream is done.
        unsafe { graph.launch(&stream) }.unwrap();
        first.download(&stream, &mut outputs[0]).unwrap();
        second.download(&other_stream, &mut outputs[1]).unwrap();
        for output in &outputs {
            let error = relative_l2(&output.values.to_f32(), &expected.values);
            assert!(error < tolerance(&config), "{config}: {error}");
        }
        assert_eq!(outputs[0], outputs[1]);
    }
}

#[test]
fn tensors_on_the_device_are_attended_in_either_layout_of_v() {
    let Some((device, stream)) = device() else { return };
    let problem = Problem::new(Shape::new(1, 4, 257, 64))
        .unwrap()
        .with_output_format(OutputFormat::Bf16)
        .with_output_layout(Layout::Bshd)
        .unwrap()
        .with_accuracy(Accuracy::Precise);
    let inputs = tensors(&problem, 60);
    let expected = expected(&problem, &inputs);
    for layout in [Layout::Bhds, Layout::Bhsd] {
        let upload = |index: usize, layout| DeviceTensor::upload(&device, &stream, &inputs[index], layout).unwrap();
        let (q, k, v) = (upload(0, Layout::Bshd), upload(1, Layout::Bhsd), upload(2, layout));
        let mut on_device = DeviceOutput::new(&device, &problem).unwrap();
        attention(&stream, &problem, &q, &k, &v, &mut on_device).unwrap();
        let mut output = Output::zeros(&problem);
        on_device.download(&stream, &mut output).unwrap();
        let dims = problem.shape().query_dims();
        let strides = Layout::Bshd.strides(dims);
        let values = output.values.to_f32();
        let in_order: Vec<f32> = (0..dims.heads * dims.len)
            .flat_map(|index| {
                let offset = strides.row_offset(0, index / dims.len, index % dims.len);
                values[offset..offset + dims.head_dim].to_vec()
            })
            .collect();
        let error = relative_l2(&in_order, &expected.values);
        assert!(error < 0.006, "{layout}: {error}");
    }
}

#[test]
fn a_dump_shows_the_tiles_of_one_unit() {
    let Some((device, stream)) = device() else { return };
    let problem = Problem::new(Shape::new(1, 1, 150, 64)).unwrap();
    let inputs = tensors(&problem, 70);
    let config: Config = "fused-softmax".parse().unwrap();
    let [q, k, v] = inputs.map(|tensor| DeviceTensor::upload(&device, &stream, &tensor, Layout::Bhsd).unwrap());
    let dump = |unit| dump::tiles_on_device(&stream, &problem, &config.into(), [&q, &k, &v], unit);
    let first = dump(0).unwrap();
    assert_eq!(first.tiles.len(), 150usize.div_ceil(config.tile_keys));
    for tile in &first.tiles {
        assert!(tile.row_maxima.iter().all(|maximum| maximum.is_finite()));
        assert!(tile.row_sums.iter().all(|sum| *sum > 0.0));
    }
    assert!(dump(99).unwrap_err().to_string().starts_with("unit: 99"));
}

/// A sequence alone and the same one in a batch: the same bits, also where one sequence alone has its keys split.
#[test]
fn a_batch_changes_no_bit_where_it_must_not() {
    let Some((device, stream)) = device() else { return };
    let small = Quantizer::new(Fp8Format::E4m3).with_largest_code(SMALL_CODES);
    for shape in some(&["1,4,4,1,3000,64", "1,2,150,64", "1,2,2,70,1100,128"], 2) {
        let shape: Shape = shape.parse().unwrap();
        // Of so many sequences, from the first of them on.
        let run = |batch: usize, first: usize| {
            let problem = Problem::new(shape.with_batch(batch)).unwrap().causal().batch_invariant();
            let kinds = [(shape.query_dims(), 1), (shape.key_dims(), 2), (shape.key_dims(), 3)];
            let [q, k, v] = kinds.map(|(dims, kind)| {
                let of_sequence = |index| gaussian(dims.count(), 10 * index as u64 + kind);
                let values: Vec<f32> = (first..first + batch).flat_map(of_sequence).collect();
                let tensor = small
                    .quantize(&values, Dims::new(batch, dims.heads, dims.len, dims.head_dim), Layout::Bhsd)
                    .unwrap();
                DeviceTensor::upload(&device, &stream, &tensor, Layout::Bhsd).unwrap()
            });
            let mut output = DeviceOutput::new(&device, &problem).unwrap();
            output.poison(&stream).unwrap();
            let report = attention(&stream, &problem, &q, &k, &v, &mut output).unwrap();
            let mut host = Output::zeros(&problem);
            output.download(&stream, &mut host).unwrap();
            (host.values.to_f32(), report.variant)
        };
        let (together, variant) = run(7, 0);
        for index in [0, 5] {
            let (alone, of_one) = run(1, index);
            assert_eq!(of_one, variant, "{shape}");
            assert_eq!(alone, together[index * alone.len()..][..alone.len()], "{shape}, sequence {index}");
        }
    }
}
