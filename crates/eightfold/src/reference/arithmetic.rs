//! The same loops, compiled for the SIMD instructions of this CPU.

use super::rows::Rows;

/// The instructions that the inner loops are compiled to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arithmetic {
    /// Those that every CPU of this architecture has.
    Plain,
    /// AVX2 with fused multiply-adds.
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
}

/// The proof that this CPU has AVX2 and FMA: only [`Arithmetic::detect`] makes one.
#[cfg(target_arch = "x86_64")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Avx2(());

impl Arithmetic {
    /// The best that this machine has.
    pub(super) fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            return Arithmetic::Avx2(Avx2(()));
        }
        Arithmetic::Plain
    }

    /// [`Rows::attend`] with these instructions.
    pub(super) fn attend(
        self,
        rows: &Rows,
        weights: &mut Vec<f64>,
        output: &mut [f64],
        lse: &mut [f64],
    ) {
        match self {
            Arithmetic::Plain => rows.attend::<false>(weights, output, lse),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: an `Avx2` exists only where the CPU was seen to have AVX2 and FMA.
            Arithmetic::Avx2(_) => unsafe { attend_avx2(rows, weights, output, lse) },
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn attend_avx2(rows: &Rows, weights: &mut Vec<f64>, output: &mut [f64], lse: &mut [f64]) {
    rows.attend::<true>(weights, output, lse);
}
