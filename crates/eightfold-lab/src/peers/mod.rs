//! Other implementations of attention, measured in the same run as ours.

mod torch;
mod torch_cuda;
mod torch_host;
mod worker;

pub(crate) use worker::Worker;

pub use torch::Torch;
pub use torch_cuda::{Backend, TorchCudaContestant, TorchOnCuda};
pub use torch_host::{Crash, HostDtype, TorchContestant, TorchOnHost};
