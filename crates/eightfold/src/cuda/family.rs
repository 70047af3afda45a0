//! What the CUDA kernel families have in common: a config of any.

use super::kernel::{Calls, Fitted};
use super::tensor::{DeviceOutput, DeviceTensor};
use super::{Arch, Operands, Specialisation, hopper, ladder};
use crate::error::{Error, Result};
use crate::knobs::Knob;
use crate::operands::Operand;
use crate::problem::{Problem, Shape};
use crate::tensor::Layout;

/// The knobs of one of the CUDA kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Config {
    /// The staged kernel.
    Ladder(ladder::Config),
    /// The flagship on Hopper.
    Hopper(hopper::Config),
}

impl Config {
    /// The architecture that its kernel is compiled for on a device of this one.
    pub fn target(&self, arch: Arch) -> Result<Arch> {
        match self {
            Config::Ladder(_) if ladder::ARCHS.contains(&arch) => Ok(arch),
            Config::Ladder(_) => Err(Error::invalid(
                "arch",
                format!("{arch} is for the hopper kernel; the ladder has none of its instructions"),
                "name sm_90, or the hopper kernel",
            )),
            Config::Hopper(_) => hopper::target(arch),
        }
    }

    /// Whether its kernel can compute the problem with tensors like these on this architecture; V may lie in any layout.
    pub fn check_problem(&self, problem: &Problem, operands: &Operands, arch: Arch) -> Result<()> {
        self.target(arch)?;
        match self {
            Config::Ladder(config) => {
                config.check_value_layout(operands.v.layout)?;
                config.check_problem(problem, operands.k.granularity, operands.v.granularity, arch)
            }
            Config::Hopper(config) => config.check_problem(problem, operands, arch),
        }
    }

    /// The same for tensors of a host, whose V is laid out as the kernel reads it when it is brought to the device.
    pub fn check_uploaded(&self, problem: &Problem, operands: &Operands, arch: Arch) -> Result<()> {
        self.check_problem(problem, &self.uploaded(operands), arch)
    }

    /// What tensors of a host are on the device.
    pub fn uploaded(&self, operands: &Operands) -> Operands {
        Operands { v: Operand { layout: self.value_layout(), ..operands.v }, ..*operands }
    }

    /// Whether a kernel for one kind of problem serves another.
    pub(super) fn check_kind(&self, kind: &Specialisation, other: &Specialisation) -> Result<()> {
        let is_same = match self {
            // Nothing of the keys is compiled in, nor whether there is a log-sum-exp, or V centred.
            Config::Ladder(_) => {
                let Specialisation { key_len, lse, centred, .. } = *kind;
                Specialisation { key_len, lse, centred, ..*other } == *kind
            }
            Config::Hopper(config) => {
                let cut = |kind| hopper::has_cut_tiles(kind, config);
                Specialisation { key_len: kind.key_len, ..*other } == *kind && cut(kind) == cut(other)
            }
        };
        if is_same {
            return Ok(());
        }
        Err(Error::invalid(
            "kernel",
            "it was compiled for another kind of problem: other head dim, mask, formats, scales, log-sum-exp or centring, or \
             keys that its tiles divide where these are not divided",
            "get a kernel for this problem, which is cheap where it was compiled before",
        ))
    }

    pub(super) fn calls(
        &self,
        fitted: &Fitted,
        problem: &Problem,
        tensors: [&DeviceTensor; 3],
        output: &DeviceOutput,
    ) -> Result<Calls> {
        match self {
            Config::Ladder(config) => ladder::calls(config, fitted, problem, tensors, output),
            Config::Hopper(config) => hopper::calls(config, fitted, problem, tensors, output),
        }
    }

    pub(super) fn workspace_bytes(&self, limits: &Problem, multiprocessors: usize) -> Result<usize> {
        match self {
            Config::Ladder(config) => ladder::workspace_bytes(config),
            Config::Hopper(config) => hopper::workspace_bytes(config, limits, multiprocessors),
        }
    }

    pub(super) fn tiles(&self, problem: &Problem) -> u64 {
        match self {
            Config::Ladder(config) => ladder::tiles(config, problem),
            Config::Hopper(config) => hopper::tiles(config, problem),
        }
    }

    /// The layout in which its kernel reads V.
    pub fn value_layout(&self) -> Layout {
        match self {
            Config::Ladder(config) => config.value_layout(),
            Config::Hopper(_) => Layout::BhdsExchanged,
        }
    }

    /// The knobs of its kernel.
    pub fn knobs(&self) -> &'static [Knob] {
        match self {
            Config::Ladder(_) => ladder::KNOBS,
            Config::Hopper(_) => hopper::KNOBS,
        }
    }

    /// The value of a knob as text; none if there is no such knob.
    pub fn knob(&self, name: &str) -> Option<String> {
        match self {
            Config::Ladder(config) => config.knob(name),
            Config::Hopper(config) => config.knob(name),
        }
    }

    /// The same config with one knob set from text.
    pub fn with_knob(self, knob: &str, value: &str) -> Result<Self> {
        Ok(match self {
            Config::Ladder(config) => Config::Ladder(config.with_knob(knob, value)?),
            Config::Hopper(config) => Config::Hopper(config.with_knob(knob, value)?),
        })
    }

    /// Query rows of one computing warp.
    pub fn rows_per_warp(&self) -> usize {
        match self {
            Config::Ladder(config) => config.rows_per_warp(),
            Config::Hopper(config) => config.rows_per_warp(),
        }
    }

    /// Threads of a block.
    pub fn threads(&self) -> usize {
        match self {
            Config::Ladder(config) => config.threads(),
            Config::Hopper(config) => config.threads(),
        }
    }

    /// How the problem is cut, for a person.
    pub fn describe(&self, problem: &Problem) -> String {
        let (tile_queries, workers, tile_keys) = match self {
            Config::Ladder(config) => (config.tile_queries, format!("{} warps", config.warps), config.tile_keys),
            Config::Hopper(config) => {
                let plural = if config.warpgroups == 1 { "" } else { "s" };
                (config.tile_queries(), format!("{} warpgroup{plural}", config.warpgroups), config.tile_keys)
            }
        };
        let Shape { batch, query_heads, query_len, .. } = problem.shape();
        format!(
            "{} tiles of {tile_queries} queries over {} heads, each by {workers}, {tile_keys} keys at a time",
            query_len.div_ceil(tile_queries),
            batch * query_heads,
        )
    }
}

impl From<ladder::Config> for Config {
    fn from(config: ladder::Config) -> Self {
        Config::Ladder(config)
    }
}

impl From<hopper::Config> for Config {
    fn from(config: hopper::Config) -> Self {
        Config::Hopper(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kernel_has_its_architectures() {
        let ladder = Config::from(ladder::Config::default());
        let hopper = Config::from(hopper::Config::default());
        assert_eq!(ladder.target(Arch::Sm89), Ok(Arch::Sm89));
        assert_eq!(ladder.target(Arch::Sm90), Ok(Arch::Sm90));
        assert!(ladder.target(Arch::Sm90a).unwrap_err().to_string().starts_with("arch: sm_90a is for the hopper"));
        assert_eq!(hopper.target(Arch::Sm90), Ok(Arch::Sm90a));
        assert_eq!(hopper.target(Arch::Sm90a), Ok(Arch::Sm90a));
        assert!(hopper.target(Arch::Sm89).unwrap_err().to_string().starts_with("arch: the hopper kernel is made"));
    }
}
