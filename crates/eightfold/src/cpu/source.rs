//! Rows of one head of an FP8 tensor, decoded as the kernels want them.

use super::lanes::LANES;
use crate::fp8;
use crate::tensor::{Fp8Tensor, Granularity, Strides};
use std::ops::Range;

/// One head of K, V or Q. Values are in units of `scale`, the largest scale of the head.
pub(super) struct Head<'a> {
    tensor: &'a Fp8Tensor<'a>,
    batch: usize,
    head: usize,
    strides: Strides,
    scale: f32,
}

impl<'a> Head<'a> {
    pub(super) fn new(tensor: &'a Fp8Tensor<'a>, batch: usize, head: usize) -> Self {
        let dims = tensor.dims();
        let scale = match tensor.scales().granularity() {
            Granularity::Block { rows } => (0..dims.len)
                .step_by(rows)
                .map(|row| tensor.scales().of_row(dims, batch, head, row))
                .fold(0.0, f32::max),
            Granularity::Tensor | Granularity::Head => tensor.scales().of_row(dims, batch, head, 0),
        };
        Head { tensor, batch, head, strides: tensor.strides(), scale }
    }

    /// The unit of the decoded values.
    pub(super) fn scale(&self) -> f32 {
        self.scale
    }

    /// The mean of every channel, if the tensor was centred.
    pub(super) fn means(&self) -> Option<&'a [f32]> {
        self.tensor.head_means(self.batch, self.head)
    }

    /// A row's scale in units of the head's: 1 unless scales are per block.
    pub(super) fn relative_scale(&self, row: usize) -> f32 {
        match self.tensor.scales().granularity() {
            Granularity::Block { .. } => {
                self.tensor.scales().of_row(self.tensor.dims(), self.batch, self.head, row)
                    / self.scale
            }
            Granularity::Tensor | Granularity::Head => 1.0,
        }
    }

    /// The codes of one row, if its channels are neighbours.
    fn row_codes(&self, row: usize) -> &[u8] {
        let start = self.strides.row_offset(self.batch, self.head, row);
        &self.tensor.codes()[start..start + self.tensor.dims().head_dim]
    }

    /// The codes of one channel, rows side by side: V transposed.
    fn channel_codes(&self, channel: usize, rows: &Range<usize>) -> &[u8] {
        let start =
            self.strides.row_offset(self.batch, self.head, 0) + channel * self.strides.channel;
        &self.tensor.codes()[start + rows.start..start + rows.end]
    }

    /// Decodes rows without any scale into rows of `width` channels; what lies beyond the head is zero.
    pub(super) fn decode(&self, rows: Range<usize>, width: usize, decoded: &mut [f32]) {
        let head_dim = self.tensor.dims().head_dim;
        let format = self.tensor.format();
        if self.strides.channel != 1 {
            let mut run = [0.0; LANES];
            for channel in 0..head_dim {
                for (index, codes) in self.channel_codes(channel, &rows).chunks(LANES).enumerate() {
                    fp8::decode_f32(format, codes, &mut run[..codes.len()]);
                    for (row, value) in run[..codes.len()].iter().enumerate() {
                        decoded[(index * LANES + row) * width + channel] = *value;
                    }
                }
            }
        } else if self.strides.row == width {
            let start = self.strides.row_offset(self.batch, self.head, rows.start);
            let codes = &self.tensor.codes()[start..start + rows.len() * width];
            fp8::decode_f32(format, codes, &mut decoded[..codes.len()]);
            return;
        } else {
            for (index, row) in rows.clone().enumerate() {
                fp8::decode_f32(
                    format,
                    self.row_codes(row),
                    &mut decoded[index * width..][..head_dim],
                );
            }
        }
        for row in decoded[..rows.len() * width].chunks_exact_mut(width) {
            row[head_dim..].fill(0.0);
        }
    }

    /// Decodes rows in units of the head's scale.
    pub(super) fn decode_scaled(&self, rows: Range<usize>, width: usize, decoded: &mut [f32]) {
        self.decode(rows.clone(), width, decoded);
        if let Granularity::Block { .. } = self.tensor.scales().granularity() {
            for (row, values) in rows.zip(decoded.chunks_exact_mut(width)) {
                let scale = self.relative_scale(row);
                values.iter_mut().for_each(|value| *value *= scale);
            }
        }
    }

    /// Raises `largest` to the largest magnitude of each channel over the rows, in units of the head's scale
    /// (without any scale if `scaled` is false). Codes without their sign order as their magnitudes do, so this
    /// never decodes more than one row per block of equal scales.
    pub(super) fn raise_channel_max(&self, rows: Range<usize>, scaled: bool, largest: &mut [f32]) {
        let head_dim = self.tensor.dims().head_dim;
        let block = match self.tensor.scales().granularity() {
            Granularity::Block { rows } if scaled => rows,
            _ => usize::MAX,
        };
        let mut codes = [0u8; crate::problem::MAX_HEAD_DIM];
        let mut start = rows.start;
        while start < rows.end {
            let end = rows.end.min((start / block).saturating_add(1).saturating_mul(block));
            let codes = &mut codes[..head_dim];
            codes.fill(0);
            if self.strides.channel == 1 {
                for row in start..end {
                    for (largest, code) in codes.iter_mut().zip(self.row_codes(row)) {
                        *largest = (*largest).max(code & 0x7f);
                    }
                }
            } else {
                for (channel, largest) in codes.iter_mut().enumerate() {
                    let run = self.channel_codes(channel, &(start..end));
                    *largest = run.iter().fold(0, |largest, code| largest.max(code & 0x7f));
                }
            }
            let scale = if scaled { self.relative_scale(start) } else { 1.0 };
            for (largest, &code) in largest.iter_mut().zip(codes.iter()) {
                *largest = largest.max(fp8::decode(self.tensor.format(), code) * scale);
            }
            start = end;
        }
    }
}
