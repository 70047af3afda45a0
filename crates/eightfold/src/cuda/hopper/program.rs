//! Problem × config → the program that the compiler gets.

use super::config::{Config, Grid, Keys, Launch, Scores, Share, SplitKeys, Sums, Weights};
use crate::cuda::compile::Program;
use crate::cuda::specialisation::{Specialisation, flag};
use crate::problem::Mask;

/// The program of the hopper kernel for these knobs.
pub(crate) fn program(kind: &Specialisation, config: &Config) -> Program {
    let shared = shared_bytes(config, kind.head_dim);
    let mut defines = kind.defines();
    defines.extend([
        ("WARPGROUPS", config.warpgroups.to_string()),
        ("TILE_KEYS", config.tile_keys.to_string()),
        ("STAGES", config.stages.to_string()),
        ("SCORES_F32", flag(config.scores == Scores::F32)),
        ("SPLIT_EIGHTHS", split_eighths(config).to_string()),
        ("LINEAR_EIGHTHS", config.linear.to_string()),
        ("PROMOTE_TILES", (config.promote / config.tile_keys).to_string()),
        ("PROMOTE_SHARED", flag(config.sums == Sums::Shared)),
        ("SPLIT_KEYS", flag(config.split_keys == SplitKeys::On)),
        ("DEPENDENT", flag(config.launch == Launch::Dependent)),
        ("FLIGHT", config.flight.to_string()),
        ("KEYS_AT_ONCE", flag(config.keys == Keys::AtOnce)),
        ("SHARE_VALUES", flag(config.share == Share::Values)),
        ("IN_ROUNDS", flag(config.grid == Grid::Rounds)),
        ("HAS_CUT_TILES", flag(has_cut_tiles(kind, config))),
        ("SHARED_BYTES", shared.to_string()),
        ("WITH_LSE", flag(kind.lse)),
        ("CENTRED", flag(kind.centred)),
    ]);
    let entry = match config.keys {
        Keys::Streamed => "hopper_attention",
        Keys::AtOnce => "hopper_short",
    };
    Program { file: config.file(), entry, defines, dynamic_shared_bytes: shared }
}

/// Of eight steps of the value product, those whose weights have two parts.
fn split_eighths(config: &Config) -> u8 {
    match config.weights {
        Weights::Fp8 => 0,
        Weights::Mixed => 1,
        Weights::Split => 8,
    }
}

/// Whether the mask or the end of the keys cuts tiles of keys, which have a body of code of their own.
pub(crate) fn has_cut_tiles(kind: &Specialisation, config: &Config) -> bool {
    kind.mask != Mask::None || !kind.key_len.is_multiple_of(config.tile_keys)
}

/// The dynamic shared memory of a block; the kernel asserts that it comes to the same.
pub fn shared_bytes(config: &Config, head_dim: usize) -> usize {
    /// Tiles start where the pattern of the 128-byte swizzle repeats.
    const TILE_ALIGNMENT: usize = 1024;
    /// Rows of ones below V, with which the tensor cores add up the weights of a row.
    const SUM_ROWS: usize = 8;
    let Config { warpgroups, tile_keys, stages, .. } = *config;
    let queries = config.tile_queries() * head_dim;
    let keys = tile_keys * head_dim;
    let values = ((head_dim + SUM_ROWS) * tile_keys).next_multiple_of(TILE_ALIGNMENT);
    let sums = if config.sums == Sums::Shared { warpgroups * 128 * 4 * head_dim / 2 } else { 0 };
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
        let bytes = |text: &str, head_dim| shared_bytes(&text.parse().unwrap(), head_dim);
        let fast = STAGES[0].at(128, Mask::None);
        assert_eq!(shared_bytes(&fast, 128), 128 * 128 + 2 * (256 * 128 + 136 * 256) + 80);
        assert_eq!(bytes("fast", 64), 192 * 64 + 3 * (256 * 64 + 72 * 256) + 3 * 128 * 4 * 32 + 112);
        assert_eq!(bytes("fast,tile_keys=64", 64), 192 * 64 + 3 * (64 * 64 + 5 * 1024) + 3 * 128 * 4 * 32 + 112);
    }
}
