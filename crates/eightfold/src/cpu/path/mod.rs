//! The number paths: in which numbers the two products of a tile are computed, and what that asks of Q, K and V.

mod float;
mod integer;
pub mod tiles;
mod units;

use super::kernels::{RowState, Visible};
use super::lanes::LANES;
use super::scratch::Staging;
use super::source::{Ahead, Codes, Head};
use super::task::Task;
pub(super) use float::FloatPath;
pub(super) use integer::IntegerPath;
use std::ops::Range;
pub(super) use tiles::TilePath;

/// The steps of a tile in the numbers of one path, in the order in which they are called.
///
/// A path owns what it packs. Q is packed once for a block, K and V once for a tile of keys; the last step then follows for
/// every tile of queries that sees some of those keys.
pub(super) trait Path {
    /// Packs the rows of Q.
    fn pack_queries(&mut self, task: &Task, staging: &mut Staging);
    /// Packs a tile of V.
    fn pack_values(&mut self, task: &Task, keys: &KeyTile, staging: &mut Staging);
    /// Packs a tile of K.
    fn pack_keys(&mut self, task: &Task, keys: &KeyTile, staging: &mut Staging);
    /// Whether these numbers hold what was packed so well that rounding will not show.
    fn is_precise(&self, task: &Task, keys: &KeyTile) -> bool;
    /// S = Q·Kᵀ, then P = 2^(S − max) with the rows' maxima and sums, then O = r·O + P·V, where r makes up for maxima that
    /// rose.
    fn attend(&mut self, task: &Task, tile: &mut Tile);
}

/// A tile of keys, and the values that belong to them.
pub(super) struct KeyTile<'a> {
    pub range: Range<usize>,
    /// What is read next.
    ahead: Ahead,
    /// Panels of 16 that the keys fill.
    pub panels: usize,
    /// Each key's scale relative to the head's largest, zero behind the last key; nothing where all are 1.
    pub key_scales: &'a [f32],
    /// The same of the values.
    pub value_scales: &'a [f32],
}

impl<'a> KeyTile<'a> {
    /// These keys of a task, after which it reads on as `ahead` says; the last two are room for their scales.
    pub(super) fn new(
        task: &Task,
        range: Range<usize>,
        ahead: Ahead,
        key_scales: &'a mut Vec<f32>,
        value_scales: &'a mut Vec<f32>,
    ) -> Self {
        let panels = range.len().div_ceil(LANES);
        task.keys.relative_scales(range.clone(), panels * LANES, task.key_scale, key_scales);
        task.values.relative_scales(range.clone(), panels * LANES, task.value_scale, value_scales);
        KeyTile { range, ahead, panels, key_scales, value_scales }
    }

    /// Prepares `staging` for [`KeyTile::placed`].
    fn place(&self, head: Head, width: usize, staging: &mut Staging) {
        head.place(self.range.clone(), self.ahead, width, staging);
    }

    /// The rows of a head that belong to these keys, as products with codes read them.
    fn placed<'r>(&self, head: Head<'r>, width: usize, staging: &'r Staging) -> Codes<'r> {
        head.placed(self.range.clone(), width, staging)
    }

    /// Hands the rows of a head that belong to these keys to `pack` as panels of 16 rows, with the number of the first:
    /// full panels where they lie, if 16 rows do so side by side; the others gathered.
    fn for_panels(&self, head: Head, width: usize, staging: &mut Staging, mut pack: impl FnMut(usize, Codes)) {
        let in_place = if head.lies_in_panels(self.range.start, width) { self.range.len() / LANES } else { 0 };
        if in_place > 0 {
            let rows = self.range.start..self.range.start + in_place * LANES;
            pack(0, head.full_panels(rows, self.ahead, staging));
        }
        let rest = self.range.start + in_place * LANES..self.range.end;
        if !rest.is_empty() {
            pack(in_place, head.gather(rest, self.ahead, width, staging));
        }
    }
}

/// A tile of queries, of which at least one sees something of a tile of keys.
pub(super) struct Tile<'a> {
    pub keys: &'a KeyTile<'a>,
    /// Rows of the block.
    pub rows: Range<usize>,
    pub visible: Visible<'a>,
    /// The rows' running softmax.
    pub states: &'a mut [RowState],
    /// Between softmax and values: what each row of the output is to be multiplied by.
    pub rescale: &'a mut [f32],
    /// The rows' sums.
    pub output: &'a mut [f32],
    /// Receives how many rows needed a second product.
    pub rows_refined: u64,
}
