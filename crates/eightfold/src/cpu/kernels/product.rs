//! The two matrix products, S = Q·Kᵀ and O = α·O + P·V, over row groups and 16-wide panels.
//!
//! Both are the same loop: broadcast a word of the left row, load 16 lanes of the right panel, accumulate.
//! A word is an f32, or a pair of i16 whose products a single instruction adds.

use crate::cpu::lanes::{LANES, Lanes};
use std::marker::PhantomData;

/// The arithmetic of a product: what a word is and how it accumulates.
///
/// # Safety
///
/// As for [`Lanes`].
pub(super) trait Arithmetic {
    type L: Lanes;
    type Word: Copy;
    type Sum: Copy;

    unsafe fn zero() -> Self::Sum;
    unsafe fn broadcast(word: Self::Word) -> Self::Sum;
    unsafe fn load(from: *const Self::Word) -> Self::Sum;
    unsafe fn accumulate(sum: Self::Sum, a: Self::Sum, b: Self::Sum) -> Self::Sum;
    unsafe fn store(to: *mut Self::Word, sum: Self::Sum);
    /// The sum as floats, times the row's `weight` and each channel's `unit` where sums have units.
    unsafe fn weighted(sum: Self::Sum, weight: f32, unit: *const f32) -> <Self::L as Lanes>::F;
}

/// f32 words.
pub(super) struct Float<L>(PhantomData<L>);

// SAFETY of every block: the contract of `Lanes`, which `Arithmetic` passes on.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<L: Lanes> Arithmetic for Float<L> {
    type L = L;
    type Word = f32;
    type Sum = L::F;

    #[inline(always)]
    unsafe fn zero() -> L::F {
        unsafe { L::splat(0.0) }
    }
    #[inline(always)]
    unsafe fn broadcast(word: f32) -> L::F {
        unsafe { L::splat(word) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> L::F {
        unsafe { L::load(from) }
    }
    #[inline(always)]
    unsafe fn accumulate(sum: L::F, a: L::F, b: L::F) -> L::F {
        unsafe { L::mul_add(a, b, sum) }
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, sum: L::F) {
        unsafe { L::store(to, sum) }
    }
    #[inline(always)]
    unsafe fn weighted(sum: L::F, _weight: f32, _unit: *const f32) -> L::F {
        sum
    }
}

/// Words that are pairs of i16; sums are i32.
pub(super) struct Pairs<L>(PhantomData<L>);

// SAFETY of every block: the contract of `Lanes`, which `Arithmetic` passes on.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<L: Lanes> Arithmetic for Pairs<L> {
    type L = L;
    type Word = i32;
    type Sum = L::I;

    #[inline(always)]
    unsafe fn zero() -> L::I {
        unsafe { L::splat_int(0) }
    }
    #[inline(always)]
    unsafe fn broadcast(word: i32) -> L::I {
        unsafe { L::splat_int(word) }
    }
    #[inline(always)]
    unsafe fn load(from: *const i32) -> L::I {
        unsafe { L::load_int(from) }
    }
    #[inline(always)]
    unsafe fn accumulate(sum: L::I, a: L::I, b: L::I) -> L::I {
        unsafe { L::dot_pairs(sum, a, b) }
    }
    #[inline(always)]
    unsafe fn store(to: *mut i32, sum: L::I) {
        unsafe { L::store_int(to, sum) }
    }
    #[inline(always)]
    unsafe fn weighted(sum: L::I, weight: f32, unit: *const f32) -> L::F {
        unsafe { L::mul(L::mul(L::to_float(sum), L::splat(weight)), L::load(unit)) }
    }
}

/// `ROWS` rows times `PANELS` panels over `depth` words, in registers.
///
/// # Safety
///
/// As for [`Lanes`]; `left` has `ROWS` rows of `depth` words at distance `left_stride`, `right` has `PANELS`
/// panels of `depth`·16 words at distance `right_stride`.
#[inline(always)]
unsafe fn product<A: Arithmetic, const ROWS: usize, const PANELS: usize>(
    left: *const A::Word,
    left_stride: usize,
    right: *const A::Word,
    right_stride: usize,
    depth: usize,
) -> [[A::Sum; PANELS]; ROWS] {
    // SAFETY: indices stay below the sizes that the caller promises.
    unsafe {
        let mut sums = [[A::zero(); PANELS]; ROWS];
        for step in 0..depth {
            let panels: [A::Sum; PANELS] =
                std::array::from_fn(|panel| A::load(right.add(panel * right_stride + step * LANES)));
            for (row, sums) in sums.iter_mut().enumerate() {
                let word = A::broadcast(*left.add(row * left_stride + step));
                for (sum, panel) in sums.iter_mut().zip(panels) {
                    *sum = A::accumulate(*sum, word, panel);
                }
            }
        }
        sums
    }
}

/// Calls `$block::<A, rows, panels>` for `count` rows, at most `ROWS`: all at once, else 4, 2 and 1 at a time.
macro_rules! by_rows {
    ($block:ident, $arithmetic:ident, $rows:ident, $panels:ident, $count:expr, |$row:ident| $arguments:tt) => {{
        let count = $count;
        let mut $row = 0;
        if count == $rows {
            by_rows!(@call $block, $arithmetic, $rows, $panels, $arguments);
            $row = count;
        }
        while count - $row >= 4 {
            by_rows!(@call $block, $arithmetic, 4, $panels, $arguments);
            $row += 4;
        }
        if count - $row >= 2 {
            by_rows!(@call $block, $arithmetic, 2, $panels, $arguments);
            $row += 2;
        }
        if count > $row {
            by_rows!(@call $block, $arithmetic, 1, $panels, $arguments);
        }
    }};
    (@call $block:ident, $arithmetic:ident, $rows:tt, $panels:ident, ($($argument:expr),*)) => {
        $block::<$arithmetic, $rows, $panels>($($argument),*)
    };
}

/// S = Q·Kᵀ for the panels that each row group sees.
///
/// `visible` gives the keys that each row sees and never decreases; a group of `ROWS` rows computes every
/// panel that its last row sees, and leaves the scores of the others as they are.
///
/// # Safety
///
/// As for [`Lanes`].
#[inline(always)]
pub(super) unsafe fn scores<A: Arithmetic, const ROWS: usize, const PANELS: usize>(
    queries: &[A::Word],
    keys: &[A::Word],
    depth: usize,
    visible: &[usize],
    scores: &mut [A::Word],
    stride: usize,
) {
    const { assert!(PANELS == 1 || PANELS == 2, "what is left of the panels must be one") };
    assert!(visible.is_sorted(), "a row sees no less than the one before");
    let rows = visible.len();
    let panels = visible.last().map_or(0, |keys| keys.div_ceil(LANES));
    assert!(queries.len() >= rows * depth, "queries hold {} words, {rows} rows of {depth} are needed", queries.len());
    assert!(keys.len() >= panels * depth * LANES, "keys hold {} words, too few for {panels} panels", keys.len());
    assert!(stride >= panels * LANES && scores.len() >= rows * stride, "scores are too small");

    #[inline(always)]
    unsafe fn block<A: Arithmetic, const ROWS: usize, const PANELS: usize>(
        queries: *const A::Word,
        keys: *const A::Word,
        depth: usize,
        scores: *mut A::Word,
        stride: usize,
    ) {
        // SAFETY: the caller's pointers reach `ROWS` rows and `PANELS` panels.
        unsafe {
            let sums = product::<A, ROWS, PANELS>(queries, depth, keys, depth * LANES, depth);
            for (row, sums) in sums.into_iter().enumerate() {
                for (panel, sum) in sums.into_iter().enumerate() {
                    A::store(scores.add(row * stride + panel * LANES), sum);
                }
            }
        }
    }

    for panel in (0..panels).step_by(PANELS) {
        for start in (0..rows).step_by(ROWS) {
            let count = ROWS.min(rows - start);
            let group_panels = visible[start + count - 1].div_ceil(LANES);
            if panel >= group_panels {
                continue;
            }
            // SAFETY: start + count ≤ rows and panel < panels, within the lengths asserted above.
            unsafe {
                let queries = queries.as_ptr().add(start * depth);
                let keys = keys.as_ptr().add(panel * depth * LANES);
                let scores = scores.as_mut_ptr().add(start * stride + panel * LANES);
                if panel + PANELS <= group_panels {
                    by_rows!(block, A, ROWS, PANELS, count, |row| (
                        queries.add(row * depth),
                        keys,
                        depth,
                        scores.add(row * stride),
                        stride
                    ));
                } else {
                    by_rows!(block, A, ROWS, ONE, count, |row| (
                        queries.add(row * depth),
                        keys,
                        depth,
                        scores.add(row * stride),
                        stride
                    ));
                }
            }
        }
    }
}

/// What is left of two panels when one is done.
const ONE: usize = 1;

/// The weights of a tile of keys and how they enter the output.
pub(in crate::cpu) struct Weights<'a, W> {
    /// P, one row of `stride` words per query.
    pub words: &'a [W],
    /// Words from one row to the next.
    pub stride: usize,
    /// What each row of O is multiplied by first.
    pub alpha: &'a [f32],
    /// What each row's sum is multiplied by (integers only).
    pub beta: &'a [f32],
}

/// O = α·O + β·P·V for the keys that each row group sees.
///
/// A word of the weights holds `keys_per_word` keys. `values` are chunks of 16 channels, `chunk_words` apart.
///
/// # Safety
///
/// As for [`Lanes`].
#[inline(always)]
pub(super) unsafe fn values<A: Arithmetic, const ROWS: usize, const CHUNKS: usize>(
    weights: &Weights<A::Word>,
    values: &[A::Word],
    chunk_words: usize,
    units: &[f32],
    visible: &[usize],
    keys_per_word: usize,
    output: &mut [f32],
) {
    const { assert!(CHUNKS == 1 || CHUNKS == 2, "what is left of the chunks must be one") };
    assert!(visible.is_sorted(), "a row sees no less than the one before");
    let rows = visible.len();
    let width = units.len();
    let chunks = width / LANES;
    let stride = weights.stride;
    let deepest = visible.last().map_or(0, |keys| keys.div_ceil(keys_per_word));
    assert!(width.is_multiple_of(LANES) && output.len() >= rows * width, "the output is too small");
    assert!(weights.alpha.len() >= rows && weights.beta.len() >= rows, "a factor per row is needed");
    assert!(stride >= deepest && weights.words.len() >= rows * stride, "the weights are too few");
    assert!(chunk_words >= deepest * LANES && values.len() >= chunks * chunk_words, "the values are too few");

    struct Block<'a, A: Arithmetic> {
        values: *const A::Word,
        chunk_words: usize,
        units: *const f32,
        depth: usize,
        weights: &'a Weights<'a, A::Word>,
        width: usize,
    }

    #[inline(always)]
    unsafe fn block<A: Arithmetic, const ROWS: usize, const CHUNKS: usize>(
        block: &Block<A>,
        row: usize,
        output: *mut f32,
    ) {
        let Block { values, chunk_words, units, depth, weights, width } = *block;
        // SAFETY: the caller's pointers reach `ROWS` rows from `row` and `CHUNKS` chunks.
        unsafe {
            let words = weights.words.as_ptr().add(row * weights.stride);
            let sums = product::<A, ROWS, CHUNKS>(words, weights.stride, values, chunk_words, depth);
            for (offset, sums) in sums.into_iter().enumerate() {
                let alpha = A::L::splat(*weights.alpha.get_unchecked(row + offset));
                let beta = *weights.beta.get_unchecked(row + offset);
                for (chunk, sum) in sums.into_iter().enumerate() {
                    let output = output.add((row + offset) * width + chunk * LANES);
                    let sum = A::weighted(sum, beta, units.add(chunk * LANES));
                    A::L::store(output, A::L::mul_add(alpha, A::L::load(output), sum));
                }
            }
        }
    }

    for chunk in (0..chunks).step_by(CHUNKS) {
        for start in (0..rows).step_by(ROWS) {
            let count = ROWS.min(rows - start);
            let depth = visible[start + count - 1].div_ceil(keys_per_word);
            if depth == 0 {
                continue;
            }
            // SAFETY: start + count ≤ rows and chunk < chunks, within the lengths asserted above.
            unsafe {
                let operands = Block::<A> {
                    values: values.as_ptr().add(chunk * chunk_words),
                    chunk_words,
                    units: units.as_ptr().add(chunk * LANES),
                    depth,
                    weights,
                    width,
                };
                let output = output.as_mut_ptr().add(chunk * LANES);
                if chunk + CHUNKS <= chunks {
                    by_rows!(block, A, ROWS, CHUNKS, count, |row| (&operands, start + row, output));
                } else {
                    by_rows!(block, A, ROWS, ONE, count, |row| (&operands, start + row, output));
                }
            }
        }
    }
}
