//! The profile gate: whether a kernel that claims to be bound by computing is.

use super::{Metric, Profile};
use crate::gates::{Check, Gate, GateReport, Outcome};
use eightfold::Result;

/// The tensor cores of a kernel that is bound by computing are busy at least this much of the time, in percent.
pub const GATE_TENSOR_LEAST_PERCENT: f64 = 50.0;

/// Device memory is then busy less than this, in percent.
pub const GATE_DRAM_BELOW_PERCENT: f64 = 50.0;

/// Both must hold: with either alone, a kernel that waits for everything would pass. Kernels that claim nothing have
/// nothing to show. An error if a metric is missing.
pub fn check(profile: &Profile, claims_compute_bound: bool) -> Result<Option<GateReport>> {
    if !claims_compute_bound {
        return Ok(None);
    }
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
    let pass = checks.iter().all(|check| check.pass);
    let stalls = profile.top_stalls(3).iter().map(|stall| format!("{} {:.2}", stall.reason, stall.warps));
    let stalls = stalls.collect::<Vec<_>>().join(", ");
    let waits = if stalls.is_empty() { String::new() } else { format!("; warps wait for {stalls}") };
    Ok(Some(GateReport {
        gate: Gate::Profile,
        outcome: if pass { Outcome::Pass } else { Outcome::Fail },
        summary: format!("tensor cores {tensor:.1} % busy, device memory {dram:.1} %{waits}"),
        checks,
    }))
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
        let outcome = |tensor, dram| check(&profile(tensor, dram), true).unwrap().unwrap().outcome;
        assert_eq!(outcome(50.0, 49.9), Outcome::Pass);
        assert_eq!(outcome(49.9, 2.0), Outcome::Fail);
        assert_eq!(outcome(80.0, 50.0), Outcome::Fail);
        assert_eq!(outcome(f64::NAN, 2.0), Outcome::Fail);
        assert_eq!(outcome(80.0, f64::NAN), Outcome::Fail);
    }

    #[test]
    fn it_says_what_warps_wait_for() {
        let report = check(&profile(38.0, 1.9), true).unwrap().unwrap();
        let expected =
            "tensor cores 38.0 % busy, device memory 1.9 %; warps wait for wait 1.50, math_pipe_throttle 0.50";
        assert_eq!(report.summary, expected);
        assert_eq!(report.failed().count(), 1);
    }

    #[test]
    fn no_claim_nothing_to_show_and_a_missing_metric_is_no_zero() {
        let mut profile = profile(80.0, 2.0);
        profile.metrics.remove(&Metric::Dram);
        assert_eq!(check(&profile, false), Ok(None));
        assert!(check(&profile, true).unwrap_err().to_string().contains("dram__throughput"));
    }
}
