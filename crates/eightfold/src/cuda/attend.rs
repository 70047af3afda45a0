//! Attention on the device: with tensors that are there, or from host tensors and back.

use super::compile::Compiler;
use super::driver::{Device, Stream};
use super::ladder::{self, Config, Prepared, Pv, STAGES};
use super::tensor::{DeviceOutput, DeviceTensor};
use crate::error::{Error, Result};
use crate::installed::{self, Installed};
use crate::output::Output;
use crate::plan::{Considered, RunReport};
use crate::problem::Problem;
use crate::tensor::{Fp8Tensor, Granularity, Layout};
use crate::variant::Variant;
use std::sync::OnceLock;

/// The environment variable that keeps a plan to the CPU.
const DEVICE_VARIABLE: &str = "EIGHTFOLD_DEVICE";

/// Attention on tensors in device memory: puts one launch of the best kernel into the stream and returns at once.
///
/// V may lie in rows or, which is faster, transposed ([`Layout::Bhds`]). Tensors and output must live until the launch
/// is done. The first call for a kind of problem compiles its kernel; later ones find it in memory, and [`Prepared`]
/// saves the search as well.
pub fn attention_on(
    stream: &Stream,
    problem: &Problem,
    q: &DeviceTensor,
    k: &DeviceTensor,
    v: &DeviceTensor,
    output: &mut DeviceOutput,
) -> Result<()> {
    let device = stream.device();
    let serves =
        |config: &Config| config.check_problem(problem, k.granularity(), v.granularity(), device.arch()).is_ok();
    let transposed = v.layout() == Layout::Bhds;
    let installed = installed_config(device, problem, &installed::find)
        .map(|(config, _)| config)
        .filter(|config| (Prepared::value_layout(config) == Layout::Bhds) == transposed);
    let candidates: Vec<Config> =
        installed.into_iter().chain(candidates(problem, device.info().multiprocessors, v.layout())).collect();
    // If none serves, the first says why.
    let config = candidates.iter().find(|config| serves(config)).unwrap_or(&candidates[0]);
    Prepared::new(device, problem, config, q, k, v)?.launch(stream, q, k, v, output)
}

/// What may run with V in this layout, the best first: then, for scales that change within its tiles, the stages from
/// the last to the first.
fn candidates(problem: &Problem, multiprocessors: usize, layout: Layout) -> Vec<Config> {
    let (best, _) = ladder::choose(problem, multiprocessors);
    let stages = STAGES.iter().rev().map(|stage| stage.at(problem.shape().head_dim));
    let reads = |config: Config| match layout {
        Layout::Bhds => config,
        Layout::Bhsd | Layout::Bshd if Prepared::value_layout(&config) == Layout::Bhds => {
            Config { pv: Pv::Mma, ..config }
        }
        Layout::Bhsd | Layout::Bshd => config,
    };
    let transposed = layout == Layout::Bhds;
    let fits = |config: &Config| (Prepared::value_layout(config) == Layout::Bhds) == transposed;
    let small = [best, Config { tile_keys: 64, ..best }, Config { tile_keys: 32, key_groups: 1, ..best }];
    let legal = |config: &Config| config.check().is_ok();
    small.into_iter().chain(stages).map(reads).filter(fits).filter(legal).collect()
}

/// Whether this machine's device runs a problem, and with which config; an error if the environment is not understood.
///
/// `EIGHTFOLD_DEVICE=cpu` in the environment keeps to the CPU.
pub(crate) fn choose(problem: &Problem, find: installed::Find) -> Result<Considered> {
    let value = std::env::var_os(DEVICE_VARIABLE);
    let outcome = match is_kept_to_cpu(value.as_deref().map(|value| value.to_string_lossy()).as_deref())? {
        true => Err(format!("{DEVICE_VARIABLE}=cpu is set, which keeps to the CPU")),
        false => choose_on_device(problem, find).map_err(|error| error.to_string()),
    };
    Ok(match outcome {
        Ok((config, reason)) => Considered { variant: Variant::Ladder(config), chosen: true, reason },
        Err(reason) => Considered {
            variant: Variant::Ladder(ladder::choose(problem, USUAL_MULTIPROCESSORS).0),
            chosen: false,
            reason,
        },
    })
}

/// Of an H200: what is assumed to name a config where there is no device.
const USUAL_MULTIPROCESSORS: usize = 132;

/// The config that runs a problem on this machine's device, and why; or why none can.
fn choose_on_device(problem: &Problem, find: installed::Find) -> Result<(Config, String)> {
    let device = Device::default()?;
    if let Some(loss) = device.loss() {
        return Err(loss);
    }
    let info = device.info();
    let (config, reason) = match installed_config(&device, problem, find) {
        Some((config, choice)) => (config, choice.reason()),
        None => {
            let (config, reason) = ladder::choose(problem, info.multiprocessors);
            (config, reason.into())
        }
    };
    // The scales are known when the tensors are; per head is what suits every tile.
    config.check_problem(problem, Granularity::Head, Granularity::Head, device.arch())?;
    let compiler = Compiler::find()?;
    Ok((
        config,
        format!("{} ({}) is there, {} compiles for it; {reason}", info.name, device.arch(), compiler.version()),
    ))
}

/// What was installed for a problem on this device, if it can still run there.
fn installed_config(device: &Device, problem: &Problem, find: installed::Find) -> Option<(Config, &'static Installed)> {
    let choice = find(&device.info().name, problem)?;
    let Variant::Ladder(config) = choice.variant else { return None };
    let fits = config.check_problem(problem, Granularity::Head, Granularity::Head, device.arch()).is_ok();
    fits.then_some((config, choice))
}

/// What the variable says; an error if it is something that is not understood.
fn is_kept_to_cpu(value: Option<&str>) -> Result<bool> {
    match value {
        None | Some("") => Ok(false),
        Some("cpu") => Ok(true),
        Some(other) => Err(Error::invalid(
            DEVICE_VARIABLE,
            format!("`{other}` is not understood"),
            "set it to cpu to keep to the CPU, or unset it",
        )),
    }
}

/// How the problem is cut, for a person.
pub(crate) fn describe(config: &Config, problem: &Problem) -> String {
    let shape = problem.shape();
    format!(
        "{} tiles of {} queries over {} heads, each by {} warps, {} keys at a time",
        shape.query_len.div_ceil(config.tile_queries),
        config.tile_queries,
        shape.batch * shape.query_heads,
        config.warps,
        config.tile_keys
    )
}

/// Whether the kernel can take tensors with scales like these, on this machine's device.
pub(crate) fn check_scales(config: &Config, problem: &Problem, k: &Fp8Tensor, v: &Fp8Tensor) -> Result<()> {
    let arch = Device::default()?.arch();
    config.check_problem(problem, k.scales().granularity(), v.scales().granularity(), arch)
}

/// Computes attention on host tensors: to device 0, there, and back. The plan has checked tensors and output.
pub(crate) fn run(
    config: &Config,
    problem: &Problem,
    q: &Fp8Tensor,
    k: &Fp8Tensor,
    v: &Fp8Tensor,
    output: &mut Output,
) -> Result<RunReport> {
    let (device, stream) = default_stream()?;
    // Before anything is copied.
    check_scales(config, problem, k, v)?;
    let q = DeviceTensor::upload(device, stream, q, q.layout())?;
    let k = DeviceTensor::upload(device, stream, k, k.layout())?;
    let v = DeviceTensor::upload(device, stream, v, Prepared::value_layout(config))?;
    let mut on_device = DeviceOutput::new(device, problem)?;
    let mut prepared = Prepared::new(device, problem, config, &q, &k, &v)?;
    prepared.launch(stream, &q, &k, &v, &mut on_device)?;
    on_device.download(stream, output)?;
    Ok(prepared.report())
}

/// Device 0 with a stream for everything that comes from the host, opened once per process.
fn default_stream() -> Result<&'static (Device, Stream)> {
    static DEFAULT: OnceLock<Result<(Device, Stream)>> = OnceLock::new();
    let open = || {
        let device = Device::default()?;
        let stream = device.stream()?;
        Ok((device, stream))
    };
    DEFAULT.get_or_init(open).as_ref().map_err(Error::clone)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::Shape;

    #[test]
    fn the_variable_keeps_to_the_cpu_and_knows_nothing_else() {
        assert_eq!(is_kept_to_cpu(None), Ok(false));
        assert_eq!(is_kept_to_cpu(Some("")), Ok(false));
        assert_eq!(is_kept_to_cpu(Some("cpu")), Ok(true));
        let error = is_kept_to_cpu(Some("gpu")).unwrap_err().to_string();
        assert!(error.starts_with("EIGHTFOLD_DEVICE: `gpu` is not understood; "), "{error}");
    }

    #[test]
    fn values_in_rows_and_transposed_are_both_served() {
        for head_dim in [64, 128] {
            for len in [32, 512, 4096] {
                let problem = Problem::new(Shape::new(1, 8, len, head_dim)).unwrap();
                for layout in [Layout::Bhsd, Layout::Bhds] {
                    let candidates = candidates(&problem, 132, layout);
                    assert!(candidates.len() > 2);
                    for config in candidates {
                        assert_eq!(config.check(), Ok(()), "{layout}");
                        let transposed = Prepared::value_layout(&config) == Layout::Bhds;
                        assert_eq!(transposed, layout == Layout::Bhds);
                    }
                }
            }
        }
    }
}
