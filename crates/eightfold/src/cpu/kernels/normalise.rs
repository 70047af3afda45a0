//! The last step of a row: its sums times a factor, plus the channels' means where V was centred.

use crate::cpu::lanes::{LANES, Lanes};

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
}

/// values = sums · factor + means, for as many rows of `width` as there are values.
///
/// # Safety
///
/// As for [`Lanes`].
#[inline(always)]
pub(super) unsafe fn rows<L: Lanes>(rows: &Sums, width: usize, values: &mut [f32]) {
    let Sums { sums, stride, factors, factor_stride, means } = *rows;
    assert!(means.is_empty() || means.len() >= width, "a mean per channel is needed");
    let whole = width / LANES * LANES;
    for (row, values) in values.chunks_exact_mut(width).enumerate() {
        let sums = &sums[row * stride..][..width];
        let factor = factors[row * factor_stride];
        for channel in (0..whole).step_by(LANES) {
            // SAFETY: channel + 16 ≤ width, within all three slices.
            unsafe {
                let mean = if means.is_empty() { L::splat(0.0) } else { L::load(means.as_ptr().add(channel)) };
                let value = L::mul_add(L::load(sums.as_ptr().add(channel)), L::splat(factor), mean);
                L::store(values.as_mut_ptr().add(channel), value);
            }
        }
        for channel in whole..width {
            values[channel] = sums[channel] * factor + means.get(channel).unwrap_or(&0.0);
        }
    }
}
