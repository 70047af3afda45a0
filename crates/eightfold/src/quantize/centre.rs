//! The mean of every channel over the rows of its head.

use super::run::{CHUNK, Shift};
use super::source::{Direction, Head, Source};
use crate::error::Result;
use crate::fp8::Element;
use crate::tensor::Dims;
use rayon::prelude::*;
use std::ops::Range;

/// Rows that are summed one after the other before the sums are, as the device also does.
pub(crate) const ROWS_PER_SUM: usize = 64;

/// The means in `[batch, head, channel]` order: summed in f64, rounded once to the f32 that is
/// subtracted and kept.
pub(super) fn means<T: Element>(source: &Source<T>) -> Result<Vec<f32>> {
    let Dims { batch, heads, len, head_dim } = source.dims;
    let mut means = vec![0.0; batch * heads * head_dim];
    means.par_chunks_mut(head_dim).enumerate().for_each(|(index, means)| {
        for (mean, sum) in means.iter_mut().zip(sums(source, Head::at(index, source.dims))) {
            *mean = (sum / len as f64) as f32;
        }
    });
    // f32 values cannot overflow a sum in f64: a mean is finite if and only if every value is.
    match means.iter().all(|mean| mean.is_finite()) {
        true => Ok(means),
        false => Err(source.non_finite_error(None).expect("some value is not finite")),
    }
}

fn sums<T: Element>(source: &Source<T>, at: Head) -> Vec<f64> {
    let Dims { len, head_dim, .. } = source.dims;
    let mut sums = vec![0.0; head_dim];
    let mut sums_of_rows = vec![0.0; head_dim];
    for first in (0..len).step_by(ROWS_PER_SUM) {
        sums_of_rows.fill(0.0);
        add_rows(source, at, first..len.min(first + ROWS_PER_SUM), &mut sums_of_rows);
        for (sum, of_rows) in sums.iter_mut().zip(&sums_of_rows) {
            *sum += of_rows;
        }
    }
    sums
}

fn add_rows<T: Element>(source: &Source<T>, at: Head, rows: Range<usize>, sums: &mut [f64]) {
    let mut buffer = [0.0; CHUNK];
    match source.direction {
        Direction::Channels => {
            for row in rows {
                let values = source.row(at, row, &(0..sums.len()));
                for (sums, values) in sums.chunks_mut(CHUNK).zip(values.chunks(CHUNK)) {
                    for (sum, value) in sums.iter_mut().zip(T::widen(values, &mut buffer)) {
                        *sum += f64::from(*value);
                    }
                }
            }
        }
        Direction::Rows => {
            for (channel, sum) in sums.iter_mut().enumerate() {
                for values in source.channel(at, channel, &rows).chunks(CHUNK) {
                    for value in T::widen(values, &mut buffer) {
                        *sum += f64::from(*value);
                    }
                }
            }
        }
    }
}

/// What is subtracted from a run over the channels of a row.
pub(super) fn shift_of_row(means: Option<&[f32]>, dims: Dims, at: Head) -> Shift<'_> {
    match means {
        Some(means) => Shift::Each(&means[at.index(dims) * dims.head_dim..][..dims.head_dim]),
        None => Shift::None,
    }
}

/// What is subtracted from a run over the rows of a channel.
pub(super) fn shift_of_channel(means: Option<&[f32]>, dims: Dims, at: Head, channel: usize) -> Shift<'static> {
    match means {
        Some(means) => Shift::Constant(means[at.index(dims) * dims.head_dim + channel]),
        None => Shift::None,
    }
}
