//! Fetching what will be read soon.

use crate::cpu::lanes::LANES;
use crate::cpu::source::Codes;

/// Panels that are fetched ahead of the one that is used where rows lie side by side: CPUs fetch those ahead on their own, but
/// not beyond a page of the system's, and not far enough for memory.
const AHEAD: usize = 8;

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;

/// Sixteen rows that are fetched while a panel is used, row by row: all at once they would hold up what is read.
#[derive(Clone, Copy)]
pub(super) struct Beside {
    /// Null if there is nothing to fetch.
    first: *const u8,
    stride: usize,
}

impl Beside {
    pub(super) const NOTHING: Beside = Beside { first: std::ptr::null(), stride: 0 };

    /// Asks for the first `width` codes of one row.
    #[inline(always)]
    pub(super) fn fetch_row(self, row: usize, width: usize) {
        if !self.first.is_null() {
            fetch_row(self.first.wrapping_add(row * self.stride), width);
        }
    }
}

impl Codes<'_> {
    /// What is fetched while a panel is used.
    #[inline(always)]
    pub(super) fn beside(&self, panel: usize) -> Beside {
        let start = match self.apart.starts.is_empty() {
            true => (panel + AHEAD) * LANES * self.stride,
            false => match self.apart.beside.get(panel) {
                Some(start) => *start,
                None => return Beside::NOTHING,
            },
        };
        Beside { first: self.bytes.as_ptr().wrapping_add(start), stride: self.stride }
    }

    /// Asks for all of that, where panels lie apart.
    #[inline(always)]
    pub(super) fn fetch_beside(&self, panel: usize, width: usize) {
        if !self.apart.starts.is_empty() {
            let beside = self.beside(panel);
            (0..LANES).for_each(|row| beside.fetch_row(row, width));
        }
    }
}

/// Asks for the first `width` codes of a row, wherever that is.
#[inline(always)]
pub(in crate::cpu) fn fetch_row(row: *const u8, width: usize) {
    for offset in (0..width).step_by(LINE_BYTES) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch has no effect but on caches, whatever the address.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(row.wrapping_add(offset).cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (row, offset);
    }
}
