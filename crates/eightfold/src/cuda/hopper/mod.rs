//! The flagship on Hopper: copies by the tensor memory accelerator (TMA), products by `wgmma`, accuracy by name.

mod accuracy;
mod choose;
mod config;
pub(super) mod launch;
mod program;
mod rules;
mod stages;

use super::compile::Program;
use super::family::{Block, CudaFamily, Reason, Why};
use super::kernel::{Calls, Fitted};
use super::tensor::{DeviceOutput, DeviceTensor};
use super::{Arch, Operands, Specialisation};
use crate::error::{Error, Result};
use crate::knobs::Knob;
use crate::problem::{Accuracy, Mask, Problem};
use crate::tensor::Layout;
pub use choose::choose;
pub use config::{Config, FILES, Grid, KNOBS, Keys, Launch, Scores, Share, SplitKeys, Sums, Weights};
#[doc(hidden)]
pub use launch::{dump_floats, launch_dump};
pub use program::shared_bytes;
pub use stages::{STAGES, Stage, find as find_stage};

/// The architectures that the kernel is compiled for.
pub const ARCHS: &[Arch] = &[Arch::Sm90a];

/// What the kernel is compiled for on a device of this architecture.
pub fn target(arch: Arch) -> Result<Arch> {
    match arch {
        Arch::Sm90 | Arch::Sm90a => Ok(Arch::Sm90a),
        Arch::Sm89 => Err(Error::invalid(
            "arch",
            format!("the hopper kernel is made of instructions of {}, which {arch} does not have", Arch::Sm90a),
            "name sm_90a, run on a Hopper device, or use the ladder kernel",
        )),
    }
}

/// What computes sequences of different lengths, whose codes keep scores in f16.
pub(super) fn for_ragged(problem: &Problem) -> Config {
    accuracy::with_exact_weights(stages::of(problem.accuracy()).at_problem(problem), problem)
}

/// Its program.
pub(super) fn ragged_program(kind: &Specialisation, config: &Config) -> Program {
    program::program_for(kind, config, true)
}

impl CudaFamily for Config {
    const NAME: &'static str = "hopper";
    const KNOBS: &'static [Knob] = KNOBS;
    const STAGES: &'static [Stage] = STAGES;
    const FILES: &'static [&'static str] = FILES;
    const INT8: bool = true;
    const BOUNDS_WAITS: bool = true;

    fn target(arch: Arch) -> Result<Arch> {
        target(arch)
    }

    fn candidates(
        problem: &Problem,
        operands: &Operands,
        arch: Arch,
        multiprocessors: usize,
    ) -> Vec<(Self, Why, Reason)> {
        choose::candidates(problem, operands, arch, multiprocessors)
    }

    fn at(stage: &Stage, head_dim: usize, mask: Mask) -> Self {
        stage.at(head_dim, mask)
    }

    fn check(&self) -> Result<()> {
        self.check()
    }

    fn check_operands(&self, problem: &Problem, operands: &Operands) -> Result<()> {
        rules::check_operands(self, problem, operands)
    }

    fn accuracy(&self) -> Option<Accuracy> {
        Some(self.accuracy())
    }

    fn value_layout(&self) -> Layout {
        Layout::Packed
    }

    fn block(&self) -> Block {
        Block {
            queries: self.tile_queries(),
            keys: self.tile_keys,
            rows_per_warp: config::WARPGROUP_ROWS / 4,
            threads: self.threads(),
            workers: (self.warpgroups, "warpgroup"),
        }
    }

    fn shared_bytes(&self, kind: &Specialisation) -> usize {
        shared_bytes(self, kind.head_dim, kind.value_dim)
    }

    fn compiled_in(&self, kind: &Specialisation) -> Specialisation {
        // Of the keys only whether tiles are cut.
        Specialisation { key_len: usize::from(program::has_cut_tiles(kind, self)), ..*kind }
    }

    fn file(&self) -> &'static str {
        self.source_file()
    }

    fn program(&self, kind: &Specialisation) -> Program {
        program::program(kind, self)
    }

    fn calls(&self, on: &Fitted, problem: &Problem, qkv: [&DeviceTensor; 3], output: &DeviceOutput) -> Result<Calls> {
        launch::calls(self, on, problem, qkv, output)
    }

    fn workspace_bytes(&self, limits: &Problem, multiprocessors: usize) -> Result<usize> {
        launch::workspace_bytes(self, limits, multiprocessors)
    }

    fn tiles(&self, problem: &Problem) -> u64 {
        launch::tiling::tiles(problem, self)
    }

    fn schedule(&self, on: &Fitted, problem: &Problem) -> Result<Option<Vec<Vec<i32>>>> {
        launch::schedule(self, on, problem)
    }
}
