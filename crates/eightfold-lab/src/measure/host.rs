//! What a launch costs the host, beside the driver's own call for a kernel that does nothing and takes as large an argument.

use eightfold::cuda::driver::{Device, Stream};
use eightfold::cuda::tensor::{DeviceOutput, DeviceTensor};
use eightfold::cuda::{Kernel, Operands, Workspace};
use eightfold::lab::EmptyKernel;
use eightfold::quantize::Quantizer;
use eightfold::{Dims, Error, Fp8Tensor, Layout, Problem, Result, Variant};
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// Launches before the device is waited for: far fewer than a stream takes before a launch itself waits.
const BLOCK: usize = 32;

/// Blocks that are not counted.
const WARM_UP: usize = 4;

/// Launches of one problem, timed in one run with the driver's own, in turns.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostGroup {
    /// The shape's name, or the list of its sizes.
    pub shape: String,
    /// The problem.
    pub problem: String,
    /// Who was launched.
    pub entries: Vec<HostEntry>,
}

/// Launches of one variant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostEntry {
    /// What a person calls it.
    pub name: String,
    /// The variant with every knob.
    pub implementation: String,
    /// How V lies.
    pub value_layout: String,
    /// Bytes that each kernel is passed: two kernels where V is put in order first.
    pub argument_bytes: Vec<usize>,
    /// Launches that were counted, and as many of the driver's own.
    pub launches: usize,
    /// The median time of `Kernel::launch`.
    pub launch_p50_ns: f64,
    /// Its 95th percentile.
    pub launch_p95_ns: f64,
    /// The median time of the driver's call for empty kernels, as many, with arguments as large.
    pub driver_p50_ns: f64,
    /// Its 95th percentile.
    pub driver_p95_ns: f64,
}

impl HostEntry {
    /// What the launch takes beside the driver's own call.
    pub fn beside_ns(&self) -> f64 {
        self.launch_p50_ns - self.driver_p50_ns
    }
}

/// Times launches of these variants, so many of each. Variants of the CPU are left out.
pub fn measure(shape: &str, problem: &Problem, variants: &[(String, Variant)], launches: usize) -> Result<HostGroup> {
    let device = Device::default()?;
    let stream = device.stream()?;
    let dims = problem.shape();
    let codes = |quantizer: Quantizer, dims: Dims, step: usize| -> Result<Fp8Tensor<'static>> {
        // The host's time does not depend on values.
        let values: Vec<f32> = (0..dims.count()).map(|index| (index * step % 17) as f32 - 8.0).collect();
        quantizer.quantize(&values, dims, Layout::Bhsd)
    };
    let [of_q, of_k, of_v] = Quantizer::for_attention(problem);
    let (q, k) = (codes(of_q, dims.query_dims(), 3)?, codes(of_k, dims.key_dims(), 5)?);
    let on_host = codes(of_v, problem.value_dims(), 5)?;
    let q = DeviceTensor::upload(&device, &stream, &q, Layout::Bhsd)?;
    let k = DeviceTensor::upload(&device, &stream, &k, Layout::Bhsd)?;
    let output = DeviceOutput::new(&device, problem)?;
    let mut entries = Vec::new();
    for (name, variant) in variants {
        let Some(config) = variant.on_device() else { continue };
        let mut layouts = vec![config.value_layout(), Layout::Bhsd];
        layouts.dedup();
        for layout in layouts {
            let v = DeviceTensor::upload(&device, &stream, &on_host, layout)?;
            let operands = Operands::of(&q, &k, &v);
            match config.check_problem(problem, &operands, device.arch()?) {
                // V as the kernel has it: if it takes nothing, that is an answer.
                Err(error) if layout == config.value_layout() => return Err(error),
                Err(_) => continue,
                Ok(()) => {}
            }
            let kernel = Kernel::of(&device, problem, &config, &operands)?;
            let arguments = kernel.arguments(problem, [&q, &k, &v], &output)?;
            let mut workspace = Workspace::new(&stream, arguments.workspace_bytes())?;
            let argument_bytes: Vec<usize> = arguments.argument_bytes().collect();
            let empty = argument_bytes.iter().map(|bytes| EmptyKernel::new(&device, *bytes));
            let empty: Vec<EmptyKernel> = empty.collect::<Result<_>>()?;
            let times = in_turns(
                &stream,
                launches,
                [
                    // SAFETY: all that a launch uses lives until the stream was waited for, and all are in one stream.
                    &mut || unsafe { kernel.launch(&stream, &arguments, &mut workspace) },
                    &mut || empty.iter().try_for_each(|kernel| kernel.launch(&stream)),
                ],
            )?;
            let [[launch_p50_ns, launch_p95_ns], [driver_p50_ns, driver_p95_ns]] = times.map(|mut ns| {
                ns.sort_unstable();
                [0.5, 0.95].map(|part| ns[((ns.len() - 1) as f64 * part).round() as usize] as f64)
            });
            entries.push(HostEntry {
                name: name.clone(),
                implementation: variant.to_string(),
                value_layout: layout.to_string(),
                argument_bytes,
                launches,
                launch_p50_ns,
                launch_p95_ns,
                driver_p50_ns,
                driver_p95_ns,
            });
        }
    }
    if entries.is_empty() {
        return Err(Error::invalid(
            "variant",
            "none of them is launched on a GPU",
            "name one of the ladder or of hopper",
        ));
    }
    Ok(HostGroup { shape: shape.into(), problem: problem.to_string(), entries })
}

/// The time of each of so many calls of both, block by block; who begins changes from block to block. The device is waited for
/// between blocks.
fn in_turns(
    stream: &Stream,
    launches: usize,
    contestants: [&mut dyn FnMut() -> Result<()>; 2],
) -> Result<[Vec<u64>; 2]> {
    let launches = launches.max(1);
    let mut times = [Vec::with_capacity(launches), Vec::with_capacity(launches)];
    let block_launches = BLOCK.min(launches);
    for block in 0..WARM_UP + launches.div_ceil(block_launches) {
        for turn in 0..2 {
            // Ours is the very first: it makes the context current.
            let who = (turn + block) % 2;
            let mut taken = [0; BLOCK];
            for ns in &mut taken[..block_launches] {
                let start = Instant::now();
                contestants[who]()?;
                *ns = start.elapsed().as_nanos() as u64;
            }
            stream.synchronize()?;
            if block >= WARM_UP {
                let missing = launches - times[who].len();
                times[who].extend(taken.into_iter().take(missing.min(block_launches)));
            }
        }
    }
    Ok(times)
}
