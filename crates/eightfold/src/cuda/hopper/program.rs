//! Problem × config → the program that the compiler gets.

use super::config::{Config, Keys, Sums};
use crate::cuda::compile::Program;
use crate::cuda::specialisation::{Specialisation, flag, settings};
use crate::problem::Mask;

/// The program of the hopper kernel for these knobs.
pub(crate) fn program(kind: &Specialisation, config: &Config) -> Program {
    program_for(kind, config, false)
}

/// The same where every sequence may have lengths of its own.
pub(crate) fn program_for(kind: &Specialisation, config: &Config, ragged: bool) -> Program {
    let shared = shared_bytes(config, kind.head_dim, kind.value_dim);
    let mut compiled_in = kind.settings();
    compiled_in.extend(config.defines());
    compiled_in.extend([
        ("DUMP", flag(kind.dump)),
        ("HAS_CUT_TILES", flag(ragged || has_cut_tiles(kind, config))),
        ("RAGGED", flag(ragged)),
        ("SHARED_BYTES", shared.to_string()),
        ("WITH_LSE", flag(kind.lse)),
        ("CENTRED", flag(kind.centred)),
    ]);
    let entry = match config.keys {
        Keys::Streamed => "hopper_attention",
        Keys::AtOnce => "hopper_short",
    };
    Program { file: config.source_file(), entry, defines: settings(&compiled_in), dynamic_shared_bytes: shared }
}

/// Whether the mask or the end of the keys cuts tiles of keys, which have a body of code of their own.
pub(crate) fn has_cut_tiles(kind: &Specialisation, config: &Config) -> bool {
    kind.mask != Mask::None || kind.window || !kind.key_len.is_multiple_of(config.tile_keys)
}

/// Bytes of a row of Q or K in shared memory: one swizzled line or several.
fn row_bytes(head_dim: usize) -> usize {
    head_dim.next_multiple_of(64)
}

/// Bytes of such a line: `LINE` of the device code.
pub(super) fn line_bytes(head_dim: usize) -> usize {
    if row_bytes(head_dim).is_multiple_of(128) { 128 } else { 64 }
}

/// The channels of V that products are written for, of which as many are zero as V has fewer: `VALUE_TILE` of the device code.
pub(super) fn value_tile(value_dim: usize) -> usize {
    [64, 96, 128, 192].into_iter().find(|tile| value_dim <= *tile).unwrap_or(256)
}

/// The dynamic shared memory of a block; the kernel asserts that it comes to the same.
pub fn shared_bytes(config: &Config, head_dim: usize, value_dim: usize) -> usize {
    /// Tiles start where the pattern of the 128-byte swizzle repeats.
    const TILE_ALIGNMENT: usize = 1024;
    /// Rows of ones below V, with which the tensor cores add up the weights of a row.
    const SUM_ROWS: usize = 8;
    let Config { warpgroups, tile_keys, stages, .. } = *config;
    let queries = config.tile_queries() * row_bytes(head_dim);
    let keys = tile_keys * row_bytes(head_dim);
    let channels = value_tile(value_dim);
    let values = ((channels + SUM_ROWS) * tile_keys).next_multiple_of(TILE_ALIGNMENT);
    let sums = if config.sums == Sums::Shared { warpgroups * 128 * 4 * channels / 2 } else { 0 };
    let barriers = 8 * (4 * stages + 2);
    queries + stages * (keys + values) + sums + barriers
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::Operands;
    use crate::cuda::hopper::STAGES;
    use crate::problem::{Problem, Shape};

    #[test]
    fn only_tiles_that_are_cut_are_masked() {
        let cut = |mask, key_len| {
            let problem = Problem::new(Shape::new(1, 1, key_len, 64)).unwrap().with_mask(mask);
            super::has_cut_tiles(&Operands::assumed(&problem).specialisation(&problem), &"fast".parse().unwrap())
        };
        assert_eq!([256, 512, 4096].map(|len| cut(Mask::None, len)), [false; 3]);
        assert_eq!([1, 257, 511, 4097].map(|len| cut(Mask::None, len)), [true; 4]);
        assert_eq!([1, 512, 4096].map(|len| cut(Mask::Causal, len)), [true; 3]);
    }

    #[test]
    fn shared_memory_is_the_sum_of_its_parts() {
        let bytes = |text: &str, head_dim| shared_bytes(&text.parse().unwrap(), head_dim, head_dim);
        let fast = STAGES[0].at(128, Mask::None);
        assert_eq!(shared_bytes(&fast, 128, 128), 128 * 128 + 2 * (256 * 128 + 136 * 256) + 80);
        assert_eq!(bytes("fast", 64), 192 * 64 + 3 * (256 * 64 + 72 * 256) + 3 * 128 * 4 * 32 + 112);
        assert_eq!(bytes("fast", 24), bytes("fast", 64));
        let wide = |head_dim, value_dim| shared_bytes(&STAGES[0].at(256, Mask::None), head_dim, value_dim);
        assert_eq!(wide(192, 128), 128 * 192 + 2 * (64 * 192 + 9 * 1024) + 2 * 128 * 4 * 64 + 80);
        assert_eq!(wide(200, 256), wide(256, 200));
        assert_eq!(bytes("fast,tile_keys=64", 64), 192 * 64 + 3 * (64 * 64 + 5 * 1024) + 3 * 128 * 4 * 32 + 112);
    }
}
