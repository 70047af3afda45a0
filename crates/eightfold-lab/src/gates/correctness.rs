//! The correctness gate: the kernel's own error, and the end-to-end error, each against float64.

use super::case::Case;
use super::rounding::{half_ulp, max_finite};
use super::subject::Subject;
use super::thresholds::{Thresholds, Tolerance};
use super::{Check, Gate, GateReport, Outcome, fingerprint};
use crate::errors::{BadLimit, ErrorStats};
use crate::inputs::Family;
use eightfold::{Error, Output, RunReport, Shape};
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
    /// Elements of rows without a visible key that are not zero, or whose log-sum-exp is not −∞.
    pub const EMPTY_ROWS: &str = "rows without keys not zero";
    /// The kernel's largest error.
    pub const MAX_ABS: &str = "kernel max_abs";
    /// The kernel's mean error.
    pub const MEAN_ABS: &str = "kernel mean_abs";
    /// The share of bad elements.
    pub const BAD_FRACTION: &str = "kernel bad_fraction";
    /// The kernel's error against its declared tolerance.
    pub const RELATIVE_L2: &str = "kernel relative_l2";
    /// The error of the log-sum-exp.
    pub const LSE: &str = "kernel lse_max_abs";
    /// The end-to-end error.
    pub const END_TO_END_L2: &str = "end-to-end relative_l2";
    /// The end-to-end angle.
    pub const END_TO_END_COSINE: &str = "end-to-end cosine (at least)";

    /// Every check, in the order in which they are listed.
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
    /// Rows of a tile whose weights needed a second limb.
    pub rows_refined: u64,
}

impl From<RunReport> for RunCounts {
    fn from(report: RunReport) -> Self {
        let RunReport { tiles, tiles_in_f32, rows_refined } = report;
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
    /// Every check of this case.
    pub checks: Vec<Check>,
}

/// What the correctness gate decided about a subject.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CorrectnessReport {
    /// The decision; each check with its worst value over all cases.
    pub gate: GateReport,
    /// The cases, one by one; a case whose run ended in an error has no entry.
    pub cases: Vec<CaseReport>,
}

/// What the buffer holds before a run: NaN, which spreads, and then a finite value, which tells an element
/// that was left out from one that was computed as NaN. Exact in f32, f16 and bf16, and no weighted mean
/// of ordinary values.
const POISONS: [f32; 2] = [f32::NAN, FINITE_POISON];
const FINITE_POISON: f32 = -49152.0;

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
                tally.add(&case.origin, &[Check::at_most(checks::ERRORS, 1.0, 0.0)]);
                tally.errors.push(format!("{}: {reason}", case.origin));
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
    [&case.dequantized, &case.unquantized].into_iter().all(|reference| {
        reference.values.iter().all(|value| value.abs() <= most)
            && reference.lse.iter().all(lse_fits)
    })
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
        let result = catch_unwind(AssertUnwindSafe(|| {
            subject.run(&case.problem, &case.q, &case.k, &case.v, &mut output)
        }));
        let inputs_changed =
            fingerprint::of_inputs([&case.q, &case.k, &case.v]) != case.inputs_hash;
        match result {
            Ok(Ok(report)) => Ok(Run { output, counts: report.into(), inputs_changed }),
            Ok(Err(error @ Error::Unavailable { .. })) => {
                Err(Failure::Unavailable(error.to_string()))
            }
            Ok(Err(error)) => Err(Failure::Ended(error.to_string())),
            Err(panic) => Err(Failure::Ended(format!("panicked: {}", panic_text(panic.as_ref())))),
        }
    };
    Ok([run(POISONS[0])?, run(POISONS[1])?])
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a message")
}

fn judge(
    case: &Case,
    runs: &[Run; 2],
    tolerance: &Tolerance,
    thresholds: &Thresholds,
) -> CaseReport {
    let limits = &thresholds.correctness.kernel;
    let reference = &case.dequantized.values;
    let unit = unit(case);
    let rounding = Rounding::of(case);
    let bad = BadLimit { atol: limits.bad_atol * unit + rounding.max, rtol: limits.bad_rtol };
    let stats = |output: &[f64], reference: &[f64]| {
        ErrorStats::between(output.iter().copied().zip(reference.iter().copied()), bad)
    };
    let end_to_end_limits = thresholds.end_to_end(case.family, case.problem.input_format());

    let evidence = runs.each_ref().map(|run| {
        let output = compared_values(case, &run.output);
        let lse = run.output.lse.as_ref().map(|lse| lse_max_abs(case, lse));
        (stats(&output, reference), stats(&output, &case.unquantized.values), lse)
    });
    let mut found = vec![
        Check::at_most(checks::ERRORS, 0.0, 0.0),
        count(checks::INPUTS_CHANGED, runs.iter().filter(|run| run.inputs_changed).count()),
        count(checks::UNWRITTEN, unwritten(case, &runs[1].output)),
        count(
            checks::NON_FINITE,
            runs.iter().map(|run| non_finite(case, &run.output)).max().unwrap_or(0),
        ),
    ];
    if case.problem.visible_keys(0) == 0 {
        let nonzero = runs.iter().map(|run| empty_rows_not_zero(case, &run.output)).max();
        found.push(count(checks::EMPTY_ROWS, nonzero.unwrap_or(0)));
    }
    let worst = |value: fn(&ErrorStats) -> f64| {
        evidence.iter().map(|(kernel, ..)| value(kernel)).fold(0.0, f64::max)
    };
    let relative_l2 = declared_relative_l2(case, tolerance) + rounding.relative_l2;
    found.extend([
        Check::at_most(
            checks::MAX_ABS,
            worst(|kernel| kernel.max_abs),
            limits.max_abs * unit + rounding.max,
        ),
        Check::at_most(
            checks::MEAN_ABS,
            worst(|kernel| kernel.mean_abs),
            limits.mean_abs * unit + rounding.max,
        ),
        Check::at_most(
            checks::BAD_FRACTION,
            worst(|kernel| kernel.bad_fraction),
            limits.bad_fraction,
        ),
        Check::at_most(checks::RELATIVE_L2, worst(|kernel| kernel.relative_l2), relative_l2),
    ]);
    let lse_max_abs = evidence.iter().filter_map(|(.., lse)| *lse).reduce(f64::max);
    if let Some(lse_max_abs) = lse_max_abs {
        let limit = tolerance.lse_nats + tolerance.lse_relative * largest_lse(case);
        found.push(Check::at_most(checks::LSE, lse_max_abs, limit));
    }
    let end_to_end_l2 =
        evidence.iter().map(|(_, end_to_end, _)| end_to_end.relative_l2).fold(0.0, f64::max);
    let cosine = evidence.iter().map(|(_, end_to_end, _)| end_to_end.cosine).fold(1.0, f64::min);
    found.extend([
        Check::at_most(
            checks::END_TO_END_L2,
            end_to_end_l2,
            end_to_end_limits.relative_l2 + rounding.relative_l2,
        ),
        Check::at_least(checks::END_TO_END_COSINE, cosine, end_to_end_limits.cosine),
    ]);

    let hashes = runs.each_ref().map(|run| fingerprint::of_output(&run.output));
    let (kernel, end_to_end, _) = if evidence[1].0.relative_l2 > evidence[0].0.relative_l2 {
        evidence[1]
    } else {
        evidence[0]
    };
    CaseReport {
        origin: case.origin.clone(),
        kernel,
        end_to_end,
        quantizer: stats(reference, &case.unquantized.values),
        lse_max_abs,
        run: runs[1].counts,
        output_hash: hashes[0],
        repeatable: hashes[0] == hashes[1],
        rows_compared: case.rows.len(),
        checks: found,
    }
}

fn count(name: &str, count: usize) -> Check {
    Check::at_most(name, count as f64, 0.0)
}

/// What the absolute limits are multiples of: 1 where inputs are of order 1, else the root mean square of the
/// reference output.
fn unit(case: &Case) -> f64 {
    match case.family {
        Some(Family::Tiny | Family::Huge) | None => {
            let values = &case.dequantized.values;
            let squares: f64 = values.iter().map(|value| value * value).sum();
            let root_mean_square = (squares / values.len() as f64).sqrt();
            if root_mean_square > 0.0 { root_mean_square } else { 1.0 }
        }
        Some(_) => 1.0,
    }
}

/// What rounding the reference to the output's number format may cost.
struct Rounding {
    max: f64,
    relative_l2: f64,
}

impl Rounding {
    fn of(case: &Case) -> Self {
        let format = case.problem.output_format();
        let (mut max, mut squares, mut reference_squares) = (0f64, 0.0, 0.0);
        for &value in &case.dequantized.values {
            let half_ulp = half_ulp(format, value);
            max = max.max(half_ulp);
            squares += half_ulp * half_ulp;
            reference_squares += value * value;
        }
        let relative_l2 =
            if reference_squares > 0.0 { (squares / reference_squares).sqrt() } else { 0.0 };
        Rounding { max, relative_l2 }
    }
}

/// The declared tolerance; on a user's own inputs with what large scores cost on top.
fn declared_relative_l2(case: &Case, tolerance: &Tolerance) -> f64 {
    let declared = tolerance.relative_l2(case.family);
    match case.family {
        Some(_) => declared,
        // A score's rounding error is the relative error of its weight, and the log-sum-exp is about as
        // large as the largest score.
        None => declared + tolerance.lse_relative * largest_lse(case),
    }
}

fn largest_lse(case: &Case) -> f64 {
    case.dequantized
        .lse
        .iter()
        .filter(|lse| lse.is_finite())
        .fold(0.0, |most, lse| most.max(lse.abs()))
}

/// Where channel 0 of a row of `[B,Hq,Sq]` lies in the output.
fn row_offset(case: &Case, row: usize) -> usize {
    let Shape { query_heads, query_len, .. } = case.problem.shape();
    let strides = case.problem.output_layout().strides(case.problem.shape().query_dims());
    let head = row / query_len;
    strides.row_offset(head / query_heads, head % query_heads, row % query_len)
}

/// The output's values in the rows that the references hold, in the same order.
fn compared_values(case: &Case, output: &Output) -> Vec<f64> {
    let head_dim = case.problem.shape().head_dim;
    let values = output.values.to_f32();
    let rows = case.rows.iter().map(|&row| row_offset(case, row));
    rows.flat_map(|offset| &values[offset..offset + head_dim]).copied().map(f64::from).collect()
}

fn unwritten(case: &Case, output: &Output) -> usize {
    // An output of a user's may really be the poison's value: then every element near it is.
    let near = |value: &f64| (value - f64::from(FINITE_POISON)).abs() < 1.0;
    if case.dequantized.values.iter().any(near) {
        return 0;
    }
    let values = output.values.to_f32();
    values
        .iter()
        .chain(output.lse.iter().flatten())
        .filter(|value| **value == FINITE_POISON)
        .count()
}

fn non_finite(case: &Case, output: &Output) -> usize {
    let query_len = case.problem.shape().query_len;
    let lse = output.lse.iter().flatten().enumerate().filter(|(row, lse)| {
        let expects_infinity = case.problem.visible_keys(row % query_len) == 0;
        !lse.is_finite() && !(expects_infinity && **lse == f32::NEG_INFINITY)
    });
    output.values.to_f32().iter().filter(|value| !value.is_finite()).count() + lse.count()
}

fn empty_rows_not_zero(case: &Case, output: &Output) -> usize {
    let Shape { query_len, head_dim, .. } = case.problem.shape();
    let values = output.values.to_f32();
    let rows = values.len() / head_dim;
    let empty = (0..rows).filter(|row| case.problem.visible_keys(row % query_len) == 0);
    empty
        .map(|row| {
            let offset = row_offset(case, row);
            let nonzero =
                values[offset..offset + head_dim].iter().filter(|value| **value != 0.0).count();
            let lse_wrong = output.lse.as_ref().is_some_and(|lse| lse[row] != f32::NEG_INFINITY);
            nonzero + usize::from(lse_wrong)
        })
        .sum()
}

/// The largest error over rows that see a key; values that are not finite are another check's.
fn lse_max_abs(case: &Case, lse: &[f32]) -> f64 {
    let pairs = case.rows.iter().map(|&row| f64::from(lse[row])).zip(&case.dequantized.lse);
    pairs
        .filter(|(lse, reference)| lse.is_finite() && reference.is_finite())
        .fold(0.0, |most, (lse, reference)| most.max((lse - reference).abs()))
}

/// The worst value of every check so far, and where it was seen.
#[derive(Default)]
struct Tally {
    worst: Vec<(Check, String)>,
    errors: Vec<String>,
}

impl Tally {
    fn add(&mut self, origin: &str, checks: &[Check]) {
        for check in checks {
            match self.worst.iter_mut().find(|(known, _)| known.name == check.name) {
                None => self.worst.push((check.clone(), origin.into())),
                Some(entry) if strain(check) > strain(&entry.0) => {
                    *entry = (check.clone(), origin.into())
                }
                Some(_) => {}
            }
        }
        // A check that only some cases have keeps its place in the list.
        self.worst
            .sort_by_key(|(check, _)| checks::ALL.iter().position(|name| *name == check.name));
    }

    fn passes(&self) -> bool {
        self.worst.iter().all(|(check, _)| check.pass)
    }

    fn summary(&self, cases: usize) -> String {
        if let [first, others @ ..] = &self.errors[..] {
            let more = if others.is_empty() {
                String::new()
            } else {
                format!(" (and {} more)", others.len())
            };
            return format!("{first}{more}");
        }
        let failed: Vec<_> = self.worst.iter().filter(|(check, _)| !check.pass).collect();
        if let [(check, origin), others @ ..] = &failed[..] {
            let more = match others.len() {
                0 => String::new(),
                1 => " (and 1 other check fails)".into(),
                count => format!(" (and {count} other checks fail)"),
            };
            let (value, limit) = (readable(check.value), readable(check.limit));
            return format!("{origin}: {} is {value}, limit {limit}{more}", check.name);
        }
        match self.worst.iter().find(|(check, _)| check.name == checks::RELATIVE_L2) {
            Some((check, origin)) => format!(
                "{cases} cases; closest to its declared tolerance on {origin}: relative L2 {:.1e} of {:.1e}",
                check.value, check.limit
            ),
            None => format!("{cases} cases"),
        }
    }

    fn into_checks(self) -> Vec<Check> {
        self.worst.into_iter().map(|(check, _)| check).collect()
    }
}

/// Counts as they are, measurements with four digits.
fn readable(value: f64) -> String {
    if value.fract() == 0.0 { format!("{value}") } else { format!("{value:.3e}") }
}

/// How close a check is to its limit, a failed one being beyond every one that holds.
fn strain(check: &Check) -> f64 {
    let at_least = check.name.ends_with(super::AT_LEAST);
    let excess = if at_least { check.limit - check.value } else { check.value - check.limit };
    let relative = if check.limit == 0.0 { excess } else { excess / check.limit.abs() };
    if check.pass { relative.min(0.0) } else { relative.max(f64::MIN_POSITIVE) }
}
