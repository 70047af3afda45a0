//! The launch of `kernels/quantize/fused.cu`, which reads every value once: which tensors it is for, and how it cuts them.

use super::argument::{Blocks, TURNED_KEYS};
use super::values::ValueFormat;
use crate::cuda::driver::{ALIGNMENT_BYTES, Grid};
use crate::tensor::{Dims, Granularity, Layout};

/// Threads of a block; `THREADS` of the device code.
pub(super) const THREADS: usize = 512;

/// Vectors of 16 bytes that a thread may hold, half of them in registers and half in shared memory: mostly three blocks
/// of the one, and two of the other, fit a multiprocessor.
const VECTORS: [usize; 2] = [8, 16];

/// What a thread should at least hold where a head has several scales: each block of a multiprocessor then has 32 KiB on
/// its way, which keeps the memory busy while they wait for each other.
const FEWEST_VECTORS: usize = 4;

/// Tiles that a block turns at a time, four vectors of every thread; `TILES` of the device code.
const TILES: usize = THREADS / (32 * TURNED_KEYS / LINE);

/// Lanes that read neighbouring vectors of a row that is turned; `SIDE_BY_SIDE` of the device code.
const SIDE_BY_SIDE: usize = 8;

/// What lines of codes are padded to a multiple of; `LINE` of the device code.
const LINE: usize = ALIGNMENT_BYTES;

/// The largest that the device code is written for; `MOST_BLOCKS` there.
const LARGEST_CLUSTER: u32 = 16;

/// A launch in clusters, each of which holds everything that shares a scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fused {
    /// Vectors of a thread.
    pub(super) vectors: usize,
    /// Blocks of a cluster.
    pub(super) cluster: u32,
    /// Scales of a block's rows; 0 where all of a cluster's have one.
    pub(super) block_scales: usize,
    /// Rows of a block; the last of a cluster may have fewer, or none.
    pub(super) block_rows: i32,
    /// Clusters of a head.
    pub(super) per_head: i32,
    /// Blocks of the launch.
    pub(super) blocks: u32,
}

impl Fused {
    /// The launch for a tensor that is centred, if a cluster holds the head and its threads have vectors of the same channels.
    pub(super) fn centred(dims: Dims, values: ValueFormat, granularity: Granularity, layout: Layout) -> Option<Fused> {
        let row_vectors = dims.head_dim / (16 / values.bytes());
        let same_channels = match layout.is_transposed() {
            true => row_vectors.is_multiple_of(SIDE_BY_SIDE) && TILES.is_multiple_of(row_vectors / SIDE_BY_SIDE),
            false => row_vectors > 0 && 32 % row_vectors == 0,
        };
        if row_vectors == 0 || !same_channels {
            return None;
        }
        match granularity {
            Granularity::Block { rows } if rows < dims.len => Fused::centred_blocks(dims, values, rows, layout),
            _ => Fused::new(dims, values, granularity, layout).filter(|fused| fused.per_head == 1),
        }
    }

    /// The same with scales for parts of a head, of which every block has whole ones, and every thread the same number of
    /// vectors of each.
    fn centred_blocks(dims: Dims, values: ValueFormat, rows: usize, layout: Layout) -> Option<Fused> {
        let row_vectors = dims.head_dim / (16 / values.bytes());
        let head = Fused::new(dims, values, Granularity::Head, layout)?;
        let rows_of_vectors = THREADS / row_vectors;
        let holds = capacity(head.vectors, row_vectors, false);
        if layout.is_transposed() || !rows.is_multiple_of(rows_of_vectors) || !holds.is_multiple_of(rows) {
            return None;
        }
        let block_rows = dims.len.div_ceil(head.cluster as usize).next_multiple_of(rows);
        Some(Fused { block_scales: holds / rows, block_rows: i32::try_from(block_rows).ok()?, ..head })
    }

    /// The launch for a tensor without centring, if it fits; `Cut::new` must have accepted it.
    pub(super) fn new(dims: Dims, values: ValueFormat, granularity: Granularity, layout: Layout) -> Option<Fused> {
        let rows = match granularity {
            Granularity::Tensor if dims.batch * dims.heads > 1 => return None,
            Granularity::Tensor | Granularity::Head => dims.len,
            Granularity::Block { rows } => rows.min(dims.len),
        };
        let turned = layout.is_transposed();
        let several = rows < dims.len;
        let row_vectors = dims.head_dim / (16 / values.bytes());
        // Where a block would have too few loads in flight, one that takes the rows of several scales is better.
        if several && rows * row_vectors < FEWEST_VECTORS * THREADS {
            return None;
        }
        // Every block writes whole groups of keys.
        if turned && several && !rows.is_multiple_of(LINE) {
            return None;
        }
        // The device code counts rows, and bytes from one row to the next, in 32 bits.
        let row_bytes = dims.heads.checked_mul(dims.head_dim)?.checked_mul(values.bytes())?;
        i32::try_from(row_bytes).ok()?;
        i32::try_from(dims.len.checked_add(LARGEST_CLUSTER as usize * VECTORS[1] * THREADS)?).ok()?;

        let capacity = |vectors| capacity(vectors, row_vectors, turned);
        let fits = |vectors: usize, cluster: u32| rows <= capacity(vectors).saturating_mul(cluster as usize);
        let clusters = || (0..=LARGEST_CLUSTER.ilog2()).map(|log2| 1u32 << log2);
        // Small blocks before large ones: while some encode, others load.
        let mut choices = VECTORS.into_iter().flat_map(|vectors| clusters().map(move |cluster| (vectors, cluster)));
        let (vectors, cluster) = choices.find(|(vectors, cluster)| fits(*vectors, *cluster))?;

        let block_rows = rows.div_ceil(cluster as usize);
        let block_rows = if turned { block_rows.next_multiple_of(TURNED_KEYS) } else { block_rows };
        let per_head = dims.len.div_ceil(rows);
        let blocks = Blocks::new(dims, per_head.checked_mul(cluster as usize)?).ok()?;
        Some(Fused {
            vectors,
            cluster,
            block_scales: 0,
            block_rows: i32::try_from(block_rows).ok()?,
            per_head: i32::try_from(per_head).ok()?,
            blocks: blocks.all,
        })
    }

    /// Shared memory for what is not in registers.
    pub(super) fn held_bytes(self) -> usize {
        self.vectors / 2 * THREADS * 16
    }

    pub(super) fn grid(self) -> Grid {
        self.grid_of(self.blocks)
    }

    /// A launch of such blocks, which are more than a tensor's own.
    pub(super) fn grid_of(self, blocks: u32) -> Grid {
        Grid { blocks, threads: THREADS as u32, dynamic_shared_bytes: self.held_bytes(), cluster: self.cluster }
    }
}

/// Rows that a block can hold.
fn capacity(vectors: usize, row_vectors: usize, turned: bool) -> usize {
    match turned {
        true => vectors / 4 * TILES / row_vectors.div_ceil(8) * TURNED_KEYS,
        false => vectors * THREADS / row_vectors,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MISSION: Dims = Dims { batch: 4, heads: 16, len: 4096, head_dim: 128 };

    fn of_heads(len: usize, head_dim: usize, values: ValueFormat, layout: Layout) -> Option<(usize, u32, i32)> {
        let dims = Dims { len, head_dim, ..MISSION };
        Fused::new(dims, values, Granularity::Head, layout)
            .map(|fused| (fused.vectors, fused.cluster, fused.block_rows))
    }

    #[test]
    fn a_head_is_held_by_the_smallest_cluster_of_the_smallest_blocks() {
        use ValueFormat::{Bf16, F16, F32};
        let cases = [(1, Some((8, 1, 1))), (256, Some((8, 1, 256))), (257, Some((8, 2, 129)))];
        for (len, expected) in cases {
            assert_eq!(of_heads(len, 128, Bf16, Layout::Bhsd), expected, "{len}");
        }
        for layout in [Layout::Bhsd, Layout::Bshd, Layout::Bhds, Layout::Packed] {
            assert_eq!(of_heads(2048, 128, F16, layout), Some((8, 8, 256)), "{layout}");
            assert_eq!(of_heads(4096, 128, Bf16, layout), Some((8, 16, 256)), "{layout}");
            assert_eq!(
                of_heads(4097, 128, Bf16, layout).map(|(vectors, cluster, _)| (vectors, cluster)),
                Some((16, 16)),
                "{layout}"
            );
            assert_eq!(of_heads(8192, 128, Bf16, layout), Some((16, 16, 512)), "{layout}");
            assert_eq!(of_heads(4096, 128, F32, layout), Some((16, 16, 256)), "{layout}");
            assert_eq!(of_heads(8193, 128, Bf16, layout), None, "{layout}");
            assert_eq!(of_heads(4097, 128, F32, layout), None, "{layout}");
        }
        // Turned, a block takes whole tiles.
        assert_eq!(of_heads(257, 128, Bf16, Layout::Bhds), Some((8, 2, 256)));
        // Five tiles side by side are more than eight vectors of a thread.
        assert_eq!(of_heads(64, 320, Bf16, Layout::Bhds), Some((16, 1, 128)));
        assert_eq!(of_heads(64, 1024, Bf16, Layout::Bhds), None);
    }

    #[test]
    fn a_head_that_a_cluster_holds_is_centred_there() {
        let of = |dims, granularity, layout| Fused::centred(dims, ValueFormat::Bf16, granularity, layout);
        let head = Granularity::Head;
        assert_eq!(of(MISSION, head, Layout::Bhsd), Fused::new(MISSION, ValueFormat::Bf16, head, Layout::Bhsd));
        assert_eq!(of(Dims { len: 8193, ..MISSION }, head, Layout::Bhsd), None);
        // Turned, where the tiles of a thread are of the same channels.
        assert_eq!(of(MISSION, head, Layout::Packed), Fused::new(MISSION, ValueFormat::Bf16, head, Layout::Packed));
        assert_eq!(of(Dims { head_dim: 192, ..MISSION }, head, Layout::Packed), None);
        // Scales for parts of a head, where a block has whole ones.
        let blocks = |len, rows| {
            let fused = of(Dims { len, ..MISSION }, Granularity::Block { rows }, Layout::Bhsd)?;
            Some((fused.vectors, fused.cluster, fused.block_scales, fused.block_rows))
        };
        assert_eq!(blocks(4096, 256), Some((8, 16, 1, 256)));
        assert_eq!(blocks(8192, 256), Some((16, 16, 2, 512)));
        assert_eq!(blocks(600, 256), Some((8, 4, 1, 256)));
        assert_eq!(blocks(4096, 64), Some((8, 16, 4, 256)));
        assert_eq!([blocks(4096, 48), blocks(8193, 256)], [None, None]);
        // Nine vectors a row: the lanes of a warp are not of the same channels.
        assert_eq!(of(Dims { head_dim: 72, ..MISSION }, head, Layout::Bhsd), None);
    }

    #[test]
    fn two_launches_remain_for_what_does_not_fit() {
        let of = |granularity, layout| Fused::new(MISSION, ValueFormat::Bf16, granularity, layout);
        assert_eq!(of(Granularity::Tensor, Layout::Bhsd), None);
        assert_eq!(of(Granularity::Block { rows: 127 }, Layout::Bhsd), None);
        assert_eq!(of(Granularity::Block { rows: 136 }, Layout::Bhds), None);
        assert!(of(Granularity::Block { rows: 136 }, Layout::Bhsd).is_some());
        let blocks = of(Granularity::Block { rows: 144 }, Layout::Bhds).unwrap();
        assert_eq!((blocks.cluster, blocks.block_rows, blocks.per_head, blocks.blocks), (1, 256, 29, 29 * 64));
        // A block of all rows and more is a head, and so is a tensor of one.
        let head = of(Granularity::Head, Layout::Bhsd);
        assert_eq!(of(Granularity::Block { rows: 1 << 40 }, Layout::Bhsd), head);
        let one = Dims { batch: 1, heads: 1, ..MISSION };
        assert!(Fused::new(one, ValueFormat::F32, Granularity::Tensor, Layout::Bhsd).is_some());
        // Rows further apart than the device code counts.
        let wide = Dims { batch: 1, heads: 1 << 22, len: 16, head_dim: 128 };
        assert_eq!(Fused::new(wide, ValueFormat::F32, Granularity::Head, Layout::Bhsd), None);
        assert!(
            Fused::new(Dims { heads: 1 << 21, ..wide }, ValueFormat::F32, Granularity::Head, Layout::Bhsd).is_some()
        );
    }

    /// `vector_at` of the device code.
    fn vector_at(thread: usize, number: usize, row_vectors: usize, vector: usize, layout: Layout) -> (usize, usize) {
        if !layout.is_transposed() {
            let index = number * THREADS + thread;
            return (index / row_vectors, index % row_vectors * vector);
        }
        let (tile_threads, channel_tiles) = (THREADS / TILES, row_vectors.div_ceil(8));
        let tile = number / 4 * TILES + thread / tile_threads;
        let (group, quad, place) = (thread % tile_threads / 32, thread % 32 / 8, number % 4);
        let key = match layout {
            Layout::Packed => 8 * (place / 2) + 2 * quad + place % 2,
            _ => 4 * quad + place,
        };
        let row = tile / channel_tiles * TURNED_KEYS + group * LINE + key;
        (row, tile % channel_tiles * 8 * vector + thread % 8 * vector)
    }

    /// How often each vector of a head is read by the blocks of its clusters.
    fn reads(dims: Dims, values: ValueFormat, granularity: Granularity, layout: Layout) -> Option<Vec<u8>> {
        let fused = Fused::new(dims, values, granularity, layout)?;
        let vector = 16 / values.bytes();
        let row_vectors = dims.head_dim / vector;
        let scale_rows = match granularity {
            Granularity::Block { rows } => rows.min(dims.len),
            _ => dims.len,
        };
        let block_rows = fused.block_rows as usize;
        let mut reads = vec![0; dims.len * row_vectors];
        for part in 0..fused.per_head as usize {
            let end_row = (part * scale_rows + scale_rows).min(dims.len);
            for rank in 0..fused.cluster as usize {
                let first_row = part * scale_rows + rank * block_rows;
                let rows = block_rows.min(end_row.saturating_sub(first_row));
                for (thread, number) in (0..THREADS).flat_map(|thread| (0..fused.vectors).map(move |i| (thread, i))) {
                    let (row, channel) = vector_at(thread, number, row_vectors, vector, layout);
                    if row < rows && channel < dims.head_dim {
                        reads[(first_row + row) * row_vectors + channel / vector] += 1;
                    }
                }
                // What is written of a line of keys starts and ends where no other block writes.
                let whole = first_row.is_multiple_of(LINE) && (rows.is_multiple_of(LINE) || end_row == dims.len);
                assert!(rows == 0 || whole || !layout.is_transposed(), "{dims} {granularity} {layout}");
            }
        }
        Some(reads)
    }

    #[test]
    fn every_vector_is_read_once() {
        let blocks = [64, 160, 288, 1000].map(|rows| Granularity::Block { rows });
        let mut fitting = 0;
        for (len, head_dim) in [(1, 8), (131, 72), (300, 64), (1030, 128), (2049, 128), (97, 320), (4096, 64)] {
            let dims = Dims { batch: 1, heads: 2, len, head_dim };
            for values in [ValueFormat::F32, ValueFormat::Bf16] {
                for granularity in blocks.into_iter().chain([Granularity::Head]) {
                    for layout in [Layout::Bhsd, Layout::Bhds, Layout::Packed] {
                        let Some(reads) = reads(dims, values, granularity, layout) else { continue };
                        assert!(reads.iter().all(|reads| *reads == 1), "{dims} {values:?} {granularity} {layout}");
                        fitting += 1;
                    }
                }
            }
        }
        assert!(fitting > 100, "{fitting}");
    }
}
