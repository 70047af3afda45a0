//! FP8 attention that proves itself: scaled-dot-product attention on FP8 inputs, with the fastest kernel that this
//! machine can run.
//!
//! ```
//! use eightfold::{Problem, Shape, attention, quantize};
//!
//! // One sequence, 8 heads, 128 tokens, 64 channels a head.
//! let problem = Problem::new(Shape::new(1, 8, 128, 64))?.causal();
//! let dims = problem.shape().query_dims();
//! let values: Vec<f32> = (0..dims.count()).map(|index| (index as f32).sin()).collect();
//!
//! let q = quantize(&values, dims)?; // E4M3 codes with one scale per head
//! let (k, v) = (q.clone(), q.clone());
//! let output = attention(&problem, &q, &k, &v)?;
//! assert_eq!(output.values.to_f32().len(), dims.count());
//! # Ok::<(), eightfold::Error>(())
//! ```
//!
//! The way of the data, each step a module:
//!
//! 1. A [`Problem`] says what to compute and never how: sizes, mask, softmax scale, formats. Its rules are checked
//!    when it is made.
//! 2. [`quantize`](mod@quantize) turns f32, f16 or bf16 into an [`Fp8Tensor`]: [`fp8`] codes with scales, without
//!    which there is no tensor. Codes from elsewhere come in through [`Fp8Tensor::new`], where they lie.
//! 3. [`select`](select()) picks the [`Variant`], a kernel with its knobs set, that is fastest for the problem and its tensors;
//!    [`consider`] says why. [`attention()`] runs it on this machine's CPU, [`cuda::attention`] on a CUDA device.
//! 4. [`cpu`] holds the kernel for CPUs: a tiled online softmax in f32 or in 16-bit fixed point. [`cuda`] holds those
//!    for NVIDIA GPUs, compiled at run time.
//!
//! [`reference`](mod@reference) computes the same in float64: the oracle that everything here is measured against.

pub mod cpu;
pub mod cuda;
mod error;
pub mod fp8;
mod knobs;
mod operands;
mod output;
mod problem;
pub mod quantize;
pub mod reference;
mod report;
mod select;
pub mod suggest;
mod tensor;
mod variant;

pub use error::{Error, Result};
pub use knobs::{Knob, Stage};
pub use operands::{Operand, Operands};
pub use output::{Output, Values};
pub use problem::{Accuracy, MAX_HEAD_DIM, Mask, OutputFormat, Problem, Shape};
pub use quantize::quantize;
pub use report::RunReport;
pub use select::{Considered, Target, attention, attention_with, consider, select};
pub use tensor::{Dims, Fp8Format, Fp8Tensor, Granularity, Layout, Scales, Strides};
pub use variant::{FAMILIES, Family, Variant};
