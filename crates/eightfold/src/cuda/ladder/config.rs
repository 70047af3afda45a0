//! The knobs of the ladder kernel: what each may be, what rules bind them, how they read as text.

use super::stages;
use crate::cuda::Arch;
use crate::error::{Error, Result};
use crate::knobs::{Knob, config_text, knob_values};
use crate::problem::Problem;
use crate::tensor::{Granularity, Layout};

/// One setting of the ladder's knobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Config {
    /// How tiles of K and V reach shared memory.
    pub copy: Copy,
    /// The operands of the score product.
    pub qk: Qk,
    /// Where the softmax happens.
    pub softmax: Softmax,
    /// How the weighted sum of V is computed.
    pub pv: Pv,
    /// How exponentials are computed.
    pub exp: Exp,
    /// How tiles are laid out in shared memory, against bank conflicts.
    pub banks: Banks,
    /// How blocks come by their work.
    pub schedule: Schedule,
    /// Warps that do nothing but copy: 0, 1 or 2.
    pub producers: usize,
    /// Query rows per block: 16 or 32 for each computing warp of a key group.
    pub tile_queries: usize,
    /// Keys per tile.
    pub tile_keys: usize,
    /// Warps that compute.
    pub warps: usize,
    /// Groups of warps that share the keys of every tile, and merge their sums at the end.
    pub key_groups: usize,
}

knob_values! {
    /// How tiles of K and V reach shared memory.
    Copy("copy") {
        /// Through registers, and everyone waits.
        Sync = "sync",
        /// `cp.async` into two buffers: the next tile arrives while this one is used.
        Async2 = "async2",
        /// The same with three buffers.
        Async3 = "async3",
    }
}

knob_values! {
    /// The operands of the score product.
    Qk("qk") {
        /// The K tile is widened to f16 in shared memory, once per block.
        F16 = "f16",
        /// The K tile stays FP8 in shared memory; each warp widens its fragments in registers.
        Unpack = "unpack",
        /// FP8 tensor cores (which sm_90 has for `wgmma` alone: its compiler widens in registers).
        Fp8 = "fp8",
    }
}

knob_values! {
    /// Where the softmax happens.
    Softmax("softmax") {
        /// Scores and weights each have a buffer in shared memory.
        Separate = "separate",
        /// Weights overwrite the scores in shared memory.
        Reuse = "reuse",
        /// In the registers that the score product left them in.
        Fused = "fused",
    }
}

knob_values! {
    /// How the weighted sum of V is computed.
    Pv("pv") {
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
    }
}

knob_values! {
    /// How exponentials are computed.
    Exp("exp") {
        /// `ex2.approx` on the special-function unit.
        Hardware = "hardware",
        /// A polynomial on the multiply-add units.
        Polynomial = "poly",
    }
}

knob_values! {
    /// How tiles are laid out in shared memory.
    Banks("banks") {
        /// Row after row.
        Plain = "plain",
        /// Each row 16 bytes longer, so that neighbours start in other banks.
        Padded = "padded",
        /// 16-byte chunks exchanged within 128 bytes by an exclusive or with the row.
        Swizzled = "swizzled",
    }
}

knob_values! {
    /// How blocks come by their work.
    Schedule("schedule") {
        /// One block per tile of queries.
        Grid = "grid",
        /// As many blocks as fit, each taking the next tile from an atomic counter.
        Persistent = "persistent",
    }
}

/// Every knob of the ladder kernel, in the order in which a config prints them.
pub const KNOBS: &[Knob] = &[
    Knob {
        name: "copy",
        values: Copy::NAMES,
        what: "how tiles reach shared memory (USE_CP_ASYNC, USE_CP_ASYNC_3STAGE)",
    },
    Knob { name: "qk", values: Qk::NAMES, what: "operands of the score product" },
    Knob { name: "softmax", values: Softmax::NAMES, what: "where the softmax happens (stages 3A, 3B)" },
    Knob { name: "pv", values: Pv::NAMES, what: "how the weighted sum of V is computed (USE_WMMA_PV)" },
    Knob { name: "exp", values: Exp::NAMES, what: "how exponentials are computed (USE_FAST_EXP)" },
    Knob { name: "banks", values: Banks::NAMES, what: "layout of tiles in shared memory (D_PAD, XOR swizzle)" },
    Knob { name: "schedule", values: Schedule::NAMES, what: "how blocks come by their work (USE_PERSISTENT_CTA)" },
    Knob {
        name: "producers",
        values: &["0", "1", "2"],
        what: "warps that only copy (USE_WARP_SPECIALIZATION, NUM_PRODUCER_WARPS)",
    },
    Knob { name: "tile_queries", values: &["16", "32", "64", "128", "256"], what: "query rows per block (TILE_M)" },
    Knob { name: "tile_keys", values: &["32", "64", "128"], what: "keys per tile (TILE_N)" },
    Knob { name: "warps", values: &["2", "4", "8"], what: "warps that compute (NUM_WARPS)" },
    Knob { name: "key_groups", values: &["1", "2", "4"], what: "groups of warps that share the keys of a tile" },
];

/// The head dims that the kernel is written for.
pub const HEAD_DIMS: &[usize] = &[64, 128];

impl Config {
    /// Query rows of one warp.
    pub fn rows_per_warp(&self) -> usize {
        self.tile_queries * self.key_groups / self.warps.max(1)
    }

    /// Threads of a block.
    pub fn threads(&self) -> usize {
        32 * (self.warps + self.producers)
    }

    /// Tiles of K and V that are in shared memory at a time.
    pub fn stages(&self) -> usize {
        match self.copy {
            Copy::Sync => 1,
            Copy::Async2 => 2,
            Copy::Async3 => 3,
        }
    }

    /// Whether the K tile is widened to f16 in shared memory.
    pub(super) fn widens_keys(&self) -> bool {
        self.qk == Qk::F16
    }

    /// Whether the V tile is; one that is not arrives transposed.
    pub(super) fn widens_values(&self) -> bool {
        matches!(self.pv, Pv::Scalar | Pv::Simd | Pv::Mma)
    }

    /// The rules between knobs, whatever the problem and the machine.
    pub fn check(&self) -> Result<()> {
        let listed = [
            ("tile_keys", self.tile_keys, [32, 64, 128].as_slice()),
            ("warps", self.warps, &[2, 4, 8]),
            ("producers", self.producers, &[0, 1, 2]),
            ("key_groups", self.key_groups, &[1, 2, 4]),
        ];
        for (name, value, allowed) in listed {
            if !allowed.contains(&value) {
                return Err(Error::invalid(name, format!("{value} is not one of {allowed:?}"), "choose one of them"));
            }
        }
        let row_warps = self.warps / self.key_groups;
        if row_warps * self.key_groups != self.warps || self.tile_keys / self.key_groups < 32 {
            return Err(Error::invalid(
                "key_groups",
                format!(
                    "{} groups cannot share {} warps and tiles of {} keys: each needs a warp, and 32 keys",
                    self.key_groups, self.warps, self.tile_keys
                ),
                "set fewer key_groups, more warps, or a larger tile_keys",
            ));
        }
        if self.tile_queries != 16 * row_warps && self.tile_queries != 32 * row_warps {
            return Err(Error::invalid(
                "tile_queries",
                format!("{} rows do not divide into 16 or 32 for each of {row_warps} warps", self.tile_queries),
                format!("set tile_queries={} or {}", 16 * row_warps, 32 * row_warps),
            ));
        }
        if self.softmax != Softmax::Fused && self.key_groups > 1 {
            return Err(Error::invalid(
                "key_groups",
                format!("sums are merged from registers, but softmax={} works in shared memory", self.softmax),
                "set softmax=fused, or key_groups=1",
            ));
        }
        let in_registers = matches!(self.pv, Pv::Unpack | Pv::Fp8);
        if self.softmax == Softmax::Fused && matches!(self.pv, Pv::Scalar | Pv::Simd) {
            return Err(Error::invalid(
                "softmax",
                format!("fused keeps the weights in registers, where pv={} cannot read them", self.pv),
                "set pv=mma, or softmax=reuse",
            ));
        }
        if in_registers && self.softmax != Softmax::Fused {
            return Err(Error::invalid(
                "pv",
                format!(
                    "{} takes the weights from registers, but softmax={} leaves them in shared memory",
                    self.pv, self.softmax
                ),
                "set softmax=fused, or pv=mma",
            ));
        }
        if self.softmax != Softmax::Fused && self.rows_per_warp() != 16 {
            return Err(Error::invalid(
                "tile_queries",
                format!("{} rows per warp are for softmax=fused alone", self.rows_per_warp()),
                format!("set tile_queries={}, or softmax=fused", 16 * self.warps),
            ));
        }
        if self.producers > 0 && self.copy == Copy::Sync {
            return Err(Error::invalid(
                "producers",
                "warps that only copy need buffers to copy ahead into, and copy=sync has none",
                "set copy=async2 or copy=async3, or producers=0",
            ));
        }
        Ok(())
    }

    /// The layout in which it reads V.
    pub fn value_layout(&self) -> Layout {
        match self.pv {
            Pv::Unpack | Pv::Fp8 => Layout::Bhds,
            Pv::Scalar | Pv::Simd | Pv::Mma => Layout::Bhsd,
        }
    }

    /// Whether it reads V as it lies.
    pub(crate) fn check_value_layout(&self, layout: Layout) -> Result<()> {
        let (fits, fix) = match self.value_layout() {
            Layout::Bhds => (layout == Layout::Bhds, "lay V out transposed, as Layout::Bhds"),
            _ => (!layout.is_transposed(), "lay it out as Layout::Bhsd or Layout::Bshd"),
        };
        if !fits {
            let reason = format!("is laid out as {layout}, which pv={} does not read", self.pv);
            return Err(Error::invalid("v", reason, fix));
        }
        Ok(())
    }

    /// Whether a kernel of this config can compute the problem, with scales of these granularities for K and V, on
    /// this architecture.
    pub fn check_problem(&self, problem: &Problem, keys: Granularity, values: Granularity, arch: Arch) -> Result<()> {
        self.check()?;
        let head_dim = problem.shape().head_dim;
        if !HEAD_DIMS.contains(&head_dim) {
            return Err(Error::invalid(
                "head_dim",
                format!("{head_dim} is not one of {HEAD_DIMS:?}, for which the ladder kernel is written"),
                "pad each head with zeros, or use the cpu kernel",
            ));
        }
        for (name, granularity) in [("k scales", keys), ("v scales", values)] {
            if let Granularity::Block { rows } = granularity
                && !rows.is_multiple_of(self.tile_keys)
            {
                return Err(Error::invalid(
                    name,
                    format!("a scale for every {rows} rows changes within a tile of {} keys", self.tile_keys),
                    "quantise in blocks of a multiple of 128 rows, set a smaller tile_keys that divides them, or use the cpu kernel",
                ));
            }
        }
        let bytes = super::shared_bytes(self, head_dim);
        if bytes > arch.max_shared_bytes() {
            return Err(Error::invalid(
                "tile_keys",
                format!(
                    "the tiles of {self} need {bytes} bytes of shared memory at head dim {head_dim}, and a block has {} on {arch}",
                    arch.max_shared_bytes()
                ),
                "set a smaller tile_keys or tile_queries, or fewer copy stages",
            ));
        }
        Ok(())
    }
}

impl Default for Config {
    /// The last stage of the ladder.
    fn default() -> Self {
        stages::STAGES[stages::STAGES.len() - 1].config
    }
}

config_text! {
    numbers: "write a whole number of rows, keys or warps";
    copy, qk, softmax, pv, exp, banks, schedule, producers, tile_queries, tile_keys, warps, key_groups
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
