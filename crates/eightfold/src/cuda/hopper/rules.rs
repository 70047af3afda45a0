//! What binds the hopper kernel on a problem and its tensors.

use super::config::{Config, Keys, Scores, Share, SplitKeys};
use crate::cuda::Operands;
use crate::error::{Error, Result};
use crate::problem::{Accuracy, Mask, Problem, Shape, Window};
use crate::tensor::{Fp8Format, Granularity};

/// The largest number of f16.
const LARGEST_F16: f32 = 65504.0;

/// The most keys whose FP8 sums the tensor core may add up alone: it aligns what it adds to the largest and cuts off
/// what lies below 2⁻¹³ of it, so that many equal terms are lost in their own sum.
pub(super) const MOST_UNPROMOTED_KEYS: usize = 512;

/// The most channels of a head whose keys come at once: what a thread copies lies on one line.
pub(super) const MOST_CHANNELS_AT_ONCE: usize = 128;

/// The largest bound of scores that f16 can say in powers of two, with room.
const MOST_BOUND_IN_F16: f32 = 16384.0;

/// Whether the kernel can compute the problem with tensors like these, beyond what binds every family.
pub(super) fn check_operands(config: &Config, problem: &Problem, operands: &Operands) -> Result<()> {
    check_keys(config, problem, operands)?;
    check_share(config, problem)?;
    check_scores(config, problem, operands)?;
    match config.split_keys {
        SplitKeys::Off => check_sums(config, problem.most_visible_to(1), operands),
        // How long the parts of split keys are is known at launch.
        SplitKeys::On => Ok(()),
    }
}

/// The keys that a tile must have room for where those of a tile of queries come at once: what its queries see, and what lies
/// behind up to a multiple of 64 keys, where the tile ends.
pub(super) fn keys_at_once(config: &Config, problem: &Problem) -> usize {
    const ALIGNMENT: usize = 64;
    let Shape { query_len, key_len, .. } = problem.shape();
    let queries = config.tile_queries().min(query_len);
    let seen = problem.most_visible_to(queries);
    if seen == key_len {
        return key_len;
    }
    // Tiles of queries end as many keys behind a multiple of 64 as the first one does.
    let right = if problem.mask() == Mask::Causal { 0 } else { problem.window().right.unwrap_or(0) };
    let end = (queries + right + key_len) as i64 - query_len as i64;
    key_len.min(seen + (-end).rem_euclid(ALIGNMENT as i64) as usize)
}

/// Whether keys that come at once fit into one tile, and those that are streamed leave registers.
pub(super) fn check_keys(config: &Config, problem: &Problem, operands: &Operands) -> Result<()> {
    let (key_len, tile_keys) = (problem.shape().key_len, config.tile_keys);
    let (head_dim, value_dim) = (problem.shape().head_dim, problem.value_dims().head_dim);
    let changing = |granularity| matches!(granularity, Granularity::Block { .. });
    match config.keys {
        Keys::AtOnce if head_dim.max(value_dim) > MOST_CHANNELS_AT_ONCE => Err(Error::invalid(
            "keys",
            format!(
                "heads of {head_dim} and {value_dim} channels are too wide to come at once: up to {MOST_CHANNELS_AT_ONCE} do"
            ),
            "set keys=streamed",
        )),
        Keys::AtOnce if keys_at_once(config, problem) > tile_keys => Err(Error::invalid(
            "keys",
            format!("{} keys do not fit into one tile of {tile_keys}", keys_at_once(config, problem)),
            "set a larger tile_keys, or keys=streamed",
        )),
        Keys::AtOnce
            if key_len > tile_keys && (changing(operands.k.granularity) || changing(operands.v.granularity)) =>
        {
            Err(Error::invalid(
                "keys",
                "where a window's keys come at once, scales may not change along them",
                "quantise K and V with a scale per head, or set keys=streamed",
            ))
        }
        Keys::Streamed if tile_keys > 256 && value_dim > 64 => Err(Error::invalid(
            "tile_keys",
            format!("scores of {tile_keys} keys and sums of {value_dim} channels are too many registers"),
            "set tile_keys=256, or keys=at-once",
        )),
        _ => Ok(()),
    }
}

/// Whether blocks that share V are in pairs, and see the same keys.
pub(super) fn check_share(config: &Config, problem: &Problem) -> Result<()> {
    let tiles = problem.shape().query_len.div_ceil(config.tile_queries());
    let alike = problem.mask() == Mask::None && problem.window() == Window::default();
    let reason = if config.share == Share::Values && !alike {
        "blocks see other keys each under the causal mask or behind a window".into()
    } else if !tiles.is_multiple_of(config.cluster()) {
        format!("an odd number of tiles of {} queries, {tiles}, makes no pairs of blocks", config.tile_queries())
    } else {
        return Ok(());
    };
    Err(Error::invalid("share", reason, "set share=nothing"))
}

/// Whether scores keep to the numbers that they are summed in.
fn check_scores(config: &Config, problem: &Problem, operands: &Operands) -> Result<()> {
    let (in_s32, int8) = (config.scores == Scores::S32, problem.input_format() == Fp8Format::Int8);
    if int8 && problem.softcap().is_some() {
        return Err(Error::invalid(
            "softcap",
            "the hopper kernel caps no scores of int8",
            "quantise Q and K to E4M3, or use the cpu kernel, which eightfold::attention runs on tensors of the host",
        ));
    }
    if in_s32 != int8 {
        let (rule, fix) = match int8 {
            true => ("products of int8 are summed in s32", "set scores=s32, or quantise Q and K to E4M3"),
            false => ("s32 is for Q and K in int8", "set scores=f16, or quantise with Quantizer::int8"),
        };
        return Err(Error::invalid("scores", rule, fix));
    }
    if in_s32 || config.scores == Scores::F32 {
        return Ok(());
    }
    if !caps_in_f16(config.accuracy(), problem) {
        return Err(Error::invalid(
            "scores",
            "f16 is too coarse for capped scores with accuracy precise, and for bounds above 16384",
            "set scores=f32 and linear=0, or choose another accuracy",
        ));
    }
    if fits_f16(problem, operands) {
        return Ok(());
    }
    let (queries, keys) = (operands.q.largest_code, operands.k.largest_code);
    Err(Error::invalid(
        "scores",
        format!(
            "codes of Q up to {queries} times codes of K up to {keys} over {} channels may sum to more than the \
             {LARGEST_F16} of f16",
            problem.shape().head_dim
        ),
        "quantise Q and K with largest code 16 (Quantizer::with_largest_code), or set scores=f32 and linear=0",
    ))
}

/// Whether sums over this many keys may be left to the tensor cores.
pub(super) fn check_sums(config: &Config, keys: usize, operands: &Operands) -> Result<()> {
    if config.promote > 0 || keys <= MOST_UNPROMOTED_KEYS || operands.v.centred {
        return Ok(());
    }
    Err(Error::invalid(
        "promote",
        format!(
            "FP8 tensor cores lose small terms in long sums: beyond {MOST_UNPROMOTED_KEYS} keys, and there are {keys}, V \
             with a mean comes out wrong"
        ),
        "set promote=512, or quantise V centred",
    ))
}

/// Whether scores may be capped in f16, where they have a bound at all.
pub(super) fn caps_in_f16(accuracy: Accuracy, problem: &Problem) -> bool {
    problem.softcap().is_none_or(|bound| accuracy != Accuracy::Precise && bound <= MOST_BOUND_IN_F16)
}

/// Whether sums of products of codes of Q and K stay finite in f16.
pub(super) fn fits_f16(problem: &Problem, operands: &Operands) -> bool {
    operands.q.largest_code * operands.k.largest_code * problem.shape().head_dim as f32 <= LARGEST_F16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::{Arch, Config as AnyConfig};
    use crate::operands::Operand;
    use crate::problem::Shape;
    use crate::tensor::Granularity;

    #[test]
    fn what_a_problem_does_not_allow_is_refused_with_the_rule() {
        let problem = |len, head_dim| Problem::new(Shape::new(1, 2, len, head_dim)).unwrap();
        let check = |text: &str, problem: &Problem, change: fn(&mut Operands), arch| {
            let mut operands = Operands::assumed(problem);
            change(&mut operands);
            AnyConfig::from(text.parse::<Config>().unwrap()).check_problem(problem, &operands, arch)
        };
        let usual = problem(1000, 64);
        let nothing: fn(&mut Operands) = |_| {};
        assert_eq!(check("fast", &usual, nothing, Arch::Sm90a), Ok(()));
        assert_eq!(check("fast", &usual, nothing, Arch::Sm90), Ok(()));
        let refused =
            |text: &str, problem: &Problem, change, arch| check(text, problem, change, arch).unwrap_err().to_string();
        assert!(refused("fast", &usual, nothing, Arch::Sm89).starts_with("arch: "));
        let two = "fast,warpgroups=2,stages=2,sums=registers";
        assert_eq!(check(two, &problem(9, 72), nothing, Arch::Sm90), Ok(()));
        let capped = |bound| usual.with_softcap(bound).unwrap();
        assert_eq!(check("fast", &capped(50.0), nothing, Arch::Sm90), Ok(()));
        assert!(refused("precise", &capped(50.0), nothing, Arch::Sm90).starts_with("scores: f16 is too coarse"));
        assert!(refused("fast", &capped(1e5), nothing, Arch::Sm90).starts_with("scores: f16 is too coarse"));
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
        assert!(refused(at_once, &problem(512, 136), nothing, Arch::Sm90).starts_with("keys: heads of 136 and 136"));
        let large = "fast,warpgroups=3,tile_keys=256,stages=4,promote=512,sums=shared";
        assert!(refused(large, &problem(512, 128), nothing, Arch::Sm90).starts_with("tile_keys: the tiles of"));
    }
}
