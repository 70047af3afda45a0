//! One kernel used by several streams, threads and graphs at a time, on a device that the hopper kernel is for.

use crate::support::{device, on_simulator, relative_l2, small_tensors, some};
use eightfold::cuda::driver::{Device, Stream};
use eightfold::cuda::tensor::{DeviceOutput, DeviceTensor};
use eightfold::cuda::{Arguments, Kernel, Operands, Workspace};
use eightfold::lab::Config as AnyConfig;
use eightfold::lab::hopper::Config;
use eightfold::{Fp8Tensor, Layout, Output, OutputFormat, Problem, Shape, reference};
use eightfold_lab::driver::Record as _;
use std::thread;

/// A device that the kernel is for.
fn hopper() -> Option<(Device, Stream)> {
    let (device, stream) = device()?;
    if let Err(error) = AnyConfig::from(Config::default()).target(device.arch().unwrap()) {
        eprintln!("skipped: {error}");
        return None;
    }
    Some((device, stream))
}

/// The relative error that FP8 weights leave.
const TOLERANCE: f64 = 0.045;

#[track_caller]
fn assert_close(output: &Output, problem: &Problem, [q, k, v]: &[Fp8Tensor; 3], what: &str) {
    let expected = reference::attention(problem, &q.dequantize(), &k.dequantize(), &v.dequantize()).unwrap();
    let error = relative_l2(&output.values.to_f32(), &expected.values);
    assert!(error < TOLERANCE, "{what}: {error}");
}

/// Kernels that differ in what a launch needs: nothing, V put in order first, counters and partial sums, or both.
const KINDS: [(&str, Layout); 4] = [
    ("fast,launch=dependent", Layout::Packed),
    ("balanced,launch=dependent", Layout::Bhsd),
    ("fast,warpgroups=1,split_keys=on", Layout::Packed),
    ("fast,warpgroups=1,split_keys=on", Layout::Bshd),
];

/// What launches of one kernel need, each with an output and a workspace of its own.
struct Shared {
    device: Device,
    problem: Problem,
    tensors: [DeviceTensor; 3],
    kernel: Kernel,
    /// What one launch alone computes.
    alone: Output,
}

/// What one launch writes to.
struct Own {
    stream: Stream,
    output: DeviceOutput,
    arguments: Arguments,
    workspace: Workspace,
}

impl Shared {
    fn new(text: &str, layout: Layout) -> Option<Shared> {
        let (device, stream) = hopper()?;
        let shape = Shape::new(1, 2, 40, 64).with_key_len(if on_simulator() { 400 } else { 3000 });
        let problem = Problem::new(shape).unwrap().causal().with_output_format(OutputFormat::F16);
        let inputs = small_tensors(&problem, 220);
        let layouts = [Layout::Bhsd, Layout::Bshd, layout];
        let tensors: [DeviceTensor; 3] = std::array::from_fn(|index| {
            DeviceTensor::upload(&device, &stream, &inputs[index], layouts[index]).unwrap()
        });
        let config: Config = text.parse().unwrap();
        let [q, k, v] = &tensors;
        let kernel = Kernel::of(&device, &problem, &config.into(), &Operands::of(q, k, v)).unwrap();
        let alone = Output::zeros(&problem);
        let mut shared = Shared { device, problem, tensors, kernel, alone };
        let mut own = shared.own();
        shared.launch(&mut own);
        shared.alone = shared.result(&own);
        assert_close(&shared.alone, &problem, &inputs, text);
        Some(shared)
    }

    /// A stream with what its launches write to, ready.
    fn own(&self) -> Own {
        let stream = self.device.stream().unwrap();
        let mut output = DeviceOutput::new(&self.device, &self.problem).unwrap();
        output.poison(&stream).unwrap();
        let [q, k, v] = &self.tensors;
        let arguments = self.kernel.arguments(&self.problem, [q, k, v], &output).unwrap();
        let workspace = Workspace::new(&stream, arguments.workspace_bytes()).unwrap();
        stream.synchronize().unwrap();
        Own { stream, output, arguments, workspace }
    }

    fn launch(&self, own: &mut Own) {
        // SAFETY: both live until the stream is done: every test waits for it.
        unsafe { self.kernel.launch(&own.stream, &own.arguments, &mut own.workspace) }.unwrap();
    }

    fn result(&self, own: &Own) -> Output {
        let mut output = Output::zeros(&self.problem);
        output.poison();
        own.output.download(&own.stream, &mut output).unwrap();
        output
    }
}

#[test]
fn two_graphs_of_one_kernel_replay_from_two_threads() {
    for (text, layout) in some(&KINDS, 3) {
        let Some(shared) = Shared::new(text, layout) else { return };
        let graphs: Vec<_> = (0..2)
            .map(|_| {
                let mut own = shared.own();
                let Own { stream, arguments, workspace, .. } = &mut own;
                // SAFETY: nothing runs yet.
                let mut launch = || unsafe { shared.kernel.launch(stream, arguments, workspace) };
                let graph = stream.capture(&mut || (0..3).try_for_each(|_| launch())).unwrap();
                (own, graph)
            })
            .collect();
        thread::scope(|scope| {
            for (own, mut graph) in graphs {
                let shared = &shared;
                scope.spawn(move || {
                    for _ in 0..5 {
                        // SAFETY: all that the graph uses lives until the result has been waited for.
                        unsafe { graph.launch(&own.stream) }.unwrap();
                    }
                    assert_eq!(shared.result(&own), shared.alone, "{text} {layout}");
                });
            }
        });
    }
}

#[test]
fn eight_threads_on_eight_streams_get_the_bits_of_one() {
    for (text, layout) in some(&KINDS, 3) {
        let Some(shared) = Shared::new(text, layout) else { return };
        // The simulated device does not yet bear more than two threads that launch at a time.
        let threads = if on_simulator() { 2 } else { 8 };
        thread::scope(|scope| {
            for _ in 0..threads {
                let shared = &shared;
                scope.spawn(move || {
                    let mut own = shared.own();
                    for _ in 0..if on_simulator() { 1 } else { 20 } {
                        shared.launch(&mut own);
                    }
                    assert_eq!(shared.result(&own), shared.alone, "{text} {layout}");
                });
            }
        });
    }
}

/// What kernels are passed is kept for one workspace; another, and the first again, get their own.
#[test]
fn workspaces_take_turns() {
    let Some(shared) = Shared::new(KINDS[3].0, KINDS[3].1) else { return };
    let mut own = shared.own();
    let mut other = Workspace::new(&own.stream, own.arguments.workspace_bytes()).unwrap();
    for turn in 0..4 {
        own.output.poison(&own.stream).unwrap();
        std::mem::swap(&mut own.workspace, &mut other);
        shared.launch(&mut own);
        assert_eq!(shared.result(&own), shared.alone, "turn {turn}");
    }
}

/// A graph that was captured in a stream of its own after a first launch elsewhere, as PyTorch does; then the same kernel in
/// another stream meanwhile. V in rows, split keys and launches that start early included.
#[test]
fn launches_repeat_in_graphs_and_in_several_streams() {
    let Some((device, stream)) = hopper() else { return };
    let len = if on_simulator() { 300 } else { 700 };
    let problem = Problem::new(Shape::new(2, 4, len, 64)).unwrap().causal().with_output_format(OutputFormat::F16);
    let inputs = small_tensors(&problem, 180);
    let side_stream = device.stream().unwrap();
    for (text, layout) in [
        ("fast", Layout::Packed),
        ("fast,launch=dependent", Layout::Packed),
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
        assert_close(&got[0], &problem, &inputs, text);
        assert_eq!(got[0], got[1], "{text}");
    }
}

/// One kernel, and each thread with a stream, a workspace and a graph of its own; every thread has other lengths.
#[test]
fn threads_share_a_kernel() {
    let Some((device, stream)) = hopper() else { return };
    let config: Config = "fast,warpgroups=1,split_keys=on".parse().unwrap();
    let problems: Vec<Problem> = (1..9)
        .map(|index| Problem::new(Shape::new(1, 2, index, 64).with_key_len(300 + 64 * index)))
        .map(|problem| problem.unwrap().causal())
        .collect();
    let first = &problems[0];
    let operands = Operands::assumed(first);
    let kernel = Kernel::of(&device, first, &config.into(), &operands).unwrap();
    stream.synchronize().unwrap();
    thread::scope(|scope| {
        for problem in some(&problems, 4) {
            let (kernel, device) = (&kernel, &device);
            scope.spawn(move || {
                let (_, stream) = crate::support::device().unwrap();
                let inputs = small_tensors(&problem, 200);
                let layouts = [Layout::Bhsd, Layout::Bhsd, Layout::Packed];
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
                assert_close(&got, &problem, &inputs, &problem.to_string());
            });
        }
    });
}

#[test]
fn arguments_and_workspaces_that_do_not_belong_are_refused() {
    let Some((device, stream)) = hopper() else { return };
    let problem = Problem::new(Shape::new(1, 2, 3000, 64).with_query_len(1)).unwrap();
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
    let longer = Problem::new(Shape::new(1, 2, 3001, 128).with_query_len(1)).unwrap();
    assert!(one.arguments(&longer, [&q, &k, &v], &output).unwrap_err().to_string().starts_with("q: has dims"));
    let causal = problem.causal();
    let refused = one.arguments(&causal, [&q, &k, &v], &output).unwrap_err().to_string();
    assert!(refused.starts_with("kernel: it was compiled for another kind"), "{refused}");
}
