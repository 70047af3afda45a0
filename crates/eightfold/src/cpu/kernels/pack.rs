//! Rows of codes into the order, and the numbers, in which the products want them.

use super::product::Word;
use super::{Kernel, LANES, Lanes};
use crate::cpu::lanes::inlined;
use crate::cpu::source::Codes;
use crate::problem::MAX_HEAD_DIM;
use crate::tensor::Fp8Format;
use std::mem::MaybeUninit;

/// The order of packed words.
#[derive(Clone, Copy)]
pub(in crate::cpu) enum Order {
    /// Q: row by row.
    Rows,
    /// Panels of 16 rows of K: in each, for every word of channels, its 16 keys.
    Panels,
    /// Panels of 16 rows of V: chunks of 16 channels, so many words apart; in each, for every word of keys, its 16
    /// channels.
    Chunks { words: usize },
}

/// Packs rows in f32, or, as the words of [`PackIntegers`], in pairs of i16.
pub(in crate::cpu) struct Pack<'a, W> {
    pub codes: Codes<'a>,
    /// Channels of a packed row.
    pub width: usize,
    pub order: Order,
    pub packed: &'a mut [W],
}

/// Packs rows in fixed point.
pub(in crate::cpu) struct PackIntegers<'a> {
    pub pack: Pack<'a, i32>,
    /// What each channel is multiplied by before it is rounded.
    pub factors: &'a [f32],
    /// Receives what rounding did.
    pub rounding: &'a mut Rounding,
}

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

/// What decoded values become: a trait and not a closure, because every method must be inlined into the function that
/// enables the instruction set, and a closure cannot be told to be.
///
/// # Safety
///
/// As for [`Lanes`].
trait Convert<L: Lanes> {
    type Packed;
    /// What the 16 channels from `channel` on are multiplied by.
    unsafe fn begin(&mut self, channel: usize) -> L::F;
    /// Takes the 16 channels of a row.
    unsafe fn convert(&mut self, values: L::F) -> Self::Packed;
    /// All rows of the 16 channels were taken.
    unsafe fn end(&mut self, channel: usize);
}

/// Where converted values go: 16 channels of every row, then the next 16 channels.
///
/// # Safety
///
/// As for [`Lanes`].
trait Place<L: Lanes> {
    type Packed;
    unsafe fn put(&mut self, row: usize, channel: usize, values: Self::Packed);
    /// All rows of the 16 channels were put.
    #[inline(always)]
    unsafe fn end(&mut self, _channel: usize) {}
}

/// Decodes rows, multiplied by their row's and their channel's factors.
#[inline(always)]
unsafe fn decode<L: Lanes, C: Convert<L>>(
    codes: &Codes,
    width: usize,
    mut convert: C,
    mut place: impl Place<L, Packed = C::Packed>,
) {
    let Codes { bytes, stride, rows, format, factors, apart } = *codes;
    assert!(apart.starts.is_empty(), "rows of several panels do not follow each other");
    assert!(width.is_multiple_of(LANES) && width <= MAX_HEAD_DIM && rows > 0, "{rows} rows of {width} channels");
    assert!(bytes.len() >= (rows - 1) * stride + width, "{} codes are too few", bytes.len());
    assert!(factors.is_empty() || factors.len() >= rows, "a factor per row is needed");
    // SAFETY: (rows - 1)·stride + channel + 16 lies within `bytes`, and row < rows within `factors`.
    unsafe {
        for channel in (0..width).step_by(LANES) {
            let factor = convert.begin(channel);
            let from = bytes.as_ptr().add(channel);
            macro_rules! decode_rows {
                ($decode:ident, $unit:literal) => {
                    let factor = L::mul(factor, L::splat($unit));
                    for row in 0..rows {
                        let mut values = L::mul(L::$decode(from.add(row * stride)), factor);
                        if !factors.is_empty() {
                            values = L::mul(values, L::splat(*factors.get_unchecked(row)));
                        }
                        place.put(row, channel, convert.convert(values));
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
                Fp8Format::Int8 => {
                    decode_rows!(decode_int8, 1.0);
                }
            }
            convert.end(channel);
            place.end(channel);
        }
    }
}

/// Leaves values as they are.
struct Unchanged;

impl<L: Lanes> Convert<L> for Unchanged {
    type Packed = L::F;

    #[inline(always)]
    unsafe fn begin(&mut self, _channel: usize) -> L::F {
        // SAFETY: the caller upholds the contract of `Lanes`.
        unsafe { L::splat(1.0) }
    }
    #[inline(always)]
    unsafe fn convert(&mut self, values: L::F) -> L::F {
        values
    }
    #[inline(always)]
    unsafe fn end(&mut self, _channel: usize) {}
}

/// Rounds to integers after multiplying each channel by its factor, and keeps account of what that did. A channel's
/// size is Σ |value| with `MAGNITUDE`, else Σ value².
struct Rounded<'a, L: Lanes, const MAGNITUDE: bool> {
    factors: &'a [f32],
    rounding: &'a mut Rounding,
    residual: L::F,
    size: L::F,
}

impl<'a, L: Lanes, const MAGNITUDE: bool> Rounded<'a, L, MAGNITUDE> {
    inlined! {
        fn new(factors: &'a [f32], rounding: &'a mut Rounding) -> Self {
            Rounded { factors, rounding, residual: L::splat(0.0), size: L::splat(0.0) }
        }
    }
}

// SAFETY of every block: factors and sums hold at least `channel` + 16 elements, as `PackIntegers::run` asserted.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<L: Lanes, const MAGNITUDE: bool> Convert<L> for Rounded<'_, L, MAGNITUDE> {
    type Packed = L::I;

    #[inline(always)]
    unsafe fn begin(&mut self, channel: usize) -> L::F {
        unsafe {
            self.residual = L::load(self.rounding.residual.as_ptr().add(channel));
            self.size = L::load(self.rounding.size.as_ptr().add(channel));
            L::load(self.factors.as_ptr().add(channel))
        }
    }
    #[inline(always)]
    unsafe fn convert(&mut self, values: L::F) -> L::I {
        unsafe {
            let (rounded, integers) = L::round_to_i16(values);
            let error = L::sub(values, rounded);
            self.residual = L::mul_add(error, error, self.residual);
            self.size =
                if MAGNITUDE { L::add(self.size, L::abs(values)) } else { L::mul_add(values, values, self.size) };
            integers
        }
    }
    #[inline(always)]
    unsafe fn end(&mut self, channel: usize) {
        unsafe {
            L::store(self.rounding.residual.as_mut_ptr().add(channel), self.residual);
            L::store(self.rounding.size.as_mut_ptr().add(channel), self.size);
        }
    }
}

/// A number as it is stored.
///
/// # Safety
///
/// As for [`Lanes`].
trait Element: Copy {
    type Packed<L: Lanes>;
    unsafe fn store<L: Lanes>(to: *mut Self, values: Self::Packed<L>);
}

impl Element for f32 {
    type Packed<L: Lanes> = L::F;

    inlined! { fn store<L: Lanes>(to: *mut f32, values: L::F) { L::store(to, values) } }
}

impl Element for i16 {
    type Packed<L: Lanes> = L::I;

    inlined! { fn store<L: Lanes>(to: *mut i16, values: L::I) { L::store_narrow(to, values) } }
}

/// 16 channels of a row go to `to` + row · `row_stride` + channel · `channel_stride`.
struct Rows<T> {
    to: *mut T,
    row_stride: usize,
    channel_stride: usize,
}

impl<T> Rows<T> {
    /// Chunks of 16 channels, so many words apart.
    fn chunks(to: *mut T, words: usize) -> Self {
        Rows { to, row_stride: LANES, channel_stride: words / LANES }
    }

    #[inline(always)]
    unsafe fn at(&self, row: usize, channel: usize) -> *mut T {
        // SAFETY: `Pack::check` found room for every row and channel.
        unsafe { self.to.add(row * self.row_stride + channel * self.channel_stride) }
    }
}

impl<L: Lanes, T: Element> Place<L> for Rows<T> {
    type Packed = T::Packed<L>;

    #[inline(always)]
    unsafe fn put(&mut self, row: usize, channel: usize, values: Self::Packed) {
        // SAFETY: as for `at`.
        unsafe { T::store::<L>(self.at(row, channel), values) }
    }
}

/// A panel of 16 keys: a block of 16 channels is collected row by row, then transposed word by word, for which it must
/// start where a word may.
#[repr(C, align(64))]
struct Panel<T> {
    block: MaybeUninit<[T; LANES * LANES]>,
    panel: *mut u32,
}

impl<T> Panel<T> {
    fn new(panel: *mut u32) -> Self {
        Panel { block: MaybeUninit::uninit(), panel }
    }
}

impl<L: Lanes, T: Element> Place<L> for Panel<T> {
    type Packed = T::Packed<L>;

    #[inline(always)]
    unsafe fn put(&mut self, row: usize, _channel: usize, values: Self::Packed) {
        // SAFETY: `block` holds 16 rows of 16 values.
        unsafe { T::store::<L>(self.block.as_mut_ptr().cast::<T>().add(row * LANES), values) }
    }
    #[inline(always)]
    unsafe fn end(&mut self, channel: usize) {
        let words = |channels: usize| channels * size_of::<T>() / size_of::<u32>();
        for row in [0, 8] {
            for column in (0..words(LANES)).step_by(8) {
                // SAFETY: all 16 rows of `block`, which `repr` aligns, were put; `panel` holds 16 keys of every channel.
                unsafe {
                    let from = self.block.as_ptr().cast::<u32>().add(row * words(LANES) + column);
                    let to = self.panel.add((words(channel) + column) * LANES + row);
                    L::transpose_8x8(from, words(LANES), to, LANES);
                }
            }
        }
    }
}

/// Chunks of 16 channels by pairs of keys: every second row is kept until its partner comes.
struct KeyPairs<I> {
    pairs: Rows<i32>,
    even: I,
}

impl<L: Lanes> Place<L> for KeyPairs<L::I> {
    type Packed = L::I;

    #[inline(always)]
    unsafe fn put(&mut self, row: usize, channel: usize, integers: L::I) {
        if row.is_multiple_of(2) {
            self.even = integers;
        } else {
            // SAFETY: as for `Rows::at`.
            unsafe { L::store_int(self.pairs.at(row / 2, channel), L::pair(self.even, integers)) }
        }
    }
}

impl<W: Word> Pack<'_, W> {
    /// The packed words have room for every row and channel, and panels and chunks are made of 16 rows: kernels then name
    /// that number, so that the compiler unrolls their loops, and many loads are under way together.
    #[inline(always)]
    fn check(&self) {
        let (rows, width, room) = (self.codes.rows, self.width, self.packed.len() * W::KEYS);
        let factors = self.codes.factors.len();
        assert!(factors == 0 || factors >= rows, "a factor per row is needed");
        match self.order {
            Order::Rows => assert!(room >= rows * width, "the packed rows have too little room"),
            Order::Panels => assert!(rows.is_multiple_of(LANES) && room >= rows * width, "a panel is 16 keys"),
            Order::Chunks { words } => {
                assert!(rows.is_multiple_of(LANES) && words.is_multiple_of(LANES), "a panel is 16 keys");
                let needed = (width / LANES - 1) * words * W::KEYS + rows * LANES;
                assert!(room >= needed, "the chunks have too little room");
            }
        }
    }
}

impl Kernel for Pack<'_, f32> {
    #[inline(always)]
    unsafe fn run<L: Lanes, const ROWS: usize, const PANELS: usize>(self) {
        self.check();
        let Pack { codes, width, order, packed } = self;
        let (to, panels) = (packed.as_mut_ptr(), 0..codes.rows / LANES);
        // SAFETY: `check` found room for every row and channel.
        unsafe {
            match order {
                Order::Rows => {
                    decode::<L, _>(&codes, width, Unchanged, Rows { to, row_stride: width, channel_stride: 1 });
                }
                Order::Panels => {
                    for panel in panels {
                        codes.fetch_beside(panel, width);
                        let place = Panel::<f32>::new(to.add(panel * LANES * width).cast());
                        decode::<L, _>(&codes.panel(panel), width, Unchanged, place);
                    }
                }
                Order::Chunks { words } => {
                    for panel in panels {
                        codes.fetch_beside(panel, width);
                        let place = Rows::chunks(to.add(panel * LANES * LANES), words);
                        decode::<L, _>(&codes.panel(panel), width, Unchanged, place);
                    }
                }
            }
        }
    }
}

impl Kernel for PackIntegers<'_> {
    #[inline(always)]
    unsafe fn run<L: Lanes, const ROWS: usize, const PANELS: usize>(self) {
        self.pack.check();
        let PackIntegers { pack: Pack { codes, width, order, packed }, factors, rounding } = self;
        assert!(factors.len() >= width, "a factor per channel is needed");
        assert!(rounding.residual.len() >= width && rounding.size.len() >= width, "sums per channel are needed");
        let (to, panels) = (packed.as_mut_ptr(), 0..codes.rows / LANES);
        // SAFETY: `check` found room for every row and channel.
        unsafe {
            match order {
                Order::Rows => {
                    let place = Rows { to: to.cast::<i16>(), row_stride: width, channel_stride: 1 };
                    decode::<L, _>(&codes, width, Rounded::<L, false>::new(factors, rounding), place);
                }
                Order::Panels => {
                    for panel in panels {
                        codes.fetch_beside(panel, width);
                        let place = Panel::<i16>::new(to.add(panel * LANES * width / 2).cast());
                        decode::<L, _>(&codes.panel(panel), width, Rounded::<L, false>::new(factors, rounding), place);
                    }
                }
                Order::Chunks { words } => {
                    for panel in panels {
                        codes.fetch_beside(panel, width);
                        let pairs = Rows::chunks(to.add(panel * LANES * LANES / 2), words);
                        let place = KeyPairs { pairs, even: L::splat_int(0) };
                        decode::<L, _>(&codes.panel(panel), width, Rounded::<L, true>::new(factors, rounding), place);
                    }
                }
            }
        }
    }
}
