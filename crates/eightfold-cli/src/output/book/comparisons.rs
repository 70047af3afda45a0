//! The pages of comparisons, of planted differences and of searches.

use super::{NONE, of, ratio, source, table};
use crate::output::evolve_table;
use eightfold_lab::archive::{self, Filed};
use eightfold_lab::compare::{Comparison, Side};
use eightfold_lab::evolve::Evolution;
use eightfold_lab::gates::Outcome;
use eightfold_lab::provenance::Provenance;
use eightfold_lab::record::{Kind, Record};
use std::fmt::Write;

pub(super) fn page(filed: &[Filed]) -> String {
    let all = || of(filed, "comparisons", Kind::Compare).flat_map(pair);
    let builds = all().filter_map(|(filed, one)| {
        let commits = [one.baseline.build()?, one.candidate.build()?].map(|build| commit(build).to_string());
        Some(row(filed, one, kernel(&one.candidate), commits))
    });
    let variants = all().filter(|(_, one)| one.candidate.build().is_none());
    let variants = variants.map(|(filed, one)| row(filed, one, kernel(&one.candidate), differing(one)));
    let head = |kernel, a, b| {
        let rest = ["A's time / B's (95 % interval)", "asked for", "verdict", "commit", "date", "device", "state"];
        ["shape", kernel, a, b].into_iter().chain(rest).chain(["record"]).collect::<Vec<_>>()
    };
    format!(
        "# Comparisons\n\nThe two sides took turns in one run. A verdict is *pass* where B is as much faster as was asked for. A \
         stale comparison is of the sources of its day.\n\n## Two builds\n\n{}## Two variants\n\nOnly knobs that differ are \
         shown. The others are in the record.\n\n{}",
        table(&head("kernel", "A: commit", "B: commit"), builds),
        table(&head("kernel", "A", "B"), variants)
    )
}

/// The comparisons of a record, each with the record.
fn pair(filed: &Filed) -> impl Iterator<Item = (&Filed, &Comparison)> {
    filed.record.comparisons.iter().map(move |one| (filed, one))
}

fn row(filed: &Filed, one: &Comparison, kernel: &str, sides: [String; 2]) -> String {
    let gain = one.speed_up.as_ref().map_or(NONE.into(), |found| {
        format!("{} ({:.3} to {:.3})", ratio(Some(found.ratio)), found.lower, found.upper)
    });
    let verdict = one.outcome.to_string().to_lowercase();
    let [a, b] = sides.map(|side| if side.is_empty() { NONE.into() } else { format!("`{side}`") });
    let state = if archive::age(filed).is_stale() { "stale" } else { "current" };
    format!(
        "| {} | {kernel} | {a} | {b} | {gain} | {:.2}× | {verdict} | {} | {} | {} | {state} | `{}` |",
        one.problem.title(&one.shape),
        1.0 + one.required_gain,
        filed.short_commit(),
        filed.date(),
        filed.device(),
        filed.name
    )
}

fn kernel(side: &Side) -> &str {
    side.implementation.split(':').next().unwrap_or_default()
}

/// The commit of a build, as far as people write it.
fn commit(build: &str) -> &str {
    let commit = build.rsplit(' ').next().unwrap_or(build);
    commit.get(..7).unwrap_or(commit)
}

/// The knobs of each side that the other has not.
fn differing(one: &Comparison) -> [String; 2] {
    let [a, b] = [&one.baseline, &one.candidate].map(|side| side.implementation.split([':', ',']).collect::<Vec<_>>());
    let only = |these: &[&str], those: &[&str]| {
        these.iter().copied().filter(|knob| !those.contains(knob)).collect::<Vec<_>>().join(",")
    };
    [only(&a, &b), only(&b, &a)]
}

pub(super) fn planted(filed: &[Filed]) -> String {
    let rows = of(filed, "planted", Kind::Compare).map(|filed| {
        let row = tries_row(&filed.record);
        format!("{row} {} | {} | `{}` |", filed.short_commit(), filed.date(), filed.name)
    });
    let head = [
        "where",
        "highest load",
        "planted",
        "must be called",
        "right",
        "speed-ups measured",
        "commit",
        "date",
        "record",
    ];
    let text = "# Planted differences\n\n`compare` is tested by real work: one side makes more runs than are counted. On a machine \
                that is busy with other work it decides less often. Measure on a quiet machine. What is tested is the comparison, not \
                the kernel, whose sources may have changed since.\n\n";
    format!("{text}{}", table(&head, rows))
}

pub(super) fn searches(filed: &[Filed]) -> String {
    let (gpu, cpu): (Vec<&Filed>, Vec<_>) =
        // Steps on the simulated device are no performance.
        of(filed, "searches", Kind::Evolve)
            .filter(|filed| filed.record.evolution.as_ref().is_some_and(|search| !search.on_simulator))
            .partition(|filed| filed.record.provenance.gpu.is_some());
    let rows = gpu.into_iter().filter_map(|filed| {
        let row = search_row(filed.record.evolution.as_ref()?);
        Some(format!("{row} {} | {} | {} | `{}` |", filed.short_commit(), filed.date(), filed.device(), filed.name))
    });
    let head =
        ["kernel", "shape", "tried", "speed-up (95 % interval)", "verdict", "commit", "date", "device", "record"];
    let mut text = format!(
        "# Searches\n\nThe best variant found, against the plan's choice, on fresh inputs.\n\n{}",
        table(&head, rows)
    );
    for filed in cpu {
        if let Some(search) = &filed.record.evolution {
            let _ = write!(text, "{}```text\n{}```\n\n", source(filed), evolve_table::elite(search));
        }
    }
    text
}

/// A row of the table of searches on a GPU: how much of the space was tried, and the best of the elite beside the plan's
/// own choice, on fresh inputs.
fn search_row(search: &Evolution) -> String {
    let validated = search.elite.iter().filter_map(|member| Some((member.validated?, member.outcome?)));
    let best = validated.max_by(|(one, _), (other, _)| one.ratio.total_cmp(&other.ratio));
    let (found, verdict) = best.map_or((NONE.into(), "nothing to validate".into()), |(found, outcome)| {
        (
            format!("{} ({:.3} to {:.3})", ratio(Some(found.ratio)), found.lower, found.upper),
            outcome.to_string().to_lowercase(),
        )
    });
    let Evolution { kernel, shape, problem, trials, points, .. } = search;
    format!("| {kernel} | {} | {} of {points} | {found} | {verdict} |", problem.title(shape), trials.len())
}

/// What a comparison that was repeated with a planted difference had to find, and whether it did.
pub fn is_right(comparison: &Comparison) -> bool {
    match comparison.planted {
        Some(planted) if planted > 0.0 => comparison.outcome == Outcome::Pass,
        Some(_) => comparison.outcome == Outcome::Negative && comparison.summary.starts_with("a regression"),
        None => comparison.outcome == Outcome::Negative && comparison.summary.starts_with("no gain"),
    }
}

/// A row of the table of tries: the device and its load, what was planted, how often it was found, the speed-ups that were
/// measured.
fn tries_row(record: &Record) -> String {
    let comparisons = &record.comparisons;
    let first = &comparisons[0];
    let Provenance { gpu, machine, threads, .. } = &record.provenance;
    let device = gpu.as_ref().map_or(format!("{} on {threads} threads", machine.cpu), |gpu| gpu.name.clone());
    let device = device.replace(" 1 threads", " 1 thread");
    let (planted, found) = match first.planted {
        Some(planted) if planted > 0.0 => ("a speed-up", "pass"),
        Some(_) => ("a slowdown", "a regression"),
        None => ("nothing", "no gain: valid negative"),
    };
    let percent = first.planted.map(|planted| format!(" of {:.0} %", 100.0 * planted.abs())).unwrap_or_default();
    let right = comparisons.iter().filter(|comparison| is_right(comparison)).count();
    let ratios = || comparisons.iter().filter_map(|comparison| comparison.speed_up.map(|found| found.ratio));
    let loads = comparisons.iter().filter_map(|comparison| comparison.conditions.as_ref()?.load_before);
    format!(
        "| {device}, {} on {} | {:.1} | {planted}{percent} | {found} | {right} of {} | {:.3} to {:.3} |",
        first.baseline.name,
        first.shape,
        loads.fold(0.0, f64::max),
        comparisons.len(),
        ratios().fold(f64::INFINITY, f64::min),
        ratios().fold(0.0, f64::max)
    )
}
