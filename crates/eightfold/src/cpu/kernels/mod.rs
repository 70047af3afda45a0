//! The micro-kernels, and the instruction sets that run them.
//!
//! A [`Kernel`] is a struct of operands whose body is written once over [`Lanes`]. [`InstructionSet::run`] compiles it
//! once per instruction set, inside a function that enables it; whoever holds an [`InstructionSet`] got it from
//! [`InstructionSet::of`], which looks at the CPU first.

mod direct;
mod normalise;
mod pack;
mod prefetch;
mod product;
mod scalar;
mod softcap;
mod softmax;
#[cfg(test)]
mod tests;

use super::config::Simd;
use super::isa;
#[cfg(all(target_arch = "aarch64", target_feature = "neon"))]
use super::lanes::neon::Neon;
use super::lanes::{LANES, Lanes, portable::Portable};
#[cfg(target_arch = "x86_64")]
use super::lanes::{avx2::Avx2, avx512::Avx512};
use crate::error::Result;
pub(super) use direct::{DIRECT_ROWS, DirectScores, DirectValues, OfHeads};
pub(super) use normalise::{Normalise, Sums};
pub(super) use pack::{Order, Pack, PackIntegers, Rounding};
pub(super) use prefetch::fetch_row;
pub(super) use product::{Scores, Values};
pub(super) use softcap::{Bound, CapScores, Softcap};
pub(super) use softmax::{IntegerTile, RefineIntegers, RowState, Softmax, SoftmaxIntegers};
use std::ops::Range;

/// Operands, and what becomes of them in the registers of any instruction set.
pub(super) trait Kernel: Sized {
    /// Works on `ROWS` rows by `PANELS` panels of 16 lanes at a time. Asserts that the operands are long enough.
    ///
    /// # Safety
    ///
    /// As for [`Lanes`].
    unsafe fn run<L: Lanes, const ROWS: usize, const PANELS: usize>(self);

    /// Whether it decodes for few rows, so that most of its time may go into that.
    const DECODES: bool = false;

    /// The same, one element at a time where the scalar baseline has a loop of its own for it.
    fn run_scalar(self) {
        portable(self);
    }
}

/// An instruction set that this CPU has.
#[derive(Clone, Copy)]
pub(super) struct InstructionSet {
    simd: Simd,
    #[cfg(target_arch = "x86_64")]
    vnni: bool,
    #[cfg(target_arch = "x86_64")]
    vbmi: bool,
}

impl InstructionSet {
    /// The instruction set of a SIMD level, if this CPU has it.
    pub(super) fn of(simd: Simd) -> Result<Self> {
        isa::check(simd)?;
        let simd = if simd.has_tiles() { isa::best() } else { simd };
        #[cfg(target_arch = "x86_64")]
        let isa::Features { avx512_vnni: vnni, avx512_vbmi: vbmi, .. } = isa::Features::detect();
        Ok(InstructionSet {
            simd,
            #[cfg(target_arch = "x86_64")]
            vnni,
            #[cfg(target_arch = "x86_64")]
            vbmi,
        })
    }

    /// Query rows per head of K and V up to which products with codes where they lie are ahead of packing. Packing costs as much
    /// for few rows as for many; other instruction sets than AVX-512 decode every code again for each four rows.
    pub(super) fn direct_rows(self) -> usize {
        match self.simd {
            Simd::Scalar => 0,
            Simd::Portable | Simd::Neon | Simd::Avx2 => 8,
            Simd::Avx512 => 24,
            Simd::Amx | Simd::AmxTwin => unreachable!("`of` takes the vectors that work beside the tiles"),
        }
    }

    /// Runs a kernel.
    pub(super) fn run<K: Kernel>(self, kernel: K) {
        match self.simd {
            Simd::Scalar => kernel.run_scalar(),
            Simd::Portable => portable(kernel),
            // SAFETY: `of` made this value, so the CPU has the instruction set.
            #[cfg(target_arch = "x86_64")]
            Simd::Avx2 => unsafe { avx2(kernel) },
            // SAFETY: as above, with VBMI.
            #[cfg(target_arch = "x86_64")]
            Simd::Avx512 if K::DECODES && self.vbmi => unsafe { avx512_vbmi(kernel) },
            // SAFETY: as above, with VNNI.
            #[cfg(target_arch = "x86_64")]
            Simd::Avx512 if self.vnni => unsafe { avx512_vnni(kernel) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Simd::Avx512 => unsafe { avx512(kernel) },
            #[cfg(not(target_arch = "x86_64"))]
            Simd::Avx2 | Simd::Avx512 => unreachable!("`of` refuses it on this architecture"),
            Simd::Amx | Simd::AmxTwin => unreachable!("`of` takes the vectors that work beside the tiles"),
            #[cfg(all(target_arch = "aarch64", target_feature = "neon"))]
            Simd::Neon => neon(kernel),
            #[cfg(not(all(target_arch = "aarch64", target_feature = "neon")))]
            Simd::Neon => unreachable!("`of` refuses it on this architecture"),
        }
    }
}

#[inline(never)]
fn portable(kernel: impl Kernel) {
    // The sixteen registers that every x86-64 has are of four lanes each: two rows of sums fill half of them.
    const ROWS: usize = if cfg!(target_arch = "x86_64") { 2 } else { 4 };
    // SAFETY: these lanes need no instruction set beyond the target's own.
    unsafe { kernel.run::<Portable, ROWS, 1>() }
}

// Twenty-four of thirty-two registers hold sums: 6 rows × 16 lanes in four registers each.
#[cfg(all(target_arch = "aarch64", target_feature = "neon"))]
#[inline(never)]
fn neon(kernel: impl Kernel) {
    // SAFETY: the target has the instruction set.
    unsafe { kernel.run::<Neon, 6, 1>() }
}

// Twelve of sixteen registers hold sums: 6 rows × 16 lanes in two registers each.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn avx2(kernel: impl Kernel) {
    // SAFETY: this function enables the instruction set.
    unsafe { kernel.run::<Avx2, 6, 1>() }
}

// Sixteen of thirty-two registers hold sums: enough to hide the latency, with half the broadcasts of one panel.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
fn avx512(kernel: impl Kernel) {
    // SAFETY: this function enables the instruction set.
    unsafe { kernel.run::<Avx512<false, false>, 8, 2>() }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn avx512_vnni(kernel: impl Kernel) {
    // SAFETY: this function enables the instruction set.
    unsafe { kernel.run::<Avx512<true, false>, 8, 2>() }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")]
fn avx512_vbmi(kernel: impl Kernel) {
    // SAFETY: this function enables the instruction set.
    unsafe { kernel.run::<Avx512<false, true>, 8, 2>() }
}

/// The keys of a tile that each row sees, counted from the tile's first.
///
/// Kernels work on groups of rows, and size their loops by where the first row of a group begins to see and where the last one
/// ends, so a row must neither begin nor end before the one before it.
#[derive(Clone, Copy)]
pub(super) struct Visible<'a>(&'a [Range<usize>]);

impl<'a> Visible<'a> {
    /// Asserts what kernels rely on.
    pub(super) fn new(keys: &'a [Range<usize>]) -> Self {
        let (mut start, mut end, mut sorted) = (0, 0, true);
        for keys in keys {
            sorted &= (keys.start >= start) & (keys.end >= end) & (keys.start <= keys.end);
            (start, end) = (keys.start, keys.end);
        }
        assert!(
            sorted,
            "a row begins and ends to see no earlier than the one before, and ends no earlier than it begins"
        );
        Visible(keys)
    }

    /// Whether some row begins to see behind the tile's first key.
    fn begin_late(self) -> bool {
        self.0.last().is_some_and(|keys| keys.start > 0)
    }

    /// The keys that each row sees.
    pub(super) fn ranges(self) -> &'a [Range<usize>] {
        self.0
    }

    fn rows(self) -> usize {
        self.0.len()
    }

    /// What a row sees.
    #[inline(always)]
    fn row(self, row: usize) -> Range<usize> {
        self.0[row].clone()
    }

    /// The end of what any row sees.
    fn last(self) -> usize {
        self.0.last().map_or(0, |keys| keys.end)
    }

    /// From the first to the last key that some row sees.
    fn all(self) -> Range<usize> {
        self.of_rows(0..self.rows())
    }

    /// From the first to the last key that some of these rows sees.
    #[inline(always)]
    fn of_rows(self, rows: Range<usize>) -> Range<usize> {
        if rows.is_empty() { 0..0 } else { self.0[rows.start].start..self.0[rows.end - 1].end }
    }

    /// The panels that hold what the group of a row sees, in groups of `rows_per_group`: as far as products run.
    #[inline(always)]
    fn group_panels(self, row: usize, rows_per_group: usize) -> Range<usize> {
        let first = row / rows_per_group * rows_per_group;
        panels(self.of_rows(first..self.rows().min(first + rows_per_group)))
    }
}

/// The panels that hold these keys.
#[inline(always)]
fn panels(keys: Range<usize>) -> Range<usize> {
    keys.start / LANES..keys.end.div_ceil(LANES)
}
