//! How a problem is cut into units of work, and how many blocks do them.

use crate::cuda::ladder::config::{Config, Schedule};
use crate::error::{Error, Result};
use crate::problem::{Problem, Shape};

/// Units of work: one tile of queries of one head of one sequence each.
pub(super) fn units(problem: &Problem, config: &Config) -> Result<u32> {
    let Shape { batch, query_heads, query_len, .. } = problem.shape();
    let tiles = query_len.div_ceil(config.tile_queries);
    [query_heads, batch]
        .iter()
        .try_fold(tiles, |units, &count| units.checked_mul(count))
        .and_then(|units| i32::try_from(units).ok())
        .map(i32::unsigned_abs)
        .ok_or_else(|| {
            Error::invalid(
                "shape",
                format!(
                    "{problem} makes more than {} tiles of {} queries, the most that a grid can have",
                    i32::MAX,
                    config.tile_queries
                ),
                "make the batch smaller",
            )
        })
}

/// Blocks of a launch.
pub(super) fn blocks(units: u32, config: &Config, multiprocessors: usize, blocks_per_multiprocessor: usize) -> u32 {
    match config.schedule {
        Schedule::Grid => units,
        Schedule::Persistent => {
            let resident = multiprocessors.saturating_mul(blocks_per_multiprocessor).max(1);
            u32::try_from(resident).unwrap_or(u32::MAX).min(units)
        }
    }
}

/// From which unit on blocks share a multiprocessor with an earlier one, if all of them run at once; else 0. Blocks are
/// given out one to each multiprocessor before any gets a second.
pub(super) fn paired_from(
    units: u32,
    config: &Config,
    multiprocessors: usize,
    blocks_per_multiprocessor: usize,
) -> usize {
    let at_once = units as usize <= multiprocessors.saturating_mul(blocks_per_multiprocessor);
    if config.schedule == Schedule::Grid && at_once { multiprocessors } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::family::CudaFamily;

    fn config(text: &str) -> Config {
        text.parse().unwrap()
    }

    #[test]
    fn every_tile_of_queries_of_every_head_is_a_unit() {
        let problem = Problem::new(Shape { query_heads: 8, kv_heads: 2, ..Shape::new(3, 8, 65, 64) }).unwrap();
        let config = config("baseline");
        assert_eq!(units(&problem, &config), Ok(2 * 8 * 3));
        let tiles = |problem: &Problem| CudaFamily::tiles(&config, problem);
        assert_eq!(tiles(&problem), 2 * 2 * 8 * 3);
        assert_eq!(tiles(&problem.causal()), 3 * 8 * 3);
    }

    #[test]
    fn more_units_than_a_grid_holds_are_refused() {
        let shape = Shape { key_len: 1, ..Shape::new(1 << 20, 1 << 12, 1, 8) };
        let error = units(&Problem::new(shape).unwrap(), &config("baseline")).unwrap_err().to_string();
        assert!(error.starts_with("shape: 1048576,4096,1,8 makes more than 2147483647 tiles"), "{error}");
    }

    #[test]
    fn blocks_are_paired_where_all_of_them_run_at_once() {
        assert_eq!(paired_from(256, &config("tall-tiles"), 132, 2), 132);
        assert_eq!(paired_from(264, &config("tall-tiles"), 132, 2), 132);
        assert_eq!(paired_from(265, &config("tall-tiles"), 132, 2), 0);
        assert_eq!(paired_from(256, &config("persistent"), 132, 2), 0);
    }

    #[test]
    fn persistent_blocks_are_as_many_as_fit_and_no_more_than_there_is_work() {
        assert_eq!(blocks(1000, &config("baseline"), 132, 2), 1000);
        assert_eq!(blocks(1000, &config("persistent"), 132, 2), 264);
        assert_eq!(blocks(100, &config("persistent"), 132, 2), 100);
    }
}
