//! Attention of a few query rows at a time, written so that the compiler makes vectors of it.

use crate::problem::Scoring;
use std::ops::Range;

/// Query rows that share every load of a key or a value.
pub(super) const ROWS: usize = 4;

/// Keys, or channels, side by side in the inner loops; it divides every head dimension.
pub(super) const LANES: usize = 8;

/// Up to `ROWS` query rows of one head, and all that they attend to.
pub(super) struct Rows<'a> {
    /// `[row][channel]`.
    pub(super) queries: &'a [f64],
    /// The keys of the head, `[panel][channel][lane]`.
    pub(super) panels: &'a [[f64; LANES]],
    /// The values of the head, `[key][channel]`.
    pub(super) values: &'a [f64],
    /// The keys that each row sees; none for rows beyond the last.
    pub(super) visible: [Range<usize>; ROWS],
    /// What becomes of products.
    pub(super) scoring: Scoring,
    /// The head's sink, if it has one.
    pub(super) sink: Option<f64>,
    pub(super) head_dim: usize,
    pub(super) value_dim: usize,
}

impl Rows<'_> {
    /// Writes the rows' output and log-sum-exp; `weights` is room that is kept from call to call.
    #[inline(always)]
    pub(super) fn attend<const FUSED: bool>(&self, weights: &mut Vec<f64>, output: &mut [f64], lse: &mut [f64]) {
        let seen = || self.visible.iter().filter(|keys| !keys.is_empty());
        let Some(keys) = seen().map(|keys| keys.end).max() else {
            output.fill(0.0);
            lse.fill(self.sink.unwrap_or(f64::NEG_INFINITY));
            return;
        };
        let unseen = seen().map(|keys| keys.start).min().unwrap_or(0);
        // What no row sees is left out, in whole panels.
        let first = unseen / LANES * LANES;
        let stride = keys.next_multiple_of(LANES) - first;
        weights.resize(ROWS * stride, 0.0);
        self.scores::<FUSED>(weights, first, stride);
        let sums = self.softmax(weights, first, stride, lse);
        self.weighted_means::<FUSED>(weights, first, stride, sums, output);
    }

    /// The product of each query with `stride` keys from `first` on, `[row][key]`.
    #[inline(always)]
    fn scores<const FUSED: bool>(&self, scores: &mut [f64], first: usize, stride: usize) {
        let query = self.padded_queries();
        let panels = self.panels.chunks_exact(self.head_dim).skip(first / LANES).take(stride / LANES);
        for (index, panel) in panels.enumerate() {
            let first_key = index * LANES;
            let mut sums = [[0.0; LANES]; ROWS];
            for (channel, key) in panel.iter().enumerate() {
                for row in 0..ROWS {
                    for lane in 0..LANES {
                        let sum = &mut sums[row][lane];
                        *sum = multiply_add::<FUSED>(query[row][channel], key[lane], *sum);
                    }
                }
            }
            for (row, sums) in sums.iter().enumerate() {
                scores[row * stride + first_key..][..LANES].copy_from_slice(sums);
            }
        }
    }

    /// The rows' queries, all of the same known length; rows beyond the last repeat the first.
    #[inline(always)]
    fn padded_queries(&self) -> [&[f64]; ROWS] {
        std::array::from_fn(|row| {
            let row = if self.visible[row].is_empty() { 0 } else { row };
            &self.queries[row * self.head_dim..][..self.head_dim]
        })
    }

    /// Turns products with the keys from `first` on into unnormalised weights, gives each row's log-sum-exp, and returns
    /// each row's sum.
    fn softmax(&self, weights: &mut [f64], first: usize, stride: usize, lse: &mut [f64]) -> [f64; ROWS] {
        let mut sums = [0.0; ROWS];
        for (row, weights) in weights.chunks_exact_mut(stride).enumerate() {
            let [start, end] = match &self.visible[row] {
                keys if keys.is_empty() => [0, 0],
                keys => [keys.start - first, keys.end - first],
            };
            weights[..start].fill(0.0);
            weights[end..].fill(0.0);
            let seen = &mut weights[start..end];
            seen.iter_mut().for_each(|weight| *weight = self.scoring.score(*weight));
            let largest = seen.iter().copied().fold(self.sink.unwrap_or(f64::NEG_INFINITY), f64::max);
            sums[row] = self.sink.map_or(0.0, |sink| (sink - largest).exp());
            for weight in &mut *seen {
                *weight = (*weight - largest).exp();
                sums[row] += *weight;
            }
            if let Some(lse) = lse.get_mut(row) {
                *lse = largest + sums[row].ln();
            }
        }
        sums
    }

    /// The mean of the values under each row's weights; zeros for rows that see nothing.
    #[inline(always)]
    fn weighted_means<const FUSED: bool>(
        &self,
        weights: &[f64],
        first: usize,
        stride: usize,
        sums: [f64; ROWS],
        output: &mut [f64],
    ) {
        let weights: [&[f64]; ROWS] = std::array::from_fn(|row| &weights[row * stride..][..stride]);
        let values = &self.values[first * self.value_dim..];
        for channel in (0..self.value_dim).step_by(LANES) {
            let mut totals = [[0.0; LANES]; ROWS];
            for (key, value) in values.chunks_exact(self.value_dim).enumerate().take(stride) {
                let value = &value[channel..][..LANES];
                for row in 0..ROWS {
                    for lane in 0..LANES {
                        let total = &mut totals[row][lane];
                        *total = multiply_add::<FUSED>(weights[row][key], value[lane], *total);
                    }
                }
            }
            for (row, output) in output.chunks_exact_mut(self.value_dim).enumerate() {
                for (lane, output) in output[channel..][..LANES].iter_mut().enumerate() {
                    *output = if self.visible[row].is_empty() { 0.0 } else { totals[row][lane] / sums[row] };
                }
            }
        }
    }
}

/// `a · b + sum`, rounded once where the CPU can do that, else twice.
#[inline(always)]
fn multiply_add<const FUSED: bool>(a: f64, b: f64, sum: f64) -> f64 {
    // Without the instruction, `mul_add` would be a slow call.
    if FUSED { a.mul_add(b, sum) } else { a * b + sum }
}
