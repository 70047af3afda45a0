//! The end of a search: the elite once more, on inputs that no candidate saw, with many runs, taking turns with the
//! baseline; and a verdict for each.

use super::cascade::problem;
use super::protocol::{Task, Validated, Validation};
use crate::compare::{Comparison, Judged, Side, impossible, judge};
use crate::examine::{Candidate, Examination, Examined};
use crate::gates::{Gate, GateReport, Outcome, Thoroughness, prepare_all, quantizer, standard_cases};
use crate::measure::{Contestant, Manner, Method, Race, Raced, Rotation, Samples, contestant};
use crate::record::{Entry, Timing};
use crate::verdict::RESOLUTION;
use eightfold::{Error, FAMILIES, Result, Variant};

/// Rounds at the very most, and the time after which there are no more.
const MOST_ROUNDS: usize = 160;
const MOST_SECONDS: f64 = 120.0;

/// Gates everyone on fresh inputs, and times those who pass.
pub fn validate(
    task: &Task,
    baseline: &Candidate,
    validation: &Validation,
    tick: &mut dyn FnMut(f64),
) -> Result<Validated> {
    let problem = problem(task)?;
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
    let mut candidates = vec![baseline.clone()];
    for text in &validation.variants {
        let variant: Variant = text.parse()?;
        let name = difference(&baseline.variant, &variant);
        candidates.push(Candidate { name, variant, ..baseline.clone() });
    }
    let examination = Examination {
        shape: &task.shape,
        cases: &cases,
        candidates: &candidates,
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
    let side = |entry: &Entry| Side {
        name: entry.name.clone(),
        implementation: entry.implementation.clone(),
        p50_us: entry.p50_us(),
    };
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
            shape: task.shape.clone(),
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
    Ok(Validated { group, comparisons })
}

/// The knobs in which a variant differs from the baseline: the name by which a reader knows it.
fn difference(baseline: &Variant, variant: &Variant) -> String {
    let knobs = FAMILIES.iter().filter(|family| family.name == variant.kernel()).flat_map(|family| family.knobs);
    let set = knobs.filter_map(|knob| Some((knob.name, variant.knob(knob.name)?)));
    let changed = set.filter(|(knob, value)| baseline.knob(knob).as_ref() != Some(value));
    changed.map(|(knob, value)| format!("{knob}={value}")).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evolve::protocol::VERSION;
    use crate::gates::Thresholds;

    #[test]
    fn everyone_has_enough_runs_and_a_verdict() {
        let task = Task {
            version: VERSION,
            kernel: "cpu".into(),
            shape: "1,2,64,16".into(),
            causal: true,
            output_format: "f32".into(),
            seed: 1,
            baseline: None,
            thresholds: Thresholds::embedded(),
        };
        let baseline = Candidate::new("baseline", "cpu:baseline".parse().unwrap());
        let variants = vec!["cpu:lanes".into(), "cpu:baseline,tile_keys=64".into()];
        let validation = Validation { variants, seed: 77, iterations: 500 };
        let Validated { group, comparisons } = validate(&task, &baseline, &validation, &mut |_| {}).unwrap();
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
