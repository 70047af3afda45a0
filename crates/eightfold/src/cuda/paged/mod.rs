//! Attention to an FP8 cache in pages, in device memory: one to many queries of each sequence, each with keys of its own length.
//!
//! A [`PagedAttention`] is made once for a kind of problem and the strides of its tensors. A launch is given addresses; lengths
//! and block table are read on the device, so that a graph may be replayed after they changed. [`PagedAppend`] writes new tokens
//! into the pages, and [`MergeOutputs`] puts attention to parts of the keys together. A [`KvCache`] owns its memory and hands out pages.

mod append;
pub(super) mod argument;
pub(super) mod attention;
mod cache;
mod merge;
pub(super) mod program;
pub(super) mod validate;

pub use append::{AppendAddresses, PagedAppend};
pub use attention::{PagedAddresses, PagedAttention, PagedKeys, PagedQueries, QueryFormat};
pub use cache::{CacheLimits, KvCache};
pub use merge::{MergeOutputs, PartAddresses};
