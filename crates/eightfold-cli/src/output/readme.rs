//! The numbers in the README are those of the records under `results/`, and nothing else.

use super::numbers::{NONE, error, ratio, time};
use super::{evolve_table, ladder_table, quantizer_table};
use eightfold::{Problem, Shape, cpu};
use eightfold_lab::compare::Comparison;
use eightfold_lab::evolve::Evolution;
use eightfold_lab::gates::{Gate, Outcome};
use eightfold_lab::profile::{Account, Metric, Profiled};
use eightfold_lab::provenance::Provenance;
use eightfold_lab::record::{Entry, Group, Kind, Record};
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every committed record of this kind from machines with a GPU, or without, with its folder's name.
fn records(kind: Kind, on_gpu: bool) -> Vec<(String, Record)> {
    let all = all_records();
    let found: Vec<_> = all
        .into_iter()
        .filter(|(_, record)| record.kind == kind && record.provenance.gpu.is_some() == on_gpu)
        .collect();
    assert!(!found.is_empty(), "there is no {kind} record");
    found
}

fn all_records() -> Vec<(String, Record)> {
    let filed = eightfold_lab::archive::read(&root().join("results")).unwrap();
    // Those of the simulated device have a page and tests of their own.
    filed.into_iter().filter(|filed| filed.topic != "simulator").map(|filed| (filed.name, filed.record)).collect()
}

fn p50(group: &Group, name: &str) -> Option<f64> {
    group.entries.iter().find(|entry| entry.name == name).and_then(|entry| entry.p50_us())
}

fn over(group: &Group, name: &str, other: &str) -> String {
    ratio(p50(group, other).zip(p50(group, name)).map(|(other, own)| other / own))
}

/// The shape's name and sizes, and the mask.
fn shape(group: &Group) -> String {
    group.problem.title(&group.shape)
}

/// A row of the CPU's table: the peer's time, and time and gain of our two number paths.
fn cpu_row(group: &Group) -> String {
    let ours = |name: &str| format!("{} ({})", time(p50(group, name)), over(group, name, "torch"));
    let torch = time(p50(group, "torch"));
    format!("| {} | {torch} | {} | {} |", shape(group), ours("cpu:avx512"), ours("cpu:int16-avx512"))
}

/// A row of the table of FP8 kernels: ours, how many times faster it is than the fastest other one, and the others.
fn flagship_row(group: &Group) -> String {
    let others = ["triton-fp8", "cudnn-fp8", "torch-cudnn", "torch-flash", "torch-efficient", "torch-math"];
    let name = &group.entries[0].name;
    let best =
        others.into_iter().filter_map(|other| Some((other, p50(group, other)?))).min_by(|a, b| a.1.total_cmp(&b.1));
    let gain = best.map_or(NONE.into(), |(other, _)| over(group, name, other));
    let others = others.map(|name| time(p50(group, name))).join(" | ");
    format!("| {} | **{}** ({gain}) | {others} |", shape(group), time(p50(group, name)))
}

/// The table of what bounds FP8 kernels: its head, the rate that floors are computed with, and for each group the time of
/// ours, its floor, and what a profile of the same kernel says.
fn accounts<'a>(record: &'a Record, groups: &[&'a Group], all: &'a [(String, Record)]) -> Vec<String> {
    let line = |cells: &[String]| format!("| {} |", cells.join(" | "));
    let accounts = groups.iter().filter_map(|group| Account::of(record, group, all.iter().map(|(_, other)| other)));
    let rows: Vec<String> = accounts.map(|account| line(&account.cells())).collect();
    let rates = groups.iter().filter_map(|group| group.bound.as_ref()?.by.split_once(" GFLOP at "));
    let head = rates.take(1).flat_map(|(_, rate)| [rate.into(), line(&Account::HEADINGS.map(String::from))]);
    head.chain(rows).collect()
}

/// A row of the table of accuracies: time, how many times the first one's that is, and the largest error.
fn accuracy_row(group: &Group) -> String {
    let first = group.entries[0].p50_us();
    let cells = group.entries.iter().map(|entry| {
        let times = ratio(entry.p50_us().zip(first).map(|(own, first)| own / first));
        format!("{} ({times}, {})", time(entry.p50_us()), error(entry.worst_relative_l2()))
    });
    format!("| {} | {} |", shape(group), cells.collect::<Vec<_>>().join(" | "))
}

/// Whether an entry is what the plan picked, which goes by the name of its kernel; a stage has a name of its own.
fn is_planned(entry: &Entry) -> bool {
    entry.implementation.split(':').next() == Some(&entry.name)
}

/// A row of the GPU's table: what the plan picks, its gain over FlashAttention-2, and PyTorch's four backends.
fn gpu_row(group: &Group) -> String {
    let [math, efficient, flash, cudnn] =
        ["torch-math", "torch-efficient", "torch-flash", "torch-cudnn"].map(|name| time(p50(group, name)));
    let name = &group.entries[0].name;
    let ours = format!("**{}** ({})", time(p50(group, name)), over(group, name, "torch-flash"));
    format!("| {} | {ours} | {flash} | {cudnn} | {efficient} | {math} |", shape(group))
}

/// The rows of the evolution table of one shape: times by graph replay and by event, gains, resources, the verdict on the
/// stage's gain over the one before.
fn evolution(group: &Group) -> Vec<String> {
    let baseline = &group.entries[0].name;
    let mut before: Option<&str> = None;
    let mut rows = Vec::new();
    for entry in &group.entries {
        let summary = entry.timing.as_ref().map(|timing| timing.summary);
        let verdict = entry.gate(Gate::Performance).map_or(NONE.into(), |gate| gate.outcome.to_string().to_lowercase());
        let gain = before.filter(|_| !entry.peer).map_or(NONE.into(), |before| over(group, &entry.name, before));
        let resources = entry
            .build
            .as_ref()
            .map_or(format!("{NONE} | {NONE}"), |build| format!("{} | {}", build.registers, build.shared_bytes()));
        rows.push(format!(
            "| {} | {} | {} | {} | {} | {gain} | {} | {resources} | {verdict} |",
            entry.name,
            time(entry.p50_us()),
            time(summary.map(|summary| summary.p90_us)),
            time(summary.map(|summary| summary.p99_us)),
            time(entry.launch_timing.as_ref().map(|timing| timing.summary.p50_us)),
            over(group, &entry.name, baseline),
        ));
        before = Some(&entry.name);
    }
    rows
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
fn is_right(comparison: &Comparison) -> bool {
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

/// A row of the table of profiles: what was counted for a stage, and what bounds it.
fn profile_row(entry: &Entry) -> Option<String> {
    let Profiled { profile, bottleneck, .. } = entry.profile.as_ref()?;
    let shown = [
        Metric::TensorPipe,
        Metric::Dram,
        Metric::SmThroughput,
        Metric::WarpsActive,
        Metric::XuPipe,
        Metric::BankConflicts,
        Metric::LocalInstructions,
    ];
    let shown = shown.map(|metric| profile.get(metric).map_or(NONE.into(), |value| metric.unit().words(value)));
    let verdict = entry.gate(Gate::Profile)?.outcome.to_string().to_lowercase();
    let time = time(profile.time_us().ok());
    Some(format!("| {} | {time} | {} | {verdict} | {} |", entry.name, shown.join(" | "), bottleneck.by))
}

fn named<'a>(record: &'a Record, shape: &str) -> &'a Group {
    record.groups.iter().find(|group| group.shape == shape).unwrap()
}

#[test]
fn the_readme_shows_what_the_records_hold() {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let mut expected = Vec::new();
    for (folder, record) in records(Kind::Bench, false) {
        expected.extend(record.groups.iter().map(cpu_row));
        expected.push(folder);
    }
    for (folder, record) in records(Kind::Ladder, false) {
        expected.push(ladder_table::render(named(&record, "mission")));
        expected.push(folder);
    }
    let all = all_records();
    for (folder, record) in records(Kind::Bench, true) {
        let has_fp8_peers = |group: &&Group| group.entries.iter().any(|entry| entry.name == "triton-fp8");
        let has_peers = |group: &&Group| group.entries.iter().any(|entry| entry.peer);
        let (compared, alone): (Vec<_>, Vec<_>) = record.groups.iter().partition(has_peers);
        expected.extend(alone.into_iter().map(accuracy_row));
        let (flagship, others): (Vec<_>, Vec<_>) = compared.into_iter().partition(has_fp8_peers);
        expected.extend(flagship.iter().map(|group| flagship_row(group)));
        expected.extend(accounts(&record, &flagship, &all));
        expected.extend(others.into_iter().map(gpu_row));
        expected.push(folder);
    }
    for (folder, record) in records(Kind::Ladder, true) {
        let causal = record.groups[0].problem.causal;
        if !causal {
            expected.extend(["mission", "long"].iter().flat_map(|name| evolution(named(&record, name))));
        }
        expected.push(folder);
    }
    for (folder, record) in all {
        match (record.kind, &record.evolution) {
            (Kind::Compare, _) if record.comparisons.len() > 1 => expected.extend([tries_row(&record), folder]),
            (Kind::Profile, _) => {
                let stages = record.groups.iter().flat_map(|group| &group.entries).filter(|entry| !is_planned(entry));
                expected.extend(stages.filter_map(profile_row));
                expected.push(folder);
            }
            (Kind::Quantizer, _) => expected.extend([quantizer_table::render(&record.quantizers[0]), folder]),
            (_, Some(search)) if record.provenance.gpu.is_some() => expected.extend([search_row(search), folder]),
            (_, Some(search)) => expected.extend([evolve_table::elite(search), folder]),
            _ => {}
        }
    }
    expected.extend(records(Kind::Run, true).into_iter().map(|(folder, _)| folder));
    let mission = Problem::new(Shape::new(1, 8, 512, 64)).unwrap();
    expected.push(format!("{} KiB", cpu::working_bytes(&cpu::Config::default(), &mission).div_ceil(1024)));
    let is_left_over = |line: &&str| line.ends_with("| not profiled |") && !expected.iter().any(|text| text == line);
    let left_over: Vec<_> = readme.lines().filter(is_left_over).collect();
    let missing: Vec<_> = expected.iter().filter(|text| !readme.contains(*text)).map(String::as_str).collect();
    let right = missing.is_empty() && left_over.is_empty();
    assert!(right, "the README lacks\n{}\nand has without a reason\n{}", missing.join("\n"), left_over.join("\n"));
}

/// The table counts tries that went wrong, whatever the reason; of each kind there is a record where none did.
#[test]
fn every_kind_of_planted_difference_was_told_in_ten_of_ten_tries() {
    let tries: Vec<_> = all_records().into_iter().filter(|(_, record)| record.comparisons.len() > 1).collect();
    let sign = |record: &Record| record.comparisons[0].planted.map(|planted| planted > 0.0);
    for kind in [None, Some(false), Some(true)] {
        let all_right = |record: &Record| record.comparisons.len() >= 10 && record.comparisons.iter().all(is_right);
        assert!(tries.iter().any(|(_, record)| sign(record) == kind && all_right(record)), "{kind:?}");
    }
}

#[test]
fn committed_records_come_from_release_builds_of_a_commit() {
    for (folder, record) in all_records() {
        assert!(record.provenance.release, "{folder}");
        assert!(record.provenance.checkout.as_ref().is_some_and(|checkout| !checkout.dirty), "{folder}");
        // That candidates of a search fail is part of the search.
        assert!(record.kind == Kind::Evolve || !record.failed(), "{folder}: a gate failed");
    }
}
