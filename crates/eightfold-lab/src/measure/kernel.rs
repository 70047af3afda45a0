//! A variant of this project's kernels as a contestant.

use super::Contestant;
use crate::gates::{Case, fingerprint};
use eightfold::{Error, Output, Plan, Result, Variant};
use std::time::Instant;

/// A variant that runs on the inputs of one case, and must keep giving the bits that the gate saw, if those were always the same.
pub struct KernelContestant<'a> {
    name: String,
    case: &'a Case,
    plan: Plan,
    output: Output,
    expected_hash: Option<u64>,
    delay: f64,
}

impl<'a> KernelContestant<'a> {
    /// A contestant for a variant that passed the correctness gate on this case with this output hash; none if
    /// its bits differed from run to run.
    pub fn new(name: impl Into<String>, variant: Variant, case: &'a Case, expected_hash: Option<u64>) -> Result<Self> {
        Ok(KernelContestant {
            name: name.into(),
            case,
            plan: Plan::with_variant(&case.problem, variant)?,
            output: Output::zeros(&case.problem),
            expected_hash,
            delay: 0.0,
        })
    }

    /// The same, with every run counted as longer by this share of itself: a slowdown of known size, for a test of
    /// whoever judges the times. Only the reading is lengthened: a busy wait in its place moved the ratio by more than
    /// itself (5 % by 6 to 20 %, on a machine that was not idle), probably because worker threads fall asleep meanwhile.
    pub fn delayed_by(self, delay: f64) -> Self {
        KernelContestant { delay, ..self }
    }
}

impl Contestant for KernelContestant<'_> {
    fn prepare(&mut self) -> Result<()> {
        Ok(())
    }

    fn run_block(&mut self, iterations: usize) -> Result<Vec<u64>> {
        // Whatever an earlier block left must not count as this one's work.
        self.output.poison();
        let Case { q, k, v, .. } = self.case;
        (0..iterations)
            .map(|_| {
                let start = Instant::now();
                self.plan.run(q, k, v, &mut self.output)?;
                let elapsed = start.elapsed().mul_f64(1.0 + self.delay);
                Ok(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX))
            })
            .collect()
    }

    fn verify(&mut self) -> Result<()> {
        verify(&self.name, &self.output, self.expected_hash)
    }
}

/// An error unless timed runs left the bits that the gate saw, or at least numbers where those were not always the same.
pub(super) fn verify(name: &str, output: &Output, expected_hash: Option<u64>) -> Result<()> {
    let sound = match expected_hash {
        Some(hash) => fingerprint::of_output(output) == hash,
        None => output.values.to_f32().iter().all(|value| value.is_finite()),
    };
    if sound {
        return Ok(());
    }
    Err(Error::unavailable(
        format!("a timing of {name}"),
        "the timed runs gave other bits than the run that passed the correctness gate",
        "look for a race between threads",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gates::{PlannedVariant, Thresholds, check};
    use crate::inputs::{Family, Inputs};
    use eightfold::quantize::Quantizer;
    use eightfold::{Problem, Shape, cpu};

    fn case() -> Case {
        let problem = Problem::new(Shape::new(1, 2, 24, 16)).unwrap();
        let inputs = Inputs::generate(problem.shape(), Family::Gaussian, 1);
        let policy = Thresholds::embedded().correctness.reference;
        let quantizer = Quantizer::new(problem.input_format());
        Case::prepare(&problem, &inputs, &quantizer, &policy).unwrap()
    }

    fn verified(variant: Variant, case: &Case, hash: Option<u64>) -> bool {
        let mut contestant = KernelContestant::new("x", variant, case, hash).unwrap();
        contestant.prepare().unwrap();
        assert_eq!(contestant.run_block(3).unwrap().len(), 3);
        contestant.verify().is_ok()
    }

    #[test]
    fn the_timed_runs_must_give_the_bits_that_the_gate_saw() {
        let case = case();
        let variant = Variant::Cpu(cpu::find_stage("baseline").unwrap().config);
        let thresholds = Thresholds::embedded();
        let cases = std::slice::from_ref(&case);
        let tolerance = thresholds.tolerance(&variant);
        let report = check(&mut PlannedVariant(variant), cases, tolerance, &thresholds);
        let hash = report.cases[0].output_hash;
        assert!(verified(variant, &case, Some(hash)));
        assert!(!verified(variant, &case, Some(hash ^ 1)));
        assert!(verified(variant, &case, None));
    }

    #[test]
    fn a_planted_delay_lengthens_every_run() {
        let case = case();
        let variant = Variant::Cpu(cpu::find_stage("baseline").unwrap().config);
        let fastest = |delay: f64| {
            let contestant = KernelContestant::new("x", variant, &case, None).unwrap();
            contestant.delayed_by(delay).run_block(20).unwrap().into_iter().min().unwrap()
        };
        assert!(fastest(9.0) > 4 * fastest(0.0));
    }

    #[test]
    fn an_output_that_was_never_written_is_not_verified() {
        let case = case();
        let variant = Variant::Cpu(cpu::find_stage("baseline").unwrap().config);
        let mut contestant = KernelContestant::new("x", variant, &case, None).unwrap();
        contestant.run_block(0).unwrap();
        assert!(contestant.verify().is_err());
    }
}
