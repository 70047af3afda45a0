//! The ledger, held against the committed records.

use crate::support::{Place, stderr};
use eightfold_lab::compare::{Comparison, Side};
use eightfold_lab::gates::Outcome;
use eightfold_lab::kernel::{Kernel, suited};
use eightfold_lab::ledger::{Ledger, OptimisationEntry};
use eightfold_lab::measure::{Cache, timed_output};
use eightfold_lab::provenance::{Gpu, Provenance};
use eightfold_lab::record::{Kind, Record};
use eightfold_lab::store;
use eightfold_lab::verdict::SpeedUp;
use serde_json::Value;
use std::path::{Path, PathBuf};

const CPU_RECORD: &str = "20261115T064004Z-ladder";
const GPU_RECORD: &str = "20261115T090438Z-ladder";

fn committed(name: &str) -> PathBuf {
    let results = Path::new(env!("CARGO_MANIFEST_DIR")).join("../eightfold-lab/fixtures/records");
    let run = |path: &PathBuf| path.file_name().is_some_and(|run| run == name);
    store::folders_of_runs(&results).into_iter().find(run).unwrap()
}

/// A folder with a copy of committed records under `folder`.
fn place_with(folder: &str, names: &[&str]) -> Place {
    let place = Place::new();
    for name in names {
        std::fs::create_dir_all(place.file(folder).join(name)).unwrap();
        let text = store::read_text(&store::record_file(&committed(name))).unwrap();
        std::fs::write(place.file(folder).join(name).join("record.json"), text).unwrap();
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
    let text = place.succeed("ledger --format markdown");
    for line in [
        "cpu: not measured; there is no ladder record of it in runs or results (`eightfold ladder --kernel cpu` makes one)",
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

/// What a comparison of an optimisation on an H200 would have written, with this speed-up.
fn compared(entry: &OptimisationEntry, ratio: f64) -> Comparison {
    let problem = entry.problem().unwrap().with_output_format(timed_output(true));
    let side = |text: &str, us| Side {
        name: text.into(),
        implementation: suited(text, problem.shape().head_dim, problem.mask()).unwrap().to_string(),
        p50_us: Some(us),
    };
    let outcome = if ratio > 1.02 { Outcome::Pass } else { Outcome::Negative };
    Comparison {
        shape: entry.shape.clone(),
        problem: (&problem).into(),
        baseline: side(&entry.without, 100.0 * ratio),
        candidate: side(&entry.with, 100.0),
        timer: None,
        required_gain: 0.02,
        outcome,
        summary: format!("{outcome} of a test"),
        speed_up: Some(SpeedUp { ratio, lower: ratio - 0.005, upper: ratio + 0.005, rounds: 20 }),
        itself: None,
        seed: Some(8),
        planted: None,
        conditions: None,
        cache: Cache::Hot,
        inputs: 3,
    }
}

/// Writes a record of comparisons on this GPU.
fn write_comparisons(place: &Place, run: &str, gpu: &str, comparisons: Vec<Comparison>) {
    let mut record = Record { comparisons, ..Record::new(Kind::Compare, Provenance::capture(1)) };
    record.provenance.gpu = Some(Gpu { name: gpu.into(), ..Gpu::default() });
    std::fs::create_dir_all(place.file("runs").join(run)).unwrap();
    std::fs::write(place.file("runs").join(run).join("record.json"), record.to_json()).unwrap();
}

#[test]
fn optimisations_are_held_against_the_newest_comparison_on_the_same_machine() {
    let entries = Ledger::of(Kernel::HOPPER).optimisations;
    let middle = |entry: &OptimisationEntry| (entry.prediction.least + entry.prediction.most) / 2.0;
    let (right, wrong) = (&entries[0], &entries[1]);
    let place = Place::new();
    write_comparisons(&place, "20260101T000000Z-compare", "NVIDIA H200", vec![compared(right, 9.0)]);
    let newer = vec![compared(right, middle(right)), compared(wrong, wrong.prediction.least - 0.2)];
    write_comparisons(&place, "20260102T000000Z-compare", "NVIDIA H200", newer);
    write_comparisons(&place, "20260103T000000Z-compare", "NVIDIA H100", vec![compared(right, 7.0)]);
    let text = place.succeed("ledger --kernel hopper");
    assert!(text.contains("hopper, optimisations: each without and with it, measured on NVIDIA H200\n"), "{text}");
    let json: Value = serde_json::from_str(&place.succeed("ledger --kernel hopper --json")).unwrap();
    let all = json[0]["optimisations"].as_array().unwrap();
    assert_eq!(all.len(), entries.len());
    assert_eq!(all[0]["measured"]["record"], "runs/20260102T000000Z-compare/record.json");
    assert_eq!((&all[0]["name"], &all[0]["judgement"]), (&Value::from(right.name.as_str()), &Value::from("right")));
    assert_eq!(
        (&all[1]["judgement"], &all[1]["measured"]["verdict"]["outcome"]),
        (&"too_high".into(), &"negative".into())
    );
    assert!(all[2..].iter().all(|one| one["measured"].is_null() && one["judgement"].is_null()));
    let long = place.succeed("ledger --kernel hopper --long --wide");
    for line in [
        &right.prediction.moves,
        &right.prediction.because,
        &wrong.with,
        "verdict: valid negative: VALID NEGATIVE of a test",
    ] {
        assert!(long.contains(line), "{line} is missing from\n{long}");
    }
}

#[test]
fn without_a_gpu_nothing_is_measured_and_nothing_is_written() {
    let place = Place::new();
    for (arguments, expected) in [
        ("ledger --kernel cpu --measure", "measure: the ledger of cpu has stages alone"),
        ("ledger --records there", "--measure"),
        ("ledger --measure some/record", "cannot be used with"),
    ] {
        let output = place.run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments}");
        assert!(stderr(&output).contains(expected), "{arguments}: {}", stderr(&output));
    }
    if eightfold::cuda::driver::Device::default().is_err() {
        let output = place.run("ledger --kernel hopper --measure --records there");
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0));
        assert!(stderr(&output).starts_with("error: CUDA is not available: "), "{}", stderr(&output));
    }
    assert!(place.contents().is_empty());
}

#[test]
fn mistakes() {
    let place = place_with("results", &[CPU_RECORD, "20261115T064134Z-bench"]);
    for (arguments, expected) in [
        ("ledger nowhere", "record: nowhere cannot be read"),
        ("ledger results/20261115T064134Z-bench", "does not measure the stages of a ladder without a mask"),
        (&format!("ledger --kernel ladder results/{CPU_RECORD}"), "kernel: is ladder, but"),
        ("ledger --kernel cpx", "did you mean `cpu`?"),
        ("ledger --format markdown --json", "format: cannot go with --json"),
        ("ledger --format csv", "format: csv is for bench and run"),
        ("ledger --markdown", "did you mean `--format markdown`?"),
    ] {
        let output = place.run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments}");
        assert!(output.stdout.is_empty());
        assert!(stderr(&output).contains(expected), "{arguments}: {}", stderr(&output));
    }
}
