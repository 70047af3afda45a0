//! One tile of the online softmax: scores become weights, and each row's maximum and sum move on.

use crate::cpu::lanes::{LANES, Lanes, exp2};

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

/// The scores of a tile, f32 and scaled, which become weights in place.
pub(in crate::cpu) struct FloatTile<'a> {
    /// One row of `stride` scores per query.
    pub scores: &'a mut [f32],
    /// Scores from one row to the next.
    pub stride: usize,
    /// Keys that each row sees.
    pub visible: &'a [usize],
    /// The rows' running softmax.
    pub states: &'a mut [RowState],
    /// Receives what each row of the output must be multiplied by.
    pub alpha: &'a mut [f32],
    /// Whether to use the library's exponential.
    pub exact: bool,
}

/// The scores of a tile as integers, and the integer weights they become.
pub(in crate::cpu) struct IntTile<'a> {
    /// One row of `stride` scores per query.
    pub scores: &'a [i32],
    /// Scores from one row to the next.
    pub stride: usize,
    /// What a score is multiplied by to be in units of log₂, for each row.
    pub units: &'a [f32],
    /// What each key's scores are multiplied by beside that; empty where all are 1.
    pub key_scales: &'a [f32],
    /// What each key's weights are multiplied by before they meet the values; empty where all are 1.
    pub value_scales: &'a [f32],
    /// Keys that each row sees.
    pub visible: &'a [usize],
    /// The rows' running softmax.
    pub states: &'a mut [RowState],
    /// Receives the weights: pairs of i16, `stride` / 2 words per row.
    pub weights: &'a mut [i32],
    /// Receives what each row of the output must be multiplied by.
    pub alpha: &'a mut [f32],
    /// Receives what each row's integer sums must be multiplied by.
    pub beta: &'a mut [f32],
    /// Receives the rows whose rounded weights lost too much of their sum.
    pub coarse: &'a mut Vec<usize>,
    /// Whether to use the library's exponential.
    pub exact: bool,
}

/// A weight of 1 is 2^14: the largest power of two that leaves i16 a margin.
const WEIGHT_BITS: i32 = 14;
/// Row sums of integer weights stay below this, so that Σ weight·value fits an i32 with values up to 2^11.
const SUM_LIMIT: i32 = (1 << 20) - 1024;
/// A row whose rounded weights miss its sum by more than this share gets a second limb.
const LOST_SHARE: f32 = 1.0 / 2048.0;
/// The second limb holds what rounding left, in units of 2^-9 of the first's.
const LIMB_BITS: i32 = 9;

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

/// Rows are zero-filled as far as the last row of their group sees, since the product runs that far.
fn group_panels(visible: &[usize], row: usize, rows_per_group: usize) -> usize {
    let last = (row / rows_per_group * rows_per_group + rows_per_group).min(visible.len()) - 1;
    visible[last].div_ceil(LANES)
}

/// Softmax over a tile in f32.
///
/// # Safety
///
/// As for [`Lanes`].
#[inline(always)]
pub(super) unsafe fn float<L: Lanes, const ROWS: usize>(tile: &mut FloatTile) {
    assert!(tile.visible.is_sorted(), "a row sees no less than the one before");
    let rows = tile.visible.len();
    let widest = tile.visible.last().map_or(0, |keys| keys.div_ceil(LANES)) * LANES;
    assert!(tile.stride >= widest && tile.scores.len() >= rows * tile.stride, "the scores are too few");
    assert!(tile.states.len() >= rows && tile.alpha.len() >= rows, "a state per row is needed");
    for row in 0..rows {
        let keys = tile.visible[row];
        let panels = group_panels(tile.visible, row, ROWS);
        let scores = &mut tile.scores[row * tile.stride..][..panels * LANES];
        if keys == 0 {
            scores.fill(0.0);
            tile.alpha[row] = 1.0;
            continue;
        }
        let (full, rest) = (keys / LANES, keys % LANES);
        if keys.div_ceil(LANES) < panels {
            scores[keys.next_multiple_of(LANES)..].fill(0.0);
        }
        let scores = scores.as_mut_ptr();
        // SAFETY: panels up to ⌈keys / 16⌉ lie within the row, whose length is checked above.
        unsafe {
            let lowest = L::splat(f32::NEG_INFINITY);
            let mut max = lowest;
            for panel in 0..full {
                max = L::max(max, L::load(scores.add(panel * LANES)));
            }
            if rest > 0 {
                max = L::max(max, L::first_or(L::load(scores.add(full * LANES)), rest, lowest));
            }
            let state = &mut tile.states[row];
            let max = L::reduce_max(max).max(state.max);
            let alpha = decay(state.max, max);

            let max_lanes = L::splat(max);
            let mut sum = L::splat(0.0);
            for panel in 0..keys.div_ceil(LANES) {
                let score = scores.add(panel * LANES);
                let mut weight = power::<L, 5>(L::sub(L::load(score), max_lanes), tile.exact);
                if panel == full {
                    weight = L::first_or(weight, rest, L::splat(0.0));
                }
                sum = L::add(sum, weight);
                L::store(score, weight);
            }
            *state = RowState { max, sum: state.sum * alpha + L::reduce_add(sum) };
            tile.alpha[row] = alpha;
        }
    }
}

/// Softmax over a tile of integer scores. Weights are relative to the row's maximum *in this tile*, so that
/// their 14 bits are spent where this tile needs them; `beta` carries the rest.
///
/// # Safety
///
/// As for [`Lanes`].
#[inline(always)]
pub(super) unsafe fn int<L: Lanes, const ROWS: usize>(tile: &mut IntTile) {
    check(tile);
    tile.coarse.clear();
    // All maxima first: on short rows their latency would otherwise stand before every row's weights.
    for row in 0..tile.visible.len() {
        // SAFETY: as below; a row without keys has none to look at.
        tile.alpha[row] = unsafe { IntRow::<L>::new(tile, row, 0.0).largest() } * tile.units[row];
    }
    for row in 0..tile.visible.len() {
        let keys = tile.visible[row];
        let panels = group_panels(tile.visible, row, ROWS);
        let weights = &mut tile.weights[row * tile.stride / 2..][..panels * LANES / 2];
        if keys == 0 {
            weights.fill(0);
            (tile.alpha[row], tile.beta[row]) = (1.0, 0.0);
            continue;
        }
        if keys.div_ceil(LANES) < panels {
            weights[keys.next_multiple_of(LANES) / 2..].fill(0);
        }
        let weights = weights.as_mut_ptr().cast::<i16>();
        let scaled_values = !tile.value_scales.is_empty();
        // SAFETY: panels up to ⌈keys / 16⌉ lie within the row's scores, weights and scales, checked above.
        unsafe {
            let scores = IntRow::<L>::new(tile, row, tile.alpha[row]);
            let zero = L::splat(0.0);
            let (mut total, mut scaled_total, mut rounded_total) = (zero, zero, L::splat_int(0));
            for panel in 0..keys.div_ceil(LANES) {
                let weight = scores.weight(panel);
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
                rounded_total = shift_right(weights, keys.div_ceil(LANES), halvings);
            } else if (unrounded_total - rounded_total as f32).abs() > LOST_SHARE * unrounded_total {
                tile.coarse.push(row);
            }

            let state = &mut tile.states[row];
            let max = scores.max.max(state.max);
            let alpha = decay(state.max, max);
            let unit = decay(scores.max, max) * (1.0 / (1 << WEIGHT_BITS) as f32);
            let beta = unit * (1 << halvings) as f32;
            // The weights as the values meet them make the best divisor, rounding included, unless they are scaled.
            let sum = if scaled_values { total * unit } else { rounded_total as f32 * beta };
            *state = RowState { max, sum: state.sum * alpha + sum };
            (tile.alpha[row], tile.beta[row]) = (alpha, beta);
        }
    }
}

/// Replaces the weights of a tile by what rounding left of them in the coarse rows, and by zero in the others:
/// multiplied with the values once more they make those rows as good as 23-bit weights.
///
/// # Safety
///
/// As for [`Lanes`].
#[inline(always)]
pub(super) unsafe fn refine<L: Lanes, const ROWS: usize>(tile: &mut IntTile) {
    check(tile);
    for row in 0..tile.visible.len() {
        tile.alpha[row] = 1.0;
        if !tile.coarse.contains(&row) {
            let panels = group_panels(tile.visible, row, ROWS);
            tile.weights[row * tile.stride / 2..][..panels * LANES / 2].fill(0);
            tile.beta[row] = 0.0;
            continue;
        }
        let panels = tile.visible[row].div_ceil(LANES);
        let weights = tile.weights[row * tile.stride / 2..][..panels * LANES / 2].as_mut_ptr().cast::<i16>();
        // SAFETY: panels up to ⌈keys / 16⌉ lie within the row's scores, weights and scales, checked above.
        unsafe {
            let largest = IntRow::<L>::new(tile, row, 0.0).largest() * tile.units[row];
            let scores = IntRow::<L>::new(tile, row, largest);
            let mut sum = L::splat_int(0);
            for panel in 0..panels {
                let weight = scores.scale(panel, scores.weight(panel));
                let left = L::sub(weight, L::to_float(L::round_to_int(weight)));
                let limb = L::round_to_int(L::mul(left, L::splat((1 << LIMB_BITS) as f32)));
                sum = L::add_int(sum, limb);
                L::store_narrow(weights.add(panel * LANES), limb);
            }
            tile.beta[row] *= 1.0 / (1 << LIMB_BITS) as f32;
            if tile.value_scales.is_empty() {
                tile.states[row].sum += L::reduce_add_int(sum) as f32 * tile.beta[row];
            }
        }
    }
}

/// Every row of the tile has its scores, weights, scales and factors.
fn check(tile: &IntTile) {
    assert!(tile.visible.is_sorted(), "a row sees no less than the one before");
    let rows = tile.visible.len();
    let widest = tile.visible.last().map_or(0, |keys| keys.div_ceil(LANES)) * LANES;
    assert!(tile.stride >= widest && tile.stride.is_multiple_of(LANES), "the stride is too small");
    assert!(tile.scores.len() >= rows * tile.stride, "the scores are too few");
    assert!(tile.weights.len() >= rows * tile.stride / 2, "the weights have too little room");
    assert!(tile.units.len() >= rows && tile.states.len() >= rows, "a state per row is needed");
    assert!(tile.alpha.len() >= rows && tile.beta.len() >= rows, "factors per row are needed");
    for scales in [tile.key_scales, tile.value_scales] {
        assert!(scales.is_empty() || scales.len() >= widest, "a scale per key is needed");
    }
}

/// One row of integer scores, ready to become weights.
struct IntRow<L: Lanes> {
    scores: *const i32,
    keys: usize,
    unit: L::F,
    /// The largest score in units of log₂.
    max: f32,
    shift: L::F,
    /// Null where all scales are 1.
    key_scales: *const f32,
    value_scales: *const f32,
    exact: bool,
}

// SAFETY of every block: the pointers come from slices that `check` found long enough for the row's panels.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<L: Lanes> IntRow<L> {
    #[inline(always)]
    unsafe fn new(tile: &IntTile, row: usize, max: f32) -> Self {
        let pointer = |scales: &[f32]| if scales.is_empty() { std::ptr::null() } else { scales.as_ptr() };
        unsafe {
            IntRow {
                scores: tile.scores[row * tile.stride..].as_ptr(),
                keys: tile.visible[row],
                unit: L::splat(tile.units[row]),
                max,
                shift: L::splat(WEIGHT_BITS as f32 - max),
                key_scales: pointer(tile.key_scales),
                value_scales: pointer(tile.value_scales),
                exact: tile.exact,
            }
        }
    }

    /// The largest score that the row sees, before its unit.
    #[inline(always)]
    unsafe fn largest(&self) -> f32 {
        let (full, rest) = (self.keys / LANES, self.keys % LANES);
        unsafe {
            if !self.key_scales.is_null() {
                let lowest = L::splat(f32::NEG_INFINITY);
                let mut max = lowest;
                for panel in 0..full {
                    max = L::max(max, self.score(panel));
                }
                if rest > 0 {
                    max = L::max(max, L::first_or(self.score(full), rest, lowest));
                }
                return L::reduce_max(max);
            }
            let lowest = L::splat_int(i32::MIN);
            let mut max = lowest;
            for panel in 0..full {
                max = L::max_int(max, L::load_int(self.scores.add(panel * LANES)));
            }
            if rest > 0 {
                max = L::max_int(max, L::first_or_int(L::load_int(self.scores.add(full * LANES)), rest, lowest));
            }
            L::reduce_max_int(max) as f32
        }
    }

    /// The scores of one panel, before the row's unit.
    #[inline(always)]
    unsafe fn score(&self, panel: usize) -> L::F {
        unsafe {
            let score = L::to_float(L::load_int(self.scores.add(panel * LANES)));
            if self.key_scales.is_null() { score } else { L::mul(score, L::load(self.key_scales.add(panel * LANES))) }
        }
    }

    /// The weights of one panel: 2^14 for the largest score of the tile, 0 for keys that the row does not see.
    #[inline(always)]
    unsafe fn weight(&self, panel: usize) -> L::F {
        unsafe {
            let weight = power::<L, 4>(L::mul_add(self.score(panel), self.unit, self.shift), self.exact);
            if panel == self.keys / LANES { L::first_or(weight, self.keys % LANES, L::splat(0.0)) } else { weight }
        }
    }

    /// The weights of one panel as the values must meet them.
    #[inline(always)]
    unsafe fn scale(&self, panel: usize, weight: L::F) -> L::F {
        unsafe {
            if self.value_scales.is_null() {
                weight
            } else {
                L::mul(weight, L::load(self.value_scales.add(panel * LANES)))
            }
        }
    }
}

/// Divides weights by 2^`halvings`, rounding to nearest, and returns their new sum.
#[inline(always)]
unsafe fn shift_right(weights: *mut i16, panels: usize, halvings: i32) -> i32 {
    // SAFETY: the caller promises `panels` panels of 16 weights.
    let weights = unsafe { std::slice::from_raw_parts_mut(weights, panels * LANES) };
    let half = 1i16 << (halvings - 1);
    let mut sum = 0;
    for weight in weights {
        // Weights are at most 2^14 and `half` at most 2^13, so the sum fits.
        *weight = (*weight + half) >> halvings;
        sum += i32::from(*weight);
    }
    sum
}
