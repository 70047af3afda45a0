//! Host side of `kernels/ladder/attention.cu`: what is passed to it, how many blocks, and the memory that it needs.

mod argument;
mod dump;
mod work;

pub use dump::{Tile, TileDump};

use super::config::{Config, Schedule};
use crate::cuda::counts::size;
use crate::cuda::driver::{Device, Grid, Stream};
use crate::cuda::kernel::{Address, Argument, Call, Calls, Fitted};
use crate::cuda::loaded::Loaded;
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
        argument: Argument::of(&argument),
        addresses: [queue, None, None],
    };
    Ok(Calls { first: None, main, bytes: division.bytes() })
}

/// What a launch needs, whatever the problem.
pub(crate) fn workspace_bytes(config: &Config) -> Result<usize> {
    let mut division = Division::default();
    if config.schedule == Schedule::Persistent {
        division.counters(QUEUE_COUNTERS)?;
    }
    Ok(division.bytes())
}

/// Tiles of (queries × keys) that a launch computes.
pub(crate) fn tiles(config: &Config, problem: &Problem) -> u64 {
    work::tiles(problem, config)
}

fn argument(
    config: &Config,
    Fitted { device, blocks_per_multiprocessor, .. }: &Fitted,
    problem: &Problem,
    [q, k, v]: [&DeviceTensor; 3],
    output: &DeviceOutput,
) -> Result<(Attention, Grid)> {
    let units = work::units(problem, config)?;
    let multiprocessors = device.info().multiprocessors;
    let mut argument = Attention::new(problem, q, k, v, output)?;
    let paired_from = work::paired_from(units, config, multiprocessors, *blocks_per_multiprocessor);
    argument.paired_from = size("multiprocessors", paired_from)?;
    let grid = Grid {
        blocks: work::blocks(units, config, multiprocessors, *blocks_per_multiprocessor),
        threads: config.threads() as u32,
        dynamic_shared_bytes: super::shared_bytes(config, problem.shape().head_dim),
        cluster: 1,
    };
    Ok((argument, grid))
}

/// Runs once in debug mode and returns the intermediate tiles of one unit of work. Waits for the stream.
pub fn dump(
    device: &Device,
    stream: &Stream,
    problem: &Problem,
    config: &Config,
    [q, k, v]: [&DeviceTensor; 3],
    unit: usize,
) -> Result<TileDump> {
    let units = work::units(problem, config)?;
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
    let operands = Operands::of(q, k, v);
    operands.check(problem)?;
    AnyConfig::from(*config).check_problem(problem, &operands, device.arch()?)?;
    let kind = Specialisation { dump: true, ..operands.specialisation(problem) };
    let (loaded, blocks_per_multiprocessor) =
        Loaded::get_fitting(device, &kind.program(*config), device.arch()?, config.threads(), || {
            format!("ladder:{config}")
        })?;
    let fitted = Fitted { device: device.clone(), loaded, blocks_per_multiprocessor };
    let output = DeviceOutput::new(device, problem)?;
    let (floats, tiles) = dump::floats_and_tiles(problem, config);
    let mut values = vec![0.0f32; floats * tiles];
    let buffer = device.allocate(size_of_val(values.as_slice()))?;
    buffer.fill(stream, dump::UNTOUCHED)?;
    let workspace = Workspace::new(stream, workspace_bytes(config)?)?;
    let (mut argument, grid) = argument(config, &fitted, problem, [q, k, v], &output)?;
    argument.dump = buffer.pointer();
    argument.dump_work = size("unit", unit)?;
    argument.queue = workspace.pointer();
    // SAFETY: the kernel takes this struct (its layout is tested against the device code's), whose pointers were checked to be
    // of this device and of the problem's sizes. The dump buffer is large enough for every key tile, and all live until the
    // wait below is over.
    unsafe { fitted.loaded.function().launch(stream, grid, &argument)? };
    buffer.download(stream, &mut values)?;
    Ok(TileDump::cut(problem, config, &values))
}
