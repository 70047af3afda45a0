//! The odd-shape sweep: lengths that divide nothing, unequal lengths, grouped heads, every format, layout and
//! granularity of scales.

use super::case::Case;
use super::thresholds::ReferencePolicy;
use crate::inputs::{Family, Inputs};
use eightfold::quantize::{Quantizer, SMALL_CODES};
use eightfold::{Granularity, Layout, Mask, OutputFormat, Problem, Result, Shape};
use rayon::prelude::*;

/// A problem of the sweep, and how its inputs are quantised.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SweepCase {
    /// What to compute.
    pub problem: Problem,
    /// The scales of Q, K and V.
    pub granularity: Granularity,
    /// How Q, K and V lie in memory, and the output as well.
    pub layout: Layout,
    /// The largest code of Q and K.
    pub largest_code: f32,
}

/// Lengths beyond one tile of any size, each a step off a power of two.
const BEYOND: [usize; 2] = [1023, 1025];

/// Queries and keys of unequal number, both ways, with tails in either.
const UNEQUAL: [(usize, usize); 8] =
    [(1, 257), (17, 130), (130, 17), (64, 65), (65, 64), (67, 301), (301, 67), (127, 1025)];

/// Rows that share a scale: a multiple of every tile of keys.
const SCALE_BLOCK_ROWS: usize = 256;

const FORMATS: [OutputFormat; 3] = [OutputFormat::F32, OutputFormat::F16, OutputFormat::Bf16];
const GRANULARITIES: [Granularity; 3] =
    [Granularity::Tensor, Granularity::Head, Granularity::Block { rows: SCALE_BLOCK_ROWS }];
const HEAD_DIMS: [usize; 2] = [64, 128];
/// Sums of products of small codes fit f16, those of the largest do not.
const LARGEST_CODES: [f32; 2] = [SMALL_CODES, 448.0];
const COMBINATIONS: usize = 2 * HEAD_DIMS.len() * FORMATS.len() * GRANULARITIES.len() * 2 * LARGEST_CODES.len();
/// Has no factor in common with the number of combinations, so that all of them come up.
const STRIDE: usize = 29;

/// Every problem of the sweep: each length with and without the causal mask, everything else taking turns.
pub fn sweep() -> Result<Vec<SweepCase>> {
    let lengths = (1..300).filter(|&length| length == 1 || is_prime(length)).chain(BEYOND);
    let equal = lengths.enumerate().map(|(index, length)| {
        let heads = 1 + index % 3;
        Shape::new(1 + index % 2, heads, length, 64)
    });
    let grouped =
        UNEQUAL.map(|(query_len, key_len)| Shape::new(1, 8, query_len, 64).with_kv_heads(1).with_key_len(key_len));
    let twice = equal.chain(grouped).flat_map(|shape| [shape, shape]);
    twice.enumerate().map(|(index, shape)| SweepCase::new(shape, index)).collect()
}

impl SweepCase {
    fn new(mut shape: Shape, index: usize) -> Result<Self> {
        let mut rest = index * STRIDE % COMBINATIONS;
        let mut turn = |count: usize| {
            let digit = rest % count;
            rest /= count;
            digit
        };
        // The mask turns fastest: the two cases of a length are neighbours, so each length meets both.
        let mask = [Mask::None, Mask::Causal][turn(2)];
        let head_dim = HEAD_DIMS[turn(HEAD_DIMS.len())];
        let format = FORMATS[turn(FORMATS.len())];
        let granularity = GRANULARITIES[turn(GRANULARITIES.len())];
        let layout = [Layout::Bhsd, Layout::Bshd][turn(2)];
        let largest_code = LARGEST_CODES[turn(2)];
        shape.head_dim = head_dim;
        let problem = Problem::new(shape)?.with_mask(mask).with_lse(true);
        let problem = problem.with_output_format(format).with_output_layout(layout)?;
        Ok(SweepCase { problem, granularity, layout, largest_code })
    }

    /// Generates and quantises the inputs and computes the references; the origin names the whole problem.
    pub fn prepare(&self, policy: &ReferencePolicy) -> Result<Case> {
        let quantizer = Quantizer::new(self.problem.input_format())
            .with_granularity(self.granularity)
            .with_layout(self.layout)
            .with_largest_code(self.largest_code);
        let inputs = Inputs::generate(self.problem.shape(), Family::Gaussian, 1);
        let mut case = Case::prepare(&self.problem, &inputs, &quantizer, policy)?;
        case.origin = self.to_string();
        Ok(case)
    }
}

impl std::fmt::Display for SweepCase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let scales = match self.granularity {
            Granularity::Tensor => "tensor".to_string(),
            Granularity::Head => "head".into(),
            Granularity::Block { rows } => format!("{rows} rows"),
            other => other.to_string(),
        };
        let format = self.problem.output_format();
        let codes = self.largest_code;
        write!(f, "{} to {format}, {}, a scale per {scales}, codes of Q and K up to {codes}", self.problem, self.layout)
    }
}

/// All cases with their references, computed in parallel.
pub fn prepare_all(cases: &[SweepCase], policy: &ReferencePolicy) -> Result<Vec<Case>> {
    cases.par_iter().map(|case| case.prepare(policy)).collect()
}

fn is_prime(number: usize) -> bool {
    number > 1
        && (2..number).take_while(|divisor| divisor * divisor <= number).all(|divisor| !number.is_multiple_of(divisor))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_length_meets_both_masks_and_every_setting_comes_up() {
        let cases = sweep().unwrap();
        for pair in cases.chunks(2) {
            let masks: BTreeSet<_> = pair.iter().map(|case| case.problem.mask() == Mask::Causal).collect();
            assert_eq!((pair.len(), masks.len()), (2, 2), "{}", pair[0]);
        }
        let lengths: BTreeSet<_> = cases.iter().map(|case| case.problem.shape().query_len).collect();
        assert!([1, 2, 3, 293, 1023, 1025].iter().all(|length| lengths.contains(length)));
        let settings: BTreeSet<_> = cases
            .iter()
            .map(|case| {
                let granularity = format!("{:?}", case.granularity);
                let head_dim = case.problem.shape().head_dim;
                let causal = case.problem.mask() == Mask::Causal;
                let format = case.problem.output_format().to_string();
                (head_dim, causal, format, granularity, case.layout.to_string(), case.largest_code as u32)
            })
            .collect();
        assert_eq!(settings.len(), COMBINATIONS);
    }

    #[test]
    fn lengths_are_unequal_both_ways_with_eight_heads_to_one() {
        let cases = sweep().unwrap();
        let some = |rule: fn(Shape) -> bool| assert!(cases.iter().any(|case| rule(case.problem.shape())));
        some(|shape| shape.query_len < shape.key_len && shape.group() == 8);
        some(|shape| shape.query_len > shape.key_len && shape.group() == 8);
        assert!(cases.iter().any(|case| case.problem.visible(0).is_empty()), "no row without keys");
    }

    #[test]
    fn the_sweep_is_small_enough_to_be_quick() {
        let cases = sweep().unwrap();
        let gflop: f64 = cases.iter().map(|case| case.problem.flop() / 1e9).sum();
        assert!(cases.len() < 200 && gflop < 10.0, "{} cases, {gflop} GFLOP", cases.len());
    }

    #[test]
    fn primes() {
        let found: Vec<_> = (0..30).filter(|number| is_prime(*number)).collect();
        assert_eq!(found, [2, 3, 5, 7, 11, 13, 17, 19, 23, 29]);
    }
}
