//! Comparisons: verdicts, exit codes, refusals. What a busy machine measures is not known beforehand, so a live run must be
//! consistent whatever its verdict is; that verdicts are right is tested on recorded samples.

use crate::support::{Place, stderr};
use eightfold_lab::compare::{Comparison, judge};
use eightfold_lab::gates::Outcome;
use eightfold_lab::record::{Kind, Record};
use std::path::Path;

/// The same kernel in both places, short enough for a test.
const SAME: &str = "compare --wide cpu:lanes cpu:lanes --shape 1,1,64,32 --threads 1";

/// Runs, and checks that exit code, last line, document and record say the same.
fn compare(arguments: &str) -> (String, Comparison) {
    let place = Place::new();
    let output = place.run(arguments);
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    let found = |end: &str| {
        let found: Vec<_> = place.contents().into_iter().filter(|path| path.ends_with(end)).collect();
        assert_eq!(found.len(), 1, "{end}: {}", stderr(&output));
        place.file(&found[0])
    };
    let record = Record::read(&found("record.json")).unwrap();
    assert_eq!((record.kind, record.comparisons.len()), (Kind::Compare, 1));
    let comparison = record.comparisons[0].clone();
    let required = arguments.contains("--require");
    let expected = match comparison.outcome {
        Outcome::Pass => 0,
        Outcome::Invalid => 2,
        Outcome::Fail => 1,
        _ => i32::from(required),
    };
    assert_eq!(output.status.code(), Some(expected), "{text}");
    let last = text.lines().last().unwrap();
    let verdict = format!("{} for cpu:lanes: ", comparison.outcome.to_string().to_uppercase());
    assert!(last.contains(" for cpu:lanes: ") && last.contains(&comparison.summary), "{verdict}: {text}");
    let document = std::fs::read_to_string(found("COMPARE.md")).unwrap();
    assert!(document.contains(last), "{document}");
    // What was recorded is what was judged.
    let group = &record.groups[0];
    let samples = |index: usize| group.entries[index].timing.as_ref().map(|timing| &timing.samples);
    if let (Some(baseline), Some(again), Some(candidate)) = (samples(0), samples(1), samples(2)) {
        let judged = judge("cpu:lanes", [baseline, again, candidate], comparison.required_gain);
        assert_eq!((judged.speed_up, judged.itself), (comparison.speed_up, comparison.itself), "{text}");
    }
    (text, comparison)
}

#[test]
fn identical_variants_are_never_called_faster() {
    let (text, found) = compare(&format!("{SAME} --require +50%"));
    assert!(found.outcome != Outcome::Pass, "{text}");
    assert_eq!((found.seed, found.planted), (Some(8), None));
}

#[test]
fn a_planted_slowdown_is_never_called_a_gain_and_is_said_to_be_planted() {
    let (text, found) = compare(&format!("{SAME} --plant -50%"));
    assert_eq!(found.planted, Some(-0.5));
    assert!(found.outcome == Outcome::Invalid || found.speed_up.is_none_or(|found| found.lower < 1.0), "{text}");
    assert!(text.contains("PLANTED: the candidate made 50 % more runs than were counted"), "{text}");
    assert!(text.trim_end().ends_with("(the difference was PLANTED)"), "{text}");
}

#[test]
fn a_planted_gain_is_never_called_a_regression() {
    let (text, found) = compare(&format!("{SAME} --plant +50% --require +10%"));
    assert!(!found.summary.starts_with("a regression"), "{text}");
}

/// Recorded on a quiet device: a gain, no gain, and a regression.
#[test]
fn recorded_samples_are_judged_as_they_were() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../eightfold-lab/fixtures/records/comparisons");
    for (name, begins) in [
        ("20261115T175448Z-compare", "1.161× "),
        ("20261115T202541Z-compare", "no gain: 1.009× "),
        ("20261116T121706Z-compare", "slower: 0.856× "),
    ] {
        let record = Record::read(&folder.join(name).join("record.json.gz")).unwrap();
        let recorded = &record.comparisons[0];
        let entries = &record.groups[0].entries;
        let samples = |index: usize| &entries[index].timing.as_ref().unwrap().samples;
        let judged = judge(&recorded.baseline.name, [samples(0), samples(1), samples(2)], recorded.required_gain);
        assert!(judged.summary.starts_with(begins), "{name}: {}", judged.summary);
        assert_eq!(judged.speed_up, recorded.speed_up, "{name}");
        assert_eq!(judged.outcome == Outcome::Pass, recorded.outcome == Outcome::Pass, "{name}");
    }
}

#[test]
fn wrong_results_have_no_time() {
    let place = Place::new();
    place.write_impossible_gates();
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
        place.succeed(&format!(
            "bench --variant cpu:lanes cpu:baseline --threads 1 --iterations 50 --records {out} {more}"
        ));
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
    let line = refused(&bench("e", "--shape 1,1,32,16 --dtype bf16"), "");
    assert!(line.contains("the problems differ: output format f32 and bf16"), "{line}");
    let line = refused(&b, "--dtype bf16");
    assert!(line.starts_with("error: dtype: does not go with two records"), "{line}");
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
        place.run("compare ./old ./new --variant cpu:lanes --shape 1,1,64,32 --dtype bf16 --threads 1 --rounds 16");
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
    script("wider", "#!/bin/sh\nexec ./new \"$@\" --dtype f16\n");
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
            "bench --variant cpu:lanes --threads 1 --iterations 20 --shape 1,1,32,16 --records {out} {more}"
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
