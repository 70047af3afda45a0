//! Attention to an FP8 cache in pages, new tokens into one, and merged parts: on the CPU and on a CUDA device.

mod cache;
pub(crate) mod host;
pub(crate) mod plan;
