//! Problem × config → the program that the compiler gets.

use super::config::{Banks, Config, Copy, Schedule, Softmax};
use crate::cuda::compile::Program;
use crate::cuda::specialisation::{Specialisation, flag};

/// The program of the ladder kernel for these knobs.
pub(crate) fn program(kind: &Specialisation, config: &Config) -> Program {
    let shared = shared_bytes(config, kind.head_dim);
    let mut defines = kind.defines();
    defines.extend([
        ("DUMP", flag(kind.dump)),
        ("COPY_STAGES", config.stages().to_string()),
        ("COPY_ASYNC", flag(config.copy != Copy::Sync)),
        ("QK", (config.qk as u8).to_string()),
        ("SOFTMAX", (config.softmax as u8).to_string()),
        ("PV", (config.pv as u8).to_string()),
        ("EXP_POLYNOMIAL", (config.exp as u8).to_string()),
        ("BANKS", (config.banks as u8).to_string()),
        ("PERSISTENT", (config.schedule as u8).to_string()),
        ("PRODUCERS", config.producers.to_string()),
        ("TILE_QUERIES", config.tile_queries.to_string()),
        ("TILE_KEYS", config.tile_keys.to_string()),
        ("WARPS", config.warps.to_string()),
        ("KEY_GROUPS", config.key_groups.to_string()),
        ("SHARED_BYTES", shared.to_string()),
    ]);
    Program { file: super::FILE, entry: "ladder_attention", defines, dynamic_shared_bytes: shared }
}

/// The dynamic shared memory of a block; the kernel asserts that it comes to the same (`kernels/ladder/shared.cuh`).
pub fn shared_bytes(config: &Config, head_dim: usize) -> usize {
    let Config { tile_queries, tile_keys, warps, key_groups, .. } = *config;
    let padding = usize::from(config.banks == Banks::Padded);
    let tile = |rows: usize, chunks: usize| rows * 16 * (chunks + padding);
    let asynchronous = config.copy != Copy::Sync;
    let (widen_keys, widen_values) = (config.widens_keys(), config.widens_values());

    let key_codes = tile(tile_keys, head_dim / 16);
    let value_codes = if widen_values { tile(tile_keys, head_dim / 16) } else { tile(head_dim, tile_keys / 16) };
    let stage = if asynchronous || !widen_keys { key_codes } else { 0 }
        + if asynchronous || !widen_values { value_codes } else { 0 };
    let wide = tile(tile_keys, head_dim / 8) * (usize::from(widen_keys) + usize::from(widen_values));
    let tiles = config.stages() * stage + wide;

    // The sums that key groups hand over take the place of the tiles.
    let row_warps = warps / key_groups.max(1);
    let row_tiles = config.rows_per_warp() / 16;
    let handed_over = (key_groups - 1) * row_warps * 32 * 4 * row_tiles * (head_dim / 2 + 6);

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
