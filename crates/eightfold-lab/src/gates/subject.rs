//! What is put to the test.

use crate::choice;
use crate::simulate::{self, SimulatedVariant};
use eightfold::{Fp8Tensor, Output, Problem, Result, RunReport, Variant};

/// Something that computes attention and is put to the test.
pub trait Subject {
    /// What a person calls it.
    fn name(&self) -> String;

    /// Computes attention into `output`.
    fn run(
        &mut self,
        problem: &Problem,
        q: &Fp8Tensor,
        k: &Fp8Tensor,
        v: &Fp8Tensor,
        output: &mut Output,
    ) -> Result<RunReport>;
}

/// A variant of this project's kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlannedVariant(pub Variant);

impl Subject for PlannedVariant {
    fn name(&self) -> String {
        self.0.to_string()
    }

    fn run(
        &mut self,
        problem: &Problem,
        q: &Fp8Tensor,
        k: &Fp8Tensor,
        v: &Fp8Tensor,
        output: &mut Output,
    ) -> Result<RunReport> {
        if simulate::is_installed() && self.0.on_device().is_some() {
            let schedules = simulate::schedules();
            return SimulatedVariant { variant: self.0, schedules }.run(problem, q, k, v, output);
        }
        choice::run(&self.0, problem, q, k, v, output)
    }
}
