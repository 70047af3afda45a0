//! What is passed to the kernels of `kernels/quantize/quantize.cu`, and how many blocks they have.

use crate::cuda::counts::size;
use crate::error::{Error, Result};
use crate::tensor::{Dims, Granularity, Layout};

/// Threads of a block; `THREADS` of the device code.
pub(super) const THREADS: u32 = 256;

/// Rows, and channels where it transposes, of a block; `TILE` of the device code.
const TILE: usize = 64;

/// The struct of the same name in the device code, field by field.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Quantize {
    pub(super) values: u64,
    pub(super) batch_stride: i64,
    pub(super) head_stride: i64,
    pub(super) row_stride: i64,
    pub(super) codes: u64,
    pub(super) code_batch_stride: i64,
    pub(super) code_head_stride: i64,
    pub(super) code_line_stride: i64,
    pub(super) magnitudes: u64,
    pub(super) scales: u64,
    pub(super) scale_count: i32,
    pub(super) scale_head_stride: i32,
    pub(super) scale_rows: i32,
    pub(super) heads: i32,
    pub(super) len: i32,
    pub(super) head_dim: i32,
    pub(super) parts_per_scale: i32,
    pub(super) blocks_per_head: i32,
    pub(super) largest_code: f32,
}

/// Blocks of the three launches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Blocks {
    /// First launch: blocks that share the rows of a scale in one head.
    pub(super) parts_per_scale: i32,
    pub(super) magnitudes_per_head: i32,
    pub(super) magnitudes: u32,
    pub(super) scales: u32,
    pub(super) codes_per_head: i32,
    pub(super) codes: u32,
}

impl Blocks {
    pub(super) fn cut(dims: Dims, granularity: Granularity, layout: Layout) -> Result<Blocks> {
        if granularity == (Granularity::Block { rows: 0 }) {
            return Err(Error::invalid(
                "granularity",
                "a block of 0 rows holds nothing",
                "give at least 1 row per block",
            ));
        }
        if !dims.head_dim.is_multiple_of(8) {
            return Err(Error::invalid(
                "head_dim",
                format!("{} is not a multiple of 8", dims.head_dim),
                "pad each head with zeros, or quantise on the host",
            ));
        }
        let rows = match granularity {
            Granularity::Block { rows } => rows.min(dims.len),
            Granularity::Tensor | Granularity::Head => dims.len,
        };
        // The device code counts rows in 32 bits and looks at up to a tile more than there are.
        size("len", dims.len.saturating_add(TILE))?;
        let parts_per_scale = rows.div_ceil(TILE);
        let magnitudes_per_head = dims.len.div_ceil(rows) * parts_per_scale;
        let channel_tiles = if layout.is_transposed() { dims.head_dim.div_ceil(TILE) } else { 1 };
        let codes_per_head = dims.len.div_ceil(TILE) * channel_tiles;
        let grid = |per_head: usize| {
            let blocks = per_head.saturating_mul(dims.batch * dims.heads);
            size("blocks of the quantiser", blocks).map(i32::unsigned_abs)
        };
        Ok(Blocks {
            parts_per_scale: size("len", parts_per_scale)?,
            magnitudes_per_head: size("len", magnitudes_per_head)?,
            magnitudes: grid(magnitudes_per_head)?,
            scales: size("scales", granularity.count(dims))?.unsigned_abs().div_ceil(THREADS),
            codes_per_head: size("len", codes_per_head)?,
            codes: grid(codes_per_head)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    const DIMS: Dims = Dims { batch: 2, heads: 3, len: 100, head_dim: 72 };

    #[test]
    fn the_layout_is_that_of_the_device_code() {
        assert_eq!((size_of::<Quantize>(), align_of::<Quantize>()), (120, 8));
        assert_eq!(offset_of!(Quantize, codes), 32);
        assert_eq!(offset_of!(Quantize, scales), 72);
        assert_eq!(offset_of!(Quantize, heads), 92);
        assert_eq!(offset_of!(Quantize, blocks_per_head), 108);
        assert_eq!(offset_of!(Quantize, largest_code), 112);
    }

    #[test]
    fn blocks_cover_every_row_and_never_two_scales() {
        let head = Blocks::cut(DIMS, Granularity::Head, Layout::Bhsd).unwrap();
        assert_eq!((head.parts_per_scale, head.magnitudes, head.scales, head.codes), (2, 12, 1, 12));
        let turned = Blocks::cut(DIMS, Granularity::Tensor, Layout::Bhds).unwrap();
        assert_eq!((turned.magnitudes, turned.codes_per_head, turned.codes), (12, 4, 24));
        let fine = Blocks::cut(DIMS, Granularity::Block { rows: 48 }, Layout::Bhsd).unwrap();
        assert_eq!((fine.parts_per_scale, fine.magnitudes_per_head), (1, 3));
        let coarse = Blocks::cut(DIMS, Granularity::Block { rows: 96 }, Layout::Bhsd).unwrap();
        assert_eq!((coarse.parts_per_scale, coarse.magnitudes_per_head), (2, 4));
        let whole = Blocks::cut(DIMS, Granularity::Block { rows: usize::MAX }, Layout::Bhsd).unwrap();
        assert_eq!((whole.parts_per_scale, whole.magnitudes_per_head), (2, 2));
    }

    #[test]
    fn what_the_kernels_cannot_count_is_refused() {
        let refused = |dims, granularity| Blocks::cut(dims, granularity, Layout::Bhsd).unwrap_err().to_string();
        assert!(refused(Dims { head_dim: 12, ..DIMS }, Granularity::Head).starts_with("head_dim: 12 is not"));
        assert!(refused(DIMS, Granularity::Block { rows: 0 }).starts_with("granularity: a block of 0 rows"));
        assert!(refused(Dims { len: 1 << 31, ..DIMS }, Granularity::Head).starts_with("len: "));
        let many = Dims { batch: 1 << 31, ..DIMS };
        assert!(refused(many, Granularity::Tensor).starts_with("blocks of the quantiser: "));
    }
}
