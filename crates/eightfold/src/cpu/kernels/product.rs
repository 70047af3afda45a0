//! The two matrix products, S = Q·Kᵀ and O = r·O + w·P·V, over row groups and 16-wide panels.
//!
//! Both are the same loop: broadcast a word of the left row, load 16 lanes of the right panel, accumulate.

use super::{Kernel, LANES, Lanes, Visible, panels, scalar};
use crate::cpu::lanes::inlined;
use std::ops::Range;

/// What the products multiply: an f32, or a pair of i16 (as one i32) whose products a single instruction adds.
///
/// # Safety
///
/// As for [`Lanes`].
pub(in crate::cpu) trait Word: Copy + Default + 'static {
    /// Keys that a word of the weights holds.
    const KEYS: usize;
    type Sum<L: Lanes>: Copy;

    unsafe fn splat<L: Lanes>(word: Self) -> Self::Sum<L>;
    unsafe fn load<L: Lanes>(from: *const Self) -> Self::Sum<L>;
    unsafe fn store<L: Lanes>(to: *mut Self, sum: Self::Sum<L>);
    unsafe fn accumulate<L: Lanes>(sum: Self::Sum<L>, a: Self::Sum<L>, b: Self::Sum<L>) -> Self::Sum<L>;
    /// The sum as floats, times the row's and each channel's unit where sums have units.
    unsafe fn in_units<L: Lanes>(sum: Self::Sum<L>, row_unit: f32, channel_units: *const f32) -> L::F;
}

impl Word for f32 {
    const KEYS: usize = 1;
    type Sum<L: Lanes> = L::F;

    inlined! {
        fn splat<L: Lanes>(word: f32) -> L::F { L::splat(word) }
        fn load<L: Lanes>(from: *const f32) -> L::F { L::load(from) }
        fn store<L: Lanes>(to: *mut f32, sum: L::F) { L::store(to, sum) }
        fn accumulate<L: Lanes>(sum: L::F, a: L::F, b: L::F) -> L::F { L::mul_add(a, b, sum) }
        fn in_units<L: Lanes>(sum: L::F, _row_unit: f32, _channel_units: *const f32) -> L::F { sum }
    }
}

impl Word for i32 {
    const KEYS: usize = 2;
    type Sum<L: Lanes> = L::I;

    inlined! {
        fn splat<L: Lanes>(word: i32) -> L::I { L::splat_int(word) }
        fn load<L: Lanes>(from: *const i32) -> L::I { L::load_int(from) }
        fn store<L: Lanes>(to: *mut i32, sum: L::I) { L::store_int(to, sum) }
        fn accumulate<L: Lanes>(sum: L::I, a: L::I, b: L::I) -> L::I { L::dot_pairs(sum, a, b) }
        fn in_units<L: Lanes>(sum: L::I, row_unit: f32, channel_units: *const f32) -> L::F {
            L::mul(L::mul(L::to_float(sum), L::splat(row_unit)), L::load(channel_units))
        }
    }
}

/// `ROWS` rows times `PANELS` panels over `depth` words, in registers.
///
/// # Safety
///
/// As for [`Lanes`]; `left` has `ROWS` rows of `depth` words at distance `left_stride`, `right` has `PANELS`
/// panels of `depth`·16 words at distance `right_stride`.
#[inline(always)]
unsafe fn product<W: Word, L: Lanes, const ROWS: usize, const PANELS: usize>(
    left: *const W,
    left_stride: usize,
    right: *const W,
    right_stride: usize,
    depth: usize,
) -> [[W::Sum<L>; PANELS]; ROWS] {
    // SAFETY: indices stay below the sizes that the caller promises.
    unsafe {
        let mut sums = [[W::splat::<L>(W::default()); PANELS]; ROWS];
        for step in 0..depth {
            let panels: [W::Sum<L>; PANELS] =
                std::array::from_fn(|panel| W::load::<L>(right.add(panel * right_stride + step * LANES)));
            for (row, sums) in sums.iter_mut().enumerate() {
                let word = W::splat::<L>(*left.add(row * left_stride + step));
                for (sum, panel) in sums.iter_mut().zip(panels) {
                    *sum = W::accumulate::<L>(*sum, word, panel);
                }
            }
        }
        sums
    }
}

/// A product whose rows are computed in groups, and whose right side lies in panels.
trait Product {
    /// Panels that a group of rows needs, and words to sum over, where its rows see these keys.
    fn extent(&self, keys: Range<usize>) -> (Range<usize>, Range<usize>);
    /// Multiplies `ROWS` rows from `row` by `PANELS` panels from `panel`.
    ///
    /// # Safety
    ///
    /// As for [`Lanes`]; the operands must hold these rows, panels and words.
    unsafe fn multiply<L: Lanes, const ROWS: usize, const PANELS: usize>(
        &mut self,
        row: usize,
        panel: usize,
        depth: Range<usize>,
    );
}

/// Multiplies all rows, in groups of `ROWS`.
///
/// # Safety
///
/// As for [`Lanes`]; the operands must hold as many rows as there are in `visible`, and what each `extent` asks for.
#[inline(always)]
unsafe fn multiply_all<L: Lanes, const ROWS: usize, const PANELS: usize>(product: &mut impl Product, visible: Visible) {
    const { assert!(PANELS == 1 || PANELS == 2, "what is left of the panels must be one") };
    let rows = visible.rows();
    for panel in product.extent(visible.of_rows(0..rows)).0.step_by(PANELS) {
        for start in (0..rows).step_by(ROWS) {
            let group = start..rows.min(start + ROWS);
            let (panels, depth) = product.extent(visible.of_rows(group.clone()));
            if panel + PANELS <= panels.start {
                continue;
            }
            // SAFETY: the group's rows and panels are those of the caller's promise.
            unsafe {
                if panel + PANELS <= panels.end {
                    multiply_group::<L, ROWS, PANELS>(product, group, panel, depth);
                } else if panel < panels.end {
                    multiply_group::<L, ROWS, 1>(product, group, panel, depth);
                }
            }
        }
    }
}

/// Multiplies a group of at most `ROWS` rows: all together, else 4, 2 and 1 at a time.
///
/// # Safety
///
/// As for [`Product::multiply`], for every row of the group.
#[inline(always)]
unsafe fn multiply_group<L: Lanes, const ROWS: usize, const PANELS: usize>(
    product: &mut impl Product,
    Range { start: mut row, end }: Range<usize>,
    panel: usize,
    depth: Range<usize>,
) {
    // SAFETY: every call is for rows below `end`.
    unsafe {
        if end - row == ROWS {
            return product.multiply::<L, ROWS, PANELS>(row, panel, depth);
        }
        while end - row >= 4 {
            product.multiply::<L, 4, PANELS>(row, panel, depth.clone());
            row += 4;
        }
        if end - row >= 2 {
            product.multiply::<L, 2, PANELS>(row, panel, depth.clone());
            row += 2;
        }
        if end > row {
            product.multiply::<L, 1, PANELS>(row, panel, depth);
        }
    }
}

/// S = Q·Kᵀ: a group of rows computes every panel from where its first row begins to see to where its last one ends, and leaves
/// the other scores as they are, but for one panel before.
pub(in crate::cpu) struct Scores<'a, W> {
    /// Rows of `depth` words.
    pub queries: &'a [W],
    /// Panels of 16 keys.
    pub keys: &'a [W],
    pub depth: usize,
    pub visible: Visible<'a>,
    /// Receives one row of `stride` scores per query.
    pub scores: &'a mut [W],
    pub stride: usize,
}

impl<W: Word> Scores<'_, W> {
    #[inline(always)]
    fn check(&self) {
        let Scores { queries, keys, depth, visible, ref scores, stride } = *self;
        let (rows, panels) = (visible.rows(), visible.last().div_ceil(LANES));
        assert!(queries.len() >= rows * depth, "{} words of queries for {rows} rows of {depth}", queries.len());
        assert!(keys.len() >= panels * depth * LANES, "{} words of keys for {panels} panels", keys.len());
        assert!(stride >= panels * LANES && scores.len() >= rows * stride, "scores are too small");
    }
}

impl<W: Word> Product for Scores<'_, W> {
    #[inline(always)]
    fn extent(&self, keys: Range<usize>) -> (Range<usize>, Range<usize>) {
        (panels(keys), 0..self.depth)
    }

    #[inline(always)]
    unsafe fn multiply<L: Lanes, const ROWS: usize, const PANELS: usize>(
        &mut self,
        row: usize,
        panel: usize,
        _depth: Range<usize>,
    ) {
        let depth = self.depth;
        // SAFETY: the caller promises the rows and panels.
        unsafe {
            let queries = self.queries.as_ptr().add(row * depth);
            let keys = self.keys.as_ptr().add(panel * depth * LANES);
            let scores = self.scores.as_mut_ptr().add(row * self.stride + panel * LANES);
            let sums = product::<W, L, ROWS, PANELS>(queries, depth, keys, depth * LANES, depth);
            for (row, sums) in sums.into_iter().enumerate() {
                for (panel, sum) in sums.into_iter().enumerate() {
                    W::store::<L>(scores.add(row * self.stride + panel * LANES), sum);
                }
            }
        }
    }
}

/// O = r·O + w·P·V for the keys that each group of rows sees.
pub(in crate::cpu) struct Values<'a, W> {
    /// P: one row of `stride` words per query.
    pub weights: &'a [W],
    pub stride: usize,
    /// r: what each row of O is multiplied by first.
    pub rescale: &'a [f32],
    /// w: what each row's sum is multiplied by (integers only).
    pub weight_units: &'a [f32],
    /// V: chunks of 16 channels, `chunk_words` apart.
    pub values: &'a [W],
    pub chunk_words: usize,
    /// What each channel's sum is multiplied by (integers only); as many as a row of O is wide.
    pub channel_units: &'a [f32],
    pub visible: Visible<'a>,
    /// O.
    pub output: &'a mut [f32],
}

impl<W: Word> Values<'_, W> {
    #[inline(always)]
    fn check(&self) {
        let (rows, deepest) = (self.visible.rows(), self.visible.last().div_ceil(W::KEYS));
        let (width, stride, chunk_words) = (self.channel_units.len(), self.stride, self.chunk_words);
        assert!(width.is_multiple_of(LANES) && self.output.len() >= rows * width, "the output is too small");
        assert!(self.rescale.len() >= rows && self.weight_units.len() >= rows, "a factor per row is needed");
        assert!(stride >= deepest && self.weights.len() >= rows * stride, "the weights are too few");
        assert!(chunk_words >= deepest * LANES, "the chunks are too short");
        assert!(self.values.len() >= width / LANES * chunk_words, "the values are too few");
    }
}

impl<W: Word> Product for Values<'_, W> {
    #[inline(always)]
    fn extent(&self, keys: Range<usize>) -> (Range<usize>, Range<usize>) {
        let chunks = if keys.is_empty() { 0 } else { self.channel_units.len() / LANES };
        (0..chunks, keys.start / W::KEYS..keys.end.div_ceil(W::KEYS))
    }

    #[inline(always)]
    unsafe fn multiply<L: Lanes, const ROWS: usize, const PANELS: usize>(
        &mut self,
        row: usize,
        panel: usize,
        depth: Range<usize>,
    ) {
        let (stride, width) = (self.stride, self.channel_units.len());
        // SAFETY: the caller promises the rows and panels.
        unsafe {
            let weights = self.weights.as_ptr().add(row * stride + depth.start);
            let values = self.values.as_ptr().add(panel * self.chunk_words + depth.start * LANES);
            let units = self.channel_units.as_ptr().add(panel * LANES);
            let output = self.output.as_mut_ptr().add(row * width + panel * LANES);
            let sums = product::<W, L, ROWS, PANELS>(weights, stride, values, self.chunk_words, depth.len());
            for (offset, sums) in sums.into_iter().enumerate() {
                let rescale = L::splat(*self.rescale.get_unchecked(row + offset));
                let weight_unit = *self.weight_units.get_unchecked(row + offset);
                for (chunk, sum) in sums.into_iter().enumerate() {
                    let output = output.add(offset * width + chunk * LANES);
                    let sum = W::in_units::<L>(sum, weight_unit, units.add(chunk * LANES));
                    L::store(output, L::mul_add(rescale, L::load(output), sum));
                }
            }
        }
    }
}

/// A product of words, and its loop in the scalar baseline if it has one.
macro_rules! kernel {
    ($product:ident, $word:ty $(, $scalar:path)?) => {
        impl Kernel for $product<'_, $word> {
            #[inline(always)]
            unsafe fn run<L: Lanes, const ROWS: usize, const PANELS: usize>(mut self) {
                self.check();
                let visible = self.visible;
                // SAFETY: the caller upholds the contract of `Lanes`, and `check` found every row and panel.
                unsafe { multiply_all::<L, ROWS, PANELS>(&mut self, visible) }
            }
            $(fn run_scalar(self) {
                $scalar(self);
            })?
        }
    };
}

kernel!(Scores, f32, scalar::scores);
kernel!(Scores, i32);
kernel!(Values, f32, scalar::values);
kernel!(Values, i32);
