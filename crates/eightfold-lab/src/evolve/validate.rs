//! The end of a search: the elite once more, on inputs that no candidate saw, with many runs, taking turns with the
//! baseline; and a verdict for each.

use super::cascade::{geometric_mean, problems, steps};
use super::protocol::{Challenger, Task, Validated, Validation};
use crate::compare::{Comparison, Judged, Side, impossible, judge};
use crate::examine::{Candidate, Examination, Examined};
use crate::gates::{Case, Gate, GateReport, Outcome, Thoroughness, prepare_all, quantizer, standard_cases};
use crate::measure::{Cache, Contestant, Manner, Method, Race, Raced, Rotation, Samples, contestant};
use crate::record::{Entry, Group, Timing};
use crate::verdict::{self, RESOLUTION, SpeedUp};
use eightfold::lab::FAMILIES;
use eightfold::lab::compile::Overlay;
use eightfold::{Error, Problem, Result, Variant};
use std::sync::Arc;

/// Rounds at the very most, and the time after which there are no more.
const MOST_ROUNDS: usize = 160;
const MOST_SECONDS: f64 = 120.0;

/// Gates everyone on fresh inputs of every problem, and times those who pass.
pub fn validate(
    task: &Task,
    baselines: &[Candidate],
    validation: &Validation,
    tick: &mut dyn FnMut(f64),
) -> Result<Validated> {
    let problems = problems(task)?;
    let mut challengers = Vec::new();
    for Challenger { variant, source } in &validation.challengers {
        let source = source.clone().map(Overlay::new).transpose()?;
        challengers.push(Candidate::new("", variant.parse()?).with_source(source.map(Arc::new))?);
    }
    let mut validated = Validated { groups: Vec::new(), comparisons: Vec::new() };
    for (place, (problem, baseline)) in problems.iter().zip(baselines).enumerate() {
        let mut candidates = vec![baseline.clone()];
        candidates.extend(challengers.iter().map(|one| Candidate {
            name: difference(&baseline.variant, one),
            accuracy: baseline.accuracy,
            ..one.clone()
        }));
        let tick = &mut |share: f64| tick((place as f64 + share) / problems.len() as f64);
        let (group, comparisons) =
            validate_one(task, problem, &task.problems[place].sizes(), &candidates, validation, tick)?;
        validated.groups.push(group);
        validated.comparisons.push(comparisons);
    }
    Ok(validated)
}

/// The same for one problem; the first of the candidates is the baseline.
fn validate_one(
    task: &Task,
    problem: &Problem,
    shape: &str,
    candidates: &[Candidate],
    validation: &Validation,
    tick: &mut dyn FnMut(f64),
) -> Result<(Group, Vec<Comparison>)> {
    let (problem, baseline) = (*problem, &candidates[0]);
    let mut cases = standard_cases(&problem, Thoroughness::Quick);
    for case in &mut cases {
        case.seed += validation.seed;
        case.problem = problem;
    }
    let cases = prepare_all(
        &cases,
        &quantizer(&problem, std::slice::from_ref(baseline)),
        &task.thresholds.correctness.reference,
    )?;
    let examination = Examination {
        shape,
        cases: &cases,
        candidates,
        thresholds: &task.thresholds,
        timed: None,
        ladder: false,
        sweep: false,
        max_gate_seconds: f64::INFINITY,
    };
    let Examined { mut group, lost } = examination.run(&problem, None, &mut ());
    lost.map_or(Ok(()), Err)?;
    let sound = |entry: &Entry| entry.correctness().is_some_and(|gate| gate.outcome == Outcome::Pass);
    if !sound(&group.entries[0]) {
        let reason = "the baseline failed the correctness gate on fresh inputs";
        return Err(Error::unavailable("the validation", reason, "see `eightfold run`"));
    }
    if task.on_simulator {
        let comparisons = counted(shape, &problem, candidates, &cases, &group, validation.seed)?;
        return Ok((group, comparisons));
    }
    let mut field: Vec<(usize, Box<dyn Contestant + '_>)> = Vec::new();
    let on_gpu = baseline.on_gpu();
    // A GPU that was busy for long holds its clocks down, for one contestant more than for another.
    let manner = Manner { burst: on_gpu, ..Manner::default() };
    let (mut timer, mut inputs) = (None, 1);
    for (place, candidate) in std::iter::once((0, baseline)).chain(candidates.iter().enumerate()) {
        if sound(&group.entries[place]) {
            let nothing = || Error::unavailable("the validation", "there are no inputs", "see `eightfold run`");
            let rotation = Rotation::of(&cases, &group.entries[place]).ok_or_else(nothing)?;
            inputs = rotation.len();
            let (kind, contestant) = contestant(candidate, rotation, manner.cache, None)?;
            timer = Some(kind);
            field.push((place, contestant));
        }
    }
    let policy = if on_gpu { &task.thresholds.cuda_timing } else { &task.thresholds.timing };
    let method = Method { policy, manner, on_gpu };
    let race = Race { method, seed: validation.seed, most_rounds: MOST_ROUNDS, most_seconds: MOST_SECONDS };
    let places: Vec<usize> = field.iter().map(|(place, _)| *place).collect();
    let mut contestants: Vec<&mut dyn Contestant> = field.iter_mut().map(|(_, one)| &mut **one as _).collect();
    contestants.iter_mut().try_for_each(|one| one.prepare())?;
    // A replayed graph is many runs at a time.
    let launches = contestants[0].launches_per_run();
    let enough = &mut |samples: &[Samples]| samples.iter().all(|one| one.ns.len() * launches >= validation.iterations);
    let Raced { samples, conditions } = race.run(&mut contestants, enough, &mut |share, _| tick(share))?;
    drop(contestants);
    drop(field);
    let again = Entry { name: "baseline again".into(), ..group.entries[0].clone() };
    let timing = |samples: &Samples| {
        let timing = Timing::new(timer?, samples.clone())?;
        Some(Timing { cache: manner.cache, inputs, ..timing })
    };
    for (place, samples) in places.iter().zip(&samples).skip(1) {
        group.entries[*place].timing = timing(samples);
    }
    let too_fast = || impossible(&(&problem).into(), &samples, manner.cache, on_gpu);
    let unsound = conditions.differed().or_else(too_fast);
    let mut comparisons = Vec::new();
    for place in 1..group.entries.len() {
        let entry = &group.entries[place];
        let mut comparison = Comparison {
            shape: shape.into(),
            problem: (&problem).into(),
            baseline: side(&group.entries[0]),
            candidate: side(entry),
            timer,
            required_gain: RESOLUTION,
            outcome: Outcome::Fail,
            summary: entry.correctness().map(|gate| gate.summary.clone()).unwrap_or_default(),
            speed_up: None,
            itself: None,
            seed: Some(validation.seed),
            planted: None,
            conditions: Some(conditions.clone()),
            cache: manner.cache,
            inputs,
        };
        // The first two lanes are the baseline.
        if let Some(lane) = places.iter().skip(2).position(|one| *one == place) {
            let judged = judge("baseline", [&samples[0], &samples[1], &samples[lane + 2]], RESOLUTION);
            let Judged { outcome, summary, speed_up, itself, .. } = judged;
            (comparison.outcome, comparison.summary) =
                unsound.clone().map_or((outcome, summary), |reason| (Outcome::Invalid, reason));
            (comparison.speed_up, comparison.itself) = (speed_up, itself);
            group.entries[place].gates.push(GateReport {
                gate: Gate::Performance,
                outcome: comparison.outcome,
                summary: comparison.summary.clone(),
                checks: Vec::new(),
            });
        }
        comparisons.push(comparison);
    }
    group.entries.insert(1, Entry { timing: timing(&samples[0]), ..again });
    Ok((group, comparisons))
}

fn side(entry: &Entry) -> Side {
    Side { name: entry.name.clone(), implementation: entry.implementation.clone(), p50_us: entry.p50_us() }
}

/// The verdicts on the simulated device: steps on every set of inputs. They are the same every time, so that the interval is
/// that of the inputs.
fn counted(
    shape: &str,
    problem: &Problem,
    candidates: &[Candidate],
    cases: &[Case],
    group: &Group,
    seed: u64,
) -> Result<Vec<Comparison>> {
    let count = |candidate: &Candidate| -> Result<Vec<f64>> {
        cases.iter().map(|case| Ok(steps(candidate, case)?.steps() as f64)).collect()
    };
    let before = count(&candidates[0])?;
    let mut comparisons = Vec::new();
    for (candidate, entry) in candidates.iter().zip(&group.entries).skip(1) {
        let gate = entry.correctness();
        let passed = gate.is_some_and(|gate| gate.outcome == Outcome::Pass);
        let speed_up = if passed {
            let ratios: Vec<f64> = before.iter().zip(count(candidate)?).map(|(before, after)| before / after).collect();
            let [lower, upper] = [f64::min, f64::max].map(|pick| ratios.iter().copied().reduce(pick).unwrap_or(1.0));
            Some(SpeedUp { ratio: geometric_mean(&ratios), lower, upper, rounds: ratios.len() })
        } else {
            None
        };
        let (outcome, summary) = match &speed_up {
            Some(found) => by_steps(found),
            None => (Outcome::Fail, gate.map(|gate| gate.summary.clone()).unwrap_or_default()),
        };
        comparisons.push(Comparison {
            shape: shape.into(),
            problem: problem.into(),
            baseline: side(&group.entries[0]),
            candidate: side(entry),
            timer: None,
            required_gain: RESOLUTION,
            outcome,
            summary,
            speed_up,
            itself: None,
            seed: Some(seed),
            planted: None,
            conditions: None,
            cache: Cache::Hot,
            inputs: cases.len(),
        });
    }
    Ok(comparisons)
}

/// The verdict on counted steps.
fn by_steps(found: &SpeedUp) -> (Outcome, String) {
    let SpeedUp { ratio, lower, upper, rounds } = *found;
    let said = format!(
        "{ratio:.3}× fewer steps than the baseline ({lower:.3} to {upper:.3} over {rounds} inputs), which is no time"
    );
    let outcome = match () {
        () if lower >= 1.0 + RESOLUTION => Outcome::Pass,
        () if upper < 1.0 - RESOLUTION => Outcome::Regression,
        () if upper < 1.0 + RESOLUTION => Outcome::Negative,
        () => Outcome::Inconclusive,
    };
    (outcome, said)
}

/// One verdict from those on several problems: the geometric mean, with the ends of the interval likewise, which is wider than
/// it need be.
pub fn together(each: &[&Comparison]) -> (Outcome, String, Option<SpeedUp>) {
    if let [only] = each {
        return (only.outcome, only.summary.clone(), only.speed_up);
    }
    let named = |one: &&&Comparison| matches!(one.outcome, Outcome::Fail | Outcome::Invalid | Outcome::Unavailable);
    if let Some(bad) = each.iter().find(named) {
        return (bad.outcome, format!("{}: {}", bad.shape, bad.summary), None);
    }
    let found: Vec<SpeedUp> = each.iter().filter_map(|one| one.speed_up).collect();
    if found.len() < each.len() || found.is_empty() {
        return (Outcome::Inconclusive, "too few rounds".into(), None);
    }
    let mean = |of: fn(&SpeedUp) -> f64| geometric_mean(&found.iter().map(of).collect::<Vec<_>>());
    let rounds = found.iter().map(|one| one.rounds).min().unwrap_or_default();
    let mean =
        SpeedUp { ratio: mean(|one| one.ratio), lower: mean(|one| one.lower), upper: mean(|one| one.upper), rounds };
    let GateReport { outcome, summary, .. } = verdict::judge("the baselines", Some(mean), RESOLUTION);
    (outcome, format!("over {} shapes: {summary}", each.len()), Some(mean))
}

/// In which knobs a candidate differs from the baseline, and in its source: the name by which a reader knows it.
fn difference(baseline: &Variant, candidate: &Candidate) -> String {
    let variant = &candidate.variant;
    let knobs = FAMILIES.iter().filter(|family| family.name == variant.kernel()).flat_map(|family| family.knobs);
    let set = knobs.filter_map(|knob| Some((knob.name, variant.knob(knob.name)?)));
    let changed = set.filter(|(knob, value)| baseline.knob(knob).as_ref() != Some(value));
    let source = candidate.source.iter().map(|source| format!("source {}", &source.fingerprint()[..8]));
    changed.map(|(knob, value)| format!("{knob}={value}")).chain(source).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evolve::protocol::VERSION;
    use crate::gates::Thresholds;
    use eightfold::Shape;

    #[test]
    fn everyone_has_enough_runs_and_a_verdict() {
        let task = Task {
            version: VERSION,
            kernel: "cpu".into(),
            problems: [Shape::new(1, 2, 64, 16), Shape::new(1, 1, 80, 16)]
                .map(|shape| (&Problem::new(shape).unwrap().causal()).into())
                .into(),
            accuracy: None,
            on_simulator: false,
            seed: 1,
            baselines: Vec::new(),
            thresholds: Thresholds::embedded(),
        };
        let baseline = Candidate::new("baseline", "cpu:baseline".parse().unwrap());
        let challenger = |variant: &str| Challenger { variant: variant.into(), source: None };
        let challengers = ["cpu:lanes", "cpu:baseline,tile_keys=64"].map(challenger).to_vec();
        let validation = Validation { challengers, seed: 77, iterations: 500 };
        let baselines = [baseline.clone(), baseline];
        let Validated { groups, comparisons } = validate(&task, &baselines, &validation, &mut |_| {}).unwrap();
        assert_eq!((groups.len(), comparisons.len()), (2, 2));
        let of_first: Vec<_> = comparisons.iter().map(|each| &each[0]).collect();
        let (_, summary, mean) = together(&of_first);
        let ratios = of_first.iter().map(|one| one.speed_up.unwrap().ratio);
        assert!((mean.unwrap().ratio - ratios.product::<f64>().sqrt()).abs() < 1e-9, "{summary}");
        let (group, comparisons) = (&groups[0], &comparisons[0]);
        assert_eq!((group.entries.len(), comparisons.len()), (4, 2));
        for entry in &group.entries {
            assert!(entry.timing.as_ref().unwrap().summary.iterations >= 500, "{}", entry.name);
            assert!(entry.cases.iter().all(|case| case.origin.contains("seed 7")), "{}", entry.cases[0].origin);
        }
        let names = [0, 1].map(|place: usize| comparisons[place].candidate.name.as_str());
        assert_eq!(names, ["simd=portable", "tile_keys=64"]);
        assert!(comparisons[0].candidate.implementation.starts_with("cpu:numbers=f32,simd=portable,"));
        // Each verdict is the one of its own variant's runs.
        let samples = |place: usize| &group.entries[place].timing.as_ref().unwrap().samples;
        for (place, comparison) in comparisons.iter().enumerate() {
            let judged = judge("baseline", [samples(1), samples(0), samples(place + 2)], RESOLUTION);
            assert!(judged.speed_up.is_some() && judged.itself.is_some());
            assert_eq!((comparison.speed_up, comparison.itself), (judged.speed_up, judged.itself));
            assert_eq!(comparison.required_gain, RESOLUTION);
        }
    }
}
