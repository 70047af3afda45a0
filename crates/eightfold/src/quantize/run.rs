//! The inner loops: what is done to a run of values that is contiguous in memory.

use crate::fp8::{self, Element};
use crate::tensor::Fp8Format;
use std::ops::Range;

/// Values that are worked on at a time: few, because the buffers of a run as short as a row are also
/// of this length.
pub(super) const CHUNK: usize = 64;

/// What is subtracted from the values of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Shift<'a> {
    /// Nothing.
    None,
    /// The same from each, as in a run of one channel.
    Constant(f32),
    /// Its own from each, as in a run over the channels.
    Each(&'a [f32]),
}

impl Shift<'_> {
    /// The shift of a part of the run.
    pub(super) fn part(self, part: Range<usize>) -> Self {
        match self {
            Shift::Each(means) => Shift::Each(&means[part]),
            other => other,
        }
    }
}

/// The largest magnitude after the shift; infinite or NaN if any value is.
pub(crate) fn largest_magnitude<T: Element>(run: &[T], shift: Shift) -> f32 {
    let mut buffer = [0.0; CHUNK];
    let mut largest = 0;
    for (index, values) in run.chunks(CHUNK).enumerate() {
        let shift = shift.part(index * CHUNK..index * CHUNK + values.len());
        largest = largest.max(largest_magnitude_bits(T::widen(values, &mut buffer), shift));
    }
    f32::from_bits(largest.cast_unsigned())
}

/// Without the sign, the bits of floats order as the floats do, with infinity and NaN above the rest.
fn largest_magnitude_bits(values: &[f32], shift: Shift) -> i32 {
    let bits = |value: f32| value.abs().to_bits().cast_signed();
    match shift {
        Shift::None => values.iter().fold(0, |largest, value| largest.max(bits(*value))),
        Shift::Constant(mean) => values.iter().fold(0, |largest, value| largest.max(bits(value - mean))),
        Shift::Each(means) => {
            values.iter().zip(means).fold(0, |largest, (value, mean)| largest.max(bits(value - mean)))
        }
    }
}

/// The codes of `(value − shift) / scale`.
///
/// It divides, where a multiplication by the reciprocal would be rounded twice and could overflow.
pub(crate) fn encode<T: Element>(format: Fp8Format, run: &[T], shift: Shift, scale: f32, codes: &mut [u8]) {
    let mut buffer = [0.0; CHUNK];
    let mut scaled = [0.0; CHUNK];
    for (index, (values, codes)) in run.chunks(CHUNK).zip(codes.chunks_mut(CHUNK)).enumerate() {
        let scaled = &mut scaled[..values.len()];
        let shift = shift.part(index * CHUNK..index * CHUNK + values.len());
        shift_and_scale(T::widen(values, &mut buffer), shift, scale, scaled);
        fp8::encode_f32(format, scaled, codes);
    }
}

fn shift_and_scale(values: &[f32], shift: Shift, scale: f32, scaled: &mut [f32]) {
    let pairs = scaled.iter_mut().zip(values);
    match shift {
        Shift::None => pairs.for_each(|(scaled, value)| *scaled = value / scale),
        Shift::Constant(mean) => {
            pairs.for_each(|(scaled, value)| *scaled = (value - mean) / scale);
        }
        Shift::Each(means) => pairs.zip(means).for_each(|((scaled, value), mean)| *scaled = (value - mean) / scale),
    }
}
