//! FP8 tensors: codes, their layout in memory, and the scales without which they mean nothing.

mod codes;
mod layout;
mod scales;

pub(crate) use crate::fp8::Fp8Format;
pub use codes::Fp8Tensor;
pub(crate) use codes::check_sinks;
pub use layout::{Dims, Layout, Strides};
pub use scales::{Granularity, Scales};
