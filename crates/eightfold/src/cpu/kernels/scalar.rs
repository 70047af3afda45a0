//! The plain baseline: one element at a time, as the formula is written.

use super::{CapScores, LANES, RowState, Scores, Softmax, Values};

/// S = Q·Kᵀ.
pub(super) fn scores(product: Scores<f32>) {
    let Scores { queries, keys, depth, visible, scores, stride } = product;
    for (row, seen) in visible.0.iter().enumerate() {
        let query = &queries[row * depth..][..depth];
        for key in seen.clone() {
            let panel = &keys[key / LANES * depth * LANES..][..depth * LANES];
            let mut sum = 0.0;
            for channel in 0..depth {
                sum += query[channel] * panel[channel * LANES + key % LANES];
            }
            scores[row * stride + key] = sum;
        }
    }
}

/// Scores below their bound.
pub(super) fn cap_scores(tile: CapScores) {
    for (row, seen) in tile.visible.0.iter().enumerate() {
        for score in &mut tile.scores[row * tile.stride..][seen.clone()] {
            *score = tile.bound.softcap.apply_exactly(*score + tile.bound.offsets[row]);
        }
    }
}

/// Scores into weights, with the library's exponential.
pub(super) fn softmax(tile: Softmax) {
    for (row, seen) in tile.visible.0.iter().enumerate() {
        let scores = &mut tile.scores[row * tile.stride..][seen.clone()];
        let state = &mut tile.states[row];
        let max = scores.iter().copied().fold(state.max, f32::max);
        tile.rescale[row] = if state.max == max { 1.0 } else { (state.max - max).exp2() };
        let mut sum = 0.0;
        for score in scores {
            *score = (*score - max).exp2();
            sum += *score;
        }
        *state = RowState { max, sum: state.sum * tile.rescale[row] + sum };
    }
}

/// O = r·O + P·V.
pub(super) fn values(product: Values<f32>) {
    let Values { weights, stride, rescale, values, chunk_words, channel_units, visible, output, .. } = product;
    let width = channel_units.len();
    for (row, seen) in visible.0.iter().enumerate() {
        for channel in 0..width {
            let chunk = &values[channel / LANES * chunk_words..];
            let mut sum = 0.0;
            for key in seen.clone() {
                sum += weights[row * stride + key] * chunk[key * LANES + channel % LANES];
            }
            let output = &mut output[row * width + channel];
            *output = *output * rescale[row] + sum;
        }
    }
}
