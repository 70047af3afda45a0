//! What is passed to the kernels of `kernels/quantize/`, and how those of `quantize.cu` are cut into blocks.

use super::values::ValueFormat;
use crate::cuda::counts::size;
use crate::error::{Error, Result};
use crate::quantize::ROWS_PER_SUM;
use crate::tensor::{Dims, Granularity, Layout};

/// Threads of a block; `THREADS` of the device code.
pub(super) const THREADS: u32 = 256;

/// Those of a block that adds up rows; `SUM_THREADS` of the device code.
pub(super) const SUM_THREADS: u32 = 128;

/// Loads of 16 bytes that a thread has in flight; `LOADS` of the device code.
const LOADS: usize = 8;

/// Keys of a tile that is turned; `KEYS` of the device code.
pub(super) const TURNED_KEYS: usize = 128;

/// Channels of a block that transposes; `CHANNELS` of the device code.
const TURNED_CHANNELS: usize = 64;

/// The struct of the same name in the device code, field by field.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Quantize {
    pub(super) values: u64,
    pub(super) batch_stride: i64,
    pub(super) head_stride: i64,
    pub(super) codes: u64,
    pub(super) code_batch_stride: i64,
    pub(super) code_head_stride: i64,
    pub(super) magnitudes: u64,
    pub(super) scales: u64,
    pub(super) sums: u64,
    pub(super) means: u64,
    pub(super) row_stride: i32,
    pub(super) code_line_stride: i32,
    pub(super) scale_head_stride: i32,
    pub(super) scale_rows: i32,
    pub(super) heads: i32,
    pub(super) len: i32,
    pub(super) blocks_per_head: i32,
    pub(super) largest_code: f32,
    pub(super) block_rows: i32,
}

/// Blocks of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Blocks {
    pub(super) per_head: i32,
    pub(super) all: u32,
}

impl Blocks {
    pub(super) fn new(dims: Dims, per_head: usize) -> Result<Blocks> {
        let all = per_head.saturating_mul(dims.batch * dims.heads);
        Ok(Blocks { all: size("blocks of the quantiser", all)?.unsigned_abs(), per_head: size("len", per_head)? })
    }
}

/// How the launches cut the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cut {
    /// Rows of a block that does not transpose.
    pub(super) rows: usize,
    pub(super) sums: Blocks,
    pub(super) means: Blocks,
    pub(super) magnitudes: Blocks,
    pub(super) codes: Blocks,
}

impl Cut {
    pub(super) fn new(dims: Dims, values: ValueFormat, granularity: Granularity, layout: Layout) -> Result<Cut> {
        granularity.check("granularity")?;
        if !dims.head_dim.is_multiple_of(8) {
            return Err(Error::invalid(
                "head_dim",
                format!("{} is not a multiple of 8", dims.head_dim),
                "pad each head with zeros, or quantise on the host",
            ));
        }
        let threads = THREADS as usize;
        let row_vectors = dims.head_dim / (16 / values.bytes());
        // As many rows as all loads of all threads cover, and no more than there are threads to find their scales.
        let rows = (LOADS * threads / row_vectors).clamp(1, threads);
        // The device code counts rows in 32 bits and looks at up to a block more than there are.
        size("len", dims.len.saturating_add(threads))?;
        size("head_dim", dims.head_dim.saturating_mul(threads))?;
        let magnitudes = Blocks::new(dims, dims.len.div_ceil(rows))?;
        Ok(Cut {
            rows,
            sums: Blocks::new(dims, (dims.len.div_ceil(ROWS_PER_SUM) * row_vectors).div_ceil(SUM_THREADS as usize))?,
            means: Blocks::new(dims, dims.head_dim.div_ceil(threads))?,
            magnitudes,
            codes: match layout.is_transposed() {
                true => {
                    let key_tiles = dims.len.div_ceil(TURNED_KEYS);
                    Blocks::new(dims, key_tiles * dims.head_dim.div_ceil(TURNED_CHANNELS))?
                }
                false => magnitudes,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    const DIMS: Dims = Dims { batch: 2, heads: 3, len: 300, head_dim: 72 };

    fn cut(dims: Dims, values: ValueFormat, layout: Layout) -> Cut {
        Cut::new(dims, values, Granularity::Head, layout).unwrap()
    }

    #[test]
    fn the_layout_is_that_of_the_device_code() {
        assert_eq!((size_of::<Quantize>(), align_of::<Quantize>()), (120, 8));
        assert_eq!(offset_of!(Quantize, codes), 24);
        assert_eq!(offset_of!(Quantize, scales), 56);
        assert_eq!(offset_of!(Quantize, means), 72);
        assert_eq!(offset_of!(Quantize, row_stride), 80);
        assert_eq!(offset_of!(Quantize, heads), 96);
        assert_eq!(offset_of!(Quantize, blocks_per_head), 104);
        assert_eq!(offset_of!(Quantize, largest_code), 108);
        assert_eq!(offset_of!(Quantize, block_rows), 112);
    }

    #[test]
    fn the_loads_of_a_block_cover_its_rows() {
        let rows = |head_dim, values| cut(Dims { head_dim, ..DIMS }, values, Layout::Bhsd).rows;
        assert_eq!([8, 64, 72, 128, 256, 1 << 14].map(|dim| rows(dim, ValueFormat::Bf16)), [256, 256, 227, 128, 64, 1]);
        assert_eq!([64, 72, 128].map(|dim| rows(dim, ValueFormat::F32)), [128, 113, 64]);
    }

    #[test]
    fn blocks_cover_every_row_and_every_channel() {
        let blocks = |per_head, all| Blocks { per_head, all };
        let straight = cut(DIMS, ValueFormat::F16, Layout::Bhsd);
        assert_eq!((straight.magnitudes, straight.codes), (blocks(2, 12), blocks(2, 12)));
        assert_eq!((straight.sums, straight.means), (blocks(1, 6), blocks(1, 6)));
        let turned = cut(DIMS, ValueFormat::F16, Layout::Bhds);
        assert_eq!((turned.magnitudes, turned.codes), (blocks(2, 12), blocks(3 * 2, 36)));
    }

    #[test]
    fn what_the_kernels_cannot_count_is_refused() {
        let refused =
            |dims, granularity| Cut::new(dims, ValueFormat::F32, granularity, Layout::Bhsd).unwrap_err().to_string();
        assert!(refused(Dims { head_dim: 12, ..DIMS }, Granularity::Head).starts_with("head_dim: 12 is not"));
        assert!(refused(DIMS, Granularity::Block { rows: 0 }).starts_with("granularity: a block of 0 rows"));
        assert!(refused(Dims { len: 1 << 31, ..DIMS }, Granularity::Head).starts_with("len: "));
        let many = Dims { batch: 1 << 31, ..DIMS };
        assert!(refused(many, Granularity::Tensor).starts_with("blocks of the quantiser: "));
    }
}
