//! Comparisons: verdicts, exit codes, refusals. Bounds on times are coarse, and a disturbed run is given another try.
//! On a machine too busy for any verdict the timed tests say so and pass; a wrong verdict always fails.

use crate::support::{Place, stderr};
use eightfold_lab::compare::Comparison;
use eightfold_lab::gates::{Outcome, Thresholds};
use eightfold_lab::record::{Kind, Record};

/// The same kernel in both places, short enough for a test.
const SAME: &str = "compare cpu:lanes cpu:lanes --shape 1,1,64,32 --threads 1";

/// Runs until the machine lets it come to what is expected, a few times at most; what the last try printed, or none if
/// each try found the machine too busy to say anything.
fn compare(
    arguments: &str,
    expected: impl Fn(&Comparison) -> bool,
) -> Option<(Place, Option<i32>, String, Comparison)> {
    let mut tries = 0;
    loop {
        let place = Place::new();
        let output = place.run(arguments);
        let text = String::from_utf8(output.stdout.clone()).unwrap();
        let found: Vec<_> = place.contents().into_iter().filter(|path| path.ends_with("record.json")).collect();
        assert_eq!(found.len(), 1, "{}", stderr(&output));
        let record = Record::read(&place.file(&found[0])).unwrap();
        assert_eq!((record.kind, record.comparisons.len()), (Kind::Compare, 1));
        let comparison = record.comparisons[0].clone();
        tries += 1;
        if expected(&comparison) {
            return Some((place, output.status.code(), text, comparison));
        }
        let undecided = matches!(comparison.outcome, Outcome::Invalid | Outcome::Inconclusive);
        assert!(undecided, "{text}");
        if tries == 4 {
            eprintln!("skipped: this machine is too busy to compare anything: {text}");
            return None;
        }
    }
}

#[test]
fn identical_variants_are_a_valid_negative() {
    let negative = |found: &Comparison| found.outcome == Outcome::Negative;
    let Some((place, code, text, found)) = compare(&format!("{SAME} --require +10%"), negative) else { return };
    assert_eq!(code, Some(1));
    let last = text.lines().last().unwrap();
    assert!(last.starts_with("VALID NEGATIVE for cpu:lanes: ") && last.ends_with("required 1.10×"), "{text}");
    let itself = found.itself.unwrap();
    assert!((itself.ratio - 1.0).abs() <= 0.02 && itself.rounds >= 16, "{itself:?}");
    assert_eq!((found.seed, found.planted), (Some(8), None));
    let document = place.contents().into_iter().find(|path| path.ends_with("COMPARE.md")).unwrap();
    let document = std::fs::read_to_string(place.file(&document)).unwrap();
    assert!(document.contains(last), "{document}");
}

#[test]
fn a_planted_slowdown_is_a_regression_and_without_a_requirement_that_is_no_failure() {
    let regression = |found: &Comparison| found.summary.starts_with("a regression");
    let Some((_, code, text, found)) = compare(&format!("{SAME} --plant -30%"), regression) else { return };
    assert_eq!((code, found.outcome, found.planted), (Some(0), Outcome::Negative, Some(-0.3)));
    assert!(found.speed_up.unwrap().ratio < 0.95, "{text}");
    assert!(text.contains("PLANTED: the candidate made 30 % more runs than were counted"), "{text}");
    assert!(text.trim_end().ends_with("(the difference was PLANTED)"), "{text}");
}

#[test]
fn a_planted_gain_passes() {
    let passes = |found: &Comparison| found.outcome == Outcome::Pass;
    let Some((_, code, text, _)) = compare(&format!("{SAME} --plant +50% --require +10%"), passes) else { return };
    assert_eq!(code, Some(0), "{text}");
}

#[test]
fn wrong_results_have_no_time() {
    let place = Place::new();
    let gates = Thresholds::embedded_text().replace("relative_l2 = 2e-6", "relative_l2 = 1e-12");
    std::fs::write(place.file("gates.toml"), gates).unwrap();
    let output = place.run(&format!("{SAME} --gates gates.toml"));
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    let last = text.lines().last().unwrap();
    assert!(last.starts_with("FAIL for cpu:lanes: cpu:lanes failed the correctness gate"), "{text}");
}

#[test]
fn records_are_compared_where_they_timed_the_same_and_refused_where_not() {
    let place = Place::new();
    let bench = |out: &str, more: &str| {
        place
            .succeed(&format!("bench --variant cpu:lanes cpu:baseline --threads 1 --iterations 50 --out {out} {more}"));
        place.contents().into_iter().find(|path| path.starts_with(out) && path.ends_with("-bench")).unwrap()
    };
    let [a, b] = ["a", "b"].map(|out| bench(out, "--shape 1,1,32,16"));
    let text = place.succeed(&format!("compare {a} {b}/record.json"));
    assert!(text.contains(" for cpu:lanes of ") && text.contains(" for cpu:baseline of "), "{text}");
    assert!(text.contains("separate runs: "), "{text}");
    let refused = |other: &str, arguments: &str| {
        let before = place.contents();
        let output = place.run(&format!("compare {a} {other} {arguments}"));
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(output.stdout.is_empty());
        assert_eq!(place.contents(), before);
        stderr(&output)
    };
    let line = refused(&bench("c", "--shape 1,1,40,16"), "");
    assert!(line.contains("the problems differ: shape 1,1,1,32,32,16 and 1,1,1,40,40,16"), "{line}");
    let line = refused(&bench("d", "--shape 1,1,32,16 --causal"), "");
    assert!(line.contains("the problems differ: mask none and causal"), "{line}");
    let line = refused(&bench("e", "--shape 1,1,32,16 --output bf16"), "");
    assert!(line.contains("the problems differ: output format f32 and bf16"), "{line}");
    let line = refused(&b, "--output bf16");
    assert!(line.starts_with("error: output: does not go with two records"), "{line}");
    let line = refused(&b, "--causal");
    assert!(line.starts_with("error: causal: does not go with two records"), "{line}");
    let line = refused("cpu:lanes", "");
    assert!(line.contains("are a record and a variant"), "{line}");
    let line = refused("missing/record.json", "");
    assert!(line.contains("cannot be read"), "{line}");
}

#[test]
fn json_is_the_record() {
    let place = Place::new();
    let text = String::from_utf8(place.run(&format!("{SAME} --plant +100% --rounds 10 --json")).stdout).unwrap();
    let found = place.contents().into_iter().find(|path| path.ends_with("record.json")).unwrap();
    assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), Record::read(&place.file(&found)).unwrap());
}

/// The binary under test as two programs.
#[cfg(unix)]
fn two_binaries(place: &Place) {
    let binary = assert_cmd::cargo::cargo_bin("eightfold");
    for name in ["old", "new"] {
        std::os::unix::fs::symlink(&binary, place.file(name)).unwrap();
    }
}

#[cfg(unix)]
#[test]
fn two_binaries_take_turns_in_processes_of_their_own() {
    let place = Place::new();
    two_binaries(&place);
    let output =
        place.run("compare ./old ./new --variant cpu:lanes --shape 1,1,64,32 --output bf16 --threads 1 --rounds 16");
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    let found = place.contents().into_iter().find(|path| path.ends_with("record.json")).unwrap();
    let record = Record::read(&place.file(&found)).unwrap();
    let comparison = &record.comparisons[0];
    // The same program twice: whatever the machine's noise, it has not gained.
    assert!(comparison.outcome != Outcome::Fail && comparison.outcome != Outcome::Pass, "{text}");
    assert_eq!(comparison.speed_up.unwrap().rounds, 16);
    assert_eq!((comparison.baseline.name.as_str(), comparison.inputs), ("./old", 3));
    assert!(comparison.candidate.implementation.contains(" of eightfold 0."), "{comparison:?}");
    assert_eq!((&*comparison.problem.output_format, &*record.groups[0].problem.output_format), ("bf16", "bf16"));
    let names: Vec<_> = record.groups[0].entries.iter().map(|entry| entry.name.as_str()).collect();
    assert_eq!(names, ["./old", "./old again", "./new"]);
}

#[cfg(unix)]
#[test]
fn binaries_that_cannot_be_compared_are_refused_with_the_reason() {
    let place = Place::new();
    two_binaries(&place);
    let script = |name: &str, text: &str| {
        use std::os::unix::fs::PermissionsExt;
        std::fs::write(place.file(name), text).unwrap();
        std::fs::set_permissions(place.file(name), std::fs::Permissions::from_mode(0o755)).unwrap();
    };
    script("stranger", "#!/bin/sh\necho hello\n");
    script("older", "#!/bin/sh\necho \"error: unrecognized subcommand 'contestant'\" >&2\nexit 2\n");
    script("wider", "#!/bin/sh\nexec ./new \"$@\" --output f16\n");
    script("elsewhere", "#!/bin/sh\nexec ./new \"$@\" --threads 2\n");
    let small = "--variant cpu:lanes --shape 1,1,64,32 --threads 1";
    let refused = |arguments: &str| {
        let output = place.run(&format!("compare {arguments}"));
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(place.contents().iter().all(|path| !path.contains("-compare")));
        stderr(&output)
    };
    assert!(refused(&format!("./old ./stranger {small}")).contains("`hello`, which is not a JSON object"));
    assert!(refused(&format!("./old ./older {small}")).contains("unrecognized subcommand 'contestant'"));
    let line = refused(&format!("./old ./wider {small}"));
    assert!(line.contains("the problems differ: output format f32 and f16 (./old and ./wider)"), "{line}");
    assert!(refused("./old ./new --variant cpu:lane").contains("`lane`"));
    assert!(refused("./old cpu:lanes").contains("are a binary and a variant"));
    assert!(refused("./old ./new --plant -5%").contains("plant: does not go with two binaries"));
    assert!(refused("cpu:lanes cpu:lanes --variant cpu:lanes").contains("variant: does not go with two variants"));
}

#[test]
fn many_tries_are_kept_as_verdicts_alone() {
    let place = Place::new();
    place.run(&format!("{SAME} --tries 3 --rounds 10 --plant -30%"));
    let found = place.contents().into_iter().find(|path| path.ends_with("record.json")).unwrap();
    let record = Record::read(&place.file(&found)).unwrap();
    let seeds: Vec<_> = record.comparisons.iter().map(|comparison| comparison.seed).collect();
    assert_eq!((seeds, record.groups.len()), (vec![Some(8), Some(9), Some(10)], 0));
}

#[test]
fn cold_caches_are_named_in_the_record_and_not_compared_with_hot_ones() {
    let place = Place::new();
    let bench = |out: &str, more: &str| {
        let text = place.succeed(&format!(
            "bench --variant cpu:lanes --threads 1 --iterations 20 --shape 1,1,32,16 --out {out} {more}"
        ));
        (text, place.contents().into_iter().find(|path| path.starts_with(out) && path.ends_with("-bench")).unwrap())
    };
    let ((hot_text, hot), (cold_text, cold)) = (bench("hot", ""), bench("cold", "--cache cold"));
    assert!(cold_text.contains("caches were emptied before every run") && !hot_text.contains("emptied"), "{cold_text}");
    assert!(hot_text.contains("of bound") && hot_text.contains("bound: "), "{hot_text}");
    let output = place.run(&format!("compare {hot} {cold}"));
    assert!(
        stderr(&output).contains("the caches differ: hot in one record and cold in the other"),
        "{}",
        stderr(&output)
    );
}
