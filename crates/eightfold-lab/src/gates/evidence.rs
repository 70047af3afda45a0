//! What can be seen in an output.

use super::case::Case;
use eightfold::{Output, Shape, Values};
use rayon::prelude::*;
use std::borrow::Cow;

/// An output in f32, widened once for all that is looked for in it.
pub(super) struct Seen<'a> {
    values: Cow<'a, [f32]>,
    lse: Option<&'a [f32]>,
}

impl<'a> Seen<'a> {
    pub fn of(output: &'a Output) -> Self {
        let values = match &output.values {
            Values::F32(values) => Cow::Borrowed(&values[..]),
            narrower => Cow::Owned(narrower.to_f32()),
        };
        Seen { values, lse: output.lse.as_deref() }
    }

    fn lse(&self) -> &[f32] {
        self.lse.unwrap_or_default()
    }
}

/// What the buffer holds before a run: NaN, which spreads, and then a finite value, which tells an element
/// that was left out from one that was computed as NaN. Exact in f32, f16 and bf16, and no weighted mean
/// of ordinary values.
pub(super) const POISONS: [f32; 2] = [f32::NAN, FINITE_POISON];
const FINITE_POISON: f32 = -49152.0;

/// Whether the output is still of the problem's size and number format: a subject may replace it.
pub(super) fn fits(case: &Case, output: &Output) -> bool {
    let room = Output::zeros(&case.problem);
    std::mem::discriminant(&output.values) == std::mem::discriminant(&room.values)
        && output.values.len() == room.values.len()
        && output.lse.as_ref().map(Vec::len) == room.lse.as_ref().map(Vec::len)
}

/// Where channel 0 of a row of `[B,Hq,Sq]` lies in the output.
fn row_offset(case: &Case, row: usize) -> usize {
    let Shape { query_heads, query_len, .. } = case.problem.shape();
    let strides = case.problem.output_layout().strides(case.problem.output_dims());
    let head = row / query_len;
    strides.row_offset(head / query_heads, head % query_heads, row % query_len)
}

/// What a sink may lose on its way to the log-sum-exp of a row without keys, relative to it or to 1: a few roundings of f32.
const SINK_ROUNDING: f32 = 1e-6;

/// The output's values in the rows that the references hold, in the same order.
pub(super) fn compared_values(case: &Case, output: &Seen) -> Vec<f64> {
    let value_dim = case.problem.value_dims().head_dim;
    let rows = case.rows.iter().map(|&row| row_offset(case, row));
    rows.flat_map(|offset| &output.values[offset..offset + value_dim]).copied().map(f64::from).collect()
}

/// Elements that still hold the finite poison.
pub(super) fn unwritten(case: &Case, output: &Seen) -> usize {
    // An output of a user's may really be the poison's value: then every element near it is.
    let near = |value: &f64| (value - f64::from(FINITE_POISON)).abs() < 1.0;
    if case.dequantized.values.iter().any(near) {
        return 0;
    }
    output.values.par_iter().chain(output.lse()).filter(|value| **value == FINITE_POISON).count()
}

/// NaN and infinite elements, but for the log-sum-exp of rows without keys and sink.
pub(super) fn non_finite(case: &Case, output: &Seen) -> usize {
    let query_len = case.problem.shape().query_len;
    let lse = output.lse().iter().enumerate().filter(|(row, lse)| {
        let sees_nothing = !case.problem.has_sinks() && case.problem.visible(row % query_len).is_empty();
        let right = lse.is_finite() || (sees_nothing && **lse == f32::NEG_INFINITY);
        !right
    });
    output.values.par_iter().filter(|value| !value.is_finite()).count() + lse.count()
}

/// Elements of rows without keys that are not zero, and log-sum-exps of such rows that are not their sink, or −∞ where they have
/// none.
pub(super) fn empty_rows_not_zero(case: &Case, output: &Seen) -> usize {
    let Shape { query_heads, query_len, .. } = case.problem.shape();
    let value_dim = case.problem.value_dims().head_dim;
    let values = &output.values;
    let rows = values.len() / value_dim;
    let empty = (0..rows).filter(|row| case.problem.visible(row % query_len).is_empty());
    empty
        .map(|row| {
            let offset = row_offset(case, row);
            let nonzero = values[offset..offset + value_dim].iter().filter(|value| **value != 0.0).count();
            let sink = case.q.sinks().map(|sinks| sinks[row / query_len % query_heads]);
            let lse_wrong = output.lse.is_some_and(|lse| match sink {
                Some(sink) => {
                    let error = (lse[row] - sink).abs();
                    error.is_nan() || error > SINK_ROUNDING * sink.abs().max(1.0)
                }
                None => lse[row] != f32::NEG_INFINITY,
            });
            nonzero + usize::from(lse_wrong)
        })
        .sum()
}

/// The largest error over rows that see a key; values that are not finite are another check's.
pub(super) fn lse_max_abs(case: &Case, lse: &[f32]) -> f64 {
    let pairs = case.rows.iter().map(|&row| f64::from(lse[row])).zip(&case.dequantized.lse);
    pairs
        .filter(|(lse, reference)| lse.is_finite() && reference.is_finite())
        .fold(0.0, |most, (lse, reference)| most.max((lse - reference).abs()))
}
