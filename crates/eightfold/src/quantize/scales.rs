//! The largest magnitude of everything that shares a scale, and the scale that it asks for.

use super::centre::{shift_of_channel, shift_of_row};
use super::run::largest_magnitude;
use super::source::{Direction, Head, Source};
use crate::error::Result;
use crate::fp8::Element;
use crate::tensor::{Dims, Granularity, Scales};
use rayon::prelude::*;
use std::ops::Range;

/// Rows that are scanned at a time where a scale covers a whole head or more: enough to keep a
/// thread busy, few enough that one long head keeps all threads busy.
const ROWS_PER_TASK: usize = 256;

/// The scales of the values, after the means are subtracted.
pub(super) fn find<T: Element>(
    source: &Source<T>,
    means: Option<&[f32]>,
    largest_code: f32,
    granularity: Granularity,
) -> Result<Scales> {
    let dims = source.dims;
    let rows = match granularity {
        Granularity::Block { rows } => rows.min(dims.len),
        Granularity::Tensor | Granularity::Head => ROWS_PER_TASK,
    };
    let blocks = dims.len.div_ceil(rows);
    let largest: Vec<f32> = (0..dims.batch * dims.heads * blocks)
        .into_par_iter()
        .map(|index| {
            let first = index % blocks * rows;
            let at = Head::at(index / blocks, dims);
            largest_of_rows(source, means, at, first..dims.len.min(first + rows))
        })
        .collect();
    if largest.iter().any(|largest| !largest.is_finite()) {
        return Err(source.non_finite_error(means).expect("some value is not finite"));
    }
    let scale_of = |largest: &[f32]| scale_of(largest_code, largest.iter().copied().fold(0.0, f32::max));
    let values = match granularity {
        Granularity::Tensor => vec![scale_of(&largest)],
        Granularity::Head => largest.chunks(blocks).map(scale_of).collect(),
        Granularity::Block { .. } => largest.chunks(1).map(scale_of).collect(),
    };
    Scales::new(granularity, values)
}

/// The scale that maps the largest magnitude to the largest code.
///
/// It is never subnormal: that would cost precision, and make its reciprocal infinite.
pub(crate) fn scale_of(largest_code: f32, largest: f32) -> f32 {
    if largest == 0.0 { 1.0 } else { (largest / largest_code).max(f32::MIN_POSITIVE) }
}

fn largest_of_rows<T: Element>(source: &Source<T>, means: Option<&[f32]>, at: Head, rows: Range<usize>) -> f32 {
    let dims @ Dims { head_dim, .. } = source.dims;
    // NaN is above all numbers in this order, so it is not lost.
    let larger = |a: f32, b: f32| if b.total_cmp(&a).is_gt() { b } else { a };
    match source.direction {
        Direction::Channels => {
            let shift = shift_of_row(means, dims, at);
            rows.map(|row| largest_magnitude(source.row(at, row, &(0..head_dim)), shift)).fold(0.0, larger)
        }
        Direction::Rows => (0..head_dim)
            .map(|channel| {
                let shift = shift_of_channel(means, dims, at, channel);
                largest_magnitude(source.channel(at, channel, &rows), shift)
            })
            .fold(0.0, larger),
    }
}
