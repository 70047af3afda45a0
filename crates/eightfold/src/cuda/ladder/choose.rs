//! Which config for which problem: a table with reasons.

use super::config::{Banks, Config, Pv, WIDE_HEAD};
use super::stages::{self, STAGES};
use crate::cuda::family::{Reason, Why};
use crate::problem::{Problem, Shape};
use crate::tensor::Layout;

/// The config that is fastest for a problem on a device of this many multiprocessors, and why: as measured on an H200,
/// which has 132.
pub fn choose(problem: &Problem, multiprocessors: usize) -> (Config, &'static str) {
    let Shape { batch, query_heads, query_len, key_len, .. } = problem.shape();
    let channels = widest(problem);
    let stage = |name: &str| stages::find(name).map(|stage| stage.at(channels)).unwrap_or_default();
    let tall = for_capped_scores(problem, stage("tall-tiles"));
    let tall_tiles = query_len.div_ceil(tall.tile_queries) * query_heads * batch;
    if key_len <= 64 {
        let config = Config { tile_keys: 32, ..stage("unpack") };
        return (config, "few keys: a small tile arrives sooner, and there is nothing to share");
    }
    if tall_tiles < multiprocessors {
        return (
            stage("split-keys"),
            "too few query tiles to fill the device: short tiles, and warps that share the keys",
        );
    }
    // Found by a search: 1.07 to 1.09 times as fast as 64 keys, swizzled, at 2,16,2048,128 and 4,16,4096,128.
    let long = Config { tile_keys: 128, banks: Banks::Padded, ..tall };
    let config = if (65..=WIDE_HEAD).contains(&channels) { long } else { tall };
    (config, "enough query tiles for every multiprocessor: tall tiles read K and V least often")
}

/// The same with registers to cap scores by, which 32 rows a warp have not.
fn for_capped_scores(problem: &Problem, config: Config) -> Config {
    match (problem.softcap(), config.rows_per_warp()) {
        (Some(_), 32) => Config { warps: 2 * config.warps, ..config },
        _ => config,
    }
}

/// Channels of Q and K, or of V where it has more.
fn widest(problem: &Problem) -> usize {
    problem.shape().head_dim.max(problem.value_dims().head_dim)
}

/// What reads V in this layout, the best first: then, for scales that change within its tiles, smaller ones, and the stages from
/// the last to the first.
pub(super) fn candidates(problem: &Problem, layout: Layout, multiprocessors: usize) -> Vec<(Config, Why, Reason)> {
    if layout == Layout::Packed {
        return Vec::new();
    }
    let (best, reason) = choose(problem, multiprocessors);
    let channels = widest(problem);
    let smaller = Reason::new("for scales that change within larger tiles");
    let small = [
        (best, Why::Best, Reason::new(reason)),
        (Config { tile_keys: best.tile_keys.min(64), ..best }, Why::OddTensors, smaller),
        (Config { tile_keys: 32, key_groups: 1, ..best }, Why::OddTensors, smaller),
    ];
    let other = Reason::new("for tensors that nothing before it takes");
    let stages = STAGES.iter().rev().map(|stage| (stage.at(channels), Why::OddTensors, other));
    let reading = |(config, why, reason): (Config, Why, Reason)| match layout.is_transposed() || config.widens_values()
    {
        true => (config, why, reason),
        false => (Config { pv: Pv::Mma, ..config }, why, reason),
    };
    let is_legal = |config: &Config| {
        config.check_value_layout(layout).is_ok() && config.check_registers(problem).is_ok() && config.check().is_ok()
    };
    small.into_iter().chain(stages).map(reading).filter(|(config, ..)| is_legal(config)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::{Arch, Config as AnyConfig, Operands};

    fn chosen(shape: Shape) -> Config {
        choose(&Problem::new(shape).unwrap(), 132).0
    }

    #[test]
    fn each_regime_has_its_config() {
        assert_eq!(chosen(Shape::new(1, 8, 32, 64)).tile_keys, 32);
        assert_eq!(chosen(Shape::new(1, 8, 512, 64)).key_groups, 2);
        assert_eq!(chosen(Shape::new(2, 8, 512, 64)).key_groups, 2);
        assert_eq!(chosen(Shape::new(2, 8, 2048, 64)).tile_queries, 128);
        assert_eq!(chosen(Shape::new(2, 16, 2048, 128)).rows_per_warp(), 16);
        assert_eq!(chosen(Shape::new(2, 16, 2048, 128)).tile_keys, 128);
    }

    #[test]
    fn whatever_is_chosen_is_legal() {
        for head_dim in (8..=256).step_by(8) {
            for len in [1, 32, 64, 65, 512, 4096] {
                let plain = Problem::new(Shape::new(1, 8, len, head_dim)).unwrap();
                for problem in [plain, plain.with_value_dim(128).unwrap(), plain.with_value_dim(256).unwrap()] {
                    let config = AnyConfig::from(choose(&problem, 132).0);
                    config.check_uploaded(&problem, &Operands::assumed(&problem), Arch::Sm89).unwrap();
                }
            }
        }
    }
}
