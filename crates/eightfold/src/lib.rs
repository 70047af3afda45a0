//! FP8 attention that proves itself: scaled-dot-product attention on FP8 inputs, with the fastest kernel that this
//! machine can run.
//!
//! ```
//! use eightfold::{Problem, Shape, attention, quantize};
//!
//! // One sequence, 8 heads, 128 tokens, 64 channels a head.
//! let problem = Problem::new(Shape::new(1, 8, 128, 64))?.causal();
//! let values: Vec<f32> = (0..8 * 128 * 64).map(|index| (index as f32).sin()).collect();
//!
//! let [q, k, v] = quantize::for_attention(&problem, [&values[..]; 3])?; // E4M3 codes with one scale per head
//! let output = attention(&problem, &q, &k, &v)?;
//! assert_eq!(output.values.to_f32().len(), values.len());
//! # Ok::<(), eightfold::Error>(())
//! ```
//!
//! On a CUDA device, with values that are there already (such as PyTorch's) taken by address:
//!
//! ```no_run
//! use eightfold::cuda::{attention, driver::Device, quantize, tensor::DeviceOutput};
//! use eightfold::{Layout, Output, Problem, Shape};
//!
//! let (device, problem) = (Device::open(0)?, Problem::new(Shape::new(1, 8, 512, 64))?.causal());
//! let stream = device.stream()?; // or a caller's: Stream::from_raw
//! let dims = problem.shape().query_dims();
//! let values = quantize::DeviceValues::upload(&device, &stream, &vec![0.5f32; dims.count()], dims, Layout::Bhsd)?;
//! let [q, k, v] = quantize::for_attention(&stream, &problem, [&values; 3])?;
//! let mut output = DeviceOutput::new(&device, &problem)?;
//! attention(&stream, &problem, q.tensor(), k.tensor(), v.tensor(), &mut output)?; // returns at once
//! let mut result = Output::zeros(&problem);
//! output.download(&stream, &mut result)?; // waits
//! # Ok::<(), eightfold::Error>(())
//! ```
//!
//! The way of the data, each step a module:
//!
//! 1. A [`Problem`] says what to compute and never how: sizes, mask and window, scale, softcap and sinks, formats. Its rules are checked
//!    when it is made.
//! 2. [`quantize`](mod@quantize) turns f32, f16 or bf16 into an [`Fp8Tensor`]: [`fp8`] codes with scales, without
//!    which there is no tensor. Codes from elsewhere come in through [`Fp8Tensor::new`], where they lie.
//! 3. [`select`](select()) picks the [`Variant`], a kernel with its knobs set, that is fastest for the problem and its tensors;
//!    [`consider`] says why. [`attention()`] runs it on this machine's CPU, [`cuda::attention`] on a CUDA device.
//! 4. The kernel for CPUs is a tiled online softmax in f32 or in 16-bit fixed point. [`cuda`] holds those for NVIDIA GPUs,
//!    compiled at run time.
//!
//! The library reads no configuration file and no environment variable: which NVRTC to use and where to keep compiled kernels it
//! is told ([`cuda::compile`]).
//!
//! [`reference`](mod@reference) computes the same in float64: the oracle that everything here is measured against.

mod cpu;
pub mod cuda;
mod error;
pub mod fp8;
mod knobs;
#[doc(hidden)]
pub mod lab;
mod operands;
mod output;
mod problem;
pub mod quantize;
pub mod reference;
mod report;
mod select;
pub mod serving;
mod suggest;
mod tensor;
mod variant;

pub use error::{Error, Result};
pub use fp8::Fp8Format;
pub use operands::Operands;
pub use output::{Output, Values};
pub use problem::{Accuracy, MAX_HEAD_DIM, Mask, OutputFormat, Problem, Shape, Window};
pub use quantize::quantize;
pub use report::RunReport;
pub use select::{Considered, Target, attention, attention_into, consider, select};
pub use tensor::{Dims, Fp8Tensor, Granularity, Layout, Scales, Strides};
pub use variant::Variant;
