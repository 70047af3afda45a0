//! Other implementations of attention, measured in the same run as ours.

mod torch;
mod torch_cuda;
mod worker;

pub(crate) use worker::Worker;

pub use torch::{Torch, TorchContestant};
pub use torch_cuda::{Backend, TorchCudaContestant, TorchOnCuda};
