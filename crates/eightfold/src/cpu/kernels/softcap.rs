//! Scores that stay below a bound: c · tanh(score / c), in units of log₂.

use super::{Kernel, LANES, Lanes, Visible, panels, scalar};
use crate::cpu::lanes::inlined;
use std::f32::consts::{LN_2, LOG2_E};

/// The bound c.
#[derive(Debug, Clone, Copy)]
pub(in crate::cpu) struct Softcap {
    /// c in units of log₂.
    cap: f32,
    /// 2 / c in natural units: what a score in units of log₂ is multiplied by to be log₂ of e^(2 · score / c).
    steepness: f32,
}

/// Taylor's coefficients of (2^f − 1) / f, from the highest power down: on [−½, ½] what follows them is below 2e-8.
const POWER_LESS_1: [f32; 7] =
    [1.525_273_4e-5, 1.540_353e-4, 1.333_355_8e-3, 9.618_129e-3, 5.550_411e-2, 2.402_265e-1, LN_2];

/// Beyond this power of two tanh is 1 in f32.
const LARGEST_POWER: f32 = 30.0;

/// Below this power of two tanh(x) / x is 1 in f32.
const SMALLEST_POWER: f32 = 1e-10;

impl Softcap {
    /// A bound in natural units, finite and positive.
    pub(in crate::cpu) fn new(softcap: f32) -> Self {
        // Far beyond these limits nothing is capped, and everything.
        Softcap { cap: (softcap * LOG2_E).min(f32::MAX), steepness: (2.0 / softcap).min(1e30) }
    }

    /// What no score exceeds, in units of log₂.
    pub(in crate::cpu) fn largest(self) -> f32 {
        self.cap
    }

    /// One score, by the library's tanh.
    pub(super) fn apply_exactly(self, score: f32) -> f32 {
        let ratio = score / self.cap;
        // There tanh(x) is x in f32, and the ratio itself may be too small for f32.
        if ratio.abs() < 1e-4 { score } else { self.cap * ratio.tanh() }
    }

    inlined! {
        /// Sixteen scores, with a relative error below 1e-6, or by the library's tanh.
        pub(super) fn apply<L: Lanes>(&self, score: L::F, exact: bool) -> L::F {
            if exact {
                let mut lanes = [0.0; LANES];
                L::store(lanes.as_mut_ptr(), score);
                return L::load(lanes.map(|score| self.apply_exactly(score)).as_ptr());
            }
            // With u = e^(-2x), tanh x is (1 - u) / (1 + u), and the capped score is the score times (tanh x) / x. Both are even.
            let power = L::max(L::mul(L::abs(score), L::splat(self.steepness)), L::splat(SMALLEST_POWER));
            let (zero, one) = (L::splat(0.0), L::splat(1.0));
            let held = L::max(L::sub(zero, power), L::splat(-LARGEST_POWER));
            let (fraction, whole) = L::split_exponent(held);
            let mut less_1 = L::splat(POWER_LESS_1[0]);
            for &coefficient in &POWER_LESS_1[1..] {
                less_1 = L::mul_add(less_1, fraction, L::splat(coefficient));
            }
            let whole = L::scale_by(one, whole);
            // 1 - u, in which nothing cancels where u is near 1.
            let rest = L::sub(L::sub(one, whole), L::mul(L::mul(less_1, fraction), whole));
            let x = L::mul(power, L::splat(LN_2 / 2.0));
            L::mul(score, L::div(rest, L::mul(L::sub(L::splat(2.0), rest), x)))
        }
    }
}

/// What happens to the scores of a tile before the softmax.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Bound<'a> {
    pub softcap: Softcap,
    /// What is added to each row's scores first: the score of the mean key, where K was centred.
    pub offsets: &'a [f32],
}

/// The scores of a tile, f32 and scaled, become bounded in place.
pub(in crate::cpu) struct CapScores<'a> {
    /// One row of `stride` scores per query.
    pub scores: &'a mut [f32],
    pub stride: usize,
    pub visible: Visible<'a>,
    pub bound: Bound<'a>,
    /// Whether to use the library's tanh.
    pub exact: bool,
}

impl Kernel for CapScores<'_> {
    #[inline(always)]
    unsafe fn run<L: Lanes, const ROWS: usize, const PANELS: usize>(self) {
        let CapScores { scores, stride, visible, bound: Bound { softcap, offsets }, exact } = self;
        let rows = visible.rows();
        let widest = visible.last().next_multiple_of(LANES);
        assert!(stride >= widest && scores.len() >= rows * stride, "the scores are too few");
        for row in 0..rows {
            let scores = scores[row * stride..][..stride].as_mut_ptr();
            // SAFETY: panels that hold what a row sees lie within the row, whose length is checked above.
            unsafe {
                let offset = L::splat(offsets[row]);
                for panel in panels(visible.row(row)) {
                    let score = scores.add(panel * LANES);
                    L::store(score, softcap.apply::<L>(L::add(L::load(score), offset), exact));
                }
            }
        }
    }

    fn run_scalar(self) {
        scalar::cap_scores(self);
    }
}
