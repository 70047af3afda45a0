//! Made-up results with every kind of row, so that the layout of the tables can be tested.

use eightfold::{Problem, Shape};
use eightfold_lab::errors::ErrorStats;
use eightfold_lab::gates::{CaseReport, Gate, GateReport, Outcome, RunCounts};
use eightfold_lab::measure::Samples;
use eightfold_lab::record::{Entry, Group, Timing};

fn entry(name: &str, outcome: Outcome, relative_l2: f64, ns: &[u64]) -> Entry {
    let samples = Samples { ns: ns.to_vec() };
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
        checks: Vec::new(),
    };
    let summary = format!("the reason for {name}");
    Entry {
        name: name.into(),
        implementation: name.into(),
        peer: false,
        gates: vec![GateReport { gate: Gate::Correctness, outcome, summary, checks: Vec::new() }],
        cases: if outcome == Outcome::Unavailable { Vec::new() } else { vec![case] },
        timing: samples.summary().map(|summary| Timing { summary, samples }),
        note: None,
    }
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
        entries.push(Entry { peer: true, ..entry("torch", Outcome::Pass, 3e-7, &[1_975_308]) });
    }
    Group { shape: "mission".into(), problem: (&problem).into(), entries }
}
