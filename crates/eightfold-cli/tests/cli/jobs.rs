//! The jobs that gate, time and record, on problems small enough for a test.

use crate::support::{Place, Tensor, numbers, sound_tensors, stderr};
use eightfold_lab::gates::Outcome;
use eightfold_lab::record::{Kind, Record};
use safetensors::Dtype;

/// The only record in the place.
fn record(place: &Place) -> Record {
    let found: Vec<_> = place.contents().into_iter().filter(|path| path.ends_with("record.json")).collect();
    assert_eq!(found.len(), 1, "{found:?}");
    Record::read(&place.file(&found[0])).unwrap()
}

#[test]
fn the_ladder_gates_and_times_every_stage() {
    let place = Place::new();
    let text = place.succeed("--kernel cpu --shape 1,2,40,16 2,2,1,24,24,8 --threads 1");
    let record = record(&place);
    assert_eq!((record.kind, record.groups.len(), record.provenance.threads), (Kind::Ladder, 2, 1));
    for group in &record.groups {
        let names: Vec<_> = group.entries.iter().map(|entry| entry.name.as_str()).collect();
        let stages: Vec<_> = eightfold::lab::cpu::STAGES.iter().map(|stage| stage.name).collect();
        assert_eq!(names, stages);
        for entry in &group.entries {
            let passed = entry.correctness().unwrap().outcome == Outcome::Pass;
            assert_eq!(passed, entry.timing.is_some(), "{}: {:?}", entry.name, entry.note);
            assert!(text.contains(&entry.name));
        }
    }
    let folder = place.contents().into_iter().find(|path| path.ends_with("-ladder")).unwrap();
    assert!(text.ends_with(&format!("record: {folder}/record.json\nreport: {folder}/report.html\n")), "{text}");
}

#[test]
fn what_is_timed_is_written_as_asked_and_as_usual_where_it_runs() {
    for (arguments, written) in [
        ("bench --variant cpu:lanes --iterations 5", "f32"),
        ("bench --variant cpu:lanes --iterations 5 --dtype bf16", "bf16"),
        ("--kernel cpu --dtype f16", "f16"),
        ("compare cpu:lanes cpu:lanes --rounds 10 --dtype bf16", "bf16"),
        ("run --variant cpu:lanes --dtype bf16", "bf16"),
    ] {
        let place = Place::new();
        let output = place.run(&format!("{arguments} --shape 1,1,16,8 --threads 1"));
        let text = String::from_utf8(output.stdout.clone()).unwrap();
        let record = record(&place);
        assert!(!record.failed(), "{arguments}: {text}");
        assert_eq!(record.groups[0].problem.output_format, written, "{arguments}");
        assert_eq!(text.contains(&format!("GFLOP, outputs in {written}")), written != "f32", "{arguments}: {text}");
        assert!(record.groups[0].entries.iter().all(|entry| entry.output_format.is_none()));
    }
}

#[test]
fn json_is_the_record_and_nothing_else() {
    for arguments in [
        "ladder --kernel cpu --shape 1,1,16,8 --json",
        "run --shape 1,1,16,8 --families gaussian,constant --seeds 1,2 --json",
        "bench --shape 1,1,16,8 --iterations 5 --variant cpu:baseline cpu:lanes --json",
    ] {
        let place = Place::new();
        let text = place.succeed(arguments);
        assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), record(&place), "{arguments}");
    }
}

#[test]
fn run_checks_the_families_and_seeds_that_were_named() {
    let place = Place::new();
    place.succeed("run --shape 1,1,16,8 --families gaussian huge --seeds 3,4 --variant cpu:baseline cpu:lanes");
    let record = record(&place);
    assert_eq!(record.kind, Kind::Run);
    let entries = &record.groups[0].entries;
    assert_eq!(entries.len(), 2);
    for entry in entries {
        let origins: Vec<_> = entry.cases.iter().map(|case| case.origin.as_str()).collect();
        assert_eq!(origins, ["gaussian seed 3", "gaussian seed 4", "huge seed 3", "huge seed 4"]);
        assert!(entry.timing.is_none());
    }
}

#[test]
fn run_asks_for_the_log_sum_exp_unless_told_not_to() {
    for (flag, expected) in [("", true), ("--no-lse", false)] {
        let place = Place::new();
        place.succeed(&format!("run --shape 1,1,16,8 --families gaussian --variant cpu:baseline {flag}"));
        let group = &record(&place).groups[0];
        let seen = group.entries[0].cases[0].lse_max_abs.is_some();
        assert_eq!((group.problem.lse, seen), (expected, expected));
    }
}

#[test]
fn run_gates_the_users_own_tensors() {
    let place = Place::new();
    place.write("wide.safetensors", &sound_tensors(&[1, 24, 2, 16]));
    place.succeed("run --inputs wide.safetensors --layout bshd --causal --scale 0.5 --records a");
    let codes: Vec<u8> = numbers(256, 1).iter().map(|value| (value.abs() * 60.0) as u8).collect();
    let mut tensors = Vec::new();
    for (name, scale) in [("q", "q_scale"), ("k", "k_scale"), ("v", "v_scale")] {
        tensors.push(Tensor::codes(name, Dtype::F8_E5M2, &[1, 2, 8, 16], &codes));
        tensors.push(Tensor::f32(scale, &[1, 2, 3], &[0.5, 1.0, 2.0, 0.5, 1.0, 2.0]));
    }
    place.write("codes.safetensors", &tensors);
    place.succeed("run --inputs codes.safetensors --variant cpu:baseline --records b");
    let read = |folder: &str| {
        let path = place.contents().into_iter().find(|path| path.starts_with(folder) && path.ends_with("record.json"));
        Record::read(&place.file(&path.unwrap())).unwrap().groups.remove(0)
    };
    let wide = read("a");
    assert_eq!((wide.shape.as_str(), wide.problem.query_len, wide.problem.query_heads), ("wide.safetensors", 24, 2));
    assert_eq!((wide.problem.causal, wide.problem.softmax_scale), (true, 0.5));
    assert!(wide.entries[0].cases[0].quantizer.relative_l2 > 0.0);
    let codes = read("b");
    assert_eq!(codes.problem.input_format, "e5m2");
    assert_eq!(codes.entries[0].cases[0].quantizer.relative_l2, 0.0);
}

#[test]
fn bench_counts_the_runs_that_were_asked_for() {
    let place = Place::new();
    place.succeed("bench --shape 1,1,16,8 --iterations 7 --variant cpu:baseline cpu:lanes");
    let record = record(&place);
    assert_eq!(record.kind, Kind::Bench);
    for entry in &record.groups[0].entries {
        let timing = entry.timing.as_ref().unwrap();
        assert_eq!((timing.summary.iterations, timing.samples.ns.len()), (7, 7));
        assert_eq!(Some(timing.summary), timing.samples.summary());
    }
}

#[test]
fn more_threads_than_cores_are_what_was_asked_for() {
    let place = Place::new();
    place.succeed("bench --variant cpu:queue --shape 1,8,64,16 1,2,1,1,2000,16 --iterations 3 --threads 40");
    let record = record(&place);
    assert_eq!(record.provenance.threads, 40);
    // Two queries on each key: how long reading takes stands beside.
    let [many, few] = &record.groups[..] else { panic!("two shapes") };
    assert!(many.reading.is_none() && few.reading.as_ref().unwrap().bytes == 2 * 2000 * 16);
}

#[test]
fn pages_stand_beside_reading_them() {
    let place = Place::new();
    let text =
        place.succeed("bench --variant cpu:queue --shape 1,2,1,1,200,16 --pages 16 64 --iterations 3 --threads 2");
    let group = record(&place).groups.remove(0);
    assert_eq!(group.entries.iter().map(|entry| entry.pages).collect::<Vec<_>>(), [None, Some(16), Some(64)]);
    let found = group.page_readings.iter().map(|one| (one.page_size, one.reading.bytes));
    assert_eq!(found.collect::<Vec<_>>(), [16, 64].map(|size| (size, 2 * 200 * 16)));
    for line in [" of K and V alone: ", " of pages of 16: ", " of pages of 64: ", "  of reading: for a row from pages"]
    {
        assert!(text.contains(line), "{text}");
    }
}

#[test]
fn a_peer_that_is_not_there_is_named_and_the_rest_goes_on() {
    let place = Place::new();
    let arguments = "bench --shape 1,1,16,8 --iterations 3 --peer torch --python /no/such/python";
    let text = place.succeed(arguments);
    assert!(text.contains("torch: PyTorch is not available: `/no/such/python` cannot be started"), "{text}");
    let entries = &record(&place).groups[0].entries;
    assert!(entries[0].timing.is_some());
    assert!(entries[1].peer && entries[1].timing.is_none());
}

#[test]
fn a_failed_gate_exits_with_1_and_its_timing_is_inadmissible() {
    for job in ["--kernel cpu", "run --variant cpu:baseline", "bench --variant cpu:baseline --iterations 3"] {
        let place = Place::new();
        place.write_impossible_gates();
        let output = place.run(&format!("{job} --shape 1,1,16,8 --gates gates.toml"));
        assert_eq!(output.status.code(), Some(1), "{job}: {}", stderr(&output));
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("FAIL") || text.contains("cpu:baseline: "), "{text}");
        let record = record(&place);
        assert!(record.failed());
        let baseline = &record.groups[0].entries[0];
        assert_eq!(baseline.correctness().unwrap().outcome, Outcome::Fail);
        assert!(baseline.timing.is_none());
    }
}

#[test]
fn provenance_names_machine_and_build_and_no_machine_paths() {
    let place = Place::new();
    let folder = place.file("elsewhere");
    place.succeed(&format!("run --shape 1,1,16,8 --families gaussian --records {}", folder.display()));
    let record = record(&place);
    let provenance = &record.provenance;
    assert_eq!(provenance.eightfold, env!("CARGO_PKG_VERSION"));
    assert!(provenance.rustc.as_ref().unwrap().starts_with("rustc "));
    assert_eq!(provenance.command[0], "eightfold");
    assert_eq!(provenance.command.last().unwrap(), "elsewhere");
    assert!(!record.to_json().contains(place.path().to_str().unwrap()));
}

#[test]
fn no_bar_and_no_colour_in_a_pipe() {
    let place = Place::new();
    let output = place.run("--shape 1,1,16,8");
    assert!(output.stderr.is_empty(), "{}", stderr(&output));
    assert!(!output.stdout.contains(&0x1b));
}
