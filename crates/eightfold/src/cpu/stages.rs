//! The CPU ladder: named configs, each one step past the one before.

use super::config::{Config, Exp, Numbers, Schedule, Simd};
use crate::error::Result;
use crate::knobs;

/// A named config on this ladder.
pub type Stage = knobs::Stage<Config>;

const BASELINE: Config = Config {
    numbers: Numbers::F32,
    simd: Simd::Scalar,
    exp: Exp::Exact,
    schedule: Schedule::Serial,
    tile_queries: 64,
    tile_keys: 256,
};
const LANES: Config = Config { simd: Simd::Portable, ..BASELINE };
const POLY_EXP: Config = Config { exp: Exp::Polynomial, ..LANES };
const THREADS: Config = Config { schedule: Schedule::Static, ..POLY_EXP };
const QUEUE: Config = Config { schedule: Schedule::Queue, ..THREADS };
const AVX2: Config = Config { simd: Simd::Avx2, ..QUEUE };
const AVX512: Config = Config { simd: Simd::Avx512, ..QUEUE };
const INT16_AVX2: Config = Config { numbers: Numbers::Int16, ..AVX2 };
const INT16_AVX512: Config = Config { numbers: Numbers::Int16, ..AVX512 };
pub(super) const AMX: Config =
    Config { numbers: Numbers::Bf16, simd: Simd::Amx, tile_queries: 32, tile_keys: 512, ..AVX512 };

/// Every stage, from the plain baseline to the best.
pub const STAGES: &[Stage] = &[
    Stage { name: "baseline", what: "plain scalar loops, library exp, one thread", config: BASELINE },
    Stage { name: "lanes", what: "16 lanes side by side, left to the compiler", config: LANES },
    Stage { name: "poly-exp", what: "polynomial exp2, a vector at a time", config: POLY_EXP },
    Stage { name: "threads", what: "an equal share for every thread", config: THREADS },
    Stage { name: "queue", what: "threads take the next task, largest first", config: QUEUE },
    Stage { name: "avx2", what: "AVX2 micro-kernels, f32 multiply-adds", config: AVX2 },
    Stage { name: "avx512", what: "AVX-512 micro-kernels, f32 multiply-adds", config: AVX512 },
    Stage { name: "int16-avx2", what: "16-bit fixed point, AVX2 vpmaddwd", config: INT16_AVX2 },
    Stage { name: "int16-avx512", what: "16-bit fixed point, AVX-512", config: INT16_AVX512 },
    Stage { name: "amx", what: "bf16 products in AMX tiles", config: AMX },
];

/// The stage of this name.
pub fn find(name: &str) -> Result<&'static Stage> {
    knobs::find_stage(STAGES, name)
}
