//! The knobs of the ladder kernel: what each may be, what rules bind them, what follows from them.

use super::stages;
use crate::error::{Error, Result};
use crate::knobs::{Rule, check_rules, knobs};
use crate::problem::Problem;
use crate::tensor::Layout;

/// The most channels of a head whose sums leave registers to choose by.
pub(super) const WIDE_HEAD: usize = 128;

knobs! {
    /// One setting of the ladder's knobs.
    numbers: "write a whole number of rows, keys or warps";

    /// How tiles of K and V reach shared memory.
    copy: Copy {
        /// Through registers, and everyone waits.
        Sync = "sync",
        /// `cp.async` into two buffers: the next tile arrives while this one is used.
        Async2 = "async2",
        /// The same with three buffers.
        Async3 = "async3",
    } = Copy::Async2 => [COPY_STAGES = Config::stages, COPY_ASYNC = |config: &Config| u8::from(config.copies_ahead())];

    /// The operands of the score product.
    qk: Qk {
        /// The K tile is widened to f16 in shared memory, once per block.
        F16 = "f16",
        /// The K tile stays FP8 in shared memory; each warp widens its fragments in registers.
        Unpack = "unpack",
        /// FP8 tensor cores (which sm_90 has for `wgmma` alone: its compiler widens in registers).
        Fp8 = "fp8",
    } = Qk::Unpack => [QK];

    /// Where the softmax happens.
    softmax: Softmax {
        /// Scores and weights each have a buffer in shared memory.
        Separate = "separate",
        /// Weights overwrite the scores in shared memory.
        Reuse = "reuse",
        /// In the registers that the score product left them in.
        Fused = "fused",
    } = Softmax::Fused => [SOFTMAX];

    /// How the weighted sum of V is computed.
    pv: Pv {
        /// One multiply-add at a time.
        Scalar = "scalar",
        /// Vector loads, and multiply-adds in pairs.
        Simd = "simd",
        /// Tensor cores, f16 with f32 sums; the V tile is widened in shared memory.
        Mma = "mma",
        /// The same, but V arrives transposed, stays FP8 in shared memory, and is widened in registers.
        Unpack = "unpack",
        /// FP8 tensor cores: V transposed, weights rounded to FP8.
        Fp8 = "fp8",
    } = Pv::Unpack => [PV];

    /// How exponentials are computed.
    exp: Exp {
        /// `ex2.approx` on the special-function unit.
        Hardware = "hardware",
        /// A polynomial on the multiply-add units.
        Polynomial = "poly",
    } = Exp::Hardware => [EXP_POLYNOMIAL];

    /// How tiles are laid out in shared memory, against bank conflicts.
    banks: Banks {
        /// Row after row.
        Plain = "plain",
        /// Each row 16 bytes longer, so that neighbours start in other banks.
        Padded = "padded",
        /// 16-byte chunks exchanged within 128 bytes, or fewer, by an exclusive or with the row.
        Swizzled = "swizzled",
    } = Banks::Swizzled => [BANKS];

    /// How blocks come by their work.
    schedule: Schedule {
        /// One block per tile of queries.
        Grid = "grid",
        /// As many blocks as fit, each taking the next tile from an atomic counter.
        Persistent = "persistent",
    } = Schedule::Grid => [PERSISTENT];

    /// Warps that do nothing but copy.
    producers: usize [0, 1, 2] = 0 => [PRODUCERS];

    /// Query rows per block: 16 or 32 for each computing warp of a key group.
    tile_queries: usize [16, 32, 64, 128, 256] = 128 => [TILE_QUERIES];

    /// Keys per tile.
    tile_keys: usize [32, 64, 128] = 64 => [TILE_KEYS];

    /// Warps that compute.
    warps: usize [2, 4, 8] = 4 => [WARPS];

    /// Groups of warps that share the keys of every tile, and merge their sums at the end.
    key_groups: usize [1, 2, 4] = 1 => [KEY_GROUPS];
}

/// What binds knobs among themselves.
const RULES: &[Rule<Config>] = &[
    Rule {
        knob: "key_groups",
        broken: |config| config.warps < config.key_groups || config.tile_keys < 32 * config.key_groups,
        because: "each group needs a warp, and 32 keys of a tile",
        fix: "set fewer key_groups, more warps, or a larger tile_keys",
    },
    Rule {
        knob: "tile_queries",
        broken: |config| ![16, 32].contains(&config.rows_per_warp()),
        because: "warps that share no keys have 16 or 32 rows each",
        fix: "set tile_queries=16·warps/key_groups, or twice as many",
    },
    Rule {
        knob: "key_groups",
        broken: |config| config.softmax != Softmax::Fused && config.key_groups > 1,
        because: "sums are merged from registers, where only softmax=fused leaves them",
        fix: "set softmax=fused, or key_groups=1",
    },
    Rule {
        knob: "softmax",
        broken: |config| config.softmax == Softmax::Fused && matches!(config.pv, Pv::Scalar | Pv::Simd),
        because: "fused keeps the weights in registers, where pv=scalar and pv=simd cannot read them",
        fix: "set pv=mma, or softmax=reuse",
    },
    Rule {
        knob: "pv",
        broken: |config| config.softmax != Softmax::Fused && !config.widens_values(),
        because: "unpack and fp8 take the weights from registers, where only softmax=fused leaves them",
        fix: "set softmax=fused, or pv=mma",
    },
    Rule {
        knob: "tile_queries",
        broken: |config| config.softmax != Softmax::Fused && config.rows_per_warp() != 16,
        because: "32 rows per warp are for softmax=fused alone",
        fix: "set tile_queries=16·warps, or softmax=fused",
    },
    Rule {
        knob: "producers",
        broken: |config| config.producers > 0 && !config.copies_ahead(),
        because: "warps that only copy need buffers to copy ahead into, and copy=sync has none",
        fix: "set copy=async2 or copy=async3, or producers=0",
    },
];

impl Config {
    /// The rules between knobs, whatever the problem and the machine.
    pub fn check(&self) -> Result<()> {
        self.check_numbers()?;
        check_rules(self, RULES)
    }

    /// Query rows of one warp.
    pub fn rows_per_warp(&self) -> usize {
        self.tile_queries * self.key_groups / self.warps.max(1)
    }

    /// Threads of a block.
    pub(super) fn threads(&self) -> usize {
        32 * (self.warps + self.producers)
    }

    /// Tiles of K and V that are in shared memory at a time.
    pub(super) fn stages(&self) -> usize {
        match self.copy {
            Copy::Sync => 1,
            Copy::Async2 => 2,
            Copy::Async3 => 3,
        }
    }

    pub(super) fn copies_ahead(&self) -> bool {
        self.copy != Copy::Sync
    }

    /// Whether the K tile is widened to f16 in shared memory.
    pub(super) fn widens_keys(&self) -> bool {
        self.qk == Qk::F16
    }

    /// Whether the V tile is; one that is not arrives transposed.
    pub(super) fn widens_values(&self) -> bool {
        matches!(self.pv, Pv::Scalar | Pv::Simd | Pv::Mma)
    }

    /// Whether a warp has registers for the sums of so many channels, its queries and scores. Below there are enough for most
    /// that the knobs can say, and the resource gate tells.
    pub(super) fn check_registers(&self, problem: &Problem) -> Result<()> {
        let (head_dim, value_dim) = (problem.shape().head_dim, problem.value_dims().head_dim);
        if head_dim.max(value_dim) <= WIDE_HEAD {
            return Ok(());
        }
        let refuse = |knob: &str, what: String, fix: &str| {
            let rule = format!("heads of {head_dim} and {value_dim} channels leave a warp no registers for {what}");
            Err(Error::invalid(knob, rule, fix))
        };
        let keys = self.tile_keys / self.key_groups.max(1);
        match (self.rows_per_warp(), keys) {
            (16, 32) => Ok(()),
            (16, _) => refuse("tile_keys", format!("scores of {keys} keys"), "set tile_keys=32·key_groups"),
            (rows, _) => {
                refuse("tile_queries", format!("{rows} rows of queries"), "set tile_queries=16·warps/key_groups")
            }
        }
    }

    /// Whether it reads V as it lies.
    pub(super) fn check_value_layout(&self, layout: Layout) -> Result<()> {
        let (fits, fix) = match self.widens_values() {
            false => (layout == Layout::Bhds, "lay V out transposed, as Layout::Bhds"),
            true => (!layout.is_transposed(), "lay it out as Layout::Bhsd or Layout::Bshd"),
        };
        if !fits {
            let reason = format!("is laid out as {layout}, which pv={} does not read", self.pv);
            return Err(Error::invalid("v", reason, fix));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_config_reads_back_what_it_prints() {
        for stage in stages::STAGES {
            assert_eq!(stage.config.to_string().parse::<Config>().unwrap(), stage.config, "{}", stage.name);
            assert_eq!(stage.name.parse::<Config>().unwrap(), stage.config);
        }
        let config: Config = "mma-pv,tile_keys=32".parse().unwrap();
        assert_eq!((config.pv, config.tile_keys), (Pv::Mma, 32));
        assert_eq!(stages::STAGES.last().unwrap().config, Config::DEFAULT);
    }

    #[test]
    fn every_broken_rule_names_its_knob() {
        for (text, knob) in [
            ("baseline,tile_keys=48", "tile_keys"),
            ("baseline,tile_keys=many", "tile_keys"),
            ("baseline,warps=3", "warps"),
            ("baseline,producers=4", "producers"),
            ("baseline,tile_queries=48", "tile_queries"),
            ("baseline,tile_queries=128", "tile_queries"),
            ("baseline,softmax=fused", "softmax"),
            ("baseline,pv=fp8", "pv"),
            ("baseline,producers=1", "producers"),
            ("baseline,key_groups=2", "key_groups"),
            ("baseline,key_groups=2,warps=8", "key_groups"),
            ("split-keys,tile_keys=32", "key_groups"),
            ("pv=wmma", "pv"),
            ("tile=64", "knob"),
            ("fastest", "stage"),
        ] {
            let error = text.parse::<Config>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("{knob}: ")), "{text}: {error}");
        }
    }
}
