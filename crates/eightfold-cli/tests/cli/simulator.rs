//! `--on simulator`: kernels for GPUs on this machine's CPU.

use crate::support::Place;
use eightfold_lab::record::Record;
use eightfold_lab::simulate::CxxCompiler;

/// Without a C++ compiler there is no simulator, which CI must not pass over.
pub fn has_compiler() -> bool {
    let found = CxxCompiler::find();
    if std::env::var_os("EIGHTFOLD_REQUIRE_SIMULATOR").is_some() {
        found.as_ref().unwrap();
    }
    found.is_ok()
}

#[test]
fn a_kernel_for_gpus_is_gated_without_one() {
    if !has_compiler() {
        return;
    }
    let place = Place::new();
    let said = place.succeed(
        "run --on simulator --variant hopper:fast --shape 1,2,100,64 --families gaussian --seeds 0,7-8 --records records",
    );
    assert!(said.contains("on simulated Hopper") && said.contains("correctness PASS"), "{said}");
    let record = std::fs::read_dir(place.file("records")).unwrap().next().unwrap().unwrap().path().join("record.json");
    let record: Record = serde_json::from_str(&std::fs::read_to_string(record).unwrap()).unwrap();
    let gpu = record.provenance.gpu.unwrap();
    assert_eq!((gpu.name.as_str(), gpu.multiprocessors), ("simulated Hopper", 4));
    assert_eq!(record.groups[0].entries[0].cases.len(), 1);
}

#[test]
fn tiles_are_dumped_without_a_gpu() {
    if !has_compiler() {
        return;
    }
    let place = Place::new();
    for stage in ["baseline", "fused-softmax", "persistent"] {
        place.succeed(&format!(
            "dump --on simulator --variant ladder:{stage} --shape 1,2,100,64 --seeds 3 --to {stage}.safetensors"
        ));
        assert!(place.file(&format!("{stage}.safetensors")).is_file());
    }
}

#[test]
fn without_a_compiler_the_simulator_says_what_to_install() {
    let place = Place::new();
    let mut command = place.command("run --on simulator --variant hopper:fast --shape 1,2,100,64");
    let output = command.env("EIGHTFOLD_CXX", "/nowhere/c++").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(
        said.contains("it needs a C++ compiler") && said.contains("/nowhere/c++") && said.contains("install g++"),
        "{said}"
    );
    let doctor = place.command("doctor").env("EIGHTFOLD_CXX", "/nowhere/c++").output().unwrap();
    let said = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(said.contains("- simulator: it needs a C++ compiler"), "{said}");
}

#[test]
fn seeds_and_limits_that_are_none_are_refused() {
    let place = Place::new();
    for (arguments, said) in [
        ("--seeds 5-1", "is no range"),
        ("--seeds x", "is no seed"),
        ("--limit 0", "limit: 0 is no time"),
        ("--on moon", "invalid value 'moon'"),
    ] {
        let on = if arguments.starts_with("--on") { "" } else { "--on simulator" };
        let output = place.run(&format!("run {on} --variant hopper:fast --shape 1,2,100,64 {arguments}"));
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && error.contains(said), "{arguments}: {error}");
    }
}

#[test]
fn where_there_is_no_gpu_the_plan_names_the_simulator() {
    let place = Place::new();
    let said = place.succeed("explain --variant hopper:fast --shape 1,2,100,64 --causal");
    let hint = "eightfold run --on simulator --variant hopper:fast --shape 1,2,100,64 --causal";
    assert_eq!(said.contains(hint), eightfold::cuda::driver::Device::default().is_err(), "{said}");
}
