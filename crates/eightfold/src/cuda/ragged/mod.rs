//! Attention to sequences of different lengths at the speed of the tensor cores, on Hopper: prompts of many lengths in one call,
//! and chunks of prompts against an FP8 cache in pages.
//!
//! A launch is three kernels: one finds out which rows are whose and in which order tiles are computed, one gathers keys and values
//! and rounds queries to FP8, one is the hopper kernel. Lengths are read on the device, so that a graph may be replayed after
//! they changed. Few queries of each sequence are for [`PagedAttention`](super::paged::PagedAttention).

mod argument;
mod attention;
mod keys;

pub use attention::{RaggedAddresses, RaggedAttention, RaggedRows};
pub use keys::{KeyAddresses, RaggedKeys};
