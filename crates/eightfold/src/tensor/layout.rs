//! Sizes, and where elements lie in memory.

use crate::error::{Error, Result};
use std::fmt;

/// The logical dimensions of Q, K, V or the output, whatever their order in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Dims {
    /// Independent sequences.
    pub batch: usize,
    /// Heads per sequence.
    pub heads: usize,
    /// Rows (tokens) per head.
    pub len: usize,
    /// Channels per row.
    pub head_dim: usize,
}

impl Dims {
    /// So many sequences of so many heads, each of `len` rows of `head_dim` channels.
    pub const fn new(batch: usize, heads: usize, len: usize, head_dim: usize) -> Dims {
        Dims { batch, heads, len, head_dim }
    }

    /// The number of elements.
    pub fn count(&self) -> usize {
        self.batch * self.heads * self.len * self.head_dim
    }

    /// The number of elements, or an error where it does not fit the address space.
    pub(crate) fn checked_count(&self) -> Result<usize> {
        [self.heads, self.len, self.head_dim]
            .iter()
            .try_fold(self.batch, |count, &size| count.checked_mul(size))
            .filter(|&count| count <= isize::MAX as usize / 8)
            .ok_or_else(|| {
                Error::invalid("shape", format!("{self} has more elements than can be addressed"), "make it smaller")
            })
    }
}

/// `[B, H, S, D]`.
impl fmt::Display for Dims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}, {}, {}, {}]", self.batch, self.heads, self.len, self.head_dim)
    }
}

/// The order of the dimensions in memory, outermost first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Layout {
    /// `[batch, head, row, channel]`.
    Bhsd,
    /// `[batch, row, head, channel]`.
    Bshd,
    /// `[batch, head, channel, row]`: V transposed, as the tensor cores want it.
    Bhds,
    /// V transposed and packed for the tensor cores, in device memory alone: what this library's quantisers for a device make,
    /// and what [`DeviceTensor::upload`](crate::cuda::tensor::DeviceTensor::upload) can. The order within is theirs to change.
    Packed,
}

impl Layout {
    /// Whether neighbours in memory are rows of one channel.
    pub fn is_transposed(self) -> bool {
        matches!(self, Layout::Bhds | Layout::Packed)
    }

    /// The distance between neighbours along each dimension.
    pub fn strides(self, dims: Dims) -> Strides {
        let Dims { heads, len, head_dim, .. } = dims;
        let batch = heads * len * head_dim;
        match self {
            Layout::Bhsd => Strides { batch, head: len * head_dim, row: head_dim, channel: 1 },
            Layout::Bshd => Strides { batch, head: head_dim, row: heads * head_dim, channel: 1 },
            Layout::Bhds | Layout::Packed => Strides { batch, head: len * head_dim, row: 1, channel: len },
        }
    }
}

impl Layout {
    /// Host tensors lie in rows or transposed.
    pub(crate) fn check_on_host(self) -> Result<()> {
        if self == Layout::Packed {
            return Err(Error::invalid(
                "layout",
                "packed is for tensors in device memory",
                "lay it out as bhds; DeviceTensor::upload packs it",
            ));
        }
        Ok(())
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Layout::Bhsd => "bhsd",
            Layout::Bshd => "bshd",
            Layout::Bhds => "bhds",
            Layout::Packed => "packed",
        })
    }
}

/// Distances, in elements, between neighbours along each dimension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Strides {
    /// From one sequence to the next.
    pub batch: usize,
    /// From one head to the next.
    pub head: usize,
    /// From one row to the next.
    pub row: usize,
    /// From one channel to the next.
    pub channel: usize,
}

impl Strides {
    /// Distances from one sequence, head, row and channel to the next.
    pub const fn new(batch: usize, head: usize, row: usize, channel: usize) -> Strides {
        Strides { batch, head, row, channel }
    }

    /// Where channel 0 of a row lies.
    pub fn row_offset(&self, batch: usize, head: usize, row: usize) -> usize {
        batch * self.batch + head * self.head + row * self.row
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIMS: Dims = Dims { batch: 2, heads: 3, len: 5, head_dim: 8 };

    #[track_caller]
    fn assert_refused<T: std::fmt::Debug>(result: Result<T>, expected: &str) {
        let error = result.unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }

    #[test]
    fn each_layout_gives_every_element_its_own_place() {
        for layout in [Layout::Bhsd, Layout::Bshd, Layout::Bhds] {
            let strides = layout.strides(DIMS);
            let mut taken = vec![false; DIMS.count()];
            for batch in 0..DIMS.batch {
                for head in 0..DIMS.heads {
                    for row in 0..DIMS.len {
                        for channel in 0..DIMS.head_dim {
                            let offset = strides.row_offset(batch, head, row) + channel * strides.channel;
                            assert!(!std::mem::replace(&mut taken[offset], true), "{layout}");
                        }
                    }
                }
            }
        }
        assert_eq!(Layout::Bhsd.strides(DIMS).row, 8);
        assert_eq!(Layout::Bshd.strides(DIMS).row, 24);
        assert_eq!(Layout::Bhds.strides(DIMS).row, 1);
    }

    #[test]
    fn a_count_that_overflows_is_refused() {
        assert_eq!(DIMS.checked_count(), Ok(240));
        assert_refused(Dims { len: usize::MAX, ..DIMS }.checked_count(), "shape: [2, 3, ");
        assert_refused(Dims { len: usize::MAX / 240, ..DIMS }.checked_count(), "shape: [2, 3, ");
    }
}
