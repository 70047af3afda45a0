//! The profile gate: whether a kernel that claims to be bound by computing is.

use super::{Metric, Profile};
use crate::gates::{Check, Gate, GateReport, Outcome};
use crate::kernel::Kernel;
use crate::ledger::{Ledger, StageEntry};
use eightfold::{Mask, Problem, Result, Variant};

/// The tensor cores of a kernel that is bound by computing are busy at least this much of the time, in percent.
pub const GATE_TENSOR_LEAST_PERCENT: f64 = 50.0;

/// Device memory is then busy less than this, in percent.
pub const GATE_DRAM_BELOW_PERCENT: f64 = 50.0;

/// The part of the machine that a stage's ledger entry names when it claims to be bound by computing.
const TENSOR_CORES: &str = "tensor cores";

/// Whether a variant claims to be bound by computing: a stage does whose entry in the ledger says that the tensor cores
/// bound it, on the problem that the arithmetic beside that claim is of.
pub fn claims_compute_bound(variant: &Variant, shape: &str, problem: &Problem) -> bool {
    let Some(entry) = stage_of(variant, problem.shape().head_dim) else { return false };
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

/// Both must hold: with either alone, a kernel that waits for everything would pass. A kernel that claims to be bound by
/// computing and is not has failed; of one that claims nothing it is a finding, and no fault. An error if a metric is
/// missing.
pub fn check(profile: &Profile, claims_compute_bound: bool) -> Result<GateReport> {
    let (tensor, dram) = (profile.get(Metric::TensorPipe)?, profile.get(Metric::Dram)?);
    let checks = vec![
        Check::at_least("tensor cores busy, percent", tensor, GATE_TENSOR_LEAST_PERCENT),
        Check {
            name: "device memory busy, percent (below)".into(),
            value: dram,
            limit: GATE_DRAM_BELOW_PERCENT,
            pass: dram < GATE_DRAM_BELOW_PERCENT,
        },
    ];
    let (outcome, claim) = match (checks.iter().all(|check| check.pass), claims_compute_bound) {
        (true, _) => (Outcome::Pass, ""),
        (false, true) => (Outcome::Fail, "claims to be bound by computing: "),
        (false, false) => (Outcome::Negative, "not bound by computing, nor claims to be: "),
    };
    let stalls = profile.top_stalls(3).iter().map(|stall| format!("{} {:.2}", stall.reason, stall.warps));
    let stalls = stalls.collect::<Vec<_>>().join(", ");
    let waits = if stalls.is_empty() { String::new() } else { format!("; warps wait for {stalls}") };
    Ok(GateReport {
        gate: Gate::Profile,
        outcome,
        summary: format!("{claim}tensor cores {tensor:.1} % busy, device memory {dram:.1} %{waits}"),
        checks,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Stall;

    fn profile(tensor: f64, dram: f64) -> Profile {
        let stall = |reason: &str, warps| Stall { reason: reason.into(), warps };
        Profile {
            launch: "0".into(),
            kernel: "k".into(),
            metrics: [(Metric::TensorPipe, tensor), (Metric::Dram, dram)].into(),
            stalls: vec![stall("wait", 1.5), stall("math_pipe_throttle", 0.5)],
        }
    }

    #[test]
    fn both_must_hold() {
        let outcome = |tensor, dram| check(&profile(tensor, dram), true).unwrap().outcome;
        assert_eq!(outcome(50.0, 49.9), Outcome::Pass);
        assert_eq!(outcome(49.9, 2.0), Outcome::Fail);
        assert_eq!(outcome(80.0, 50.0), Outcome::Fail);
        assert_eq!(outcome(f64::NAN, 2.0), Outcome::Fail);
        assert_eq!(outcome(80.0, f64::NAN), Outcome::Fail);
    }

    #[test]
    fn it_says_what_warps_wait_for_and_without_a_claim_it_is_a_finding() {
        let report = check(&profile(38.0, 1.9), true).unwrap();
        let seen = "tensor cores 38.0 % busy, device memory 1.9 %; warps wait for wait 1.50, math_pipe_throttle 0.50";
        assert_eq!(report.summary, format!("claims to be bound by computing: {seen}"));
        assert_eq!(report.failed().count(), 1);
        let report = check(&profile(38.0, 1.9), false).unwrap();
        assert_eq!(report.outcome, Outcome::Negative);
        assert_eq!(report.summary, format!("not bound by computing, nor claims to be: {seen}"));
        assert_eq!(check(&profile(80.0, 1.9), false).unwrap().outcome, Outcome::Pass);
    }

    #[test]
    fn a_missing_metric_is_no_zero() {
        let mut profile = profile(80.0, 2.0);
        profile.metrics.remove(&Metric::Dram);
        assert!(check(&profile, false).unwrap_err().to_string().contains("dram__throughput"));
    }

    #[test]
    fn a_claim_is_what_the_ledger_says_of_the_stage() {
        let problem = |shape: &str| Problem::new(crate::shapes::parse(shape).unwrap().shape).unwrap();
        let claims = |variant: &Variant, shape: &str| claims_compute_bound(variant, shape, &problem(shape));
        let mut claimed = 0;
        for stage in [Kernel::Ladder, Kernel::Hopper].iter().flat_map(|kernel| kernel.stages(64, Mask::None)) {
            let entry = stage_of(&stage.variant, 64).unwrap();
            assert_eq!(entry.name, stage.name);
            let Some(shape) = entry.floor_shape else { continue };
            assert_eq!(claims(&stage.variant, &shape), entry.bound.as_deref() == Some(TENSOR_CORES));
            claimed += usize::from(claims(&stage.variant, &shape));
            // Of other problems nothing was counted, and nothing is claimed.
            assert!(!claims(&stage.variant, "1,3,333,64"));
            assert!(!claims_compute_bound(&stage.variant, &shape, &problem(&shape).causal()));
        }
        assert!(claimed > 0);
        let none: Variant = "ladder:unpack,tile_keys=32".parse().unwrap();
        assert!(stage_of(&none, 64).is_none() && !claims(&none, "long"));
    }
}
