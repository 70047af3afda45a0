//! Attention on the device: with tensors that are there, or from host tensors and back.

use super::compile::Compiler;
use super::driver::{Device, Stream};
use super::ladder::{Config, Prepared, STAGES};
use super::tensor::{DeviceOutput, DeviceTensor};
use crate::error::{Error, Result};
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
/// The best stage of the ladder runs that reads V as it lies, in rows or transposed
/// ([`Layout::Bhds`]). Tensors and output must live until the launch is done. The first call for a kind of problem
/// compiles its kernel; later ones find it in memory, and [`Prepared`] saves the search as well.
pub fn attention_on(
    stream: &Stream,
    problem: &Problem,
    q: &DeviceTensor,
    k: &DeviceTensor,
    v: &DeviceTensor,
    output: &mut DeviceOutput,
) -> Result<()> {
    let device = stream.device();
    let serves = |config: &Config| {
        let transposed = Prepared::value_layout(config) == Layout::Bhds;
        let fits = config.check_problem(problem, k.granularity(), v.granularity(), device.arch());
        transposed == (v.layout() == Layout::Bhds) && fits.is_ok()
    };
    // If none serves, the default says why.
    let config = best_stage(problem, serves).unwrap_or_default();
    Prepared::new(device, problem, &config, q, k, v)?.launch(stream, q, k, v, output)
}

/// The last stage of the ladder, which is the best, that serves.
fn best_stage(problem: &Problem, serves: impl Fn(&Config) -> bool) -> Option<Config> {
    STAGES.iter().rev().map(|stage| stage.at(problem.shape().head_dim)).find(serves)
}

/// Whether this machine's device runs a problem, and with which config; an error if the environment is not understood.
///
/// `EIGHTFOLD_DEVICE=cpu` in the environment keeps to the CPU.
pub(crate) fn choose(problem: &Problem) -> Result<Considered> {
    let config = best_stage(problem, |_| true).unwrap_or_default();
    let value = std::env::var_os(DEVICE_VARIABLE);
    let outcome = match is_kept_to_cpu(value.as_deref().map(|value| value.to_string_lossy()).as_deref())? {
        true => Err(format!("{DEVICE_VARIABLE}=cpu is set, which keeps to the CPU")),
        false => check_device(&config, problem).map_err(|error| error.to_string()),
    };
    let chosen = outcome.is_ok();
    Ok(Considered { variant: Variant::Ladder(config), chosen, reason: outcome.unwrap_or_else(|reason| reason) })
}

/// Why the config runs a problem on this machine's device, or why it cannot.
fn check_device(config: &Config, problem: &Problem) -> Result<String> {
    let device = Device::default()?;
    if let Some(loss) = device.loss() {
        return Err(loss);
    }
    // The scales are known when the tensors are; per head is what suits every tile.
    config.check_problem(problem, Granularity::Head, Granularity::Head, device.arch())?;
    let compiler = Compiler::find()?;
    let info = device.info();
    Ok(format!(
        "{} ({}, {} multiprocessors) is there, and {} compiles for it",
        info.name,
        device.arch(),
        info.multiprocessors,
        compiler.version()
    ))
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
            let problem = Problem::new(Shape::new(1, 1, 64, head_dim)).unwrap();
            for layout in [Layout::Bhsd, Layout::Bhds] {
                let config = best_stage(&problem, |config| Prepared::value_layout(config) == layout).unwrap();
                assert_eq!(config.check(), Ok(()), "{layout}");
            }
            assert_eq!(best_stage(&problem, |_| false), None);
        }
    }
}
