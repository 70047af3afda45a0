//! Which instruction sets this machine has.

use super::config::Simd;
use super::path::tiles::{self, Missing};
use crate::error::{Error, Result};
use std::sync::OnceLock;

/// What was found on this CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Features {
    /// AVX2, FMA and F16C together.
    pub avx2: bool,
    /// AVX-512 F, BW, DQ and VL together.
    pub avx512: bool,
    /// AVX-512 VNNI: 16-bit products and their sum in one instruction.
    pub avx512_vnni: bool,
    /// AVX-512 VBMI: a table of 128 bytes looked up for 64 of them.
    pub avx512_vbmi: bool,
    /// AMX tiles for bf16, with the AVX-512 that works beside them, and leave to use them; else what is missing.
    pub amx: std::result::Result<(), Missing>,
    /// ASIMD, which every 64-bit Arm has.
    pub neon: bool,
}

impl Features {
    /// Looks at the CPU this runs on. Where it has AMX, the first call asks the system for leave to use it.
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 =
                is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
            let avx512 = avx2
                && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl");
            let avx512_vnni = avx512 && is_x86_feature_detected!("avx512vnni");
            let avx512_vbmi = avx512 && is_x86_feature_detected!("avx512vbmi");
            Features { avx2, avx512, avx512_vnni, avx512_vbmi, amx: tiles::check_permission(), neon: false }
        }
        #[cfg(not(target_arch = "x86_64"))]
        Features {
            avx2: false,
            avx512: false,
            avx512_vnni: false,
            avx512_vbmi: false,
            amx: tiles::check_permission(),
            neon: cfg!(all(target_arch = "aarch64", target_feature = "neon")),
        }
    }
}

/// The widest SIMD level of this machine, beside which tiles may work.
pub(crate) fn best() -> Simd {
    match Features::detect() {
        Features { avx512: true, .. } => Simd::Avx512,
        Features { avx2: true, .. } => Simd::Avx2,
        Features { neon: true, .. } => Simd::Neon,
        _ => Simd::Portable,
    }
}

/// The bytes of a core's second-level cache, where the CPU tells.
pub(crate) fn second_cache() -> Option<usize> {
    static BYTES: OnceLock<Option<usize>> = OnceLock::new();
    *BYTES.get_or_init(|| {
        #[cfg(target_arch = "x86_64")]
        return second_cache_by_cpuid();
        #[cfg(not(target_arch = "x86_64"))]
        None
    })
}

/// By Intel's leaf of caches, or AMD's, which is laid out alike.
#[cfg(target_arch = "x86_64")]
fn second_cache_by_cpuid() -> Option<usize> {
    use std::arch::x86_64::{__cpuid, __cpuid_count, CpuidResult};
    const INTEL: u32 = 4;
    const AMD: u32 = 0x8000_001d;
    const MOST_CACHES: u32 = 8;
    // SAFETY: every x86-64 CPU has this instruction.
    #[allow(unused_unsafe)]
    let cpuid = |leaf, index| unsafe { __cpuid_count(leaf, index) };
    // SAFETY: as above.
    #[allow(unused_unsafe)]
    let last_leaf = |of: u32| unsafe { __cpuid(of) }.eax;
    let leaves = [(AMD, last_leaf(0x8000_0000)), (INTEL, last_leaf(0))];
    let told = leaves.into_iter().filter(|(leaf, last)| leaf <= last);
    let caches = told.flat_map(|(leaf, _)| (0..MOST_CACHES).map(move |index| cpuid(leaf, index)));
    let mut bytes = caches.filter_map(|CpuidResult { eax, ebx, ecx, .. }| {
        let (kind, level) = (eax & 0x1f, eax >> 5 & 7);
        let [ways, partitions, line] = [ebx >> 22, ebx >> 12 & 0x3ff, ebx & 0xfff].map(|less_1| less_1 as usize + 1);
        (kind != 0 && level == 2).then(|| ways * partitions * line * (ecx as usize + 1))
    });
    bytes.next()
}

/// Whether this machine has the SIMD level.
pub(super) fn check(simd: Simd) -> Result<()> {
    let features = Features::detect();
    let missing = match simd {
        Simd::Scalar | Simd::Portable | Simd::AmxTwin => None,
        Simd::Neon => (!features.neon).then(|| "this CPU lacks NEON".to_string()),
        Simd::Avx2 => (!features.avx2).then(|| "this CPU lacks AVX2, FMA and F16C".to_string()),
        Simd::Avx512 => (!features.avx512).then(|| "this CPU lacks AVX-512 F, BW, DQ and VL".to_string()),
        Simd::Amx => features.amx.err().map(|missing| missing.to_string()),
    };
    match missing {
        None => Ok(()),
        Some(missing) => Err(Error::unavailable(
            format!("simd={simd}"),
            missing,
            format!("use simd={}, the best that this machine has", best()),
        )),
    }
}
