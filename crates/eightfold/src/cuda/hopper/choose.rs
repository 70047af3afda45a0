//! Which config for which problem: a table with reasons.

use super::config::{Config, Scores, SplitKeys, Sums, fits_f16};
use super::launch::work;
use super::stages;
use crate::cuda::Operands;
use crate::problem::{Problem, Shape};
use crate::tensor::Fp8Format;

/// Keys from which on it pays that blocks share them: less is over before the parts are added up.
const MANY_KEYS: usize = 2048;

/// The config for a problem with tensors like these on a device of this many multiprocessors, and why.
pub fn choose(problem: &Problem, operands: &Operands, multiprocessors: usize) -> (Config, String) {
    let Shape { key_len, head_dim, .. } = problem.shape();
    let stage = stages::of(problem.accuracy());
    let narrow = problem.input_format() == Fp8Format::E4m3 && fits_f16(problem, operands);
    let in_range = |config: Config| if narrow { config } else { stages::in_f32(config) };
    let base = stage.at(head_dim);
    let scores = match (narrow, base.scores) {
        (true, _) | (_, Scores::F32) => "",
        (false, Scores::F16) => "; scores in f32, because sums of these codes may not fit f16",
    };
    let told = |reason: &str| format!("{} as asked; {reason}{scores}", stage.name);

    let short = Config { warpgroups: 1, stages: 2, ..base };
    let units = work::tiles_of_queries(problem, &short);
    if units > multiprocessors {
        return (
            in_range(base),
            told("enough query tiles for every multiprocessor: tall tiles read K and V least often"),
        );
    }
    let tile_keys = match key_len {
        ..=64 => 64,
        65..=128 => 128,
        _ => base.tile_keys,
    };
    let (promote, sums) = match key_len {
        ..=512 => (0, Sums::Registers),
        _ => (512, Sums::Shared),
    };
    let short = Config { tile_keys, promote, sums, ..short };
    if key_len >= MANY_KEYS && 2 * units <= multiprocessors {
        let config = Config { split_keys: SplitKeys::On, ..short };
        return (in_range(config), told("few queries and many keys: blocks share the keys"));
    }
    (in_range(short), told("too few query tiles to fill the device: short ones, a warpgroup each"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::Arch;
    use crate::cuda::hopper::Weights;
    use crate::problem::Accuracy;

    fn chosen(shape: Shape) -> Config {
        let problem = Problem::new(shape).unwrap();
        choose(&problem, &Operands::hoped(&problem), 132).0
    }

    #[test]
    fn each_regime_has_its_config() {
        let small = chosen(Shape::new(1, 8, 32, 64));
        assert_eq!((small.warpgroups, small.tile_keys, small.promote), (1, 64, 0));
        let mission = chosen(Shape::new(1, 8, 512, 64));
        assert_eq!((mission.warpgroups, mission.tile_keys, mission.split_keys), (1, 256, SplitKeys::Off));
        assert_eq!(chosen(Shape::new(2, 8, 2048, 64)).warpgroups, 3);
        assert_eq!(chosen(Shape::new(4, 16, 4096, 128)).warpgroups, 2);
        let decode = Shape { kv_heads: 4, query_len: 1, key_len: 8192, ..Shape::new(1, 32, 1, 128) };
        assert_eq!(chosen(decode).split_keys, SplitKeys::On);
    }

    #[test]
    fn codes_of_wide_range_are_scored_in_f32() {
        let problem = Problem::new(Shape::new(4, 16, 4096, 64)).unwrap();
        let mut operands = Operands::hoped(&problem);
        operands.q.largest_code = 448.0;
        let (config, reason) = choose(&problem, &operands, 132);
        assert_eq!((config.scores, config.linear, config.weights), (Scores::F32, 0, Weights::Fp8));
        assert!(reason.contains("may not fit f16"), "{reason}");
        let e5m2 = problem.with_input_format(Fp8Format::E5m2);
        assert_eq!(choose(&e5m2, &Operands::hoped(&e5m2), 132).0.scores, Scores::F32);
    }

    #[test]
    fn whatever_is_chosen_can_run() {
        for accuracy in Accuracy::ALL {
            for head_dim in [64, 128] {
                for (heads, len) in [(1, 1), (8, 32), (8, 65), (8, 129), (8, 512), (1, 5000), (64, 4096)] {
                    let problem = Problem::new(Shape::new(1, heads, len, head_dim)).unwrap().with_accuracy(*accuracy);
                    for largest_code in [16.0, 448.0] {
                        let mut operands = Operands::hoped(&problem);
                        operands.k.largest_code = largest_code;
                        let (config, _) = choose(&problem, &operands, 132);
                        config.check_problem(&problem, &operands, Arch::Sm90).unwrap();
                    }
                }
            }
        }
    }
}
