//! Other implementations of attention, measured in the same run as ours.

mod torch;
mod worker;

pub use torch::{Torch, TorchContestant};
