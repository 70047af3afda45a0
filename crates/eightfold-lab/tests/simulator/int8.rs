//! Q and K in INT8 on the Hopper kernel: every mode on every kind of inputs, ranges that float bits cannot say, and a call from
//! bf16.

use crate::support::{in_parallel, simulator};
use eightfold::cuda::call::{Addresses, ValueAttention, ValuesOf};
use eightfold::cuda::driver::Device;
use eightfold::cuda::quantize::{self as on_device, DeviceQuantizer, DeviceValues, Number, ValueFormat};
use eightfold::cuda::tensor::DeviceOutput;
use eightfold::cuda::{Workspace, attention};
use eightfold::quantize::{self, INT8_BLOCK, Quantizer};
use eightfold::{Dims, Fp8Format, Granularity, Layout, Mask, Output, OutputFormat, Problem, Shape, Window};
use eightfold_lab::gates::{self, Case, Outcome, Thresholds};
use eightfold_lab::inputs::{Family, Inputs};
use eightfold_lab::kernel::suited;
use eightfold_lab::simulate::{self, Schedule, Schedules, SimulatedVariant};
use half::{bf16, f16};

const KNOBS: &str = "warpgroups=2,stages=2,scores=s32,promote=0,sums=registers,flight=2";

fn problem(shape: &str, mask: Mask) -> Problem {
    let problem = shape.parse::<Shape>().and_then(Problem::new).unwrap();
    problem.with_mask(mask).with_input_format(Fp8Format::Int8).with_lse(true)
}

/// What changes the inputs after they were drawn; what quantising them then costs is not judged.
type Change = Option<fn(&mut Inputs)>;

struct Job {
    variant: String,
    problem: Problem,
    family: Family,
    change: Change,
    seeds: Vec<u64>,
}

fn check(job: &Job) -> Result<(), String> {
    let Job { variant, problem, family, change, seeds } = job;
    let thresholds = Thresholds::embedded();
    let policy = &thresholds.correctness.reference;
    let variant = suited(variant, problem.shape().head_dim, problem.mask()).map_err(|error| error.to_string())?;
    let mut inputs = Inputs::of_problem(problem, *family, 1);
    let case = match change {
        None => Case::prepare(problem, &inputs, &Quantizer::int8(), policy),
        Some(change) => {
            change(&mut inputs);
            let tensors = quantize::for_attention(problem, [&inputs.q[..], &inputs.k, &inputs.v]);
            tensors.and_then(|[q, k, v]| Case::of_tensors(problem, "changed", q, k, v, policy))
        }
    };
    let case = case.map_err(|error| error.to_string())?;
    let schedules = Schedules { seeds: seeds.clone(), ..Schedules::default() };
    let mut subject = SimulatedVariant { variant, schedules };
    let report = gates::check(&mut subject, std::slice::from_ref(&case), thresholds.tolerance(&variant), &thresholds);
    match report.gate.outcome {
        Outcome::Pass => Ok(()),
        _ => Err(format!("{variant} {problem} {family}: {}", report.gate.summary)),
    }
}

fn check_all(jobs: Vec<Job>) {
    let failed: Vec<String> = in_parallel(jobs, |job| check(&job).err()).into_iter().flatten().collect();
    assert_eq!(failed, Vec::<String>::new());
}

#[test]
fn every_mode_and_every_kind_of_input_is_right_and_nothing_is_found() {
    if !simulator() {
        return;
    }
    let shapes = [("1,2,1,130,333,64", Mask::Causal), ("1,2,2,70,300,128", Mask::None), ("1,8,2,1,257,64", Mask::None)];
    let mut jobs = Vec::new();
    for (index, family) in Family::ALL.iter().enumerate() {
        for (turn, mode) in ["fast", "balanced", "exact-exp", "precise"].into_iter().enumerate() {
            let (shape, mask) = shapes[(index + turn) % shapes.len()];
            let tile_keys = [64, 128, 256][(index + 2 * turn) % 3];
            jobs.push(Job {
                variant: format!("hopper:{mode},{KNOBS},tile_keys={tile_keys}"),
                problem: problem(shape, mask),
                family: *family,
                change: None,
                seeds: vec![(11 * index + 7 * turn) as u64 % 36],
            });
        }
    }
    check_all(jobs);
}

/// Windows, sinks, split keys, promoted sums, one warpgroup, other head dims and output formats.
#[test]
fn problems_beyond_the_plain_one_are_right_and_nothing_is_found() {
    if !simulator() {
        return;
    }
    let split =
        "hopper:exact-exp,warpgroups=1,tile_keys=64,stages=2,scores=s32,promote=256,sums=shared,split_keys=on,flight=2";
    let two = format!("hopper:fast,{KNOBS},tile_keys=64");
    let promoted = "hopper:fast,warpgroups=2,tile_keys=128,stages=2,scores=s32,promote=256,sums=shared,flight=2";
    let precise = format!("hopper:precise,{KNOBS},tile_keys=128");
    let left = Window::new(Some(64), Some(0));
    let plain = |shape, mask| problem(shape, mask);
    let jobs: Vec<(&str, Problem)> = vec![
        (&two, plain("1,2,1,130,333,64", Mask::Causal).with_window(left).with_sinks()),
        (split, plain("1,6,2,9,517,64", Mask::None).with_sinks()),
        (split, plain("1,4,1,5,517,64", Mask::Causal).with_window(left)),
        (promoted, plain("1,2,2,70,600,128", Mask::None)),
        (&precise, plain("1,2,1,70,300,80", Mask::Causal).with_output_format(OutputFormat::F16)),
        (&two, plain("1,2,2,200,90,40", Mask::None).with_output_format(OutputFormat::Bf16)),
        (
            "hopper:fast,warpgroups=2,tile_keys=64,stages=2,scores=s32,promote=0,sums=registers,flight=2",
            plain("1,1,1,70,150,192", Mask::None),
        ),
        (
            "hopper:exact-exp,warpgroups=2,tile_keys=64,stages=2,scores=s32,promote=0,sums=registers,flight=2",
            plain("1,1,1,70,150,256", Mask::Causal),
        ),
    ];
    let job = |(index, (variant, problem)): (usize, (&str, Problem))| Job {
        variant: variant.into(),
        problem,
        family: Family::BiasedValues,
        change: None,
        seeds: vec![5 * index as u64 % 36],
    };
    check_all(jobs.into_iter().enumerate().map(job).collect());
}

/// Scores that lie hundreds of powers of two below the maximum, and so small that they are one; V of mean 100.
#[test]
fn every_range_is_right_and_nothing_is_found() {
    if !simulator() {
        return;
    }
    let changes: [fn(&mut Inputs); 4] = [
        |inputs| inputs.q.iter_mut().for_each(|value| *value *= 12.0),
        |inputs| inputs.q.iter_mut().for_each(|value| *value *= 300.0),
        |inputs| inputs.q.iter_mut().for_each(|value| *value *= 1e-9),
        |inputs| inputs.v.iter_mut().for_each(|value| *value += 100.0),
    ];
    let mut jobs = Vec::new();
    for (index, change) in changes.into_iter().enumerate() {
        for (turn, mode) in ["fast", "exact-exp", "precise"].into_iter().enumerate() {
            let mask = [Mask::None, Mask::Causal][(index + turn) % 2];
            jobs.push(Job {
                variant: format!("hopper:{mode},{KNOBS},tile_keys=256"),
                problem: problem("1,2,1,130,600,128", mask),
                family: Family::Gaussian,
                change: Some(change),
                seeds: vec![(3 * index + turn) as u64],
            });
        }
    }
    check_all(jobs);
}

/// NaN and infinities in bf16, f16 and f32, wherever they are, at any strides: the first of Q, then of K, then of V. Nothing else is.
#[test]
fn values_that_are_not_finite_are_told_by_tensor_head_and_row() {
    if !simulator() {
        return;
    }
    let wrong = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
    let jobs = (0..12).collect();
    let failed: Vec<String> = in_parallel(jobs, |turn: usize| {
        let layout = [Layout::Bhsd, Layout::Bshd][turn % 2];
        let shape = ["2,4,2,70,300,64", "1,2,1,9,129,72"][turn / 2 % 2];
        // None; one in a tensor; and two, of which the first counts.
        let which = turn % 4;
        let value = wrong[turn % 3];
        let told = match turn % 3 {
            0 => validate::<bf16>(turn as u64, shape, layout, which, bf16::from_f32(value), bf16::from_f32),
            1 => validate::<f16>(turn as u64, shape, layout, which, f16::from_f32(value), f16::from_f32),
            _ => validate::<f32>(turn as u64, shape, layout, which, value, |value| value),
        };
        told.err()
    })
    .into_iter()
    .flatten()
    .collect();
    assert_eq!(failed, Vec::<String>::new());
}

/// Puts something into two rows of Q (0), K (1) or V (2), or into none of them (3), and asks where it is.
fn validate<T: Number + Send>(
    seed: u64,
    shape: &str,
    layout: Layout,
    which: usize,
    wrong: T,
    of: fn(f32) -> T,
) -> Result<(), String> {
    let shape: Shape = shape.parse().unwrap();
    let problem = Problem::new(shape).unwrap().with_output_layout(layout).unwrap();
    let dims = [shape.query_dims(), shape.key_dims(), shape.key_dims()];
    // The largest numbers of f16 are finite.
    let mut values = dims.map(|dims| vec![of(65504.0); dims.count()]);
    let last = |dims: Dims| (dims.batch - 1, dims.heads - 1, dims.len - 1 - seed as usize % 5);
    if let Some(dims) = dims.get(which) {
        let (batch, head, row) = last(*dims);
        let mut put =
            |row, channel| values[which][layout.strides(*dims).row_offset(batch, head, row) + channel] = wrong;
        put(row, seed as usize % dims.head_dim);
        put(dims.len - 1, dims.head_dim - 1);
    }
    simulate::begin(Schedule::of_seed(seed));
    let run = || {
        let device = Device::default()?;
        let stream = device.stream()?;
        let upload = |index: usize| DeviceValues::upload(&device, &stream, &values[index], dims[index], layout);
        let [q, k, v] = [upload(0)?, upload(1)?, upload(2)?];
        let lie = |index: usize| layout.strides(dims[index]);
        let of = ValuesOf { format: T::FORMAT, q: lie(0), k: lie(1), v: lie(2), output: lie(0), centre_keys: true };
        let call = ValueAttention::new(&device, &problem, of)?;
        let output = DeviceOutput::new(&device, &problem)?;
        let mut workspace = Workspace::new(&stream, call.workspace_bytes())?;
        let at = Addresses { q: q.pointer(), k: k.pointer(), v: v.pointer(), output: output.values(), lse: None };
        // SAFETY: all of it lives until the look, which waits, is over.
        Ok::<_, eightfold::Error>(unsafe { call.validate(&stream, &at, &mut workspace) })
    };
    let told = run().map_err(|error| format!("{error} {:?}", simulate::findings()))?;
    let told = told.err().map(|error| error.to_string()).unwrap_or_default();
    let expected = dims.get(which).map_or(String::new(), |dims| {
        let (batch, head, row) = last(*dims);
        let what = if wrong.to_f32().is_nan() { "NaN" } else { "an infinity" };
        let fix = "look for where it comes from, and pass finite values only";
        format!("{}: {what} in batch {batch}, head {head}, row {row}; {fix}", ["q", "k", "v"][which])
    });
    let found = simulate::findings();
    match told == expected && found.is_empty() {
        true => Ok(()),
        false => Err(format!("seed {seed}: told {told:?} and not {expected:?}; {found:?}")),
    }
}

/// K and Q in one launch of clusters of many sizes: the very bits of the launches one by one.
#[test]
fn keys_and_queries_in_one_launch_have_the_bits_of_two() {
    if !simulator() {
        return;
    }
    let shapes = ["2,4,2,70,300,64", "1,2,1,700,257,128", "1,3,3,1,129,128", "1,2,1,5,2500,64", "2,1,1,600,40,256"];
    let failed = in_parallel((0..10).collect(), |turn: usize| {
        let shape = shapes[turn % shapes.len()];
        match turn % 3 {
            0 => one_by_one::<bf16>(turn as u64, shape, bf16::from_f32),
            1 => one_by_one::<f16>(turn as u64, shape, f16::from_f32),
            _ => one_by_one::<f32>(turn as u64, shape, |value| value),
        }
        .err()
    });
    assert_eq!(failed.into_iter().flatten().collect::<Vec<_>>(), Vec::<String>::new());
}

fn one_by_one<T: Number + Send>(seed: u64, shape: &str, of: fn(f32) -> T) -> Result<(), String> {
    let plain = problem(shape, Mask::None);
    let shape = plain.shape();
    // Where every query sees a key.
    let problem = if seed % 2 == 1 && shape.query_len <= shape.key_len { plain.causal() } else { plain };
    let dims = [shape.query_dims(), shape.key_dims(), shape.key_dims()];
    let inputs = Inputs::of_problem(&problem, Family::Outliers, seed);
    let values =
        [&inputs.q, &inputs.k, &inputs.v].map(|of_f32| of_f32.iter().map(|value| of(*value)).collect::<Vec<T>>());
    simulate::begin(Schedule::of_seed(seed));
    let run = || {
        let device = Device::default()?;
        let stream = device.stream()?;
        let upload = |index: usize| DeviceValues::upload(&device, &stream, &values[index], dims[index], Layout::Bhsd);
        let [q, k, v] = [upload(0)?, upload(1)?, upload(2)?];
        let lie = |index: usize| Layout::Bhsd.strides(dims[index]);
        let of = ValuesOf { format: T::FORMAT, q: lie(0), k: lie(1), v: lie(2), output: lie(0), centre_keys: true };
        let call = ValueAttention::new(&device, &problem, of)?;
        let mut output = DeviceOutput::new(&device, &problem)?;
        let mut workspace = Workspace::new(&stream, call.workspace_bytes())?;
        let lse = output.lse();
        let addresses = Addresses { q: q.pointer(), k: k.pointer(), v: v.pointer(), output: output.values(), lse };
        // SAFETY: all of it lives until the stream is done.
        unsafe { call.launch(&stream, &addresses, &mut workspace)? };
        let mut got = Output::zeros(&problem);
        output.download(&stream, &mut got)?;
        let row = Granularity::Block { rows: 1 };
        let keys = Granularity::Block { rows: INT8_BLOCK };
        let of_q = DeviceQuantizer::new(&device, &q, Fp8Format::Int8, row, Layout::Bhsd)?;
        let of_k = DeviceQuantizer::centered_once(&device, &k, Fp8Format::Int8, keys, Layout::Bhsd)?;
        let of_v = DeviceQuantizer::centered_once(&device, &v, Fp8Format::E4m3, Granularity::Head, Layout::Packed)?;
        let alone = of_q.kernels() + of_k.kernels() + of_v.kernels();
        let mut tensors = Vec::new();
        for (quantizer, values) in [(of_q, &q), (of_k, &k), (of_v, &v)] {
            let mut quantized = quantizer.allocate()?;
            quantizer.launch(&stream, values, &mut quantized)?;
            quantized.check(&stream)?;
            tensors.push(quantized);
        }
        attention(&stream, &problem, tensors[0].tensor(), tensors[1].tensor(), tensors[2].tensor(), &mut output)?;
        let mut expected = Output::zeros(&problem);
        output.download(&stream, &mut expected)?;
        Ok::<_, eightfold::Error>((call.kernels(), alone, got == expected))
    };
    let (kernels, alone, same) = run().map_err(|error| format!("{problem}: {error} {:?}", simulate::findings()))?;
    let found = simulate::findings();
    // With attention, a launch less than one by one; the only row of a head is held by a cluster, as K is, and not by lanes.
    let expected = alone + usize::from(shape.query_len == 1);
    match same && kernels == expected && found.is_empty() {
        true => Ok(()),
        false => {
            Err(format!("{problem} under schedule {seed}: {kernels} kernels, {alone} quantise, same {same}, {found:?}"))
        }
    }
}

/// Quantised and attended in one call, whatever the schedule: the same bits as the steps one by one, or next to them where means
/// are added in another order.
#[test]
fn a_call_from_bf16_gives_what_its_steps_give() {
    if !simulator() {
        return;
    }
    let jobs = vec![("1,2,1,70,300,128", true), ("1,2,2,130,200,64", true), ("1,2,1,70,150,80", false)];
    let failed = in_parallel(jobs.into_iter().enumerate().collect(), |(seed, (shape, once))| {
        call(seed as u64, shape, once).err()
    });
    assert_eq!(failed.into_iter().flatten().collect::<Vec<_>>(), Vec::<String>::new());
}

fn call(seed: u64, shape: &str, once: bool) -> Result<(), String> {
    let problem = problem(shape, Mask::Causal);
    let shape = problem.shape();
    let Inputs { q, k, mut v, .. } = Inputs::of_problem(&problem, Family::Gaussian, 1);
    v.iter_mut().for_each(|value| *value += 1.0);
    let narrow = |values: &[f32]| values.iter().map(|value| bf16::from_f32(*value)).collect::<Vec<_>>();
    let values = [narrow(&q), narrow(&k), narrow(&v)];
    simulate::begin(Schedule::of_seed(seed));
    let run = || {
        let device = Device::default()?;
        let stream = device.stream()?;
        let dims = [shape.query_dims(), shape.key_dims(), shape.key_dims()];
        let upload = |index: usize| DeviceValues::upload(&device, &stream, &values[index], dims[index], Layout::Bhsd);
        let [q, k, v] = [upload(0)?, upload(1)?, upload(2)?];
        let lie = |index: usize| Layout::Bhsd.strides(dims[index]);
        let of =
            ValuesOf { format: ValueFormat::Bf16, q: lie(0), k: lie(1), v: lie(2), output: lie(0), centre_keys: true };
        let call = ValueAttention::new(&device, &problem, of)?;
        let mut output = DeviceOutput::new(&device, &problem)?;
        let mut workspace = Workspace::new(&stream, call.workspace_bytes())?;
        let lse = output.lse();
        let addresses = Addresses { q: q.pointer(), k: k.pointer(), v: v.pointer(), output: output.values(), lse };
        // SAFETY: all of it lives until the stream is done.
        unsafe { call.launch(&stream, &addresses, &mut workspace)? };
        let mut got = Output::zeros(&problem);
        output.download(&stream, &mut got)?;
        let [q, k, v] = on_device::for_attention(&stream, &problem, [&q, &k, &v])?;
        for quantized in [&q, &k, &v] {
            quantized.check(&stream)?;
        }
        attention(&stream, &problem, q.tensor(), k.tensor(), v.tensor(), &mut output)?;
        let mut expected = Output::zeros(&problem);
        output.download(&stream, &mut expected)?;
        Ok::<_, eightfold::Error>((call.kernels(), got, expected))
    };
    let (kernels, got, expected) = run().map_err(|error| format!("{error} {:?}", simulate::findings()))?;
    let [got, expected] = [got, expected].map(|output| output.values.to_f32());
    let error = |a: &[f32], b: &[f32]| {
        let square = |x: f32| f64::from(x) * f64::from(x);
        let off: f64 = a.iter().zip(b).map(|(a, b)| square(a - b)).sum();
        (off / b.iter().map(|b| square(*b)).sum::<f64>()).sqrt()
    };
    let (error, found) = (error(&got, &expected), simulate::findings());
    // K and Q in one launch, V in another, and attention; or Q in two, and K and V in four each.
    let as_many = kernels == if once { 3 } else { 11 };
    // One code of a key that falls on the other side, of thousands.
    match error < 5e-3 && as_many && found.is_empty() {
        true => Ok(()),
        false => Err(format!("{problem}: {kernels} kernels, error {error:.2e}, {found:?}")),
    }
}
