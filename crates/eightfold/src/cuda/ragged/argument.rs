//! What is passed to `ragged_plan` and `ragged_gather` by value; the struct of `kernels/ragged/problem.cuh`, field by field.

use crate::cuda::argument::OutputRows;
use crate::cuda::paged::argument::{CacheScales, Pages, Queries};

/// One launch.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Ragged {
    pub(super) k: Pages,
    pub(super) v: Pages,
    pub(super) k_scales: CacheScales,
    pub(super) v_scales: CacheScales,
    pub(super) q: Queries,
    pub(super) output: OutputRows,
    pub(super) lse_strides: [i64; 3],
    pub(super) block_table: u64,
    pub(super) lengths: u64,
    pub(super) key_starts: u64,
    pub(super) query_starts: u64,
    pub(super) sequences: u64,
    pub(super) tile_order: u64,
    pub(super) blocks: u64,
    pub(super) scales: u64,
    pub(super) q_codes: u64,
    pub(super) q_codes_scales: u64,
    pub(super) k_codes: u64,
    pub(super) v_codes: u64,
    pub(super) table_stride: i64,
    pub(super) sequence_count: i32,
    pub(super) query_heads: i32,
    pub(super) kv_heads: i32,
    pub(super) query_len: i32,
    pub(super) page_tokens: i32,
    pub(super) tile_queries: i32,
    pub(super) bucket_keys: i32,
    pub(super) query_rows: i32,
    pub(super) key_rows: i32,
    pub(super) unused: i32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    /// The offsets that the C struct has, by the rules of its language, on the device.
    #[test]
    fn the_layout_is_that_of_the_device_code() {
        assert_eq!((size_of::<Ragged>(), align_of::<Ragged>()), (384, 8));
        let offsets = [
            (offset_of!(Ragged, k_scales), 64),
            (offset_of!(Ragged, q), 128),
            (offset_of!(Ragged, output), 176),
            (offset_of!(Ragged, lse_strides), 216),
            (offset_of!(Ragged, block_table), 240),
            (offset_of!(Ragged, sequences), 272),
            (offset_of!(Ragged, q_codes), 304),
            (offset_of!(Ragged, table_stride), 336),
            (offset_of!(Ragged, sequence_count), 344),
            (offset_of!(Ragged, page_tokens), 360),
            (offset_of!(Ragged, key_rows), 376),
        ];
        for (offset, expected) in offsets {
            assert_eq!(offset, expected);
        }
    }
}
