//! The stages of the hopper kernel: one for each accuracy, with the tiles that suit it.

use super::config::{Config, Launch, Order, Overlap, Rescale, RowSum, Scores, SplitKeys, Sums, Weights};
use crate::error::Result;
use crate::knobs;
use crate::problem::Accuracy;

/// A named config of this kernel.
pub type Stage = knobs::Stage<Config>;

/// What is the same everywhere, at 64 channels a head: three warpgroups read every tile of K and V, and what they have
/// summed waits in shared memory, since 160 registers are all that each thread has: too few for weights whose products
/// still run beside the next scores.
const BASE: Config = Config {
    warpgroups: 3,
    tile_keys: 256,
    stages: 3,
    scores: Scores::F16,
    weights: Weights::Fp8,
    linear: 0,
    promote: 1024,
    sums: Sums::Shared,
    row_sum: RowSum::Tensor,
    rescale: Rescale::Lazy,
    split_keys: SplitKeys::Off,
    launch: Launch::Plain,
    order: Order::Free,
    overlap: Overlap::None,
};
const FAST: Config = Config { linear: 4, ..BASE };
const BALANCED: Config = Config { linear: 2, ..BASE };
const EXACT_EXP: Config = BASE;
/// Two parts of every weight take the registers of a third warpgroup.
const PRECISE: Config = Config { weights: Weights::Split, warpgroups: 2, ..in_f32(BASE) };

/// The same with scores in f32, for codes of any range: they take twice the registers, so that half the keys fit.
pub(super) const fn in_f32(config: Config) -> Config {
    let tile_keys = if config.tile_keys > 128 { 128 } else { config.tile_keys };
    Config { scores: Scores::F32, linear: 0, tile_keys, ..config }
}

/// Every stage, from the fastest to the most precise, in the order of [`Accuracy`].
pub const STAGES: &[Stage] = &[
    Stage { name: "fast", what: "every exponential straight into an FP8 code", config: FAST },
    Stage { name: "balanced", what: "half of them by the exponential unit", config: BALANCED },
    Stage { name: "exact-exp", what: "all of them by the exponential unit", config: EXACT_EXP },
    Stage { name: "precise", what: "scores in f32, weights in two FP8 parts", config: PRECISE },
];

impl Stage {
    /// The stage for heads of this many channels: at 128, two warpgroups have the registers for all they sum, unless
    /// weights have two parts.
    pub fn at(&self, head_dim: usize) -> Config {
        if head_dim <= 64 {
            return self.config;
        }
        let sums = match self.config.weights {
            Weights::Fp8 => Sums::Registers,
            Weights::Split => Sums::Shared,
        };
        Config { warpgroups: 2, stages: 2, promote: 512, sums, ..self.config }
    }
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
    use crate::cuda::{Arch, Operands};
    use crate::problem::{Problem, Shape};

    #[test]
    fn every_stage_serves_long_and_short_problems_of_every_head_dim() {
        for stage in STAGES {
            for head_dim in [64, 128] {
                for len in [1, 512, 131_072] {
                    let problem = Problem::new(Shape::new(1, 2, len, head_dim)).unwrap();
                    let outcome = stage.at(head_dim).check_problem(&problem, &Operands::hoped(&problem), Arch::Sm90a);
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
            assert_eq!(of(*accuracy).at(128).accuracy(), *accuracy);
        }
    }

    #[test]
    fn every_stage_differs_from_every_other() {
        for (index, stage) in STAGES.iter().enumerate() {
            assert!(STAGES[..index].iter().all(|other| other.config != stage.config && other.name != stage.name));
        }
    }
}
