//! A made-up search with an elite of two, a failure, insights and a mutator.

use eightfold::{Problem, Shape};
use eightfold_lab::evolve::{
    Budget, Depth, EliteMember, Evidence, Evolution, Fate, Insight, Ledger, Operator, Origin, Policy, Spent, Trial,
};
use eightfold_lab::gates::Outcome;
use eightfold_lab::provenance::Provenance;
use eightfold_lab::record::{Kind, Record};
use eightfold_lab::verdict::SpeedUp;

fn trial(index: usize, variant: &str, fate: Fate) -> Trial {
    let operator = if index == 0 { Operator::Baseline } else { Operator::Mutation };
    Trial {
        index,
        variant: variant.into(),
        origin: Origin::of(operator),
        fate,
        evidence: Evidence::default(),
        device_s: 0.5,
        at_s: 1.0 + index as f64,
    }
}

fn member(trial: usize, variant: &str, ratio: f64, outcome: Outcome) -> EliteMember {
    let found = SpeedUp { ratio, lower: ratio - 0.01, upper: ratio + 0.02, rounds: 60 };
    EliteMember {
        trial,
        variant: variant.into(),
        source: None,
        searched: ratio + 0.03,
        validated: Some(found),
        outcome: Some(outcome),
        summary: format!("{ratio:.3}× baseline (95 % interval …, 60 rounds)"),
        faster_on: Vec::new(),
    }
}

/// The record of the search.
pub fn record() -> Record {
    let problem = Problem::new(Shape::new(1, 8, 512, 64)).unwrap().causal();
    let measured = |speed_up| Fate::Measured { speed_up, p50_us: 1600.0, timing: Depth::Full };
    let [old, new, other] = ["cpu:tile_keys=256", "cpu:tile_keys=512", "cpu:tile_keys=128"];
    let wrong = Fate::Wrong { reason: "made up".into() };
    let insight = |name: &str, seen, speed_up| Insight { name: name.into(), seen, speed_up, followed: 3, hits: 1 };
    let mut record = Record::new(Kind::Evolve, Provenance::capture(2));
    record.evolution = Some(Evolution {
        kernel: "cpu".into(),
        source_hash: "0123456789abcdef".into(),
        device: "A CPU, 2 threads".into(),
        shape: "mission".into(),
        problem: (&problem).into(),
        baseline: old.into(),
        more: Vec::new(),
        accuracy: None,
        on_simulator: false,
        seed: 8,
        policy: Policy::Elite,
        restriction: "exp=poly".into(),
        settings: 768,
        points: 624,
        budget: Budget::parse("4 trials").unwrap(),
        spent: Spent { trials: 4, wall_s: 4.0, device_s: 2.0, stale: 1 },
        ended: "4 trials were made".into(),
        replayed: false,
        trials: vec![
            trial(0, old, measured(1.0)),
            trial(1, new, measured(1.11)),
            trial(2, "cpu:exp=exact", wrong),
            trial(3, other, measured(0.96)),
        ],
        insights: vec![
            insight("tile_keys 256 → 512", 12, Some(1.08)),
            insight("wrong numbers → wider weights", 0, None),
        ],
        mutator: Some(Ledger { calls: 2, failed: 1, seconds: 3.25, cost: 0.5 }),
        elite: vec![member(1, new, 1.08, Outcome::Pass), member(3, other, 0.95, Outcome::Negative)],
        installed: None,
    });
    record
}
