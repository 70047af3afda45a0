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
    /// The channel's size to judge that by: Σ value² for Q and K, Σ |value| for V.
    pub size: Vec<f32>,
}

impl Rounding {
    /// Forgets everything, for `width` channels.
    pub(in crate::cpu) fn reset(&mut self, width: usize) {
        for sums in [&mut self.residual, &mut self.size] {
            sums.clear();
            sums.resize(width, 0.0);
        }
    }
}

/// What becomes of decoded values: 16 channels of every row, then the next 16 channels.
///
/// A trait and not closures, because every method must be inlined into the function that enables the
/// instruction set, and a closure cannot be told to be.
///
/// # Safety
///
/// As for [`Lanes`].
trait Sink<L: Lanes> {
    /// What the 16 channels from `channel` on are multiplied by.
    unsafe fn begin(&mut self, channel: usize) -> L::F;
    /// Takes 16 channels of a row.
    unsafe fn take(&mut self, row: usize, channel: usize, values: L::F);
    /// All rows of the 16 channels were taken.
    unsafe fn end(&mut self, channel: usize);
}

/// Decodes rows of `width` channels, multiplied by their row's and their channel's factors, into a sink.
#[inline(always)]
unsafe fn decode<L: Lanes>(codes: &Codes, width: usize, sink: &mut impl Sink<L>) {
    let Codes { bytes, stride, rows, format, factors } = *codes;
    assert!(width.is_multiple_of(LANES) && width <= MAX_HEAD_DIM && rows > 0, "{rows} rows of {width} channels");
    assert!(bytes.len() >= (rows - 1) * stride + width, "{} codes are too few", bytes.len());
    assert!(factors.is_empty() || factors.len() >= rows, "a factor per row is needed");
    // SAFETY: (rows - 1)·stride + channel + 16 lies within `bytes`, and row < rows within `factors`.
    unsafe {
        for channel in (0..width).step_by(LANES) {
            let factor = sink.begin(channel);
            let from = bytes.as_ptr().add(channel);
            macro_rules! decode_rows {
                ($decode:ident, $unit:literal) => {
                    let factor = L::mul(factor, L::splat($unit));
                    for row in 0..rows {
                        let mut values = L::mul(L::$decode(from.add(row * stride)), factor);
                        if !factors.is_empty() {
                            values = L::mul(values, L::splat(*factors.get_unchecked(row)));
                        }
                        sink.take(row, channel, values);
                    }
                };
            }
            match format {
                Fp8Format::E4m3 => {
                    decode_rows!(decode_e4m3, 256.0);
                }
                Fp8Format::E5m2 => {
                    decode_rows!(decode_e5m2, 1.0);
                }
            }
            sink.end(channel);
        }
    }
}

/// Which sum tells how large a channel is.
enum Size {
    Energy,
    Magnitude,
}

/// A sink of integers, 16 channels of a row at a time.
///
/// # Safety
///
/// As for [`Lanes`].
trait IntegerSink<L: Lanes> {
    /// What the values' rounding is judged by.
    const SIZE: Size;
    unsafe fn take(&mut self, row: usize, channel: usize, integers: L::I);
    unsafe fn end(&mut self, channel: usize);
}

/// Rounds to integers after multiplying each channel by its factor, and keeps account of what that did.
struct Rounded<'a, L: Lanes, S> {
    factors: &'a [f32],
    rounding: &'a mut Rounding,
    residual: L::F,
    size: L::F,
    sink: S,
}

impl<'a, L: Lanes, S: IntegerSink<L>> Rounded<'a, L, S> {
    #[inline(always)]
    unsafe fn new(width: usize, factors: &'a [f32], rounding: &'a mut Rounding, sink: S) -> Self {
        assert!(factors.len() >= width, "a factor per channel is needed");
        assert!(rounding.residual.len() >= width && rounding.size.len() >= width, "sums per channel are needed");
        // SAFETY: the caller upholds the contract of `Lanes`.
        let zero = unsafe { L::splat(0.0) };
        Rounded { factors, rounding, residual: zero, size: zero, sink }
    }
}

// SAFETY of every block: factors and sums hold at least `channel` + 16 elements, as `new` asserted.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<L: Lanes, S: IntegerSink<L>> Sink<L> for Rounded<'_, L, S> {
    #[inline(always)]
    unsafe fn begin(&mut self, channel: usize) -> L::F {
        unsafe {
            self.residual = L::load(self.rounding.residual.as_ptr().add(channel));
            self.size = L::load(self.rounding.size.as_ptr().add(channel));
            L::load(self.factors.as_ptr().add(channel))
        }
    }
    #[inline(always)]
    unsafe fn take(&mut self, row: usize, channel: usize, values: L::F) {
        unsafe {
            let (rounded, integers) = L::round_to_i16(values);
            let error = L::sub(values, rounded);
            self.residual = L::mul_add(error, error, self.residual);
            self.size = match S::SIZE {
                Size::Energy => L::mul_add(values, values, self.size),
                Size::Magnitude => L::add(self.size, L::abs(values)),
            };
            self.sink.take(row, channel, integers);
        }
    }
    #[inline(always)]
    unsafe fn end(&mut self, channel: usize) {
        unsafe {
            L::store(self.rounding.residual.as_mut_ptr().add(channel), self.residual);
            L::store(self.rounding.size.as_mut_ptr().add(channel), self.size);
            self.sink.end(channel);
        }
    }
}

/// A place for rows: 16 channels of a row go to `to` + row · `row_stride` + channel · `channel_stride`.
struct Rows<T> {
    to: *mut T,
    row_stride: usize,
    channel_stride: usize,
}

impl<T> Rows<T> {
    #[inline(always)]
    unsafe fn place(&self, row: usize, channel: usize) -> *mut T {
        // SAFETY: whoever made this place checked its size.
        unsafe { self.to.add(row * self.row_stride + channel * self.channel_stride) }
    }
}

// SAFETY of every block: the place was made with room for every row and channel.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<L: Lanes> Sink<L> for Rows<f32> {
    #[inline(always)]
    unsafe fn begin(&mut self, _channel: usize) -> L::F {
        unsafe { L::splat(1.0) }
    }
    #[inline(always)]
    unsafe fn take(&mut self, row: usize, channel: usize, values: L::F) {
        unsafe { L::store(self.place(row, channel), values) }
    }
    #[inline(always)]
    unsafe fn end(&mut self, _channel: usize) {}
}

// SAFETY of every block: the place was made with room for every row and channel.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<L: Lanes> IntegerSink<L> for Rows<i16> {
    const SIZE: Size = Size::Energy;

    #[inline(always)]
    unsafe fn take(&mut self, row: usize, channel: usize, integers: L::I) {
        unsafe { L::store_narrow(self.place(row, channel), integers) }
    }
    #[inline(always)]
    unsafe fn end(&mut self, _channel: usize) {}
}

/// A panel of 16 keys: a block of 16 channels is collected row by row, then transposed.
struct Panel<T> {
    block: [T; LANES * LANES],
    panel: *mut T,
}

// SAFETY of every block: `block` holds 16 rows of 16 values, and `panel` 16 keys of every channel.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<L: Lanes> Sink<L> for Panel<f32> {
    #[inline(always)]
    unsafe fn begin(&mut self, _channel: usize) -> L::F {
        unsafe { L::splat(1.0) }
    }
    #[inline(always)]
    unsafe fn take(&mut self, row: usize, _channel: usize, values: L::F) {
        unsafe { L::store(self.block.as_mut_ptr().add(row * LANES), values) }
    }
    #[inline(always)]
    unsafe fn end(&mut self, channel: usize) {
        for (row, column) in [(0, 0), (0, 8), (8, 0), (8, 8)] {
            unsafe {
                let from = self.block.as_ptr().add(row * LANES + column);
                let to = self.panel.add((channel + column) * LANES + row);
                L::transpose_8x8(from.cast(), LANES, to.cast(), LANES);
            }
        }
    }
}

// SAFETY of every block: `block` holds 16 rows of 8 pairs, and `panel` 16 keys of every pair of channels.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<L: Lanes> IntegerSink<L> for Panel<i16> {
    const SIZE: Size = Size::Energy;

    #[inline(always)]
    unsafe fn take(&mut self, row: usize, _channel: usize, integers: L::I) {
        unsafe { L::store_narrow(self.block.as_mut_ptr().add(row * LANES), integers) }
    }
    #[inline(always)]
    unsafe fn end(&mut self, channel: usize) {
        for row in [0, 8] {
            unsafe {
                let from = self.block.as_ptr().add(row * LANES);
                let to = self.panel.add(channel * LANES + row * 2);
                L::transpose_8x8(from.cast(), LANES / 2, to.cast(), LANES);
            }
        }
    }
}

/// Chunks of 16 channels by pairs of keys: every second row is kept until its partner comes.
struct KeyPairs<I> {
    place: Rows<i32>,
    even: I,
}

// SAFETY of every block: the place was made with room for every pair of rows and every channel.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<L: Lanes> IntegerSink<L> for KeyPairs<L::I> {
    const SIZE: Size = Size::Magnitude;

    #[inline(always)]
    unsafe fn take(&mut self, row: usize, channel: usize, integers: L::I) {
        if row.is_multiple_of(2) {
            self.even = integers;
        } else {
            unsafe { L::store_int(self.place.place(row / 2, channel), L::pair(self.even, integers)) }
        }
    }
    #[inline(always)]
    unsafe fn end(&mut self, _channel: usize) {}
}

/// Rows of queries in f32, row by row.
///
/// # Safety
///
/// As for [`Lanes`].
#[inline(always)]
pub(super) unsafe fn queries_float<L: Lanes>(codes: &Codes, width: usize, packed: &mut [f32]) {
    assert!(packed.len() >= codes.rows * width, "the packed queries have too little room");
    let mut rows = Rows { to: packed.as_mut_ptr(), row_stride: width, channel_stride: 1 };
    // SAFETY: row·width + channel + 16 ≤ rows·width, which fits `packed`.
    unsafe { decode::<L>(codes, width, &mut rows) }
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
    let rows = Rows { to: packed.as_mut_ptr().cast::<i16>(), row_stride: width, channel_stride: 1 };
    // SAFETY: row·width + channel + 16 ≤ rows·width, which fits `packed` as i16.
    unsafe { decode::<L>(codes, width, &mut Rounded::new(width, factors, rounding, rows)) }
}

/// Sixteen rows of keys as one panel: for each channel, its 16 values.
///
/// # Safety
///
/// As for [`Lanes`].
#[inline(always)]
pub(super) unsafe fn keys_float<L: Lanes>(codes: &Codes, width: usize, panel: &mut [f32]) {
    assert!(codes.rows == LANES && panel.len() == LANES * width, "a panel is 16 keys");
    let mut panel = Panel { block: [0.0; LANES * LANES], panel: panel.as_mut_ptr() };
    // SAFETY: the panel holds 16 keys of `width` channels.
    unsafe { decode::<L>(codes, width, &mut panel) }
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
    assert!(codes.rows == LANES && panel.len() * 2 == LANES * width, "a panel is 16 keys");
    let panel = Panel { block: [0i16; LANES * LANES], panel: panel.as_mut_ptr().cast() };
    // SAFETY: the panel holds 16 keys of `width` channels.
    unsafe { decode::<L>(codes, width, &mut Rounded::new(width, factors, rounding, panel)) }
}

/// Sixteen rows of values as 16-channel chunks: for each key, 16 channels; chunks are `chunk_words` apart.
///
/// # Safety
///
/// As for [`Lanes`].
#[inline(always)]
pub(super) unsafe fn values_float<L: Lanes>(codes: &Codes, width: usize, chunks: &mut [f32], chunk_words: usize) {
    assert!(codes.rows == LANES && chunk_words.is_multiple_of(LANES), "a panel is 16 keys");
    assert!(chunks.len() >= (width / LANES - 1) * chunk_words + LANES * LANES, "the chunks have too little room");
    let mut rows = Rows { to: chunks.as_mut_ptr(), row_stride: LANES, channel_stride: chunk_words / LANES };
    // SAFETY: the last key of the last chunk lies within the length asserted above.
    unsafe { decode::<L>(codes, width, &mut rows) }
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
    assert!(codes.rows == LANES && chunk_words.is_multiple_of(LANES), "a panel is 16 keys");
    assert!(chunks.len() >= (width / LANES - 1) * chunk_words + LANES * LANES / 2, "the chunks have too little room");
    let place = Rows { to: chunks.as_mut_ptr(), row_stride: LANES, channel_stride: chunk_words / LANES };
    // SAFETY: the last pair of the last chunk lies within the length asserted above.
    unsafe {
        let pairs = KeyPairs { place, even: L::splat_int(0) };
        decode::<L>(codes, width, &mut Rounded::new(width, factors, rounding, pairs));
    }
}
