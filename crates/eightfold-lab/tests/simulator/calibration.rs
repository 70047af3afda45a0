//! Whole kernels: records of the correctness gate on an H200 and on the simulator, case by case.

use eightfold_lab::record::Record;
use std::collections::BTreeMap;
use std::path::Path;

/// The same command on both, without a mask and with it: hopper, then the ladder.
const PAIRS: [(&str, &str); 4] = [
    ("20261116T234534Z-run", "20261117T001355Z-run"),
    ("20261116T234538Z-run", "20261117T001355Z-run-2"),
    ("20261116T234543Z-run", "20261117T001425Z-run-2"),
    ("20261116T234547Z-run", "20261117T001425Z-run"),
];

/// Errors of the kernel below this are rounding of the output, and differ as they like.
const SMALLEST: f64 = 1e-6;
/// How far the simulator's error may be from the device's.
const MOST_OFF: f64 = 0.1;

/// The relative L2 error and the hash of the output, by shape, variant and inputs.
fn cases(name: &str, device: &str) -> BTreeMap<String, (f64, u64)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../results").join(name).join("record.json");
    let record: Record = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    assert_eq!(record.provenance.gpu.as_ref().unwrap().name, device, "{name}");
    let mut cases = BTreeMap::new();
    for group in &record.groups {
        for entry in &group.entries {
            for case in &entry.cases {
                let key = format!("{} {} {}", group.shape, entry.name, case.origin);
                cases.insert(key, (case.kernel.relative_l2, case.output_hash));
            }
        }
    }
    cases
}

#[test]
fn errors_on_the_simulator_are_those_on_an_h200() {
    let (mut compared, mut same_bits, mut furthest) = (0, 0, 0.0f64);
    for (on_device, simulated) in PAIRS {
        let device = cases(on_device, "NVIDIA H200");
        for (key, (error, hash)) in cases(simulated, "simulated Hopper") {
            let (expected, expected_hash) = device[&key];
            compared += 1;
            same_bits += usize::from(hash == expected_hash);
            if expected > SMALLEST {
                let off = (error / expected - 1.0).abs();
                assert!(off <= MOST_OFF, "{key}: {error:.3e} on the simulator, {expected:.3e} on the device");
                furthest = furthest.max(off);
            }
        }
    }
    assert!(compared > 900, "{compared} cases");
    // What docs/simulator.md says.
    let said = format!("{compared} cases: {same_bits} to the last bit, the others within {:.2} %", 100.0 * furthest);
    assert!(include_str!("../../../../docs/simulator.md").contains(&said), "{said}");
}
