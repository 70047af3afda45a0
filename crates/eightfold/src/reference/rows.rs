//! Attention of a few query rows at a time, written so that the compiler makes vectors of it.

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
    /// What the scores are multiplied by.
    pub(super) scale: f64,
    pub(super) head_dim: usize,
}

impl Rows<'_> {
    /// Writes the rows' output and log-sum-exp; `weights` is room that is kept from call to call.
    #[inline(always)]
    pub(super) fn attend<const FUSED: bool>(&self, weights: &mut Vec<f64>, output: &mut [f64], lse: &mut [f64]) {
        let keys = self.visible.iter().map(|keys| keys.end).max().unwrap_or(0);
        if keys == 0 {
            output.fill(0.0);
            lse.fill(f64::NEG_INFINITY);
            return;
        }
        let stride = keys.next_multiple_of(LANES);
        weights.resize(ROWS * stride, 0.0);
        self.scores::<FUSED>(weights, stride);
        let sums = self.softmax(weights, stride, lse);
        self.weighted_means::<FUSED>(weights, stride, sums, output);
    }

    /// The product of each query with each key that any of them sees, `[row][key]`.
    #[inline(always)]
    fn scores<const FUSED: bool>(&self, scores: &mut [f64], stride: usize) {
        let query = self.padded_queries();
        let panels = self.panels.chunks_exact(self.head_dim).take(stride / LANES);
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

    /// Turns scores into unnormalised weights, gives each row's log-sum-exp, and returns each row's sum.
    fn softmax(&self, weights: &mut [f64], stride: usize, lse: &mut [f64]) -> [f64; ROWS] {
        let mut sums = [0.0; ROWS];
        for (row, weights) in weights.chunks_exact_mut(stride).enumerate() {
            let Range { start, end } = self.visible[row];
            weights[..start].fill(0.0);
            weights[end..].fill(0.0);
            let seen = &mut weights[start..end];
            let largest = seen.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            for weight in &mut *seen {
                *weight = (self.scale * (*weight - largest)).exp();
                sums[row] += *weight;
            }
            if let Some(lse) = lse.get_mut(row) {
                *lse = match seen.is_empty() {
                    true => f64::NEG_INFINITY,
                    false => self.scale * largest + sums[row].ln(),
                };
            }
        }
        sums
    }

    /// The mean of the values under each row's weights; zeros for rows that see nothing.
    #[inline(always)]
    fn weighted_means<const FUSED: bool>(&self, weights: &[f64], stride: usize, sums: [f64; ROWS], output: &mut [f64]) {
        let weights: [&[f64]; ROWS] = std::array::from_fn(|row| &weights[row * stride..][..stride]);
        for first in (0..self.head_dim).step_by(LANES) {
            let mut totals = [[0.0; LANES]; ROWS];
            for (key, value) in self.values.chunks_exact(self.head_dim).enumerate().take(stride) {
                let value = &value[first..][..LANES];
                for row in 0..ROWS {
                    for lane in 0..LANES {
                        let total = &mut totals[row][lane];
                        *total = multiply_add::<FUSED>(weights[row][key], value[lane], *total);
                    }
                }
            }
            for (row, output) in output.chunks_exact_mut(self.head_dim).enumerate() {
                for (lane, output) in output[first..][..LANES].iter_mut().enumerate() {
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
