//! The knobs of the hopper kernel: what each may be, what rules bind them, what follows from them.

use super::stages;
use crate::error::Result;
use crate::knobs::{Rule, check_rules, knobs};
use crate::problem::Accuracy;

knobs! {
    /// One setting of the hopper kernel's knobs.
    numbers: "write a whole number";

    /// Groups of four warps that compute, 64 queries each.
    warpgroups: usize [1, 2, 3] = 3 => [WARPGROUPS];

    /// Keys per tile.
    tile_keys: usize [64, 128, 192, 256, 512] = 256 => [TILE_KEYS];

    /// Tiles of K and V that are in shared memory at a time.
    stages: usize [1, 2, 3, 4] = 3 => [STAGES];

    /// What scores are summed in.
    scores: Scores {
        /// f16, two to a register: half the registers, and packed arithmetic; for codes that keep the sums finite.
        F16 = "f16",
        /// f32, for any codes.
        F32 = "f32",
        /// s32, for codes in INT8: sums of their products are whole numbers.
        S32 = "s32",
    } = Scores::F16 => [SCORES];

    /// What the weights of V are rounded to.
    weights: Weights {
        /// One FP8 number.
        Fp8 = "fp8",
        /// FP8, and of one step of the value product in eight as below.
        Mixed = "mixed",
        /// The sum of two FP8 numbers, each with a product of its own.
        Split = "split",
    } = Weights::Fp8 => [SPLIT_EIGHTHS = Config::split_eighths];

    /// Eighths of the exponentials that are made straight into FP8 codes, linear between powers of two.
    linear: usize [0, 1, 2, 3, 4, 5, 6, 7, 8] = 8 => [LINEAR_EIGHTHS];

    /// Keys after which the tensor core's sums are added to f32 sums; 0 never.
    promote: usize [0, 256, 512, 1024, 2048] = 512 => [PROMOTE_TILES = |config: &Config| config.promote / config.tile_keys];

    /// Where those f32 sums are.
    sums: Sums {
        /// In registers.
        Registers = "registers",
        /// In shared memory.
        Shared = "shared",
    } = Sums::Shared => [PROMOTE_SHARED];

    /// Whether blocks share the keys of a tile of queries.
    split_keys: SplitKeys {
        /// One block sees all keys.
        Off = "off",
        /// Several see a part each, and the last adds the parts up: for few queries.
        On = "on",
    } = SplitKeys::Off => [SPLIT_KEYS];

    /// When blocks may start.
    launch: Launch {
        /// When the launch before is done.
        Plain = "plain",
        /// Before that; they wait for it where they first touch memory.
        Dependent = "dependent",
    } = Launch::Plain => [DEPENDENT];

    /// Steps of the value product, of 32 keys each, that are in flight at a time.
    flight: usize [1, 2, 4, 8] = 2 => [FLIGHT];

    /// How the keys come.
    keys: Keys {
        /// In tiles, through a ring of buffers that a producer fills.
        Streamed = "streamed",
        /// All in one tile, brought by those who compute: for so few that waiting for them is most of the time.
        AtOnce = "at-once",
    } = Keys::Streamed => [KEYS_AT_ONCE];

    /// What blocks of a head bring for each other.
    share: Share {
        /// Nothing: each brings all that it needs.
        Nothing = "nothing",
        /// Half of V, in pairs.
        Values = "values",
    } = Share::Nothing => [SHARE_VALUES];

    /// How many blocks start.
    grid: Grid {
        /// No more than there is work for.
        Work = "work",
        /// As many for every multiprocessor: those without work hold a place, so that all are equally full when the next
        /// launch starts early, and it puts no two of its blocks where others get one.
        Rounds = "rounds",
    } = Grid::Work => [IN_ROUNDS];
}

/// Keys of one step of the value product.
const STEP_KEYS: usize = 32;
/// The most keys of a line of V in shared memory; blocks share whole lines.
const LINE_KEYS: usize = 128;

/// What binds knobs among themselves.
const RULES: &[Rule<Config>] = &[
    Rule {
        knob: "linear",
        broken: |config| config.linear > 0 && config.scores == Scores::F32,
        because: "the linear exponential is written for scores in f16 and s32",
        fix: "set scores=f16, or linear=0",
    },
    Rule {
        knob: "weights",
        broken: |config| config.linear > 0 && config.weights != Weights::Fp8,
        because: "two parts are for exact exponentials",
        fix: "set linear=0, or weights=fp8",
    },
    Rule {
        knob: "flight",
        broken: |config| config.flight * STEP_KEYS > config.tile_keys,
        because: "more steps, of 32 keys each, than a tile has",
        fix: "set a smaller flight, or a larger tile_keys",
    },
    Rule {
        knob: "keys",
        broken: |config| config.keys == Keys::AtOnce && !config.has_one_tile(),
        because: "all keys at once are one tile for one warpgroup or two, summed up once",
        fix: "set warpgroups=1 or 2, stages=1, promote=0, sums=registers and split_keys=off, or keys=streamed",
    },
    Rule {
        knob: "share",
        broken: |config| {
            config.share == Share::Values && (config.keys != Keys::AtOnce || config.tile_keys <= LINE_KEYS)
        },
        because: "blocks bring V for each other where all keys come at once, and more than 128",
        fix: "set keys=at-once and a larger tile_keys, or share=nothing",
    },
    Rule {
        knob: "grid",
        broken: |config| {
            config.grid == Grid::Rounds && (config.keys != Keys::AtOnce || config.launch != Launch::Dependent)
        },
        because: "blocks without work hold a place for the next launch, where all keys come at once and it starts early",
        fix: "set keys=at-once and launch=dependent, or grid=work",
    },
    Rule {
        knob: "tile_keys",
        broken: |config| config.tile_keys > 256 && !config.leaves_registers_for_512_keys(),
        because: "only f16 scores of 512 keys leave registers, streamed for one warpgroup with FP8 weights",
        fix: "set scores=f16, and keys=at-once or warpgroups=1 and weights=fp8, or a smaller tile_keys",
    },
    Rule {
        knob: "tile_keys",
        broken: |config| config.warpgroups == 3 && config.scores != Scores::F16 && config.tile_keys > 128,
        because: "scores in 32 bits of so many keys leave too few of the 160 registers that three warpgroups have",
        fix: "set tile_keys=128, warpgroups=2, or scores=f16",
    },
    Rule {
        knob: "promote",
        broken: |config| config.scores == Scores::S32 && config.promote > 0 && config.tile_keys > 128,
        because: "scores in s32 of so many keys leave no registers to promote sums by",
        fix: "set promote=0 and quantise V centred, or tile_keys=128",
    },
    Rule {
        knob: "keys",
        broken: |config| config.keys == Keys::AtOnce && config.scores == Scores::S32,
        because: "scores in s32 are written for keys in tiles",
        fix: "set keys=streamed",
    },
    Rule {
        knob: "promote",
        broken: |config| !config.promote.is_multiple_of(config.tile_keys),
        because: "it is not a multiple of tile_keys",
        fix: "set a multiple, or a tile_keys that divides it",
    },
    Rule {
        knob: "sums",
        broken: |config| config.promote == 0 && config.sums == Sums::Shared,
        because: "without promotion there are no sums to keep in shared memory",
        fix: "set sums=registers, or a promote above 0",
    },
];

/// The files under `kernels/`: where keys are streamed, and where they are there at once.
pub const FILES: &[&str] = &["hopper/attention.cu", "hopper/short.cu"];

/// Rows of queries of a warpgroup: the height of a `wgmma`.
pub(super) const WARPGROUP_ROWS: usize = 64;
const WARPGROUP_THREADS: usize = 128;
/// Blocks that share V; `PAIR` of the device code.
const PAIR: usize = 2;

impl Config {
    /// The rules between knobs, whatever the problem and the machine.
    pub fn check(&self) -> Result<()> {
        self.check_numbers()?;
        check_rules(self, RULES)
    }

    /// With all keys at once what is for several tiles has no meaning.
    fn has_one_tile(&self) -> bool {
        self.warpgroups <= 2 && self.stages == 1 && self.promote == 0 && self.split_keys == SplitKeys::Off
    }

    fn leaves_registers_for_512_keys(&self) -> bool {
        let streamed = self.warpgroups == 1 && self.weights == Weights::Fp8;
        self.scores == Scores::F16 && (self.keys == Keys::AtOnce || streamed)
    }

    /// Query rows of a tile.
    pub fn tile_queries(&self) -> usize {
        WARPGROUP_ROWS * self.warpgroups
    }

    /// How exact its results are.
    pub fn accuracy(&self) -> Accuracy {
        match (self.weights, self.linear) {
            (Weights::Split, _) => Accuracy::Precise,
            (Weights::Mixed, _) | (Weights::Fp8, 0) => Accuracy::ExactExp,
            (Weights::Fp8, 1..=3) => Accuracy::Balanced,
            (Weights::Fp8, _) => Accuracy::Fast,
        }
    }

    /// The file under `kernels/` that is compiled for it.
    pub(super) fn source_file(&self) -> &'static str {
        match self.keys {
            Keys::Streamed => FILES[0],
            Keys::AtOnce => FILES[1],
        }
    }

    /// Of eight steps of the value product, those whose weights have two parts.
    fn split_eighths(&self) -> usize {
        match self.weights {
            Weights::Fp8 => 0,
            Weights::Mixed => 1,
            Weights::Split => 8,
        }
    }

    /// Threads of a block: the computing warpgroups, and, where keys are streamed, a warpgroup (beside a single one: two
    /// warps) that copies.
    pub(in crate::cuda) fn threads(&self) -> usize {
        let copying = match (self.keys, self.warpgroups) {
            (Keys::AtOnce, _) => 0,
            (Keys::Streamed, 1) => 64,
            (Keys::Streamed, _) => WARPGROUP_THREADS,
        };
        WARPGROUP_THREADS * self.warpgroups + copying
    }

    /// The same with keys in tiles, and without what is for all keys at once.
    pub(super) fn streamed(self) -> Config {
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
        assert_eq!(stages::of(Accuracy::default()).config, Config::DEFAULT);
    }

    #[test]
    fn every_broken_rule_names_its_knob() {
        for (text, knob) in [
            ("warpgroups=4", "warpgroups"),
            ("tile_keys=96", "tile_keys"),
            ("fast,tile_keys=512", "tile_keys"),
            ("fast,tile_keys=64,flight=4", "flight"),
            ("fast,share=values", "share"),
            ("fast,launch=dependent,grid=rounds", "grid"),
            ("tile_keys=many", "tile_keys"),
            ("stages=5", "stages"),
            ("linear=9", "linear"),
            ("promote=100", "promote"),
            ("precise,linear=1", "weights"),
            ("fast,scores=f32", "linear"),
            ("fast,weights=split", "weights"),
            ("fast,tile_keys=192", "promote"),
            ("fast,promote=0,sums=shared", "sums"),
            ("precise,scores=f32", "tile_keys"),
            ("fast,keys=at-once", "keys"),
            ("precise,warpgroups=1,promote=0,sums=registers,tile_keys=512", "tile_keys"),
            ("scores=f8", "scores"),
            ("tile=64", "knob"),
            ("fastest", "stage"),
        ] {
            let error = text.parse::<Config>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("{knob}: ")), "{text}: {error}");
        }
    }

    #[test]
    fn device_code_reads_every_knob() {
        let config: Config = "precise,flight=1".parse().unwrap();
        let defines = config.defines();
        let value = |name| defines.iter().find(|(define, _)| *define == name).map(|(_, value)| value.as_str());
        assert_eq!(defines.len(), KNOBS.len());
        assert_eq!(["SPLIT_EIGHTHS", "PROMOTE_TILES", "PROMOTE_SHARED"].map(value), [Some("8"), Some("2"), Some("1")]);
        assert_eq!(["FLIGHT", "SCORES"].map(value), [Some("1"), Some("0")]);
    }
}
