//! The intermediate tiles that one unit of work leaves behind in debug mode.

use crate::cuda::ladder::Config;
use crate::problem::Problem;

/// What a unit of work computed, key tile after key tile.
#[derive(Debug, Clone, PartialEq)]
pub struct TileDump {
    /// Query rows of a tile.
    pub tile_queries: usize,
    /// Keys of a tile.
    pub tile_keys: usize,
    /// Channels.
    pub head_dim: usize,
    /// The key tiles that were visited, in order.
    pub tiles: Vec<Tile>,
}

/// The state of a unit of work after one key tile.
#[derive(Debug, Clone, PartialEq)]
pub struct Tile {
    /// Scores in powers of two, after scaling, −∞ where masked: `[query, key]`.
    pub scores: Vec<f32>,
    /// Weights before the division by their sum: `[query, key]`.
    pub weights: Vec<f32>,
    /// Output accumulators: `[query, channel]`.
    pub output: Vec<f32>,
    /// The largest score of each row so far.
    pub row_maxima: Vec<f32>,
    /// The sum of the weights of each row so far.
    pub row_sums: Vec<f32>,
}

/// What the buffer is filled with before the launch: bits of a NaN that no arithmetic makes.
pub(super) const UNTOUCHED: u8 = 0xff;

/// Floats that every key tile of this problem takes, and how many tiles there may be.
pub(super) fn floats_and_tiles(problem: &Problem, config: &Config) -> (usize, usize) {
    let head_dim = problem.shape().head_dim;
    let floats = config.tile_queries * (2 * config.tile_keys + head_dim + 2);
    (floats, problem.shape().key_len.div_ceil(config.tile_keys))
}

impl TileDump {
    /// Cuts the buffer into tiles; those at the end that the kernel never touched are left out.
    pub(super) fn cut(problem: &Problem, config: &Config, values: &[f32]) -> TileDump {
        let head_dim = problem.shape().head_dim;
        let (floats, _) = floats_and_tiles(problem, config);
        let untouched = u32::from_ne_bytes([UNTOUCHED; 4]);
        let is_touched = |tile: &&[f32]| tile.iter().any(|value| value.to_bits() != untouched);
        let tiles = values.chunks_exact(floats).take_while(is_touched).map(|tile| {
            let mut rest = tile;
            let mut take = |columns: usize| {
                let (part, after) = rest.split_at(config.tile_queries * columns);
                rest = after;
                part.to_vec()
            };
            Tile {
                scores: take(config.tile_keys),
                weights: take(config.tile_keys),
                output: take(head_dim),
                row_maxima: take(1),
                row_sums: take(1),
            }
        });
        TileDump { tile_queries: config.tile_queries, tile_keys: config.tile_keys, head_dim, tiles: tiles.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::Shape;

    #[test]
    fn the_buffer_is_cut_in_the_kernels_order() {
        let problem = Problem::new(Shape::new(1, 1, 130, 64)).unwrap();
        let config: Config = "baseline".parse().unwrap();
        let (floats, tiles) = floats_and_tiles(&problem, &config);
        assert_eq!((floats, tiles), (64 * (64 + 64 + 64 + 1 + 1), 3));
        let mut values: Vec<f32> = (0..floats * tiles).map(|index| index as f32).collect();
        values[2 * floats..].fill(f32::from_bits(u32::MAX));
        let dump = TileDump::cut(&problem, &config, &values);
        assert_eq!(dump.tiles.len(), 2);
        let tile = &dump.tiles[1];
        let first = floats as f32;
        let firsts = [tile.scores[0], tile.weights[0], tile.output[0], tile.row_maxima[0], tile.row_sums[0]];
        assert_eq!(firsts, [0.0, 4096.0, 8192.0, 12288.0, 12352.0].map(|offset: f32| first + offset));
        assert_eq!(tile.row_sums.len(), 64);
    }
}
