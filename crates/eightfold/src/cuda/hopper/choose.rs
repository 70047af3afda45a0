//! Which config for which problem: a table with reasons.

use super::accuracy::with_exact_weights;
use super::config::{Config, Grid, Keys, Launch, Share, SplitKeys, Sums, Weights};
use super::launch::tiling::{Tiling, tiles_of_queries};
use super::rules::{MOST_UNPROMOTED_KEYS, caps_in_f16, check_keys, check_share, fits_f16, keys_at_once};
use super::stages;
use crate::cuda::Arch;
use crate::cuda::family::{Reason, Why, check_scales};
use crate::operands::Operands;
use crate::problem::{Accuracy, Mask, Problem};
use crate::tensor::{Fp8Format, Layout};

/// Keys from which on it pays that blocks share them: less is over before the parts are added up.
const MANY_KEYS: usize = 1024;

/// The most keys whose scores fit into registers.
const MOST_KEYS_AT_ONCE: usize = 512;

/// Codes of V, and of K, up to which blocks of two launches fit onto a multiprocessor.
const MOST_PAIRED_CODES: usize = 512 * 64;

/// Why keys come at once and no more.
const AT_ONCE: &str = "few keys: all at once";

/// Keys that a window shows a tile of queries, up to which it pays that tiles of keys are small.
const NARROW_WINDOW: usize = 2048;

/// What a tile of 128 queries computes in the time in which one of 192 computes its own, for each query.
const SHORTER_TILE_RATE: f64 = 0.85;

/// The config for a problem with tensors like these on a device of this many multiprocessors, and why: as measured on an
/// H200, which has 132.
pub fn choose(problem: &Problem, operands: &Operands, multiprocessors: usize) -> (Config, Reason) {
    let stage = stages::of(problem.accuracy()).at_problem(problem);
    let (config, by_size) = by_size(problem, operands, stage, multiprocessors);
    let exact = with_exact_weights(config, problem);
    let more = if exact == config { "" } else { "more weights exact, because keys are many" };
    let reason = Reason([Accuracy::NAMES[problem.accuracy() as usize], by_size, more, ""]);
    let (config, why) = match is_narrow(problem, operands) {
        _ if problem.input_format() == Fp8Format::Int8 => {
            let why = "scores in s32, because products of int8 are whole numbers";
            (stages::in_s32(exact, operands.v.centred), Reason([reason.0[0], by_size, more, why]))
        }
        true => (exact, reason),
        false => {
            let capped = "scores in f32, because f16 is too coarse for their bound";
            let wide = "scores in f32, because sums of these codes may not fit f16";
            let why = if caps_in_f16(problem.accuracy(), problem) { wide } else { capped };
            (stages::in_f32(exact), Reason([reason.0[0], by_size, more, why]))
        }
    };
    let widest = stages::widest(problem);
    let config = stages::for_wide_heads(config, widest);
    (if problem.softcap().is_some() { stages::for_capped_scores(config, widest) } else { config }, why)
}

/// The chosen config, then smaller tiles for scales that change within its own. Nothing on a device of another kind, unless it
/// is for the kernel to say so: nothing else reads V in its layout.
pub(super) fn candidates(
    problem: &Problem,
    operands: &Operands,
    arch: Arch,
    multiprocessors: usize,
) -> Vec<(Config, Why, Reason)> {
    if super::target(arch).is_err() && operands.v.layout != Layout::Packed {
        return Vec::new();
    }
    let (best, reason) = choose(problem, operands, multiprocessors);
    let smaller = |tile_keys: usize| {
        let config = Config {
            tile_keys,
            flight: best.flight.min(tile_keys / 32),
            stages: best.stages.max(2),
            ..best.streamed()
        };
        (config, Why::OddTensors, Reason::new("for scales that change within larger tiles"))
    };
    vec![(best, Why::Best, reason), smaller(128), smaller(64)]
}

/// Whether scores of these codes fit f16.
fn is_narrow(problem: &Problem, operands: &Operands) -> bool {
    problem.input_format() == Fp8Format::E4m3 && fits_f16(problem, operands) && caps_in_f16(problem.accuracy(), problem)
}

/// The config for scores in f16, also where they are to be in f32.
fn by_size(problem: &Problem, operands: &Operands, base: Config, multiprocessors: usize) -> (Config, &'static str) {
    // Blocks of short tiles are over so soon that it counts when the next launch's start.
    let short = Config { warpgroups: 1, promote: 0, sums: Sums::Registers, launch: Launch::Dependent, ..base };
    let head_dim = stages::widest(problem);
    let key_len = problem.most_visible_to(short.tile_queries());
    if let Some(chosen) = all_at_once(problem, operands, short, multiprocessors) {
        return chosen;
    }
    let units = tiles_of_queries(problem, &short);
    if units <= 2 * multiprocessors && key_len <= MOST_KEYS_AT_ONCE {
        let config = Config { tile_keys: 256, stages: 2, flight: 4, ..short };
        return (config, "few queries and few keys: a warpgroup for every 64 queries");
    }
    if 2 * units <= multiprocessors && key_len >= MANY_KEYS {
        let split = Config { tile_keys: 128, stages: 2, flight: 4, split_keys: SplitKeys::On, ..short };
        let is_short = |tiling: Tiling| tiling.keys_of_part(&split) <= MOST_UNPROMOTED_KEYS;
        let config = match Tiling::new(problem, &split, multiprocessors).is_ok_and(is_short) {
            true => split,
            false => promoted(split, head_dim),
        };
        return (config, "few queries and many keys: blocks share the keys");
    }
    if key_len < problem.shape().key_len.min(NARROW_WINDOW) {
        let config = Config { tile_keys: 128, launch: Launch::Dependent, ..base };
        return (config, "a window: small tiles of keys, of which it leaves little empty (not measured on a device)");
    }
    if units <= multiprocessors {
        let config = promoted(Config { tile_keys: 256, stages: 2, flight: 4, ..short }, head_dim);
        return (config, "too few query tiles to fill the device: short ones, a warpgroup each");
    }
    // Found by a search: 2.5 % at `long`, where blocks have few tiles.
    let shorter = Config { warpgroups: 2, sums: Sums::Registers, flight: 2, launch: Launch::Dependent, ..base };
    let rows = |config: &Config| {
        let rounds = tiles_of_queries(problem, config).div_ceil(multiprocessors);
        (rounds * config.tile_queries()) as f64
    };
    if base.warpgroups == 3 && rows(&shorter) < SHORTER_TILE_RATE * rows(&base) {
        return (shorter, "tiles of 192 queries would leave multiprocessors idle in the last round: shorter ones");
    }
    match problem.mask() {
        Mask::None => (base, "enough query tiles for every multiprocessor: tall tiles read K and V least often"),
        // 3 % at 2,16,2048,128, and 0.5 % at 4,16,4096 with either head dim; nothing without a mask.
        Mask::Causal => (
            Config { launch: Launch::Dependent, ..base },
            "enough query tiles for every multiprocessor: tall tiles read K and V least often, and a launch that starts \
             early, while the last causal tiles end",
        ),
    }
}

/// All keys at once, where that is fastest.
fn all_at_once(
    problem: &Problem,
    operands: &Operands,
    short: Config,
    multiprocessors: usize,
) -> Option<(Config, &'static str)> {
    if problem.input_format() == Fp8Format::Int8 {
        return None;
    }
    let head_dim = stages::widest(problem);
    let key_len = keys_at_once(&short, problem);
    let tile_keys = [64, 128, 192, 256, MOST_KEYS_AT_ONCE].into_iter().find(|keys| key_len <= *keys)?;
    let flight = if tile_keys == 64 { 2 } else { 4 };
    let config = Config { tile_keys, stages: 1, flight, keys: Keys::AtOnce, ..short };
    check_scales(tile_keys, operands).ok()?;
    check_keys(&config, problem, operands).ok()?;
    // Scores in f32 take twice the registers, and to cap them takes some more.
    let most_keys = match (is_narrow(problem, operands), problem.softcap().is_some()) {
        (true, false) => MOST_KEYS_AT_ONCE,
        (true, true) | (false, false) => 256,
        (false, true) => 128,
    };
    if tile_keys > most_keys {
        return None;
    }
    let rounds = tiles_of_queries(problem, &config).div_ceil(multiprocessors);
    if tile_keys * head_dim <= MOST_PAIRED_CODES {
        if key_len < problem.shape().key_len && tile_keys < MOST_KEYS_AT_ONCE {
            return Some((config, "a narrow window: its keys at once (not measured on a device)"));
        }
        // With more rounds the streamed kernel, which reads K and V less often, catches up; not where most of its tiles of
        // keys would be empty.
        let pays = rounds <= 4 || key_len <= 128;
        return pays.then(|| in_rounds(config, problem, operands, multiprocessors));
    }
    // A multiprocessor has room for one block. Under the mask streamed keys that no query of a tile sees are skipped, which
    // soon is worth more.
    let tall = Config { warpgroups: 2, ..config };
    let tall_rounds = tiles_of_queries(problem, &tall).div_ceil(multiprocessors);
    let most_rounds = if problem.mask() == Mask::None { 2 } else { 1 };
    if tall_rounds < rounds && tall_rounds <= most_rounds && keys_at_once(&tall, problem) <= tile_keys {
        return Some((tall, "few keys: all at once, for two warpgroups where blocks of one would take more rounds"));
    }
    (rounds <= 2).then_some((config, AT_ONCE))
}

/// The same with as many blocks for every multiprocessor, where two launches find room together, and V for two blocks of a
/// head together where it has such.
fn in_rounds(config: Config, problem: &Problem, operands: &Operands, multiprocessors: usize) -> (Config, &'static str) {
    let units = tiles_of_queries(problem, &config);
    let rounds = units.div_ceil(multiprocessors);
    let codes = config.tile_keys * stages::widest(problem);
    let have_room = match rounds {
        1 => 2 * units > multiprocessors,
        // Four blocks to a multiprocessor, of which scores in f32 would fill the registers.
        2 => config.tile_keys > 128 && codes <= MOST_PAIRED_CODES / 2 && is_narrow(problem, operands),
        _ => false,
    };
    if !have_room {
        return (config, AT_ONCE);
    }
    let filled = Config { grid: Grid::Rounds, ..config };
    let paired = Config { share: Share::Values, ..filled };
    if paired.check().and_then(|()| check_share(&paired, problem)).is_ok() {
        (paired, "few keys: all at once, V for two blocks of a head together, in whole rounds of blocks")
    } else if 4 * units > 3 * rounds * multiprocessors {
        (filled, "few keys: all at once, in whole rounds of blocks")
    } else {
        (config, AT_ONCE)
    }
}

/// The same with sums promoted every 512 keys: at 64 channels there are registers for them, unless weights have two parts.
fn promoted(config: Config, head_dim: usize) -> Config {
    let sums = match (head_dim, config.weights) {
        (..=64, Weights::Fp8) => Sums::Registers,
        _ => Sums::Shared,
    };
    Config { promote: 512, sums, ..config }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::hopper::Scores;
    use crate::problem::{Shape, Window};
    use crate::tensor::Granularity;

    fn planned(shape: Shape, accuracy: Accuracy) -> (Config, Reason) {
        let problem = Problem::new(shape).unwrap().with_accuracy(accuracy);
        choose(&problem, &Operands::assumed(&problem), 132)
    }

    fn chosen(shape: Shape) -> Config {
        planned(shape, Accuracy::Fast).0
    }

    #[test]
    fn each_regime_has_its_config() {
        let small = chosen(Shape::new(1, 8, 32, 64));
        assert_eq!((small.warpgroups, small.tile_keys, small.promote), (1, 64, 0));
        for batch in [1, 2] {
            let mission = chosen(Shape::new(batch, 8, 512, 64));
            assert_eq!((mission.keys, mission.tile_keys, mission.launch), (Keys::AtOnce, 512, Launch::Dependent));
        }
        assert_eq!(chosen(Shape::new(1, 8, 512, 128)).keys, Keys::AtOnce);
        assert_eq!(chosen(Shape::new(1, 8, 513, 128)).keys, Keys::Streamed);
        let long = chosen(Shape::new(2, 8, 2048, 64));
        assert_eq!((long.warpgroups, long.launch), (2, Launch::Dependent));
        assert_eq!(chosen(Shape::new(4, 16, 4096, 64)).warpgroups, 3);
        assert_eq!(chosen(Shape::new(4, 16, 4096, 128)).warpgroups, 2);
        for head_dim in [64, 128] {
            let large = Problem::new(Shape::new(4, 16, 4096, head_dim)).unwrap();
            let launch = |problem: &Problem| choose(problem, &Operands::assumed(problem), 132).0.launch;
            assert_eq!((launch(&large), launch(&large.causal())), (Launch::Plain, Launch::Dependent));
        }
        assert_eq!(chosen(Shape::new(1, 8, 1000, 64)).promote, 512);
        let decode = Shape { kv_heads: 4, query_len: 1, key_len: 8192, ..Shape::new(1, 32, 1, 128) };
        assert_eq!((chosen(decode).split_keys, chosen(decode).promote), (SplitKeys::On, 0));
        let reason = |shape| planned(shape, Accuracy::Fast).1.to_string();
        let many = Shape::new(2, 16, 16384, 128);
        assert_eq!((chosen(decode).linear, chosen(many).linear), (8, 7));
        assert_eq!([decode, many].map(|shape| reason(shape).contains("more weights exact")), [false, true]);
        let weights = |accuracy: &Accuracy| {
            let config = planned(Shape::new(1, 1, 65536, 64), *accuracy).0;
            (config.linear, config.weights)
        };
        assert_eq!(
            Accuracy::ALL.iter().map(weights).collect::<Vec<_>>(),
            [(7, Weights::Fp8), (3, Weights::Fp8), (0, Weights::Mixed), (0, Weights::Split)],
        );
        for shape in [decode, Shape::new(1, 8, 1024, 64), Shape::new(1, 8, 32, 64)] {
            assert_eq!(chosen(shape).launch, Launch::Dependent);
        }
        let longer = Shape { key_len: 131_072, ..decode };
        assert_eq!((chosen(longer).split_keys, chosen(longer).promote), (SplitKeys::On, 512));
    }

    /// Share, grid and warpgroups of blocks that have all keys at once; none where keys are streamed.
    fn at_once(heads: usize, len: usize, head_dim: usize, mask: Mask) -> Option<(Share, Grid, usize)> {
        let problem = Problem::new(Shape::new(1, heads, len, head_dim)).unwrap().with_mask(mask);
        let (config, _) = choose(&problem, &Operands::assumed(&problem), 132);
        (config.keys == Keys::AtOnce).then_some((config.share, config.grid, config.warpgroups))
    }

    #[test]
    fn blocks_for_few_keys_are_in_pairs_and_whole_rounds_where_two_launches_find_room() {
        let alone = Some((Share::Nothing, Grid::Work, 1));
        let filled = Some((Share::Nothing, Grid::Rounds, 1));
        let paired = Some((Share::Values, Grid::Rounds, 1));
        let of_512 = |heads, mask| at_once(heads, 512, 64, mask);
        assert_eq!([8, 9, 16, 17].map(|heads| of_512(heads, Mask::None)), [alone, paired, paired, alone]);
        assert_eq!([9, 12, 13, 16].map(|heads| of_512(heads, Mask::Causal)), [alone, alone, filled, filled]);
        assert_eq!(
            [16, 20].map(|heads| at_once(heads, 320, 64, Mask::None)),
            [alone, filled],
            "an odd number of tiles"
        );
        assert_eq!([32, 34, 66].map(|heads| at_once(heads, 256, 64, Mask::None)), [paired; 3]);
        assert_eq!([32, 34, 66].map(|heads| at_once(heads, 256, 128, Mask::None)), [paired, alone, alone]);
        assert_eq!(
            [64, 66, 128].map(|heads| at_once(heads, 128, 128, Mask::None)),
            [filled, filled, alone],
            "one line of V"
        );
    }

    #[test]
    fn keys_come_at_once_while_blocks_are_few_or_keys_very_few() {
        let keeps = |heads, len, head_dim| at_once(heads, len, head_dim, Mask::None).is_some();
        assert_eq!([132, 133].map(|heads| keeps(heads, 256, 128)), [true, false]);
        assert_eq!([66, 67].map(|heads| keeps(heads, 512, 64)), [true, false]);
        assert!(keeps(2048, 128, 128) && keeps(2048, 64, 64));
        let warpgroups = |heads, mask| at_once(heads, 512, 128, mask).map(|(.., warpgroups)| warpgroups);
        assert_eq!([16, 17, 33, 34].map(|heads| warpgroups(heads, Mask::Causal)), [Some(1), Some(2), Some(2), None]);
        assert_eq!([16, 17, 66, 67].map(|heads| warpgroups(heads, Mask::None)), [Some(1), Some(2), Some(2), None]);
        let decode = Shape { kv_heads: 8, query_len: 1, key_len: 512, ..Shape::new(32, 32, 1, 128) };
        assert_eq!((chosen(decode).keys, chosen(decode).warpgroups), (Keys::AtOnce, 1), "two would have no more rows");
    }

    #[test]
    fn codes_of_wide_range_are_scored_in_f32() {
        let problem = Problem::new(Shape::new(4, 16, 4096, 64)).unwrap();
        let mut operands = Operands::assumed(&problem);
        operands.q.largest_code = 448.0;
        let (config, reason) = choose(&problem, &operands, 132);
        assert_eq!((config.scores, config.linear, config.weights), (Scores::F32, 0, Weights::Fp8));
        assert!(reason.to_string().contains("may not fit f16"), "{reason}");
        let wide = |heads, len| {
            let problem = Problem::new(Shape::new(1, heads, len, 64)).unwrap();
            let mut operands = Operands::assumed(&problem);
            operands.q.largest_code = 448.0;
            let config = choose(&problem, &operands, 132).0;
            (config.keys, config.grid)
        };
        assert_eq!(
            [256, 257].map(|len| wide(8, len).0),
            [Keys::AtOnce, Keys::Streamed],
            "f32 scores fill the registers"
        );
        assert_eq!([32, 34].map(|heads| wide(heads, 256)), [Grid::Rounds, Grid::Work].map(|grid| (Keys::AtOnce, grid)));
        let e5m2 = problem.with_input_format(Fp8Format::E5m2);
        assert_eq!(choose(&e5m2, &Operands::assumed(&e5m2), 132).0.scores, Scores::F32);
    }

    #[test]
    fn products_of_int8_are_summed_in_s32() {
        for accuracy in Accuracy::ALL {
            for (heads, len, head_dim) in [(8, 32, 64), (16, 512, 64), (64, 4096, 128), (1, 65536, 128), (4, 2048, 192)]
            {
                for mask in [Mask::None, Mask::Causal] {
                    let problem = Problem::new(Shape::new(1, heads, len, head_dim)).unwrap().with_mask(mask);
                    let problem = problem.with_accuracy(*accuracy).with_input_format(Fp8Format::Int8);
                    let mut operands = Operands::assumed(&problem);
                    let (config, reason) = choose(&problem, &operands, 132);
                    assert_eq!((config.scores, config.keys, config.promote), (Scores::S32, Keys::Streamed, 0));
                    assert_eq!(config.accuracy(), *accuracy);
                    assert!(reason.to_string().contains("products of int8"), "{reason}");
                    let checked = crate::cuda::Config::from(config);
                    checked.check_problem(&problem, &operands, Arch::Sm90).unwrap();
                    // V with a mean needs its sums promoted, for which there is room beside fewer keys.
                    operands.v.centred = false;
                    let config = choose(&problem, &operands, 132).0;
                    assert!(config.promote == 0 || config.tile_keys <= 128, "{config}");
                    crate::cuda::Config::from(config).check_problem(&problem, &operands, Arch::Sm90).unwrap();
                }
            }
        }
        let capped = Problem::new(Shape::new(1, 2, 512, 64)).unwrap().with_input_format(Fp8Format::Int8);
        let capped = capped.with_softcap(30.0).unwrap();
        let operands = Operands::assumed(&capped);
        let config = crate::cuda::Config::from(choose(&capped, &operands, 132).0);
        let refused = config.check_problem(&capped, &operands, Arch::Sm90).unwrap_err().to_string();
        assert!(refused.starts_with("softcap: the hopper kernel caps no scores of int8"), "{refused}");
    }

    #[test]
    fn keys_behind_a_narrow_window_come_at_once_or_in_small_tiles() {
        let problem = |head_dim, left| {
            let shape = Shape::new(1, 64, 8192, head_dim).with_kv_heads(8);
            Problem::new(shape).unwrap().causal().with_window(Window::new(Some(left), None)).with_sinks()
        };
        let of = |problem: &Problem| choose(problem, &Operands::assumed(problem), 132);
        let (narrow, reason) = of(&problem(64, 127));
        assert_eq!((narrow.keys, narrow.tile_keys, narrow.warpgroups), (Keys::AtOnce, 192, 1));
        assert!(reason.to_string().contains("not measured"), "{reason}");
        assert_eq!(of(&problem(128, 129)).0.tile_keys, 256);
        let (wider, _) = of(&problem(64, 1000));
        assert_eq!((wider.keys, wider.tile_keys), (Keys::Streamed, 128));
        assert_eq!(of(&problem(64, 5000)).0.tile_keys, 256);
        // Blocks of scales within the window's keys.
        let mut operands = Operands::assumed(&problem(64, 127));
        operands.k.granularity = Granularity::Block { rows: 256 };
        assert_eq!(choose(&problem(64, 127), &operands, 132).0.keys, Keys::Streamed);
        let decode = Problem::new(Shape { query_len: 1, ..problem(64, 127).shape() }).unwrap();
        let decode = decode.with_window(Window::new(Some(4000), Some(0)));
        assert_eq!(of(&decode).0.split_keys, SplitKeys::On);
    }

    #[test]
    fn whatever_is_chosen_can_run() {
        for accuracy in Accuracy::ALL {
            for head_dim in [8, 64, 80, 96, 128, 136, 192, 256] {
                for (heads, len) in
                    [(1, 1), (8, 32), (8, 65), (8, 129), (8, 512), (16, 512), (1, 5000), (2, 65536), (64, 4096)]
                {
                    let problem = Problem::new(Shape::new(1, heads, len, head_dim)).unwrap().with_accuracy(*accuracy);
                    let window = |left| Window::new(Some(left), Some(left / 2));
                    for (mask, largest_code, window) in [
                        (Mask::None, 16.0, Window::default()),
                        (Mask::Causal, 16.0, Window::default()),
                        (Mask::None, 448.0, Window::default()),
                        (Mask::Causal, 16.0, window(127)),
                        (Mask::None, 16.0, window(300)),
                        (Mask::None, 448.0, window(1000)),
                    ] {
                        let problem = problem.with_mask(mask).with_window(window);
                        let capped = problem.with_softcap(30.0).unwrap().with_sinks();
                        for problem in [problem, capped, problem.with_value_dim(128).unwrap()] {
                            let mut operands = Operands::assumed(&problem);
                            operands.k.largest_code = largest_code;
                            let (config, _) = choose(&problem, &operands, 132);
                            let checked = crate::cuda::Config::from(config);
                            checked.check_problem(&problem, &operands, Arch::Sm90).unwrap();
                            assert!(config.accuracy() as usize >= *accuracy as usize, "{problem}: {config}");
                        }
                    }
                }
            }
        }
    }
}
