//! How exact weights must be for an accuracy to keep its word, by what error is to be expected of them: a formula that was
//! fitted to errors measured on a device, which a test below holds it to.

use super::config::{Config, Weights};
use super::launch::work::Cut;
use crate::problem::{Mask, Problem, Shape};
use std::f64::consts::E;
use std::iter;

/// The relative error on N(0,1) inputs if all exponentials are linear and keys and heads very many.
const LINEAR_ERROR: f64 = 3.155e-2;

/// Its half is left where the square root of the number of keys is this.
const HALVING_ROOT: f64 = 2.5;

/// The share of its square that is left where all exponentials are exact, and rounded to FP8.
const EXACT_SHARE: f64 = 0.71;

/// Standard deviations of the error, from inputs to inputs, that there is room for: one in 160 is beyond.
const ROOM: f64 = 2.5;

/// The same with as many more of the weights exact as it takes to keep the word that was asked for: an eighth of the
/// exponentials at a time, or, where all of them are, an eighth of the weights in two parts. None if it takes another accuracy.
pub(super) fn evened_out(config: Config, problem: &Problem, multiprocessors: usize) -> Option<Config> {
    let keys = keys_of_block(&config, problem, multiprocessors);
    let keeps_word = |config: &Config| expected_error(config, problem, keys) <= problem.accuracy().within();
    let even = iter::successors(Some(config), more_exact).find(keeps_word)?;
    Some(match (problem.mask(), even.warpgroups) {
        // Exponentials or weights of both kinds leave no registers to count three tiles by.
        (Mask::Causal, 3) if even != config => Config { stages: 2, ..even },
        _ => even,
    })
}

/// The same with one more eighth exact, unless it is another accuracy then.
fn more_exact(config: &Config) -> Option<Config> {
    let next = match (config.weights, config.linear) {
        (Weights::Fp8, 0) => Config { weights: Weights::Mixed, ..*config },
        (Weights::Fp8, linear) => Config { linear: linear - 1, ..*config },
        (Weights::Mixed | Weights::Split, _) => return None,
    };
    (next.accuracy() == config.accuracy()).then_some(next)
}

/// Keys that a block sums for a query. Under the mask outputs are the larger the fewer keys a query sees, so that in the norm
/// of all it is the geometric mean that counts.
fn keys_of_block(config: &Config, problem: &Problem, multiprocessors: usize) -> f64 {
    let [first, last] = [0, problem.shape().query_len - 1].map(|query| problem.visible_keys(query).max(1) as f64);
    let seen = (first * last).sqrt();
    Cut::new(problem, config, multiprocessors).map_or(seen, |cut| seen.min(cut.keys_of_part(config) as f64))
}

/// The relative error of outputs to be expected on N(0,1) inputs, with room for what it varies by.
///
/// The more keys, the larger the largest weight is among them and the fewer steps of FP8 are left for the others. Errors of
/// single weights are independent, so that their squares add up.
///
/// Of an output's square 1/e is the square of V's mean, which all queries of a head share: over all heads, a sum of as many
/// squares of normal numbers as V has columns. Its standard deviation is √(2/columns) of it, and half as much of its root.
fn expected_error(config: &Config, problem: &Problem, keys: f64) -> f64 {
    let Shape { batch, kv_heads, head_dim, .. } = problem.shape();
    let columns = batch as f64 * kv_heads as f64 * head_dim as f64;
    let linear = LINEAR_ERROR / (1.0 + HALVING_ROOT / keys.sqrt());
    let share = match config.weights {
        Weights::Fp8 => EXACT_SHARE + (1.0 - EXACT_SHARE) * config.linear as f64 / 8.0,
        Weights::Mixed => EXACT_SHARE * 7.0 / 8.0,
        Weights::Split => 0.0,
    };
    let deviation = 0.5 / E * (2.0 / columns).sqrt();
    linear * share.sqrt() * (1.0 + ROOM * deviation)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::hopper::stages;
    use crate::problem::Accuracy;

    /// Eighths of the exponentials that are linear, and weights, without a mask; none if another accuracy is needed.
    fn even(shape: Shape, accuracy: Accuracy) -> Option<(usize, Weights)> {
        let problem = Problem::new(shape).unwrap().with_accuracy(accuracy);
        let stage = stages::of(accuracy).at(shape.head_dim, Mask::None);
        let config = evened_out(stage, &problem, 132)?;
        assert_eq!(config.accuracy(), accuracy, "{problem}");
        Some((config.linear, config.weights))
    }

    #[test]
    fn errors_are_as_measured_on_a_device() {
        // Means of three seeds, of what the README's table of accuracies is of.
        let measured = [
            (Shape::new(1, 8, 512, 64), "fast", 2.86e-2),
            (Shape::new(1, 8, 512, 64), "balanced", 2.59e-2),
            (Shape::new(1, 8, 512, 64), "exact-exp", 2.40e-2),
            (Shape::new(4, 16, 4096, 128), "fast", 3.04e-2),
            (Shape::new(4, 16, 4096, 128), "balanced", 2.76e-2),
            (Shape::new(4, 16, 4096, 128), "exact-exp", 2.57e-2),
            (Shape::new(2, 16, 16384, 128), "fast,linear=7", 3.05e-2),
            (Shape::new(2, 16, 16384, 128), "balanced", 2.81e-2),
            (Shape::new(2, 16, 16384, 128), "exact-exp,weights=mixed", 2.45e-2),
        ];
        for (shape, config, error) in measured {
            let (config, problem): (Config, _) = (config.parse().unwrap(), Problem::new(shape).unwrap());
            let expected = expected_error(&config, &problem, shape.key_len as f64);
            assert!((0.99..1.03).contains(&(expected / error)), "{problem} {config}: {expected} for {error}");
        }
    }

    #[test]
    fn more_keys_and_fewer_heads_need_more_that_is_exact() {
        let linear = |eighths| Some((eighths, Weights::Fp8));
        let [exact, mixed] = [linear(0), Some((0, Weights::Mixed))];
        let many = |accuracy| [512, 4096, 8192, 16384, 131_072].map(|len| even(Shape::new(2, 16, len, 128), accuracy));
        assert_eq!(many(Accuracy::Fast), [8, 8, 7, 7, 6].map(linear));
        assert_eq!(many(Accuracy::Balanced), [3, 3, 3, 3, 2].map(linear));
        assert_eq!(many(Accuracy::ExactExp), [exact, exact, mixed, mixed, mixed]);
        let few = |accuracy| [8, 4, 2, 1].map(|heads| even(Shape::new(1, heads, 8192, 64), accuracy));
        assert_eq!(few(Accuracy::Fast), [6, 6, 5, 4].map(linear));
        assert_eq!(few(Accuracy::Balanced), [linear(2), linear(2), linear(1), None]);
        assert_eq!(few(Accuracy::ExactExp), [mixed, mixed, mixed, None]);
        assert_eq!(few(Accuracy::Precise), [Some((0, Weights::Split)); 4]);
        assert_eq!(even(Shape::new(1, 1, 512, 64), Accuracy::Fast), linear(8), "few keys leave room for few heads");
    }

    #[test]
    fn what_blocks_sum_counts_where_they_share_the_keys() {
        let problem = Problem::new(Shape { query_len: 1, ..Shape::new(1, 1, 65536, 64) }).unwrap();
        let linear = |config: &str| evened_out(config.parse().unwrap(), &problem, 132).map(|even| even.linear);
        assert_eq!(["fast", "fast,split_keys=on,stages=2"].map(linear), [None, Some(8)]);
    }

    #[test]
    fn the_mask_counts_where_queries_see_few_keys() {
        let linear = |query_len| {
            let problem = Problem::new(Shape { query_len, ..Shape::new(1, 2, 65536, 64) }).unwrap().causal();
            evened_out(stages::of(Accuracy::Fast).at(64, Mask::Causal), &problem, 132).map(|even| even.linear)
        };
        assert_eq!([65536, 192].map(linear), [8, 4].map(Some));
    }
}
