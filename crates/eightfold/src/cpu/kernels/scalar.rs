//! The plain baseline: one element at a time, as the formula is written.

use super::product::Weights;
use super::softmax::{FloatTile, RowState};
use crate::cpu::lanes::LANES;

/// S = Q·Kᵀ.
pub(super) fn scores(
    queries: &[f32],
    keys: &[f32],
    depth: usize,
    visible: &[usize],
    scores: &mut [f32],
    stride: usize,
) {
    for (row, &keys_seen) in visible.iter().enumerate() {
        let query = &queries[row * depth..][..depth];
        for key in 0..keys_seen {
            let panel = &keys[key / LANES * depth * LANES..][..depth * LANES];
            let mut sum = 0.0;
            for channel in 0..depth {
                sum += query[channel] * panel[channel * LANES + key % LANES];
            }
            scores[row * stride + key] = sum;
        }
    }
}

/// Scores into weights, with the library's exponential.
pub(super) fn softmax(tile: &mut FloatTile) {
    for (row, &keys) in tile.visible.iter().enumerate() {
        let scores = &mut tile.scores[row * tile.stride..][..keys];
        let state = &mut tile.states[row];
        let max = scores.iter().copied().fold(state.max, f32::max);
        tile.alpha[row] = if state.max == max { 1.0 } else { (state.max - max).exp2() };
        let mut sum = 0.0;
        for score in scores {
            *score = (*score - max).exp2();
            sum += *score;
        }
        *state = RowState { max, sum: state.sum * tile.alpha[row] + sum };
    }
}

/// O = α·O + P·V.
pub(super) fn values(
    weights: &Weights<f32>,
    values: &[f32],
    chunk_words: usize,
    units: &[f32],
    visible: &[usize],
    output: &mut [f32],
) {
    let width = units.len();
    for (row, &keys) in visible.iter().enumerate() {
        let weight_row = &weights.words[row * weights.stride..][..keys];
        for channel in 0..width {
            let chunk = &values[channel / LANES * chunk_words..];
            let mut sum = 0.0;
            for (key, weight) in weight_row.iter().enumerate() {
                sum += weight * chunk[key * LANES + channel % LANES];
            }
            let output = &mut output[row * width + channel];
            *output = *output * weights.alpha[row] + sum;
        }
    }
}
