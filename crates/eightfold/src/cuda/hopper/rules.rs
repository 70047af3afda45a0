//! What rules bind the knobs of the hopper kernel: among themselves, and on a problem and a machine.

use super::config::{Config, Grid, HEAD_DIMS, KNOBS, Keys, Launch, Scores, Share, SplitKeys, Sums, Weights};
use crate::cuda::{Arch, Operands};
use crate::error::{Error, Result};
use crate::problem::{Mask, Problem};
use crate::tensor::Granularity;

/// Keys of one step of the value product.
const STEP_KEYS: usize = 32;
/// The most keys of a line of V in shared memory; blocks share whole lines.
const LINE_KEYS: usize = 128;

/// The largest number of f16.
const LARGEST_F16: f32 = 65504.0;

/// The most keys whose FP8 sums the tensor core may add up alone: it aligns what it adds to the largest and cuts off
/// what lies below 2⁻¹³ of it, so that many equal terms are lost in their own sum.
pub(super) const MOST_UNPROMOTED_KEYS: usize = 512;

impl Config {
    /// The rules between knobs, whatever the problem and the machine.
    pub fn check(&self) -> Result<()> {
        let numbers = [
            ("warpgroups", self.warpgroups),
            ("tile_keys", self.tile_keys),
            ("stages", self.stages),
            ("linear", self.linear),
            ("promote", self.promote),
            ("flight", self.flight),
        ];
        for (name, value) in numbers {
            let listed = KNOBS.iter().find(|knob| knob.name == name).map_or(&[][..], |knob| knob.values);
            if !listed.iter().any(|text| text.parse() == Ok(value)) {
                let reason = format!("{value} is not one of {}", listed.join(", "));
                return Err(Error::invalid(name, reason, "choose one of them"));
            }
        }
        if self.linear > 0 && self.scores != Scores::F16 {
            return Err(Error::invalid(
                "linear",
                "the linear exponential is written for f16 scores",
                "set scores=f16, or linear=0",
            ));
        }
        if self.weights != Weights::Fp8 && self.linear > 0 {
            return Err(Error::invalid(
                "weights",
                "two parts are for exact exponentials",
                "set linear=0, or weights=fp8",
            ));
        }
        if self.flight > self.tile_keys / STEP_KEYS {
            return Err(Error::invalid(
                "flight",
                format!("{} steps of {STEP_KEYS} keys are more than a tile of {} has", self.flight, self.tile_keys),
                format!("set {} or less, or a larger tile_keys", self.tile_keys / STEP_KEYS),
            ));
        }
        self.check_keys()?;
        if self.tile_keys > 256
            && !(self.scores == Scores::F16
                && (self.keys == Keys::AtOnce || (self.warpgroups == 1 && self.weights == Weights::Fp8)))
        {
            return Err(Error::invalid(
                "tile_keys",
                format!(
                    "f16 scores of {} keys alone, streamed for one warpgroup with FP8 weights, leave registers",
                    self.tile_keys
                ),
                "set scores=f16, and keys=at-once or warpgroups=1 and weights=fp8, or a smaller tile_keys",
            ));
        }
        if self.warpgroups == 3 && self.scores == Scores::F32 && self.tile_keys > 128 {
            return Err(Error::invalid(
                "tile_keys",
                format!(
                    "f32 scores of {} keys leave too few of the 160 registers that three warpgroups have",
                    self.tile_keys
                ),
                "set tile_keys=128, warpgroups=2, or scores=f16",
            ));
        }
        if !self.promote.is_multiple_of(self.tile_keys) {
            return Err(Error::invalid(
                "promote",
                format!("{} keys are not a multiple of tile_keys {}", self.promote, self.tile_keys),
                "set a multiple, or a tile_keys that divides it",
            ));
        }
        if self.promote == 0 && self.sums == Sums::Shared {
            return Err(Error::invalid(
                "sums",
                "without promotion there are no sums to keep in shared memory",
                "set sums=registers, or a promote above 0",
            ));
        }
        Ok(())
    }

    /// With all keys at once there is one tile, and what is for several has no meaning.
    fn check_keys(&self) -> Result<()> {
        let one_tile =
            self.warpgroups <= 2 && self.stages == 1 && self.promote == 0 && self.split_keys == SplitKeys::Off;
        if self.keys == Keys::AtOnce && !one_tile {
            return Err(Error::invalid(
                "keys",
                "all keys at once are one tile for one warpgroup or two, summed up once",
                "set warpgroups=1 or 2, stages=1, promote=0, sums=registers and split_keys=off, or keys=streamed",
            ));
        }
        if self.share != Share::Nothing && !(self.keys == Keys::AtOnce && self.tile_keys > LINE_KEYS) {
            return Err(Error::invalid(
                "share",
                format!("blocks bring V for each other where all keys come at once, and more than {LINE_KEYS}"),
                "set keys=at-once and a larger tile_keys, or share=nothing",
            ));
        }
        if self.grid == Grid::Rounds && !(self.keys == Keys::AtOnce && self.launch == Launch::Dependent) {
            return Err(Error::invalid(
                "grid",
                "blocks without work hold a place for the next launch, where all keys come at once and it starts early",
                "set keys=at-once and launch=dependent, or grid=work",
            ));
        }
        Ok(())
    }

    /// Whether blocks that share V are in pairs, and see the same keys.
    pub(super) fn check_share(&self, problem: &Problem) -> Result<()> {
        let tiles = problem.shape().query_len.div_ceil(self.tile_queries());
        let reason = if self.share == Share::Values && problem.mask() == Mask::Causal {
            "blocks see other keys each under the causal mask".into()
        } else if !tiles.is_multiple_of(self.cluster()) {
            format!("an odd number of tiles of {} queries, {tiles}, makes no pairs of blocks", self.tile_queries())
        } else {
            return Ok(());
        };
        Err(Error::invalid("share", reason, "set share=nothing"))
    }

    /// Whether no scale of K or V changes within a tile.
    pub(super) fn check_scales(&self, operands: &Operands) -> Result<()> {
        for (name, granularity) in [("k scales", operands.k.granularity), ("v scales", operands.v.granularity)] {
            if let Granularity::Block { rows } = granularity
                && !rows.is_multiple_of(self.tile_keys)
            {
                return Err(Error::invalid(
                    name,
                    format!("a scale for every {rows} rows changes within a tile of {} keys", self.tile_keys),
                    "quantise in blocks of a multiple of 256 rows, set a smaller tile_keys that divides them, or use the cpu kernel",
                ));
            }
        }
        Ok(())
    }

    /// Whether a kernel of this config can compute the problem with tensors like these, on this architecture.
    pub fn check_problem(&self, problem: &Problem, operands: &Operands, arch: Arch) -> Result<()> {
        self.check()?;
        super::target(arch)?;
        let head_dim = problem.shape().head_dim;
        if !HEAD_DIMS.contains(&head_dim) {
            return Err(Error::invalid(
                "head_dim",
                format!("{head_dim} is not one of {HEAD_DIMS:?}, for which the hopper kernel is written"),
                "pad each head with zeros, or use the cpu kernel",
            ));
        }
        self.check_scales(operands)?;
        let key_len = problem.shape().key_len;
        if self.keys == Keys::AtOnce && key_len > self.tile_keys {
            return Err(Error::invalid(
                "keys",
                format!("{key_len} keys do not fit into one tile of {}", self.tile_keys),
                "set a larger tile_keys, or keys=streamed",
            ));
        }
        self.check_share(problem)?;
        let (queries, keys) = (operands.q.largest_code, operands.k.largest_code);
        if self.scores == Scores::F16 && !fits_f16(problem, operands) {
            return Err(Error::invalid(
                "scores",
                format!(
                    "codes of Q up to {queries} times codes of K up to {keys} over {head_dim} channels may sum to more \
                     than the {LARGEST_F16} of f16"
                ),
                "quantise Q and K with largest code 16 (Quantizer::with_largest_code), or set scores=f32 and linear=0",
            ));
        }
        // How long the parts of split keys are is known at launch.
        if self.split_keys == SplitKeys::Off {
            self.check_sums(key_len, operands)?;
        }
        if self.tile_keys > 256 && head_dim > 64 && self.keys == Keys::Streamed {
            return Err(Error::invalid(
                "tile_keys",
                format!("scores of {} keys and sums of {head_dim} channels are too many registers", self.tile_keys),
                "set tile_keys=256, or keys=at-once",
            ));
        }
        let bytes = super::shared_bytes(self, head_dim);
        if bytes > Arch::Sm90a.max_shared_bytes() {
            return Err(Error::invalid(
                "tile_keys",
                format!(
                    "the tiles of {self} need {bytes} bytes of shared memory at head dim {head_dim}, and a block has {} \
                     on {}",
                    Arch::Sm90a.max_shared_bytes(),
                    Arch::Sm90a
                ),
                "set a smaller tile_keys, fewer warpgroups or stages, or sums=registers",
            ));
        }
        Ok(())
    }

    /// Whether sums over this many keys may be left to the tensor cores.
    pub(super) fn check_sums(&self, keys: usize, operands: &Operands) -> Result<()> {
        if self.promote == 0 && keys > MOST_UNPROMOTED_KEYS && !operands.v.centred {
            return Err(Error::invalid(
                "promote",
                format!(
                    "FP8 tensor cores lose small terms in long sums: beyond {MOST_UNPROMOTED_KEYS} keys, and there are \
                     {keys}, V with a mean comes out wrong"
                ),
                "set promote=512, or quantise V centred",
            ));
        }
        Ok(())
    }
}

/// Whether sums of products of codes of Q and K stay finite in f16.
pub(super) fn fits_f16(problem: &Problem, operands: &Operands) -> bool {
    operands.q.largest_code * operands.k.largest_code * problem.shape().head_dim as f32 <= LARGEST_F16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operands::Operand;
    use crate::problem::Shape;

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
    fn what_a_problem_does_not_allow_is_refused_with_the_rule() {
        let problem = |len, head_dim| Problem::new(Shape::new(1, 2, len, head_dim)).unwrap();
        let check = |text: &str, problem: &Problem, change: fn(&mut Operands), arch| {
            let mut operands = Operands::assumed(problem);
            change(&mut operands);
            text.parse::<Config>().unwrap().check_problem(problem, &operands, arch)
        };
        let usual = problem(1000, 64);
        let nothing: fn(&mut Operands) = |_| {};
        assert_eq!(check("fast", &usual, nothing, Arch::Sm90a), Ok(()));
        assert_eq!(check("fast", &usual, nothing, Arch::Sm90), Ok(()));
        let refused =
            |text: &str, problem: &Problem, change, arch| check(text, problem, change, arch).unwrap_err().to_string();
        assert!(refused("fast", &usual, nothing, Arch::Sm89).starts_with("arch: "));
        assert!(refused("fast", &problem(9, 72), nothing, Arch::Sm90).starts_with("head_dim: 72 is not one of"));
        let blocks: fn(&mut Operands) = |operands| operands.v.granularity = Granularity::Block { rows: 128 };
        assert!(refused("fast", &usual, blocks, Arch::Sm90).starts_with("v scales: a scale for every 128 rows"));
        let wide: fn(&mut Operands) = |operands| operands.q.largest_code = 448.0;
        let error = refused("fast", &usual, wide, Arch::Sm90);
        assert!(error.starts_with("scores: codes of Q up to 448 times codes of K up to 16 over 64"), "{error}");
        assert_eq!(check("precise,scores=f32,tile_keys=128", &usual, wide, Arch::Sm90), Ok(()));
        let unpromoted = "fast,promote=0,sums=registers";
        assert!(refused(unpromoted, &usual, nothing, Arch::Sm90).starts_with("promote: FP8 tensor cores lose"));
        let centred: fn(&mut Operands) = |operands| operands.v = Operand { centred: true, ..operands.v };
        assert_eq!(check(unpromoted, &usual, centred, Arch::Sm90), Ok(()));
        assert_eq!(check(unpromoted, &problem(512, 64), nothing, Arch::Sm90), Ok(()));
        let at_once = "fast,warpgroups=1,stages=1,promote=0,sums=registers,tile_keys=512,keys=at-once";
        assert_eq!(check(at_once, &problem(512, 128), nothing, Arch::Sm90), Ok(()));
        assert!(refused(at_once, &usual, nothing, Arch::Sm90).starts_with("keys: 1000 keys do not fit"));
        let large = "fast,warpgroups=3,tile_keys=256,stages=4,promote=512,sums=shared";
        assert!(refused(large, &problem(512, 128), nothing, Arch::Sm90).starts_with("tile_keys: the tiles of"));
    }
}
