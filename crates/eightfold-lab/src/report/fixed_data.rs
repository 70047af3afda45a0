//! A small made-up record with every kind of row.

use super::Source;
use crate::errors::ErrorStats;
use crate::evolve::{
    Budget, Depth, EliteMember, Evidence, Evolution, Fate, Insight, Operator, Origin, Policy, Spent, Trial,
};
use crate::gates::{Build, CaseReport, Check, Gate, GateReport, Outcome, RunCounts};
use crate::measure::{Samples, Timer};
use crate::provenance::{Checkout, Gpu, Machine, Provenance, TimeUtc};
use crate::record::{BuildEntry, BuildGroup, Entry, Group, Kind, Record, Timing};
use crate::verdict::SpeedUp;
use eightfold::{Problem, Shape};

fn provenance() -> Provenance {
    Provenance {
        time_utc: TimeUtc::try_from("2026-01-31T23:59:59Z".to_string()).unwrap(),
        eightfold: "0.1.0".into(),
        built_from: Some("0123456789abcdef".into()),
        checkout: Some(Checkout { commit: "0123456789abcdef".into(), dirty: true }),
        rustc: Some("rustc 1.95.0".into()),
        release: true,
        command: vec!["eightfold".into(), "--kernel".into(), "ladder".into()],
        machine: Machine {
            cpu: "Some CPU".into(),
            features: vec!["avx512".into()],
            cores: 16,
            os: "linux".into(),
            arch: "x86_64".into(),
        },
        threads: 16,
        gpu: Some(Gpu {
            name: "NVIDIA H200".into(),
            arch: "sm_90".into(),
            driver: "13.0".into(),
            multiprocessors: 132,
            memory_bytes: 150_109_880_320,
            l2_bytes: 62_914_560,
            clock_khz: 1_980_000,
            memory_clock_khz: 3_201_000,
            memory_bus_bits: 6016,
        }),
        nvrtc: Some("NVRTC 13.0".into()),
    }
}

fn gate(gate: Gate, outcome: Outcome, summary: &str) -> GateReport {
    GateReport { gate, outcome, summary: summary.into(), checks: Vec::new() }
}

fn build() -> Build {
    Build {
        arch: "sm_90".into(),
        compiler: "NVRTC 13.0".into(),
        code_hash: "0".into(),
        registers: 128,
        static_shared_bytes: 16,
        dynamic_shared_bytes: 36_864,
        spill_store_bytes: 0,
        spill_load_bytes: 0,
        stack_bytes: 0,
        warnings: Vec::new(),
        threads: 128,
        blocks_per_multiprocessor: 4,
        occupancy: 0.25,
    }
}

fn case(origin: &str, relative_l2: f64) -> CaseReport {
    let stats = |relative_l2: f64| ErrorStats {
        relative_l2,
        bias: relative_l2 / 100.0,
        deviation: relative_l2 / 10.0,
        cosine: 1.0,
        ..ErrorStats::default()
    };
    CaseReport {
        origin: origin.into(),
        kernel: stats(relative_l2),
        end_to_end: stats(0.0441),
        quantizer: stats(0.044),
        lse_max_abs: None,
        run: RunCounts::default(),
        output_hash: 0,
        repeatable: true,
        rows_compared: 8,
        unit: 1.0,
        judged_by: String::new(),
        checks: vec![Check::at_most("kernel relative_l2", relative_l2, 5e-4)],
    }
}

/// An entry that passed, with runs around this time.
pub fn entry(name: &str, us: u64) -> Entry {
    let ns = (0..40).map(|run| us * 1000 + us * (run * 7 % 40)).collect();
    Entry {
        gates: vec![gate(Gate::Correctness, Outcome::Pass, "2 cases")],
        cases: vec![case("gaussian seed 1", 1e-4), case("biased-v seed 1", 2e-4)],
        timing: Timing::new(Timer::GraphReplay, Samples { ns, rounds: vec![8; 5] }),
        ..Entry::new(name, name)
    }
}

/// A group with these entries.
pub fn group(entries: Vec<Entry>) -> Group {
    let problem = Problem::new(Shape::new(1, 8, 512, 64)).unwrap();
    Group { entries, ..Group::new("mission", &problem) }
}

/// A record of this kind with these groups.
pub fn source(kind: Kind, groups: Vec<Group>) -> Source {
    let record = Record { groups, ..Record::new(kind, provenance()) };
    Source { name: format!("20260131T235959Z-{kind}"), record }
}

/// Stages that gained, did not gain, and failed, beside a peer that was timed and one that was not.
pub fn ladder() -> Source {
    let baseline = Entry { build: Some(build()), ..entry("baseline", 400) };
    let mut gained = entry("async-copy", 12);
    gained.gates.push(gate(Gate::Performance, Outcome::Pass, "33× baseline"));
    let mut negative = entry("simd-pv", 12);
    negative.gates.push(gate(Gate::Performance, Outcome::Negative, "no gain: 1.000× async-copy, required 1.10×"));
    let wrong = Entry {
        gates: vec![gate(Gate::Correctness, Outcome::Fail, "relative L2 0.5 of 5.0e-4")],
        cases: vec![case("huge seed 1", 0.5)],
        ..Entry::new("wrong", "wrong")
    };
    let peer = Entry { peer: true, ..entry("torch-flash", 10) };
    let missing = Entry { peer: true, note: Some("no such backend".into()), ..Entry::new("torch-cudnn", "") };
    source(Kind::Ladder, vec![group(vec![baseline, gained, negative, wrong, peer, missing])])
}

/// What was compiled and not run.
pub fn builds() -> Source {
    let entry = |name: &str, gate: GateReport, build| BuildEntry {
        name: name.into(),
        implementation: name.into(),
        peer: false,
        gate,
        build,
    };
    let fits = entry("baseline", gate(Gate::Resource, Outcome::Pass, "within limits"), Some(build()));
    let too_large = entry("three-stage", gate(Gate::Resource, Outcome::Unavailable, "does not fit"), None);
    let mut source = source(Kind::Build, Vec::new());
    let entries = vec![fits, too_large];
    source.record.builds.push(BuildGroup { arch: "sm_89".into(), head_dim: 128, causal: true, tail: false, entries });
    source
}

/// A search of four candidates: the baseline, a better one, a failure, a slower one.
pub fn evolution() -> Source {
    let problem = Problem::new(Shape::new(1, 8, 512, 64)).unwrap();
    let trial = |index, variant: &str, operator, fate| Trial {
        index,
        variant: variant.into(),
        origin: Origin::of(operator),
        fate,
        evidence: Evidence::default(),
        device_s: 0.5,
        at_s: 1.0,
    };
    let measured = |speed_up| Fate::Measured { speed_up, p50_us: 1600.0, timing: Depth::Full };
    let member = |trial, variant: &str, validated, outcome| EliteMember {
        trial,
        variant: variant.into(),
        source: None,
        searched: 1.1,
        validated,
        outcome,
        summary: "it is the baseline".into(),
        faster_on: Vec::new(),
    };
    let found = SpeedUp { ratio: 1.08, lower: 1.07, upper: 1.1, rounds: 60 };
    let mut source = source(Kind::Evolve, Vec::new());
    source.record.evolution = Some(Evolution {
        kernel: "cpu".into(),
        source_hash: "0123456789abcdef".into(),
        device: "A CPU, 2 threads".into(),
        shape: "mission".into(),
        problem: (&problem).into(),
        baseline: "cpu:tile_keys=256".into(),
        more: Vec::new(),
        accuracy: None,
        on_simulator: false,
        seed: 8,
        policy: Policy::Elite,
        restriction: "exp=poly".into(),
        settings: 768,
        points: 624,
        budget: Budget::parse("4 trials").unwrap(),
        spent: Spent { trials: 4, wall_s: 4.0, device_s: 2.0, stale: 2 },
        ended: "4 trials were made".into(),
        replayed: false,
        trials: vec![
            trial(0, "cpu:tile_keys=256", Operator::Baseline, measured(1.0)),
            trial(1, "cpu:tile_keys=512", Operator::Mutation, measured(1.11)),
            trial(2, "cpu:exp=exact", Operator::Crossover, Fate::Wrong { reason: "made up".into() }),
            trial(3, "cpu:tile_keys=128", Operator::Sample, measured(0.96)),
        ],
        insights: vec![Insight {
            name: "tile_keys 256 → 512".into(),
            seen: 12,
            speed_up: Some(1.08),
            followed: 3,
            hits: 1,
        }],
        mutator: None,
        elite: vec![
            member(1, "cpu:tile_keys=512", Some(found), Some(Outcome::Pass)),
            member(0, "cpu:tile_keys=256", None, None),
        ],
        installed: None,
    });
    source
}
