//! Which block does which units of work, and in which order: causal ones differ in length, and those of a head read the
//! same keys. Without a list blocks deal units out among themselves, in rounds: where all are equally long that is as good, and
//! nothing is read from memory for it.

use super::tiling::{Tiling, key_tiles_seen};
use crate::cuda::hopper::config::{Config, Keys, SplitKeys};
use crate::problem::{Mask, Problem, Shape};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// What a unit takes besides its key tiles, to start and to end, in the time of one: as measured on an H200.
const START_AND_END: usize = 2;

/// Units beyond which rounds even out by themselves.
const MOST_UNITS: usize = 1 << 16;

/// The places of each block's units, as it does them: each goes to the block that is free first. None where units are
/// dealt out in rounds.
pub(super) fn order(
    problem: &Problem,
    config: &Config,
    tiling: &Tiling,
    blocks: usize,
    l2_bytes: usize,
) -> Option<Vec<Vec<i32>>> {
    let reads_a_list = problem.mask() == Mask::Causal
        && config.warpgroups > 1
        && config.split_keys == SplitKeys::Off
        && config.keys == Keys::Streamed;
    if !reads_a_list || tiling.units <= blocks || tiling.units > MOST_UNITS {
        return None;
    }
    let mut order = vec![Vec::new(); blocks];
    let mut free: BinaryHeap<_> = (0..blocks).map(|block| Reverse((0, block))).collect();
    for (tile, head) in tiles_and_heads(problem, tiling, l2_bytes) {
        let mut first = free.peek_mut()?;
        let Reverse((time, block)) = *first;
        order[block].push(tiling.causal_place(tile, head, problem.shape().batch) as i32);
        *first = Reverse((time + key_tiles_seen(problem, config, tile) + START_AND_END, block));
    }
    Some(order)
}

/// Every tile of every head: as many heads at a time as the cache holds the keys of, and of those the longest tiles first.
fn tiles_and_heads(problem: &Problem, tiling: &Tiling, l2_bytes: usize) -> impl Iterator<Item = (usize, usize)> {
    let heads = tiling.head_tiles * problem.shape().batch;
    let groups = heads.div_ceil(heads_at_once(problem, tiling, l2_bytes));
    let size = heads.div_ceil(groups);
    let tiles = tiling.query_tiles;
    (0..heads).step_by(size).flat_map(move |first| {
        let group = first..heads.min(first + size);
        (0..tiles).rev().flat_map(move |tile| group.clone().map(move |head| (tile, head)))
    })
}

/// Tiles of heads whose K and V fit half of the cache together; the other half is for those that blocks are still at.
fn heads_at_once(problem: &Problem, tiling: &Tiling, l2_bytes: usize) -> usize {
    let Shape { key_len, head_dim, .. } = problem.shape();
    let bytes = key_len * (head_dim + problem.value_dims().head_dim);
    (l2_bytes / 2 / bytes).max(1) * (problem.shape().group() / tiling.packed_heads)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of an H200.
    const BLOCKS: usize = 132;
    const L2_BYTES: usize = 60 << 20;
    /// Two warpgroups: tiles of 128 queries.
    const SQUARE: &str = "fast,warpgroups=2,stages=2,sums=registers,tile_keys=128";
    const WIDE: &str = "fast,warpgroups=2,stages=2,sums=registers";

    fn causal(shape: Shape, config: &str) -> (Problem, Config, Tiling) {
        let problem = Problem::new(shape).unwrap().causal();
        let config = config.parse().unwrap();
        (problem, config, Tiling::new(&problem, &config, BLOCKS).unwrap())
    }

    fn ordered(shape: Shape, config: &str, blocks: usize, l2_bytes: usize) -> Option<Vec<Vec<i32>>> {
        let (problem, config, tiling) = causal(shape, config);
        order(&problem, &config, &tiling, blocks, l2_bytes)
    }

    /// The tile of queries and the head tile of all batches in a place, as `Work` of the device code decodes it.
    fn decoded(place: i32, tiling: &Tiling, batch: usize) -> (usize, usize) {
        let heads = tiling.head_tiles * batch;
        let round = place as usize / heads;
        (tiling.query_tiles - 1 - round, place as usize - round * heads)
    }

    #[test]
    fn every_unit_is_done_once() {
        let shapes = [
            (Shape { kv_heads: 2, query_len: 700, key_len: 1301, ..Shape::new(3, 6, 1, 64) }, "fast"),
            (Shape { query_len: 1301, key_len: 700, ..Shape::new(2, 5, 1, 128) }, WIDE),
            // Most queries see no key.
            (Shape { query_len: 3001, key_len: 70, ..Shape::new(1, 7, 1, 64) }, SQUARE),
            // Heads of a group share a tile.
            (Shape { kv_heads: 5, query_len: 31, key_len: 517, ..Shape::new(7, 20, 1, 128) }, WIDE),
            (Shape::new(2, 32, 513, 64), "fast"),
            (Shape { key_len: 1, ..Shape::new(16, 16, 16 * 1024 * 2, 64) }, WIDE),
        ];
        for (shape, config) in shapes {
            let (problem, config, tiling) = causal(shape, config);
            for (blocks, l2_bytes) in [(1, 0), (7, 1 << 20), (33, L2_BYTES)] {
                let order = order(&problem, &config, &tiling, blocks, l2_bytes).unwrap();
                assert_eq!(order.len(), blocks);
                let mut done = order.concat();
                done.sort_unstable();
                assert_eq!(done, (0..tiling.units as i32).collect::<Vec<_>>(), "{problem}");
            }
        }
    }

    #[test]
    fn a_unit_goes_to_the_block_that_is_free_first_and_of_several_to_the_lowest() {
        // Two heads, one at a time; units take 7, 6, 5, 4 and 3.
        let order = ordered(Shape::new(1, 2, 5 * 128, 64), SQUARE, 4, 0).unwrap();
        assert_eq!(order, [vec![0, 5], vec![2, 3], vec![4, 1], vec![6, 8, 7, 9]]);
    }

    #[test]
    fn queries_that_see_no_key_take_time_all_the_same() {
        // The last tile sees one tile of keys, the first three none.
        let shape = Shape { query_len: 4 * 128, key_len: 128, ..Shape::new(1, 1, 1, 64) };
        assert_eq!(ordered(shape, SQUARE, 2, 0).unwrap(), [vec![0, 3], vec![1, 2]]);
    }

    /// How much longer than the mean the longest block takes.
    fn imbalance(order: &[Vec<i32>], problem: &Problem, config: &Config, tiling: &Tiling) -> f64 {
        let time = |place: &i32| {
            let (tile, _) = decoded(*place, tiling, problem.shape().batch);
            key_tiles_seen(problem, config, tile) + 2
        };
        let times: Vec<usize> = order.iter().map(|units| units.iter().map(time).sum()).collect();
        let mean = times.iter().sum::<usize>() as f64 / times.len() as f64;
        *times.iter().max().unwrap() as f64 / mean - 1.0
    }

    #[test]
    fn blocks_end_together() {
        let (problem, config, tiling) = causal(Shape::new(4, 16, 4096, 128), WIDE);
        let order = order(&problem, &config, &tiling, BLOCKS, L2_BYTES).unwrap();
        assert!(imbalance(&order, &problem, &config, &tiling) < 0.015);
        // As the device code deals them out where there is no list: in rounds, every other one backwards.
        let mut rounds = vec![Vec::new(); BLOCKS];
        for place in 0..tiling.units {
            let (round, block) = (place / BLOCKS, place % BLOCKS);
            rounds[if round % 2 == 1 { BLOCKS - 1 - block } else { block }].push(place as i32);
        }
        assert!(imbalance(&rounds, &problem, &config, &tiling) > 0.03);
    }

    #[test]
    fn heads_at_work_fit_the_cache_in_groups_of_one_size() {
        let at_once = |shape, l2_bytes| {
            let (problem, _, tiling) = causal(shape, WIDE);
            heads_at_once(&problem, &tiling, l2_bytes)
        };
        let many_keys = Shape::new(2, 16, 16384, 128);
        assert_eq!(at_once(many_keys, L2_BYTES), 7);
        assert_eq!(at_once(many_keys, 1 << 20), 1);
        assert_eq!(at_once(Shape { kv_heads: 4, ..many_keys }, L2_BYTES), 7 * 4);
        assert_eq!(at_once(Shape { kv_heads: 4, query_len: 40, ..many_keys }, L2_BYTES), 7 * 2);

        let heads_begun = |shape: Shape, count: usize| {
            let (problem, _, tiling) = causal(shape, WIDE);
            tiles_and_heads(&problem, &tiling, L2_BYTES).take(count).map(|(_, head)| head).max().unwrap() + 1
        };
        assert_eq!(heads_begun(many_keys, 7 * 128), 7);
        assert_eq!(heads_begun(many_keys, 7 * 128 + 1), 8);
        // Twelve go as six and six, not as seven and five.
        let fewer = Shape { query_heads: 6, kv_heads: 6, ..many_keys };
        assert_eq!((heads_begun(fewer, 6 * 128), heads_begun(fewer, 6 * 128 + 1)), (6, 7));

        let (problem, config, tiling) = causal(many_keys, WIDE);
        let order = order(&problem, &config, &tiling, BLOCKS, L2_BYTES).unwrap();
        let first = order.iter().map(|units| decoded(units[0], &tiling, 2));
        assert!({ first }.all(|(tile, head)| head < 7 && tile > 127 - BLOCKS.div_ceil(7)));
    }

    #[test]
    fn rounds_do_where_a_list_would_not_be_read_or_not_help() {
        let shape = Shape::new(4, 16, 4096, 64);
        assert!(ordered(shape, "fast", BLOCKS, L2_BYTES).is_some());
        for config in ["fast,warpgroups=1", "fast,warpgroups=1,split_keys=on"] {
            assert_eq!(ordered(shape, config, BLOCKS, L2_BYTES), None, "{config}");
        }
        let (problem, config, tiling) = causal(shape, "fast");
        assert_eq!(order(&problem.with_mask(Mask::None), &config, &tiling, BLOCKS, L2_BYTES), None);
        for other in [Config { split_keys: SplitKeys::On, ..config }, Config { keys: Keys::AtOnce, ..config }] {
            assert_eq!(order(&problem, &other, &tiling, BLOCKS, L2_BYTES), None, "{other}");
        }
        let units = |heads| ordered(Shape::new(1, heads, 128, 64), WIDE, BLOCKS, L2_BYTES);
        assert!(units(BLOCKS).is_none() && units(BLOCKS + 1).is_some());
        assert!(units(MOST_UNITS).is_some() && units(MOST_UNITS + 1).is_none());
    }
}
