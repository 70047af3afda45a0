//! How many of a mode's weights are exact, by how many keys a query sees and by nothing else: a sequence's result depends
//! neither on the batch that it is in nor on the heads beside it.
//!
//! The more keys, the larger the largest weight is among them and the fewer steps of FP8 are left for the others: errors grow,
//! ever more slowly. What is exact is counted in eighths: of the exponentials, or, where all of those are, of the weights.
//!
//! | keys that a query sees | `fast`: linear | `balanced`: linear | `exact-exp`: weights |
//! | ---------------------- | -------------- | ------------------ | -------------------- |
//! | up to 8192             | 8 of 8         | 3 of 8             | one FP8 number       |
//! | up to 65536            | 7 of 8         | 3 of 8             | 1 of 8 in two parts  |
//! | more                   | 6 of 8         | 2 of 8             | 1 of 8 in two parts  |
//!
//! With that the relative error on N(0,1) is, in the mean, what [`Accuracy::within`] says. For single inputs it varies around
//! that mean: of an output's square 1/e is the square of V's mean, which all queries of a head share. The standard deviation is
//! a quarter of 1/√(columns of V, over all heads).

use super::config::{Config, Weights};
use crate::problem::{Accuracy, Mask, Problem};

/// The most keys for which a mode's own weights suffice.
const MANY_KEYS: f64 = 8192.0;

/// The most keys for which one more eighth suffices.
const VERY_MANY_KEYS: f64 = 65536.0;

/// The same config with as many more of the weights exact as the table above asks for.
pub(super) fn with_exact_weights(config: Config, problem: &Problem) -> Config {
    let keys = typical_keys(problem);
    let (many, very_many) = (keys > MANY_KEYS, keys > VERY_MANY_KEYS);
    let exact = match config.accuracy() {
        Accuracy::Fast => Config { linear: config.linear - usize::from(many) - usize::from(very_many), ..config },
        Accuracy::Balanced => Config { linear: config.linear - usize::from(very_many), ..config },
        Accuracy::ExactExp if many => Config { weights: Weights::Mixed, ..config },
        Accuracy::ExactExp | Accuracy::Precise => config,
    };
    match (problem.mask(), exact.warpgroups) {
        // Exponentials or weights of both kinds leave no registers to count three tiles by.
        (Mask::Causal, 3) if exact != config => Config { stages: 2, ..exact },
        _ => exact,
    }
}

/// Keys that a query sees. Under the mask outputs are the larger the fewer keys a query sees, so that in the norm of all it is
/// the geometric mean of the first query's and the last one's that counts.
fn typical_keys(problem: &Problem) -> f64 {
    let [first, last] = [0, problem.shape().query_len - 1].map(|query| problem.visible(query).len().max(1) as f64);
    (first * last).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::hopper::stages;
    use crate::problem::Shape;

    /// Eighths of the exponentials that are linear, and weights.
    fn exact(problem: Problem) -> (usize, Weights) {
        let Shape { head_dim, .. } = problem.shape();
        let stage = stages::of(problem.accuracy()).at(head_dim, problem.mask());
        let config = with_exact_weights(stage, &problem);
        assert_eq!(config.accuracy(), problem.accuracy(), "{problem}");
        (config.linear, config.weights)
    }

    #[test]
    fn more_keys_need_more_that_is_exact() {
        let many = |accuracy| {
            [512, 8192, 8193, 16384, 65536, 131_072]
                .map(|len| exact(Problem::new(Shape::new(2, 16, len, 128)).unwrap().with_accuracy(accuracy)))
        };
        let (one, two) = (Weights::Fp8, Weights::Mixed);
        assert_eq!(many(Accuracy::Fast), [(8, one), (8, one), (7, one), (7, one), (7, one), (6, one)]);
        assert_eq!(many(Accuracy::Balanced), [(3, one), (3, one), (3, one), (3, one), (3, one), (2, one)]);
        assert_eq!(many(Accuracy::ExactExp), [(0, one), (0, one), (0, two), (0, two), (0, two), (0, two)]);
        assert_eq!(many(Accuracy::Precise), [(0, Weights::Split); 6]);
    }

    #[test]
    fn neither_the_batch_nor_the_heads_count() {
        for accuracy in Accuracy::ALL {
            for len in [512, 8192, 16384, 131_072] {
                let of = |batch, heads| {
                    exact(Problem::new(Shape::new(batch, heads, len, 64)).unwrap().with_accuracy(*accuracy))
                };
                assert_eq!(of(1, 1), of(64, 16), "{accuracy} {len}");
            }
        }
    }

    #[test]
    fn the_mask_counts_where_queries_see_few_keys() {
        let linear =
            |query_len| exact(Problem::new(Shape { query_len, ..Shape::new(1, 2, 65536, 64) }).unwrap().causal()).0;
        assert_eq!([65536, 192].map(linear), [8, 7]);
    }
}
