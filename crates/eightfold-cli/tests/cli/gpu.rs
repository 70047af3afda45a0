//! The GPU's kernels: compiled on any machine, run where there is a device, and told apart from what is missing.

use crate::support::{Place, stderr};
use eightfold::lab::ladder;
use eightfold_lab::gates::{Gate, Outcome};
use eightfold_lab::record::{Kind, Record};

fn record(place: &Place) -> Record {
    let found: Vec<_> = place.contents().into_iter().filter(|path| path.ends_with("record.json")).collect();
    assert_eq!(found.len(), 1, "{found:?}");
    Record::read(&place.file(&found[0])).unwrap()
}

/// Whether the doctor finds this on the machine.
fn found(place: &Place, what: &str) -> bool {
    let findings: serde_json::Value =
        serde_json::from_str(&place.succeed("doctor --python /no/such/python --json")).unwrap();
    findings.as_array().unwrap().iter().any(|finding| finding["what"] == what && finding["found"] == true)
}

/// Whether kernels can be compiled here. Where they must be, a missing compiler fails the test.
fn has_compiler(place: &Place) -> bool {
    let found = found(place, "NVRTC");
    assert!(found || std::env::var_os("EIGHTFOLD_REQUIRE_NVRTC").is_none(), "NVRTC is required and was not found");
    found
}

#[test]
fn without_a_compiler_nothing_can_be_checked_and_the_fix_is_told() {
    let place = Place::new();
    if has_compiler(&place) {
        return;
    }
    let output = place.run("build --kernel ladder --arch sm_89");
    let line = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{line}");
    assert!(line.starts_with("error: NVRTC is not available: ") && line.lines().count() == 1, "{line}");
    assert!(place.contents().is_empty(), "{:?}", place.contents());
}

#[test]
fn every_stage_compiles_for_every_architecture() {
    let place = Place::new();
    if !has_compiler(&place) {
        return;
    }
    let output = place.run("build --kernel ladder --arch sm_89,sm_90 --no-toggle");
    // Whether each is within its limits is for the gate to say, not for this test: 1 is a failed gate.
    assert!(matches!(output.status.code(), Some(0 | 1)), "{}", stderr(&output));
    let record = record(&place);
    assert_eq!((record.kind, record.builds.len(), record.toggles.len()), (Kind::Build, 8, 0));
    assert!(record.provenance.nvrtc.is_some());
    for group in &record.builds {
        let names: Vec<_> = group.entries.iter().map(|entry| entry.name.as_str()).collect();
        let stages: Vec<_> = ladder::STAGES.iter().map(|stage| stage.name).collect();
        assert_eq!(names, stages);
        for entry in &group.entries {
            let compiled = entry.build.is_some() && entry.gate.gate == Gate::Resource;
            let restricted = entry.gate.outcome == Outcome::Unavailable;
            assert!(compiled || restricted, "{} on {}: {}", entry.name, group.arch, entry.gate.summary);
        }
    }
}

#[test]
fn every_stage_of_the_hopper_kernel_passes_the_resource_gate() {
    let place = Place::new();
    if !has_compiler(&place) {
        return;
    }
    place.succeed("build --kernel hopper --arch sm_90a --no-toggle");
    let record = record(&place);
    assert_eq!(record.kind, Kind::Build);
    let kinds: Vec<_> = record.builds.iter().map(|group| (group.head_dim, group.causal, group.tail)).collect();
    let of_head_dim = |head_dim| [(head_dim, false, false), (head_dim, false, true), (head_dim, true, false)];
    assert_eq!(kinds, [of_head_dim(64), of_head_dim(128)].concat());
    for entry in record.builds.iter().flat_map(|group| &group.entries) {
        assert_eq!(entry.gate.outcome, Outcome::Pass, "{}: {}", entry.name, entry.gate.summary);
    }
}

#[test]
fn a_kernel_is_compiled_for_its_own_architectures() {
    let place = Place::new();
    for (arguments, expected) in [
        ("build --kernel hopper --arch sm_89", "error: arch: the hopper kernel is made of instructions of sm_90a"),
        ("build --variant ladder:unpack --arch sm_90a", "error: arch: sm_90a is for the hopper kernel"),
        ("build --variant cpu --arch sm_90a", "error: arch: cpu is not compiled for a GPU"),
    ] {
        let output = place.run(arguments);
        let line = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{arguments}: {line}");
        assert!(line.starts_with(expected) && line.lines().count() == 1, "{arguments}: {line}");
    }
    assert!(place.contents().is_empty(), "{:?}", place.contents());
}

#[test]
fn accuracy_is_for_what_the_plan_picks() {
    let place = Place::new();
    let text = place.succeed("explain --verbose --wide --shape 4,16,4096,128 --variant hopper:precise");
    assert!(text.contains("weights=split") && text.contains("2 warpgroups"), "{text}");
    if !found(&place, "GPU") {
        // The CPU kernel has no choice.
        place.succeed("bench --accuracy fast precise --shape 1,1,16,8 --iterations 3");
        assert_eq!(record(&place).groups[0].entries.len(), 1);
    }
    for (arguments, expected) in [
        ("explain --accuracy exact", "error: accuracy: `exact` is unknown"),
        ("explain --variant hopper:fast --accuracy precise", "error: accuracy: a variant was named"),
        ("bench --kernel cpu --accuracy precise", "error: the argument '--kernel <KERNEL>' cannot be used with"),
        ("bench --accuracy precise exactly", "error: accuracy: `exactly` is unknown"),
    ] {
        let output = place.run(arguments);
        let line = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{arguments}: {line}");
        assert!(line.starts_with(expected), "{arguments}: {line}");
    }
}

#[test]
fn every_knob_of_a_variant_reaches_the_machine_code() {
    let place = Place::new();
    if !has_compiler(&place) {
        return;
    }
    let output = place.run("build --variant ladder:fused-softmax --arch sm_90");
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(text.contains("sm_90, head dim 64: toggle PASS"), "{text}{}", stderr(&output));
    let toggle = &record(&place).toggles[0];
    assert_eq!(toggle.knobs.len(), ladder::KNOBS.len());
}

#[test]
fn without_a_device_the_kernels_are_not_run_and_the_reason_is_told() {
    let place = Place::new();
    if found(&place, "GPU") {
        return;
    }
    for arguments in [
        "ladder --kernel ladder --shape small",
        "ladder --kernel gpu --shape small",
        "run --variant cuda --shape small",
        "explain --variant gpu",
        "--kernel hopper --shape small",
        "run --kernel ladder --shape small",
        "bench --kernel hopper",
        "bench quantizer",
        "run --variant ladder:baseline --shape small",
        "run --variant hopper:fast --shape small",
    ] {
        let output = place.run(arguments);
        let line = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{arguments}: {line}");
        assert!(line.contains(" is not available: ") && line.lines().count() == 1, "{arguments}: {line}");
    }
    assert!(place.contents().is_empty(), "{:?}", place.contents());
}

#[test]
fn the_quantiser_is_timed_beside_copies_and_by_itself() {
    let place = Place::new();
    for option in ["--causal", "--kernel ladder", "--peer torch"] {
        let output = place.run(&format!("bench {option} quantizer"));
        assert_eq!(output.status.code(), Some(2), "{option}");
        assert!(stderr(&output).contains("cannot be used with"), "{option}: {}", stderr(&output));
    }
    if !found(&place, "GPU") {
        return;
    }
    let text = place.succeed("bench quantizer --shape 1,2,300,64 --iterations 3");
    let record = record(&place);
    assert_eq!((record.kind, record.groups.len(), record.quantizers.len()), (Kind::Quantizer, 0, 1));
    let group = &record.quantizers[0];
    for entry in group.entries.iter().filter(|entry| !entry.copy) {
        assert_eq!(entry.gate.as_ref().unwrap().outcome, Outcome::Pass, "{text}");
        assert!(entry.timing.is_some() && group.copy_for(entry).unwrap().timing.is_some(), "{text}");
    }
}

#[test]
fn the_sweep_gates_every_odd_problem_in_one_row_for_each_head_dim() {
    let place = Place::new();
    let text = place.succeed("run --odd --variant cpu:queue");
    let record = record(&place);
    let head_dims: Vec<_> = record.groups.iter().map(|group| group.problem.head_dim).collect();
    assert_eq!(head_dims, [64, 128]);
    let cases: usize = record.groups.iter().map(|group| group.entries[0].cases.len()).sum();
    assert_eq!(cases, eightfold_lab::gates::odd::sweep().unwrap().len());
    assert!(record.groups.iter().all(|group| group.sweep && group.entries.len() == 1));
    assert_eq!(text.matches("PASS").count(), 2, "{text}");
}

#[test]
fn a_kernel_stands_for_all_its_stages() {
    let place = Place::new();
    place.succeed("bench --kernel cpu --shape 1,1,16,8 --iterations 3");
    let record = record(&place);
    let names: Vec<_> = record.groups[0].entries.iter().map(|entry| entry.name.as_str()).collect();
    let stages: Vec<_> = eightfold::lab::cpu::STAGES.iter().map(|stage| stage.name).collect();
    assert_eq!(names, stages);
}

#[test]
fn doctor_looks_for_everything_that_a_gpu_needs() {
    let text = Place::new().succeed("doctor --verbose --python /no/such/python");
    for what in ["GPU: ", "NVRTC: ", "nvcc: ", "ncu: ", "compute-sanitizer: "] {
        assert!(text.lines().any(|line| line[2..].starts_with(what)), "{what} is missing from\n{text}");
    }
}
