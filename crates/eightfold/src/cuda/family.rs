//! What the CUDA kernel families have in common: a config of any, and a prepared kernel of any.

use super::driver::{Device, Stream};
use super::tensor::{DeviceOutput, DeviceTensor};
use super::{Arch, Operands, hopper, ladder};
use crate::error::{Error, Result};
use crate::knobs::Knob;
use crate::plan::RunReport;
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
                config.check_problem(problem, operands.k.granularity, operands.v.granularity, arch)
            }
            Config::Hopper(config) => config.check_problem(problem, operands, arch),
        }
    }

    /// The layout in which its kernel reads V.
    pub fn value_layout(&self) -> Layout {
        match self {
            Config::Ladder(config) => ladder::Prepared::value_layout(config),
            Config::Hopper(config) => hopper::Prepared::value_layout(config),
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
    pub(crate) fn describe(&self, problem: &Problem) -> String {
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

/// A variant compiled and loaded for one problem, ready to be launched any number of times.
#[derive(Debug)]
pub enum Prepared {
    /// Of the staged kernel.
    Ladder(ladder::Prepared),
    /// Of the flagship on Hopper.
    Hopper(hopper::Prepared),
}

impl Prepared {
    /// Compiles (or takes from the cache) and loads the kernel for tensors of this kind.
    pub fn new(
        device: &Device,
        problem: &Problem,
        config: &Config,
        q: &DeviceTensor,
        k: &DeviceTensor,
        v: &DeviceTensor,
    ) -> Result<Self> {
        Ok(match config {
            Config::Ladder(config) => Prepared::Ladder(ladder::Prepared::new(device, problem, config, q, k, v)?),
            Config::Hopper(config) => Prepared::Hopper(hopper::Prepared::new(device, problem, config, q, k, v)?),
        })
    }

    /// The same without what pays only over many launches.
    pub(super) fn for_one_launch(
        device: &Device,
        problem: &Problem,
        config: &Config,
        q: &DeviceTensor,
        k: &DeviceTensor,
        v: &DeviceTensor,
    ) -> Result<Self> {
        match config {
            Config::Ladder(_) => Prepared::new(device, problem, config, q, k, v),
            Config::Hopper(config) => {
                hopper::Prepared::for_one_launch(device, problem, config, q, k, v).map(Prepared::Hopper)
            }
        }
    }

    /// Puts one launch into the stream and returns at once: see [`ladder::Prepared::launch`] and
    /// [`hopper::Prepared::launch`].
    pub fn launch(
        &mut self,
        stream: &Stream,
        q: &DeviceTensor,
        k: &DeviceTensor,
        v: &DeviceTensor,
        output: &mut DeviceOutput,
    ) -> Result<()> {
        match self {
            Prepared::Ladder(prepared) => prepared.launch(stream, q, k, v, output),
            Prepared::Hopper(prepared) => prepared.launch(stream, q, k, v, output),
        }
    }

    /// What a launch does: how many tiles it computes.
    pub fn report(&self) -> RunReport {
        match self {
            Prepared::Ladder(prepared) => prepared.report(),
            Prepared::Hopper(prepared) => prepared.report(),
        }
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
