//! From the source's layout to codes in another, in parallel and without a copy of the values.

use super::centre::{shift_of_channel, shift_of_row};
use super::run;
use super::source::{Direction, Head, Source};
use super::transpose::{TILE, transpose};
use crate::fp8::Element;
use crate::tensor::{Dims, Fp8Format, Granularity, Layout, Scales};
use rayon::prelude::*;
use std::ops::Range;

/// Codes that one task writes, more or less: large against the cost of a task.
const CODES_PER_TASK: usize = 1 << 14;

/// The fewest lines of a task that transposes: they are the length of its runs, and bulk encoding
/// takes 32 values at a time.
const TRANSPOSED_LINES_PER_TASK: usize = 32;

/// Encodes every value into a new buffer of this layout.
pub(super) fn encode<T: Element>(
    source: &Source<T>,
    means: Option<&[f32]>,
    scales: &Scales,
    format: Fp8Format,
    layout: Layout,
) -> Vec<u8> {
    let encoder = Encoder { source, means, scales, format, layout };
    let mut codes = vec![0; source.dims.count()];
    let Dims { heads, len, head_dim, .. } = source.dims;
    // What follows each other in memory: the rows of all heads, the rows of a head, its channels.
    let (heads_per_group, line, lines) = match layout {
        Layout::Bshd => (heads, heads * head_dim, len),
        Layout::Bhsd => (1, head_dim, len),
        _ => (1, len, head_dim),
    };
    let transposed = Direction::of(layout) != source.direction;
    let fewest_lines = if transposed { TRANSPOSED_LINES_PER_TASK } else { 1 };
    let lines_per_task = (CODES_PER_TASK / line).max(fewest_lines).min(lines);
    codes.par_chunks_mut(line * lines).enumerate().for_each(|(group, codes)| {
        let first = Head::at(group * heads_per_group, source.dims);
        codes.par_chunks_mut(line * lines_per_task).enumerate().for_each(|(task, codes)| {
            let first_line = task * lines_per_task;
            let lines = first_line..first_line + codes.len() / line;
            for head in first.head..first.head + heads_per_group {
                let at = Head { head, ..first };
                match layout {
                    Layout::Bshd => {
                        let codes = &mut codes[head * head_dim..];
                        encoder.patch(at, lines.clone(), 0..head_dim, codes, line);
                    }
                    Layout::Bhsd => encoder.patch(at, lines.clone(), 0..head_dim, codes, line),
                    _ => encoder.patch(at, 0..len, lines.clone(), codes, line),
                }
            }
        });
    });
    codes
}

struct Encoder<'a, T> {
    source: &'a Source<'a, T>,
    means: Option<&'a [f32]>,
    scales: &'a Scales,
    format: Fp8Format,
    layout: Layout,
}

impl<T: Element> Encoder<'_, T> {
    /// Encodes a rectangle of a head into lines of the output's direction, `stride` apart.
    fn patch(&self, at: Head, rows: Range<usize>, channels: Range<usize>, codes: &mut [u8], stride: usize) {
        let direction = Direction::of(self.layout);
        if direction == self.source.direction {
            return self.lines(at, rows, channels, codes, stride);
        }
        let (mut tile, mut transposed) = ([0; TILE * TILE], [0; TILE * TILE]);
        for tile_rows in tiles(&rows) {
            for tile_channels in tiles(&channels) {
                self.lines(at, tile_rows.clone(), tile_channels.clone(), &mut tile, TILE);
                let in_rows = tile_rows.start - rows.start..tile_rows.end - rows.start;
                let in_channels = tile_channels.start - channels.start..tile_channels.end - channels.start;
                let (lines, columns) = match direction {
                    Direction::Channels => (in_rows, in_channels),
                    Direction::Rows => (in_channels, in_rows),
                };
                transpose(&tile, columns.len(), lines.len(), &mut transposed);
                for (line, transposed) in lines.zip(transposed.chunks(TILE)) {
                    let codes = &mut codes[line * stride..][columns.clone()];
                    codes.copy_from_slice(&transposed[..columns.len()]);
                }
            }
        }
    }

    /// Encodes a rectangle of a head into lines of the source's direction, `stride` apart.
    fn lines(&self, at: Head, rows: Range<usize>, channels: Range<usize>, codes: &mut [u8], stride: usize) {
        let Encoder { source, means, format, .. } = *self;
        match source.direction {
            Direction::Channels => {
                let shift = shift_of_row(means, source.dims, at).part(channels.clone());
                for (row, line) in rows.zip(codes.chunks_mut(stride)) {
                    let values = source.row(at, row, &channels);
                    let codes = &mut line[..channels.len()];
                    run::encode(format, values, shift, self.scale(at, row), codes);
                }
            }
            Direction::Rows => {
                for (channel, line) in channels.zip(codes.chunks_mut(stride)) {
                    let shift = shift_of_channel(means, source.dims, at, channel);
                    for part in self.rows_of_one_scale(&rows) {
                        let values = source.channel(at, channel, &part);
                        let codes = &mut line[part.start - rows.start..part.end - rows.start];
                        run::encode(format, values, shift, self.scale(at, part.start), codes);
                    }
                }
            }
        }
    }

    fn scale(&self, at: Head, row: usize) -> f32 {
        self.scales.of_row(self.source.dims, at.batch, at.head, row)
    }

    /// The rows, cut where another scale begins.
    fn rows_of_one_scale(&self, rows: &Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let block = match self.scales.granularity() {
            Granularity::Block { rows } => rows,
            Granularity::Tensor | Granularity::Head => self.source.dims.len,
        };
        let Range { start, end } = *rows;
        (start / block..end.div_ceil(block))
            .map(move |index| start.max(index * block)..end.min((index + 1).saturating_mul(block)))
    }
}

fn tiles(range: &Range<usize>) -> impl Iterator<Item = Range<usize>> + use<> {
    let Range { start, end } = *range;
    (start..end).step_by(TILE).map(move |first| first..end.min(first + TILE))
}
