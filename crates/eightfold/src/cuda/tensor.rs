//! FP8 tensors and outputs in device memory.

use super::driver::{Device, Stream};
use crate::error::{Error, Result};
use crate::output::Output;
use crate::problem::Problem;
use crate::tensor::{Fp8Tensor, Layout};

/// An FP8 tensor in device memory: codes, scales, and means where it was centred.
#[derive(Debug)]
pub struct DeviceTensor;

/// An attention output in device memory.
#[derive(Debug)]
pub struct DeviceOutput;

impl DeviceTensor {
    /// Copies a tensor to the device, laid out as the kernel wants it: rows of channels, or for V also rows of keys
    /// ([`Layout::Bhds`]), each padded to a multiple of 16 bytes.
    pub fn upload(device: &Device, stream: &Stream, tensor: &Fp8Tensor, layout: Layout) -> Result<Self> {
        let _ = (device, stream, tensor, layout);
        Err(Error::unavailable("CUDA", "not written yet", "wait"))
    }
}

impl DeviceOutput {
    /// Room for the output of a problem.
    pub fn new(device: &Device, problem: &Problem) -> Result<Self> {
        let _ = (device, problem);
        Err(Error::unavailable("CUDA", "not written yet", "wait"))
    }

    /// Fills it with NaN, in the stream's order.
    pub fn poison(&mut self, stream: &Stream) -> Result<()> {
        let _ = stream;
        Err(Error::unavailable("CUDA", "not written yet", "wait"))
    }

    /// Copies it to the host and waits for it.
    pub fn download(&self, stream: &Stream, output: &mut Output) -> Result<()> {
        let _ = (stream, output);
        Err(Error::unavailable("CUDA", "not written yet", "wait"))
    }
}
