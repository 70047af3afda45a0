//! What all of them need: the device, a job queue for two cores, and one run of one variant.

use eightfold::cuda::driver::Device;
use eightfold::cuda::tensor::{DeviceOutput, DeviceTensor};
use eightfold::cuda::{Kernel, Operands, Workspace};
use eightfold::quantize::{Quantizer, SMALL_CODES};
use eightfold::{Fp8Tensor, Layout, Mask, Output, Problem, Result, Shape, Values, Variant};
use eightfold_lab::choice;
use eightfold_lab::inputs::{Family, Inputs};
use eightfold_lab::kernel::suited;
use eightfold_lab::provenance::Provenance;
use eightfold_lab::simulate::{self, Finding, Schedule};
use std::path::PathBuf;
use std::sync::Mutex;

/// Installs the simulator. Without a C++ compiler there is none, which CI must not pass over.
pub fn simulator() -> bool {
    match simulate::install() {
        Ok(()) => true,
        Err(error) if std::env::var_os("EIGHTFOLD_REQUIRE_SIMULATOR").is_some() => panic!("{error}"),
        Err(error) => {
            eprintln!("skipped: {error}");
            false
        }
    }
}

/// The folder to write records into, if everything is to run.
pub fn record_folder() -> Option<PathBuf> {
    std::env::var_os("EIGHTFOLD_SIMULATOR_RECORD").map(PathBuf::from)
}

/// Where a table comes from.
pub fn provenance() -> String {
    let Provenance { time_utc, built_from, nvrtc, .. } = Provenance::capture(1).with_compiler();
    let or_unknown = |text: Option<String>| text.unwrap_or_else(|| "unknown".into());
    format!("Commit {}, {time_utc}, {}.", or_unknown(built_from), or_unknown(nvrtc))
}

/// Runs every job, two at a time; the results are in the order of the jobs.
pub fn in_parallel<J: Send, R: Send>(jobs: Vec<J>, run: impl Fn(J) -> R + Sync) -> Vec<R> {
    let count = jobs.len();
    let queue = Mutex::new(jobs.into_iter().enumerate());
    let results = Mutex::new((0..count).map(|_| None).collect::<Vec<_>>());
    let workers = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let Some((index, job)) = queue.lock().unwrap().next() else { return };
                    let result = run(job);
                    results.lock().unwrap()[index] = Some(result);
                }
            });
        }
    });
    results.into_inner().unwrap().into_iter().map(Option::unwrap).collect()
}

/// One problem with its inputs and the answer of the CPU's kernel.
pub struct Bench {
    pub problem: Problem,
    pub variant: Variant,
    q: Fp8Tensor<'static>,
    k: Fp8Tensor<'static>,
    v: Fp8Tensor<'static>,
    /// How V lies on the device, if not as the variant likes it best.
    value_layout: Option<Layout>,
    expected: Vec<f32>,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Ended {
    /// With this relative error.
    Right(f64),
    /// With numbers that are not attention.
    Wrong(f64),
    /// With something that the simulator found.
    Found(Vec<Finding>),
    /// With another error.
    Failed(String),
}

/// Beyond this a result is wrong, whatever the mode.
const WRONG: f64 = 0.1;

impl Bench {
    pub fn new(variant: &str, shape: &str, mask: Mask) -> Bench {
        let problem = Problem::new(shape.parse::<Shape>().unwrap()).unwrap().with_mask(mask).with_lse(true);
        let variant = suited(variant, problem.shape().head_dim, mask).unwrap();
        Bench::of(variant, problem, &Quantizer::new(problem.input_format()).with_largest_code(SMALL_CODES))
    }

    pub fn of(variant: Variant, problem: Problem, quantizer: &Quantizer) -> Bench {
        let inputs = Inputs::generate(problem.shape(), Family::Gaussian, 1);
        let shape = problem.shape();
        let quantize =
            |values: &[f32], dims, quantizer: &Quantizer| quantizer.quantize(values, dims, Layout::Bhsd).unwrap();
        let q = quantize(&inputs.q, shape.query_dims(), quantizer);
        let k = quantize(&inputs.k, shape.key_dims(), quantizer);
        let v = quantize(&inputs.v, shape.key_dims(), &quantizer.with_largest_code(problem.input_format().max()));
        let mut output = Output::zeros(&problem);
        let cpu: Variant = "cpu:baseline".parse().unwrap();
        choice::run(&cpu, &problem, &q, &k, &v, &mut output).unwrap();
        let expected = values(&output);
        Bench { problem, variant, q, k, v, value_layout: None, expected }
    }

    /// The same with V in this layout on the device.
    pub fn with_values_as(self, layout: Layout) -> Bench {
        Bench { value_layout: Some(layout), ..self }
    }

    /// Launched once or several times, one after the other, into the same output.
    pub fn run(&self, launches: usize, schedule: Schedule) -> Ended {
        let mut output = Output::zeros(&self.problem);
        output.values.fill(f32::NAN);
        simulate::begin(schedule);
        let result = match (launches, self.value_layout) {
            (1, None) => choice::run(&self.variant, &self.problem, &self.q, &self.k, &self.v, &mut output).map(|_| ()),
            _ => self.launch(launches, &mut output),
        };
        let found = simulate::findings();
        match result {
            _ if !found.is_empty() => Ended::Found(found),
            Err(error) => Ended::Failed(error.to_string()),
            Ok(_) => match relative_l2(&values(&output), &self.expected) {
                error if error <= WRONG => Ended::Right(error),
                error => Ended::Wrong(error),
            },
        }
    }

    fn launch(&self, launches: usize, output: &mut Output) -> Result<()> {
        let config = self.variant.on_device().unwrap();
        let device = Device::default()?;
        let stream = device.stream()?;
        let q = DeviceTensor::upload(&device, &stream, &self.q, self.q.layout())?;
        let k = DeviceTensor::upload(&device, &stream, &self.k, self.k.layout())?;
        let value_layout = self.value_layout.unwrap_or_else(|| config.value_layout());
        let v = DeviceTensor::upload(&device, &stream, &self.v, value_layout)?;
        let on_device = DeviceOutput::new(&device, &self.problem)?;
        let kernel = Kernel::of(&device, &self.problem, &config, &Operands::of(&q, &k, &v))?;
        let arguments = kernel.arguments(&self.problem, [&q, &k, &v], &on_device)?;
        let mut workspace = Workspace::new(&stream, arguments.workspace_bytes())?;
        for _ in 0..launches {
            // SAFETY: all of it lives until the download has waited for the launches, which are in one stream.
            unsafe { kernel.launch(&stream, &arguments, &mut workspace)? };
        }
        on_device.download(&stream, output)
    }
}

fn values(output: &Output) -> Vec<f32> {
    match &output.values {
        Values::F32(values) => values.clone(),
        _ => panic!("the problem asks for f32"),
    }
}

/// Infinite where something is not a number.
fn relative_l2(values: &[f32], expected: &[f32]) -> f64 {
    let sum = |terms: &mut dyn Iterator<Item = f64>| terms.map(|x| x * x).sum::<f64>();
    let error = sum(&mut values.iter().zip(expected).map(|(x, y)| f64::from(*x) - f64::from(*y)));
    let size = sum(&mut expected.iter().map(|x| f64::from(*x)));
    if error.is_finite() { (error / size).sqrt() } else { f64::INFINITY }
}
