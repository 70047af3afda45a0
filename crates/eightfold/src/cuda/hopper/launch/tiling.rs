//! The tiles of a problem: how many there are along queries, heads and keys, and how many blocks compute them. Which block
//! computes which is the schedule's.

use crate::cuda::hopper::config::{Config, Grid, Keys, SplitKeys};
use crate::error::{Error, Result};
use crate::problem::{Problem, Shape};

/// The tiles of a problem: `Work` of the device code finds its way by the same numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cuda::hopper) struct Tiling {
    /// Query heads of one tile.
    pub(super) packed_heads: usize,
    /// Tiles along the queries.
    pub(super) query_tiles: usize,
    /// Tiles along the heads.
    pub(super) head_tiles: usize,
    /// All tiles of queries.
    pub(super) units: usize,
    /// Parts of the keys.
    pub(super) splits: usize,
    /// Key tiles of a part.
    pub(super) tiles_per_split: usize,
}

impl Tiling {
    pub(in crate::cuda::hopper) fn new(problem: &Problem, config: &Config, multiprocessors: usize) -> Result<Tiling> {
        let units = tiles_of_queries(problem, config);
        let key_tiles = most_key_tiles(problem, config);
        // As many parts as all run at once, none of them without a tile.
        let wanted = match config.split_keys {
            SplitKeys::Off => 1,
            SplitKeys::On => (multiprocessors / tiles_of_queries(&problem.deciding(), config)).clamp(1, key_tiles),
        };
        let tiles_per_split = key_tiles.div_ceil(wanted);
        let splits = key_tiles.div_ceil(tiles_per_split);
        if i32::try_from(units.saturating_mul(splits)).is_err() {
            return Err(Error::invalid(
                "shape",
                format!(
                    "{problem} makes more than {} tiles of {} queries, the most that a grid can have",
                    i32::MAX,
                    config.tile_queries()
                ),
                "make the batch smaller",
            ));
        }
        let packed_heads = packed_heads(problem, config);
        Ok(Tiling {
            packed_heads,
            query_tiles: problem.shape().query_len.div_ceil(config.tile_queries()),
            head_tiles: problem.shape().query_heads / packed_heads,
            units,
            splits,
            tiles_per_split,
        })
    }

    /// Keys of the longest part.
    pub(in crate::cuda::hopper) fn keys_of_part(&self, config: &Config) -> usize {
        self.tiles_per_split * config.tile_keys
    }

    /// The place of a tile of queries, counted from the first, of a head tile of all batches, where the mask is causal: the
    /// longest, at the end of the sequence, come first.
    pub(super) fn causal_place(&self, tile: usize, head: usize, batch: usize) -> usize {
        (self.query_tiles - 1 - tile) * self.head_tiles * batch + head
    }

    /// Blocks of a launch: as many as fit at a time, and no more than there is work; or, of those that do not come back
    /// for more, as many as there is work, or as fill all multiprocessors equally.
    pub(super) fn blocks(&self, config: &Config, multiprocessors: usize, blocks_per_multiprocessor: usize) -> u32 {
        let resident = match config.keys {
            Keys::Streamed => multiprocessors.saturating_mul(blocks_per_multiprocessor).max(1),
            Keys::AtOnce => usize::MAX,
        };
        let blocks = resident.min(self.units * self.splits);
        let blocks = match config.grid {
            Grid::Work => blocks,
            Grid::Rounds => blocks.next_multiple_of(multiprocessors.max(1)),
        };
        u32::try_from(blocks).unwrap_or(u32::MAX)
    }
}

/// The most tiles of keys that a tile of queries sees.
fn most_key_tiles(problem: &Problem, config: &Config) -> usize {
    let (key_len, tile_keys) = (problem.shape().key_len, config.tile_keys);
    let seen = problem.most_visible_to(config.tile_queries().min(problem.shape().query_len));
    if seen == key_len {
        return key_len.div_ceil(tile_keys);
    }
    // The first of them may be the last key of a tile.
    ((seen + tile_keys - 2) / tile_keys + 1).min(key_len.div_ceil(tile_keys))
}

/// Query heads that share a tile: those of one group that fit, where at least two do.
fn packed_heads(problem: &Problem, config: &Config) -> usize {
    let Shape { query_len, .. } = problem.shape();
    let group = problem.shape().group();
    let fits = |heads: &usize| group.is_multiple_of(*heads) && heads * query_len <= config.tile_queries();
    (1..=group).rev().filter(|_| query_len <= config.tile_queries() / 2).find(fits).unwrap_or(1)
}

/// Units of work, if the keys of none are split.
pub(in crate::cuda::hopper) fn tiles_of_queries(problem: &Problem, config: &Config) -> usize {
    let Shape { batch, query_heads, query_len, .. } = problem.shape();
    let head_tiles = query_heads / packed_heads(problem, config);
    [head_tiles, batch]
        .iter()
        .fold(query_len.div_ceil(config.tile_queries()), |units, count| units.saturating_mul(*count))
}

/// Tiles of keys that a tile of queries sees, by its last row.
pub(super) fn key_tiles_seen(problem: &Problem, config: &Config, tile: usize) -> usize {
    let first = tile * config.tile_queries();
    let queries = first..problem.shape().query_len.min(first + config.tile_queries());
    problem.visible_tiles(&queries, config.tile_keys).len()
}

/// Tiles of (queries × keys) that the kernel computes: those with a visible pair.
pub(in crate::cuda::hopper) fn tiles(problem: &Problem, config: &Config) -> u64 {
    (problem.tiles(config.tile_queries(), config.tile_keys) / packed_heads(problem, config)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tiling(shape: Shape, config: &str) -> Tiling {
        Tiling::new(&Problem::new(shape).unwrap(), &config.parse().unwrap(), 132).unwrap()
    }

    #[test]
    fn a_sequence_is_split_as_if_it_were_alone_where_the_batch_must_not_count() {
        let config: Config = "fast,warpgroups=1,split_keys=on".parse().unwrap();
        let problem = |batch| {
            Problem::new(Shape { kv_heads: 4, query_len: 1, key_len: 8192, ..Shape::new(batch, 32, 1, 128) }).unwrap()
        };
        let splits = |problem: Problem| Tiling::new(&problem, &config, 132).unwrap().splits;
        assert!(splits(problem(7)) < splits(problem(1)));
        assert_eq!(splits(problem(7).batch_invariant()), splits(problem(1)));
    }

    #[test]
    fn every_tile_of_queries_of_every_head_is_a_unit() {
        let shape = Shape::new(3, 8, 193, 64);
        let Tiling { packed_heads, query_tiles, head_tiles, units, splits, tiles_per_split } = tiling(shape, "fast");
        assert_eq!((packed_heads, query_tiles, head_tiles, units), (1, 2, 8, 2 * 8 * 3));
        assert_eq!((splits, tiles_per_split), (1, 1));
        let problem = Problem::new(shape).unwrap();
        let config = "fast,tile_keys=64".parse().unwrap();
        assert_eq!(tiles(&problem, &config), 2 * 4 * 8 * 3);
        assert_eq!(tiles(&problem.causal(), &config), (3 + 4) * 8 * 3);
    }

    #[test]
    fn heads_of_a_group_share_a_tile_where_two_or_more_fit() {
        let packed = |query_heads, kv_heads, query_len, config| {
            tiling(Shape { kv_heads, query_len, key_len: 64, ..Shape::new(2, query_heads, 1, 64) }, config)
        };
        let one = "fast,warpgroups=1";
        assert_eq!((packed(32, 4, 1, one).packed_heads, packed(32, 4, 1, one).units), (8, 4 * 2));
        assert_eq!(packed(32, 4, 9, one).packed_heads, 4);
        assert_eq!(packed(12, 2, 20, one).packed_heads, 3);
        assert_eq!(packed(32, 4, 32, one).packed_heads, 2);
        assert_eq!(packed(32, 4, 33, one).packed_heads, 1);
        assert_eq!(packed(32, 4, 96, "fast,warpgroups=3").packed_heads, 2);
        assert_eq!(packed(7, 1, 32, one).packed_heads, 1);
        assert_eq!(packed(8, 8, 1, one).packed_heads, 1);
    }

    #[test]
    fn keys_are_split_until_every_multiprocessor_has_a_part() {
        let decode = Shape { kv_heads: 4, query_len: 1, key_len: 8192, ..Shape::new(1, 32, 1, 128) };
        let split = "fast,warpgroups=1,stages=2,split_keys=on";
        let parts = |shape| {
            let Tiling { packed_heads, units, splits, tiles_per_split, .. } = tiling(shape, split);
            assert_eq!((packed_heads, units), (8, 4));
            (splits, tiles_per_split)
        };
        assert_eq!(parts(decode), (32, 1));
        assert_eq!(parts(Shape { key_len: 131_072, ..decode }), (32, 16));
        assert_eq!(parts(Shape { key_len: 40 * 256, ..decode }), (20, 2));
        assert_eq!(tiling(Shape::new(4, 16, 4096, 128), split).splits, 1);
        let blocks = |shape, text: &str| tiling(shape, text).blocks(&text.parse().unwrap(), 132, 1);
        assert_eq!(blocks(decode, split), 128);
        assert_eq!(blocks(Shape::new(4, 16, 4096, 64), "fast"), 132);
        let at_once = "fast,warpgroups=1,stages=1,promote=0,sums=registers,keys=at-once";
        assert_eq!(blocks(Shape::new(4, 16, 256, 64), at_once), 4 * 16 * 4);
        let in_rounds = format!("{at_once},launch=dependent,grid=rounds");
        let lengths = [1, 132 * 64, 132 * 64 + 1];
        assert_eq!(
            lengths.map(|len| blocks(Shape { key_len: 256, ..Shape::new(1, 1, len, 64) }, &in_rounds)),
            [132, 132, 264]
        );
    }

    #[test]
    fn more_units_than_a_grid_holds_are_refused() {
        let problem = Problem::new(Shape { key_len: 1, ..Shape::new(1 << 20, 1 << 12, 1, 8) }).unwrap();
        let error = Tiling::new(&problem, &"fast".parse().unwrap(), 132).unwrap_err().to_string();
        assert!(error.starts_with("shape: 1048576,4096,1,8 makes more than 2147483647 tiles"), "{error}");
    }
}
