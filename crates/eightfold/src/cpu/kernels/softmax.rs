//! One tile of the online softmax: scores become weights, and each row's maximum and sum move on.

use super::{Bound, Kernel, LANES, Lanes, Visible, panels, scalar};
use crate::cpu::lanes::{exp2, inlined};
use std::ops::Range;

/// The running softmax of a row: everything is in units of log₂.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::cpu) struct RowState {
    /// The largest score so far, −∞ before the first.
    pub max: f32,
    /// The sum of 2^(score − max) so far.
    pub sum: f32,
}

impl RowState {
    /// A row that has seen nothing.
    pub(in crate::cpu) const EMPTY: RowState = RowState { max: f32::NEG_INFINITY, sum: 0.0 };
}

/// The scores of a tile, f32 and scaled, become weights in place.
pub(in crate::cpu) struct Softmax<'a> {
    /// One row of `stride` scores per query.
    pub scores: &'a mut [f32],
    pub stride: usize,
    pub visible: Visible<'a>,
    /// The rows' running softmax.
    pub states: &'a mut [RowState],
    /// Receives what each row of the output must be multiplied by.
    pub rescale: &'a mut [f32],
    /// Whether to use the library's exponential.
    pub exact: bool,
}

/// The scores of a tile as integers, and the integer weights they become.
pub(in crate::cpu) struct IntegerTile<'a> {
    /// One row of `stride` scores per query.
    pub scores: &'a [i32],
    pub stride: usize,
    /// What a score is multiplied by to be in units of log₂, for each row.
    pub score_units: &'a [f32],
    /// What each key's scores are multiplied by beside that; empty where all are 1.
    pub key_scales: &'a [f32],
    /// What each key's weights are multiplied by before they meet the values; empty where all are 1.
    pub value_scales: &'a [f32],
    /// What bounds the scores, if anything does.
    pub bound: Option<Bound<'a>>,
    pub visible: Visible<'a>,
    /// The rows' running softmax.
    pub states: &'a mut [RowState],
    /// Receives the weights: pairs of i16, `stride` / 2 words per row.
    pub weights: &'a mut [i32],
    /// Receives what each row of the output must be multiplied by.
    pub rescale: &'a mut [f32],
    /// Receives what each row's integer sums must be multiplied by.
    pub weight_units: &'a mut [f32],
    /// Receives the rows whose rounded weights lost too much of their sum.
    pub imprecise: &'a mut Vec<usize>,
    /// Whether to use the library's exponential.
    pub exact: bool,
}

/// Integer scores become weights relative to the row's maximum *in this tile*, so that their 14 bits are spent where
/// this tile needs them; the weights' units carry the rest.
pub(in crate::cpu) struct SoftmaxIntegers<'a, 'b>(pub &'a mut IntegerTile<'b>);

/// Replaces the weights of a tile by what rounding left of them in the imprecise rows, and by zero in the others:
/// multiplied with the values once more they make those rows as good as 23-bit weights.
pub(in crate::cpu) struct RefineIntegers<'a, 'b>(pub &'a mut IntegerTile<'b>);

/// A weight of 1 is 2^14: the largest power of two that leaves i16 a margin.
const WEIGHT_BITS: i32 = 14;
/// Row sums of integer weights stay below this, so that Σ weight·value fits an i32 with values up to 2^11.
const SUM_LIMIT: i32 = (1 << 20) - 1024;
/// A row whose rounded weights miss its sum by more than this share is refined.
const LOST_SHARE: f32 = 1.0 / 2048.0;
/// What rounding left of a weight is kept in units of 2^-9 of the weight's.
const REMAINDER_BITS: i32 = 9;

/// 2^a of every lane, by the polynomial or the library.
#[inline(always)]
unsafe fn power<L: Lanes, const DEGREE: usize>(a: L::F, exact: bool) -> L::F {
    // SAFETY: the caller upholds the contract of `Lanes`; the array is 16 long.
    unsafe {
        if !exact {
            return exp2::<L, DEGREE>(a);
        }
        let mut lanes = [0.0; LANES];
        L::store(lanes.as_mut_ptr(), a);
        L::load(lanes.map(f32::exp2).as_ptr())
    }
}

/// 2^(from − to) for maxima, 0 where nothing was seen before.
fn decay(from: f32, to: f32) -> f32 {
    if from == to {
        1.0
    } else if from == f32::NEG_INFINITY {
        0.0
    } else {
        (from - to).exp2()
    }
}

/// The panels that hold what a row sees, and the edges within them.
struct Seen {
    keys: Range<usize>,
    panels: Range<usize>,
    /// The first panel, if it holds keys before those that the row sees.
    cut_first: usize,
    /// The last panel, if it holds keys behind those that the row sees.
    cut_last: usize,
    /// The first of these two that there is.
    first_cut: usize,
}

/// No panel has this number.
const NO_PANEL: usize = usize::MAX;

impl Seen {
    /// Without `WINDOW`, what every row of the tile sees begins at the tile's first key.
    #[inline(always)]
    fn new<const WINDOW: bool>(keys: Range<usize>) -> Self {
        let keys = if WINDOW { keys } else { 0..keys.end };
        let cut = |edge: usize| if edge.is_multiple_of(LANES) { NO_PANEL } else { edge / LANES };
        let (cut_first, cut_last) = (cut(keys.start), cut(keys.end));
        Seen {
            panels: panels(keys.clone()),
            cut_first,
            cut_last,
            first_cut: if WINDOW { cut_first.min(cut_last) } else { cut_last },
            keys,
        }
    }

    /// The panels that the row sees all keys of.
    fn whole(&self) -> Range<usize> {
        self.keys.start.div_ceil(LANES)..self.keys.end / LANES
    }

    /// Fills the group's panels before those that hold what the row sees, and those behind. A word holds so many keys.
    #[inline(always)]
    fn fill_outside<T: Copy + Default>(&self, group: Range<usize>, words: &mut [T], keys_per_word: usize) {
        let words_per_panel = LANES / keys_per_word;
        if group.start < self.panels.start {
            words[group.start * words_per_panel..self.panels.start * words_per_panel].fill(T::default());
        }
        if self.panels.end < group.end {
            words[self.panels.end * words_per_panel..group.end * words_per_panel].fill(T::default());
        }
    }

    inlined! {
        /// The lanes of a panel that the row sees; elsewhere the others.
        fn or<L: Lanes>(&self, lanes: L::F, panel: usize, other: L::F) -> L::F {
            let mut lanes = lanes;
            if panel == self.cut_last { lanes = L::first_or(lanes, self.keys.end % LANES, other); }
            if panel == self.cut_first { lanes = L::first_or(other, self.keys.start % LANES, lanes); }
            lanes
        }

        /// The same of integers.
        fn or_int<L: Lanes>(&self, lanes: L::I, panel: usize, other: L::I) -> L::I {
            let mut lanes = lanes;
            if panel == self.cut_last { lanes = L::first_or_int(lanes, self.keys.end % LANES, other); }
            if panel == self.cut_first { lanes = L::first_or_int(other, self.keys.start % LANES, lanes); }
            lanes
        }
    }
}

impl Kernel for Softmax<'_> {
    #[inline(always)]
    unsafe fn run<L: Lanes, const ROWS: usize, const PANELS: usize>(self) {
        // SAFETY: the caller upholds the contract of `Lanes`.
        unsafe {
            match self.visible.begin_late() {
                false => self.rows::<L, ROWS, false>(),
                true => self.rows::<L, ROWS, true>(),
            }
        }
    }

    fn run_scalar(self) {
        scalar::softmax(self);
    }
}

impl Softmax<'_> {
    /// The rows, of which some begin behind the tile's first key if there is a `WINDOW`.
    ///
    /// # Safety
    ///
    /// As for [`Lanes`].
    #[inline(always)]
    unsafe fn rows<L: Lanes, const ROWS: usize, const WINDOW: bool>(self) {
        let tile = self;
        let rows = tile.visible.rows();
        let widest = tile.visible.last().next_multiple_of(LANES);
        assert!(tile.stride >= widest && tile.scores.len() >= rows * tile.stride, "the scores are too few");
        assert!(tile.states.len() >= rows && tile.rescale.len() >= rows, "a state per row is needed");
        for row in 0..rows {
            let seen = Seen::new::<WINDOW>(tile.visible.row(row));
            let group = tile.visible.group_panels(row, ROWS);
            let scores = &mut tile.scores[row * tile.stride..][..tile.stride];
            if seen.keys.is_empty() {
                scores[group.start * LANES..group.end * LANES].fill(0.0);
                tile.rescale[row] = 1.0;
                continue;
            }
            seen.fill_outside(group, scores, 1);
            let scores = scores.as_mut_ptr();
            // SAFETY: panels that hold what the row sees lie within the row, whose length is checked above.
            unsafe {
                let lowest = L::splat(f32::NEG_INFINITY);
                let mut max = lowest;
                for panel in seen.whole() {
                    max = L::max(max, L::load(scores.add(panel * LANES)));
                }
                if seen.cut_first != NO_PANEL {
                    let panel = seen.cut_first;
                    max = L::max(max, seen.or::<L>(L::load(scores.add(panel * LANES)), panel, lowest));
                }
                if seen.cut_last != NO_PANEL {
                    let panel = seen.cut_last;
                    max = L::max(max, seen.or::<L>(L::load(scores.add(panel * LANES)), panel, lowest));
                }
                let state = &mut tile.states[row];
                let max = L::reduce_max(max).max(state.max);
                let rescale = decay(state.max, max);

                let max_lanes = L::splat(max);
                let mut sum = L::splat(0.0);
                let mut cut = seen.first_cut;
                for panel in seen.panels.clone() {
                    let score = scores.add(panel * LANES);
                    let mut weight = power::<L, 5>(L::sub(L::load(score), max_lanes), tile.exact);
                    if panel == cut {
                        weight = seen.or::<L>(weight, panel, L::splat(0.0));
                        cut = seen.cut_last;
                    }
                    sum = L::add(sum, weight);
                    L::store(score, weight);
                }
                *state = RowState { max, sum: state.sum * rescale + L::reduce_add(sum) };
                tile.rescale[row] = rescale;
            }
        }
    }
}

impl Kernel for SoftmaxIntegers<'_, '_> {
    #[inline(always)]
    unsafe fn run<L: Lanes, const ROWS: usize, const PANELS: usize>(self) {
        let SoftmaxIntegers(tile) = self;
        check(tile);
        // SAFETY: the caller upholds the contract of `Lanes`.
        unsafe {
            match (tile.bound, tile.visible.begin_late()) {
                (None, false) => softmax_integers::<L, ROWS, false, false>(tile),
                (None, true) => softmax_integers::<L, ROWS, false, true>(tile),
                (Some(_), _) => softmax_integers::<L, ROWS, true, true>(tile),
            }
        }
    }
}

/// The rows of a tile that was checked.
///
/// # Safety
///
/// As for [`Lanes`].
#[inline(always)]
unsafe fn softmax_integers<L: Lanes, const ROWS: usize, const BOUND: bool, const WINDOW: bool>(tile: &mut IntegerTile) {
    tile.imprecise.clear();
    // All maxima first: on short rows their latency would otherwise stand before every row's weights.
    for row in 0..tile.visible.rows() {
        // SAFETY: as below; of a row without keys the panel is looked at in which it begins and ends, if it is cut.
        tile.rescale[row] = unsafe { IntRow::<L, BOUND, WINDOW>::new(tile, row, 0.0).largest() };
    }
    for row in 0..tile.visible.rows() {
        let seen = Seen::new::<WINDOW>(tile.visible.row(row));
        let group = tile.visible.group_panels(row, ROWS);
        let weights = &mut tile.weights[row * tile.stride / 2..][..tile.stride / 2];
        if seen.keys.is_empty() {
            weights[group.start * LANES / 2..group.end * LANES / 2].fill(0);
            (tile.rescale[row], tile.weight_units[row]) = (1.0, 0.0);
            continue;
        }
        seen.fill_outside(group, weights, 2);
        let weights = weights.as_mut_ptr().cast::<i16>();
        let scaled_values = !tile.value_scales.is_empty();
        // SAFETY: panels that hold what the row sees lie within its scores, weights and scales, checked before.
        unsafe {
            let scores = IntRow::<L, BOUND, WINDOW>::new(tile, row, tile.rescale[row]);
            let zero = L::splat(0.0);
            let (mut total, mut scaled_total, mut rounded_total) = (zero, zero, L::splat_int(0));
            let mut cut = seen.first_cut;
            for panel in seen.panels.clone() {
                let mut weight = scores.weight(panel);
                if panel == cut {
                    weight = seen.or::<L>(weight, panel, zero);
                    cut = seen.cut_last;
                }
                total = L::add(total, weight);
                let weight = scores.scale(panel, weight);
                if scaled_values {
                    scaled_total = L::add(scaled_total, weight);
                }
                let rounded = L::round_to_int(weight);
                rounded_total = L::add_int(rounded_total, rounded);
                L::store_narrow(weights.add(panel * LANES), rounded);
            }
            let total = L::reduce_add(total);
            let mut rounded_total = L::reduce_add_int(rounded_total);
            let unrounded_total = if scaled_values { L::reduce_add(scaled_total) } else { total };

            let mut halvings = 0;
            if rounded_total >= SUM_LIMIT {
                // A flat row: many large weights, which can spare a few low bits.
                halvings = (rounded_total / SUM_LIMIT).ilog2() as i32 + 1;
                rounded_total = shift_right(weights, &seen.panels, halvings);
            } else if (unrounded_total - rounded_total as f32).abs() > LOST_SHARE * unrounded_total {
                tile.imprecise.push(row);
            }

            let state = &mut tile.states[row];
            let max = scores.max.max(state.max);
            let rescale = decay(state.max, max);
            let unit = decay(scores.max, max) * (1.0 / (1 << WEIGHT_BITS) as f32);
            let weight_unit = unit * (1 << halvings) as f32;
            // The weights as the values meet them make the best divisor, rounding included, unless they are scaled.
            let sum = if scaled_values { total * unit } else { rounded_total as f32 * weight_unit };
            *state = RowState { max, sum: state.sum * rescale + sum };
            (tile.rescale[row], tile.weight_units[row]) = (rescale, weight_unit);
        }
    }
}

impl Kernel for RefineIntegers<'_, '_> {
    #[inline(always)]
    unsafe fn run<L: Lanes, const ROWS: usize, const PANELS: usize>(self) {
        let RefineIntegers(tile) = self;
        check(tile);
        // SAFETY: the caller upholds the contract of `Lanes`.
        unsafe {
            match tile.bound {
                None => refine_integers::<L, ROWS, false>(tile),
                Some(_) => refine_integers::<L, ROWS, true>(tile),
            }
        }
    }
}

/// The rows of a tile that was checked.
///
/// # Safety
///
/// As for [`Lanes`].
#[inline(always)]
unsafe fn refine_integers<L: Lanes, const ROWS: usize, const BOUND: bool>(tile: &mut IntegerTile) {
    for row in 0..tile.visible.rows() {
        tile.rescale[row] = 1.0;
        let weights = &mut tile.weights[row * tile.stride / 2..][..tile.stride / 2];
        if !tile.imprecise.contains(&row) {
            let group = tile.visible.group_panels(row, ROWS);
            weights[group.start * LANES / 2..group.end * LANES / 2].fill(0);
            tile.weight_units[row] = 0.0;
            continue;
        }
        let weights = weights.as_mut_ptr().cast::<i16>();
        // SAFETY: panels that hold what the row sees lie within its scores, weights and scales, checked before.
        unsafe {
            let largest = IntRow::<L, BOUND, true>::new(tile, row, 0.0).largest();
            let scores = IntRow::<L, BOUND, true>::new(tile, row, largest);
            let mut sum = L::splat_int(0);
            for panel in scores.seen.panels.clone() {
                let weight = scores.seen.or::<L>(scores.weight(panel), panel, L::splat(0.0));
                let weight = scores.scale(panel, weight);
                let left = L::sub(weight, L::to_float(L::round_to_int(weight)));
                let remainder = L::round_to_int(L::mul(left, L::splat((1 << REMAINDER_BITS) as f32)));
                sum = L::add_int(sum, remainder);
                L::store_narrow(weights.add(panel * LANES), remainder);
            }
            tile.weight_units[row] *= 1.0 / (1 << REMAINDER_BITS) as f32;
            if tile.value_scales.is_empty() {
                tile.states[row].sum += L::reduce_add_int(sum) as f32 * tile.weight_units[row];
            }
        }
    }
}

/// Every row of the tile has its scores, weights, scales and factors.
fn check(tile: &IntegerTile) {
    let rows = tile.visible.rows();
    let widest = tile.visible.last().next_multiple_of(LANES);
    assert!(tile.stride >= widest && tile.stride.is_multiple_of(LANES), "the stride is too small");
    assert!(tile.scores.len() >= rows * tile.stride, "the scores are too few");
    assert!(tile.weights.len() >= rows * tile.stride / 2, "the weights have too little room");
    assert!(tile.score_units.len() >= rows && tile.states.len() >= rows, "a state per row is needed");
    assert!(tile.rescale.len() >= rows && tile.weight_units.len() >= rows, "factors per row are needed");
    for scales in [tile.key_scales, tile.value_scales] {
        assert!(scales.is_empty() || scales.len() >= widest, "a scale per key is needed");
    }
}

/// One row of integer scores, ready to become weights.
struct IntRow<'a, L: Lanes, const BOUND: bool, const WINDOW: bool> {
    scores: &'a [i32],
    seen: Seen,
    unit: f32,
    /// The largest score in units of log₂.
    max: f32,
    shift: L::F,
    bound: Option<Bound<'a>>,
    /// What is added to scores before they are bounded.
    offset: L::F,
    key_scales: &'a [f32],
    value_scales: &'a [f32],
    exact: bool,
}

/// As many panels as the row sees lie within its scores and scales: that is what `check` asserted.
impl<'a, L: Lanes, const BOUND: bool, const WINDOW: bool> IntRow<'a, L, BOUND, WINDOW> {
    inlined! {
        fn new(tile: &IntegerTile<'a>, row: usize, max: f32) -> Self {
            IntRow {
                scores: &tile.scores[row * tile.stride..],
                seen: Seen::new::<WINDOW>(tile.visible.row(row)),
                unit: tile.score_units[row],
                max,
                shift: L::splat(WEIGHT_BITS as f32 - max),
                bound: tile.bound,
                offset: L::splat(if BOUND { tile.bound.map_or(0.0, |bound| bound.offsets[row]) } else { 0.0 }),
                key_scales: tile.key_scales,
                value_scales: tile.value_scales,
                exact: tile.exact,
            }
        }

        /// The largest score that the row sees.
        fn largest(&self) -> f32 {
            let largest = if self.key_scales.is_empty() { self.largest_integer() } else { self.largest_scaled() };
            if BOUND { L::reduce_max(self.score(L::splat(largest))) } else { largest * self.unit }
        }

        /// The same before its unit, where the keys have scales.
        fn largest_scaled(&self) -> f32 {
            let lowest = L::splat(f32::NEG_INFINITY);
            let mut max = lowest;
            for panel in self.seen.whole() {
                max = L::max(max, self.sums(panel));
            }
            if self.seen.cut_first != NO_PANEL {
                max = L::max(max, self.seen.or::<L>(self.sums(self.seen.cut_first), self.seen.cut_first, lowest));
            }
            if self.seen.cut_last != NO_PANEL {
                max = L::max(max, self.seen.or::<L>(self.sums(self.seen.cut_last), self.seen.cut_last, lowest));
            }
            L::reduce_max(max)
        }

        /// The same where they have none.
        fn largest_integer(&self) -> f32 {
            let lowest = L::splat_int(i32::MIN);
            let mut max = lowest;
            for panel in self.seen.whole() {
                max = L::max_int(max, self.integers(panel));
            }
            if self.seen.cut_first != NO_PANEL {
                let panel = self.seen.cut_first;
                max = L::max_int(max, self.seen.or_int::<L>(self.integers(panel), panel, lowest));
            }
            if self.seen.cut_last != NO_PANEL {
                let panel = self.seen.cut_last;
                max = L::max_int(max, self.seen.or_int::<L>(self.integers(panel), panel, lowest));
            }
            L::reduce_max_int(max) as f32
        }

        /// The scores of one panel as they are.
        fn integers(&self, panel: usize) -> L::I { L::load_int(self.scores.as_ptr().add(panel * LANES)) }

        /// The scores of one panel, before the row's unit.
        fn sums(&self, panel: usize) -> L::F { scaled::<L>(L::to_float(self.integers(panel)), self.key_scales, panel) }

        /// Scores in units of log₂, of scores before the row's unit.
        fn score(&self, sums: L::F) -> L::F {
            match self.bound {
                Some(bound) if BOUND => {
                    bound.softcap.apply::<L>(L::mul_add(sums, L::splat(self.unit), self.offset), self.exact)
                }
                _ => L::mul(sums, L::splat(self.unit)),
            }
        }

        /// The weights of one panel, as if the row saw all of it: 2^14 for the largest score of the tile.
        fn weight(&self, panel: usize) -> L::F {
            let power_of_two = match BOUND {
                true => L::add(self.score(self.sums(panel)), self.shift),
                false => L::mul_add(self.sums(panel), L::splat(self.unit), self.shift),
            };
            power::<L, 4>(power_of_two, self.exact)
        }

        /// The weights of one panel as the values must meet them.
        fn scale(&self, panel: usize, weight: L::F) -> L::F { scaled::<L>(weight, self.value_scales, panel) }
    }
}

inlined! {
    /// The values of one panel times their keys' scales, if there are any.
    fn scaled<L: Lanes>(values: L::F, scales: &[f32], panel: usize) -> L::F {
        if scales.is_empty() { values } else { L::mul(values, L::load(scales.as_ptr().add(panel * LANES))) }
    }
}

/// Divides the weights of some panels by 2^`halvings`, rounding to nearest, and returns their new sum.
#[inline(always)]
unsafe fn shift_right(weights: *mut i16, panels: &Range<usize>, halvings: i32) -> i32 {
    // SAFETY: the caller promises these panels of 16 weights.
    let weights = unsafe { std::slice::from_raw_parts_mut(weights.add(panels.start * LANES), panels.len() * LANES) };
    let half = 1i16 << (halvings - 1);
    let mut sum = 0;
    for weight in weights {
        // Weights are at most 2^14 and `half` at most 2^13, so the sum fits.
        *weight = (*weight + half) >> halvings;
        sum += i32::from(*weight);
    }
    sum
}
