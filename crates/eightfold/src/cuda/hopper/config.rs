//! The knobs of the hopper kernel: what each may be, what follows from them, how they read as text.

use super::stages;
use crate::knobs::{Knob, config_text, knob_values};
use crate::problem::Accuracy;

/// One setting of the hopper kernel's knobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Config {
    /// Groups of four warps that compute, 64 queries each: 1, 2 or 3.
    pub warpgroups: usize,
    /// Keys per tile.
    pub tile_keys: usize,
    /// Tiles of K and V that are in shared memory at a time.
    pub stages: usize,
    /// What scores are summed in.
    pub scores: Scores,
    /// What the weights of V are rounded to.
    pub weights: Weights,
    /// Eighths of the exponentials that are made straight into FP8 codes, linear between powers of two.
    pub linear: usize,
    /// Keys after which the tensor core's sums are added to f32 sums; 0 never.
    pub promote: usize,
    /// Where those f32 sums are.
    pub sums: Sums,
    /// Whether blocks share the keys of a tile of queries.
    pub split_keys: SplitKeys,
    /// When blocks may start.
    pub launch: Launch,
    /// Steps of the value product, of 32 keys each, that are in flight at a time.
    pub flight: usize,
    /// How the keys come.
    pub keys: Keys,
    /// What blocks of a head bring for each other.
    pub share: Share,
    /// How many blocks start.
    pub grid: Grid,
}

knob_values! {
    /// What scores are summed in.
    Scores("scores") {
        /// f16, two to a register: half the registers, and packed arithmetic; for codes that keep the sums finite.
        F16 = "f16",
        /// f32, for any codes.
        F32 = "f32",
    }
}

knob_values! {
    /// What the weights of V are rounded to.
    Weights("weights") {
        /// One FP8 number.
        Fp8 = "fp8",
        /// FP8, and of one step of the value product in eight as below.
        Mixed = "mixed",
        /// The sum of two FP8 numbers, each with a product of its own.
        Split = "split",
    }
}

knob_values! {
    /// Where promoted sums are.
    Sums("sums") {
        /// In registers.
        Registers = "registers",
        /// In shared memory.
        Shared = "shared",
    }
}

knob_values! {
    /// Whether blocks share the keys of a tile of queries.
    SplitKeys("split_keys") {
        /// One block sees all keys.
        Off = "off",
        /// Several see a part each, and the last adds the parts up: for few queries.
        On = "on",
    }
}

knob_values! {
    /// When blocks may start.
    Launch("launch") {
        /// When the launch before is done.
        Plain = "plain",
        /// Before that; they wait for it where they first touch memory.
        Dependent = "dependent",
    }
}

knob_values! {
    /// How the keys come.
    Keys("keys") {
        /// In tiles, through a ring of buffers that a producer fills.
        Streamed = "streamed",
        /// All in one tile, brought by those who compute: for so few that waiting for them is most of the time.
        AtOnce = "at-once",
    }
}

knob_values! {
    /// What blocks of a head bring for each other.
    Share("share") {
        /// Nothing: each brings all that it needs.
        Nothing = "nothing",
        /// Half of V, in pairs.
        Values = "values",
    }
}

knob_values! {
    /// How many blocks start.
    Grid("grid") {
        /// No more than there is work for.
        Work = "work",
        /// As many for every multiprocessor: those without work hold a place, so that all are equally full when the next
        /// launch starts early, and it puts no two of its blocks where others get one.
        Rounds = "rounds",
    }
}

/// Every knob of the hopper kernel, in the order in which a config prints them.
pub const KNOBS: &[Knob] = &[
    Knob { name: "warpgroups", values: &["1", "2", "3"], what: "groups of four warps that compute, 64 queries each" },
    Knob { name: "tile_keys", values: &["64", "128", "192", "256", "512"], what: "keys per tile" },
    Knob { name: "stages", values: &["1", "2", "3", "4"], what: "tiles of K and V in shared memory" },
    Knob { name: "scores", values: Scores::NAMES, what: "what scores are summed in" },
    Knob { name: "weights", values: Weights::NAMES, what: "what the weights of V are rounded to" },
    Knob {
        name: "linear",
        values: &["0", "1", "2", "3", "4", "5", "6", "7", "8"],
        what: "eighths of the exponentials made straight into FP8 codes",
    },
    Knob {
        name: "promote",
        values: &["0", "256", "512", "1024", "2048"],
        what: "keys after which the tensor core's sums go to f32 sums; 0 never",
    },
    Knob { name: "sums", values: Sums::NAMES, what: "where those f32 sums are" },
    Knob { name: "split_keys", values: SplitKeys::NAMES, what: "whether blocks share the keys of a tile of queries" },
    Knob { name: "launch", values: Launch::NAMES, what: "whether blocks may start before the launch before is done" },
    Knob { name: "flight", values: &["1", "2", "4", "8"], what: "steps of the value product in flight at a time" },
    Knob { name: "keys", values: Keys::NAMES, what: "whether keys pass by in tiles or are all there at once" },
    Knob { name: "share", values: Share::NAMES, what: "what blocks of a head bring for each other" },
    Knob { name: "grid", values: Grid::NAMES, what: "whether every multiprocessor gets as many blocks" },
];

/// The files under `kernels/`: where keys are streamed, and where they are there at once.
pub const FILES: &[&str] = &["hopper/attention.cu", "hopper/short.cu"];

/// The head dims that the kernel is written for.
pub const HEAD_DIMS: &[usize] = &[64, 128];

/// Rows of queries of a warpgroup: the height of a `wgmma`.
const WARPGROUP_ROWS: usize = 64;
const WARPGROUP_THREADS: usize = 128;
/// Blocks that share V; `PAIR` of the device code.
const PAIR: usize = 2;

impl Config {
    /// Query rows of a tile.
    pub fn tile_queries(&self) -> usize {
        WARPGROUP_ROWS * self.warpgroups
    }

    /// Query rows of one computing warp.
    pub fn rows_per_warp(&self) -> usize {
        WARPGROUP_ROWS / 4
    }

    /// The word for how exact its results are.
    pub fn accuracy(&self) -> Accuracy {
        match (self.weights, self.linear) {
            (Weights::Split, _) => Accuracy::Precise,
            (Weights::Mixed, _) | (Weights::Fp8, 0) => Accuracy::ExactExp,
            (Weights::Fp8, 1..=3) => Accuracy::Balanced,
            (Weights::Fp8, _) => Accuracy::Fast,
        }
    }

    /// The file under `kernels/` that is compiled for it.
    pub fn file(&self) -> &'static str {
        match self.keys {
            Keys::Streamed => FILES[0],
            Keys::AtOnce => FILES[1],
        }
    }

    /// Threads of a block: the computing warpgroups, and, where keys are streamed, a warpgroup (beside a single one: two
    /// warps) that copies.
    pub fn threads(&self) -> usize {
        let copying = match (self.keys, self.warpgroups) {
            (Keys::AtOnce, _) => 0,
            (Keys::Streamed, 1) => 64,
            (Keys::Streamed, _) => WARPGROUP_THREADS,
        };
        WARPGROUP_THREADS * self.warpgroups + copying
    }

    /// The same with keys in tiles, and without what is for all keys at once.
    pub(crate) fn streamed(self) -> Config {
        Config { keys: Keys::Streamed, share: Share::Nothing, grid: Grid::Work, ..self }
    }

    /// Blocks that start together.
    pub(super) fn cluster(&self) -> usize {
        match self.share {
            Share::Nothing => 1,
            Share::Values => PAIR,
        }
    }
}

impl Default for Config {
    /// The stage of the default accuracy.
    fn default() -> Self {
        stages::of(Default::default()).config
    }
}

config_text! {
    numbers: "write a whole number";
    warpgroups, tile_keys, stages, scores, weights, linear, promote, sums, split_keys, launch, flight, keys, share, grid
}

#[cfg(test)]
mod tests {
    use super::*;
    use stages::STAGES;

    #[test]
    fn a_config_reads_back_what_it_prints() {
        for stage in STAGES {
            assert_eq!(stage.config.to_string().parse::<Config>().unwrap(), stage.config, "{}", stage.name);
            assert_eq!(stage.name.parse::<Config>().unwrap(), stage.config);
        }
        let config: Config = "precise,warpgroups=1".parse().unwrap();
        assert_eq!((config.weights, config.warpgroups), (Weights::Split, 1));
    }
}
