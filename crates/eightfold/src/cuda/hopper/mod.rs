//! The flagship on Hopper: copies by the tensor memory accelerator, products by `wgmma`, accuracy by name.

mod accuracy;
mod choose;
mod config;
mod launch;
mod program;
mod rules;
mod space;
mod stages;

use super::Arch;
use crate::error::{Error, Result};
pub use choose::{Reason, choose, others};
pub use config::{Config, FILES, Grid, HEAD_DIMS, KNOBS, Keys, Launch, Scores, Share, SplitKeys, Sums, Weights};
pub use launch::TileList;
pub(super) use launch::{calls, tiles, workspace_bytes};
pub use program::shared_bytes;
pub(super) use program::{has_cut_tiles, program};
pub use space::draws;
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
