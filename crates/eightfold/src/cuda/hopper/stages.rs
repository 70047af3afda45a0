//! The stages of the hopper kernel: one for each accuracy, with the tiles that suit it.

use super::config::{Config, Keys, Scores, Sums, Weights};
use crate::error::Result;
use crate::knobs;
use crate::problem::{Accuracy, Mask, Problem};

/// A named config of this kernel.
pub type Stage = knobs::Stage<Config>;

/// What is the same everywhere, at 64 channels a head: three warpgroups read every tile of K and V, and what they have
/// summed waits in shared memory, since 160 registers are all that each thread has.
const BASE: Config = Config { linear: 0, ..Config::DEFAULT };
const FAST: Config = Config::DEFAULT;
const BALANCED: Config = Config { linear: 3, ..BASE };
const EXACT_EXP: Config = BASE;
const PRECISE: Config = Config { weights: Weights::Split, ..BASE };

/// The same with scores in f32, for codes of any range: they take twice the registers, so that half the keys and two
/// warpgroups fit.
pub(super) fn in_f32(config: Config) -> Config {
    let config = Config { scores: Scores::F32, linear: 0, flight: config.flight.min(2), ..config };
    if config.keys == Keys::AtOnce {
        return config;
    }
    Config {
        tile_keys: config.tile_keys.min(128),
        warpgroups: config.warpgroups.min(2),
        stages: if config.warpgroups > 1 { 3 } else { config.stages },
        sums: if config.promote > 0 { Sums::Shared } else { Sums::Registers },
        ..config
    }
}

/// The same with scores in s32, for codes in INT8: twice the registers of f16, which leave none to promote sums of 256
/// keys by. V without a mean needs no promotion.
pub(super) fn in_s32(config: Config, values_are_centred: bool) -> Config {
    let promote = if values_are_centred { 0 } else { config.promote };
    Config {
        scores: Scores::S32,
        warpgroups: config.warpgroups.min(2),
        tile_keys: config.tile_keys.min(if promote > 0 { 128 } else { 256 }),
        stages: config.stages.min(2),
        flight: config.flight.min(2),
        promote,
        sums: if promote > 0 { Sums::Shared } else { Sums::Registers },
        ..config
    }
}

/// Every stage, from the fastest to the most precise, in the order of [`Accuracy`].
pub const STAGES: &[Stage] = &[
    Stage { name: "fast", what: "every exponential straight into an FP8 code", config: FAST },
    Stage { name: "balanced", what: "five eighths of them by the exponential unit", config: BALANCED },
    Stage { name: "exact-exp", what: "all of them by the exponential unit", config: EXACT_EXP },
    Stage { name: "precise", what: "weights in two FP8 parts", config: PRECISE },
];

impl Stage {
    /// The stage for heads of this many channels under this mask: above 64, two warpgroups have the registers for all they
    /// sum. Linear exponentials leave some for more products in flight, at 64 channels without a mask alone. With one,
    /// exponentials of both kinds leave none there to count three tiles by. Above 128, sums are too many for registers.
    pub fn at(&self, head_dim: usize, mask: Mask) -> Config {
        let config = self.config;
        let config = match (head_dim, mask, config.linear) {
            (..=64, Mask::None, 8) => Config { flight: 4, ..config },
            (..=64, Mask::Causal, 1..8) => Config { stages: 2, ..config },
            (..=64, ..) => config,
            (.., linear) => {
                let flight = if linear == 8 { 4 } else { 2 };
                Config { warpgroups: 2, stages: 2, sums: Sums::Registers, flight, ..config }
            }
        };
        for_wide_heads(config, head_dim)
    }
}

/// The same with room for heads of more than 128 channels: smaller tiles of keys, sums in shared memory.
pub(super) fn for_wide_heads(config: Config, head_dim: usize) -> Config {
    if head_dim <= 128 {
        return config;
    }
    let fewest_registers = config.warpgroups == 1 && config.scores == Scores::F16;
    let tile_keys = config.tile_keys.min(if head_dim <= 192 || fewest_registers { 128 } else { 64 });
    Config {
        tile_keys,
        stages: config.stages.min(2),
        flight: config.flight.min(2),
        sums: if config.promote > 0 { Sums::Shared } else { Sums::Registers },
        ..config
    }
}

/// The same with registers to cap scores by, which three warpgroups have not, nor one with sums of wide heads beside scores in f32
/// of 128 keys.
pub(super) fn for_capped_scores(config: Config, head_dim: usize) -> Config {
    let is_full = head_dim > 128 && config.warpgroups == 1 && config.scores == Scores::F32;
    let tile_keys = if is_full { config.tile_keys.min(64) } else { config.tile_keys };
    Config { tile_keys, warpgroups: config.warpgroups.min(2), flight: config.flight.min(2), ..config }
}

impl Stage {
    /// The stage for a problem's heads and mask.
    pub(super) fn at_problem(&self, problem: &Problem) -> Config {
        self.at(widest(problem), problem.mask())
    }
}

/// Channels of Q and K, or of V where it has more.
pub(super) fn widest(problem: &Problem) -> usize {
    problem.shape().head_dim.max(problem.value_dims().head_dim)
}

/// The stage of this name.
pub fn find(name: &str) -> Result<&'static Stage> {
    knobs::find_stage(STAGES, name)
}

/// The stage of this accuracy.
pub fn of(accuracy: Accuracy) -> &'static Stage {
    &STAGES[accuracy as usize]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::{Arch, Config as AnyConfig, Operands};
    use crate::problem::Shape;

    #[test]
    fn every_stage_serves_long_and_short_problems_of_every_head_dim() {
        for stage in STAGES {
            for head_dim in [24, 64, 96, 128, 136, 192, 248] {
                for len in [1, 512, 131_072] {
                    let problem = Problem::new(Shape::new(1, 2, len, head_dim)).unwrap();
                    let config = stage.at(head_dim, Mask::None);
                    let outcome =
                        AnyConfig::from(config).check_problem(&problem, &Operands::assumed(&problem), Arch::Sm90a);
                    outcome.unwrap_or_else(|error| panic!("{} {problem}: {error}", stage.name));
                }
            }
        }
    }

    #[test]
    fn every_accuracy_has_the_stage_of_its_name() {
        assert_eq!(STAGES.iter().map(|stage| stage.name).collect::<Vec<_>>(), Accuracy::NAMES);
        for accuracy in Accuracy::ALL {
            assert_eq!(of(*accuracy).name, accuracy.to_string());
            assert_eq!(of(*accuracy).at(128, Mask::Causal).accuracy(), *accuracy);
        }
    }

    #[test]
    fn every_stage_differs_from_every_other() {
        for (index, stage) in STAGES.iter().enumerate() {
            assert!(STAGES[..index].iter().all(|other| other.config != stage.config && other.name != stage.name));
        }
    }
}
