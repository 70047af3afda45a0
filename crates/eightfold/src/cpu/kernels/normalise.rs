//! The last step of a row: its sums times a factor, plus the channels' means where V was centred, times its keys' share where a
//! sink has the rest.

use super::{Kernel, LANES, Lanes};

/// Rows of sums and what becomes of them.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Sums<'a> {
    /// Row r starts at r · `stride`.
    pub sums: &'a [f32],
    pub stride: usize,
    /// Row r is multiplied by element r · `factor_stride`.
    pub factors: &'a [f32],
    pub factor_stride: usize,
    /// What is added to every row; nothing if empty.
    pub means: &'a [f32],
    /// What row r is multiplied by in the end, at element r · `factor_stride`; 1 if empty.
    pub shares: &'a [f32],
}

/// values = (sums · factor + means) · share, for as many rows of `width` as there are values.
pub(in crate::cpu) struct Normalise<'a> {
    pub rows: &'a Sums<'a>,
    pub width: usize,
    pub values: &'a mut [f32],
}

impl Kernel for Normalise<'_> {
    #[inline(always)]
    unsafe fn run<L: Lanes, const ROWS: usize, const PANELS: usize>(self) {
        let Normalise { rows: &Sums { sums, stride, factors, factor_stride, means, shares }, width, values } = self;
        assert!(means.is_empty() || means.len() >= width, "a mean per channel is needed");
        let whole = width / LANES * LANES;
        for (row, values) in values.chunks_exact_mut(width).enumerate() {
            let sums = &sums[row * stride..][..width];
            let share = if shares.is_empty() { 1.0 } else { shares[row * factor_stride] };
            let factor = factors[row * factor_stride] * share;
            for channel in (0..whole).step_by(LANES) {
                // SAFETY: channel + 16 ≤ width, within all three slices.
                unsafe {
                    let mean = match means.is_empty() {
                        true => L::splat(0.0),
                        false => L::mul(L::load(means.as_ptr().add(channel)), L::splat(share)),
                    };
                    let value = L::mul_add(L::load(sums.as_ptr().add(channel)), L::splat(factor), mean);
                    L::store(values.as_mut_ptr().add(channel), value);
                }
            }
            for channel in whole..width {
                values[channel] = sums[channel] * factor + means.get(channel).unwrap_or(&0.0) * share;
            }
        }
    }
}
