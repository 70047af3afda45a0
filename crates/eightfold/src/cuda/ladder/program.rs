//! Problem × config → the program that the compiler gets.

use super::config::{Banks, Config, Copy, Schedule, Softmax};
use crate::cuda::compile::Program;
use crate::problem::{Mask, OutputFormat, Problem};
use crate::tensor::{Fp8Format, Granularity};

/// What of a problem and its tensors is compiled into a kernel; everything else is passed at launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Specialisation {
    /// Channels per head.
    pub head_dim: usize,
    /// The mask.
    pub mask: Mask,
    /// The format of Q, K and V.
    pub input: Fp8Format,
    /// The format of the output.
    pub output: OutputFormat,
    /// Whether Q's scale changes along the queries.
    pub query_blocks: bool,
    /// Whether K's scale changes along the keys.
    pub key_blocks: bool,
    /// Whether V's scale changes along the keys.
    pub value_blocks: bool,
    /// Whether one block writes its intermediate tiles to memory.
    pub dump: bool,
}

impl Specialisation {
    /// What a problem with scales of these granularities needs.
    pub fn new(problem: &Problem, queries: Granularity, keys: Granularity, values: Granularity) -> Self {
        let blocks = |granularity| matches!(granularity, Granularity::Block { .. });
        Specialisation {
            head_dim: problem.shape().head_dim,
            mask: problem.mask(),
            input: problem.input_format(),
            output: problem.output_format(),
            query_blocks: blocks(queries),
            key_blocks: blocks(keys),
            value_blocks: blocks(values),
            dump: false,
        }
    }

    /// The program for these knobs.
    pub fn program(&self, config: &Config) -> Program {
        let shared = shared_bytes(config, self.head_dim);
        let flag = |on: bool| u8::from(on).to_string();
        let defines = vec![
            ("HEAD_DIM", self.head_dim.to_string()),
            ("CAUSAL", flag(self.mask == Mask::Causal)),
            ("INPUT_E5M2", flag(self.input == Fp8Format::E5m2)),
            (
                "OUTPUT_FORMAT",
                match self.output {
                    OutputFormat::F32 => "0",
                    OutputFormat::F16 => "1",
                    OutputFormat::Bf16 => "2",
                }
                .into(),
            ),
            ("QUERY_BLOCK_SCALES", flag(self.query_blocks)),
            ("KEY_BLOCK_SCALES", flag(self.key_blocks)),
            ("VALUE_BLOCK_SCALES", flag(self.value_blocks)),
            ("DUMP", flag(self.dump)),
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
        ];
        Program { file: "ladder/attention.cu", entry: "ladder_attention", defines, dynamic_shared_bytes: shared }
    }
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
