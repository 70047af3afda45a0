//! Attention as servers call it: sequences of different lengths in one call, K and V in the pages of a cache.
//!
//! ```
//! use eightfold::quantize::Quantizer;
//! use eightfold::serving::{KvCache, Packed};
//! use eightfold::{Dims, Granularity, Layout, Problem, Shape};
//!
//! // 8 query heads on 2 heads of K and V, 64 channels each; a cache of 32 pages of 16 tokens.
//! let mut cache = KvCache::new(32, 16, 2, 64)?;
//! let (long, short) = (cache.open(), cache.open());
//! let values = |tokens: usize| -> Vec<f32> { (0..tokens * 2 * 64).map(|index| (index as f32).sin()).collect() };
//! cache.append(long, &values(100), &values(100))?;
//! cache.append(short, &values(7), &values(7))?;
//!
//! // One query of the first sequence, and three of the second: at most 3 queries and 100 keys.
//! let problem = Problem::new(Shape::new(2, 8, 3, 64).with_kv_heads(2).with_key_len(100))?.causal();
//! let dims = Dims::new(1, 8, 4, 64);
//! let queries: Vec<f32> = (0..dims.count()).map(|index| (index as f32).cos()).collect();
//! let per_token = Quantizer::new(problem.input_format()).with_granularity(Granularity::Block { rows: 1 });
//! let q = per_token.with_layout(Layout::Bshd).quantize(&queries, dims, Layout::Bshd)?;
//! let output = cache.attention(&problem, &q, &Packed::new(&[0, 1, 4])?, &[long, short])?;
//! assert_eq!(output.values.len(), dims.count());
//! # Ok::<(), eightfold::Error>(())
//! ```
//!
//! A [`PageLayout`] says where the tokens of anybody's cache lie, a [`BlockTable`] which pages are whose, and [`Packed`] which
//! rows of Q. Lengths are data: the [`Problem`](crate::Problem) gives the most queries and keys of a sequence, and how many
//! sequences there are. It all runs on this machine's CPU; [`crate::cuda::paged`] has kernels for device memory.

pub(crate) mod aligned;
mod append;
mod attend;
mod cache;
mod layout;
mod merge;
mod pages;
mod pool;
mod table;

pub use append::{AppendScales, PagedTensorMut};
pub(crate) use attend::Call;
#[doc(hidden)]
pub use attend::attention_with;
pub use attend::{KeyValues, attention};
pub use cache::KvCache;
pub use layout::{PageLayout, PageScales, PageStrides};
pub use merge::merge;
pub use pages::PagedTensor;
pub(crate) use pool::Pool;
pub use pool::Sequence;
pub use table::{BlockTable, Packed};

/// The book's page, whose example is a test.
#[cfg(doctest)]
#[doc = include_str!("../../../../docs/src/serving.md")]
struct Page;
