//! Fixed point: which power of two one step of each channel stands for, and what rounding to it costs.

use crate::cpu::kernels::Rounding;

/// Integers of Q and K stay within i16.
const OPERAND_LIMIT: f32 = 32767.0;
/// Σ |q·k| of integers stays within i32, with a margin for rounding each operand up by half a step.
const DOT_LIMIT: f32 = 0.98 * 2147483648.0;
/// Integers of V stay within this, so that the softmax can bound Σ weight·value within i32.
const VALUE_LIMIT: f32 = 2047.0;
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
        self.query_factors.resize(query_max.len(), 0.0);
        self.key_factors.resize(key_max.len(), 0.0);
        let pairs = || groups(query_max).iter().zip(groups(key_max));
        let mut largest = [0f32; GROUP];
        let mut dot = [0f32; GROUP];
        for (query, key) in pairs() {
            for lane in 0..GROUP {
                let shift = balancing_shift(query[lane], key[lane]);
                let loudest = (query[lane] * power_of_two(shift)).max(key[lane] * power_of_two(-shift));
                largest[lane] = largest[lane].max(loudest);
                dot[lane] += query[lane] * key[lane];
            }
        }
        let largest = largest.into_iter().fold(0.0, f32::max);
        let dot: f32 = dot.into_iter().sum();
        let step = exponent_at_least((largest / OPERAND_LIMIT).max((dot / DOT_LIMIT).sqrt()));
        self.unit = power_of_two(2 * step);
        let query_factors = self.query_factors.as_chunks_mut::<GROUP>().0;
        let key_factors = self.key_factors.as_chunks_mut::<GROUP>().0;
        for ((query, key), (query_factor, key_factor)) in pairs().zip(query_factors.iter_mut().zip(key_factors)) {
            for lane in 0..GROUP {
                let shift = balancing_shift(query[lane], key[lane]);
                query_factor[lane] = power_of_two(shift - step);
                key_factor[lane] = power_of_two(-shift - step);
            }
        }
    }

    /// Whether rounding Q and K disturbs the scores so little that it will not show.
    ///
    /// `scale` turns a score into natural-log units.
    pub(super) fn are_precise(
        &self,
        queries: &Rounding,
        query_count: usize,
        keys: &Rounding,
        key_count: usize,
        scale: f32,
    ) -> bool {
        let operands = [&queries.residual, &queries.size, &keys.residual, &keys.size].map(|sums| groups(sums));
        let mut variance = [0f32; GROUP];
        for group in 0..operands[0].len() {
            let [query_residual, query_energy, key_residual, key_energy] = operands.map(|sums| &sums[group]);
            for lane in 0..GROUP {
                variance[lane] += query_residual[lane] * key_energy[lane] + key_residual[lane] * query_energy[lane];
            }
        }
        let variance = variance.iter().sum::<f32>() / (query_count as f32 * key_count as f32);
        // Squares can overflow f32; a NaN or an infinity compares as no proof of precision.
        variance.sqrt() * self.unit * scale <= SCORE_TOLERANCE
    }
}

/// The fixed point of V.
#[derive(Debug, Default)]
pub(super) struct ValueUnits {
    /// Integer = value · factor, per channel.
    pub factors: Vec<f32>,
    /// Value = integer · unit, per channel.
    pub units: Vec<f32>,
}

impl ValueUnits {
    /// The finest fixed point in which channels of these largest magnitudes cannot overflow.
    pub(super) fn choose(&mut self, largest: &[f32]) {
        self.units.clear();
        self.units.extend(largest.iter().map(|largest| power_of_two(exponent_at_least(largest / VALUE_LIMIT))));
        self.factors.clear();
        self.factors.extend(self.units.iter().map(|unit| 1.0 / unit));
    }

    /// Whether rounding V disturbs it so little that it will not show. It is judged against the mean magnitude, which a
    /// few outliers cannot hide behind.
    pub(super) fn are_precise(&self, values: &Rounding, count: usize) -> bool {
        let (mut residual, mut typical) = ([0f32; GROUP], [0f32; GROUP]);
        let operands = [&values.residual, &values.size].map(|sums| groups(sums));
        for (group, units) in groups(&self.units).iter().enumerate() {
            let [channel_residual, magnitude] = operands.map(|sums| &sums[group]);
            for lane in 0..GROUP {
                let square = units[lane] * units[lane];
                residual[lane] += channel_residual[lane] * square;
                typical[lane] += magnitude[lane] * magnitude[lane] * square;
            }
        }
        let mean_residual = residual.iter().sum::<f32>() / count as f32;
        let typical = typical.iter().sum::<f32>() / (count as f32 * count as f32);
        mean_residual <= VALUE_TOLERANCE * VALUE_TOLERANCE * typical
    }
}

/// Channels that are looked at side by side: as many as let the compiler use vectors.
const GROUP: usize = 8;

/// Channels in groups; there is no rest, since widths are multiples of 16.
fn groups(channels: &[f32]) -> &[[f32; GROUP]] {
    channels.as_chunks().0
}

/// The e for which `query`·2^e and `key`·2^-e come closest together.
fn balancing_shift(query: f32, key: f32) -> i32 {
    let shift = (exponent(key) - exponent(query)) / 2;
    if query > 0.0 && key > 0.0 { shift } else { 0 }
}

/// The smallest e for which 2^e is not below `value`; 0 for zero.
fn exponent_at_least(value: f32) -> i32 {
    if value > 0.0 { exponent(value) + i32::from(power_of_two(exponent(value)) < value) } else { 0 }
}

/// The e for which 2^e ≤ value < 2^(e+1), −126 for anything smaller. Magnitudes are those of codes, 2^-16 to 2^16,
/// times a relative scale of at most 1: what is smaller than normal rounds to zero in any case.
fn exponent(value: f32) -> i32 {
    ((value.to_bits() >> 23) as i32 - 127).max(-126)
}

/// 2^exponent, for exponents of normal numbers.
fn power_of_two(exponent: i32) -> f32 {
    debug_assert!((-126..=127).contains(&exponent), "2^{exponent} is not normal");
    f32::from_bits((exponent + 127).cast_unsigned() << 23)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_of_two_are_exact_bounds() {
        for (value, expected) in [(1.0, 0), (1.1, 1), (2.0, 1), (0.75, 0), (0.5, -1), (0.0, 0), (1e-30, -99)] {
            assert_eq!(exponent_at_least(value), expected, "{value}");
        }
        assert_eq!(power_of_two(-126), f32::MIN_POSITIVE);
    }

    #[test]
    fn no_channel_overflows_its_integer_and_no_dot_product_its_sum() {
        let loud =
            |channel: usize, factor: f32| move |index: usize| if index == channel { 448.0 * factor } else { 3.0 };
        let cases: [(Vec<f32>, Vec<f32>); 4] = [
            (vec![448.0; 256], vec![448.0; 256]),
            (vec![1e-3; 64], vec![448.0; 64]),
            ((0..64).map(loud(5, 1.0)).collect(), (0..64).map(loud(9, 100.0)).collect()),
            (vec![0.0; 16], vec![1.0; 16]),
        ];
        for (query_max, key_max) in cases {
            let mut units = ScoreUnits::default();
            units.choose(&query_max, &key_max);
            let mut dot = 0f64;
            for channel in 0..query_max.len() {
                let query = f64::from(query_max[channel] * units.query_factors[channel]).round();
                let key = f64::from(key_max[channel] * units.key_factors[channel]).round();
                assert!(query <= 32767.0 && key <= 32767.0, "channel {channel}: {query} and {key}");
                assert_eq!(units.query_factors[channel] * units.key_factors[channel] * units.unit, 1.0);
                dot += query * key;
            }
            assert!(dot <= f64::from(i32::MAX), "the dot product can reach {dot}");
        }
    }

    #[test]
    fn a_loud_key_channel_costs_the_others_nothing() {
        let mut units = ScoreUnits::default();
        units.choose(&[4.0; 64], &[4.0; 64]);
        let quiet = units.query_factors[0];
        let mut key_max = [4.0; 64];
        key_max[7] = 400.0;
        units.choose(&[4.0; 64], &key_max);
        assert!(units.query_factors[0] >= quiet / 2.0, "{} against {quiet}", units.query_factors[0]);
    }
}
