//! Problem × config → the program that the compiler gets.

use super::config::{Banks, Config, Schedule, Softmax};
use crate::cuda::compile::Program;
use crate::cuda::specialisation::{Specialisation, flag, settings};

/// The program of the ladder kernel for these knobs.
pub(crate) fn program(kind: &Specialisation, config: &Config) -> Program {
    let shared = shared_bytes(config, kind.head_dim, kind.value_dim);
    let mut compiled_in = kind.settings();
    compiled_in.push(("DUMP", flag(kind.dump)));
    compiled_in.extend(config.defines());
    compiled_in.push(("SHARED_BYTES", shared.to_string()));
    Program {
        file: super::FILE,
        entry: "ladder_attention",
        defines: settings(&compiled_in),
        dynamic_shared_bytes: shared,
    }
}

/// Channels of a head with the zeros that pad it: `HEAD_TILE` and `VALUE_TILE` of the device code.
pub(super) fn tile_channels(head_dim: usize) -> usize {
    /// What an FP8 product takes at a time.
    const STEP: usize = 32;
    head_dim.next_multiple_of(STEP)
}

/// The dynamic shared memory of a block; the kernel asserts that it comes to the same (`kernels/ladder/shared.cuh`).
pub fn shared_bytes(config: &Config, head_dim: usize, value_dim: usize) -> usize {
    let (head_dim, value_dim) = (tile_channels(head_dim), tile_channels(value_dim));
    let Config { tile_queries, tile_keys, warps, key_groups, .. } = *config;
    let padding = usize::from(config.banks == Banks::Padded);
    let tile = |rows: usize, chunks: usize| rows * 16 * (chunks + padding);
    let asynchronous = config.copies_ahead();
    let (widen_keys, widen_values) = (config.widens_keys(), config.widens_values());

    let key_codes = tile(tile_keys, head_dim / 16);
    let value_codes = if widen_values { tile(tile_keys, value_dim / 16) } else { tile(value_dim, tile_keys / 16) };
    let stage = if asynchronous || !widen_keys { key_codes } else { 0 }
        + if asynchronous || !widen_values { value_codes } else { 0 };
    let wide = if widen_keys { tile(tile_keys, head_dim / 8) } else { 0 }
        + if widen_values { tile(tile_keys, value_dim / 8) } else { 0 };
    let tiles = config.stages() * stage + wide;

    // The sums that key groups hand over take the place of the tiles.
    let row_warps = warps / key_groups.max(1);
    let row_tiles = config.rows_per_warp() / 16;
    let handed_over = (key_groups - 1) * row_warps * 32 * 4 * row_tiles * (value_dim / 2 + 6);

    let score_row = 4 * tile_keys + 16;
    let weight_row = 2 * tile_keys + 16;
    let row_state = 3 * 4;
    let softmax = tile_queries
        * match config.softmax {
            Softmax::Separate => score_row + weight_row + row_state,
            Softmax::Reuse => score_row + row_state,
            Softmax::Fused => 0,
        };
    let barriers = if config.producers > 0 { 16 * config.stages() } else { 0 };
    let next_work = if config.schedule == Schedule::Persistent { 16 } else { 0 };
    tiles.max(handed_over) + softmax + barriers + next_work
}
