//! How far one tensor is from another, in the statistics that tell faults apart.

use serde::{Deserialize, Serialize};

/// The distance between an output and what it should have been.
///
/// Statistics are over the elements that are finite in both; the others are counted in `non_finite`
/// and count as bad.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct ErrorStats {
    /// The largest error.
    pub max_abs: f64,
    /// The mean of the errors' magnitudes.
    pub mean_abs: f64,
    /// The share of elements beyond the [`BadLimit`], from 0 to 1.
    pub bad_fraction: f64,
    /// The norm of the error over the norm of the reference; the root mean square error where the reference is zero.
    pub relative_l2: f64,
    /// The cosine of the angle between the two, taken as vectors.
    pub cosine: f64,
    /// The mean of the signed errors: what averaging over elements does not remove.
    pub bias: f64,
    /// The standard deviation of the errors around the bias.
    pub deviation: f64,
    /// Elements that are NaN or infinite where the reference is not.
    pub non_finite: usize,
    /// The largest relative L2 norm of one row: what the norm over all rows averages out. None where rows were not looked at,
    /// as in records from before they were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worst_row: Option<f64>,
}

/// An element is bad when its error is above `atol + rtol · |reference|`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BadLimit {
    /// The part that does not depend on the reference.
    pub atol: f64,
    /// The part that grows with it.
    pub rtol: f64,
}

impl ErrorStats {
    /// Compares pairs of (output, reference).
    pub fn between(pairs: impl IntoIterator<Item = (f64, f64)>, bad: BadLimit) -> Self {
        let mut total = 0usize;
        let mut stats = ErrorStats::default();
        let mut bad_count = 0usize;
        let (mut sum, mut sum_abs, mut error_squares) = (0.0, 0.0, 0.0);
        let (mut dot, mut output_squares, mut reference_squares) = (0.0, 0.0, 0.0);
        for (output, reference) in pairs {
            total += 1;
            if !output.is_finite() || !reference.is_finite() {
                stats.non_finite += 1;
                bad_count += 1;
                continue;
            }
            let error = output - reference;
            stats.max_abs = stats.max_abs.max(error.abs());
            sum += error;
            sum_abs += error.abs();
            error_squares += error * error;
            dot += output * reference;
            output_squares += output * output;
            reference_squares += reference * reference;
            bad_count += usize::from(error.abs() > bad.atol + bad.rtol * reference.abs());
        }
        let compared = (total - stats.non_finite).max(1) as f64;
        stats.mean_abs = sum_abs / compared;
        stats.bad_fraction = bad_count as f64 / total.max(1) as f64;
        stats.relative_l2 = if reference_squares > 0.0 {
            (error_squares / reference_squares).sqrt()
        } else {
            (error_squares / compared).sqrt()
        };
        stats.cosine = match (output_squares > 0.0, reference_squares > 0.0) {
            (true, true) => dot / (output_squares * reference_squares).sqrt(),
            (false, false) => 1.0,
            _ => 0.0,
        };
        stats.bias = sum / compared;
        stats.deviation = (error_squares / compared - stats.bias * stats.bias).max(0.0).sqrt();
        stats
    }

    /// The same with the worst of the rows, which are `head_dim` elements each. A row's error is measured by the row's own
    /// reference, or by the root mean square of all rows where the reference is zero.
    #[must_use]
    pub fn with_worst_row(self, output: &[f64], reference: &[f64], head_dim: usize) -> Self {
        let squares = |values: &[f64]| values.iter().map(|value| value * value).sum::<f64>();
        let mean_square = squares(reference) / (reference.len() / head_dim).max(1) as f64;
        let error = |(output, reference): (&[f64], &[f64])| {
            let errors: f64 =
                output.iter().zip(reference).map(|(output, reference)| (output - reference).powi(2)).sum();
            let own = squares(reference);
            match if own > 0.0 { own } else { mean_square } {
                unit if unit > 0.0 => (errors / unit).sqrt(),
                _ => (errors / head_dim as f64).sqrt(),
            }
        };
        let rows = output.chunks_exact(head_dim).zip(reference.chunks_exact(head_dim)).map(error);
        // A row that holds NaN is counted in `non_finite`, and must not hide the others.
        ErrorStats { worst_row: Some(rows.filter(|error| !error.is_nan()).fold(0.0, f64::max)), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BAD: BadLimit = BadLimit { atol: 0.1, rtol: 0.1 };

    #[test]
    fn statistics_of_a_small_example_by_hand() {
        let stats = ErrorStats::between([(1.0, 1.0), (2.5, 2.0), (-1.0, -1.0), (0.0, 0.5)], BAD);
        assert_eq!(stats.max_abs, 0.5);
        assert_eq!(stats.mean_abs, 0.25);
        assert_eq!(stats.bad_fraction, 0.5);
        assert_eq!(stats.bias, 0.0);
        assert_eq!(stats.deviation, 0.125f64.sqrt());
        assert_eq!(stats.relative_l2, (0.5f64 / 6.25).sqrt());
        assert!((stats.cosine - 7.0 / (8.25f64 * 6.25).sqrt()).abs() < 1e-15);
        assert_eq!(stats.non_finite, 0);
    }

    #[test]
    fn an_offset_is_all_bias_and_no_deviation() {
        let stats = ErrorStats::between((0..100).map(|i| (f64::from(i) + 0.25, f64::from(i))), BAD);
        assert_eq!((stats.bias, stats.deviation), (0.25, 0.0));
    }

    #[test]
    fn what_is_not_finite_is_counted_and_bad_and_leaves_the_rest_readable() {
        let stats = ErrorStats::between([(f64::NAN, 1.0), (f64::INFINITY, 1.0), (1.0, 1.0), (1.0, 1.0)], BAD);
        assert_eq!((stats.non_finite, stats.bad_fraction), (2, 0.5));
        assert_eq!((stats.max_abs, stats.relative_l2, stats.cosine), (0.0, 0.0, 1.0));
    }

    #[test]
    fn a_zero_reference_gives_numbers_and_no_nan() {
        let right = ErrorStats::between([(0.0, 0.0); 4], BAD);
        assert_eq!((right.relative_l2, right.cosine), (0.0, 1.0));
        let wrong = ErrorStats::between([(2.0, 0.0); 4], BAD);
        assert_eq!((wrong.relative_l2, wrong.cosine), (2.0, 0.0));
        let nothing = ErrorStats::between([], BAD);
        assert!(nothing.mean_abs == 0.0 && nothing.bad_fraction == 0.0 && nothing.deviation == 0.0);
    }

    #[test]
    fn the_bad_limit_grows_with_the_reference() {
        let bad = |output, reference| ErrorStats::between([(output, reference)], BAD).bad_fraction;
        assert_eq!((bad(0.11, 0.0), bad(0.09, 0.0)), (1.0, 0.0));
        assert_eq!((bad(11.2, 10.0), bad(11.0, 10.0)), (1.0, 0.0));
    }

    #[test]
    fn one_wrong_row_shows_where_the_norm_over_all_rows_hides_it() {
        let reference = vec![1.0; 8 * 1000];
        let mut output = reference.clone();
        output[8 * 500..8 * 501].fill(1.5);
        let pairs = output.iter().copied().zip(reference.iter().copied());
        let stats = ErrorStats::between(pairs, BAD).with_worst_row(&output, &reference, 8);
        assert!(stats.relative_l2 < 0.016);
        assert!((stats.worst_row.unwrap() - 0.5).abs() < 1e-12);
    }

    #[test]
    fn rows_of_zeros_are_measured_by_the_others_and_rows_with_nan_hide_nothing() {
        let worst = |output: &[f64], reference: &[f64]| {
            ErrorStats::default().with_worst_row(output, reference, 2).worst_row.unwrap()
        };
        // The other row's square is 18, and over both rows the mean is 9.
        assert_eq!(worst(&[3.0, 3.0, 3.0, 0.0], &[3.0, 3.0, 0.0, 0.0]), 1.0);
        assert_eq!(worst(&[2.0, 2.0], &[0.0, 0.0]), 2.0);
        assert_eq!(worst(&[f64::NAN, 0.0, 1.0, 0.5], &[1.0, 1.0, 1.0, 0.0]), 0.5);
    }
}
