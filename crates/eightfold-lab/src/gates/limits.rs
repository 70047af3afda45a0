//! The limits that hold for one case.

use super::case::Case;
use super::rounding::{half_ulp, nearest};
use super::thresholds::{BadElement, EndToEndLimits, ErrorLimits, Thresholds, Tolerance};
use crate::errors::BadLimit;
use crate::inputs::Family;
use eightfold::Shape;

/// The thresholds in the units of one case, with what its output format costs on top.
pub(super) struct Limits {
    pub max_abs: f64,
    pub mean_abs: f64,
    pub bad: BadLimit,
    pub bad_fraction: f64,
    pub relative_l2: f64,
    pub worst_row: Option<f64>,
    pub lse_nats: f64,
    pub end_to_end: EndToEndLimits,
}

impl Limits {
    /// The limits of this case for a subject of this tolerance.
    pub fn of(case: &Case, tolerance: &Tolerance, thresholds: &Thresholds) -> Self {
        let kernel = &thresholds.correctness.kernel;
        let end_to_end = thresholds.end_to_end(case.family, case.problem.input_format());
        let unit = unit(case);
        let rounding = Rounding::of(case);
        let shared = BadElement { atol: kernel.bad_atol, rtol: kernel.bad_rtol };
        let bad = tolerance.bad.unwrap_or(shared);
        let declared = declared(case, tolerance);
        let scores = of_large_scores(case, tolerance);
        Limits {
            max_abs: declared.max_abs * unit + scores * largest_value(case) + rounding.max,
            mean_abs: kernel.mean_abs * unit + rounding.max,
            bad: BadLimit { atol: bad.atol * unit + rounding.max, rtol: bad.rtol },
            bad_fraction: kernel.bad_fraction,
            relative_l2: declared_relative_l2(case, tolerance).hypot(rounding.relative_l2),
            worst_row: declared.worst_row.map(|limit| limit + scores + rounding.row),
            lse_nats: tolerance.lse_nats + tolerance.lse_relative * largest_lse(case),
            end_to_end: EndToEndLimits {
                relative_l2: end_to_end.relative_l2.hypot(rounding.relative_l2),
                // Of a small angle the cosine is 1 less half its square.
                cosine: end_to_end.cosine - rounding.relative_l2.powi(2) / 2.0,
            },
        }
    }
}

/// What the absolute limits are multiples of: 1 where inputs are of order 1, else the root mean square of the
/// reference output.
pub(super) fn unit(case: &Case) -> f64 {
    match case.family {
        Some(Family::Tiny | Family::Huge) | None => {
            let values = &case.dequantized.values;
            let squares: f64 = values.iter().map(|value| value * value).sum();
            let root_mean_square = (squares / values.len() as f64).sqrt();
            if root_mean_square > 0.0 { root_mean_square } else { 1.0 }
        }
        Some(_) => 1.0,
    }
}

/// What rounding to the output's number format costs: on one element at most, and on all of them.
///
/// A kernel with an error e gives round(x + e), and is compared with x. Over many elements x lies anywhere between two
/// neighbours of the format, and the mean of (round(x + e) − x)² is then e² + r², where r² is the mean of (round(x) − x)²,
/// whatever e is. So squares add up: a kernel that is as wrong as its tolerance allows in f32 is at the limit in every
/// format. And r is no estimate, because the reference is known; on N(0,1) it is some 1.7e-3 in bf16 and 2.1e-4 in f16.
struct Rounding {
    max: f64,
    relative_l2: f64,
    /// On one row at most, relative to it.
    row: f64,
}

/// Of few elements more than their share may lie so near the middle between two neighbours that e decides between them: so
/// many may count half a unit more than they lost. Rows of a head may be all alike, so that one is counted of each.
const NEAR_MIDDLES: f64 = 4.0;

impl Rounding {
    fn of(case: &Case) -> Self {
        let format = case.problem.output_format();
        let Shape { batch, query_heads, .. } = case.problem.shape();
        let value_dim = case.problem.value_dims().head_dim;
        let elements = (batch * query_heads * value_dim) as f64;
        let (mut max, mut squares, mut reference_squares) = (0f64, 0.0, 0.0);
        for &value in &case.dequantized.values {
            let half_ulp = half_ulp(format, value);
            max = max.max(half_ulp);
            squares += (nearest(format, value) - value).powi(2) + NEAR_MIDDLES * half_ulp.powi(2) / elements;
            reference_squares += value * value;
        }
        let relative_l2 = if reference_squares > 0.0 { (squares / reference_squares).sqrt() } else { 0.0 };
        let norm =
            |row: &[f64], of: &dyn Fn(f64) -> f64| row.iter().map(|value| of(*value).powi(2)).sum::<f64>().sqrt();
        let rows = case.dequantized.values.chunks_exact(value_dim);
        let shares = rows.map(|row| norm(row, &|value| half_ulp(format, value)) / norm(row, &|value| value));
        Rounding { max, relative_l2, row: shares.filter(|share| share.is_finite()).fold(0.0, f64::max) }
    }
}

/// What large scores cost on a user's own inputs; in families it is part of what was measured. A score's rounding error is the
/// relative error of its weight, and the log-sum-exp is about as large as the largest score.
fn of_large_scores(case: &Case, tolerance: &Tolerance) -> f64 {
    if case.family.is_some() { 0.0 } else { tolerance.lse_relative * largest_lse(case) }
}

/// What the declared norm is multiplied by, being a mean over inputs that varies where V has few columns: declared is the mean
/// for Gaussian inputs. Of an output's square 1/e is the square of V's mean, which all queries of a head share: over all heads, a
/// sum of as many squares as V has columns. So the relative error varies, with a standard deviation of 0.26/√columns of
/// itself; there is room for almost four of those.
pub fn room_over_inputs(family: Option<Family>, shape: Shape) -> f64 {
    match family {
        Some(Family::Gaussian) => 1.0 + 1.0 / ((shape.batch * shape.kv_heads * shape.head_dim) as f64).sqrt(),
        _ => 1.0,
    }
}

/// The declared tolerance with room for how it varies over inputs, and with what large scores cost.
fn declared_relative_l2(case: &Case, tolerance: &Tolerance) -> f64 {
    let declared = declared(case, tolerance).relative_l2;
    declared * room_over_inputs(case.family, case.problem.shape()) + of_large_scores(case, tolerance)
}

/// What is declared on the case's family. A sink is in a row's sum without the rounding of weights, so that errors that weights
/// and their sum share, as where all of V is alike, do not cancel: then at least what is declared on Gaussian inputs is allowed.
fn declared(case: &Case, tolerance: &Tolerance) -> ErrorLimits {
    let of = |family| tolerance.of(family, case.problem.shape().key_len);
    let mut limits = *of(case.family);
    if case.problem.has_sinks() {
        let gaussian = of(Some(Family::Gaussian));
        limits.relative_l2 = limits.relative_l2.max(gaussian.relative_l2);
        limits.worst_row = limits.worst_row.zip(gaussian.worst_row).map(|(family, gaussian)| family.max(gaussian));
        limits.max_abs = limits.max_abs.max(gaussian.max_abs);
    }
    limits
}

fn largest_value(case: &Case) -> f64 {
    case.dequantized.values.iter().fold(0.0, |most, value| most.max(value.abs()))
}

fn largest_lse(case: &Case) -> f64 {
    case.dequantized.lse.iter().filter(|lse| lse.is_finite()).fold(0.0, |most, lse| most.max(lse.abs()))
}
