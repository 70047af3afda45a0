//! Which inputs are checked on which shapes.

use super::case::Case;
use super::thresholds::ReferencePolicy;
use crate::choice;
use crate::examine::Candidate;
use crate::inputs::{Family, Inputs};
use crate::memory;
use eightfold::quantize::{Quantizer, small_codes};
use eightfold::{Fp8Format, Layout, Mask, OutputFormat, Problem, Result, Shape, Window};
use rayon::prelude::*;

/// How much is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Thoroughness {
    /// What the main job has time for: every family up to the mission's size, two families beyond.
    Quick,
    /// What the main job has time for on a GPU: the same, but three seeds of the two families that are never left out.
    ThreeSeeds,
    /// Every family with three seeds, whatever the size.
    Full,
}

/// One problem and the inputs to check it on.
#[derive(Debug, Clone, Copy, PartialEq)]
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
        memory::check(&self.problem, 1)?;
        let inputs = Inputs::of_problem(&self.problem, self.family, self.seed);
        Case::prepare(&self.problem, &inputs, quantizer, policy)
    }
}

/// How the inputs of a problem are quantised for these candidates: with small codes of Q and K where one of them runs on
/// a GPU, because the hopper kernel sums such scores in f16, and no other kernel minds.
pub fn quantizer(problem: &Problem, candidates: &[Candidate]) -> Quantizer {
    let quantizer = Quantizer::new(problem.value_format());
    if candidates.iter().any(Candidate::on_gpu) { quantizer.with_largest_code(small_codes(problem)) } else { quantizer }
}

/// All cases with their references, computed in parallel.
pub fn prepare_all(cases: &[StandardCase], quantizer: &Quantizer, policy: &ReferencePolicy) -> Result<Vec<Case>> {
    if let Some(case) = cases.first() {
        memory::check(&case.problem, cases.len())?;
    }
    cases.par_iter().map(|case| case.prepare(quantizer, policy)).collect()
}

/// How many inputs a timing's rounds go around.
const TIMED_INPUTS: u64 = 3;

/// The inputs that these candidates are timed on: Gaussian, one set after the other from round to round, in the format that each
/// takes. Those of INT8 come behind the others.
pub fn timing_cases(problem: &Problem, candidates: &[Candidate], policy: &ReferencePolicy) -> Result<Vec<Case>> {
    let quantizer = quantizer(problem, candidates);
    let mut problems: Vec<Problem> = candidates.iter().map(|one| choice::in_format_of(problem, &one.variant)).collect();
    problems.sort_by_key(|one| one.input_format() == Fp8Format::Int8);
    problems.dedup();
    let seeds = |problem| (1..=TIMED_INPUTS).map(move |seed| StandardCase { problem, family: Family::Gaussian, seed });
    prepare_all(&problems.into_iter().flat_map(seeds).collect::<Vec<_>>(), &quantizer, policy)
}

/// Shapes of up to this much arithmetic (without a mask) are checked on every family even when time is short: the
/// mission has 0.54 GFLOP.
const EVERY_FAMILY_GFLOP: f64 = 0.6;

/// The cases on which a variant is checked for this problem, the log-sum-exp included.
pub fn standard_cases(problem: &Problem, thoroughness: Thoroughness) -> Vec<StandardCase> {
    let every_family = problem.with_mask(Mask::None).flop() <= EVERY_FAMILY_GFLOP * 1e9;
    let problem = problem.with_lse(true);
    let seeds = |family| match (thoroughness, family) {
        (Thoroughness::Full, _) => 3,
        (Thoroughness::ThreeSeeds, Family::Gaussian | Family::BiasedValues) => 3,
        (Thoroughness::Quick, Family::Gaussian) if every_family => 2,
        (Thoroughness::Quick, Family::Gaussian | Family::BiasedValues) => 1,
        (Thoroughness::Quick | Thoroughness::ThreeSeeds, _) => u64::from(every_family),
    };
    let cases = Family::ALL
        .iter()
        .flat_map(|&family| (1..=seeds(family)).map(move |seed| StandardCase { problem, family, seed }));
    cases.collect()
}

/// Problems whose sizes divide nothing: tails in every dimension, unequal lengths, grouped heads, rows that see
/// no key, one query, other output formats and layouts.
pub fn odd_problems() -> Result<Vec<Problem>> {
    let shape = |text: &str| text.parse::<Shape>().and_then(Problem::new).map(|problem| problem.with_lse(true));
    Ok(vec![
        shape("1,1,1,8")?,
        shape("1,2,2,33,65,40")?,
        shape("2,6,3,17,130,64")?.causal(),
        shape("1,4,1,67,131,128")?.causal(),
        shape("1,2,2,70,21,24")?.causal(),
        shape("1,8,2,1,257,64")?,
        shape("1,2,2,129,300,256")?.causal(),
        shape("1,3,3,65,65,72")?.with_output_format(OutputFormat::F16),
        shape("2,4,2,50,97,64")?.with_output_format(OutputFormat::Bf16).with_output_layout(Layout::Bshd)?.causal(),
        shape("1,2,2,40,90,32")?.with_softmax_scale(0.5)?.with_lse(false),
    ])
}

/// The odd problems on inputs that show a wrong mask, mapping or tail.
pub fn odd_cases() -> Result<Vec<StandardCase>> {
    let families = [Family::Gaussian, Family::BiasedValues];
    let cases = odd_problems()?
        .into_iter()
        .flat_map(|problem| families.map(|family| StandardCase { problem, family, seed: 1 }));
    Ok(cases.collect())
}

/// Problems with a window, a softcap, sinks, and V of other channels, alone and together, whose sizes divide nothing either.
pub fn scored_problems() -> Result<Vec<Problem>> {
    let problem = |text: &str| text.parse::<Shape>().and_then(Problem::new).map(|problem| problem.with_lse(true));
    let window = |left, right| Window::new(Some(left), right);
    Ok(vec![
        problem("1,4,2,150,150,64")?.causal().with_window(window(63, None)).with_sinks(),
        problem("1,3,3,70,211,80")?.with_window(window(64, Some(1))),
        problem("2,4,1,37,300,128")?.with_window(window(1, Some(65))).with_softcap(30.0)?.with_sinks(),
        problem("1,2,2,200,90,24")?.causal().with_window(window(30, None)).with_sinks(),
        problem("1,2,1,65,130,192")?.with_value_dim(128)?.causal().with_softcap(50.0)?,
        problem("1,6,2,1,517,64")?.with_value_dim(72)?.with_window(window(129, Some(0))).with_sinks(),
        problem("1,2,2,130,99,40")?.with_window(window(7, Some(7))),
    ])
}

/// Those problems on inputs with ordinary scores, sharp sinks, and scores far beyond a softcap.
pub fn scored_cases() -> Result<Vec<StandardCase>> {
    let cases = scored_problems()?.into_iter().flat_map(|problem| {
        let beyond = if problem.softcap().is_some() { Family::Huge } else { Family::BiasedValues };
        [Family::Gaussian, Family::AttentionSink, beyond].map(|family| StandardCase { problem, family, seed: 1 })
    });
    Ok(cases.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shapes;

    #[test]
    fn the_mission_meets_every_family_under_either_mask() {
        let mission = Problem::new(shapes::parse("mission").unwrap().shape).unwrap();
        for mask in [Mask::None, Mask::Causal] {
            let cases = standard_cases(&mission.with_mask(mask), Thoroughness::Quick);
            for family in Family::ALL {
                assert!(cases.iter().any(|case| case.family == *family), "{family}");
            }
            assert!(cases.iter().all(|case| case.problem.lse() && case.problem.mask() == mask));
        }
    }

    #[test]
    fn larger_shapes_keep_the_families_that_show_bias() {
        let long = Problem::new(shapes::parse("long").unwrap().shape).unwrap();
        let families = |thoroughness| -> Vec<_> {
            let cases = standard_cases(&long, thoroughness);
            cases.iter().map(|case| case.family).collect()
        };
        assert_eq!(families(Thoroughness::Quick), [Family::Gaussian, Family::BiasedValues]);
        assert_eq!(families(Thoroughness::ThreeSeeds), [[Family::Gaussian; 3], [Family::BiasedValues; 3]].concat());
        assert_eq!(families(Thoroughness::Full).len(), 3 * Family::ALL.len());
    }

    #[test]
    fn the_scored_problems_have_what_they_say() {
        let problems = scored_problems().unwrap();
        let some = |rule: fn(&Problem) -> bool| assert!(problems.iter().any(rule));
        some(|problem| problem.has_sinks() && problem.visible(0).is_empty());
        some(|problem| !problem.has_sinks() && problem.visible(0).is_empty());
        some(|problem| problem.has_sinks() && problem.softcap().is_some() && problem.shape().group() > 1);
        some(|problem| problem.softcap().is_some() && problem.window() == Window::default());
        some(|problem| problem.value_dims().head_dim < problem.shape().head_dim);
        some(|problem| problem.value_dims().head_dim > problem.shape().head_dim && problem.shape().query_len == 1);
        assert!(problems.iter().all(|problem| problem.lse()));
    }

    #[test]
    fn the_odd_problems_are_as_odd_as_they_say() {
        let problems = odd_problems().unwrap();
        let some = |rule: fn(&Problem) -> bool| assert!(problems.iter().any(rule));
        some(|problem| problem.shape().group() > 1);
        some(|problem| problem.visible(0).is_empty());
        some(|problem| problem.shape().query_len == 1);
        some(|problem| problem.mask() == Mask::Causal && problem.shape().query_len < problem.shape().key_len);
        some(|problem| problem.output_layout() == Layout::Bshd && problem.output_format() == OutputFormat::Bf16);
        some(|problem| !problem.lse());
        some(|problem| problem.shape().head_dim == 256);
    }
}
