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
}

impl<'a> KernelContestant<'a> {
    /// A contestant for a variant that passed the correctness gate on this case with this output hash; none if
    /// its bits differed from run to run.
    pub fn new(
        name: impl Into<String>,
        variant: Variant,
        case: &'a Case,
        expected_hash: Option<u64>,
    ) -> Result<Self> {
        Ok(KernelContestant {
            name: name.into(),
            case,
            plan: Plan::with_variant(&case.problem, variant)?,
            output: Output::zeros(&case.problem),
            expected_hash,
        })
    }
}

impl Contestant for KernelContestant<'_> {
    fn name(&self) -> String {
        self.name.clone()
    }

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
                Ok(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX))
            })
            .collect()
    }

    fn verify(&mut self) -> Result<()> {
        let sound = match self.expected_hash {
            Some(hash) => fingerprint::of_output(&self.output) == hash,
            None => self.output.values.to_f32().iter().all(|value| value.is_finite()),
        };
        if sound {
            return Ok(());
        }
        Err(Error::unavailable(
            format!("a timing of {}", self.name),
            "the timed runs gave other bits than the run that passed the correctness gate",
            "look for a race between threads",
        ))
    }
}
