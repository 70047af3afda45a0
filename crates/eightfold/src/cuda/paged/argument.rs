//! What is passed to `paged_attention` by value; the structs of `kernels/paged/problem.cuh`, field by field.

/// Keys or values in pages; distances in bytes.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cuda) struct Pages {
    pub(in crate::cuda) codes: u64,
    pub(in crate::cuda) page_stride: i64,
    pub(in crate::cuda) head_stride: i64,
    pub(in crate::cuda) token_stride: i64,
}

/// Scales; distances in numbers.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cuda) struct CacheScales {
    pub(in crate::cuda) values: u64,
    pub(in crate::cuda) page_stride: i64,
    pub(in crate::cuda) sequence_stride: i32,
    pub(in crate::cuda) token_stride: i32,
    pub(in crate::cuda) head_stride: i32,
    pub(in crate::cuda) unused: i32,
}

/// Queries; distances in elements.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cuda) struct Queries {
    pub(in crate::cuda) values: u64,
    pub(in crate::cuda) sequence_stride: i64,
    pub(in crate::cuda) token_stride: i64,
    pub(in crate::cuda) head_stride: i64,
    pub(in crate::cuda) scales: u64,
    pub(in crate::cuda) scale_sequence_stride: i32,
    pub(in crate::cuda) scale_head_stride: i32,
}

impl CacheScales {
    /// Those of queries by sequence and head, in the same form; none where there is no address, as for values.
    pub(in crate::cuda) fn of_queries(queries: &Queries, values: u64) -> Option<Self> {
        let (sequence_stride, head_stride) = (queries.scale_sequence_stride, queries.scale_head_stride);
        let scales = CacheScales { values, page_stride: 0, sequence_stride, token_stride: 0, head_stride, unused: 0 };
        (values != 0).then_some(scales)
    }
}

/// Where the output is; distances in elements.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Output {
    pub(super) values: u64,
    pub(super) sequence_stride: i64,
    pub(super) head_stride: i64,
    pub(super) token_stride: i64,
    pub(super) unused: u64,
}

/// Where the log-sum-exp is; distances in numbers.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RowEnds {
    pub(super) values: u64,
    pub(super) sequence_stride: i64,
    pub(super) head_stride: i64,
    pub(super) token_stride: i64,
}

/// One launch.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Paged {
    pub(super) k: Pages,
    pub(super) v: Pages,
    pub(super) k_scales: CacheScales,
    pub(super) v_scales: CacheScales,
    pub(super) q: Queries,
    pub(super) output: Output,
    pub(super) lse: RowEnds,
    pub(super) block_table: u64,
    pub(super) lengths: u64,
    pub(super) query_starts: u64,
    pub(super) parts: u64,
    pub(super) tickets: u64,
    pub(super) table_stride: i64,
    pub(super) sequences: i32,
    pub(super) query_heads: i32,
    pub(super) kv_heads: i32,
    pub(super) query_len: i32,
    pub(super) group: i32,
    pub(super) page_tokens: i32,
    pub(super) scale_log2: f32,
    pub(super) unused: i32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    /// The offsets that the C structs have, by the rules of their language, on the device.
    #[test]
    fn the_layout_is_that_of_the_device_code() {
        assert_eq!((size_of::<Pages>(), size_of::<CacheScales>(), size_of::<Queries>()), (32, 32, 48));
        assert_eq!((size_of::<Output>(), size_of::<RowEnds>()), (40, 32));
        assert_eq!((offset_of!(CacheScales, sequence_stride), offset_of!(CacheScales, head_stride)), (16, 24));
        assert_eq!((offset_of!(Queries, scales), offset_of!(Queries, scale_head_stride)), (32, 44));
        assert_eq!((size_of::<Paged>(), align_of::<Paged>()), (328, 8));
        let offsets = [
            (offset_of!(Paged, k_scales), 64),
            (offset_of!(Paged, q), 128),
            (offset_of!(Paged, output), 176),
            (offset_of!(Paged, lse), 216),
            (offset_of!(Paged, block_table), 248),
            (offset_of!(Paged, parts), 272),
            (offset_of!(Paged, table_stride), 288),
            (offset_of!(Paged, sequences), 296),
            (offset_of!(Paged, page_tokens), 316),
            (offset_of!(Paged, scale_log2), 320),
        ];
        for (offset, expected) in offsets {
            assert_eq!(offset, expected);
        }
    }
}
