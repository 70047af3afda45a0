//! FP8 attention that proves itself.

pub mod cpu;
mod error;
pub mod fp8;
mod output;
mod plan;
mod problem;
pub mod quantize;
pub mod reference;
pub mod suggest;
mod tensor;
mod variant;

pub use error::{Error, Result};
pub use output::{Output, Values};
pub use plan::{Considered, Plan, RunReport, attention};
pub use problem::{MAX_HEAD_DIM, Mask, OutputFormat, Problem, Shape};
pub use quantize::quantize;
pub use tensor::{Dims, Fp8Format, Fp8Tensor, Granularity, Layout, Scales, Strides};
pub use variant::Variant;
