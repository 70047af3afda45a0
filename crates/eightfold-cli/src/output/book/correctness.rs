//! The page of runs of the correctness gate, of compute-sanitizer, and of tests on a device.

use super::{NONE, error, of, shape, source, table};
use crate::output::mutants_table;
use eightfold_lab::archive::Filed;
use eightfold_lab::gates::Outcome;
use eightfold_lab::mutants::Tried;
use eightfold_lab::record::{Entry, Kind};
use eightfold_lab::verification::Verification;
use eightfold_lab::withdrawn::{Withdrawal, Withdrawn};
use std::fmt::Write;

pub(super) fn page(filed: &[Filed], withdrawn: &Withdrawn) -> String {
    let rows = of(filed, "correctness", Kind::Run).flat_map(|filed| {
        filed.record.groups.iter().map(move |group| {
            let cases: usize = group.entries.iter().map(|entry| entry.cases.len()).sum();
            let worst = group.entries.iter().filter_map(Entry::worst_relative_l2).reduce(f64::max);
            let passed = |entry: &&Entry| entry.correctness().is_some_and(|gate| gate.outcome == Outcome::Pass);
            let passed = group.entries.iter().filter(passed).count();
            let title = if group.sweep { "odd sizes".into() } else { shape(group) };
            let (commit, date, device) = (filed.short_commit(), filed.date(), filed.device());
            let variants = group.entries.len();
            let worst = error(worst);
            format!(
                "| {title} | {passed} of {variants} | {cases} | {worst} | {commit} | {date} | {device} | `{}` |",
                filed.name
            )
        })
    });
    let head =
        ["problem", "variants that passed", "cases", "largest relative L2", "commit", "date", "device", "record"];
    let mut text = format!(
        "# Correctness\n\n{}Runs of the correctness gate. The largest error is over all variants and kinds of inputs.\n\n{}",
        not_claimed(withdrawn),
        table(&head, rows)
    );
    for filed in of(filed, "correctness", Kind::Build) {
        let _ = write!(text, "## Compiled, not run\n\n{}", source(filed));
        let rows = filed.record.builds.iter().map(|group| format!("| {} | {} |", group.kind(), group.entries.len()));
        text.push_str(&table(&["architecture and problem", "kernels compiled"], rows));
    }
    for filed in of(filed, "correctness", Kind::Sanitizer) {
        let Some(verification) = &filed.record.verification else { continue };
        let _ = write!(text, "## compute-sanitizer: {}\n\n{}", kernels(verification), source(filed));
        let _ = write!(text, "{}; {}. Errors or hazards found:\n\n", verification.by, verification.on);
        let tools = verification.tools();
        let head: Vec<&str> = std::iter::once("variant, output").chain(tools.iter().copied()).collect();
        text.push_str(&table(&head, sanitizer_rows(verification, &tools)));
    }
    for filed in of(filed, "correctness", Kind::Tests) {
        let Some(verification) = &filed.record.verification else { continue };
        let (all, failed) = (verification.checks.len(), verification.findings());
        let _ = write!(text, "## Tests on a device\n\n{}", source(filed));
        let _ =
            write!(text, "{} of {all} tests of the CUDA backend passed; none may be skipped there.\n\n", all - failed);
    }
    for filed in of(filed, "correctness", Kind::Mutants) {
        let Some(trial) = &filed.record.mutants else { continue };
        let _ = write!(text, "## Mutants of the device code\n\n{}", source(filed));
        let _ = write!(
            text,
            "{} `crates/eightfold-lab/mutants.toml` says what each changes.\n\n",
            mutants_table::summary(&filed.record)
        );
        let row = |tried: &Tried| {
            format!("| `{}` | {} | {} | {} |", tried.name, tried.target, tried.breaks, mutants_table::noticed_by(tried))
        };
        text.push_str(&table(&["mutant", "target", "breaks", "noticed by"], trial.tried.iter().map(row)));
    }
    text
}

/// What the records below do not say of today's kernels.
fn not_claimed(withdrawn: &Withdrawn) -> String {
    let line = |(kernel, withdrawal): (&str, &Withdrawal)| {
        let Withdrawal { since, reason } = withdrawal;
        format!("**Not claimed since {since}**: that today's `{kernel}` is right on a device. {reason}\n\n")
    };
    withdrawn.each().map(line).collect()
}

/// The kernels that were looked at.
fn kernels(verification: &Verification) -> String {
    let mut kernels: Vec<&str> =
        verification.checks.iter().filter_map(|check| check.subject.split(':').next()).collect();
    kernels.dedup();
    kernels.join(", ")
}

fn sanitizer_rows(verification: &Verification, tools: &[&str]) -> Vec<String> {
    let mut subjects: Vec<&str> = verification.checks.iter().map(|check| check.subject.as_str()).collect();
    subjects.dedup();
    let row = |subject: &str| {
        let of = |tool: &&str| {
            let check = verification.checks.iter().find(|check| check.subject == subject && check.tool == *tool);
            check.map_or(NONE.into(), |check| check.findings.to_string())
        };
        format!("| {subject} | {} |", tools.iter().map(of).collect::<Vec<_>>().join(" | "))
    };
    subjects.into_iter().map(row).collect()
}
