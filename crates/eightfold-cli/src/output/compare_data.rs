//! Made-up comparisons with every verdict.

use eightfold::{Problem, Shape};
use eightfold_lab::compare::{Comparison, Side};
use eightfold_lab::gates::Outcome;
use eightfold_lab::measure::{Cache, Conditions, Timer};
use eightfold_lab::provenance::Provenance;
use eightfold_lab::record::{Kind, Record};
use eightfold_lab::verdict::SpeedUp;

/// A comparison with this outcome.
pub fn comparison(outcome: Outcome) -> Comparison {
    let problem = Problem::new(Shape::new(1, 8, 512, 64)).unwrap().causal();
    let side = |name: &str, us| Side { name: name.into(), implementation: format!("{name},tile=8"), p50_us: Some(us) };
    let conditions = Conditions {
        load_before: Some(0.5),
        load_after: Some(1.25),
        steal: vec![Some(0.01), None, Some(0.021)],
        threads: 2,
        cores: 2,
        gpu: None,
    };
    Comparison {
        shape: "mission".into(),
        problem: (&problem).into(),
        baseline: side("cpu:avx2", 1234.0),
        candidate: side("cpu:int16-avx2", 1000.0),
        timer: Some(Timer::HostClock),
        required_gain: 0.1,
        outcome,
        summary: "1.234× cpu:avx2 (95 % interval 1.210 to 1.260, 20 rounds)".into(),
        speed_up: Some(SpeedUp { ratio: 1.234, lower: 1.21, upper: 1.26, rounds: 20 }),
        itself: Some(SpeedUp { ratio: 1.001, lower: 0.995, upper: 1.008, rounds: 20 }),
        seed: Some(8),
        planted: None,
        conditions: Some(conditions),
        cache: Cache::Hot,
        inputs: 3,
    }
}

/// One live, one planted, one of records, one that failed its gate.
pub fn record() -> Record {
    let planted = Comparison {
        planted: Some(-0.05),
        summary: "slower: 0.952× cpu (95 % interval 0.945 to 0.960, 20 rounds), required 1.02×".into(),
        ..comparison(Outcome::Regression)
    };
    let of_records = Comparison { seed: None, conditions: None, itself: None, ..comparison(Outcome::Inconclusive) };
    let mut failed = comparison(Outcome::Fail);
    (failed.speed_up, failed.itself, failed.conditions) = (None, None, None);
    (failed.baseline.p50_us, failed.candidate.p50_us) = (None, None);
    failed.summary = "cpu:avx2 failed the correctness gate: 3 elements are NaN".into();
    let mut record = Record::new(Kind::Compare, Provenance::capture(2));
    record.comparisons = vec![comparison(Outcome::Pass), planted, of_records, failed];
    record
}
