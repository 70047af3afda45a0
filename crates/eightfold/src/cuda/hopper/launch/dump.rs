//! Debug mode: one tile of queries writes its intermediate tiles to memory.

use super::tiling;
use crate::cuda::counts::size;
use crate::cuda::driver::Stream;
use crate::cuda::hopper::config::{Config, Keys, SplitKeys};
use crate::cuda::kernel::Kernel;
use crate::cuda::ladder::DUMP_UNTOUCHED;
use crate::cuda::tensor::{DeviceOutput, DeviceTensor};
use crate::cuda::workspace::Workspace;
use crate::cuda::{Config as AnyConfig, Operands, Specialisation};
use crate::error::{Error, Result};
use crate::problem::Problem;

/// What a kernel in debug mode is passed behind everything else.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Debug {
    dump: u64,
    dump_tile: i32,
    _padding: i32,
}

/// Floats of one key tile in a dump (scores, weights, sums, maxima and row sums), and how many tiles there may be.
pub fn dump_floats(config: &Config, problem: &Problem) -> (usize, usize) {
    let floats = config.tile_queries() * (2 * config.tile_keys + problem.value_dims().head_dim + 2);
    (floats, problem.shape().key_len.div_ceil(config.tile_keys))
}

/// Runs once in debug mode and returns what one tile of queries left of its tiles of keys. Waits for the stream.
pub fn launch_dump(
    stream: &Stream,
    problem: &Problem,
    config: &Config,
    [q, k, v]: [&DeviceTensor; 3],
    unit: usize,
) -> Result<Vec<f32>> {
    if config.keys == Keys::AtOnce || config.split_keys == SplitKeys::On {
        let rule = "only keys=streamed with split_keys=off has one block's way through all tiles to show";
        return Err(Error::invalid("keys", rule, "set keys=streamed,split_keys=off"));
    }
    let units = tiling::tiles_of_queries(problem, config);
    if unit >= units {
        let rule = format!("{unit} is not one of the {units} tiles of queries of {problem}");
        return Err(Error::invalid("unit", rule, format!("choose one of 0 to {}", units - 1)));
    }
    let (floats, tiles) = dump_floats(config, problem);
    let (device, operands, config) = (stream.device(), Operands::of(q, k, v), AnyConfig::from(*config));
    operands.check(problem)?;
    config.check_problem(problem, &operands, device.arch()?)?;
    let kind = Specialisation { dump: true, ..operands.specialisation(problem) };
    let kernel = Kernel::of_kind(device, &config, kind)?;
    let output = DeviceOutput::new(device, problem)?;
    let mut values = vec![0.0f32; floats * tiles];
    let buffer = device.allocate(size_of_val(values.as_slice()))?;
    buffer.fill(stream, DUMP_UNTOUCHED)?;
    let debug = Debug { dump: buffer.pointer(), dump_tile: size("unit", unit)?, _padding: 0 };
    let arguments = kernel
        .arguments_of_kind(kind, problem, [q, k, v], &output)?
        .with_main(|argument| *argument = argument.followed_by(&debug));
    let mut workspace = Workspace::new(stream, arguments.workspace_bytes())?;
    // SAFETY: all of it lives until the wait below is over, and the buffer has room for every key tile.
    unsafe { kernel.launch(stream, &arguments, &mut workspace)? };
    buffer.download(stream, &mut values)?;
    Ok(values)
}
