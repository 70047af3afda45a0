//! The CUDA backend: kernels in CUDA C++, compiled at run time by NVRTC, launched through the driver.
//!
//! Nothing of CUDA is needed to build this crate, and nothing but NVRTC to compile its kernels: [`compile`] turns a
//! [`compile::Program`] into a cubin on any machine. [`driver`] is the thin layer over the driver; [`ladder`] is the
//! staged kernel with its knobs; [`tensor`] holds FP8 tensors and outputs in device memory; [`quantize`](mod@quantize)
//! fills them there.
//!
//! [`crate::attention()`] uses all of this by itself where there is a device. Who has tensors on the device already goes
//! the direct way, which neither copies nor waits:
//!
//! ```no_run
//! use eightfold::cuda::driver::Device;
//! use eightfold::cuda::ladder::{Config, Prepared};
//! use eightfold::cuda::quantize::{DeviceValues, quantize};
//! use eightfold::cuda::tensor::DeviceOutput;
//! use eightfold::{Fp8Format, Granularity, Layout, OutputFormat, Problem, Shape};
//!
//! let device = Device::open(0)?;
//! let stream = device.stream()?; // or a caller's: Stream::from_raw
//! let problem = Problem::new(Shape::new(1, 8, 512, 64))?.causal().with_output_format(OutputFormat::F16);
//!
//! // Values that lie on the device are taken by address with DeviceValues::from_raw.
//! let dims = problem.shape().query_dims();
//! let values = DeviceValues::upload(&device, &stream, &vec![0.5f32; dims.count()], dims, Layout::Bhsd)?;
//! let config = Config::default();
//! let fp8 = |layout| quantize(&stream, &values, Fp8Format::E4m3, Granularity::Head, layout);
//! let (q, k) = (fp8(Layout::Bhsd)?, fp8(Layout::Bhsd)?);
//! let v = fp8(Prepared::value_layout(&config))?;
//!
//! let mut output = DeviceOutput::new(&device, &problem)?;
//! // Compiles on first use; later it finds the kernel in memory.
//! let mut kernel = Prepared::new(&device, &problem, &config, q.tensor(), k.tensor(), v.tensor())?;
//! for _layer in 0..32 {
//!     kernel.launch(&stream, q.tensor(), k.tensor(), v.tensor(), &mut output)?; // returns at once
//! }
//! stream.synchronize()?;
//! # Ok::<(), eightfold::Error>(())
//! ```

pub mod arch;
mod attend;
pub mod compile;
mod counts;
pub mod driver;
mod family;
pub mod hopper;
mod kernel;
pub mod ladder;
mod operands;
pub mod quantize;
mod specialisation;
pub mod tensor;

pub use arch::Arch;
pub use attend::attention_on;
pub(crate) use attend::{choose, run, suiting};
pub use family::{Config, Prepared};
pub use operands::{Operand, Operands};
pub use specialisation::Specialisation;
