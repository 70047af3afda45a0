//! The correctness gate: the kernel's own error, and the end-to-end error, each against float64.

use super::case::Case;
use super::evidence::{POISONS, Seen, compared_values, empty_rows_not_zero, fits, lse_max_abs, non_finite, unwritten};
use super::limits::{self, Limits};
use super::rounding::max_finite;
use super::subject::Subject;
use super::tally::Tally;
use super::thresholds::{Thresholds, Tolerance};
use super::{Check, Gate, GateReport, Outcome, fingerprint};
use crate::errors::ErrorStats;
use eightfold::{Error, Output, RunReport};
use serde::{Deserialize, Serialize};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The checks of this gate, in the order in which they are listed.
pub mod checks {
    /// Runs that ended in an error or a panic.
    pub const ERRORS: &str = "runs ended in an error";
    /// Inputs whose bits are not what they were.
    pub const INPUTS_CHANGED: &str = "inputs changed";
    /// Elements that still hold what was in the buffer before.
    pub const UNWRITTEN: &str = "elements not written";
    /// NaN or infinite elements.
    pub const NON_FINITE: &str = "elements not finite";
    /// Elements of rows without a visible key that are not zero, or whose log-sum-exp is not −∞, or their sink if they have one.
    pub const EMPTY_ROWS: &str = "rows without keys not zero";
    /// The kernel's largest error.
    pub const MAX_ABS: &str = "kernel max_abs";
    /// The kernel's mean error.
    pub const MEAN_ABS: &str = "kernel mean_abs";
    /// The share of bad elements.
    pub const BAD_FRACTION: &str = "kernel bad_fraction";
    /// The kernel's error against its declared tolerance.
    pub const RELATIVE_L2: &str = "kernel relative_l2";
    /// The error of the row that is worst.
    pub const WORST_ROW: &str = "kernel worst_row";
    /// The error of the log-sum-exp.
    pub const LSE: &str = "kernel lse_max_abs";
    /// The end-to-end error.
    pub const END_TO_END_L2: &str = "end-to-end relative_l2";
    /// The end-to-end angle.
    pub const END_TO_END_COSINE: &str = "end-to-end cosine (at least)";

    /// Every check that has a limit, in the order in which they are listed.
    pub const ALL: &[&str] = &[
        ERRORS,
        INPUTS_CHANGED,
        UNWRITTEN,
        NON_FINITE,
        EMPTY_ROWS,
        MAX_ABS,
        MEAN_ABS,
        BAD_FRACTION,
        RELATIVE_L2,
        WORST_ROW,
        LSE,
        END_TO_END_L2,
        END_TO_END_COSINE,
    ];
}

/// What a run did, as the kernel itself counts it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunCounts {
    /// Blocks of (query rows × key tile) that were computed.
    pub tiles: u64,
    /// Of those, blocks that the integer path handed to f32.
    pub tiles_in_f32: u64,
    /// Rows of a tile whose weights needed a second product.
    pub rows_refined: u64,
}

impl From<RunReport> for RunCounts {
    fn from(report: RunReport) -> Self {
        let RunReport { tiles, tiles_in_f32, rows_refined, .. } = report;
        RunCounts { tiles, tiles_in_f32, rows_refined }
    }
}

/// What one case showed about a subject.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CaseReport {
    /// Where the inputs come from.
    pub origin: String,
    /// The kernel's own error: output against the reference on dequantised inputs.
    pub kernel: ErrorStats,
    /// Output against the reference on unquantised inputs.
    pub end_to_end: ErrorStats,
    /// The quantiser's share: the one reference against the other.
    pub quantizer: ErrorStats,
    /// The largest error of the log-sum-exp, if the problem asks for it.
    pub lse_max_abs: Option<f64>,
    /// What the kernel says it did.
    pub run: RunCounts,
    /// A hash of the output's bits.
    pub output_hash: u64,
    /// Whether both runs gave the same bits.
    pub repeatable: bool,
    /// Rows that were compared with the references: all rows, or a sample of a large problem's.
    pub rows_compared: usize,
    /// What `max_abs` is a multiple of in the limits: 1, or for inputs that are not of order 1 the root mean square of the
    /// reference.
    #[serde(default = "one")]
    pub unit: f64,
    /// The row of the limits that applied, such as `fast.families.gaussian`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub judged_by: String,
    /// Every check of this case.
    pub checks: Vec<Check>,
}

fn one() -> f64 {
    1.0
}

/// What the correctness gate decided about a subject.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CorrectnessReport {
    /// The decision; each check with its worst value over all cases.
    pub gate: GateReport,
    /// The cases, one by one; a case whose run ended in an error has no entry.
    pub cases: Vec<CaseReport>,
}

/// Puts a subject through every case, twice on differently poisoned buffers, and judges it.
pub fn check(
    subject: &mut dyn Subject,
    cases: &[Case],
    tolerance: &Tolerance,
    thresholds: &Thresholds,
) -> CorrectnessReport {
    let verdict = |outcome, summary: String, checks, cases| CorrectnessReport {
        gate: GateReport { gate: Gate::Correctness, outcome, summary, checks },
        cases,
    };
    if cases.is_empty() {
        return verdict(Outcome::Invalid, "no case was given to check".into(), vec![], vec![]);
    }
    if let Some(case) = cases.iter().find(|case| !reference_fits(case)) {
        let summary = format!(
            "{}: the float64 reference is not finite in the output's number format, so nothing can be judged by it",
            case.origin
        );
        return verdict(Outcome::Invalid, summary, vec![], vec![]);
    }
    let mut reports = Vec::new();
    let mut tally = Tally::default();
    for case in cases {
        match run_twice(subject, case) {
            Err(Failure::Unavailable(reason)) => {
                return verdict(Outcome::Unavailable, reason, vec![], vec![]);
            }
            Err(Failure::Ended(reason)) => {
                tally.add_error(&case.origin, &reason);
            }
            Ok(runs) => {
                let report = judge(case, &runs, tolerance, thresholds);
                tally.add(&case.origin, &report.checks);
                reports.push(report);
            }
        }
    }
    let outcome = if tally.passes() { Outcome::Pass } else { Outcome::Fail };
    verdict(outcome, tally.summary(cases.len()), tally.into_checks(), reports)
}

/// Whether a right kernel can write the right answer. NaN fits nothing.
fn reference_fits(case: &Case) -> bool {
    let most = max_finite(case.problem.output_format());
    let lse_fits = |lse: &f64| lse.abs() <= f64::from(f32::MAX) || *lse == f64::NEG_INFINITY;
    [&case.dequantized, &case.unquantized]
        .into_iter()
        .all(|reference| reference.values.iter().all(|value| value.abs() <= most) && reference.lse.iter().all(lse_fits))
}

/// Why a subject gave no output.
enum Failure {
    Unavailable(String),
    Ended(String),
}

struct Run {
    output: Output,
    counts: RunCounts,
    inputs_changed: bool,
}

fn run_twice(subject: &mut dyn Subject, case: &Case) -> Result<[Run; 2], Failure> {
    let mut run = |poison| {
        let mut output = Output::zeros(&case.problem);
        output.values.fill(poison);
        output.lse.iter_mut().flatten().for_each(|lse| *lse = poison);
        // A subject that panics has failed; the gate that tests it has not.
        let result =
            catch_unwind(AssertUnwindSafe(|| subject.run(&case.problem, &case.q, &case.k, &case.v, &mut output)));
        let inputs_changed = fingerprint::of_inputs([&case.q, &case.k, &case.v]) != case.inputs_hash;
        match result {
            Ok(Ok(_)) if !fits(case, &output) => {
                Err(Failure::Ended("gave back an output of another size or number format".into()))
            }
            Ok(Ok(report)) => Ok(Run { output, counts: report.into(), inputs_changed }),
            Ok(Err(error @ Error::Unavailable { .. })) => Err(Failure::Unavailable(error.to_string())),
            Ok(Err(error)) => Err(Failure::Ended(error.to_string())),
            Err(panic) => Err(Failure::Ended(format!("panicked: {}", panic_text(panic.as_ref())))),
        }
    };
    Ok([run(POISONS[0])?, run(POISONS[1])?])
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message")
}

/// The errors of one run.
#[derive(Clone, Copy)]
struct Errors {
    kernel: ErrorStats,
    end_to_end: ErrorStats,
    lse_max_abs: Option<f64>,
}

fn judge(case: &Case, runs: &[Run; 2], tolerance: &Tolerance, thresholds: &Thresholds) -> CaseReport {
    let limits = Limits::of(case, tolerance, thresholds);
    let stats = |output: &[f64], reference: &[f64]| {
        ErrorStats::between(output.iter().copied().zip(reference.iter().copied()), limits.bad)
    };
    let outputs = runs.each_ref().map(|run| Seen::of(&run.output));
    let errors = [0, 1].map(|index: usize| {
        let (run, output) = (&runs[index], compared_values(case, &outputs[index]));
        let value_dim = case.problem.value_dims().head_dim;
        Errors {
            kernel: stats(&output, &case.dequantized.values).with_worst_row(
                &output,
                &case.dequantized.values,
                value_dim,
            ),
            end_to_end: stats(&output, &case.unquantized.values),
            lse_max_abs: run.output.lse.as_ref().map(|lse| lse_max_abs(case, lse)),
        }
    });
    let hashes = runs.each_ref().map(|run| fingerprint::of_output(&run.output));
    let [first, second] = errors;
    let badness = |errors: &Errors| (errors.kernel.non_finite as f64, errors.kernel.relative_l2);
    let Errors { kernel, end_to_end, .. } = if badness(&second) > badness(&first) { second } else { first };
    CaseReport {
        origin: case.origin.clone(),
        kernel,
        end_to_end,
        quantizer: stats(&case.dequantized.values, &case.unquantized.values),
        lse_max_abs: first.lse_max_abs.into_iter().chain(second.lse_max_abs).reduce(f64::max),
        run: runs[1].counts,
        output_hash: hashes[0],
        repeatable: hashes[0] == hashes[1],
        rows_compared: case.rows.len(),
        unit: limits::unit(case),
        judged_by: format!(
            "{}.{}",
            thresholds.correctness.tolerance.name_of(tolerance),
            tolerance.row(case.family, case.problem.shape().key_len).0
        ),
        checks: checks_of(case, runs, &outputs, &errors, &limits),
    }
}

/// Every check with the worse of the two runs' values.
fn checks_of(case: &Case, runs: &[Run; 2], outputs: &[Seen; 2], errors: &[Errors; 2], limits: &Limits) -> Vec<Check> {
    let none = |name, counts: [usize; 2]| Check::at_most(name, counts[0].max(counts[1]) as f64, 0.0);
    let in_both = |count: fn(&Case, &Seen) -> usize| outputs.each_ref().map(|output| count(case, output));
    let worst = |value: fn(&Errors) -> f64| value(&errors[0]).max(value(&errors[1]));

    let mut found = vec![
        none(checks::ERRORS, [0, 0]),
        none(checks::INPUTS_CHANGED, runs.each_ref().map(|run| usize::from(run.inputs_changed))),
        none(checks::UNWRITTEN, [0, unwritten(case, &outputs[1])]),
        none(checks::NON_FINITE, in_both(non_finite)),
    ];
    if (0..case.problem.shape().query_len).any(|query| case.problem.visible(query).is_empty()) {
        found.push(none(checks::EMPTY_ROWS, in_both(empty_rows_not_zero)));
    }
    found.extend([
        Check::at_most(checks::MAX_ABS, worst(|run| run.kernel.max_abs), limits.max_abs),
        Check::at_most(checks::MEAN_ABS, worst(|run| run.kernel.mean_abs), limits.mean_abs),
        Check::at_most(checks::BAD_FRACTION, worst(|run| run.kernel.bad_fraction), limits.bad_fraction),
        Check::at_most(checks::RELATIVE_L2, worst(|run| run.kernel.relative_l2), limits.relative_l2),
    ]);
    if let Some(limit) = limits.worst_row {
        found.push(Check::at_most(checks::WORST_ROW, worst(|run| run.kernel.worst_row.unwrap_or(0.0)), limit));
    }
    if case.problem.lse() {
        let lse_max_abs = worst(|run| run.lse_max_abs.unwrap_or(0.0));
        found.push(Check::at_most(checks::LSE, lse_max_abs, limits.lse_nats));
    }
    let cosine = -worst(|run| -run.end_to_end.cosine);
    found.extend([
        Check::at_most(checks::END_TO_END_L2, worst(|run| run.end_to_end.relative_l2), limits.end_to_end.relative_l2),
        Check::at_least(checks::END_TO_END_COSINE, cosine, limits.end_to_end.cosine),
    ]);
    found
}
