//! What `gates.toml` says was measured is what the committed records hold.

use eightfold::quantize::Quantizer;
use eightfold::{Fp8Format, Mask, Problem, Variant};
use eightfold_lab::archive;
use eightfold_lab::gates::thresholds::ErrorLimits;
use eightfold_lab::gates::{
    Case, CaseReport, PlannedVariant, Thoroughness, Thresholds, check, room_over_inputs, standard_cases,
};
use eightfold_lab::inputs::Family;
use eightfold_lab::record::{Entry, Group, Record};
use eightfold_lab::shapes;
use std::collections::BTreeMap;
use std::path::Path;

/// The largest errors by row of the gate file, such as `fast.families.gaussian`: relative L2 norm, worst row, element.
type Largest = BTreeMap<String, [f64; 3]>;

/// The paths that a CPU computes in, each by a variant that any CPU runs.
const ON_CPU: [(&str, &str); 4] = [
    ("f32", "cpu:queue"),
    ("i16", "cpu:queue,numbers=i16"),
    ("bf16-weights", "cpu:amx,simd=amx-twin"),
    ("bf16x2-weights", "cpu:amx,simd=amx-twin,numbers=bf16x2"),
];

/// How far the file's number may lie above the records': it has three digits.
const DIGITS: f64 = 1.011;

fn records() -> Vec<Record> {
    let results = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../results");
    archive::read(&results).unwrap().into_iter().map(|filed| filed.record).collect()
}

fn family(case: &CaseReport) -> Option<Family> {
    case.origin.split(' ').next()?.parse().ok()
}

/// Cases of Gaussian and other families in f32, and of peers in what they write: rounding to a narrower format is not the kernel's.
fn cases(records: &[Record]) -> impl Iterator<Item = (&Group, &Entry, &CaseReport)> {
    let groups = records.iter().flat_map(|record| &record.groups).filter(|group| !group.sweep);
    let entries = groups.flat_map(|group| group.entries.iter().map(move |entry| (group, entry)));
    let in_f32 = entries.filter(|(group, entry)| entry.peer || group.problem.output_format == "f32");
    let cases = in_f32.flat_map(|(group, entry)| entry.cases.iter().map(move |case| (group, entry, case)));
    cases.filter(|(_, _, case)| !case.judged_by.is_empty())
}

fn largest_errors(records: &[Record]) -> Largest {
    let mut largest = Largest::new();
    for (group, _, case) in cases(records) {
        let room = room_over_inputs(family(case), group.problem.shape());
        let found =
            [case.kernel.relative_l2 / room, case.kernel.worst_row.unwrap_or(0.0), case.kernel.max_abs / case.unit];
        let so_far = largest.entry(case.judged_by.clone()).or_default();
        *so_far = std::array::from_fn(|index| so_far[index].max(found[index]));
    }
    largest
}

/// By path, over families whose scores are not large.
fn largest_lse_errors(records: &[Record]) -> BTreeMap<String, f64> {
    let mut largest = BTreeMap::new();
    for (_, _, case) in cases(records) {
        let large_scores = matches!(family(case), Some(Family::KeyChannelOutliers | Family::Huge));
        if let (Some(error), false) = (case.lse_max_abs, large_scores) {
            let path = case.judged_by.split('.').next().unwrap_or_default().to_string();
            let so_far: &mut f64 = largest.entry(path).or_default();
            *so_far = so_far.max(error);
        }
    }
    largest
}

fn holds(stated: f64, found: f64) -> bool {
    (found * (1.0 - 1e-9)..=found * DIGITS).contains(&stated)
}

fn stated(limits: &ErrorLimits) -> Option<[f64; 3]> {
    let measured = limits.measured?;
    Some([measured.relative_l2, measured.worst_row?, measured.max_abs])
}

/// The CPU's paths are measured anew by whoever changes them, and records of them are of times.
fn on_gpu(path: &str) -> bool {
    !ON_CPU.iter().any(|(of_cpu, _)| *of_cpu == path)
}

/// What these state is the simulator's, until a device has run them.
fn is_simulated(path: &str) -> bool {
    path.starts_with("int8-")
}

/// With three digits, rounded up, as the file writes numbers.
fn written(number: f64) -> String {
    let digit = 10f64.powi(number.log10().floor() as i32 - 2);
    let up: f64 = format!("{:.2e}", number + 0.499 * digit).parse().unwrap();
    if up < 1e-3 { format!("{up:e}") } else { format!("{up}") }
}

/// The gate file with what records hold beside the limits. A limit comes down where it would be above three times that.
fn rewritten(text: &str, largest: &Largest, lse: &BTreeMap<String, f64>) -> String {
    const NAMES: [&str; 3] = ["relative_l2", "worst_row", "max_abs"];
    let mut section = String::new();
    let mut row = |line: &str| -> String {
        if let Some(rest) = line.strip_prefix('[') {
            let tolerance = rest.trim_end_matches(']').strip_prefix("correctness.tolerance.");
            section = tolerance.unwrap_or_default().to_string();
        }
        let path = section.split('.').next().unwrap_or_default();
        if !on_gpu(path) {
            return line.into();
        }
        if let (true, Some(error)) = (line.starts_with("lse_measured = "), lse.get(&section)) {
            return format!("lse_measured = {}", written(*error));
        }
        let Some((family, limits)) = line.split_once(" = { ") else { return line.into() };
        let Some(found) = largest.get(&format!("{section}.{family}")) else { return line.into() };
        let limit = |index: usize| {
            let after = limits.split_once(&format!("{} = ", NAMES[index])).unwrap().1;
            let limit = after.split([',', ' ']).next().unwrap();
            let most = 3.0 * written(found[index]).parse::<f64>().unwrap();
            if limit.parse::<f64>().unwrap() > most * (1.0 + 1e-9) { written(0.98 * most) } else { limit.into() }
        };
        let pairs =
            |number: &dyn Fn(usize) -> String| [0, 1, 2].map(|i| format!("{} = {}", NAMES[i], number(i))).join(", ");
        let measured = pairs(&|index| written(found[index]));
        format!("{family} = {{ {}, measured = {{ {measured} }} }}", pairs(&limit))
    };
    text.lines().map(|line| row(line) + "\n").collect()
}

#[test]
fn a_gate_file_is_rewritten_with_what_was_measured() {
    let text = "[correctness.tolerance.f32.families]\nsink = { relative_l2 = 1, worst_row = 1, max_abs = 1 }\n\
                [correctness.tolerance.fast]\nlse_nats = 0.08\nlse_measured = 0.07\n\
                [correctness.tolerance.fast.families]\n\
                sink = { relative_l2 = 0.034, worst_row = 0.05, max_abs = 0.16, measured = { relative_l2 = 0.01, worst_row = 0.02, max_abs = 0.08 } }\n";
    let errors = [0.017_101, 0.0099, 8e-5];
    let largest = [("f32.families.sink".into(), errors), ("fast.families.sink".into(), errors)].into();
    let new = rewritten(text, &largest, &[("fast".into(), 0.0886)].into());
    let expected = text
        .replace("lse_measured = 0.07", "lse_measured = 0.0886")
        .replace("0.05, max_abs = 0.16", "0.0292, max_abs = 2.36e-4")
        .replace(
            "{ relative_l2 = 0.01, worst_row = 0.02, max_abs = 0.08 }",
            "{ relative_l2 = 0.0172, worst_row = 0.0099, max_abs = 8e-5 }",
        );
    assert_eq!(new, expected);
}

#[test]
fn measured_values_are_those_of_the_records() {
    let records = records();
    let (largest, lse) = (largest_errors(&records), largest_lse_errors(&records));
    if std::env::var_os("EIGHTFOLD_WRITE_MEASURED").is_some() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("gates.toml");
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, rewritten(&text, &largest, &lse)).unwrap();
        println!("{} is written: look at what changed, and test it again", file.display());
        return;
    }
    let mut wrong = Vec::new();
    for (path, tolerance) in
        Thresholds::embedded().correctness.tolerance.all().into_iter().filter(|(path, _)| on_gpu(path))
    {
        for (row, limits) in tolerance.rows().filter(|(row, _)| row != "user") {
            let found = largest.get(&format!("{path}.{row}")).copied();
            if found.is_none() && is_simulated(path) {
                continue;
            }
            let agrees = found
                .zip(stated(limits))
                .is_some_and(|(found, stated)| stated.iter().zip(found).all(|(stated, found)| holds(*stated, found)));
            if !agrees {
                let found = found.map(|errors| errors.map(|error| format!("{error:.3e}")));
                wrong.push(format!("{path}.{row}: records hold {found:?}"));
            }
        }
        let found = lse.get(path).copied().filter(|error| *error > 0.0);
        if found.is_none() && is_simulated(path) {
            continue;
        }
        let agrees = match (tolerance.lse_measured, found) {
            (Some(stated), Some(found)) => holds(stated, found),
            (None, None) => true,
            _ => false,
        };
        if !agrees {
            wrong.push(format!("{path}.lse_measured: records hold {found:?}"));
        }
    }
    assert!(
        wrong.is_empty(),
        "write these into gates.toml (EIGHTFOLD_WRITE_MEASURED=1 does), and look whether the limits still fit:\n{}",
        wrong.join("\n")
    );
}

/// The file's numbers for the CPU's paths are of larger problems as well: no small one may show more.
#[test]
fn small_problems_show_no_more_than_was_measured_of_the_paths_on_a_cpu() {
    let thresholds = Thresholds::embedded();
    let small = shapes::parse("small").unwrap().shape;
    let cases: Vec<Case> = [Mask::None, Mask::Causal]
        .into_iter()
        .flat_map(|mask| standard_cases(&Problem::new(small).unwrap().with_mask(mask), Thoroughness::Full))
        .map(|case| case.prepare(&Quantizer::new(Fp8Format::E4m3), &thresholds.correctness.reference).unwrap())
        .collect();
    for (path, variant) in ON_CPU {
        let variant: Variant = variant.parse().unwrap();
        let tolerance = thresholds.tolerance(&variant);
        let report = check(&mut PlannedVariant(variant), &cases, tolerance, &thresholds);
        assert_eq!(report.cases.len(), cases.len(), "{path}: {}", report.gate.summary);
        for case in &report.cases {
            let row = tolerance.of(family(case), small.key_len);
            let found = [
                case.kernel.relative_l2 / room_over_inputs(family(case), small),
                case.kernel.worst_row.unwrap_or(f64::MAX),
                case.kernel.max_abs / case.unit,
            ];
            for (found, stated) in found.into_iter().zip(stated(row).unwrap()) {
                // Of gaussian, the mean over inputs is stated: of one alone it varies by some percent.
                assert!(found <= 1.1 * stated, "{path}, {}: {found:.2e} where {stated:.2e} was measured", case.origin);
            }
        }
    }
}
