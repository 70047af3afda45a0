//! The CUDA backend: kernels in CUDA C++, compiled at run time by NVRTC, launched through the driver.
//!
//! Nothing of CUDA is needed to build this crate, and nothing but NVRTC to compile its kernels: [`compile`] turns a
//! [`compile::Program`] into a cubin on any machine. [`driver`] is the thin layer over the driver; [`tensor`] holds FP8 tensors
//! and outputs in device memory; [`quantize`](mod@quantize) fills them there; [`ladder`] and [`hopper`] are the kernels.
//!
//! ```no_run
//! use eightfold::cuda::{attention, driver::Device, quantize, tensor::DeviceOutput};
//! use eightfold::{Layout, Output, Problem, Shape};
//!
//! let device = Device::open(0)?;
//! let stream = device.stream()?; // or a caller's: Stream::from_raw
//! let problem = Problem::new(Shape::new(1, 8, 512, 64))?.causal();
//!
//! // Values that lie on the device are taken by address, with DeviceValues::from_raw.
//! let dims = problem.shape().query_dims();
//! let values = quantize::DeviceValues::upload(&device, &stream, &vec![0.5f32; dims.count()], dims, Layout::Bhsd)?;
//! let [q, k, v] = quantize::for_attention(&stream, &problem, [&values; 3])?;
//! let mut output = DeviceOutput::new(&device, &problem)?;
//! attention(&stream, &problem, q.tensor(), k.tensor(), v.tensor(), &mut output)?; // returns at once
//!
//! let mut result = Output::zeros(&problem);
//! output.download(&stream, &mut result)?;
//! # Ok::<(), eightfold::Error>(())
//! ```
//!
//! Whoever launches the same kernel many times, from several threads or in graphs, splits that call into its parts: a
//! [`Kernel`] is compiled once for a kind of problem, its [`Arguments`] are checked once, and a launch with a [`Workspace`]
//! allocates nothing and waits for nothing.

pub mod arch;
mod attend;
pub mod compile;
mod counts;
pub mod driver;
mod family;
pub mod hopper;
mod kernel;
pub mod ladder;
mod loaded;
pub mod quantize;
mod select;
mod specialisation;
pub mod tensor;
mod workspace;

pub use crate::operands::{Operand, Operands};
pub use arch::Arch;
pub use attend::attention;
pub use family::Config;
pub use kernel::{Arguments, Kernel};
pub(crate) use select::{consider, select};
pub use specialisation::Specialisation;
pub use workspace::Workspace;
