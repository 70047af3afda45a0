//! The stages of the hopper kernel: one for each accuracy, with the tiles that suit it.

use super::config::{Config, Grid, Keys, Launch, Scores, Share, SplitKeys, Sums, Weights};
use crate::error::Result;
use crate::knobs;
use crate::problem::{Accuracy, Mask, Problem};

/// A named config of this kernel.
pub type Stage = knobs::Stage<Config>;

/// What is the same everywhere, at 64 channels a head: three warpgroups read every tile of K and V, and what they have
/// summed waits in shared memory, since 160 registers are all that each thread has.
const BASE: Config = Config {
    warpgroups: 3,
    tile_keys: 256,
    stages: 3,
    scores: Scores::F16,
    weights: Weights::Fp8,
    linear: 0,
    promote: 512,
    sums: Sums::Shared,
    split_keys: SplitKeys::Off,
    launch: Launch::Plain,
    flight: 2,
    keys: Keys::Streamed,
    share: Share::Nothing,
    grid: Grid::Work,
};
const FAST: Config = Config { linear: 8, ..BASE };
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

/// Every stage, from the fastest to the most precise, in the order of [`Accuracy`].
pub const STAGES: &[Stage] = &[
    Stage { name: "fast", what: "every exponential straight into an FP8 code", config: FAST },
    Stage { name: "balanced", what: "five eighths of them by the exponential unit", config: BALANCED },
    Stage { name: "exact-exp", what: "all of them by the exponential unit", config: EXACT_EXP },
    Stage { name: "precise", what: "weights in two FP8 parts", config: PRECISE },
];

impl Stage {
    /// The stage for heads of this many channels under this mask: at 128, two warpgroups have the registers for all they
    /// sum. Linear exponentials leave some for more products in flight, at 64 channels without a mask alone. With one,
    /// exponentials of both kinds leave none there to count three tiles by.
    pub fn at(&self, head_dim: usize, mask: Mask) -> Config {
        let config = self.config;
        match (head_dim, mask, config.linear) {
            (64, Mask::None, 8) => Config { flight: 4, ..config },
            (64, Mask::Causal, 1..8) => Config { stages: 2, ..config },
            (64, ..) => config,
            (.., linear) => {
                let flight = if linear == 8 { 4 } else { 2 };
                Config { warpgroups: 2, stages: 2, sums: Sums::Registers, flight, ..config }
            }
        }
    }
}

impl Stage {
    /// The stage for a problem's heads and mask.
    pub(super) fn at_problem(&self, problem: &Problem) -> Config {
        self.at(problem.shape().head_dim, problem.mask())
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
    use crate::problem::Shape;

    #[test]
    fn every_stage_serves_long_and_short_problems_of_every_head_dim() {
        for stage in STAGES {
            for head_dim in [64, 128] {
                for len in [1, 512, 131_072] {
                    let problem = Problem::new(Shape::new(1, 2, len, head_dim)).unwrap();
                    let config = stage.at(head_dim, Mask::None);
                    let outcome = config.check_problem(&problem, &Operands::assumed(&problem), Arch::Sm90a);
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
