//! The values to quantise, seen as runs that are contiguous in memory.

use crate::error::{Error, Result};
use crate::fp8::Element;
use crate::tensor::{Dims, Layout, Strides};
use std::ops::Range;

/// The direction in which neighbours in memory follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    /// Channel after channel of one row.
    Channels,
    /// Row after row of one channel.
    Rows,
}

impl Direction {
    pub(super) fn of(layout: Layout) -> Self {
        if layout.is_transposed() { Direction::Rows } else { Direction::Channels }
    }
}

/// One head of one sequence.
#[derive(Debug, Clone, Copy)]
pub(super) struct Head {
    pub(super) batch: usize,
    pub(super) head: usize,
}

impl Head {
    /// The head at this place in `[batch, head]` order.
    pub(super) fn at(index: usize, dims: Dims) -> Self {
        Head { batch: index / dims.heads, head: index % dims.heads }
    }

    /// Its place in `[batch, head]` order.
    pub(super) fn index(self, dims: Dims) -> usize {
        self.batch * dims.heads + self.head
    }
}

/// Values with their dimensions and layout, of matching length.
pub(super) struct Source<'a, T> {
    values: &'a [T],
    strides: Strides,
    pub(super) dims: Dims,
    pub(super) direction: Direction,
}

impl<'a, T: Element> Source<'a, T> {
    pub(super) fn new(values: &'a [T], dims: Dims, layout: Layout) -> Result<Self> {
        let count = dims.checked_count()?;
        let Dims { batch, heads, len, head_dim } = dims;
        let sizes = [("batch", batch), ("heads", heads), ("len", len), ("head_dim", head_dim)];
        if let Some((name, _)) = sizes.iter().find(|(_, size)| *size == 0) {
            return Err(Error::invalid("dims", format!("{dims} has zero {name}"), "give positive sizes"));
        }
        if values.len() != count {
            return Err(Error::invalid(
                "values",
                format!("has {} elements, but dims {dims} hold {count}", values.len()),
                "pass one value per element",
            ));
        }
        let direction = Direction::of(layout);
        Ok(Source { values, strides: layout.strides(dims), dims, direction })
    }

    /// Channels of one row; only where memory runs along the channels.
    pub(super) fn row(&self, at: Head, row: usize, channels: &Range<usize>) -> &'a [T] {
        let offset = self.strides.row_offset(at.batch, at.head, row);
        &self.values[offset..][channels.clone()]
    }

    /// Rows of one channel; only where memory runs along the rows.
    pub(super) fn channel(&self, at: Head, channel: usize, rows: &Range<usize>) -> &'a [T] {
        let offset = self.strides.row_offset(at.batch, at.head, 0) + channel * self.strides.channel;
        &self.values[offset..][rows.clone()]
    }

    /// The error about the first value, in `[batch, head, row, channel]` order, that is not finite,
    /// or not any more when its channel's mean is subtracted.
    pub(super) fn non_finite_error(&self, means: Option<&[f32]>) -> Option<Error> {
        let Dims { head_dim, len, .. } = self.dims;
        (0..self.dims.count()).find_map(|index| {
            let (channel, row) = (index % head_dim, index / head_dim % len);
            let at @ Head { batch, head } = Head::at(index / head_dim / len, self.dims);
            let offset = self.strides.row_offset(batch, head, row);
            let value = self.values[offset + channel * self.strides.channel].to_f32();
            let mean = means.map_or(0.0, |means| means[at.index(self.dims) * head_dim + channel]);
            let place = || format!("{value} at batch {batch}, head {head}, row {row}, channel {channel}");
            if !value.is_finite() {
                Some(Error::invalid("values", place(), "quantise finite values only"))
            } else if !(value - mean).is_finite() {
                Some(Error::invalid(
                    "values",
                    format!("{} minus its channel's mean {mean} overflows f32", place()),
                    "scale the values down, or quantise without centring",
                ))
            } else {
                None
            }
        })
    }
}
