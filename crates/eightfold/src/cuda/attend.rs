//! Attention on tensors in device memory, the short way.

use super::driver::Stream;
use super::kernel::Kernel;
use super::tensor::{DeviceOutput, DeviceTensor};
use super::workspace::Workspace;
use crate::error::Result;
use crate::operands::Operands;
use crate::problem::Problem;
use crate::report::RunReport;

/// Attention on tensors in device memory: puts a launch of the best kernel for them into the stream and returns at once.
///
/// V may lie in rows, transposed, or as [`super::quantize()`](mod@super::quantize) leaves it, which is fastest. The first call
/// for a kind of problem compiles its kernel, and later ones find it in memory. Where the kernel needs a workspace, it is the
/// stream's own. Whoever launches many times, in graphs or with memory of their own, gets a [`Kernel`].
///
/// Tensors and output must not be written to until the launch is done; that they are dropped does no harm, since freeing them
/// waits for it.
pub fn attention(
    stream: &Stream,
    problem: &Problem,
    q: &DeviceTensor,
    k: &DeviceTensor,
    v: &DeviceTensor,
    output: &mut DeviceOutput,
) -> Result<RunReport> {
    let kernel = Kernel::select(stream.device(), problem, &Operands::of(q, k, v))?;
    let arguments = kernel.arguments(problem, [q, k, v], output)?;
    let mut memory = stream.memory();
    let mut workspace = Workspace::of_stream(stream, &mut memory, arguments.workspace_bytes())?;
    // SAFETY: tensors and output are borrowed, and freed only when the device has done with them, or else a caller's, who
    // vouched for that. The workspace is the stream's own, in which launches follow each other.
    unsafe { kernel.launch(stream, &arguments, &mut workspace)? };
    Ok(arguments.report())
}
