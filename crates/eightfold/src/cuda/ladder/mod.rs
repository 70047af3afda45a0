//! The ladder: one tiled attention kernel whose every optimisation is a knob, and the stages that switch them on.

mod choose;
mod config;
mod launch;
mod program;
mod space;
mod stages;

pub use choose::choose;
pub use config::{Banks, Config, Copy, Exp, HEAD_DIMS, KNOBS, Pv, Qk, Schedule, Softmax};
pub use launch::{Prepared, Tile, TileDump};
pub use program::{Specialisation, shared_bytes};
pub use space::draws;
pub use stages::{STAGES, Stage, find as find_stage};
