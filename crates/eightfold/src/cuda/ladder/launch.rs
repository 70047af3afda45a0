//! Host side of `kernels/ladder/attention.cu`: what is passed to it, and how many blocks.

use super::config::Config;
use crate::cuda::compile::Resources;
use crate::cuda::driver::{Device, Stream};
use crate::cuda::tensor::{DeviceOutput, DeviceTensor};
use crate::error::{Error, Result};
use crate::problem::Problem;
use crate::tensor::Layout;

/// A variant compiled and loaded for one problem, ready to be launched any number of times.
#[derive(Debug)]
pub struct Prepared;

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
        let _ = (device, problem, config, q, k, v);
        Err(Error::unavailable("CUDA", "not written yet", "wait"))
    }

    /// The layout in which this config wants V.
    pub fn value_layout(config: &Config) -> Layout {
        let _ = config;
        Layout::Bhsd
    }

    /// What the compiler says about the kernel.
    pub fn resources(&self) -> &Resources {
        unreachable!()
    }

    /// A hash of the machine code.
    pub fn code_hash(&self) -> u64 {
        unreachable!()
    }

    /// Puts one launch into the stream and returns at once. The tensors and the output must live until it is done.
    pub fn launch(
        &mut self,
        stream: &Stream,
        q: &DeviceTensor,
        k: &DeviceTensor,
        v: &DeviceTensor,
        output: &mut DeviceOutput,
    ) -> Result<()> {
        let _ = (stream, q, k, v, output);
        Err(Error::unavailable("CUDA", "not written yet", "wait"))
    }
}
