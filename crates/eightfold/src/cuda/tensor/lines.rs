//! Where the lines of a tensor's codes lie, and the way from a host tensor to them.

use super::padded_bytes;
use crate::cuda::driver::ALIGNMENT_BYTES;
use crate::error::{Error, Result};
use crate::tensor::{Dims, Fp8Tensor, Layout, Strides};
use std::borrow::Cow;

/// The side of the squares in which codes are transposed: a few cache lines in both directions.
const TILE: usize = 64;

/// The lines of a tensor, with distances in bytes: a line is a row of channels, or where the layout is transposed a row
/// of keys of one channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lines {
    dims: Dims,
    layout: Layout,
    /// From one sequence to the next.
    pub(crate) batch_stride: usize,
    /// From one head to the next.
    pub(crate) head_stride: usize,
    /// From one line to the next.
    pub(crate) line_stride: usize,
}

impl Lines {
    /// Lines that follow each other, each padded to a multiple of 16 bytes.
    pub(crate) fn padded(dims: Dims, layout: Layout) -> Result<Lines> {
        // The padding may multiply the bytes by 16.
        Dims { head_dim: padded_bytes(dims.head_dim), len: padded_bytes(dims.len), ..dims }.checked_count()?;
        let Dims { heads, len, head_dim, .. } = dims;
        let line = padded_bytes(if layout.is_transposed() { len } else { head_dim });
        let (batch_stride, head_stride, line_stride) = match layout {
            Layout::Bhsd => (heads * len * line, len * line, line),
            Layout::Bshd => (heads * len * line, line, heads * line),
            Layout::Bhds | Layout::Packed => (heads * head_dim * line, head_dim * line, line),
        };
        Ok(Lines { dims, layout, batch_stride, head_stride, line_stride })
    }

    /// Lines at a caller's distances.
    pub(crate) fn strided(dims: Dims, layout: Layout, strides: Strides) -> Result<Lines> {
        let (line_stride, inner) = match layout {
            Layout::Bhsd | Layout::Bshd => (strides.row, strides.channel),
            Layout::Bhds | Layout::Packed => (strides.channel, strides.row),
        };
        let lines = Lines { dims, layout, batch_stride: strides.batch, head_stride: strides.head, line_stride };
        if inner != 1 {
            return Err(Error::invalid(
                "strides",
                format!("neighbours in a line of layout {layout} are {inner} codes apart"),
                "make the innermost dimension contiguous",
            ));
        }
        for (name, stride) in [("batch", lines.batch_stride), ("head", lines.head_stride), ("line", lines.line_stride)]
        {
            if !stride.is_multiple_of(ALIGNMENT_BYTES) {
                return Err(Error::invalid(
                    "strides",
                    format!("the {name} stride of {stride} bytes is not a multiple of {ALIGNMENT_BYTES}"),
                    "pad each line to a multiple of 16 bytes",
                ));
            }
        }
        if line_stride < lines.line_bytes() && lines.count() > 1 {
            return Err(Error::invalid(
                "strides",
                format!("lines of {} codes are {line_stride} bytes apart and overlap", lines.line_bytes()),
                "pad each line to a multiple of 16 bytes",
            ));
        }
        lines.checked_extent_bytes().ok_or_else(|| {
            Error::invalid("strides", "the last code lies beyond what can be addressed", "make them smaller")
        })?;
        Ok(lines)
    }

    /// The order of the dimensions.
    pub(crate) fn layout(&self) -> Layout {
        self.layout
    }

    /// Codes of a line, without padding.
    pub(crate) fn line_bytes(&self) -> usize {
        if self.layout.is_transposed() { self.dims.len } else { self.dims.head_dim }
    }

    /// Whether a line is followed by bytes that belong to no element.
    pub(crate) fn has_padding(&self) -> bool {
        padded_bytes(self.line_bytes()) != self.line_bytes()
    }

    /// From the first code to the end of the last line, padding included.
    pub(crate) fn extent_bytes(&self) -> usize {
        self.checked_extent_bytes().unwrap_or(usize::MAX)
    }

    fn checked_extent_bytes(&self) -> Option<usize> {
        let Dims { batch, heads, .. } = self.dims;
        let mut extent = padded_bytes(self.line_bytes());
        for (count, stride) in [(batch, self.batch_stride), (heads, self.head_stride), (self.count(), self.line_stride)]
        {
            extent = extent.checked_add(count.checked_sub(1)?.checked_mul(stride)?)?;
        }
        (extent <= isize::MAX as usize).then_some(extent)
    }

    /// Lines of a head.
    fn count(&self) -> usize {
        if self.layout.is_transposed() { self.dims.head_dim } else { self.dims.len }
    }

    /// Which element of a line is at this position of it. Packed lines hold rows where the hopper kernel's weights come out of one
    /// product and go into the next: position 4q + 2h + e of every 16 holds row 8h + 2q + e (q below 4, h and e below 2).
    fn element_at(&self, position: usize) -> usize {
        match self.layout {
            Layout::Packed => {
                let [q, h, e] = [position >> 2 & 3, position >> 1 & 1, position & 1];
                (position & !15) + 8 * h + 2 * q + e
            }
            Layout::Bhsd | Layout::Bshd | Layout::Bhds => position,
        }
    }

    fn line_offset(&self, batch: usize, head: usize, line: usize) -> usize {
        batch * self.batch_stride + head * self.head_stride + line * self.line_stride
    }

    /// A tensor's codes in these lines, padded with zeros; the codes themselves where they lie so already.
    pub(crate) fn lay_out<'a>(&self, tensor: &'a Fp8Tensor) -> Cow<'a, [u8]> {
        if tensor.layout() == self.layout && !self.has_padding() {
            return Cow::Borrowed(tensor.codes());
        }
        let strides = tensor.strides();
        let (along, across) = match self.layout {
            Layout::Bhsd | Layout::Bshd => (strides.channel, strides.row),
            Layout::Bhds | Layout::Packed => (strides.row, strides.channel),
        };
        let mut laid = vec![0; self.extent_bytes()];
        for batch in 0..self.dims.batch {
            for head in 0..self.dims.heads {
                let codes = &tensor.codes()[strides.row_offset(batch, head, 0)..];
                for first_line in (0..self.count()).step_by(TILE) {
                    for first in (0..self.line_bytes()).step_by(TILE) {
                        let end = padded_bytes(self.line_bytes()).min(first + TILE);
                        for line in first_line..self.count().min(first_line + TILE) {
                            let offset = self.line_offset(batch, head, line);
                            let laid = &mut laid[offset + first..offset + end];
                            for (index, laid) in laid.iter_mut().enumerate() {
                                let element = self.element_at(first + index);
                                if element < self.line_bytes() {
                                    *laid = codes[line * across + element * along];
                                }
                            }
                        }
                    }
                }
            }
        }
        Cow::Owned(laid)
    }

    /// The codes of these lines in the layout's own order, without padding and with nothing packed.
    pub(crate) fn gather(&self, laid: &[u8]) -> Vec<u8> {
        let strides = self.layout.strides(self.dims);
        let line = if self.layout.is_transposed() { strides.channel } else { strides.row };
        let mut codes = vec![0; self.dims.count()];
        for batch in 0..self.dims.batch {
            for head in 0..self.dims.heads {
                for index in 0..self.count() {
                    let from = self.line_offset(batch, head, index);
                    let to = strides.row_offset(batch, head, 0) + index * line;
                    let codes = &mut codes[to..to + self.line_bytes()];
                    if self.layout == Layout::Packed {
                        for (position, code) in laid[from..from + padded_bytes(codes.len())].iter().enumerate() {
                            if let Some(place) = codes.get_mut(self.element_at(position)) {
                                *place = *code;
                            }
                        }
                    } else {
                        codes.copy_from_slice(&laid[from..from + codes.len()]);
                    }
                }
            }
        }
        codes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::{Fp8Format, Scales};

    const LAYOUTS: [Layout; 3] = [Layout::Bhsd, Layout::Bshd, Layout::Bhds];
    const DIMS: Dims = Dims { batch: 2, heads: 3, len: 70, head_dim: 24 };

    fn tensor(layout: Layout) -> Fp8Tensor<'static> {
        let codes: Vec<u8> = (0..DIMS.count()).map(|index| ((index * 37 + index / 120) % 120) as u8).collect();
        Fp8Tensor::new(DIMS, layout, Fp8Format::E4m3, codes, Scales::per_tensor(1.0).unwrap()).unwrap()
    }

    #[test]
    fn every_code_finds_its_place_and_the_rest_is_zero() {
        for from in LAYOUTS {
            let tensor = tensor(from);
            let values = tensor.dequantize();
            for to in [LAYOUTS.as_slice(), &[Layout::Packed]].concat() {
                let lines = Lines::padded(DIMS, to).unwrap();
                let laid = lines.lay_out(&tensor);
                assert_eq!(laid.len(), lines.extent_bytes(), "{from} to {to}");
                let codes = lines.gather(&laid);
                let plain = if to == Layout::Packed { Layout::Bhds } else { to };
                let turned = Fp8Tensor::new(DIMS, plain, Fp8Format::E4m3, codes, tensor.scales().clone()).unwrap();
                assert_eq!(turned.dequantize(), values, "{from} to {to}");
                let sum = |codes: &[u8]| codes.iter().map(|code| u64::from(*code)).sum::<u64>();
                assert_eq!(sum(&laid), sum(tensor.codes()), "the padding of {from} to {to} is not zero");
            }
        }
    }

    #[test]
    fn rows_are_packed_within_every_16() {
        let dims = Dims { batch: 1, heads: 1, len: 18, head_dim: 1 };
        let codes: Vec<u8> = (1..=18).collect();
        let tensor =
            Fp8Tensor::new(dims, Layout::Bhds, Fp8Format::E4m3, codes, Scales::per_tensor(1.0).unwrap()).unwrap();
        let laid = Lines::padded(dims, Layout::Packed).unwrap().lay_out(&tensor).into_owned();
        assert_eq!(laid[..16], [1, 2, 9, 10, 3, 4, 11, 12, 5, 6, 13, 14, 7, 8, 15, 16]);
        assert_eq!(laid[16..], [17, 18, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn lines_are_padded_to_16_bytes() {
        let lines = Lines::padded(DIMS, Layout::Bhds).unwrap();
        assert_eq!((lines.line_stride, lines.head_stride, lines.batch_stride), (80, 80 * 24, 80 * 24 * 3));
        assert!(lines.has_padding());
        let lines = Lines::padded(DIMS, Layout::Bshd).unwrap();
        assert_eq!((lines.line_stride, lines.head_stride, lines.batch_stride), (96, 32, 96 * 70));
    }

    #[test]
    fn codes_that_lie_right_are_not_copied() {
        let dims = Dims { head_dim: 32, ..DIMS };
        let tensor = Fp8Tensor::new(
            dims,
            Layout::Bhsd,
            Fp8Format::E4m3,
            vec![0; dims.count()],
            Scales::per_tensor(1.0).unwrap(),
        )
        .unwrap();
        assert!(matches!(Lines::padded(dims, Layout::Bhsd).unwrap().lay_out(&tensor), Cow::Borrowed(_)));
    }

    #[test]
    fn strides_that_a_kernel_cannot_follow_are_refused() {
        let dims = Dims { len: 64, head_dim: 32, ..DIMS };
        let good = Layout::Bhsd.strides(dims);
        assert_eq!(Lines::strided(dims, Layout::Bhsd, good), Lines::padded(dims, Layout::Bhsd));
        let refused = |layout, strides| Lines::strided(dims, layout, strides).unwrap_err().to_string();
        assert!(refused(Layout::Bhsd, Strides { channel: 2, ..good }).contains("contiguous"));
        assert!(refused(Layout::Bhds, good).contains("contiguous"));
        assert!(refused(Layout::Bhsd, Strides { row: 40, ..good }).contains("the line stride of 40 bytes"));
        assert!(refused(Layout::Bhsd, Strides { head: 8, ..good }).contains("the head stride of 8 bytes"));
        assert!(refused(Layout::Bhsd, Strides { row: 16, ..good }).contains("overlap"));
        assert!(refused(Layout::Bhsd, Strides { batch: usize::MAX / 16 * 16, ..good }).contains("addressed"));
        let repeated = Strides { batch: 0, head: 0, ..good };
        assert_eq!(Lines::strided(dims, Layout::Bhsd, repeated).unwrap().extent_bytes(), 64 * 32);
    }
}
