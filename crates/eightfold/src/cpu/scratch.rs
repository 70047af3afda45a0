//! Working memory that a thread keeps between calls. Its size depends on the tiles and the head, never on the
//! number of keys.

use super::config::Config;
use super::kernels::{DIRECT_ROWS, RowState};
use super::lanes::LANES;
use super::path::{FloatPath, IntegerPath, TilePath, tiles};
use super::schedule::MAX_ROWS;
use super::source::{Apart, Codes};
use crate::problem::Problem;
use crate::tensor::Fp8Format;
use std::ops::Range;

/// The working memory of a task.
#[derive(Default)]
pub(super) struct Scratch {
    pub output: Buffer<f32>,
    pub states: Vec<RowState>,
    pub visible: Vec<Range<usize>>,
    pub rescale: Vec<f32>,
    pub row_scales: Vec<f32>,
    pub row_offsets: Vec<f32>,
    pub key_scales: Vec<f32>,
    pub value_scales: Vec<f32>,
    pub staging: Staging,
    pub float: FloatPath,
    pub integer: IntegerPath,
    pub tiles: TilePath,
}

impl Scratch {
    /// The bytes that the large buffers hold on to.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        let paths = self.float.bytes() + self.integer.bytes() + self.tiles.bytes();
        self.output.bytes() + self.staging.bytes() + paths
    }
}

/// The most memory that one thread keeps for this config and problem, in bytes, beyond inputs and outputs: the
/// packed block of Q and its sums, one packed tile of K and V, and one tile of scores and weights, in both numbers. Where a thread
/// takes few queries to all heads of a cache in pages together, each of these heads takes as much.
pub fn working_bytes(config: &Config, problem: &Problem) -> usize {
    let shape = problem.shape();
    let [width, value_width] = [shape.head_dim, problem.value_dims().head_dim].map(|dim| dim.next_multiple_of(LANES));
    let rows = (shape.query_len * shape.group()).min(MAX_ROWS.max(shape.group())).next_multiple_of(DIRECT_ROWS);
    let keys = shape.key_len.next_multiple_of(LANES).min(config.tile_keys);
    let score_rows = rows.min(config.tile_queries);
    let (float, integer) = (size_of::<f32>(), size_of::<i16>());
    let offsets = if problem.softcap().is_some() { rows } else { 0 };
    let small = (16 * config.tile_queries + 16 * (width + value_width) + 16 * rows + offsets) * float;
    let codes = rows.max(keys) * width.max(value_width);
    if config.simd.has_tiles() {
        // Output and codes beside what the path packs.
        let packed = tiles::working_bytes(rows, keys, shape.head_dim, value_width);
        return rows * value_width * float + codes + packed + small + 9 * LINE_BYTES;
    }
    // Output and Q in both numbers; Q, K or V as codes; K and V in both; scores in both, and integer weights.
    let queries = rows * (value_width * float + width * (float + integer)) + codes + rows * float;
    // Packed K and V, or where few rows meet codes, those.
    let tile = keys * (width + value_width) * (float + integer);
    let scores = score_rows * config.tile_keys * (float + float + integer);
    queries + tile + scores + small + 11 * LINE_BYTES
}

/// Codes that do not lie in memory as the kernels want them, copied to where they do.
#[derive(Default)]
pub(super) struct Staging {
    bytes: Vec<u8>,
    /// Where panels start whose rows are in pages.
    pub starts: Vec<usize>,
    /// Where what is fetched beside each starts.
    pub beside: Vec<usize>,
}

impl Staging {
    /// `rows` rows of `width` zeros; a zero code is a zero in either format.
    pub(super) fn clear(&mut self, rows: usize, width: usize) -> &mut [u8] {
        self.bytes.clear();
        self.bytes.resize(rows * width, 0);
        &mut self.bytes
    }

    /// The bytes that it holds on to.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.bytes.capacity() + (self.starts.capacity() + self.beside.capacity()) * size_of::<usize>()
    }

    /// What was put here, as rows of `width` codes.
    pub(super) fn codes(&self, width: usize, format: Fp8Format) -> Codes<'_> {
        Codes {
            bytes: &self.bytes,
            stride: width,
            rows: self.bytes.len() / width,
            format,
            factors: &[],
            apart: Apart::default(),
        }
    }
}

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;

/// A buffer of plain numbers whose used part starts on a cache line.
#[derive(Default)]
pub(super) struct Buffer<T> {
    storage: Vec<T>,
    start: usize,
    len: usize,
}

impl<T: Copy + Default> Buffer<T> {
    /// At least `len` elements, with whatever an earlier use left in them.
    pub(super) fn get(&mut self, len: usize) -> &mut [T] {
        let spare = LINE_BYTES / size_of::<T>();
        if self.storage.len() < len + spare {
            self.storage = vec![T::default(); len + spare];
        }
        self.start = self.storage.as_ptr().align_offset(LINE_BYTES).min(spare);
        self.len = len;
        self.used_mut()
    }

    /// What the last `get` handed out.
    pub(super) fn used(&self) -> &[T] {
        &self.storage[self.start..self.start + self.len]
    }

    /// What the last `get` handed out.
    pub(super) fn used_mut(&mut self) -> &mut [T] {
        &mut self.storage[self.start..self.start + self.len]
    }

    /// The bytes that the buffer holds on to.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.storage.capacity() * size_of::<T>()
    }
}
