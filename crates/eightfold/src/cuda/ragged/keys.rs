//! Where the keys and values of each sequence are.

use crate::cuda::counts::stride;
use crate::cuda::driver::ALIGNMENT_BYTES;
use crate::cuda::paged::PagedKeys;
use crate::cuda::paged::argument::{CacheScales, Pages};
use crate::cuda::paged::attention::{check_address, check_rows, pages, scales};
use crate::error::{Error, Result};
use crate::problem::Problem;
use crate::serving::{PageLayout, PageScales};
use crate::tensor::{Layout, Strides};

/// How keys and values lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RaggedKeys {
    /// In the pages of a cache.
    Paged(PagedKeys),
    /// One sequence behind the other.
    Packed {
        /// The strides of the keys; of a token, that called `row`. That called `batch` means nothing.
        k: Strides,
        /// Those of the values, by rows of channels.
        v: Strides,
        /// The scales of both.
        scales: PageScales,
    },
}

impl RaggedKeys {
    /// `[token, head, channel]`, one sequence behind the other.
    pub fn packed(problem: &Problem, scales: PageScales) -> Self {
        let strides = Layout::Bshd.strides(problem.shape().key_dims());
        RaggedKeys::Packed { k: strides, v: strides, scales }
    }

    /// How it is told to the kernels, but for addresses: keys, values, and the scales of both.
    pub(super) fn lie(&self, problem: &Problem) -> Result<(Pages, Pages, CacheScales)> {
        let shape = problem.shape();
        let granularity = match self {
            RaggedKeys::Paged(keys) => keys.scales,
            RaggedKeys::Packed { scales, .. } => *scales,
        };
        if matches!(granularity, PageScales::Token(_)) {
            return Err(Error::unavailable(
                "ragged attention",
                "scales by token change within its tiles of keys",
                "give scales by tensor, head or sequence, or use PagedAttention",
            ));
        }
        match self {
            RaggedKeys::Paged(keys) => {
                keys.check()?;
                if (keys.k.heads, keys.k.head_dim) != (shape.kv_heads, shape.head_dim) {
                    return Err(Error::invalid(
                        "k",
                        format!(
                            "has {} heads of {} channels, but the problem needs {} of {}",
                            keys.k.heads, keys.k.head_dim, shape.kv_heads, shape.head_dim
                        ),
                        "give cache and problem the same heads",
                    ));
                }
                Ok((pages(&keys.k)?, pages(&keys.v)?, scales(keys)?))
            }
            RaggedKeys::Packed { k, v, .. } => {
                let dims = shape.key_dims();
                check_rows("k", dims, Strides { batch: 0, ..*k }, ALIGNMENT_BYTES)?;
                check_rows("v", dims, Strides { batch: 0, ..*v }, ALIGNMENT_BYTES)?;
                let one_page = |strides: &Strides| -> Result<Pages> {
                    Ok(Pages {
                        codes: 0,
                        page_stride: 0,
                        head_stride: stride("strides", strides.head)?,
                        token_stride: stride("strides", strides.row)?,
                    })
                };
                let like = PagedKeys::new(PageLayout::nhd(1, 1, shape.kv_heads, shape.head_dim), granularity);
                Ok((one_page(k)?, one_page(v)?, scales(&like)?))
            }
        }
    }
}

/// Which tokens are whose: i32 in device memory, read when a launch runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyAddresses {
    /// Of a cache in pages.
    Paged {
        /// The pages of every sequence, in `[sequence, entry]` order.
        block_table: u64,
        /// Entries from one sequence of the block table to the next.
        max_pages: usize,
        /// The keys of every sequence; those of the queries of this launch included.
        lengths: u64,
    },
    /// Of packed keys.
    Packed {
        /// Where each sequence's keys begin, and behind the last where they end (`cu_seqlens`).
        starts: u64,
        /// How many of them count (`seqused`); 0 where all do.
        lengths: u64,
    },
}

impl KeyAddresses {
    /// Whether they are for keys that lie so.
    pub(super) fn check(&self, keys: &RaggedKeys, problem: &Problem) -> Result<()> {
        match (self, keys) {
            (KeyAddresses::Paged { block_table, max_pages, lengths }, RaggedKeys::Paged(keys)) => {
                check_address("block_table", *block_table, 4)?;
                check_address("lengths", *lengths, 4)?;
                let needed = problem.shape().key_len.div_ceil(keys.k.page_size);
                if *max_pages < needed {
                    return Err(Error::invalid(
                        "max_pages",
                        format!(
                            "{max_pages} entries do not reach the {} keys that it was made for",
                            problem.shape().key_len
                        ),
                        format!("give {needed} entries a sequence, or make it for fewer keys"),
                    ));
                }
                Ok(())
            }
            (KeyAddresses::Packed { starts, lengths }, RaggedKeys::Packed { .. }) => {
                check_address("key_starts", *starts, 4)?;
                if *lengths == 0 { Ok(()) } else { check_address("lengths", *lengths, 4) }
            }
            _ => Err(Error::invalid(
                "keys",
                "the call was made for keys that lie otherwise",
                "give the block table of pages, and the starts of packed keys",
            )),
        }
    }
}
