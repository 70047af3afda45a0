//! Rows of one head of an FP8 tensor, as codes that the kernels can read.

use crate::fp8;
use crate::problem::MAX_HEAD_DIM;
use crate::tensor::{Fp8Format, Fp8Tensor, Granularity, Strides};
use std::ops::Range;

/// Rows of codes, channels side by side, with what each row is to be multiplied by.
#[derive(Clone, Copy)]
pub(super) struct Codes<'a> {
    /// The codes: row r starts at r · `stride`.
    pub bytes: &'a [u8],
    pub stride: usize,
    pub rows: usize,
    pub format: Fp8Format,
    /// A factor for every row; empty where all are 1.
    pub factors: &'a [f32],
}

/// Room for codes that do not lie in memory as the kernels want them.
#[derive(Default)]
pub(super) struct Room {
    bytes: Vec<u8>,
}

impl Room {
    /// `rows` rows of `width` zeros; a zero code is a zero in either format.
    pub(super) fn clear(&mut self, rows: usize, width: usize) {
        self.bytes.clear();
        self.bytes.resize(rows * width, 0);
    }

    /// Copies the codes of one row to its place.
    pub(super) fn put(&mut self, row: usize, width: usize, codes: &[u8]) {
        self.bytes[row * width..][..codes.len()].copy_from_slice(codes);
    }

    /// The bytes that the room holds on to.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.bytes.capacity()
    }

    /// What was put here, as rows of `width` codes.
    pub(super) fn codes(&self, width: usize, format: Fp8Format) -> Codes<'_> {
        let rows = self.bytes.len() / width;
        Codes { bytes: &self.bytes, stride: width, rows, format, factors: &[] }
    }
}

/// One head of Q, K or V.
#[derive(Clone, Copy)]
pub(super) struct Head<'a> {
    tensor: &'a Fp8Tensor<'a>,
    batch: usize,
    head: usize,
    strides: Strides,
}

impl<'a> Head<'a> {
    pub(super) fn new(tensor: &'a Fp8Tensor<'a>, batch: usize, head: usize) -> Self {
        Head { tensor, batch, head, strides: tensor.strides() }
    }

    /// The query heads that share one head of K and V.
    pub(super) fn group(
        tensor: &'a Fp8Tensor<'a>,
        batch: usize,
        kv_head: usize,
        size: usize,
    ) -> impl ExactSizeIterator<Item = Self> + Clone {
        (kv_head * size..(kv_head + 1) * size).map(move |head| Head::new(tensor, batch, head))
    }

    /// Whether rows may have different scales.
    pub(super) fn scales_vary(&self) -> bool {
        matches!(self.tensor.scales().granularity(), Granularity::Block { .. })
    }

    /// The scale of one row.
    pub(super) fn row_scale(&self, row: usize) -> f32 {
        self.tensor.scales().of_row(self.tensor.dims(), self.batch, self.head, row)
    }

    /// The largest scale of the head: the unit of relative scales.
    pub(super) fn largest_scale(&self) -> f32 {
        match self.tensor.scales().granularity() {
            Granularity::Block { rows } => {
                let starts = (0..self.tensor.dims().len).step_by(rows);
                starts.map(|row| self.row_scale(row)).fold(0.0, f32::max)
            }
            Granularity::Tensor | Granularity::Head => self.row_scale(0),
        }
    }

    /// The mean of every channel, if the tensor was centred.
    pub(super) fn means(&self) -> Option<&'a [f32]> {
        self.tensor.head_means(self.batch, self.head)
    }

    /// The codes of one row, whose channels are neighbours.
    pub(super) fn row(&self, row: usize) -> &'a [u8] {
        let start = self.strides.row_offset(self.batch, self.head, row);
        &self.tensor.codes()[start..start + self.tensor.dims().head_dim]
    }

    /// Rows where they lie, whose channels are neighbours.
    pub(super) fn rows(&self, rows: Range<usize>) -> Codes<'a> {
        let start = self.strides.row_offset(self.batch, self.head, rows.start);
        Codes {
            bytes: &self.tensor.codes()[start..],
            stride: self.strides.row,
            rows: rows.len(),
            format: self.tensor.format(),
            factors: &[],
        }
    }

    /// The codes of one channel, rows side by side: V transposed.
    fn channel(&self, channel: usize, rows: &Range<usize>) -> &'a [u8] {
        let start = self.strides.row_offset(self.batch, self.head, 0) + channel * self.strides.channel;
        &self.tensor.codes()[start + rows.start..start + rows.end]
    }

    /// The scales of rows in units of `largest`, then zeros up to `count`; nothing where all are 1.
    pub(super) fn relative_scales(&self, rows: Range<usize>, count: usize, largest: f32, scales: &mut Vec<f32>) {
        scales.clear();
        if self.scales_vary() {
            scales.extend(rows.map(|row| self.row_scale(row) / largest));
            scales.resize(count, 0.0);
        }
    }

    /// Rows without their scales, as `count` rows of `width` codes: where they lie if they are so already, else
    /// copied to `room`, with zeros where the tensor has nothing.
    pub(super) fn padded_rows<'r>(
        &self,
        rows: Range<usize>,
        count: usize,
        width: usize,
        room: &'r mut Room,
    ) -> Codes<'r>
    where
        'a: 'r,
    {
        let head_dim = self.tensor.dims().head_dim;
        if rows.len() == count && head_dim == width && self.strides.channel == 1 {
            return self.rows(rows);
        }
        room.clear(count, width);
        if self.strides.channel == 1 {
            for (index, row) in rows.enumerate() {
                room.put(index, width, self.row(row));
            }
        } else {
            for channel in 0..head_dim {
                for (index, code) in self.channel(channel, &rows).iter().enumerate() {
                    room.bytes[index * width + channel] = *code;
                }
            }
        }
        room.codes(width, self.tensor.format())
    }

    /// Raises `largest` to the largest magnitude of each channel over the rows, without their scales. Codes without
    /// their sign order as their magnitudes do, so the largest is found without decoding the others.
    pub(super) fn raise_channel_max(&self, rows: Range<usize>, largest: &mut [f32]) {
        const GROUP: usize = 64;
        let head_dim = self.tensor.dims().head_dim;
        let mut codes = [0u8; MAX_HEAD_DIM];
        let codes = &mut codes[..head_dim];
        if self.strides.channel == 1 {
            // 64 channels at a time stay in registers over all rows; shorter heads end in a shorter group.
            for (group, largest) in codes.chunks_mut(GROUP).enumerate() {
                let mut group_max = [0u8; GROUP];
                for row in rows.clone() {
                    let codes = &self.row(row)[group * GROUP..][..largest.len()];
                    // Of a whole group the compiler knows the length, and makes it a few vector instructions.
                    match codes.first_chunk::<GROUP>() {
                        Some(codes) => raise_codes(&mut group_max, codes),
                        None => raise_codes(&mut group_max, codes),
                    }
                }
                largest.copy_from_slice(&group_max[..largest.len()]);
            }
        } else {
            for (channel, largest) in codes.iter_mut().enumerate() {
                *largest = self.channel(channel, &rows).iter().fold(0, |largest, code| largest.max(code & 0x7f));
            }
        }
        let mut values = [0.0; MAX_HEAD_DIM];
        fp8::decode_f32(self.tensor.format(), codes, &mut values[..head_dim]);
        for (largest, value) in largest.iter_mut().zip(&values[..head_dim]) {
            *largest = largest.max(*value);
        }
    }
}

/// Raises each code to the other's magnitude.
#[inline(always)]
fn raise_codes(largest: &mut [u8], codes: &[u8]) {
    for (largest, code) in largest.iter_mut().zip(codes) {
        *largest = (*largest).max(code & 0x7f);
    }
}
