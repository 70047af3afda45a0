//! Rows of codes into the order, and the numbers, in which the products want them.

use crate::cpu::lanes::{LANES, Lanes};
use crate::cpu::source::Codes;
use crate::problem::MAX_HEAD_DIM;
use crate::tensor::Fp8Format;

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

/// Decodes rows of `width` channels, multiplies them by their row's factor and by `factors` of their channel, and
/// hands 16 channels at a time to `consume(state, row, channel, values)`: all rows of 16 channels, then the next
/// 16. `begin` makes the state of 16 channels, `end` takes it.
#[inline(always)]
unsafe fn for_values<L: Lanes, S>(
    codes: &Codes,
    width: usize,
    factors: impl Fn(usize) -> L::F,
    begin: impl Fn(usize) -> S,
    mut consume: impl FnMut(&mut S, usize, usize, L::F),
    end: impl Fn(usize, S),
) {
    let Codes { bytes, stride, rows, format, factors: row_factors } = *codes;
    assert!(width.is_multiple_of(LANES) && width <= MAX_HEAD_DIM && rows > 0, "{rows} rows of {width} channels");
    assert!(bytes.len() >= (rows - 1) * stride + width, "{} codes are too few", bytes.len());
    assert!(row_factors.is_empty() || row_factors.len() >= rows, "a factor per row is needed");
    // SAFETY: (rows - 1)·stride + channel + 16 lies within `bytes`, and row < rows within `row_factors`.
    unsafe {
        let unit = L::splat(if format == Fp8Format::E4m3 { 256.0 } else { 1.0 });
        for channel in (0..width).step_by(LANES) {
            let factor = L::mul(factors(channel), unit);
            let mut state = begin(channel);
            let from = bytes.as_ptr().add(channel);
            macro_rules! decode_rows {
                ($decode:ident) => {
                    for row in 0..rows {
                        let mut value = L::mul(L::$decode(from.add(row * stride)), factor);
                        if !row_factors.is_empty() {
                            value = L::mul(value, L::splat(*row_factors.get_unchecked(row)));
                        }
                        consume(&mut state, row, channel, value);
                    }
                };
            }
            match format {
                Fp8Format::E4m3 => decode_rows!(decode_e4m3),
                Fp8Format::E5m2 => decode_rows!(decode_e5m2),
            }
            end(channel, state);
        }
    }
}

/// [`for_values`] rounded to integers; `rounding` grows by what that did.
#[inline(always)]
unsafe fn for_integers<L: Lanes>(
    codes: &Codes,
    width: usize,
    factors: &[f32],
    rounding: &mut Rounding,
    mut consume: impl FnMut(usize, usize, L::I),
) {
    let Rounding { residual, energy, magnitude } = rounding;
    assert!(factors.len() >= width, "a factor per channel is needed");
    assert!(
        residual.len() >= width && energy.len() >= width && magnitude.len() >= width,
        "sums per channel are needed"
    );
    let sums = [residual, energy, magnitude].map(|sums| sums.as_mut_ptr());
    // SAFETY: channel + 16 ≤ width, within factors and sums by the assertions above.
    unsafe {
        for_values::<L, [L::F; 3]>(
            codes,
            width,
            |channel| L::load(factors.as_ptr().add(channel)),
            |channel| sums.map(|sums| L::load(sums.add(channel))),
            |[residual, energy, magnitude], row, channel, value| {
                let rounded = L::round_to_int(value);
                let error = L::sub(value, L::to_float(rounded));
                *residual = L::mul_add(error, error, *residual);
                *energy = L::mul_add(value, value, *energy);
                *magnitude = L::add(*magnitude, L::abs(value));
                consume(row, channel, rounded);
            },
            |channel, state| {
                for (sums, sum) in sums.into_iter().zip(state) {
                    L::store(sums.add(channel), sum);
                }
            },
        );
    }
}

/// Rows of queries in f32, row by row.
///
/// # Safety
///
/// As for [`Lanes`].
#[inline(always)]
pub(super) unsafe fn queries_float<L: Lanes>(codes: &Codes, width: usize, packed: &mut [f32]) {
    assert!(packed.len() >= codes.rows * width, "the packed queries have too little room");
    let packed = packed.as_mut_ptr();
    // SAFETY: row·width + channel + 16 ≤ rows·width, which fits `packed`.
    unsafe {
        let store = |row: usize, channel: usize, value| L::store(packed.add(row * width + channel), value);
        let one = |_| L::splat(1.0);
        for_values::<L, ()>(codes, width, one, |_| (), |_, row, channel, value| store(row, channel, value), |_, _| ());
    }
}

/// Rows of queries as pairs of i16, row by row.
///
/// # Safety
///
/// As for [`Lanes`].
#[inline(always)]
pub(super) unsafe fn queries_int<L: Lanes>(
    codes: &Codes,
    width: usize,
    factors: &[f32],
    rounding: &mut Rounding,
    packed: &mut [i32],
) {
    assert!(packed.len() * 2 >= codes.rows * width, "the packed queries have too little room");
    let packed = packed.as_mut_ptr().cast::<i16>();
    // SAFETY: row·width + channel + 16 ≤ rows·width, which fits `packed` as i16.
    unsafe {
        for_integers::<L>(codes, width, factors, rounding, |row, channel, integers| {
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
pub(super) unsafe fn keys_float<L: Lanes>(codes: &Codes, width: usize, panel: &mut [f32]) {
    assert!(codes.rows == LANES && panel.len() == LANES * width, "a panel is 16 keys");
    let mut block = [0f32; LANES * LANES];
    let block = block.as_mut_ptr();
    let panel = panel.as_mut_ptr();
    // SAFETY: `block` holds 16 rows of 16; the four blocks of 8×8 lie within it and within the panel.
    unsafe {
        for_values::<L, ()>(
            codes,
            width,
            |_| L::splat(1.0),
            |_| (),
            |_, row, _, value| L::store(block.add(row * LANES), value),
            |channel, _| {
                for (row, column) in [(0, 0), (0, 8), (8, 0), (8, 8)] {
                    let to = panel.add((channel + column) * LANES + row);
                    L::transpose_8x8(block.add(row * LANES + column).cast(), LANES, to.cast(), LANES);
                }
            },
        );
    }
}

/// Sixteen rows of keys as one panel: for each pair of channels, its 16 pairs of i16.
///
/// # Safety
///
/// As for [`Lanes`].
#[inline(always)]
pub(super) unsafe fn keys_int<L: Lanes>(
    codes: &Codes,
    width: usize,
    factors: &[f32],
    rounding: &mut Rounding,
    panel: &mut [i32],
) {
    assert!(codes.rows == LANES && panel.len() == LANES * width / 2, "a panel is 16 keys");
    let mut narrow = [0i16; LANES * LANES];
    let narrow = narrow.as_mut_ptr();
    let panel = panel.as_mut_ptr();
    // SAFETY: `narrow` holds 16 rows of 16, that is of 8 words; the two blocks of 8×8 words lie within it and
    // within the panel. The last of the 16 rows comes last, so by then the block is whole.
    unsafe {
        for_integers::<L>(codes, width, factors, rounding, |row, channel, integers| {
            L::store_narrow(narrow.add(row * LANES), integers);
            if row == LANES - 1 {
                for row in [0, 8] {
                    let to = panel.add(channel / 2 * LANES + row);
                    L::transpose_8x8(narrow.add(row * LANES).cast(), LANES / 2, to.cast(), LANES);
                }
            }
        });
    }
}

/// Sixteen rows of values as 16-channel chunks: for each key, 16 channels; chunks are `chunk_words` apart.
///
/// # Safety
///
/// As for [`Lanes`].
#[inline(always)]
pub(super) unsafe fn values_float<L: Lanes>(codes: &Codes, width: usize, chunks: &mut [f32], chunk_words: usize) {
    assert!(codes.rows == LANES, "a panel is 16 keys");
    assert!(chunks.len() >= (width / LANES - 1) * chunk_words + LANES * LANES, "the chunks have too little room");
    let chunks = chunks.as_mut_ptr();
    // SAFETY: within the length asserted above.
    unsafe {
        let to = |row: usize, channel: usize| chunks.add(channel / LANES * chunk_words + row * LANES);
        let one = |_| L::splat(1.0);
        let store = |_: &mut (), row, channel, value| L::store(to(row, channel), value);
        for_values::<L, ()>(codes, width, one, |_| (), store, |_, _| ());
    }
}

/// Sixteen rows of values as 16-channel chunks: for each pair of keys, 16 pairs of i16.
///
/// # Safety
///
/// As for [`Lanes`].
#[inline(always)]
pub(super) unsafe fn values_int<L: Lanes>(
    codes: &Codes,
    width: usize,
    factors: &[f32],
    rounding: &mut Rounding,
    chunks: &mut [i32],
    chunk_words: usize,
) {
    assert!(codes.rows == LANES, "a panel is 16 keys");
    assert!(chunks.len() >= (width / LANES - 1) * chunk_words + LANES * LANES / 2, "the chunks have too little room");
    let chunks = chunks.as_mut_ptr();
    // SAFETY: within the length asserted above.
    unsafe {
        let mut even = L::splat_int(0);
        for_integers::<L>(codes, width, factors, rounding, |row, channel, integers| {
            if row % 2 == 0 {
                even = integers;
            } else {
                L::store_int(chunks.add(channel / LANES * chunk_words + row / 2 * LANES), L::pair(even, integers));
            }
        });
    }
}
