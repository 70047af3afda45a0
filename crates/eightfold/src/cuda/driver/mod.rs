//! The CUDA driver behind a thin, safe layer: devices and streams.
//!
//! Every call enters the device's primary context for as long as it lasts, so any thread may use any object, and a
//! caller's own context is as it was afterwards. A failure carries CUDA's name for it
//! ([`Error::Device`](crate::Error::Device)). After one that destroys the context, every further call on the device
//! says so and does nothing.

mod context;
pub(crate) mod device;
mod failure;
mod growing;
mod library;
pub(crate) mod memory;
mod module;
mod pointer;
mod stream;
mod tensor_map;

pub(crate) use context::Context;
pub use device::{Device, DeviceInfo};
pub(crate) use growing::Growing;
pub(crate) use memory::Buffer;
pub(crate) use memory::{Plain, download, fill};
pub(crate) use module::{Function, Grid, Module};
pub(crate) use pointer::{ALIGNMENT_BYTES, check_pointer};
pub use stream::Stream;
pub(crate) use tensor_map::{TensorMap, Walk};
