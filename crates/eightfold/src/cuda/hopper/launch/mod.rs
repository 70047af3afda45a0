//! Host side of `kernels/hopper/attention.cu` and `short.cu`: what is passed to it, how many blocks, and the memory that it needs.

pub(crate) mod argument;
mod arrange;
mod divider;
mod dump;
mod schedule;
pub(super) mod tiling;

pub use dump::{dump_floats, launch_dump};

use super::config::{Config, Launch, SplitKeys};
use super::program::value_tile;
use super::rules::check_sums;
use crate::cuda::Operands;
use crate::cuda::argument::with_extras;
use crate::cuda::driver::Grid;
use crate::cuda::kernel::{Address, Call, Calls, Fitted, Slots};
use crate::cuda::tensor::{DeviceOutput, DeviceTensor, Lines};
use crate::cuda::workspace::Division;
use crate::error::Result;
use crate::problem::Problem;
use crate::tensor::Layout;
use argument::Attention;
use std::mem::offset_of;
use tiling::Tiling;

/// The launches for a problem with these tensors, which were checked.
pub(crate) fn calls(
    config: &Config,
    fitted: &Fitted,
    problem: &Problem,
    [q, k, v]: [&DeviceTensor; 3],
    output: &DeviceOutput,
) -> Result<Calls> {
    let Fitted { device, loaded, blocks_per_multiprocessor } = fitted;
    let multiprocessors = device.info().multiprocessors;
    let tiling = Tiling::new(problem, config, multiprocessors)?;
    let keys = tiling.keys_of_part(config).min(problem.most_visible_to(1));
    check_sums(config, keys, &Operands::of(q, k, v))?;
    let mut division = Division::default();
    let pointer = |at, place| Some(Address::Pointer { at, place });
    let (mut tickets, mut sums) = (None, None);
    if config.split_keys == SplitKeys::On {
        tickets = pointer(offset_of!(Attention, tickets), division.counters(tiling.units)?);
        let parts = tiling.units * tiling.splits;
        sums = pointer(offset_of!(Attention, partial), division.take(sums_bytes(config, parts, problem)));
    }
    let (mut first, mut values, mut lines) = (None, None, *v.lines());
    if v.layout() != Layout::Packed {
        lines = Lines::padded(v.dims(), Layout::Packed)?;
        let place = division.take(lines.extent_bytes());
        first = Some(arrange::call(device, v, &lines, place)?);
        // The map that is made below is given this place when the workspace is known.
        values = Some(Address::Map { at: offset_of!(Attention, v), place });
    }
    let attention = Attention::new(device.context(), problem, config, &tiling, [q, k, v], (v.codes(), &lines), output)?;
    let main = Call {
        loaded: loaded.clone(),
        grid: Grid {
            blocks: tiling.blocks(config, multiprocessors, *blocks_per_multiprocessor),
            threads: config.threads() as u32,
            dynamic_shared_bytes: super::shared_bytes(config, problem.shape().head_dim, problem.value_dims().head_dim),
            cluster: config.cluster() as u32,
        },
        early: config.launch == Launch::Dependent,
        argument: with_extras(&attention, problem, q.sinks())?,
        addresses: [tickets, sums, values],
    };
    let list = Some([offset_of!(Attention, tile_list), offset_of!(Attention, tile_list_len)]);
    let slots = Slots { first: arrange::SLOTS, main: argument::SLOTS };
    Ok(Calls { first, main, list, bytes: division.bytes(), zeroed_bytes: division.zeroed_bytes(), slots })
}

/// What the launches need at most for problems that are in no size larger, wherever V lies.
pub(crate) fn workspace_bytes(config: &Config, limits: &Problem, multiprocessors: usize) -> Result<usize> {
    let mut division = Division::default();
    if config.split_keys == SplitKeys::On {
        division.counters(tiling::tiles_of_queries(limits, config))?;
        // Of fewer tiles each may have more parts, but never more together than multiprocessors, be it of all sequences or of
        // each.
        let decided_together = limits.deciding();
        let sequences = limits.shape().batch / decided_together.shape().batch;
        let parts = tiling::tiles_of_queries(&decided_together, config).max(multiprocessors).saturating_mul(sequences);
        division.take(sums_bytes(config, parts, limits));
    }
    let lines = Lines::padded(limits.value_dims(), Layout::Packed)?;
    division.take(lines.extent_bytes());
    Ok(division.bytes())
}

/// Of so many parts, and every row of each: the sums of the channels, the maximum and the sum of the weights, padded so that
/// rows start at a multiple of 16 bytes.
fn sums_bytes(config: &Config, parts: usize, problem: &Problem) -> usize {
    4 * parts * config.tile_queries() * (value_tile(problem.value_dims().head_dim) + 4)
}

/// The units of each block in its order; none where blocks deal them out in rounds.
pub(super) fn schedule(config: &Config, on: &Fitted, problem: &Problem) -> Result<Option<Vec<Vec<i32>>>> {
    let info = on.device.info();
    let tiling = Tiling::new(problem, config, info.multiprocessors)?;
    let blocks = tiling.blocks(config, info.multiprocessors, on.blocks_per_multiprocessor) as usize;
    Ok(schedule::order(problem, config, &tiling, blocks, info.l2_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::Shape;
    use crate::tensor::Dims;

    #[test]
    fn every_row_of_every_part_has_room() {
        let shape = Shape { kv_heads: 4, query_len: 1, key_len: 8192, ..Shape::new(1, 32, 1, 128) };
        let config = "fast,warpgroups=1,split_keys=on".parse().unwrap();
        let problem = Problem::new(shape).unwrap();
        let tiling = Tiling::new(&problem, &config, 132).unwrap();
        assert_eq!(sums_bytes(&config, tiling.units * tiling.splits, &problem), 4 * 4 * 32 * 64 * 132);
    }

    #[test]
    fn the_limits_suffice_for_every_smaller_problem() {
        let config: Config = "fast,warpgroups=1,split_keys=on".parse().unwrap();
        let problem = |batch, key_len| {
            Problem::new(Shape { kv_heads: 4, query_len: 1, key_len, ..Shape::new(batch, 32, 1, 128) }).unwrap()
        };
        let most = workspace_bytes(&config, &problem(64, 9000), 132).unwrap();
        let invariant = workspace_bytes(&config, &problem(64, 9000).batch_invariant(), 132).unwrap();
        for (batch, key_len) in [(1, 100), (1, 8192), (7, 9000), (32, 4000), (64, 9000)] {
            let tiling = Tiling::new(&problem(batch, key_len).batch_invariant(), &config, 132).unwrap();
            assert!(sums_bytes(&config, tiling.units * tiling.splits, &problem(batch, key_len)) < invariant);
            let tiling = Tiling::new(&problem(batch, key_len), &config, 132).unwrap();
            let mut division = Division::default();
            division.counters(tiling.units).unwrap();
            division.take(sums_bytes(&config, tiling.units * tiling.splits, &problem(batch, key_len)));
            let dims = Dims { batch, heads: 4, len: key_len, head_dim: 128 };
            division.take(Lines::padded(dims, Layout::Packed).unwrap().extent_bytes());
            assert!(division.bytes() <= most, "{batch} {key_len}");
        }
    }
}
