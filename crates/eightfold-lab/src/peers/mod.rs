//! Other implementations of attention, measured in the same run as ours.

mod torch;
mod torch_cuda;
mod torch_gathered;
mod torch_host;
mod worker;

pub(crate) use worker::Worker;

pub use torch::Torch;
pub use torch_cuda::{Backend, TorchCudaContestant, TorchOnCuda};
pub use torch_gathered::{Gathered, GatheredPeer};
pub use torch_host::{Crash, HostDtype, TorchContestant, TorchOnHost};

/// The real worker script on a stand-in for PyTorch, after these lines; none where there is no Python.
#[cfg(all(test, unix))]
pub(crate) fn scripted(before: &str) -> Option<Torch> {
    use std::time::Duration;
    let version = std::process::Command::new("python3").arg("--version").output().ok()?;
    let script = format!("{before}\n{}\n{}", include_str!("fake_torch.py"), torch::WORKER);
    let (python, timeout) = ("python3".into(), Duration::from_secs(30));
    let launch = || Torch::launch(torch::Launch { python, script, setting: None, timeout, threads: 1 });
    version.status.success().then(|| launch().unwrap())
}
