//! Decoded rows into the order, and the numbers, in which the products want them.

use crate::cpu::lanes::{LANES, Lanes};

/// What rounding to fixed point did to the channels of some rows, in units of the fixed point.
#[derive(Debug, Clone, Default)]
pub(in crate::cpu) struct Rounding {
    /// Σ (value − rounded)² of each channel.
    pub residual: Vec<f32>,
    /// Σ value² of each channel.
    pub energy: Vec<f32>,
    /// Σ |value| of each channel.
    pub magnitude: Vec<f32>,
}

impl Rounding {
    /// Forgets everything, for `width` channels.
    pub(in crate::cpu) fn reset(&mut self, width: usize) {
        for sums in [&mut self.residual, &mut self.energy, &mut self.magnitude] {
            sums.clear();
            sums.resize(width, 0.0);
        }
    }
}

/// Rounds `rows` rows of `width` channels to integers after multiplying each channel by its factor, and hands
/// each row's 16 channels to `consume(row, channel, integers)`; `rounding` grows by what that did.
#[inline(always)]
unsafe fn round_rows<L: Lanes>(
    rows: &[f32],
    width: usize,
    factors: &[f32],
    rounding: &mut Rounding,
    mut consume: impl FnMut(usize, usize, L::I),
) {
    let count = rows.len() / width;
    assert!(
        width.is_multiple_of(LANES) && factors.len() >= width,
        "a factor per channel is needed"
    );
    let Rounding { residual, energy, magnitude } = rounding;
    assert!(residual.len() >= width && energy.len() >= width && magnitude.len() >= width);
    let sums = [residual, energy, magnitude].map(|sums| sums.as_mut_ptr());
    for channel in (0..width).step_by(LANES) {
        // SAFETY: channel + 16 ≤ width, within rows, factors and sums by the assertions above.
        unsafe {
            let factor = L::load(factors.as_ptr().add(channel));
            let sums = sums.map(|sums| sums.add(channel));
            let [mut left, mut squares, mut sizes] = sums.map(|sum| L::load(sum));
            for row in 0..count {
                let value = L::mul(L::load(rows.as_ptr().add(row * width + channel)), factor);
                let rounded = L::round_to_int(value);
                let error = L::sub(value, L::to_float(rounded));
                left = L::mul_add(error, error, left);
                squares = L::mul_add(value, value, squares);
                sizes = L::add(sizes, L::abs(value));
                consume(row, channel, rounded);
            }
            L::store(sums[0], left);
            L::store(sums[1], squares);
            L::store(sums[2], sizes);
        }
    }
}

/// Rows of queries as pairs of i16, row by row.
///
/// # Safety
///
/// As for [`Lanes`].
#[inline(always)]
pub(super) unsafe fn queries_int<L: Lanes>(
    rows: &[f32],
    width: usize,
    factors: &[f32],
    rounding: &mut Rounding,
    packed: &mut [i32],
) {
    assert!(packed.len() * 2 >= rows.len(), "the packed queries have too little room");
    let packed = packed.as_mut_ptr().cast::<i16>();
    // SAFETY: row·width + channel + 16 ≤ rows.len(), which fits `packed` as i16.
    unsafe {
        round_rows::<L>(rows, width, factors, rounding, |row, channel, integers| {
            L::store_narrow(packed.add(row * width + channel), integers);
        });
    }
}

/// Sixteen rows of keys as one panel: for each channel, its 16 values.
///
/// # Safety
///
/// As for [`Lanes`].
#[inline(always)]
pub(super) unsafe fn keys_float<L: Lanes>(rows: &[f32], width: usize, panel: &mut [f32]) {
    assert!(
        width.is_multiple_of(LANES) && rows.len() == LANES * width && panel.len() == LANES * width
    );
    for channel in (0..width).step_by(8) {
        for row in [0, 8] {
            // SAFETY: both blocks of 8×8 lie within the 16·width elements asserted above.
            unsafe {
                let from = rows.as_ptr().add(row * width + channel).cast();
                let to = panel.as_mut_ptr().add(channel * LANES + row).cast();
                L::transpose_8x8(from, width, to, LANES);
            }
        }
    }
}

/// Sixteen rows of keys as one panel: for each pair of channels, its 16 pairs of i16.
///
/// # Safety
///
/// As for [`Lanes`].
#[inline(always)]
pub(super) unsafe fn keys_int<L: Lanes>(
    rows: &[f32],
    width: usize,
    factors: &[f32],
    rounding: &mut Rounding,
    panel: &mut [i32],
) {
    const WIDEST: usize = crate::problem::MAX_HEAD_DIM;
    assert!(width <= WIDEST && rows.len() == LANES * width && panel.len() == LANES * width / 2);
    let mut narrow = [0i16; LANES * WIDEST];
    let narrow = narrow.as_mut_ptr();
    // SAFETY: row·width + channel + 16 ≤ 16·width, within `narrow`; the blocks of 8×8 words lie within the
    // 16·width/2 words of `narrow` and `panel`.
    unsafe {
        round_rows::<L>(rows, width, factors, rounding, |row, channel, integers| {
            L::store_narrow(narrow.add(row * width + channel), integers);
        });
        for pair in (0..width / 2).step_by(8) {
            for row in [0, 8] {
                let from = narrow.add(row * width).cast::<u32>().add(pair);
                let to = panel.as_mut_ptr().add(pair * LANES + row).cast();
                L::transpose_8x8(from, width / 2, to, LANES);
            }
        }
    }
}

/// Sixteen rows of values as 16-channel chunks: for each key, 16 channels; chunks are `chunk_words` apart.
///
/// # Safety
///
/// As for [`Lanes`].
#[inline(always)]
pub(super) unsafe fn values_float<L: Lanes>(
    rows: &[f32],
    width: usize,
    chunks: &mut [f32],
    chunk_words: usize,
) {
    assert!(rows.len() == LANES * width && width.is_multiple_of(LANES));
    assert!(
        chunks.len() >= (width / LANES - 1) * chunk_words + LANES * LANES,
        "the chunks have too little room"
    );
    for channel in (0..width).step_by(LANES) {
        for row in 0..LANES {
            // SAFETY: within the lengths asserted above.
            unsafe {
                let value = L::load(rows.as_ptr().add(row * width + channel));
                L::store(
                    chunks.as_mut_ptr().add(channel / LANES * chunk_words + row * LANES),
                    value,
                );
            }
        }
    }
}

/// Sixteen rows of values as 16-channel chunks: for each pair of keys, 16 pairs of i16.
///
/// # Safety
///
/// As for [`Lanes`].
#[inline(always)]
pub(super) unsafe fn values_int<L: Lanes>(
    rows: &[f32],
    width: usize,
    factors: &[f32],
    rounding: &mut Rounding,
    chunks: &mut [i32],
    chunk_words: usize,
) {
    assert!(rows.len() == LANES * width);
    assert!(
        chunks.len() >= (width / LANES - 1) * chunk_words + LANES * LANES / 2,
        "the chunks have too little room"
    );
    let chunks = chunks.as_mut_ptr();
    // SAFETY: within the lengths asserted above.
    unsafe {
        let mut even = L::splat_int(0);
        round_rows::<L>(rows, width, factors, rounding, |row, channel, integers| {
            if row % 2 == 0 {
                even = integers;
            } else {
                let to = chunks.add(channel / LANES * chunk_words + row / 2 * LANES);
                L::store_int(to, L::pair(even, integers));
            }
        });
    }
}
