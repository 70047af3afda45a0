//! The ladder: one tiled attention kernel whose every optimisation is a knob, and the stages that switch them on.

mod choose;
mod config;
mod launch;
mod program;
mod space;
mod stages;

use super::Arch;
pub use choose::choose;
pub use config::{Banks, Config, Copy, Exp, HEAD_DIMS, KNOBS, Pv, Qk, Schedule, Softmax};
pub use launch::{Tile, TileDump, dump};
pub(super) use launch::{calls, tiles, workspace_bytes};
pub(super) use program::program;
pub use program::shared_bytes;
pub use space::draws;
pub use stages::{STAGES, Stage, find as find_stage};

/// The file under `kernels/`.
pub const FILE: &str = "ladder/attention.cu";

/// The architectures that the kernel is compiled for.
pub const ARCHS: &[Arch] = &[Arch::Sm89, Arch::Sm90];
