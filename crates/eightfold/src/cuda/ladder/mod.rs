//! The ladder: one tiled attention kernel whose every optimisation is a knob, and the stages that switch them on.

mod choose;
mod config;
mod launch;
mod program;
mod stages;

use super::compile::Program;
use super::family::{Block, CudaFamily, Reason, Why};
use super::kernel::{Calls, Fitted};
use super::tensor::{DeviceOutput, DeviceTensor};
use super::{Arch, Operands, Specialisation};
use crate::error::{Error, Result};
use crate::knobs::Knob;
use crate::problem::{Mask, Problem};
use crate::tensor::Layout;
pub use choose::choose;
pub use config::{Banks, Config, Copy, Exp, KNOBS, Pv, Qk, Schedule, Softmax};
#[doc(hidden)]
pub use launch::{DUMP_UNTOUCHED, dump_floats, launch_dump};
pub use program::shared_bytes;
pub use stages::{STAGES, Stage, find as find_stage};

/// The file under `kernels/`.
pub const FILE: &str = "ladder/attention.cu";

/// The architectures that the kernel is compiled for.
pub const ARCHS: &[Arch] = &[Arch::Sm89, Arch::Sm90];

impl CudaFamily for Config {
    const NAME: &'static str = "ladder";
    const KNOBS: &'static [Knob] = KNOBS;
    const STAGES: &'static [Stage] = STAGES;
    const FILES: &'static [&'static str] = &[FILE];

    fn target(arch: Arch) -> Result<Arch> {
        if ARCHS.contains(&arch) {
            return Ok(arch);
        }
        Err(Error::invalid(
            "arch",
            format!("{arch} is for the hopper kernel; the ladder has none of its instructions"),
            "name sm_90, or the hopper kernel",
        ))
    }

    fn candidates(problem: &Problem, operands: &Operands, _: Arch, multiprocessors: usize) -> Vec<(Self, Why, Reason)> {
        choose::candidates(problem, operands.v.layout, multiprocessors)
    }

    fn at(stage: &Stage, head_dim: usize, _: Mask) -> Self {
        stage.at(head_dim)
    }

    fn check(&self) -> Result<()> {
        self.check()
    }

    fn check_operands(&self, problem: &Problem, operands: &Operands) -> Result<()> {
        self.check_registers(problem)?;
        self.check_value_layout(operands.v.layout)
    }

    fn value_layout(&self) -> Layout {
        if self.widens_values() { Layout::Bhsd } else { Layout::Bhds }
    }

    fn block(&self) -> Block {
        Block {
            queries: self.tile_queries,
            keys: self.tile_keys,
            rows_per_warp: self.rows_per_warp(),
            threads: self.threads(),
            workers: (self.warps, "warp"),
        }
    }

    fn shared_bytes(&self, kind: &Specialisation) -> usize {
        shared_bytes(self, kind.head_dim, kind.value_dim)
    }

    fn compiled_in(&self, kind: &Specialisation) -> Specialisation {
        // Nothing of the keys, nor whether there is a log-sum-exp, or V centred.
        Specialisation { key_len: 0, lse: false, centred: false, ..*kind }
    }

    fn file(&self) -> &'static str {
        FILE
    }

    fn program(&self, kind: &Specialisation) -> Program {
        program::program(kind, self)
    }

    fn calls(&self, on: &Fitted, problem: &Problem, qkv: [&DeviceTensor; 3], output: &DeviceOutput) -> Result<Calls> {
        launch::calls(self, on, problem, qkv, output)
    }

    fn workspace_bytes(&self, _: &Problem, _: usize) -> Result<usize> {
        launch::workspace_bytes(self)
    }

    fn tiles(&self, problem: &Problem) -> u64 {
        problem.tiles(self.tile_queries, self.tile_keys) as u64
    }
}
