//! The micro-kernels of every instruction set, behind one table of entry points.
//!
//! Each kernel is written once over [`Lanes`] and compiled once per instruction set, inside a function that
//! enables it. [`Kernels`] is the table of those functions; whoever holds one for a [`Simd`] level got it from
//! [`Kernels::of`], which looks at the CPU first.

mod normalise;
mod pack;
mod product;
mod scalar;
mod softmax;
#[cfg(test)]
mod tests;

use super::config::Simd;
use super::isa;
use super::source::Codes;
use crate::error::Result;
pub(super) use normalise::Sums;
pub(super) use pack::Rounding;
pub(super) use product::Weights;
pub(super) use softmax::{FloatTile, IntTile, RowState};

type Scores<W> = unsafe fn(&[W], &[W], usize, &[usize], &mut [W], usize);
type Values<W> = unsafe fn(&Weights<W>, &[W], usize, &[f32], &[usize], &mut [f32]);

/// The entry points of one instruction set.
#[derive(Clone, Copy)]
pub(super) struct Kernels {
    scores_float: Scores<f32>,
    scores_int: Scores<i32>,
    softmax_float: unsafe fn(&mut FloatTile),
    softmax_int: unsafe fn(&mut IntTile),
    refine_int: unsafe fn(&mut IntTile),
    values_float: Values<f32>,
    values_int: Values<i32>,
    normalise: unsafe fn(&Sums, usize, &mut [f32]),
    pack_queries_float: unsafe fn(&Codes, usize, &mut [f32]),
    pack_queries_int: unsafe fn(&Codes, usize, &[f32], &mut Rounding, &mut [i32]),
    pack_keys_float: unsafe fn(&Codes, usize, &mut [f32]),
    pack_keys_int: unsafe fn(&Codes, usize, &[f32], &mut Rounding, &mut [i32]),
    pack_values_float: unsafe fn(&Codes, usize, &mut [f32], usize),
    pack_values_int: unsafe fn(&Codes, usize, &[f32], &mut Rounding, &mut [i32], usize),
}

/// A module of entry points: the kernels over `$lanes`, compiled with the given target features, with register
/// tiles of so many rows by so many 16-wide panels.
///
/// SAFETY of every function in it: whoever calls it runs on a CPU with those features, which is what the
/// kernels demand.
macro_rules! entry_points {
    ($module:ident, $lanes:ty, rows: $float_rows:literal / $int_rows:literal, panels: $panels:literal $(, $feature:meta)?) => {
        #[allow(clippy::undocumented_unsafe_blocks)]
        mod $module {
            use super::product::{self, Float, Pairs, Weights};
            use super::{Codes, FloatTile, IntTile, Kernels, Rounding, Sums, pack, softmax};
            use super::normalise;

            type L = $lanes;

            $(#[$feature])?
            unsafe fn scores_float(q: &[f32], k: &[f32], depth: usize, visible: &[usize], s: &mut [f32], stride: usize) {
                unsafe { product::scores::<Float<L>, $float_rows, $panels>(q, k, depth, visible, s, stride) }
            }
            $(#[$feature])?
            unsafe fn scores_int(q: &[i32], k: &[i32], depth: usize, visible: &[usize], s: &mut [i32], stride: usize) {
                unsafe { product::scores::<Pairs<L>, $int_rows, $panels>(q, k, depth, visible, s, stride) }
            }
            $(#[$feature])?
            unsafe fn softmax_float(tile: &mut FloatTile) {
                unsafe { softmax::float::<L, $float_rows>(tile) }
            }
            $(#[$feature])?
            unsafe fn softmax_int(tile: &mut IntTile) {
                unsafe { softmax::int::<L, $int_rows>(tile) }
            }
            $(#[$feature])?
            unsafe fn refine_int(tile: &mut IntTile) {
                unsafe { softmax::refine::<L, $int_rows>(tile) }
            }
            $(#[$feature])?
            unsafe fn values_float(p: &Weights<f32>, v: &[f32], chunk: usize, units: &[f32], visible: &[usize], o: &mut [f32]) {
                unsafe { product::values::<Float<L>, $float_rows, $panels>(p, v, chunk, units, visible, 1, o) }
            }
            $(#[$feature])?
            unsafe fn values_int(p: &Weights<i32>, v: &[i32], chunk: usize, units: &[f32], visible: &[usize], o: &mut [f32]) {
                unsafe { product::values::<Pairs<L>, $int_rows, $panels>(p, v, chunk, units, visible, 2, o) }
            }
            $(#[$feature])?
            unsafe fn normalise(rows: &Sums, width: usize, values: &mut [f32]) {
                unsafe { normalise::rows::<L>(rows, width, values) }
            }
            $(#[$feature])?
            unsafe fn pack_queries_float(codes: &Codes, width: usize, to: &mut [f32]) {
                unsafe { pack::queries_float::<L>(codes, width, to) }
            }
            $(#[$feature])?
            unsafe fn pack_queries_int(codes: &Codes, width: usize, factors: &[f32], rounding: &mut Rounding, to: &mut [i32]) {
                unsafe { pack::queries_int::<L>(codes, width, factors, rounding, to) }
            }
            $(#[$feature])?
            unsafe fn pack_keys_float(codes: &Codes, width: usize, to: &mut [f32]) {
                unsafe { pack::keys_float::<L>(codes, width, to) }
            }
            $(#[$feature])?
            unsafe fn pack_keys_int(codes: &Codes, width: usize, factors: &[f32], rounding: &mut Rounding, to: &mut [i32]) {
                unsafe { pack::keys_int::<L>(codes, width, factors, rounding, to) }
            }
            $(#[$feature])?
            unsafe fn pack_values_float(codes: &Codes, width: usize, to: &mut [f32], chunk: usize) {
                unsafe { pack::values_float::<L>(codes, width, to, chunk) }
            }
            $(#[$feature])?
            unsafe fn pack_values_int(codes: &Codes, width: usize, factors: &[f32], rounding: &mut Rounding, to: &mut [i32], chunk: usize) {
                unsafe { pack::values_int::<L>(codes, width, factors, rounding, to, chunk) }
            }

            pub(super) const KERNELS: Kernels = Kernels {
                scores_float,
                scores_int,
                softmax_float,
                softmax_int,
                refine_int,
                values_float,
                values_int,
                normalise,
                pack_queries_float,
                pack_queries_int,
                pack_keys_float,
                pack_keys_int,
                pack_values_float,
                pack_values_int,
            };
        }
    };
}

entry_points!(portable, crate::cpu::lanes::portable::Portable, rows: 4 / 4, panels: 1);
// Twelve of sixteen registers hold sums: 6 rows × 16 lanes in two registers each.
#[cfg(target_arch = "x86_64")]
entry_points!(avx2, crate::cpu::lanes::avx2::Avx2, rows: 6 / 6, panels: 1, target_feature(enable = "avx2,fma,f16c"));
// Sixteen of thirty-two registers hold sums: enough to hide the latency, with half the broadcasts of one panel.
#[cfg(target_arch = "x86_64")]
entry_points!(avx512, crate::cpu::lanes::avx512::Avx512<false>, rows: 8 / 8, panels: 2,
    target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl"));
#[cfg(target_arch = "x86_64")]
entry_points!(avx512_vnni, crate::cpu::lanes::avx512::Avx512<true>, rows: 8 / 8, panels: 2,
    target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni"));

/// The scalar baseline: plain loops for the three steps of the f32 path, portable packing, no integer path.
const SCALAR: Kernels = Kernels {
    scores_float: scalar::scores,
    softmax_float: scalar::softmax,
    values_float: scalar::values,
    ..portable::KERNELS
};

impl Kernels {
    /// The entry points of a SIMD level, if this CPU has it.
    pub(super) fn of(simd: Simd) -> Result<Self> {
        isa::check(simd)?;
        Ok(match simd {
            Simd::Scalar => SCALAR,
            Simd::Portable => portable::KERNELS,
            #[cfg(target_arch = "x86_64")]
            Simd::Avx2 => avx2::KERNELS,
            #[cfg(target_arch = "x86_64")]
            Simd::Avx512 if isa::Features::detect().avx512_vnni => avx512_vnni::KERNELS,
            #[cfg(target_arch = "x86_64")]
            Simd::Avx512 => avx512::KERNELS,
            #[cfg(not(target_arch = "x86_64"))]
            Simd::Avx2 | Simd::Avx512 => unreachable!("isa::check refuses it on this architecture"),
        })
    }
}

/// Safe methods over the table: each states its sizes by assertion, inside the kernel.
macro_rules! safe {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*));+ $(;)?) => {
        impl Kernels {
            $($(#[$doc])*
            pub(super) fn $name(&self, $($argument: $type),*) {
                // SAFETY: `Kernels::of` gave out this table, so the CPU has the instruction set.
                unsafe { (self.$name)($($argument),*) }
            })+
        }
    };
}

safe! {
    /// S = Q·Kᵀ in f32: see [`product::scores`].
    scores_float(queries: &[f32], keys: &[f32], depth: usize, visible: &[usize], scores: &mut [f32], stride: usize);
    /// S = Q·Kᵀ in pairs of i16: see [`product::scores`].
    scores_int(queries: &[i32], keys: &[i32], depth: usize, visible: &[usize], scores: &mut [i32], stride: usize);
    /// Scores into weights, f32: see [`softmax::float`].
    softmax_float(tile: &mut FloatTile);
    /// Scores into weights, integers: see [`softmax::int`].
    softmax_int(tile: &mut IntTile);
    /// The second limb of coarse rows: see [`softmax::refine`].
    refine_int(tile: &mut IntTile);
    /// O = α·O + P·V in f32: see [`product::values`].
    values_float(weights: &Weights<f32>, values: &[f32], chunk: usize, units: &[f32], visible: &[usize], output: &mut [f32]);
    /// O = α·O + β·P·V in pairs of i16: see [`product::values`].
    values_int(weights: &Weights<i32>, values: &[i32], chunk: usize, units: &[f32], visible: &[usize], output: &mut [f32]);
    /// values = sums · factor + means: see [`normalise::rows`].
    normalise(rows: &Sums, width: usize, values: &mut [f32]);
    /// Query rows in f32: see [`pack::queries_float`].
    pack_queries_float(codes: &Codes, width: usize, packed: &mut [f32]);
    /// Query rows as pairs of i16: see [`pack::queries_int`].
    pack_queries_int(codes: &Codes, width: usize, factors: &[f32], rounding: &mut Rounding, packed: &mut [i32]);
    /// Sixteen keys as a panel of f32: see [`pack::keys_float`].
    pack_keys_float(codes: &Codes, width: usize, panel: &mut [f32]);
    /// Sixteen keys as a panel of pairs: see [`pack::keys_int`].
    pack_keys_int(codes: &Codes, width: usize, factors: &[f32], rounding: &mut Rounding, panel: &mut [i32]);
    /// Sixteen rows of V as chunks of f32: see [`pack::values_float`].
    pack_values_float(codes: &Codes, width: usize, chunks: &mut [f32], chunk: usize);
    /// Sixteen rows of V as chunks of pairs: see [`pack::values_int`].
    pack_values_int(codes: &Codes, width: usize, factors: &[f32], rounding: &mut Rounding, chunks: &mut [i32], chunk: usize);
}
