//! The CUDA backend: kernels in CUDA C++, compiled at run time by NVRTC, launched through the driver.
//!
//! Nothing of CUDA is needed to build this crate, and nothing but NVRTC to compile its kernels: [`compile`] turns a
//! [`compile::Program`] into a cubin on any machine. [`driver`] is the thin layer over the driver; [`ladder`] is the
//! staged kernel with its knobs; [`tensor`] holds FP8 tensors and outputs in device memory; [`quantize`](mod@quantize)
//! fills them there.

pub mod arch;
pub mod compile;
pub mod driver;
pub mod ladder;
pub mod quantize;
pub mod tensor;

pub use arch::Arch;
