//! What of a problem is compiled into a kernel.

use super::compile::Program;
use super::family::Config;
use super::{hopper, ladder};
use crate::problem::{Mask, OutputFormat, Problem};
use crate::tensor::{Fp8Format, Granularity};

/// What of a problem and its tensors is compiled into a kernel; everything else is passed at launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Specialisation {
    /// Channels per head.
    pub head_dim: usize,
    /// The mask.
    pub mask: Mask,
    /// Rows of K and V per head; all that is compiled in is whether tiles cut them evenly, and into how many.
    pub key_len: usize,
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
    /// Whether the log-sum-exp is written; not every kernel compiles it in.
    pub lse: bool,
    /// Whether means were taken from V; not every kernel compiles it in.
    pub centred: bool,
    /// Whether one block writes its intermediate tiles to memory, which the ladder can do.
    pub dump: bool,
}

impl Specialisation {
    /// What a problem with scales of these granularities needs, where V is not centred.
    pub fn new(problem: &Problem, queries: Granularity, keys: Granularity, values: Granularity) -> Self {
        let blocks = |granularity| matches!(granularity, Granularity::Block { .. });
        Specialisation {
            head_dim: problem.shape().head_dim,
            mask: problem.mask(),
            key_len: problem.shape().key_len,
            input: problem.input_format(),
            output: problem.output_format(),
            query_blocks: blocks(queries),
            key_blocks: blocks(keys),
            value_blocks: blocks(values),
            lse: problem.lse(),
            centred: false,
            dump: false,
        }
    }

    /// The program for these knobs.
    pub fn program(&self, config: impl Into<Config>) -> Program {
        match config.into() {
            Config::Ladder(config) => ladder::program(self, &config),
            Config::Hopper(config) => hopper::program(self, &config),
        }
    }

    /// The macros that every attention kernel reads.
    pub(super) fn defines(&self) -> Vec<(&'static str, String)> {
        let output = match self.output {
            OutputFormat::F32 => "0",
            OutputFormat::F16 => "1",
            OutputFormat::Bf16 => "2",
        };
        vec![
            ("HEAD_DIM", self.head_dim.to_string()),
            ("CAUSAL", flag(self.mask == Mask::Causal)),
            ("INPUT_E5M2", flag(self.input == Fp8Format::E5m2)),
            ("OUTPUT_FORMAT", output.into()),
            ("QUERY_BLOCK_SCALES", flag(self.query_blocks)),
            ("KEY_BLOCK_SCALES", flag(self.key_blocks)),
            ("VALUE_BLOCK_SCALES", flag(self.value_blocks)),
        ]
    }
}

/// A condition as a macro.
pub(super) fn flag(on: bool) -> String {
    u8::from(on).to_string()
}
