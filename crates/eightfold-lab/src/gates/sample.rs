//! Which rows are compared with the float64 reference.

use super::thresholds::ReferencePolicy;
use eightfold::{Problem, Shape};

/// Consecutive query rows of one head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RowBlock {
    pub batch: usize,
    pub head: usize,
    pub first: usize,
    pub rows: usize,
}

impl RowBlock {
    /// The block's rows, counted over `[B,Hq,Sq]`.
    pub fn global_rows(&self, shape: Shape) -> std::ops::Range<usize> {
        let start = (self.batch * shape.query_heads + self.head) * shape.query_len + self.first;
        start..start + self.rows
    }
}

/// The blocks to compare; none means all rows.
///
/// Every head gives its first and its last rows, where tails and masks go wrong, and blocks in between
/// that are shifted from head to head, so that together they meet every position within a tile.
pub(super) fn blocks(problem: &Problem, policy: &ReferencePolicy) -> Option<Vec<RowBlock>> {
    let share = policy.max_gflop * 1e9 / problem.flop();
    let shape = problem.shape();
    let rows = policy.block_rows;
    if share >= 1.0 || shape.query_len <= 2 * rows {
        return None;
    }
    let last = shape.query_len - rows;
    let count = ((shape.query_len as f64 * share) as usize / rows).max(2);
    let heads = (0..shape.batch).flat_map(|batch| (0..shape.query_heads).map(move |head| (batch, head)));
    let blocks = heads.enumerate().flat_map(|(index, (batch, head))| {
        (0..count).map(move |block| {
            let start = block * last / (count - 1);
            let room = ((block + 1) * last / (count - 1)).saturating_sub(start + rows);
            let inner = block > 0 && block + 1 < count;
            let shift = if inner { index * SHIFT % (room + 1) } else { 0 };
            RowBlock { batch, head, first: start + shift, rows }
        })
    });
    Some(blocks.collect())
}

/// Odd, so that successive heads land on every position within a tile.
const SHIFT: usize = 37;

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: ReferencePolicy = ReferencePolicy { max_gflop: 2.0, block_rows: 32 };

    #[test]
    fn small_problems_are_compared_whole() {
        let problem = Problem::new(Shape::new(2, 8, 512, 64)).unwrap();
        assert_eq!(blocks(&problem, &POLICY), None);
    }

    #[test]
    fn a_sample_has_both_ends_of_every_head_and_never_a_row_twice() {
        for problem in [2048, 2000, 4096].map(|len| Problem::new(Shape::new(2, 8, len, 64)).unwrap()) {
            let shape = problem.shape();
            let blocks = blocks(&problem, &POLICY).unwrap();
            let mut seen = vec![false; shape.batch * shape.query_heads * shape.query_len];
            for row in blocks.iter().flat_map(|block| block.global_rows(shape)) {
                assert!(!seen[row], "row {row} of {problem} twice");
                seen[row] = true;
            }
            for head in seen.chunks(shape.query_len) {
                assert!(head[0] && head[shape.query_len - 1]);
            }
            let share = seen.iter().filter(|seen| **seen).count() as f64 / seen.len() as f64;
            assert!(share * problem.flop() <= 2.1e9 || share < 0.05, "{share} of {problem}");
        }
    }
}
