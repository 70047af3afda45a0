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
            (true, true) => dot / (output_squares.sqrt() * reference_squares.sqrt()),
            (false, false) => 1.0,
            _ => 0.0,
        };
        stats.bias = sum / compared;
        stats.deviation = (error_squares / compared - stats.bias * stats.bias).max(0.0).sqrt();
        stats
    }
}
