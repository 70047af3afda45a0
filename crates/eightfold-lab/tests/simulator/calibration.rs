//! What docs/src/simulator.md says of whole kernels is what its records hold.

use eightfold_lab::record::Record;
use std::collections::BTreeMap;
use std::path::Path;

const DOCUMENT: &str = include_str!("../../../../docs/src/simulator.md");

fn record(name: &str) -> Record {
    Record::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../results/simulator").join(name)).unwrap()
}

/// Errors of the kernel below this are rounding of the output, and differ as they like.
const SMALLEST: f64 = 1e-6;
/// How far the simulator's error may be from the device's.
const MOST_OFF: f64 = 0.1;

/// The relative L2 error and the hash of the output, by shape, variant and inputs.
fn cases(name: &str, device: &str) -> BTreeMap<String, (f64, u64)> {
    let record = record(name);
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

/// The correctness gate on an H200 and on the simulator, case by case.
#[test]
fn errors_on_the_simulator_are_those_on_an_h200() {
    let (mut compared, mut same_bits, mut furthest) = (0, 0, 0.0f64);
    for name in ["hopper", "hopper-causal", "ladder", "ladder-causal"] {
        let device = cases(&format!("calibration/{name}.h200.json.gz"), "NVIDIA H200");
        for (key, (error, hash)) in cases(&format!("calibration/{name}.simulator.json.gz"), "simulated Hopper") {
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
    let said = format!("{compared} cases: {same_bits} to the last bit, the others within {:.2} %", 100.0 * furthest);
    assert!(DOCUMENT.contains(&said), "{said}");
}

/// The median time of three records of one side, by shape.
fn medians(mask: &str, side: &str) -> BTreeMap<String, f64> {
    let mut times: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for turn in 1..=3 {
        for group in record(&format!("cost/{mask}-{turn}-{side}.json.gz")).groups {
            times.entry(group.problem.title(&group.shape)).or_default().push(group.entries[0].p50_us().unwrap());
        }
    }
    let median = |mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    times.into_iter().map(|(shape, times)| (shape, median(times))).collect()
}

/// The kernels before the hang was mended, and after, on an H200.
#[test]
fn what_mending_the_hang_costs_is_what_was_measured() {
    for mask in ["causal", "full"] {
        let before = medians(mask, "before");
        for (shape, after) in medians(mask, "after") {
            let row = format!("| {shape} | {:.3}× |", after / before[&shape]);
            assert!(DOCUMENT.contains(&row), "{row}");
        }
    }
}
