//! Which config for which problem: a table with reasons.

use super::config::{Banks, Config};
use super::stages;
use crate::problem::{Problem, Shape};

/// The config that is fastest for a problem on a device of this many multiprocessors, and why: as measured on an H200,
/// which has 132.
pub fn choose(problem: &Problem, multiprocessors: usize) -> (Config, &'static str) {
    let Shape { batch, query_heads, query_len, key_len, head_dim, .. } = problem.shape();
    let stage = |name: &str| stages::find(name).map(|stage| stage.at(head_dim)).unwrap_or_default();
    let tall = stage("tall-tiles");
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
    let config = if head_dim > 64 { long } else { tall };
    (config, "enough query tiles for every multiprocessor: tall tiles read K and V least often")
}

#[cfg(test)]
mod tests {
    use super::*;

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
        for head_dim in [64, 128] {
            for len in [1, 32, 64, 65, 512, 4096] {
                chosen(Shape::new(1, 8, len, head_dim)).check().unwrap();
            }
        }
    }
}
