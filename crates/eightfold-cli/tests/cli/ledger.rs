//! The ledger, held against the committed records.

use crate::support::{Place, stderr};
use serde_json::Value;
use std::path::{Path, PathBuf};

const CPU_RECORD: &str = "20261115T064004Z-ladder";
const GPU_RECORD: &str = "20261115T090438Z-ladder";

fn committed(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../results").join(name)
}

/// A folder with a copy of committed records under `folder`.
fn place_with(folder: &str, names: &[&str]) -> Place {
    let place = Place::new();
    for name in names {
        std::fs::create_dir_all(place.file(folder).join(name)).unwrap();
        std::fs::copy(committed(name).join("record.json"), place.file(folder).join(name).join("record.json")).unwrap();
    }
    place
}

#[test]
fn the_evolution_of_the_gpu_ladder() {
    let place = place_with("results", &[GPU_RECORD]);
    insta::assert_snapshot!(place.succeed(&format!("ledger results/{GPU_RECORD}")));
}

#[test]
fn the_evolution_of_the_cpu_ladder() {
    let place = place_with("results", &[CPU_RECORD]);
    insta::assert_snapshot!(place.succeed(&format!("ledger --long results/{CPU_RECORD}/record.json")));
}

#[test]
fn without_a_record_the_newest_without_a_mask_is_taken() {
    // The causal record is newer, and predictions are for no mask.
    let place = place_with("results", &[CPU_RECORD, GPU_RECORD, "20261115T090533Z-ladder"]);
    let text = place.succeed("ledger");
    assert!(
        text.contains(&format!("cpu: measured on AMD EPYC, 2 threads (results/{CPU_RECORD}/record.json)")),
        "{text}"
    );
    assert!(text.contains(&format!("ladder: measured on NVIDIA H200 (results/{GPU_RECORD}/record.json)")), "{text}");
    let json: Value = serde_json::from_str(&place.succeed("ledger --kernel ladder --json")).unwrap();
    let ladders = json.as_array().unwrap();
    assert_eq!((ladders.len(), &ladders[0]["kernel"]), (1, &Value::from("ladder")));
    let stage = &ladders[0]["stages"][3];
    assert_eq!((stage["stage"].as_str(), stage["judgement"].as_str()), (Some("mma-pv"), Some("too_low")));
    assert_eq!(stage["verdict"]["outcome"], "pass");
}

#[test]
fn without_any_record_the_predictions_are_shown_and_what_would_test_them() {
    let place = Place::new();
    let text = place.succeed("ledger --markdown");
    for line in [
        "cpu: not measured; there is no ladder record of it in runs or results (`eightfold --kernel cpu` makes one)",
        "| async-copy | mission | 1.10 to 1.15× (plan) | – | – | – | – | – |",
        "no prediction is tested",
    ] {
        assert!(text.contains(line), "{line} is missing from\n{text}");
    }
    assert!(place.contents().is_empty());
}

#[test]
fn a_record_that_cannot_be_read_is_passed_over_with_a_note() {
    let place = place_with("runs", &[CPU_RECORD]);
    std::fs::create_dir(place.file("runs/20990101T000000Z-ladder")).unwrap();
    std::fs::write(place.file("runs/20990101T000000Z-ladder/record.json"), "{}").unwrap();
    let output = place.run("ledger --kernel cpu");
    assert_eq!(output.status.code(), Some(0));
    assert!(
        stderr(&output).contains("note: passed over: record: runs/20990101T000000Z-ladder/record.json has schema none")
    );
    assert!(String::from_utf8(output.stdout).unwrap().contains(CPU_RECORD));
}

#[test]
fn mistakes() {
    let place = place_with("results", &[CPU_RECORD, "20261115T064134Z-bench"]);
    for (arguments, expected) in [
        ("ledger nowhere", "record: nowhere cannot be read"),
        ("ledger results/20261115T064134Z-bench", "does not measure the stages of a ladder without a mask"),
        (&format!("ledger --kernel ladder results/{CPU_RECORD}"), "kernel: is ladder, but"),
        ("ledger --kernel cpx", "did you mean `cpu`?"),
        ("ledger --markdown --json", "markdown: cannot go with --json"),
    ] {
        let output = place.run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments}");
        assert!(output.stdout.is_empty());
        assert!(stderr(&output).contains(expected), "{arguments}: {}", stderr(&output));
    }
}
