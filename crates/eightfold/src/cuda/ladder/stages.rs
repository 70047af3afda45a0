//! The CUDA ladder: named configs, each one step past the one before.

use super::config::{Banks, Config, Copy, Exp, Pv, Qk, Schedule, Softmax, WIDE_HEAD};
use crate::error::Result;
use crate::knobs;

/// A named config on this ladder.
pub type Stage = knobs::Stage<Config>;

const BASELINE: Config = Config {
    copy: Copy::Sync,
    qk: Qk::F16,
    softmax: Softmax::Separate,
    pv: Pv::Scalar,
    exp: Exp::Hardware,
    banks: Banks::Padded,
    schedule: Schedule::Grid,
    producers: 0,
    tile_queries: 64,
    tile_keys: 64,
    warps: 4,
    key_groups: 1,
};
const ASYNC_COPY: Config = Config { copy: Copy::Async2, ..BASELINE };
const SIMD_PV: Config = Config { pv: Pv::Simd, ..ASYNC_COPY };
const MMA_PV: Config = Config { pv: Pv::Mma, ..SIMD_PV };
const REUSE_SCORES: Config = Config { softmax: Softmax::Reuse, ..MMA_PV };
const FUSED_SOFTMAX: Config = Config { softmax: Softmax::Fused, ..REUSE_SCORES };
const THREE_STAGE: Config = Config { copy: Copy::Async3, ..FUSED_SOFTMAX };
const WARP_SPECIALISED: Config = Config { producers: 1, ..THREE_STAGE };
const PERSISTENT: Config = Config { schedule: Schedule::Persistent, ..WARP_SPECIALISED };
const FAST_EXP: Config = Config { exp: Exp::Polynomial, ..PERSISTENT };
const SWIZZLE: Config = Config { banks: Banks::Swizzled, ..FAST_EXP };
const FP8_MMA: Config = Config { qk: Qk::Fp8, pv: Pv::Fp8, ..SWIZZLE };
// From here on without what did not pay on an H200: the copying warp, the queue, the polynomial.
const UNPACK: Config = Config {
    qk: Qk::Unpack,
    pv: Pv::Unpack,
    copy: Copy::Async2,
    exp: Exp::Hardware,
    schedule: Schedule::Grid,
    producers: 0,
    ..FP8_MMA
};
const SPLIT_KEYS: Config = Config { tile_queries: 32, tile_keys: 128, key_groups: 2, ..UNPACK };
const TALL_TILES: Config = Config { tile_queries: 128, ..UNPACK };

/// Every stage, from the plain baseline to the best.
pub const STAGES: &[Stage] = &[
    Stage { name: "baseline", what: "tensor cores for the scores alone; scalar sums of V", config: BASELINE },
    Stage { name: "async-copy", what: "cp.async: the next tile arrives while this one is used", config: ASYNC_COPY },
    Stage { name: "simd-pv", what: "vector loads and paired multiply-adds for the sums of V", config: SIMD_PV },
    Stage { name: "mma-pv", what: "tensor cores for the sums of V", config: MMA_PV },
    Stage { name: "reuse-scores", what: "weights overwrite the scores in shared memory", config: REUSE_SCORES },
    Stage { name: "fused-softmax", what: "scores and weights never leave the registers", config: FUSED_SOFTMAX },
    Stage { name: "three-stage", what: "two tiles on their way instead of one", config: THREE_STAGE },
    Stage { name: "warp-specialised", what: "one warp does nothing but copy", config: WARP_SPECIALISED },
    Stage { name: "persistent", what: "blocks stay and take the next tile from a queue", config: PERSISTENT },
    Stage { name: "fast-exp", what: "exponentials by polynomial", config: FAST_EXP },
    Stage { name: "swizzle", what: "exclusive-or layout instead of padding", config: SWIZZLE },
    Stage { name: "fp8-mma", what: "FP8 tensor cores for both products", config: FP8_MMA },
    Stage {
        name: "unpack",
        what: "FP8 stays FP8 in shared memory, widened in registers; weights in f16",
        config: UNPACK,
    },
    Stage { name: "split-keys", what: "two groups of warps share the keys: for few queries", config: SPLIT_KEYS },
    Stage { name: "tall-tiles", what: "32 rows a warp: for many queries", config: TALL_TILES },
];

impl Stage {
    /// The stage for heads of this many channels: twice the channels leave registers for half the keys, or half the
    /// rows.
    pub fn at(&self, head_dim: usize) -> Config {
        if head_dim <= 64 {
            return self.config;
        }
        let Config { tile_keys, warps, .. } = self.config;
        let half = tile_keys / 2;
        let config = match self.config.rows_per_warp() {
            32 if head_dim > WIDE_HEAD => Config { warps: 2 * warps, tile_keys: half, ..self.config },
            32 => Config { warps: 2 * warps, ..self.config },
            _ if self.config.key_groups > 1 && head_dim <= WIDE_HEAD => self.config,
            _ => Config { tile_keys: half, ..self.config },
        };
        // The addresses of padded rows are constants apart; of swizzled ones each takes a register.
        let banks = if head_dim > 192 && !config.widens_values() { Banks::Padded } else { config.banks };
        Config { banks, ..config }
    }
}

/// The stage of this name.
pub fn find(name: &str) -> Result<&'static Stage> {
    knobs::find_stage(STAGES, name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::{Arch, Config as AnyConfig, Operands};
    use crate::problem::{MAX_HEAD_DIM, Problem, Shape};

    #[test]
    fn every_stage_is_legal_at_every_head_dim() {
        for stage in STAGES {
            for head_dim in (8..=MAX_HEAD_DIM).step_by(8) {
                let problem = Problem::new(Shape::new(1, 1, 1, head_dim)).unwrap();
                let config = AnyConfig::from(stage.at(head_dim));
                let outcome = config.check_uploaded(&problem, &Operands::assumed(&problem), Arch::Sm89);
                outcome.unwrap_or_else(|error| panic!("{} at {head_dim}: {error}", stage.name));
            }
        }
    }

    #[test]
    fn every_stage_differs_from_every_other() {
        for (index, stage) in STAGES.iter().enumerate() {
            assert!(STAGES[..index].iter().all(|other| other.config != stage.config && other.name != stage.name));
        }
    }
}
