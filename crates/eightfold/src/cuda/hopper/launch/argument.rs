//! What is passed to `hopper_attention` and `hopper_short` by value; the structs of `kernels/hopper/problem.cuh`, field by field.

use super::divider::Divider;
use super::tiling::Tiling;
use crate::cuda::argument::{CodeLines, OutputRows, Scales, sinks_behind, with_extras};
use crate::cuda::counts::size;
use crate::cuda::driver::{Context, TensorMap, Walk};
use crate::cuda::hopper::config::Config;
use crate::cuda::hopper::program::{line_bytes, value_tile};
use crate::cuda::kernel::{Argument, Role, Slot};
use crate::cuda::tensor::{DeviceOutput, DeviceTensor, Lines, padded_bytes};
use crate::error::Result;
use crate::problem::{Problem, Shape};
use std::f32::consts::LOG2_E;
use std::mem::offset_of;

/// One problem with its tensors.
#[repr(C, align(64))]
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Attention {
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
    output: OutputRows,
    /// In the workspace, as are `tickets`; and V where it is put in order.
    pub(super) partial: u64,
    pub(super) tickets: u64,
    /// Of a `TileList`.
    pub(super) tile_list: u64,
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
    pub(super) tile_list_len: i32,
}

/// What it is given by address, but for the workspace. Lines, scales and rows begin with their address.
pub(super) const SLOTS: &[Slot] = &[
    Slot::map(Role::Q, offset_of!(Attention, q)),
    Slot::map(Role::K, offset_of!(Attention, k)),
    Slot::map(Role::V, offset_of!(Attention, v)),
    Slot::pointer(Role::QScales, offset_of!(Attention, q_scales)),
    Slot::pointer(Role::KScales, offset_of!(Attention, k_scales)),
    Slot::pointer(Role::VScales, offset_of!(Attention, v_scales)),
    Slot::pointer(Role::KMeans, offset_of!(Attention, k_means)),
    Slot::pointer(Role::VMeans, offset_of!(Attention, v_means)),
    Slot::pointer(Role::Q, offset_of!(Attention, q_lines)),
    Slot::pointer(Role::K, offset_of!(Attention, k_lines)),
    Slot::pointer(Role::Output, offset_of!(Attention, output)),
    Slot::pointer(Role::Lse, offset_of!(Attention, output) + OutputRows::LSE),
    sinks_behind::<Attention>(),
];

/// What is behind it where every sequence has lengths of its own; `RaggedLaunch` of `kernels/hopper/ragged.cuh`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RaggedLaunch {
    pub(crate) sequences: u64,
    pub(crate) tile_order: u64,
    /// From one sequence, one head and one query to the next.
    pub(crate) lse_strides: [i64; 3],
    pub(crate) packed: i32,
    pub(crate) unused: i32,
}

/// Where everything of a ragged launch lies, gathered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gathered {
    /// `[query, head, channel]`, with `query_rows` of them, and the scales by head.
    pub(crate) q: u64,
    pub(crate) q_scales: u64,
    pub(crate) query_rows: usize,
    /// `[head, key, channel]` and `[head, channel, key]`, with `key_rows` of them, and the scales by sequence and head.
    pub(crate) k: u64,
    pub(crate) k_scales: u64,
    pub(crate) v: u64,
    pub(crate) v_scales: u64,
    pub(crate) key_rows: usize,
    pub(crate) output: OutputRows,
    pub(crate) behind: RaggedLaunch,
}

impl Attention {
    /// For a launch whose sequences have lengths of their own, at most the problem's.
    pub(crate) fn ragged(
        context: &Context,
        problem: &Problem,
        config: &Config,
        gathered: &Gathered,
        sinks: Option<u64>,
    ) -> Result<Argument> {
        let Shape { batch, query_heads, kv_heads, query_len, key_len, head_dim } = problem.shape();
        let Gathered { query_rows, key_rows, .. } = *gathered;
        // One part of all sequences, as the maps see it.
        let all = Shape { batch: 1, query_len: query_rows, key_len: key_rows, ..problem.shape() };
        let q = (gathered.q, [query_heads * head_dim, head_dim, 0]);
        let k = (gathered.k, [head_dim, key_rows * head_dim, 0]);
        let v = (gathered.v, [key_rows, key_rows * head_dim, 0]);
        let walks = walks(all, head_dim, config, 1, q, k, v);
        let map = |name, walk| TensorMap::encode(context, name, walk);
        let by = |name, divisor| size(name, divisor).map(|divisor| Divider::by(divisor.unsigned_abs()));
        let attention = Attention {
            q: map("q", &walks[0])?,
            k: map("k", &walks[1])?,
            v: map("v", &walks[2])?,
            q_scales: Scales::of_rows(gathered.q_scales, size("query_rows", query_rows)?),
            k_scales: Scales::of_heads(gathered.k_scales),
            v_scales: Scales::of_heads(gathered.v_scales),
            k_means: 0,
            v_means: 0,
            q_lines: CodeLines::NONE,
            k_lines: CodeLines::NONE,
            output: gathered.output,
            partial: 0,
            tickets: 0,
            tile_list: 0,
            batch: size("batch", batch)?,
            query_heads: size("query_heads", query_heads)?,
            kv_heads: size("kv_heads", kv_heads)?,
            query_len: size("query_len", query_len)?,
            key_len: size("key_len", key_len)?,
            packed_heads: 1,
            query_tiles: 1,
            head_tiles: size("query_heads", query_heads)?,
            splits: 1,
            tiles_per_split: 0,
            scale_log2: problem.softmax_scale() * LOG2_E,
            by_query_tiles: Divider::by(1),
            by_head_tiles: by("query_heads", query_heads)?,
            by_heads: by("query_heads", query_heads)?,
            by_group: by("query_heads", problem.shape().group())?,
            by_query_len: Divider::by(1),
            tile_list_len: 0,
        };
        Ok(with_extras(&attention, problem, sinks)?.followed_by(&gathered.behind))
    }

    /// Without the memory for split keys, and with units dealt out in rounds. `values` is where V's codes lie, transposed
    /// and packed.
    pub(super) fn new(
        context: &Context,
        problem: &Problem,
        config: &Config,
        tiling: &Tiling,
        [q, k, v]: [&DeviceTensor; 3],
        values: (u64, &Lines),
        output: &DeviceOutput,
    ) -> Result<Attention> {
        let shape = problem.shape();
        let walks = walks(
            shape,
            problem.value_dims().head_dim,
            config,
            tiling.packed_heads,
            (q.codes(), strides(q.lines())),
            (k.codes(), strides(k.lines())),
            (values.0, strides(values.1)),
        );
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
            output: OutputRows::new(output)?,
            partial: 0,
            tickets: 0,
            tile_list: 0,
            batch: size("batch", shape.batch)?,
            query_heads: size("query_heads", shape.query_heads)?,
            kv_heads: size("kv_heads", shape.kv_heads)?,
            query_len: size("query_len", shape.query_len)?,
            key_len: size("key_len", shape.key_len)?,
            packed_heads: size("query_heads", tiling.packed_heads)?,
            query_tiles: size("query_len", tiling.query_tiles)?,
            head_tiles: size("query_heads", tiling.head_tiles)?,
            splits: size("key_len", tiling.splits)?,
            tiles_per_split: size("key_len", tiling.tiles_per_split)?,
            scale_log2: problem.softmax_scale() * LOG2_E,
            by_query_tiles: by("query_len", tiling.query_tiles)?,
            by_head_tiles: by("query_heads", tiling.head_tiles)?,
            by_heads: by("query_heads", tiling.head_tiles * shape.batch)?,
            by_group: by("query_heads", shape.group())?,
            by_query_len: by("query_len", shape.query_len)?,
            tile_list_len: 0,
        })
    }
}

/// From one line, one head and one sequence to the next.
fn strides(lines: &Lines) -> [usize; 3] {
    [lines.line_stride, lines.head_stride, lines.batch_stride]
}

/// How TMA walks through Q, K and V: swizzled lines of the rows of Q and K as the tile has them (of packed heads, all queries of
/// each), and of V transposed, swizzled lines of as many keys as divide the tile. What of a line or of a tile's channels lies
/// beyond the head is zero.
fn walks(
    shape: Shape,
    value_dim: usize,
    config: &Config,
    packed_heads: usize,
    (q, q_strides): (u64, [usize; 3]),
    (k, k_strides): (u64, [usize; 3]),
    (v, v_strides): (u64, [usize; 3]),
) -> [Walk; 3] {
    let Shape { batch, query_heads, kv_heads, query_len, key_len, head_dim } = shape;
    let line = line_bytes(head_dim);
    let queries = match packed_heads {
        1 => [line, config.tile_queries(), 1, 1],
        heads => [line, query_len, heads, 1],
    };
    let value_row = if config.tile_keys.is_multiple_of(128) { 128 } else { 64 };
    [
        Walk { pointer: q, sizes: [head_dim, query_len, query_heads, batch], strides: q_strides, part: queries },
        Walk {
            pointer: k,
            sizes: [head_dim, key_len, kv_heads, batch],
            strides: k_strides,
            // TMA takes up to 256 rows at a time.
            part: [line, config.tile_keys.min(256), 1, 1],
        },
        Walk {
            pointer: v,
            sizes: [padded_bytes(key_len), value_dim, kv_heads, batch],
            strides: v_strides,
            part: [value_row, value_tile(value_dim), 1, 1],
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::Layout;

    /// The offsets that the C struct has, by the rules of its language, on the device.
    #[test]
    fn the_layout_is_that_of_the_device_code() {
        assert_eq!((size_of::<Attention>(), align_of::<Attention>()), (704, 64));
        assert_eq!((size_of::<RaggedLaunch>(), offset_of!(RaggedLaunch, packed)), (48, 40));
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
            (offset_of!(Attention, partial), 552),
            (offset_of!(Attention, tickets), 560),
            (offset_of!(Attention, tile_list), 568),
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
            (offset_of!(Attention, tile_list_len), 660),
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
            let tiling = Tiling::new(&problem, &config, 132).unwrap();
            let q = Lines::padded(shape.query_dims(), layout).unwrap();
            let k = Lines::padded(shape.key_dims(), layout).unwrap();
            let v = Lines::padded(shape.key_dims(), Layout::Packed).unwrap();
            let dims = (shape.head_dim, tiling.packed_heads);
            super::walks(shape, dims.0, &config, dims.1, (16, strides(&q)), (32, strides(&k)), (48, strides(&v)))
        };
        let [q, k, v] = walks(Shape::new(2, 3, 100, 64), Layout::Bshd, "fast");
        assert_eq!((q.pointer, q.sizes, q.part), (16, [64, 100, 3, 2], [64, 192, 1, 1]));
        assert_eq!(q.strides, [3 * 64, 64, 100 * 3 * 64]);
        assert_eq!((k.pointer, k.sizes, k.part), (32, [64, 100, 3, 2], [64, 256, 1, 1]));
        assert_eq!((v.pointer, v.sizes, v.part), (48, [112, 64, 3, 2], [128, 64, 1, 1]));
        assert_eq!(v.strides, [112, 64 * 112, 3 * 64 * 112]);
        // Heads that are no tile's are walked as if they were.
        let [q, k, v] = walks(Shape::new(1, 3, 128, 200), Layout::Bhsd, "fast,tile_keys=64");
        assert_eq!((q.sizes, q.part, k.part), ([200, 128, 3, 1], [128, 192, 1, 1], [128, 64, 1, 1]));
        assert_eq!((q.strides[0], v.sizes, v.part), (208, [128, 200, 3, 1], [64, 256, 1, 1]));
        let [q, _, v] = walks(Shape::new(1, 3, 128, 136), Layout::Bhsd, "fast");
        assert_eq!((q.part, v.part), ([64, 192, 1, 1], [128, 192, 1, 1]));
        let decode = Shape { kv_heads: 2, query_len: 3, ..Shape::new(1, 8, 70, 128) };
        let [q, _, v] = walks(decode, Layout::Bhsd, "fast,tile_keys=64,warpgroups=1");
        assert_eq!((q.sizes, q.part), ([128, 3, 8, 1], [128, 3, 4, 1]));
        assert_eq!(v.part, [64, 128, 1, 1]);
    }
}
