//! Fixed point: which power of two one step of each channel stands for, and what rounding to it costs.

use super::kernels::Rounding;

/// Integers of Q and K stay within i16.
const OPERAND_LIMIT: f32 = 32767.0;
/// Σ |q·k| of integers stays within i32, with a margin for rounding each operand up by half a step.
const DOT_LIMIT: f64 = 0.98 * 2147483648.0;
/// Integers of V stay within this, so that the softmax can bound Σ weight·value within i32.
const VALUE_LIMIT: f32 = 4095.0;
/// The RMS error of a score, in natural-log units, above which a tile is computed in f32: it is, to first
/// order, the relative error that the scores' rounding adds to the output.
const SCORE_TOLERANCE: f32 = 1e-3;
/// The relative RMS error of V above which a tile is computed in f32.
const VALUE_TOLERANCE: f32 = 1e-3;

/// The fixed point of Q and K. Each channel of K is divided by a power of two and the same channel of Q
/// multiplied by it, so that a channel that is loud on one side costs the others nothing.
#[derive(Debug, Default)]
pub(super) struct ScoreUnits {
    /// Integer of Q = value · factor, per channel.
    pub query_factors: Vec<f32>,
    /// Integer of K = value · factor, per channel.
    pub key_factors: Vec<f32>,
    /// Score = integer · unit.
    pub unit: f32,
}

impl ScoreUnits {
    /// The finest fixed point in which channels of these largest magnitudes cannot overflow.
    pub(super) fn choose(&mut self, query_max: &[f32], key_max: &[f32]) {
        let mut largest = 0f32;
        let mut dot = 0f64;
        for (&query, &key) in query_max.iter().zip(key_max) {
            let shift = balancing_shift(query, key);
            largest = largest.max(query * shift).max(key / shift);
            dot += f64::from(query) * f64::from(key);
        }
        let step = (largest / OPERAND_LIMIT).max((dot / DOT_LIMIT).sqrt() as f32);
        let step = power_of_two_at_least(step);
        self.unit = step * step;
        self.query_factors.clear();
        self.key_factors.clear();
        for (&query, &key) in query_max.iter().zip(key_max) {
            let shift = balancing_shift(query, key);
            self.query_factors.push(shift / step);
            self.key_factors.push(1.0 / (shift * step));
        }
    }

    /// Whether rounding Q and K disturbs the scores so much that it would show.
    ///
    /// `scale` turns a score into natural-log units.
    pub(super) fn too_coarse(
        &self,
        queries: &Rounding,
        query_count: usize,
        keys: &Rounding,
        key_count: usize,
        scale: f32,
    ) -> bool {
        let channels = queries.residual.iter().zip(&queries.energy).zip(keys.residual.iter().zip(&keys.energy));
        let variance: f32 = channels
            .map(|((query_residual, query_energy), (key_residual, key_energy))| {
                query_residual * key_energy + key_residual * query_energy
            })
            .sum::<f32>()
            / (query_count as f32 * key_count as f32);
        let error = variance.sqrt() * self.unit * scale;
        // A NaN or an infinity (squares can overflow f32) is no proof of precision.
        !(error <= SCORE_TOLERANCE)
    }
}

/// Fills in the fixed point of V for channels of these largest magnitudes: integer = value · factor, and
/// value = integer · unit.
pub(super) fn choose_value_units(largest: &[f32], factors: &mut Vec<f32>, units: &mut Vec<f32>) {
    units.clear();
    units.extend(largest.iter().map(|largest| power_of_two_at_least(largest / VALUE_LIMIT)));
    factors.clear();
    factors.extend(units.iter().map(|unit| 1.0 / unit));
}

/// Whether rounding V disturbs it so much that it would show. It is judged against the mean magnitude, which a
/// few outliers cannot hide behind.
pub(super) fn values_too_coarse(values: &Rounding, units: &[f32], count: usize) -> bool {
    let (mut residual, mut typical) = (0f32, 0f32);
    for ((channel_residual, magnitude), unit) in values.residual.iter().zip(&values.magnitude).zip(units) {
        let mean = magnitude / count as f32;
        residual += channel_residual / count as f32 * unit * unit;
        typical += mean * mean * unit * unit;
    }
    !(residual <= VALUE_TOLERANCE * VALUE_TOLERANCE * typical) && residual > 0.0
}

/// The power of two that, multiplied into `query` and divided out of `key`, brings the two closest together.
fn balancing_shift(query: f32, key: f32) -> f32 {
    if query > 0.0 && key > 0.0 { power_of_two((exponent(key) - exponent(query)) / 2) } else { 1.0 }
}

/// The smallest power of two that is not below `value`; 1 for zero.
fn power_of_two_at_least(value: f32) -> f32 {
    if value <= 0.0 {
        return 1.0;
    }
    let below = power_of_two(exponent(value));
    if below < value { 2.0 * below } else { below }
}

/// The exponent e of a positive normal value: 2^e ≤ value < 2^(e+1). Codes span 2^-16 to 2^16 and scales within a
/// head are relative to its largest, so only values that round to zero anyway are subnormal.
fn exponent(value: f32) -> i32 {
    (value.to_bits() >> 23) as i32 - 127
}

/// 2^exponent within the range of normal numbers.
fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(((exponent.clamp(-126, 127) + 127) as u32) << 23)
}
