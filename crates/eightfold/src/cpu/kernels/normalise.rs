//! The last step of a row: its sums times a factor, plus the channels' means where V was centred.

use crate::cpu::lanes::{LANES, Lanes};

/// values = sums · factor + means (all zero if empty).
///
/// # Safety
///
/// As for [`Lanes`].
#[inline(always)]
pub(super) unsafe fn row<L: Lanes>(sums: &[f32], factor: f32, means: &[f32], values: &mut [f32]) {
    let width = values.len();
    assert!(sums.len() >= width && (means.is_empty() || means.len() >= width), "a sum per value is needed");
    let whole = width / LANES * LANES;
    for channel in (0..whole).step_by(LANES) {
        // SAFETY: channel + 16 ≤ width, within all three slices by the assertion above.
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
