//! What of a problem is compiled into a kernel.

use super::compile::Program;
use super::family::Config;
use crate::operands::Operands;
use crate::problem::{Mask, OutputFormat, Problem, Window};
use crate::tensor::{Fp8Format, Granularity};

/// What of a problem and its tensors is compiled into a kernel; everything else is passed at launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Specialisation {
    /// Channels per head of Q and K.
    pub head_dim: usize,
    /// Channels per head of V and of the output.
    pub value_dim: usize,
    /// The mask.
    pub mask: Mask,
    /// Whether there is a sliding window; its sides are passed at launch.
    pub window: bool,
    /// Whether scores have a bound, which is passed at launch.
    pub softcap: bool,
    /// Whether query heads have sinks.
    pub sinks: bool,
    /// Rows of K and V per head; all that is compiled in is whether tiles cut them evenly, and into how many.
    pub key_len: usize,
    /// The format of Q and K, and of V where it is FP8.
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
    /// Whether one block writes its intermediate tiles to memory.
    pub dump: bool,
}

impl Specialisation {
    /// What a problem with scales of these granularities needs, where V is not centred.
    pub fn new(problem: &Problem, queries: Granularity, keys: Granularity, values: Granularity) -> Self {
        let blocks = |granularity| matches!(granularity, Granularity::Block { .. });
        Specialisation {
            head_dim: problem.shape().head_dim,
            value_dim: problem.value_dims().head_dim,
            mask: problem.mask(),
            window: problem.window() != Window::default(),
            softcap: problem.softcap().is_some(),
            sinks: problem.has_sinks(),
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
        config.into().program(self)
    }

    /// What every attention kernel is compiled with.
    pub(super) fn settings(&self) -> Vec<(&'static str, String)> {
        let output = match self.output {
            OutputFormat::F32 => "0",
            OutputFormat::F16 => "1",
            OutputFormat::Bf16 => "2",
        };
        vec![
            ("HEAD_DIM", self.head_dim.to_string()),
            ("VALUE_DIM", self.value_dim.to_string()),
            ("CAUSAL", flag(self.mask == Mask::Causal)),
            ("WINDOW", flag(self.window)),
            ("SOFTCAP", flag(self.softcap)),
            ("SINKS", flag(self.sinks)),
            ("INPUT_E5M2", flag(self.input == Fp8Format::E5m2)),
            ("INPUT_INT8", flag(self.input == Fp8Format::Int8)),
            ("OUTPUT_FORMAT", output.into()),
            ("QUERY_BLOCK_SCALES", flag(self.query_blocks)),
            ("KEY_BLOCK_SCALES", flag(self.key_blocks)),
            ("VALUE_BLOCK_SCALES", flag(self.value_blocks)),
        ]
    }
}

impl Operands {
    /// What a kernel for them is specialised for.
    #[doc(hidden)]
    pub fn specialisation(&self, problem: &Problem) -> Specialisation {
        Specialisation {
            centred: self.v.centred,
            ..Specialisation::new(problem, self.q.granularity, self.k.granularity, self.v.granularity)
        }
    }
}

/// The macro that makes the device code's `struct Settings` (`kernels/attention/settings.cuh`) of everything compiled in.
pub(super) fn settings(settings: &[(&'static str, String)]) -> Vec<(&'static str, String)> {
    let member = |(name, value): &(&str, String)| format!("static constexpr int {name} = {value};");
    vec![("SETTINGS", settings.iter().map(member).collect::<Vec<_>>().join(" "))]
}

/// A condition as a setting.
pub(super) fn flag(on: bool) -> String {
    u8::from(on).to_string()
}
