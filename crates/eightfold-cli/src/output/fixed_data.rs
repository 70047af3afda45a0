//! Made-up results with every kind of row, so that the layout of the tables can be tested.

use eightfold::{OutputFormat, Problem, Shape};
use eightfold_lab::errors::ErrorStats;
use eightfold_lab::gates::{
    Build, CaseReport, Check, Gate, GateReport, KnobProof, Outcome, RunCounts, Thresholds, ToggleReport,
};
use eightfold_lab::measure::{PageReading, Reading, Samples, Timer};
use eightfold_lab::peers::{Backend, Crash};
use eightfold_lab::profile::{self, Bottleneck, Claims, Metric, Position, Profile, Profiled, Stall, Unit};
use eightfold_lab::provenance::Provenance;
use eightfold_lab::record::{BuildEntry, BuildGroup, Entry, Group, Kind, Record, Timing};

fn entry(name: &str, outcome: Outcome, relative_l2: f64, ns: &[u64]) -> Entry {
    let stats = ErrorStats { relative_l2, max_abs: relative_l2, cosine: 1.0, ..ErrorStats::default() };
    let case = CaseReport {
        origin: "gaussian seed 1".into(),
        kernel: stats,
        end_to_end: stats,
        quantizer: stats,
        lse_max_abs: None,
        run: RunCounts::default(),
        output_hash: 0,
        repeatable: true,
        rows_compared: 8,
        unit: 1.0,
        judged_by: String::new(),
        checks: Vec::new(),
    };
    let summary = format!("the reason for {name}");
    Entry {
        gates: vec![GateReport { gate: Gate::Correctness, outcome, summary, checks: Vec::new() }],
        cases: if outcome == Outcome::Unavailable { Vec::new() } else { vec![case] },
        timing: timing(Timer::HostClock, ns),
        ..Entry::new(name, format!("ladder:{name}"))
    }
}

fn timing(timer: Timer, ns: &[u64]) -> Option<Timing> {
    Timing::new(timer, Samples { ns: ns.to_vec(), rounds: Vec::new() })
}

/// A shape with entries that passed, failed, were not available and could not be timed.
pub fn group(with_peer: bool) -> Group {
    let problem = Problem::new(Shape::new(1, 8, 512, 64)).unwrap().causal();
    let mut racy = entry("racy", Outcome::Pass, 1e-6, &[]);
    racy.gates.push(GateReport {
        gate: Gate::Performance,
        outcome: Outcome::Invalid,
        summary: "the timed runs differed".into(),
        checks: Vec::new(),
    });
    racy.note = Some("checked on 1 of 2 cases".into());
    let mut entries = vec![
        entry("baseline", Outcome::Pass, 1.5e-7, &[200_000_000, 210_000_000, 220_000_000]),
        entry("lanes", Outcome::Fail, 0.5, &[]),
        entry("avx2", Outcome::Pass, 2.5e-7, &[5_000_000, 5_250_000, 6_000_000]),
        entry("avx512", Outcome::Unavailable, 0.0, &[]),
        racy,
        entry("int16-avx2", Outcome::Pass, 1.2e-4, &[987_654, 987_654]),
    ];
    if with_peer {
        let setting = "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16".into();
        let bf16 =
            Entry { crash: Some(Crash { signal: 4, setting }), ..entry("torch-bf16", Outcome::Pass, 4e-3, &[987_654]) };
        let f32 = entry("torch-f32", Outcome::Pass, 3e-7, &[1_975_308]);
        entries.extend([f32, bf16].map(|peer| Entry { peer: true, ..peer }));
    }
    Group { entries, ..Group::new("mission", &problem) }
}

/// A decode problem on tensors and from pages of 16 and 64 tokens, with what reading each alone took.
pub fn paged_group() -> Group {
    let problem = Problem::new(Shape::new(1, 8, 1, 128).with_key_len(65536)).unwrap();
    let timed = |pages: Option<usize>, us: u64| {
        let name = pages.map_or("cpu:queue".into(), |pages| format!("cpu:queue pages={pages}"));
        Entry { pages, ..entry(&name, Outcome::Pass, 1e-6, &[us * 1000]) }
    };
    let reading = |us: u64| Reading { bytes: 1 << 27, timing: timing(Timer::HostClock, &[us * 1000]).unwrap() };
    let of_pages = |(page_size, us)| PageReading { page_size, reading: reading(us) };
    Group {
        entries: vec![timed(None, 10_000), timed(Some(16), 10_000), timed(Some(64), 8000)],
        reading: Some(reading(6500)),
        page_readings: [(16, 9200), (64, 7200)].map(of_pages).into(),
        ..Group::new("decode", &problem)
    }
}

fn build(registers: u32, spill_bytes: usize) -> Build {
    Build {
        arch: "sm_90".into(),
        compiler: "NVRTC 13.0".into(),
        code_hash: format!("{:016x}", 0x0123_4567_89ab_cdef_u64 + u64::from(registers)),
        registers,
        static_shared_bytes: 16,
        dynamic_shared_bytes: 36_864,
        spill_store_bytes: spill_bytes,
        spill_load_bytes: 2 * spill_bytes,
        stack_bytes: spill_bytes,
        warnings: vec![],
        threads: 128,
        blocks_per_multiprocessor: 4,
        occupancy: 0.25,
    }
}

fn gate(gate: Gate, outcome: Outcome, summary: &str) -> GateReport {
    GateReport { gate, outcome, summary: summary.into(), checks: Vec::new() }
}

/// Stages on a GPU: gained, did not gain, undecided, does not compile, does not fit; and PyTorch's backends.
pub fn gpu_group(with_peers: bool) -> Group {
    let problem = Problem::new(Shape::new(1, 8, 512, 64)).unwrap().with_output_format(OutputFormat::Bf16);
    let stage = |name: &str, registers, us: u64, verdict: Option<(Outcome, &str)>| {
        let mut entry = entry(name, Outcome::Pass, 3e-4, &[]);
        entry.gates.insert(0, gate(Gate::Resource, Outcome::Pass, "within limits"));
        entry.gates.extend(verdict.map(|(outcome, summary)| gate(Gate::Performance, outcome, summary)));
        entry.build = Some(build(registers, 0));
        entry.timing = timing(Timer::GraphReplay, &[us * 1000, us * 1010, us * 1100]);
        entry.launch_timing = timing(Timer::Event, &[us * 1000 + 5000]);
        entry
    };
    let mut broken = Entry::new("mma-pv", "ladder:mma-pv");
    broken.gates.push(gate(Gate::Resource, Outcome::Fail, "does not compile: attention.cu(7): error: no such thing"));
    let negative = "no gain: 1.010× async-copy (95 % interval 0.990 to 1.020, 10 rounds), required 1.10×";
    let mut entries = vec![
        stage("baseline", 96, 400, None),
        stage("async-copy", 104, 200, Some((Outcome::Pass, "2.000× baseline"))),
        stage("simd-pv", 120, 198, Some((Outcome::Negative, negative))),
        broken,
        entry("three-stage", Outcome::Unavailable, 0.0, &[]),
        stage("tuned", 128, 20, Some((Outcome::Inconclusive, "the required 1.10× lies within"))),
    ];
    if with_peers {
        for (backend, us) in Backend::ALL.into_iter().zip([90, 30, 10, 0]) {
            let mut peer = entry(backend.name(), Outcome::Pass, 4e-3, &[]);
            peer.peer = true;
            peer.output_format = Some(backend.output_format().into());
            if us == 0 {
                peer.note =
                    Some("PyTorch is not available: no available kernel; measure this problem without it".into());
            } else {
                peer.timing = timing(Timer::GraphReplay, &[us * 1000]);
                peer.launch_timing = timing(Timer::Event, &[us * 1000 + 9000]);
            }
            entries.push(peer);
        }
    }
    Group { entries, ..Group::new("mission", &problem) }
}

/// Kernels compiled for an architecture: one within its limits, one that spills, one that does not fit; and knobs with
/// effect, without, and without an alternative.
pub fn builds() -> Record {
    let entry = |name: &str, gate, build| BuildEntry {
        name: name.into(),
        implementation: name.into(),
        peer: false,
        gate,
        build,
    };
    let reason =
        "tile_keys: the tiles need 131072 bytes of shared memory, and a block has 101376 on sm_89; set a smaller one";
    let entries = vec![
        entry("baseline", gate(Gate::Resource, Outcome::Pass, "within limits"), Some(build(96, 0))),
        entry("spilling", gate(Gate::Resource, Outcome::Fail, "8 spill store bytes, limit 0"), Some(build(255, 8))),
        entry("three-stage", gate(Gate::Resource, Outcome::Unavailable, reason), None),
    ];
    let proof = |knob: &str, value: &str, compared: &[&str], without_effect: &[&str]| KnobProof {
        stage: "baseline".into(),
        knob: knob.into(),
        value: value.into(),
        compared: compared.iter().map(|value| value.to_string()).collect(),
        without_effect: without_effect.iter().map(|value| value.to_string()).collect(),
        errors: Vec::new(),
    };
    let mut toggle_gate = gate(Gate::Toggle, Outcome::Fail, "baseline: exp=poly gives the same machine code");
    toggle_gate.checks.push(Check::at_least("knob values compared", 3.0, 1.0));
    let toggle = ToggleReport {
        arch: "sm_89".into(),
        head_dim: 64,
        causal: false,
        gate: toggle_gate,
        knobs: vec![
            proof("copy", "sync", &["async2", "async3"], &[]),
            proof("exp", "hardware", &["poly"], &["poly"]),
            proof("producers", "0", &[], &[]),
            proof("warps", "4", &[], &[]),
        ],
    };
    let mut record = Record::new(Kind::Build, Provenance::capture(1));
    record.builds.push(BuildGroup { arch: "sm_89".into(), head_dim: 128, causal: true, tail: false, entries });
    record.toggles.push(toggle);
    record
}

/// Two variants that were profiled, and one that was not because it is wrong.
pub fn profiled_group() -> Group {
    let problem = Problem::new(Shape::new(2, 8, 2048, 64)).unwrap();
    let stall = |reason: &str, warps| Stall { reason: reason.into(), warps };
    let profiled = |name: &str, ns: f64, tensor: f64, stalls: Vec<Stall>| {
        let value = |metric: Metric| match (metric, metric.unit()) {
            (Metric::Duration, _) => ns,
            (Metric::TensorPipe, _) => tensor,
            (Metric::LocalInstructions, _) => 0.0,
            (Metric::Multiprocessors, _) => 132.0,
            (Metric::AtWork | Metric::LongestAtWork, _) => 97.0,
            (_, Unit::Percent) => 100.0 - tensor,
            (_, Unit::Bytes) => 14.0 * 1024.0 * 1024.0,
            _ => ns,
        };
        let metrics = Metric::ALL.into_iter().map(|metric| (metric, value(metric))).collect();
        let profile = Profile { launch: "0".into(), kernel: "ladder_attention".into(), metrics, stalls };
        let policy = Thresholds::embedded().profile;
        let claims = Claims { compute_bound: false, conflict_free: false };
        let mut entry = entry(name, Outcome::Pass, 3e-4, &[]);
        entry.gates.push(profile::check(&profile, &policy, claims).unwrap());
        entry.profile = Some(Profiled {
            bottleneck: Bottleneck::of(&profile, None).unwrap(),
            position: Some(Position {
                flop_per_byte: 1170.0,
                flop_per_second: 17.18e9 / ns * 1e9,
                ridge_flop_per_byte: 445.0,
                roof_flop_per_second: 2.14e15,
            }),
            profile,
            profiler: "Nsight Compute 1".into(),
        });
        entry
    };
    let entries = vec![
        profiled("unpack", 70_000.0, 45.0, vec![stall("wait", 1.2), stall("short_scoreboard", 0.4)]),
        profiled("tall-tiles", 62_000.0, 55.0, vec![stall("math_pipe_throttle", 0.9), stall("wait", 0.6)]),
        entry("broken", Outcome::Fail, 0.5, &[]),
    ];
    Group { entries, ..Group::new("long", &problem) }
}
