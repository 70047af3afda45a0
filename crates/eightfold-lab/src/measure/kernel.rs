//! A variant of this project's kernels as a contestant.

use super::flush::HostFlush;
use super::{Contestant, Plant, Rotation};
use crate::gates::{Case, fingerprint};
use crate::paged::Paged;
use eightfold::lab::{attention_with, cpu};
use eightfold::{Error, Output, Result, Variant};
use std::time::Instant;

/// A variant that runs on inputs that change from round to round, and must keep giving the bits that the gate saw, if
/// those were always the same.
pub struct KernelContestant<'a> {
    name: String,
    inputs: Rotation<'a>,
    /// The inputs in pages, if they are read from there.
    paged: Vec<Paged>,
    current: usize,
    config: cpu::Config,
    output: Output,
    flush: Option<HostFlush>,
    plant: Option<Plant>,
}

impl<'a> KernelContestant<'a> {
    /// A contestant for a variant that passed the correctness gate on these inputs.
    pub fn new(name: impl Into<String>, variant: Variant, inputs: Rotation<'a>) -> Result<Self> {
        let (case, _) = inputs.at(0);
        Ok(KernelContestant {
            name: name.into(),
            inputs,
            paged: Vec::new(),
            current: 0,
            config: variant.on_cpu()?,
            output: Output::zeros(&case.problem),
            flush: None,
            plant: None,
        })
    }

    /// The same that reads K and V from pages of so many tokens, which are filled before anything is timed.
    pub fn in_pages(self, tokens: usize) -> Result<Self> {
        let cases = self.inputs.cases();
        let paged = cases.map(|Case { problem, q, k, v, .. }| Paged::new(problem, q, k, v, tokens));
        Ok(KernelContestant { paged: paged.collect::<Result<_>>()?, ..self })
    }

    /// The same with caches that are emptied before every timed region.
    pub fn on_cold_caches(self) -> Self {
        KernelContestant { flush: Some(HostFlush::new()), ..self }
    }

    /// The same with a slowdown, or timed as one that has a slowdown is: a time is then that of many runs together.
    pub fn planted(self, plant: Option<Plant>) -> Self {
        KernelContestant { plant, ..self }
    }
}

impl Contestant for KernelContestant<'_> {
    fn prepare(&mut self) -> Result<()> {
        Ok(())
    }

    fn begin_round(&mut self, round: usize) -> Result<()> {
        self.current = self.inputs.index(round);
        Ok(())
    }

    fn run_block(&mut self, iterations: usize) -> Result<Vec<u64>> {
        // Whatever an earlier block left must not count as this one's work.
        self.output.poison();
        let (Case { problem, q, k, v, .. }, _) = self.inputs.at(self.current);
        let (counted, made) = self.plant.map_or((1, 1), |plant| (Plant::RUNS, Plant::RUNS + plant.extra_runs));
        (0..iterations)
            .map(|_| {
                if let Some(flush) = &mut self.flush {
                    flush.empty_caches();
                }
                let start = Instant::now();
                for _ in 0..made {
                    match self.paged.get(self.current) {
                        Some(paged) => paged.run(&self.config, &mut self.output)?,
                        None => attention_with(&self.config, problem, q, k, v, &mut self.output)?,
                    };
                }
                Ok((start.elapsed().as_nanos() / counted as u128).try_into().unwrap_or(u64::MAX))
            })
            .collect()
    }

    fn launches_per_run(&self) -> usize {
        if self.plant.is_some() { Plant::RUNS } else { 1 }
    }

    fn verify(&mut self) -> Result<()> {
        let unpacked = self.paged.get(self.current).map(|paged| paged.unpacked(&self.output));
        verify(&self.name, unpacked.as_ref().unwrap_or(&self.output), self.inputs.at(self.current).1)
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
    use eightfold::lab::cpu;
    use eightfold::quantize::Quantizer;
    use eightfold::{Problem, Shape};

    fn case() -> Case {
        case_of(1)
    }

    fn case_of(seed: u64) -> Case {
        let problem = Problem::new(Shape::new(1, 2, 24, 16)).unwrap();
        let inputs = Inputs::generate(problem.shape(), Family::Gaussian, seed);
        let policy = Thresholds::embedded().correctness.reference;
        let quantizer = Quantizer::new(problem.input_format());
        Case::prepare(&problem, &inputs, &quantizer, &policy).unwrap()
    }

    fn verified(variant: Variant, case: &Case, hash: Option<u64>) -> bool {
        let mut contestant = KernelContestant::new("x", variant, Rotation::one(case, hash)).unwrap();
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
    fn a_planted_delay_is_work_that_is_not_counted() {
        let case = case();
        let variant = Variant::Cpu(cpu::find_stage("baseline").unwrap().config);
        let fastest = |share: f64| {
            let contestant = KernelContestant::new("x", variant, Rotation::one(&case, None)).unwrap();
            let mut contestant = contestant.planted(Some(Plant::slower_by(share).unwrap()));
            assert_eq!(contestant.launches_per_run(), Plant::RUNS);
            contestant.run_block(20).unwrap().into_iter().min().unwrap()
        };
        assert!(fastest(9.0) > 4 * fastest(0.0));
    }

    #[test]
    fn every_round_has_other_inputs_and_its_own_bits() {
        let [first, second] = [1, 2].map(case_of);
        let variant = Variant::Cpu(cpu::find_stage("baseline").unwrap().config);
        let hash = |case: &Case| {
            let mut output = Output::zeros(&case.problem);
            crate::choice::run(&variant, &case.problem, &case.q, &case.k, &case.v, &mut output).unwrap();
            fingerprint::of_output(&output)
        };
        let mut entry = crate::record::Entry::new("x", "x");
        for (case, hash) in [(&first, hash(&first)), (&second, hash(&second))] {
            let thresholds = Thresholds::embedded();
            let tolerance = thresholds.tolerance(&variant);
            let report = check(&mut PlannedVariant(variant), std::slice::from_ref(case), tolerance, &thresholds);
            assert_eq!(report.cases[0].output_hash, hash);
            entry.cases.extend(report.cases);
        }
        let cases = [first, second];
        let inputs = Rotation::of(&cases, &entry).unwrap();
        assert_eq!(inputs.len(), 2);
        let mut contestant = KernelContestant::new("x", variant, inputs).unwrap();
        for round in 0..3 {
            contestant.begin_round(round).unwrap();
            contestant.run_block(1).unwrap();
            contestant.verify().unwrap();
        }
        contestant.begin_round(1).unwrap();
        assert!(contestant.verify().is_err(), "the output is that of other inputs");
    }

    #[test]
    fn cold_caches_change_no_bit() {
        let case = case();
        let variant = Variant::Cpu(cpu::find_stage("lanes").unwrap().config);
        let mut contestant = KernelContestant::new("x", variant, Rotation::one(&case, None)).unwrap().on_cold_caches();
        assert_eq!(contestant.run_block(2).unwrap().len(), 2);
        contestant.verify().unwrap();
    }

    #[test]
    fn an_output_that_was_never_written_is_not_verified() {
        let case = case();
        let variant = Variant::Cpu(cpu::find_stage("baseline").unwrap().config);
        let mut contestant = KernelContestant::new("x", variant, Rotation::one(&case, None)).unwrap();
        contestant.run_block(0).unwrap();
        assert!(contestant.verify().is_err());
    }
}
