//! What is passed to `hopper_attention` and `hopper_short` by value; the structs of `kernels/hopper/problem.cuh`, field by field.

use super::divider::Divider;
use super::work::Cut;
use crate::cuda::counts::{scale_strides, size, stride};
use crate::cuda::driver::{Context, TensorMap, Walk};
use crate::cuda::hopper::config::Config;
use crate::cuda::tensor::{DeviceOutput, DeviceTensor, Lines, padded_bytes};
use crate::error::Result;
use crate::problem::{Problem, Shape};
use std::f32::consts::LOG2_E;

/// Where a tensor's scales are.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Scales {
    values: u64,
    /// Scales from one (batch, head) to the next.
    head_stride: i32,
    /// Rows that share a scale.
    rows: i32,
}

/// Where the lines of Q or K are, and how many bytes apart.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CodeLines {
    codes: u64,
    batch_stride: i64,
    head_stride: i64,
    row_stride: i64,
}

/// One problem with its tensors.
#[repr(C, align(64))]
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Attention {
    q: TensorMap,
    k: TensorMap,
    pub(super) v: TensorMap,
    q_scales: Scales,
    k_scales: Scales,
    v_scales: Scales,
    k_means: u64,
    v_means: u64,
    q_lines: CodeLines,
    k_lines: CodeLines,
    output: u64,
    output_batch_stride: i64,
    output_head_stride: i64,
    output_row_stride: i64,
    lse: u64,
    /// In the workspace, as are `tickets`; and V where it is put in order.
    pub(super) partial: u64,
    pub(super) tickets: u64,
    /// Of a [`super::TileList`].
    pub(super) places: u64,
    batch: i32,
    query_heads: i32,
    kv_heads: i32,
    query_len: i32,
    key_len: i32,
    packed_heads: i32,
    query_tiles: i32,
    head_tiles: i32,
    splits: i32,
    tiles_per_split: i32,
    scale_log2: f32,
    by_query_tiles: Divider,
    by_head_tiles: Divider,
    by_heads: Divider,
    by_group: Divider,
    by_query_len: Divider,
    pub(super) listed: i32,
}

impl Scales {
    fn new(tensor: &DeviceTensor) -> Result<Scales> {
        let (head_stride, rows) = scale_strides(tensor.granularity(), tensor.dims().len)?;
        Ok(Scales { values: tensor.scales(), head_stride, rows })
    }
}

impl CodeLines {
    fn new(tensor: &DeviceTensor) -> Result<CodeLines> {
        let lines = tensor.lines();
        Ok(CodeLines {
            codes: tensor.codes(),
            batch_stride: stride("strides", lines.batch_stride)?,
            head_stride: stride("strides", lines.head_stride)?,
            row_stride: stride("strides", lines.line_stride)?,
        })
    }
}

impl Attention {
    /// Without the memory for split keys, and with units dealt out in rounds. `values` is where V's codes lie, transposed
    /// and exchanged.
    pub(super) fn new(
        context: &Context,
        problem: &Problem,
        config: &Config,
        cut: &Cut,
        [q, k, v]: [&DeviceTensor; 3],
        values: (u64, &Lines),
        output: &DeviceOutput,
    ) -> Result<Attention> {
        let shape = problem.shape();
        let strides = output.strides();
        let walks = walks(shape, config, cut, (q.codes(), q.lines()), (k.codes(), k.lines()), values);
        let map = |name, walk| TensorMap::encode(context, name, walk);
        let by = |name, divisor| size(name, divisor).map(|divisor| Divider::by(divisor.unsigned_abs()));
        Ok(Attention {
            q: map("q", &walks[0])?,
            k: map("k", &walks[1])?,
            v: map("v", &walks[2])?,
            q_scales: Scales::new(q)?,
            k_scales: Scales::new(k)?,
            v_scales: Scales::new(v)?,
            k_means: k.means().unwrap_or(0),
            v_means: v.means().unwrap_or(0),
            q_lines: CodeLines::new(q)?,
            k_lines: CodeLines::new(k)?,
            output: output.values(),
            output_batch_stride: stride("output", strides.batch)?,
            output_head_stride: stride("output", strides.head)?,
            output_row_stride: stride("output", strides.row)?,
            lse: output.lse().unwrap_or(0),
            partial: 0,
            tickets: 0,
            places: 0,
            batch: size("batch", shape.batch)?,
            query_heads: size("query_heads", shape.query_heads)?,
            kv_heads: size("kv_heads", shape.kv_heads)?,
            query_len: size("query_len", shape.query_len)?,
            key_len: size("key_len", shape.key_len)?,
            packed_heads: size("query_heads", cut.packed_heads)?,
            query_tiles: size("query_len", cut.query_tiles)?,
            head_tiles: size("query_heads", cut.head_tiles)?,
            splits: size("key_len", cut.splits)?,
            tiles_per_split: size("key_len", cut.tiles_per_split)?,
            scale_log2: problem.softmax_scale() * LOG2_E,
            by_query_tiles: by("query_len", cut.query_tiles)?,
            by_head_tiles: by("query_heads", cut.head_tiles)?,
            by_heads: by("query_heads", cut.head_tiles * shape.batch)?,
            by_group: by("query_heads", shape.group())?,
            by_query_len: by("query_len", shape.query_len)?,
            listed: 0,
        })
    }
}

/// How the copy engine walks through Q, K and V: rows of Q and K as the tile has them (of packed heads, all queries of
/// each), and of V transposed, swizzled lines of as many keys as divide the tile.
fn walks(
    shape: Shape,
    config: &Config,
    cut: &Cut,
    (q, q_lines): (u64, &Lines),
    (k, k_lines): (u64, &Lines),
    (v, v_lines): (u64, &Lines),
) -> [Walk; 3] {
    let Shape { batch, query_heads, kv_heads, query_len, key_len, head_dim } = shape;
    let strides = |lines: &Lines| [lines.line_stride, lines.head_stride, lines.batch_stride];
    let queries = match cut.packed_heads {
        1 => [head_dim, config.tile_queries(), 1, 1],
        heads => [head_dim, query_len, heads, 1],
    };
    let value_row = if config.tile_keys.is_multiple_of(128) { 128 } else { 64 };
    [
        Walk { pointer: q, sizes: [head_dim, query_len, query_heads, batch], strides: strides(q_lines), part: queries },
        Walk {
            pointer: k,
            sizes: [head_dim, key_len, kv_heads, batch],
            strides: strides(k_lines),
            // The copy engine takes up to 256 rows at a time.
            part: [head_dim, config.tile_keys.min(256), 1, 1],
        },
        Walk {
            pointer: v,
            sizes: [padded_bytes(key_len), head_dim, kv_heads, batch],
            strides: strides(v_lines),
            part: [value_row, head_dim, 1, 1],
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::Layout;
    use std::mem::offset_of;

    /// The offsets that the C struct has, by the rules of its language, on the device.
    #[test]
    fn the_layout_is_that_of_the_device_code() {
        assert_eq!(size_of::<Scales>(), 16);
        assert_eq!((offset_of!(Scales, head_stride), offset_of!(Scales, rows)), (8, 12));
        assert_eq!((size_of::<Attention>(), align_of::<Attention>()), (704, 64));
        let offsets = [
            (offset_of!(Attention, k), 128),
            (offset_of!(Attention, v), 256),
            (offset_of!(Attention, q_scales), 384),
            (offset_of!(Attention, k_scales), 400),
            (offset_of!(Attention, v_scales), 416),
            (offset_of!(Attention, k_means), 432),
            (offset_of!(Attention, v_means), 440),
            (offset_of!(Attention, q_lines), 448),
            (offset_of!(Attention, k_lines), 480),
            (offset_of!(Attention, output), 512),
            (offset_of!(Attention, output_row_stride), 536),
            (offset_of!(Attention, lse), 544),
            (offset_of!(Attention, partial), 552),
            (offset_of!(Attention, tickets), 560),
            (offset_of!(Attention, places), 568),
            (offset_of!(Attention, batch), 576),
            (offset_of!(Attention, key_len), 592),
            (offset_of!(Attention, packed_heads), 596),
            (offset_of!(Attention, query_tiles), 600),
            (offset_of!(Attention, head_tiles), 604),
            (offset_of!(Attention, splits), 608),
            (offset_of!(Attention, tiles_per_split), 612),
            (offset_of!(Attention, scale_log2), 616),
            (offset_of!(Attention, by_query_tiles), 620),
            (offset_of!(Attention, by_head_tiles), 628),
            (offset_of!(Attention, by_heads), 636),
            (offset_of!(Attention, by_group), 644),
            (offset_of!(Attention, by_query_len), 652),
            (offset_of!(Attention, listed), 660),
            (offset_of!(CodeLines, row_stride), 24),
        ];
        for (offset, expected) in offsets {
            assert_eq!(offset, expected);
        }
    }

    #[test]
    fn the_copy_engine_walks_in_tiles() {
        let walks = |shape: Shape, layout, config: &str| {
            let problem = Problem::new(shape).unwrap();
            let config: Config = config.parse().unwrap();
            let cut = Cut::new(&problem, &config, 132).unwrap();
            let q = Lines::padded(shape.query_dims(), layout).unwrap();
            let k = Lines::padded(shape.key_dims(), layout).unwrap();
            let v = Lines::padded(shape.key_dims(), Layout::BhdsExchanged).unwrap();
            super::walks(shape, &config, &cut, (16, &q), (32, &k), (48, &v))
        };
        let [q, k, v] = walks(Shape::new(2, 3, 100, 64), Layout::Bshd, "fast");
        assert_eq!((q.pointer, q.sizes, q.part), (16, [64, 100, 3, 2], [64, 192, 1, 1]));
        assert_eq!(q.strides, [3 * 64, 64, 100 * 3 * 64]);
        assert_eq!((k.pointer, k.sizes, k.part), (32, [64, 100, 3, 2], [64, 256, 1, 1]));
        assert_eq!((v.pointer, v.sizes, v.part), (48, [112, 64, 3, 2], [128, 64, 1, 1]));
        assert_eq!(v.strides, [112, 64 * 112, 3 * 64 * 112]);
        let decode = Shape { kv_heads: 2, query_len: 3, ..Shape::new(1, 8, 70, 128) };
        let [q, _, v] = walks(decode, Layout::Bhsd, "fast,tile_keys=64,warpgroups=1");
        assert_eq!((q.sizes, q.part), ([128, 3, 8, 1], [128, 3, 4, 1]));
        assert_eq!(v.part, [64, 128, 1, 1]);
    }
}
