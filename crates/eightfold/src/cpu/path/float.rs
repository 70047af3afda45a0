//! Products in f32.

use super::{KeyTile, Path, Tile};
use crate::cpu::config::Exp;
use crate::cpu::kernels::{CapScores, DIRECT_ROWS, DirectScores, DirectValues, Order, Pack, Scores, Softmax, Values};
use crate::cpu::lanes::LANES;
use crate::cpu::scratch::{Buffer, Staging};
use crate::cpu::source::Codes;
use crate::cpu::task::Task;
use crate::problem::MAX_HEAD_DIM;

/// Values decoded to f32, each row with its scale. Few query rows meet codes of K and V, which then are not packed.
#[derive(Default)]
pub(in crate::cpu) struct FloatPath {
    queries: Buffer<f32>,
    keys: Buffer<f32>,
    values: Buffer<f32>,
    /// Where codes are that few rows meet, or the codes.
    key_codes: Staging,
    value_codes: Staging,
    /// Scores, then weights.
    scores: Buffer<f32>,
}

/// Sums of f32 have no units.
const NO_UNITS: &[f32] = &[1.0; MAX_HEAD_DIM];

impl Path for FloatPath {
    fn pack_queries(&mut self, task: &Task, staging: &mut Staging) {
        let codes = Codes { factors: task.row_scales, ..task.queries(staging) };
        let packed = self.queries.get(task.rows.next_multiple_of(DIRECT_ROWS) * task.width);
        task.job.instructions.run(Pack { codes, width: task.width, order: Order::Rows, packed });
    }

    fn pack_keys(&mut self, task: &Task, keys: &KeyTile, staging: &mut Staging) {
        let width = task.width;
        if meets_codes(task) {
            return keys.place(task.keys, width, &mut self.key_codes);
        }
        let packed = self.keys.get(keys.panels * LANES * width);
        keys.for_panels(task.keys, width, staging, |first, codes| {
            let codes = Codes { factors: from_panel(keys.key_scales, first), ..codes };
            let packed = &mut packed[first * LANES * width..][..codes.rows * width];
            task.job.instructions.run(Pack { codes, width, order: Order::Panels, packed });
        });
    }

    fn pack_values(&mut self, task: &Task, keys: &KeyTile, staging: &mut Staging) {
        let (width, words) = (task.value_width, keys.panels * LANES * LANES);
        if meets_codes(task) {
            return keys.place(task.values, width, &mut self.value_codes);
        }
        let packed = self.values.get(keys.panels * LANES * width);
        keys.for_panels(task.values, width, staging, |first, codes| {
            let codes = Codes { factors: from_panel(keys.value_scales, first), ..codes };
            let packed = &mut packed[first * LANES * LANES..];
            task.job.instructions.run(Pack { codes, width, order: Order::Chunks { words }, packed });
        });
    }

    fn is_precise(&self, _task: &Task, _keys: &KeyTile) -> bool {
        true
    }

    fn attend(&mut self, task: &Task, tile: &mut Tile) {
        if meets_codes(task) {
            task.job.instructions.run(self.direct_scores(task, tile));
        } else {
            self.scores(task, tile);
        }
        self.softmax(task, tile);
        if meets_codes(task) {
            task.job.instructions.run(self.direct_values(task, tile));
        } else {
            self.add_values(task, tile);
        }
    }
}

impl FloatPath {
    /// The scores of few rows, to be computed.
    pub(in crate::cpu) fn direct_scores<'s>(&'s mut self, task: &Task<'s>, tile: &'s Tile) -> DirectScores<'s> {
        let (width, stride) = (task.width, task.job.config.tile_keys);
        DirectScores {
            queries: &self.queries.used()[tile.rows.start * width..],
            keys: Codes { factors: tile.keys.key_scales, ..tile.keys.placed(task.keys, width, &self.key_codes) },
            width,
            visible: tile.visible,
            scores: self.scores.get(tile.rows.len().next_multiple_of(DIRECT_ROWS) * stride),
            stride,
        }
    }

    /// The sums of few rows, to be computed.
    pub(in crate::cpu) fn direct_values<'s>(&'s mut self, task: &Task<'s>, tile: &'s mut Tile) -> DirectValues<'s> {
        let width = task.value_width;
        DirectValues {
            weights: self.scores.used_mut(),
            stride: task.job.config.tile_keys,
            rescale: tile.rescale,
            values: Codes {
                factors: tile.keys.value_scales,
                ..tile.keys.placed(task.values, width, &self.value_codes)
            },
            width,
            visible: tile.visible,
            output: tile.output,
        }
    }

    fn scores(&mut self, task: &Task, tile: &mut Tile) {
        let (width, stride) = (task.width, task.job.config.tile_keys);
        task.job.instructions.run(Scores {
            queries: &self.queries.used()[tile.rows.start * width..tile.rows.end * width],
            keys: self.keys.used(),
            depth: width,
            visible: tile.visible,
            scores: self.scores.get(tile.rows.len().next_multiple_of(DIRECT_ROWS) * stride),
            stride,
        });
    }

    /// Scores become weights.
    pub(in crate::cpu) fn softmax(&mut self, task: &Task, tile: &mut Tile) {
        if let Some(bound) = task.bound(tile.rows.clone()) {
            task.job.instructions.run(CapScores {
                scores: self.scores.used_mut(),
                stride: task.job.config.tile_keys,
                visible: tile.visible,
                bound,
                exact: task.job.config.exp == Exp::Exact,
            });
        }
        task.job.instructions.run(Softmax {
            scores: self.scores.used_mut(),
            stride: task.job.config.tile_keys,
            visible: tile.visible,
            states: tile.states,
            rescale: tile.rescale,
            exact: task.job.config.exp == Exp::Exact,
        });
    }

    fn add_values(&mut self, task: &Task, tile: &mut Tile) {
        task.job.instructions.run(Values {
            weights: self.scores.used(),
            stride: task.job.config.tile_keys,
            rescale: tile.rescale,
            weight_units: tile.rescale,
            values: self.values.used(),
            chunk_words: tile.keys.panels * LANES * LANES,
            channel_units: &NO_UNITS[..task.value_width],
            visible: tile.visible,
            output: tile.output,
        });
    }

    /// The bytes that the buffers hold on to.
    #[cfg(test)]
    pub(in crate::cpu) fn bytes(&self) -> usize {
        let buffers = [&self.queries, &self.keys, &self.values, &self.scores];
        let codes = [&self.key_codes, &self.value_codes];
        buffers.iter().map(|buffer| buffer.bytes()).sum::<usize>()
            + codes.iter().map(|codes| codes.bytes()).sum::<usize>()
    }
}

/// Whether the block has so few query rows that its products are with codes of K and V.
pub(in crate::cpu) fn meets_codes(task: &Task) -> bool {
    task.rows <= task.job.instructions.direct_rows()
}

/// The scales from a panel on; nothing where all are 1.
fn from_panel(scales: &[f32], panel: usize) -> &[f32] {
    scales.get(panel * LANES..).unwrap_or(&[])
}
