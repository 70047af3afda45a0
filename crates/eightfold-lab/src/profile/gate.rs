//! The profile gate: whether a kernel that claims to be bound by computing is, and whether shared and local memory are used as
//! they should be.

use super::{Metric, Profile};
use crate::gates::{Check, Gate, GateReport, Outcome, ProfilePolicy};
use crate::kernel::Kernel;
use crate::ledger::{Ledger, StageEntry};
use eightfold::{Mask, Problem, Result, Variant};

/// The part of the machine that a stage's ledger entry names when it claims to be bound by computing.
const TENSOR_CORES: &str = "tensor cores";

/// Whether a variant claims to be bound by computing: a stage does whose entry in the ledger says that the tensor cores
/// bound it, on the problem that the arithmetic beside that claim is of.
pub fn claims_compute_bound(variant: &Variant, shape: &str, problem: &Problem) -> bool {
    stage_of(variant, problem.shape().head_dim).is_some_and(|entry| claims(&entry, shape, problem))
}

fn claims(entry: &StageEntry, shape: &str, problem: &Problem) -> bool {
    let counted = problem.mask() == Mask::None && entry.floor_shape.as_deref() == Some(shape);
    counted && entry.bound.as_deref() == Some(TENSOR_CORES)
}

/// What the ledger says about a variant that is a stage.
pub(super) fn stage_of(variant: &Variant, head_dim: usize) -> Option<StageEntry> {
    let kernel: Kernel = variant.kernel().parse().ok()?;
    let mut stages = [Mask::None, Mask::Causal].into_iter().flat_map(|mask| kernel.stages(head_dim, mask));
    let stage = stages.find(|stage| stage.variant == *variant)?;
    Ledger::of(kernel).stages.into_iter().find(|entry| entry.name == stage.name)
}

/// What a kernel answers for: the rest of what the profile gate looks at is a finding, and no fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claims {
    /// It claims to be bound by computing.
    pub compute_bound: bool,
    /// It claims to be without bank conflicts, which the first stages of a ladder do not.
    pub conflict_free: bool,
}

/// Judges what was counted. Nothing of ours may go to local memory. A kernel that is bound by computing keeps the tensor cores
/// busy and leaves device memory time to spare: with either alone, one that waits for everything would pass. An error if a
/// metric is missing.
pub fn check(profile: &Profile, policy: &ProfilePolicy, claims: Claims) -> Result<GateReport> {
    let (tensor, dram) = (profile.get(Metric::TensorPipe)?, profile.get(Metric::Dram)?);
    let local = profile.get(Metric::LocalInstructions)?;
    let conflicts = profile.get(Metric::BankConflicts)? / profile.get(Metric::Instructions)?;
    let ProfilePolicy { tensor_least_percent, dram_below_percent, bank_conflicts_per_instruction, .. } = *policy;
    let checks = vec![
        Check::at_least("tensor cores busy, percent", tensor, tensor_least_percent),
        Check {
            name: "device memory busy, percent (below)".into(),
            value: dram,
            limit: dram_below_percent,
            pass: dram < dram_below_percent,
        },
        Check::at_most("bank conflicts per instruction", conflicts, bank_conflicts_per_instruction),
        Check::at_most("local memory instructions", local, policy.local_instructions),
    ];
    let [tensor_holds, dram_holds, conflicts_hold, local_holds] = [0, 1, 2, 3].map(|index| checks[index].pass);
    let mut findings = Vec::new();
    if !(tensor_holds && dram_holds) {
        let finding = if claims.compute_bound {
            "claims to be bound by computing"
        } else {
            "not bound by computing, nor claims to be"
        };
        findings.push((claims.compute_bound, finding.to_string()));
    }
    if !conflicts_hold {
        let finding = format!("{conflicts:.3} bank conflicts per instruction, limit {bank_conflicts_per_instruction}");
        findings.push((claims.conflict_free, finding));
    }
    if !local_holds {
        findings.push((true, format!("{local} instructions go to local memory, limit {}", policy.local_instructions)));
    }
    let outcome = match findings.iter().any(|(is_fault, _)| *is_fault) {
        true => Outcome::Fail,
        false if findings.is_empty() => Outcome::Pass,
        false => Outcome::Negative,
    };
    let findings: String = findings.into_iter().map(|(_, finding)| format!("{finding}: ")).collect();
    let stalls = profile.top_stalls(3).iter().map(|stall| format!("{} {:.2}", stall.reason, stall.warps));
    let stalls = stalls.collect::<Vec<_>>().join(", ");
    let waits = if stalls.is_empty() { String::new() } else { format!("; warps wait for {stalls}") };
    Ok(GateReport {
        gate: Gate::Profile,
        outcome,
        summary: format!("{findings}tensor cores {tensor:.1} % busy, device memory {dram:.1} %{waits}"),
        checks,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gates::Thresholds;
    use crate::profile::Stall;

    fn profile(tensor: f64, dram: f64) -> Profile {
        let stall = |reason: &str, warps| Stall { reason: reason.into(), warps };
        Profile {
            launch: "0".into(),
            kernel: "k".into(),
            metrics: [
                (Metric::TensorPipe, tensor),
                (Metric::Dram, dram),
                (Metric::BankConflicts, 0.0),
                (Metric::LocalInstructions, 0.0),
                (Metric::Instructions, 1000.0),
            ]
            .into(),
            stalls: vec![stall("wait", 1.5), stall("math_pipe_throttle", 0.5)],
        }
    }

    fn judged(profile: &Profile, compute_bound: bool) -> GateReport {
        let claims = Claims { compute_bound, conflict_free: false };
        check(profile, &Thresholds::embedded().profile, claims).unwrap()
    }

    #[test]
    fn both_must_hold() {
        let outcome = |tensor, dram| judged(&profile(tensor, dram), true).outcome;
        assert_eq!(outcome(50.0, 49.9), Outcome::Pass);
        assert_eq!(outcome(49.9, 2.0), Outcome::Fail);
        assert_eq!(outcome(80.0, 50.0), Outcome::Fail);
        assert_eq!(outcome(f64::NAN, 2.0), Outcome::Fail);
        assert_eq!(outcome(80.0, f64::NAN), Outcome::Fail);
    }

    #[test]
    fn it_says_what_warps_wait_for_and_without_a_claim_it_is_a_finding() {
        let report = judged(&profile(38.0, 1.9), true);
        let seen = "tensor cores 38.0 % busy, device memory 1.9 %; warps wait for wait 1.50, math_pipe_throttle 0.50";
        assert_eq!(report.summary, format!("claims to be bound by computing: {seen}"));
        assert_eq!(report.failed().count(), 1);
        let report = judged(&profile(38.0, 1.9), false);
        assert_eq!(report.outcome, Outcome::Negative);
        assert_eq!(report.summary, format!("not bound by computing, nor claims to be: {seen}"));
        assert_eq!(judged(&profile(80.0, 1.9), false).outcome, Outcome::Pass);
    }

    #[test]
    fn a_missing_metric_is_no_zero() {
        let mut profile = profile(80.0, 2.0);
        profile.metrics.remove(&Metric::Dram);
        let claims = Claims { compute_bound: false, conflict_free: false };
        let error = check(&profile, &Thresholds::embedded().profile, claims).unwrap_err();
        assert!(error.to_string().contains("dram__throughput"));
    }

    #[test]
    fn spills_are_always_a_fault_and_bank_conflicts_where_there_should_be_none() {
        let with = |metric, value, conflict_free| {
            let mut profile = profile(80.0, 1.9);
            profile.metrics.insert(metric, value);
            let claims = Claims { compute_bound: true, conflict_free };
            check(&profile, &Thresholds::embedded().profile, claims).unwrap()
        };
        for conflict_free in [false, true] {
            let spilled = with(Metric::LocalInstructions, 1.0, conflict_free);
            assert_eq!((spilled.outcome, spilled.failed().count()), (Outcome::Fail, 1));
            assert!(spilled.summary.starts_with("1 instructions go to local memory, limit 0: "), "{}", spilled.summary);
        }
        assert_eq!(with(Metric::BankConflicts, 10.0, true).outcome, Outcome::Pass);
        let conflicts = [false, true].map(|conflict_free| with(Metric::BankConflicts, 11.0, conflict_free));
        assert_eq!(conflicts.each_ref().map(|report| report.outcome), [Outcome::Negative, Outcome::Fail]);
        assert!(conflicts[1].summary.starts_with("0.011 bank conflicts per instruction, limit 0.01: "));
    }

    #[test]
    fn a_claim_is_what_the_ledger_says_of_the_stage() {
        let problem = |shape: &str| Problem::new(crate::shapes::parse(shape).unwrap().shape).unwrap();
        for stage in [Kernel::LADDER, Kernel::HOPPER].iter().flat_map(|kernel| kernel.stages(64, Mask::None)) {
            let entry = stage_of(&stage.variant, 64).unwrap();
            assert_eq!(entry.name, stage.name);
            let Some(shape) = entry.floor_shape.clone() else { continue };
            let found = claims_compute_bound(&stage.variant, &shape, &problem(&shape));
            assert_eq!(found, entry.bound.as_deref() == Some(TENSOR_CORES));
            let claiming = StageEntry { bound: Some(TENSOR_CORES.into()), ..entry };
            assert!(claims(&claiming, &shape, &problem(&shape)));
            // Of other problems nothing was counted, and nothing is claimed.
            assert!(!claims(&claiming, "1,3,333,64", &problem("1,3,333,64")));
            assert!(!claims(&claiming, &shape, &problem(&shape).causal()));
        }
        let none: Variant = "ladder:unpack,tile_keys=32".parse().unwrap();
        assert!(stage_of(&none, 64).is_none() && !claims_compute_bound(&none, "long", &problem("long")));
    }
}
