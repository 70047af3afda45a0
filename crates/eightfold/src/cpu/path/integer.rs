//! Products of pairs of i16, in fixed point with power-of-two units.

use super::units::{ScoreUnits, ValueUnits};
use super::{KeyTile, Path, Tile};
use crate::cpu::config::Exp;
use crate::cpu::kernels::{
    IntegerTile, Order, Pack, PackIntegers, RefineIntegers, Rounding, Scores, SoftmaxIntegers, Values,
};
use crate::cpu::lanes::LANES;
use crate::cpu::scratch::{Buffer, Staging};
use crate::cpu::source::Head;
use crate::cpu::task::Task;
use crate::problem::MAX_HEAD_DIM;
use std::f32::consts::LN_2;

/// Two channels of Q and K, or two keys of P and V, in a word. The integers leave the rows' own scales out: those enter
/// with the scores and the weights, unrounded.
#[derive(Default)]
pub(in crate::cpu) struct IntegerPath {
    queries: Buffer<i32>,
    keys: Buffer<i32>,
    values: Buffer<i32>,
    scores: Buffer<i32>,
    weights: Buffer<i32>,
    score_units: ScoreUnits,
    value_units: ValueUnits,
    query_rounding: Rounding,
    key_rounding: Rounding,
    value_rounding: Rounding,
    /// What an integer score of each row of the block is multiplied by to be in units of log₂.
    row_units: Vec<f32>,
    /// What each row's integer sums are multiplied by.
    weight_units: Vec<f32>,
    /// Rows whose weights need a second product.
    imprecise: Vec<usize>,
}

impl Path for IntegerPath {
    /// Chooses the units of the scores, which depend on the largest magnitudes of both Q and K.
    fn pack_queries(&mut self, task: &Task, staging: &mut Staging) {
        let Task { job, block, width, rows, keys, row_scales, .. } = *task;
        let (mut query_max, mut key_max) = ([0.0; MAX_HEAD_DIM], [0.0; MAX_HEAD_DIM]);
        for head in Head::group(job.q, block.batch, block.kv_head, job.problem.shape().group()) {
            head.raise_channel_max(block.queries.clone(), &mut query_max);
        }
        keys.raise_channel_max(task.tiled_keys(), &mut key_max);
        self.score_units.choose(&query_max[..width], &key_max[..width]);
        self.row_units.clear();
        self.row_units.extend(row_scales.iter().map(|scale| scale * self.score_units.unit));
        self.query_rounding.reset(width);
        let (codes, packed) = (task.queries(staging), self.queries.get(rows * width / 2));
        job.instructions.run(PackIntegers {
            pack: Pack { codes, width, order: Order::Rows, packed },
            factors: &self.score_units.query_factors,
            rounding: &mut self.query_rounding,
        });
    }

    fn pack_keys(&mut self, task: &Task, keys: &KeyTile, staging: &mut Staging) {
        let width = task.width;
        let packed = self.keys.get(keys.panels * LANES * width / 2);
        self.key_rounding.reset(width);
        keys.for_panels(task.keys, width, staging, |first, codes| {
            let packed = &mut packed[first * LANES * width / 2..][..codes.rows * width / 2];
            task.job.instructions.run(PackIntegers {
                pack: Pack { codes, width, order: Order::Panels, packed },
                factors: &self.score_units.key_factors,
                rounding: &mut self.key_rounding,
            });
        });
    }

    fn pack_values(&mut self, task: &Task, keys: &KeyTile, staging: &mut Staging) {
        let (width, words) = (task.value_width, keys.panels * LANES * LANES / 2);
        let mut largest = [0.0; MAX_HEAD_DIM];
        task.values.raise_channel_max(keys.range.clone(), &mut largest);
        self.value_units.choose(&largest[..width]);
        let packed = self.values.get(keys.panels * LANES * width / 2);
        self.value_rounding.reset(width);
        keys.for_panels(task.values, width, staging, |first, codes| {
            let packed = &mut packed[first * LANES * LANES / 2..];
            task.job.instructions.run(PackIntegers {
                pack: Pack { codes, width, order: Order::Chunks { words }, packed },
                factors: &self.value_units.factors,
                rounding: &mut self.value_rounding,
            });
        });
    }

    fn is_precise(&self, task: &Task, keys: &KeyTile) -> bool {
        let (queries, count) = (&self.query_rounding, keys.range.len());
        let steepest = task.row_scales.iter().copied().fold(0.0, f32::max) * LN_2;
        self.score_units.are_precise(queries, task.rows, &self.key_rounding, count, steepest)
            && self.value_units.are_precise(&self.value_rounding, count)
    }

    fn attend(&mut self, task: &Task, tile: &mut Tile) {
        self.scores(task, tile);
        self.softmax(task, tile);
        self.add_values(task, tile);
    }
}

impl IntegerPath {
    fn scores(&mut self, task: &Task, tile: &mut Tile) {
        let (words, stride) = (task.width / 2, task.job.config.tile_keys);
        task.job.instructions.run(Scores {
            queries: &self.queries.used()[tile.rows.start * words..tile.rows.end * words],
            keys: self.keys.used(),
            depth: words,
            visible: tile.visible,
            scores: self.scores.get(tile.rows.len() * stride),
            stride,
        });
    }

    fn softmax(&mut self, task: &Task, tile: &mut Tile) {
        self.weights.get(tile.rows.len() * task.job.config.tile_keys / 2);
        self.weight_units.resize(task.job.config.tile_queries, 0.0);
        task.job.instructions.run(SoftmaxIntegers(&mut self.tile(task, tile)));
    }

    fn add_values(&mut self, task: &Task, tile: &mut Tile) {
        self.multiply_values(task, tile);
        if !self.imprecise.is_empty() {
            tile.rows_refined = self.imprecise.len() as u64;
            task.job.instructions.run(RefineIntegers(&mut self.tile(task, tile)));
            self.multiply_values(task, tile);
        }
    }

    /// What the softmax reads and writes.
    fn tile<'a>(&'a mut self, task: &'a Task, tile: &'a mut Tile) -> IntegerTile<'a> {
        IntegerTile {
            scores: self.scores.used(),
            stride: task.job.config.tile_keys,
            score_units: &self.row_units[tile.rows.clone()],
            key_scales: tile.keys.key_scales,
            value_scales: tile.keys.value_scales,
            bound: task.bound(tile.rows.clone()),
            visible: tile.visible,
            states: tile.states,
            weights: self.weights.used_mut(),
            rescale: tile.rescale,
            weight_units: &mut self.weight_units,
            imprecise: &mut self.imprecise,
            exact: task.job.config.exp == Exp::Exact,
        }
    }

    /// O = r·O + P·V.
    fn multiply_values(&self, task: &Task, tile: &mut Tile) {
        task.job.instructions.run(Values {
            weights: self.weights.used(),
            stride: task.job.config.tile_keys / 2,
            rescale: tile.rescale,
            weight_units: &self.weight_units,
            values: self.values.used(),
            chunk_words: tile.keys.panels * LANES * LANES / 2,
            channel_units: &self.value_units.units,
            visible: tile.visible,
            output: tile.output,
        });
    }

    /// The bytes that the buffers hold on to.
    #[cfg(test)]
    pub(in crate::cpu) fn bytes(&self) -> usize {
        let buffers = [&self.queries, &self.keys, &self.values, &self.scores, &self.weights];
        buffers.iter().map(|buffer| buffer.bytes()).sum()
    }
}
