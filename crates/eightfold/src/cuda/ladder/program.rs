//! Problem × config → the program that the compiler gets.

use super::config::{Config, Copy, Pv, Qk, Softmax};
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
    /// Whether K's scale changes along the keys.
    pub key_blocks: bool,
    /// Whether V's scale changes along the keys.
    pub value_blocks: bool,
    /// Whether one block writes its intermediate tiles to memory.
    pub dump: bool,
}

impl Specialisation {
    /// What a problem with scales of these granularities for K and V needs.
    pub fn new(problem: &Problem, keys: Granularity, values: Granularity) -> Self {
        let blocks = |granularity| matches!(granularity, Granularity::Block { .. });
        Specialisation {
            head_dim: problem.shape().head_dim,
            mask: problem.mask(),
            input: problem.input_format(),
            output: problem.output_format(),
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
            ("SHARED_BYTES", shared.to_string()),
        ];
        Program { file: "ladder/attention.cu", entry: "ladder_attention", defines, dynamic_shared_bytes: shared }
    }
}

/// The dynamic shared memory of a block; the kernel asserts that it comes to the same.
pub fn shared_bytes(config: &Config, head_dim: usize) -> usize {
    let _ = (config, head_dim, Qk::F16, Softmax::Fused, Pv::Mma);
    0
}
