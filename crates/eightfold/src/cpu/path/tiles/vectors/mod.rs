//! What happens to rows, scores and weights between the tiles: bf16 from codes, powers of two from scores. In AVX-512, or
//! portably with the same results, bit for bit.

#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

use crate::cpu::lanes::bf16::Table;
use crate::cpu::source::Codes;
use std::ops::Range;

#[cfg(target_arch = "x86_64")]
pub(super) use avx512::Avx512;
pub(super) use portable::Portable;

/// Whether this CPU has what [`Avx512`] asks for.
pub(super) fn avx512_is_here() -> bool {
    #[cfg(target_arch = "x86_64")]
    return Avx512::is_here();
    #[cfg(not(target_arch = "x86_64"))]
    return false;
}

/// Queries that are worked on together: two tiles of rows.
pub(super) const STRIP: usize = 32;
/// Keys that a tile of weights holds, and a block of K and V.
pub(super) const BLOCK: usize = 32;
/// Blocks whose scores are computed before their weights. Their scores and weights fit into the nearest cache beside the strip's
/// queries and sums (16 and 8 KiB of 48, at 128 channels 8 and 16 for those).
pub(super) const BLOCKS: usize = 4;
/// bf16 numbers of a tile.
pub(super) const TILE: usize = 512;
/// The scores of a block: row by row, 32 keys each.
pub(super) const BLOCK_SCORES: usize = STRIP * BLOCK;

/// Rows of codes of one tensor, and how many codes of a row are its.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    pub codes: Codes<'a>,
    pub channels: usize,
}

impl Rows<'_> {
    /// The codes of a row; none behind the last one.
    fn row(&self, row: usize) -> &[u8] {
        let start = row * self.codes.stride;
        if row < self.codes.rows { &self.codes.bytes[start..start + self.channels] } else { &[] }
    }
}

/// Scores of a strip and some blocks, and what makes weights of them.
pub(super) struct Chunk<'a> {
    /// One block after the other.
    pub scores: &'a mut [f32],
    /// Blocks of the chunk.
    pub blocks: usize,
    /// For each row of the strip, what its scores are multiplied by to be in units of log₂.
    pub scales: &'a [f32],
    /// The keys of the chunk that each row sees.
    pub visible: &'a [Range<usize>],
    /// What each key's scores are multiplied by beside the scale; empty where all are 1.
    pub key_scales: &'a [f32],
    /// What each key's weights are multiplied by before they meet the values; empty where all are 1.
    pub value_scales: &'a [f32],
}

impl Chunk<'_> {
    /// What every implementation relies on.
    fn check(&self, per_row: usize) {
        let Chunk { ref scores, blocks, scales, visible, key_scales, value_scales } = *self;
        let rows = visible.len();
        assert!(rows <= STRIP && scales.len() >= rows && per_row >= rows, "values for each of {rows} rows are needed");
        assert!(blocks <= BLOCKS && scores.len() >= blocks * BLOCK_SCORES, "the scores of {blocks} blocks are needed");
        for scales in [key_scales, value_scales] {
            assert!(scales.is_empty() || scales.len() >= blocks * BLOCK, "a scale per key is needed");
        }
    }

    /// A row's keys of a block that it sees, as a bit each.
    #[inline(always)]
    fn seen(&self, row: usize, block: usize) -> u32 {
        let bits_below = |key: usize| (1u64 << key.saturating_sub(block * BLOCK).min(BLOCK)) - 1;
        let Range { start, end } = self.visible[row];
        (bits_below(end) & !bits_below(start)) as u32
    }
}

/// Weights of a strip as tiles of bf16, each holding 32 keys of 16 rows in the order 0, 16, 1, 17, …
pub(super) struct Weights<'a> {
    /// For each row, the score in units of log₂ whose weight is 1.
    pub references: &'a [f32],
    /// Receives the weights, truncated: for each of the two tiles of rows, the tiles of its blocks.
    pub weights: &'a mut [u16],
    /// Receives what truncation left of them, rounded; nothing if empty.
    pub remainders: &'a mut [u16],
    /// To each row's sum is added what its weights make: as they are in the tile, where nothing else scales them.
    pub sums: &'a mut [f32],
}

impl Weights<'_> {
    fn check(&self, chunk: &Chunk) {
        chunk.check(self.references.len().min(self.sums.len()));
        assert!(self.weights.len() >= 2 * BLOCKS * TILE, "two rows of {BLOCKS} tiles of weights are needed");
        let remainders = self.remainders.len();
        assert!(remainders == 0 || remainders >= 2 * BLOCKS * TILE, "as many remainders as weights are needed");
    }
}

/// Where the weights of a row of the strip are in the tiles of the first block, in bf16 numbers; those of the next block are a
/// tile further.
#[inline(always)]
fn weight_place(row: usize) -> usize {
    row / 16 * BLOCKS * TILE + row % 16 * BLOCK
}

/// The steps between tile operations.
///
/// # Safety
///
/// The CPU must have what the implementor says.
pub(super) trait Vectors {
    /// Packs rows of Q: for every 16 rows, tiles of 32 channels; `packed` holds whole strips, whose rows beyond the last are
    /// zeros. `norms` receives Σ code² of each row.
    unsafe fn pack_queries(rows: Rows, steps: usize, packed: &mut [u16], norms: &mut [f32]);
    /// Packs up to 16 rows of K: tiles of 32 channels by 16 keys, pairs of channels side by side. Returns the largest Σ code²
    /// · scale² of a row, with a scale for each row, or none where all are 1.
    unsafe fn pack_keys(rows: Rows, steps: usize, scales: &[f32], packed: &mut [u16]) -> f32;
    /// Packs up to 32 rows of V: for every 16 channels a tile, keys r and r + 16 side by side. Tiles are `stride` numbers apart.
    unsafe fn pack_values(rows: Rows, tiles: usize, stride: usize, packed: &mut [u16]);
    /// Multiplies each score by its row's and its key's scale.
    unsafe fn scale(chunk: &mut Chunk);
    /// Raises each row's maximum, in units of log₂, to that of the chunk.
    unsafe fn raise_maxima(chunk: &Chunk, maxima: &mut [f32]);
    /// Makes weights of scores.
    unsafe fn weigh(chunk: &Chunk, weights: &mut Weights);
    /// Multiplies the rows of an output by their factors.
    unsafe fn rescale(output: &mut [f32], width: usize, factors: &[f32]);
}

/// Powers of two on [0, 1) as polynomials, the highest coefficient first. Relative errors: 7.5e-5, beside which truncation to
/// bf16 costs up to 7.8e-3, and 2e-7.
const DEGREE_3: [f32; 4] = [0.078_024_52, 0.226_067_16, 0.695_833_56, 0.999_925_2];
const DEGREE_5: [f32; 6] = [0.001_877_577, 0.008_989_34, 0.055_826_318, 0.240_153_62, 0.693_153_1, 0.999_999_94];

#[cfg(test)]
mod tests;
