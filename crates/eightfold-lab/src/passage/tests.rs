//! Where a passage ends.

use super::*;
use crate::measure::Timer;
use crate::record::Timing;

fn problem(shape: &str) -> Problem {
    Problem::new(crate::shapes::parse(shape).unwrap().shape).unwrap()
}

fn candidate(text: &str) -> Candidate {
    Candidate::new(text, text.parse().unwrap())
}

#[test]
fn a_factor_is_a_number_with_or_without_a_cross() {
    for text in ["15x", "15×", "15", " 15X"] {
        assert_eq!(Requirement::parse(text, "torch-math").unwrap().factor, 15.0, "{text}");
    }
    for text in ["", "x", "-2x", "0x", "infx", "nan", "15 times"] {
        let error = Requirement::parse(text, "torch-math").unwrap_err().to_string();
        assert!(error.starts_with("require: ") && error.contains("is no factor"), "{text}: {error}");
    }
}

#[test]
fn a_stage_is_held_against_what_it_extends() {
    let policy = Thresholds::embedded().performance;
    let of = |text: &str| {
        let before = before(&text.parse().unwrap(), &problem("mission"), &policy);
        before.map(|(candidate, gain)| (candidate.name, gain))
    };
    assert_eq!(of("ladder:mma-pv"), Some(("ladder:simd-pv".into(), 0.15)));
    assert_eq!(of("ladder:split-keys"), Some(("ladder:unpack".into(), 0.10)));
    // It stands behind split-keys, and extends another.
    assert_eq!(of("ladder:tall-tiles"), Some(("ladder:unpack".into(), 0.10)));
    assert_eq!(of("cpu:lanes"), Some(("cpu:baseline".into(), 0.10)));
    for none in ["ladder:baseline", "hopper:balanced", "ladder:unpack,tile_keys=32"] {
        assert_eq!(of(none), None, "{none}");
    }
}

fn report(gate: Gate, outcome: Outcome) -> GateReport {
    GateReport { gate, outcome, summary: format!("{gate} {outcome}"), checks: Vec::new() }
}

fn timed(name: &str, us: u64) -> Entry {
    let samples = Samples { ns: vec![us * 1000; 100], rounds: vec![10; 10] };
    Entry { timing: Timing::new(Timer::GraphReplay, samples), ..Entry::new(name, name) }
}

fn passage<'a>(candidate: &'a Candidate, thresholds: &'a Thresholds, required: &'a [Requirement]) -> Passage<'a> {
    Passage {
        shape: "mission",
        problem: problem("mission"),
        candidate,
        over: None,
        required,
        thresholds,
        manner: Manner::default(),
        last: Gate::Profile,
    }
}

#[test]
fn every_gate_is_hard_and_the_first_that_does_not_hold_is_named() {
    let (thresholds, candidate) = (Thresholds::embedded(), candidate("ladder:unpack"));
    let passage = passage(&candidate, &thresholds, &[]);
    let all = [Gate::Resource, Gate::Correctness, Gate::Performance, Gate::Profile];
    assert_eq!(passage.gates().collect::<Vec<_>>(), all);
    let group = |outcomes: [Outcome; 4]| {
        let gates = all.iter().zip(outcomes).map(|(gate, outcome)| report(*gate, outcome)).collect();
        let entry = Entry { gates, ..Entry::new("ladder:unpack", "ladder:unpack") };
        Group { entries: vec![entry], ..Group::new("mission", &problem("mission")) }
    };
    assert_eq!(passage.stopped_by(&group([Outcome::Pass; 4])), None);
    for (place, gate) in all.iter().enumerate() {
        for outcome in WORST_FIRST.into_iter().filter(|outcome| *outcome != Outcome::Pass) {
            let mut outcomes = [Outcome::Pass; 4];
            outcomes[place] = outcome;
            // That a kernel is not bound by computing is a finding unless it claims to be.
            let finding = *gate == Gate::Profile && outcome == Outcome::Negative;
            assert_eq!(passage.stopped_by(&group(outcomes)), Some(*gate).filter(|_| !finding), "{gate} {outcome}");
        }
    }
    let nothing = Group::new("mission", &problem("mission"));
    assert_eq!(passage.stopped_by(&nothing), Some(Gate::Resource));
}

#[test]
fn a_peer_must_be_there_and_as_much_slower_as_was_required() {
    let (thresholds, candidate) = (Thresholds::embedded(), candidate("hopper:fast"));
    let judged = |factor: &str, peer: Entry| {
        let required = [Requirement::parse(factor, "torch-math").unwrap()];
        let passage = passage(&candidate, &thresholds, &required);
        let own = Entry { separate_timing: timed("x", 10).timing, ..timed("hopper:fast", 5) };
        let entries = vec![own, Entry { peer: true, ..peer }];
        together(passage.performance(&Group { entries, ..Group::new("mission", &problem("mission")) }))
    };
    // 16 times as fast by launches that do not overlap, 32 times by those that do.
    assert_eq!(judged("15x", timed("torch-math", 160)).outcome, Outcome::Pass);
    let short = judged("17x", timed("torch-math", 160));
    assert_eq!(short.outcome, Outcome::Negative);
    assert!(short.summary.ends_with("required 17.00×"), "{}", short.summary);
    let note = Some("no such backend here".to_string());
    let absent = judged("15x", Entry { note, ..Entry::new("torch-math", "torch") });
    assert_eq!(absent.outcome, Outcome::Unavailable);
    assert!(absent.summary.ends_with("torch-math beside its own: no such backend here"), "{}", absent.summary);
}

#[test]
fn the_worst_of_several_reports_counts() {
    for (index, worst) in WORST_FIRST.into_iter().enumerate() {
        let reports = WORST_FIRST[index..].iter().rev().map(|outcome| report(Gate::Performance, *outcome)).collect();
        assert_eq!(together(reports).outcome, worst);
    }
    // Nothing was judged: that is no pass.
    assert_eq!(together(Vec::new()).outcome, Outcome::Unavailable);
}

/// On the CPU, where nothing but correctness and performance can be asked.
#[test]
fn a_kernel_on_the_cpu_passes_as_far_as_it_is_asked_to() {
    let (thresholds, candidate) = (Thresholds::embedded(), candidate("cpu:lanes"));
    let of = |last, over: Option<(&Candidate, f64)>| {
        let problem = problem("1,1,16,16");
        let passage = Passage { shape: "1,1,16,16", problem, last, over, ..passage(&candidate, &thresholds, &[]) };
        let Passed { group, .. } = passage.run(None, &mut || panic!("there is nothing to profile"), &mut ()).unwrap();
        (passage.stopped_by(&group), passage.entry(&group).unwrap().clone())
    };
    let (stopped, entry) = of(Gate::Correctness, None);
    assert_eq!((stopped, entry.timing, entry.gates.len()), (None, None, 1));
    // A thousand times as fast as itself it is not.
    let itself = Candidate { name: "itself".into(), ..candidate.clone() };
    let (stopped, entry) = of(Gate::Profile, Some((&itself, 999.0)));
    assert_eq!(stopped, Some(Gate::Performance));
    assert!(entry.timing.is_some() && entry.cases.len() > 24, "{} cases", entry.cases.len());
}
