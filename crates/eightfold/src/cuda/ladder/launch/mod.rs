//! Host side of `kernels/ladder/attention.cu`: what is passed to it, how many blocks, and the memory that it needs.

mod argument;
mod tiling;

use super::config::{Config, Schedule};
use crate::cuda::argument::with_extras;
use crate::cuda::counts::size;
use crate::cuda::driver::{Grid, Stream};
use crate::cuda::kernel::{Address, Call, Calls, Fitted, Kernel, Slots};
use crate::cuda::tensor::{DeviceOutput, DeviceTensor};
use crate::cuda::workspace::{Division, Workspace};
use crate::cuda::{Config as AnyConfig, Operands, Specialisation};
use crate::error::{Error, Result};
use crate::problem::Problem;
use argument::Attention;
use std::mem::offset_of;

/// Counters from which persistent blocks take their work, and by which the last of them clears both.
const QUEUE_COUNTERS: usize = 2;

/// The launch for a problem with these tensors, which were checked.
pub(crate) fn calls(
    config: &Config,
    fitted: &Fitted,
    problem: &Problem,
    [q, k, v]: [&DeviceTensor; 3],
    output: &DeviceOutput,
) -> Result<Calls> {
    let (argument, grid) = argument(config, fitted, problem, [q, k, v], output)?;
    let mut division = Division::default();
    let queue = match config.schedule {
        Schedule::Grid => None,
        Schedule::Persistent => {
            let place = division.counters(QUEUE_COUNTERS)?;
            Some(Address::Pointer { at: offset_of!(Attention, queue), place })
        }
    };
    let main = Call {
        loaded: fitted.loaded.clone(),
        grid,
        early: false,
        argument: with_extras(&argument, problem, q.sinks())?,
        addresses: [queue, None, None],
    };
    let slots = Slots { first: &[], main: argument::SLOTS };
    Ok(Calls { first: None, main, list: None, bytes: division.bytes(), zeroed_bytes: division.zeroed_bytes(), slots })
}

/// What a launch needs, whatever the problem.
pub(crate) fn workspace_bytes(config: &Config) -> Result<usize> {
    let mut division = Division::default();
    if config.schedule == Schedule::Persistent {
        division.counters(QUEUE_COUNTERS)?;
    }
    Ok(division.bytes())
}

fn argument(
    config: &Config,
    Fitted { device, blocks_per_multiprocessor, .. }: &Fitted,
    problem: &Problem,
    [q, k, v]: [&DeviceTensor; 3],
    output: &DeviceOutput,
) -> Result<(Attention, Grid)> {
    let units = tiling::units(problem, config)?;
    let multiprocessors = device.info().multiprocessors;
    let mut argument = Attention::new(problem, q, k, v, output)?;
    let paired_from = tiling::paired_from(units, config, multiprocessors, *blocks_per_multiprocessor);
    argument.paired_from = size("multiprocessors", paired_from)?;
    let grid = Grid {
        blocks: tiling::blocks(units, config, multiprocessors, *blocks_per_multiprocessor),
        threads: config.threads() as u32,
        dynamic_shared_bytes: super::shared_bytes(config, problem.shape().head_dim, problem.value_dims().head_dim),
        cluster: 1,
    };
    Ok((argument, grid))
}

/// What the buffer of a dump is filled with before the launch: bits of a NaN that no arithmetic makes.
pub const DUMP_UNTOUCHED: u8 = 0xff;

/// Floats of one key tile in a dump (scores, weights, sums, maxima and row sums), and how many tiles there may be.
pub fn dump_floats(config: &Config, problem: &Problem) -> (usize, usize) {
    let floats = config.tile_queries * (2 * config.tile_keys + problem.value_dims().head_dim + 2);
    (floats, problem.shape().key_len.div_ceil(config.tile_keys))
}

/// Runs once in debug mode and returns what one unit of work left of its intermediate tiles. Waits for the stream.
pub fn launch_dump(
    stream: &Stream,
    problem: &Problem,
    config: &Config,
    [q, k, v]: [&DeviceTensor; 3],
    unit: usize,
) -> Result<Vec<f32>> {
    let units = tiling::units(problem, config)?;
    if unit >= units as usize {
        return Err(Error::invalid(
            "unit",
            format!("{unit} is not one of the {units} units of work of {problem}"),
            format!("choose one of 0 to {}", units - 1),
        ));
    }
    if config.key_groups > 1 {
        return Err(Error::invalid(
            "key_groups",
            format!("with {} of them no warp has the sums of all keys to show", config.key_groups),
            "set key_groups=1 (and as many tile_queries as 16 for each warp)",
        ));
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
    let (pointer, unit) = (buffer.pointer(), size("unit", unit)?);
    let arguments = kernel.arguments_of_kind(kind, problem, [q, k, v], &output)?.with_main(|argument| {
        argument.set(offset_of!(Attention, dump), pointer);
        argument.set(offset_of!(Attention, dump_work), unit);
    });
    let mut workspace = Workspace::new(stream, arguments.workspace_bytes())?;
    // SAFETY: all of it lives until the wait below is over, and the buffer has room for every key tile.
    unsafe { kernel.launch(stream, &arguments, &mut workspace)? };
    buffer.download(stream, &mut values)?;
    Ok(values)
}
