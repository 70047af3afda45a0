//! `records`: what comes in, what is refused, and what a stale claim does to the exit code.

use crate::support::{Place, stderr};
use eightfold_lab::record::{Kind, Record};
use std::path::Path;

/// A record that is kept for tests, as a run that was just made.
fn bring(place: &Place, fixture: &str, into: &str) {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../eightfold-lab/fixtures/records");
    let name = fixture.split('/').next_back().unwrap();
    std::fs::create_dir_all(place.file(into).join(name)).unwrap();
    let file = "record.json.gz";
    std::fs::copy(fixtures.join(fixture).join(file), place.file(into).join(name).join(file)).unwrap();
}

#[test]
fn what_tests_said_becomes_a_record_and_a_log_that_was_cut_off_does_not() {
    let place = Place::new();
    let log =
        "running 2 tests\ntest hopper::one ... ok\ntest two ... HOW\n\ntest result: x. P passed; F failed; 0 ignored\n";
    let write = |how: &str, passed: &str, failed: &str| {
        let text = log.replace("HOW", how).replace('P', passed).replace("F failed", &format!("{failed} failed"));
        std::fs::write(place.file("tests.txt"), text).unwrap();
        place.run("records runs --import tests.txt")
    };
    let output = write("ok", "2", "0");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let found: Vec<_> = place.contents().into_iter().filter(|path| path.ends_with("record.json")).collect();
    let record = Record::read(&place.file(&found[0])).unwrap();
    assert_eq!((record.kind, record.verification.as_ref().unwrap().checks.len()), (Kind::Tests, 2));
    assert!(record.sources.contains_key("hopper") && !record.failed());
    assert_eq!(write("FAILED", "1", "1").status.code(), Some(1));
    let output = write("ok", "3", "0");
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).starts_with("error: import: names 2 tests, and its summary counts 3"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn what_the_python_package_measured_becomes_a_record() {
    let place = Place::new();
    let written = include_str!("../../../eightfold-lab/fixtures/python.json");
    std::fs::write(place.file("python.json"), written).unwrap();
    let output = place.run("records runs --import python.json");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let found: Vec<_> = place.contents().into_iter().filter(|path| path.ends_with("record.json")).collect();
    let record = Record::read(&place.file(&found[0])).unwrap();
    assert_eq!((record.kind, record.python.as_ref().unwrap().shapes.len()), (Kind::Python, 2));
    std::fs::write(place.file("python.json"), written.replace("\"findings\": 0", "\"findings\": 1")).unwrap();
    assert_eq!(place.run("records runs --import python.json").status.code(), Some(1));
    std::fs::write(place.file("python.json"), "{\"run\": 1}").unwrap();
    let output = place.run("records runs --import python.json");
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("is no file of the Python package"), "{}", stderr(&output));
}

#[test]
fn stale_claims_of_correctness_fail_and_other_stale_records_do_not() {
    let place = Place::new();
    let said = |folder: &str| {
        let output = place.run(&format!("records {folder} --check"));
        (output.status.code(), stderr(&output))
    };
    // A made-up fingerprint is no longer that of the sources.
    for (topic, fixture) in
        [("cpu", "cpu/20261115T064004Z-ladder"), ("correctness", "correctness/20261116T070218Z-run")]
    {
        bring(&place, fixture, &format!("stale-{topic}/{topic}"));
        let name = fixture.split('/').next_back().unwrap();
        let path = place.file(&format!("stale-{topic}/{topic}/{name}/record.json.gz"));
        let mut record = Record::read(&path).unwrap();
        record.sources = [("cpu".to_string(), "0".to_string()), ("hopper".to_string(), "0".to_string())].into();
        std::fs::write(path.with_file_name("record.json"), record.to_json()).unwrap();
        std::fs::remove_file(path).unwrap();
    }
    assert_eq!(said("stale-cpu").0, Some(0));
    let (code, line) = said("stale-correctness");
    assert_eq!(code, Some(1));
    assert!(line.contains("correctness/20261116T070218Z-run") && line.contains("stale: hopper changed"), "{line}");

    // A claim that is withdrawn by name is not made; one that needs no withdrawal has none.
    let withdraw = |folder: &str, kernels: &[&str]| {
        let table = |kernel: &&str| format!("[{kernel}]\nsince = \"2026-11-19\"\nreason = \"New masks.\"\n");
        let text: String = kernels.iter().map(table).collect();
        std::fs::write(place.file(&format!("{folder}/withdrawn.toml")), text).unwrap();
        said(folder)
    };
    let (code, line) = withdraw("stale-correctness", &["hopper"]);
    assert_eq!(code, Some(0), "{line}");
    assert!(line.contains("hopper: its claims of correctness are withdrawn since 2026-11-19: New masks."), "{line}");
    for (folder, kernels) in [("stale-correctness", &["hopper", "ladder"][..]), ("stale-cpu", &["hopper"])] {
        let (code, line) = withdraw(folder, kernels);
        assert_eq!(code, Some(1));
        assert!(line.contains("is stale; remove its table"), "{line}");
    }
    assert_eq!(withdraw("stale-correctness", &["ladder"]).0, Some(1));
}
