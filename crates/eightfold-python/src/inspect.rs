//! What would run and why, and what there is to run on.

use crate::failure::raise;
use crate::words::{InputFormat, Scoring, Sizes, Wishes};
use eightfold::cuda::compile;
use eightfold::cuda::driver::Device;
use eightfold::lab::compile::Compiler;
use eightfold::lab::cpu as cpu_kernel;
use eightfold::{Layout, Operands, Target, consider};
use pyo3::prelude::*;

/// Every kernel that is considered: its name with its knobs, whether it runs, and why. `device` is none for the CPU.
#[pyfunction]
#[pyo3(signature = (device, sizes, *, scoring, accuracy, output, fp8, input_format))]
pub(crate) fn explain(
    device: Option<usize>,
    sizes: Sizes,
    scoring: Scoring,
    accuracy: &str,
    output: &str,
    fp8: bool,
    input_format: &str,
) -> PyResult<Vec<(String, bool, String)>> {
    let explain = || {
        let problem = Wishes { sizes, scoring: &scoring, accuracy, output, lse: false }.problem()?;
        let wanted = InputFormat::of(input_format)?;
        let device = device.map(Device::open).transpose()?;
        let problem = match fp8 {
            true => problem,
            false => problem.with_input_format(wanted.choose(device.as_ref(), &problem)?.0),
        };
        let mut operands = Operands::assumed(&problem);
        let target = match device {
            None => Target::Cpu,
            Some(device) => {
                let arch = device.arch()?;
                // As a call quantises, and else as codes of others lie.
                operands.v.layout = match (fp8, arch.has_clusters()) {
                    (true, _) => Layout::Bhsd,
                    (false, true) => Layout::Packed,
                    (false, false) => Layout::Bhds,
                };
                if fp8 {
                    operands.q.largest_code = problem.input_format().max();
                    operands.k.largest_code = problem.input_format().max();
                }
                Target::cuda(arch, device.info().multiprocessors)
            }
        };
        let considered = consider(&problem, &operands, target)?;
        Ok(considered.into_iter().map(|one| (one.variant.to_string(), one.chosen, one.reason)).collect())
    };
    explain().map_err(raise)
}

/// What Q and K are quantised to, and why: `input_format` itself unless it is `auto`.
#[pyfunction]
#[pyo3(signature = (device, sizes, *, scoring, accuracy, input_format))]
pub(crate) fn choose_format(
    device: Option<usize>,
    sizes: Sizes,
    scoring: Scoring,
    accuracy: &str,
    input_format: &str,
) -> PyResult<(String, String)> {
    let choose = || {
        let problem = Wishes { sizes, scoring: &scoring, accuracy, output: "bf16", lse: false }.problem()?;
        let device = device.map(Device::open).transpose()?;
        let (format, reason) = InputFormat::of(input_format)?.choose(device.as_ref(), &problem)?;
        Ok((format.to_string(), reason.to_owned()))
    };
    choose().map_err(raise)
}

/// Number, name, compute capability and multiprocessors.
type DeviceTuple = (usize, String, (i32, i32), usize);

/// Each CUDA device.
#[pyfunction]
pub(crate) fn devices() -> PyResult<Vec<DeviceTuple>> {
    let devices = Device::list().map_err(raise)?;
    Ok(devices.into_iter().map(|info| (info.ordinal, info.name, info.capability, info.multiprocessors)).collect())
}

/// The version of the NVRTC that compiles kernels, after looking for it.
#[pyfunction]
pub(crate) fn compiler() -> PyResult<String> {
    Compiler::find().map(|compiler| compiler.version().to_owned()).map_err(raise)
}

/// Names the NVRTC to use, folders to look for one in, and where to keep compiled kernels, before anything is compiled.
#[pyfunction]
#[pyo3(signature = (*, nvrtc, folders, cache))]
pub(crate) fn configure(nvrtc: Option<String>, folders: Vec<String>, cache: Option<String>) -> PyResult<()> {
    let configure = || {
        if let Some(path) = nvrtc {
            compile::set_nvrtc(path)?;
        }
        folders.into_iter().try_for_each(compile::look_in)?;
        cache.map_or(Ok(()), compile::keep_in)
    };
    configure().map_err(raise)
}

/// Which of the instructions that the kernel looks for the CPU has: AVX2, AVX-512, VNNI, and AMX where the system allows it.
#[pyfunction]
pub(crate) fn cpu() -> (bool, bool, bool, bool) {
    let cpu_kernel::Features { avx2, avx512, avx512_vnni, amx, .. } = cpu_kernel::Features::detect();
    (avx2, avx512, avx512_vnni, amx.is_ok())
}
