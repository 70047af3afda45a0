//! The CUDA backend: kernels in CUDA C++, compiled at run time by NVRTC, launched through the driver.
//!
//! Nothing of CUDA is needed to build this crate, and nothing but NVRTC to compile its kernels: [`compile`] turns a
//! [`compile::Program`] into a cubin on any machine. [`driver`] is the thin layer over the driver; [`ladder`] is the
//! staged kernel with its knobs, [`hopper`] the one for Hopper, and [`Config`] and [`Prepared`] are one of either;
//! [`tensor`] holds FP8 tensors and outputs in device memory; [`quantize`](mod@quantize) fills them there.
//!
//! [`crate::attention()`] uses all of this by itself where there is a device. Who has tensors on the device already goes
//! the direct way, which neither copies nor waits:
//!
//! ```no_run
//! use eightfold::cuda::driver::Device;
//! use eightfold::cuda::hopper::{self, Prepared};
//! use eightfold::cuda::quantize::{DeviceQuantizer, DeviceValues};
//! use eightfold::cuda::tensor::DeviceOutput;
//! use eightfold::quantize::SMALL_CODES;
//! use eightfold::{Fp8Format, Granularity, Layout, Mask, OutputFormat, Problem, Shape};
//!
//! let device = Device::open(0)?;
//! let stream = device.stream()?; // or a caller's: Stream::from_raw
//! let problem = Problem::new(Shape::new(1, 8, 512, 64))?.causal().with_output_format(OutputFormat::F16);
//!
//! // Values that lie on the device are taken by address with DeviceValues::from_raw.
//! let dims = problem.shape().query_dims();
//! let values = DeviceValues::upload(&device, &stream, &vec![0.5f32; dims.count()], dims, Layout::Bhsd)?;
//! let config = hopper::find_stage("fast")?.at(64, Mask::Causal);
//! let fp8 = |layout, largest_code| {
//!     let quantizer = DeviceQuantizer::new(&device, &values, Fp8Format::E4m3, Granularity::Head, layout)?;
//!     let quantizer = quantizer.with_largest_code(largest_code)?;
//!     let mut quantized = quantizer.allocate()?;
//!     quantizer.launch(&stream, &values, &mut quantized)?;
//!     Ok::<_, eightfold::Error>(quantized)
//! };
//! let (q, k) = (fp8(Layout::Bhsd, SMALL_CODES)?, fp8(Layout::Bhsd, SMALL_CODES)?);
//! let v = fp8(Prepared::value_layout(&config), Fp8Format::E4m3.max())?;
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
mod loaded;
mod operands;
pub mod quantize;
mod specialisation;
pub mod tensor;
mod workspace;

pub use arch::Arch;
pub use attend::attention_on;
pub(crate) use attend::{choose, run, suiting};
pub use family::Config;
pub use kernel::{Arguments, Kernel};
pub use operands::{Operand, Operands};
pub use specialisation::Specialisation;
pub use workspace::Workspace;
