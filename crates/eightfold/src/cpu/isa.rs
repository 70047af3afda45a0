//! Which instruction sets this machine has.

use super::config::Simd;
use crate::error::{Error, Result};
use std::process::Command;
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
}

impl Features {
    /// Looks at the CPU this runs on.
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
            Features { avx2, avx512, avx512_vnni: avx512 && is_x86_feature_detected!("avx512vnni") }
        }
        #[cfg(not(target_arch = "x86_64"))]
        Features { avx2: false, avx512: false, avx512_vnni: false }
    }
}

/// The CPU's own name, `unknown` where the system does not tell.
pub fn name() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| {
        let linux = || {
            let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
            let line = text.lines().find(|line| line.starts_with("model name"))?;
            Some(line.split_once(':')?.1.trim().to_string())
        };
        let mac = || {
            let output = Command::new("sysctl").args(["-n", "machdep.cpu.brand_string"]).output().ok()?;
            Some(String::from_utf8(output.stdout).ok()?.trim().to_string())
        };
        let windows = || std::env::var("PROCESSOR_IDENTIFIER").ok();
        linux().or_else(mac).or_else(windows).filter(|name| !name.is_empty()).unwrap_or_else(|| "unknown".into())
    })
}

/// The widest SIMD level of this machine.
pub(crate) fn best() -> Simd {
    match Features::detect() {
        Features { avx512: true, .. } => Simd::Avx512,
        Features { avx2: true, .. } => Simd::Avx2,
        _ => Simd::Portable,
    }
}

/// Whether this machine has the SIMD level.
pub(super) fn check(simd: Simd) -> Result<()> {
    let features = Features::detect();
    let missing = match simd {
        Simd::Scalar | Simd::Portable => None,
        Simd::Avx2 => (!features.avx2).then_some("AVX2, FMA and F16C"),
        Simd::Avx512 => (!features.avx512).then_some("AVX-512 F, BW, DQ and VL"),
    };
    match missing {
        None => Ok(()),
        Some(missing) => Err(Error::unavailable(
            format!("simd={simd}"),
            format!("this CPU lacks {missing}"),
            format!("use simd={}, the best that this machine has", best()),
        )),
    }
}
