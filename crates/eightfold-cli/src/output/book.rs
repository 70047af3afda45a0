//! The pages of the book that hold numbers, the generated parts of the README, and its chart: all from records.

use super::numbers::{NONE, error, ratio, time};
use super::{evolve_table, ladder_table, ledger_table, quantizer_table};
use crate::arguments::CommandLine;
use clap::CommandFactory;
use eightfold::{Error, Result};
use eightfold_lab::archive::{self, Filed};
use eightfold_lab::compare::Comparison;
use eightfold_lab::evolve::Evolution;
use eightfold_lab::gates::{Gate, Outcome};
use eightfold_lab::kernel::Kernel;
use eightfold_lab::ledger::{self, Ledger};
use eightfold_lab::profile::{Account, Metric, Profiled};
use eightfold_lab::provenance::Provenance;
use eightfold_lab::record::{Entry, Group, Kind, Record};
use std::fmt::Write;
use std::path::Path;

/// A file that the program writes.
pub struct Page {
    /// Where it is, from the root of the repository.
    pub path: &'static str,
    /// All of it.
    pub text: String,
}

const GENERATED: &str = "<!-- Written by `eightfold book` from the records in results/. Do not edit. -->\n\n";

/// The columns of the tables of FP8 kernels: the peers.
const PEERS: [(&str, &str); 6] = [
    ("triton-fp8", "Triton FP8"),
    ("cudnn-fp8", "cuDNN FP8"),
    ("torch-cudnn", "cuDNN bf16"),
    ("torch-flash", "FlashAttention-2 bf16"),
    ("torch-efficient", "efficient bf16"),
    ("torch-math", "math bf16"),
];

/// Every generated page of the repository at this root.
pub fn pages(root: &Path) -> Result<Vec<Page>> {
    let filed = archive::read(&root.join("results"))?;
    let page = |path, text: String| Page { path, text: format!("{GENERATED}{text}") };
    let readme = std::fs::read_to_string(root.join("README.md")).map_err(|error| {
        Error::invalid("book", format!("README.md cannot be read: {error}"), "run it in the repository")
    })?;
    Ok(vec![
        page("docs/src/performance/hopper.md", hopper(&filed)),
        page("docs/src/performance/ladder.md", ladder(&filed)),
        page("docs/src/performance/cpu.md", cpu(&filed)),
        page("docs/src/performance/quantizer.md", quantizer(&filed)),
        page("docs/src/performance/comparisons.md", comparisons(&filed)),
        page("docs/src/performance/planted.md", planted(&filed)),
        page("docs/src/performance/searches.md", searches(&filed)),
        page("docs/src/performance/correctness.md", correctness(&filed, root)),
        page("docs/src/commands.md", commands()),
        page("docs/src/ledger.md", ledger_page(root)),
        page("results/README.md", index(&filed)),
        Page { path: "docs/src/images/h200.svg", text: chart(&filed) },
        Page { path: "README.md", text: fill(&readme, &filed) },
    ])
}

fn of<'a>(filed: &'a [Filed], topic: &'a str, kind: Kind) -> impl Iterator<Item = &'a Filed> {
    filed.iter().filter(move |filed| filed.topic == topic && filed.record.kind == kind)
}

/// Where numbers come from.
fn source(filed: &Filed) -> String {
    let (topic, name, commit) = (&filed.topic, &filed.name, filed.short_commit());
    format!("Record `results/{topic}/{name}`, commit {commit}, {}, {}.\n\n", filed.date(), filed.device())
}

fn table(head: &[&str], rows: impl IntoIterator<Item = String>) -> String {
    let rule = head.iter().map(|_| "---").collect::<Vec<_>>().join(" | ");
    let rows: Vec<String> = rows.into_iter().collect();
    format!("| {} |\n| {rule} |\n{}\n\n", head.join(" | "), rows.join("\n"))
}

fn peers_of(group: &Group) -> bool {
    group.entries.iter().any(|entry| entry.peer)
}

/// A row with one cell for ours and one for each peer.
fn across(group: &Group, cell: impl Fn(&Entry) -> String) -> String {
    let named = |name: &str| group.entries.iter().find(|entry| entry.name == name).map_or(NONE.into(), &cell);
    let others = PEERS.map(|(name, _)| named(name)).join(" | ");
    format!("| {} | {} | {others} |", shape(group), cell(&group.entries[0]))
}

fn hopper(filed: &[Filed]) -> String {
    let mut text = String::from(
        "# Hopper\n\nAll contestants of a table took turns in one run. Inputs were prepared before the clock started: FP8 for the \
         kernels named FP8 and for ours, bf16 for the others. A dash is a kernel that cannot compute the problem, takes more \
         than 15 ms, or failed the correctness gate.\n\n",
    );
    let all: Vec<&Record> = filed.iter().map(|filed| &filed.record).collect();
    let columns: Vec<&str> = ["shape", "Eightfold `fast`"].into_iter().chain(PEERS.map(|(_, title)| title)).collect();
    for filed in of(filed, "hopper", Kind::Bench) {
        let record = &filed.record;
        let (flagship, alone): (Vec<&Group>, Vec<_>) = record.groups.iter().partition(|group| peers_of(group));
        if let Some(first) = flagship.first() {
            let mask = if first.problem.causal { ", causal" } else { "" };
            let _ = write!(text, "## Time by graph replay{mask}\n\n{}", source(filed));
            let _ = writeln!(
                text,
                "Medians. In brackets: how many times faster than the fastest peer. Formats: {}.",
                first.outputs()
            );
            text.push_str("Our launches may overlap (programmatic dependent launch). The peers' launches do not.\n\n");
            text.push_str(&table(&columns, flagship.iter().map(|group| flagship_row(group))));
            let _ = write!(text, "## Time of a single launch{mask}\n\n{}", source(filed));
            text.push_str("Medians between two events on an idle device. Nothing overlaps. Peers are launched through PyTorch.\n\n");
            let single = |entry: &Entry| time(entry.launch_timing.as_ref().map(|timing| timing.summary.p50_us));
            text.push_str(&table(&columns, flagship.iter().map(|group| across(group, single))));
            let _ = write!(text, "## Error{mask}\n\n{}", source(filed));
            text.push_str("Largest relative L2 error against float64 attention on the same inputs.\n\n");
            let worst = |entry: &Entry| error(entry.worst_relative_l2());
            text.push_str(&table(&columns, flagship.iter().map(|group| across(group, worst))));
            let rows = accounts(record, &flagship, &all);
            if let [rate, _, rows @ ..] = rows.as_slice() {
                let _ = write!(text, "## What bounds each row{mask}\n\n{}", source(filed));
                let _ = write!(text, "The floor is the arithmetic at {rate}.\n\n");
                text.push_str(&table(&Account::HEADINGS, rows.iter().cloned()));
            }
        }
        if !alone.is_empty() {
            let _ = write!(text, "## Accuracy modes\n\n{}", source(filed));
            text.push_str("Time, how many times that of `fast`, and the largest relative L2 error.\n\n");
            text.push_str(&table(&ACCURACIES, alone.into_iter().map(accuracy_row)));
        }
    }
    text
}

const ACCURACIES: [&str; 5] = ["shape", "`fast`", "`balanced`", "`exact-exp`", "`precise`"];

fn ladder(filed: &[Filed]) -> String {
    let mut text = String::from(
        "# Ladder\n\nThe `ladder` kernel runs on Ada and Hopper instructions (`mma.sync`). It has been run on an H200 only. Each \
         stage switches one optimisation on. *Valid negative* means: measured soundly, and gained less than required.\n\n",
    );
    let bench = ["shape", "Eightfold", "FlashAttention-2", "cuDNN", "efficient", "math"];
    for filed in of(filed, "ladder", Kind::Bench) {
        let _ = write!(text, "## What the plan picks, beside PyTorch\n\n{}", source(filed));
        let _ = write!(
            text,
            "In brackets: how many times faster than FlashAttention-2. Formats: {}.\n\n",
            filed.record.groups[0].outputs()
        );
        text.push_str(&table(&bench, filed.record.groups.iter().map(gpu_row)));
    }
    let head = [
        "stage",
        "p50",
        "p90",
        "p99",
        "single launch",
        "× before",
        "× baseline",
        "registers",
        "shared bytes",
        "verdict",
    ];
    for filed in of(filed, "ladder", Kind::Ladder) {
        for group in &filed.record.groups {
            let _ = write!(text, "## Stages at {}\n\n{}", shape(group), source(filed));
            let lse = if group.problem.lse { ", with log-sum-exp" } else { "" };
            let _ = write!(text, "Ours: {}{lse}. PyTorch writes bf16.\n\n", group.outputs());
            text.push_str(&table(&head, evolution(group)));
        }
    }
    let head = [
        "stage",
        "time",
        "tensor cores",
        "device memory",
        "SM",
        "warps",
        "special functions",
        "bank conflicts",
        "local memory",
        "profile gate",
        "bound by",
    ];
    for filed in of(filed, "ladder", Kind::Profile) {
        for group in &filed.record.groups {
            let _ = write!(text, "## What Nsight Compute counts at {}\n\n{}", shape(group), source(filed));
            let stages = group.entries.iter().filter(|entry| !is_planned(entry));
            text.push_str(&table(&head, stages.filter_map(profile_row)));
        }
    }
    text
}

fn cpu(filed: &[Filed]) -> String {
    let mut text = String::from("# CPU\n\n");
    for filed in of(filed, "cpu", Kind::Bench) {
        let _ = write!(text, "## Against PyTorch\n\n{}", source(filed));
        text.push_str("PyTorch computes in f32 on inputs that were dequantised before the clock started. Eightfold starts from FP8. ");
        text.push_str("In brackets: how many times faster than PyTorch.\n\n");
        text.push_str(&table(
            &["shape", "PyTorch f32", "Eightfold f32", "Eightfold i16"],
            filed.record.groups.iter().map(cpu_row),
        ));
    }
    for filed in of(filed, "cpu", Kind::Ladder) {
        let _ = write!(text, "## Stages\n\n{}", source(filed));
        for group in &filed.record.groups {
            let _ = write!(text, "```text\n{}```\n\n", ladder_table::render(group));
        }
    }
    text
}

fn quantizer(filed: &[Filed]) -> String {
    let mut text = String::from("# Quantiser\n\nThe device's quantiser beside a copy of as many bytes.\n\n");
    for filed in of(filed, "quantizer", Kind::Quantizer) {
        text.push_str(&source(filed));
        for group in &filed.record.quantizers {
            let _ = write!(text, "```text\n{}```\n\n", quantizer_table::render(group));
        }
    }
    text
}

fn comparisons(filed: &[Filed]) -> String {
    let rows = of(filed, "comparisons", Kind::Compare).flat_map(|filed| {
        filed.record.comparisons.iter().map(move |one| {
            let found = one.speed_up.as_ref();
            let gain = found.map_or(NONE.into(), |found| {
                format!("{} ({:.3} to {:.3})", ratio(Some(found.ratio)), found.lower, found.upper)
            });
            let [a, b] = [&one.baseline, &one.candidate].map(|side| format!("`{}`", side.name));
            let verdict = one.outcome.to_string().to_lowercase();
            let (commit, device) = (filed.short_commit(), filed.device());
            let title = one.problem.title(&one.shape);
            format!(
                "| {title} | {a} | {b} | {gain} | {verdict} | {commit} | {} | {device} | `{}` |",
                filed.date(),
                filed.name
            )
        })
    });
    let head = ["shape", "A", "B", "A's time / B's (95 % interval)", "verdict", "commit", "date", "device", "record"];
    format!("# Comparisons\n\nTwo variants or two builds that took turns in one run.\n\n{}", table(&head, rows))
}

fn planted(filed: &[Filed]) -> String {
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
                that is busy with other work it decides less often. Measure on a quiet machine.\n\n";
    format!("{text}{}", table(&head, rows))
}

fn searches(filed: &[Filed]) -> String {
    let (gpu, cpu): (Vec<&Filed>, Vec<_>) =
        of(filed, "searches", Kind::Evolve).partition(|filed| filed.record.provenance.gpu.is_some());
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

fn correctness(filed: &[Filed], root: &Path) -> String {
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
        "# Correctness\n\nRuns of the correctness gate. The largest error is over all variants and kinds of inputs.\n\n{}",
        table(&head, rows)
    );
    for filed in of(filed, "correctness", Kind::Build) {
        let _ = write!(text, "## Compiled, not run\n\n{}", source(filed));
        let rows = filed.record.builds.iter().map(|group| format!("| {} | {} |", group.kind(), group.entries.len()));
        text.push_str(&table(&["architecture and problem", "kernels compiled"], rows));
    }
    let folders = std::fs::read_dir(root.join("results/correctness")).into_iter().flatten().flatten();
    let mut tables: Vec<_> =
        folders.map(|folder| folder.path().join("table.txt")).filter(|path| path.is_file()).collect();
    tables.sort();
    for path in tables {
        let name = path.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy().into_owned();
        let said = std::fs::read_to_string(&path).unwrap_or_default();
        let lines: Vec<&str> = said.lines().map(str::trim_end).collect();
        let _ = write!(
            text,
            "## compute-sanitizer\n\nFrom `results/correctness/{name}`, NVIDIA H200.\n\n```text\n{}\n```\n\n",
            lines.join("\n")
        );
    }
    text
}

fn commands() -> String {
    let mut command = CommandLine::command();
    command.build();
    let mut text = format!("# Command reference\n\n```text\n{}```\n", command.clone().render_long_help());
    for subcommand in command.get_subcommands_mut().filter(|one| !one.is_hide_set() && one.get_name() != "help") {
        let help = subcommand.render_long_help();
        let _ = write!(text, "\n## {}\n\n```text\n{help}```\n", subcommand.get_name());
    }
    text.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// The numbers of the plan that this project began with, and of the reports on it: they count differently.
const STAGES: [(&str, &str, &str, &str); 10] = [
    ("K and V double-buffered with cp.async", "1", "1", "async-copy"),
    ("SIMD P·V", "2", "–", "simd-pv"),
    ("tensor-core P·V", "3", "2", "mma-pv"),
    ("scores' shared memory reused", "–", "3A", "reuse-scores"),
    ("softmax fused, scores in registers", "–", "3B", "fused-softmax"),
    ("three-stage cp.async", "–", "4", "three-stage"),
    ("warp specialisation", "4", "5", "warp-specialised"),
    ("persistent blocks", "–", "5", "persistent"),
    ("fast exponential", "–", "4, option C", "fast-exp"),
    ("XOR swizzle", "5", "–", "swizzle"),
];

fn ledger_page(root: &Path) -> String {
    let rows = STAGES.map(|(what, plan, report, name)| format!("| {what} | {plan} | {report} | `{name}` |"));
    let mut text = String::from(
        "# Ledger\n\nWhat each stage and each optimisation was expected to bring, and what it brought.\n\n",
    );
    text.push_str("The original plan and the reports on it number stages in two ways. Here stages have names:\n\n");
    text.push_str(&table(&["stage", "number in the plan", "number in the reports", "name"], rows));
    let results = root.join("results");
    let short = |path: &Path| path.strip_prefix(root).unwrap_or(path).to_path_buf();
    for &kernel in Kernel::ALL {
        let found = ledger::newest(&[&results], kernel).record.map(|(path, record)| (short(&path), record));
        let mut records = ledger::comparisons(ledger::runs(&[&results], Kind::Compare)).records;
        let ledger = Ledger::of(kernel);
        records.retain(|(_, record)| ledger.applies_to(kernel, &record.provenance));
        records.iter_mut().for_each(|(path, _)| *path = short(path));
        let evolution = ledger::Evolution::new(kernel, found.as_ref().map(|(path, record)| (path.as_path(), record)));
        text.push_str(&ledger_table::markdown(&evolution.with_comparisons(&records), true));
        text.push('\n');
    }
    text
}

fn index(filed: &[Filed]) -> String {
    let rows = filed.iter().map(|filed| {
        let (topic, name, commit, ran) = (&filed.topic, &filed.name, filed.short_commit(), filed.ran());
        format!("| {topic} | `{name}` | {commit} | {ran} | {} | {} |", filed.device(), filed.date())
    });
    let text = "# Records\n\nOne folder per topic. *Ran* is a hash of what ran: a search's sources, or the machine code of GPU \
                kernels. `eightfold records` says what is stale. `simulator/` has [an index of its own](simulator/README.md).\n\n";
    format!("{text}{}", table(&["topic", "record", "commit", "ran", "device", "date"], rows))
}

/// The shapes of the chart, as records call them.
const CHARTED: [&str; 6] = ["mission", "long", "4,16,4096,64", "2,16,2048,128", "4,16,4096,128", "2,16,16384,128"];

/// The groups of the chart and their record.
fn flagship(filed: &[Filed]) -> Option<(&Filed, Vec<&Group>)> {
    let plain = |group: &&Group| peers_of(group) && !group.problem.causal;
    let one = of(filed, "hopper", Kind::Bench)
        .filter(|filed| filed.record.groups.iter().any(|group| plain(&group)))
        .last()?;
    let groups =
        CHARTED.iter().filter_map(|name| one.record.groups.iter().filter(plain).find(|group| group.shape == *name));
    Some((one, groups.collect()))
}

/// TFLOP/s of ours and of the three fastest peers, as bars.
fn chart(filed: &[Filed]) -> String {
    let Some((from, groups)) = flagship(filed) else { return String::new() };
    let shown = [
        ("", "Eightfold FP8, fast", "#1f6feb"),
        ("triton-fp8", "Triton FP8", "#8c959f"),
        ("cudnn-fp8", "cuDNN FP8", "#bf8700"),
        ("torch-cudnn", "cuDNN bf16", "#c9d1d9"),
    ];
    let rate = |group: &Group, name: &str| {
        let name = if name.is_empty() { &group.entries[0].name } else { name };
        p50(group, name).map(|us| (group.problem.gflop / us * 1e3, us))
    };
    let most = groups
        .iter()
        .flat_map(|group| shown.map(|(name, ..)| rate(group, name).map_or(0.0, |(rate, _)| rate)))
        .fold(1.0, f64::max);
    let height = 96 + groups.len() * 92;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 880 {height}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"880\" height=\"{height}\" fill=\"#ffffff\"/>\n\
         <text x=\"16\" y=\"26\" font-size=\"16\" font-weight=\"bold\" fill=\"#1f2328\">Attention forward on {}: TFLOP/s, higher is better</text>\n",
        from.device()
    );
    for (index, (_, title, colour)) in shown.iter().enumerate() {
        let x = 16 + index * 170;
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"40\" width=\"12\" height=\"12\" fill=\"{colour}\"/><text x=\"{}\" y=\"51\" fill=\"#1f2328\">{title}</text>",
            x + 18
        );
    }
    for (row, group) in groups.iter().enumerate() {
        let top = 70 + row * 92;
        let _ = writeln!(
            svg,
            "<text x=\"190\" y=\"{}\" text-anchor=\"end\" fill=\"#1f2328\">{}</text>",
            top + 42,
            shape(group)
        );
        for (index, (name, _, colour)) in shown.iter().enumerate() {
            let y = top + index * 19;
            let (width, label) = match rate(group, name) {
                Some((rate, us)) => (540.0 * rate / most, format!("{rate:.0} ({})", time(Some(us)))),
                None => (0.0, NONE.into()),
            };
            let _ = writeln!(
                svg,
                "<rect x=\"200\" y=\"{y}\" width=\"{width:.1}\" height=\"16\" fill=\"{colour}\"/><text x=\"{:.1}\" y=\"{}\" fill=\"#1f2328\">{label}</text>",
                206.0 + width,
                y + 13
            );
        }
    }
    let _ = writeln!(
        svg,
        "<text x=\"16\" y=\"{}\" font-size=\"11\" fill=\"#57606a\">Medians by graph replay, no mask; {}. Record {}, commit {}, {}.</text>\n</svg>",
        height - 10,
        groups[0].outputs(),
        from.name,
        from.short_commit(),
        from.date()
    );
    svg
}

/// The README with its generated parts, which stand between two comments, written anew.
fn fill(readme: &str, filed: &[Filed]) -> String {
    let mut text = readme.to_string();
    let mut put = |name: &str, new: String| {
        let (start, end) = (format!("<!-- generated: {name} -->\n"), "<!-- end -->");
        let Some(from) = text.find(&start).map(|at| at + start.len()) else { return };
        let Some(length) = text[from..].find(end) else { return };
        text.replace_range(from..from + length, &new);
    };
    if let Some((from, groups)) = flagship(filed) {
        let others = |group: &Group| PEERS.iter().filter_map(|(name, _)| p50(group, name)).reduce(f64::min);
        let gains: Vec<f64> =
            groups.iter().filter_map(|group| Some(others(group)? / group.entries[0].p50_us()?)).collect();
        let [least, most] = [gains.iter().copied().reduce(f64::min), gains.iter().copied().reduce(f64::max)].map(ratio);
        put(
            "headline",
            format!(
                "On an {} the default mode is {least} to {most} as fast as the fastest of six peer kernels\non these shapes (commit {}, {}; launches of ours may overlap).\n",
                from.device(),
                from.short_commit(),
                from.date()
            ),
        );
    }
    if let Some(one) = of(filed, "cpu", Kind::Ladder).last()
        && let Some(group) = one.record.groups.iter().find(|group| group.shape == "mission")
    {
        put("ladder", format!("{}```text\n{}```\n", source(one), ladder_table::render(group)));
    }
    let modes = of(filed, "hopper", Kind::Bench).filter_map(|one| {
        let group = one.record.groups.iter().find(|group| !peers_of(group) && group.entries.len() == 4)?;
        Some((one, group))
    });
    if let Some((one, group)) = modes.last() {
        let first = group.entries[0].p50_us();
        let how = [
            "exponentials linear between powers of two",
            "five of eight exponentials exact",
            "all exponentials exact, weights in FP8",
            "each weight the sum of two FP8 numbers",
        ];
        let rows = group.entries.iter().zip(how).zip(&ACCURACIES[1..]).map(|((entry, how), mode)| {
            let times = ratio(entry.p50_us().zip(first).map(|(own, first)| own / first));
            format!("| {mode} | {how} | {} | {times} |", error(entry.worst_relative_l2()))
        });
        put(
            "accuracy",
            format!(
                "{}{}",
                table(&["mode", "how", "relative L2 error", "time"], rows),
                source(one).replace("Record", &format!("At {}: record", shape(group)))
            ),
        );
    }
    text
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
fn accounts<'a>(record: &'a Record, groups: &[&'a Group], all: &'a [&'a Record]) -> Vec<String> {
    let line = |cells: &[String]| format!("| {} |", cells.join(" | "));
    let accounts = groups.iter().filter_map(|group| Account::of(record, group, all.iter().copied()));
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
pub(super) fn is_right(comparison: &Comparison) -> bool {
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
