//! Strategies against each other on a synthetic space, and what must hold of every search whatever its strategy.

use super::journal::tests::header;
use super::*;
use crate::evolve::space::Restriction;
use eightfold::Family;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::AtomicBool;

/// A recording of the whole CPU space with made-up times: each knob has its effect, two of them together another.
fn synthetic() -> Recording {
    let family = Family::find("cpu").unwrap();
    let space = Space::new(family, &Restriction::default(), &|_| Ok(())).unwrap();
    let trials = space.points().iter().enumerate().map(|(index, point)| {
        let effects = point.0.iter().zip([0.3, 0.5, 0.1, 0.2, 0.07, 0.05]);
        let sum: f64 = effects.map(|(place, effect)| f64::from(*place) * effect).sum();
        let odd = if point.0[4] == 2 && point.0[5] == 1 { 0.15 } else { 0.0 };
        let failed = point.0[0] == 1 && point.0[1] == 1 && point.0[4] == 3;
        let fate = if failed {
            Fate::Wrong { reason: "made up".into() }
        } else {
            Fate::Measured { speed_up: (sum + odd - 2.0).exp(), p50_us: 1.0, timing: Depth::Quick }
        };
        let variant = space.variant(point).unwrap().to_string();
        Trial { index, variant, fate, device_s: 0.25, ..journal::tests::trial(index) }
    });
    let trials = trials.collect();
    Recording::new(vec![Contents { header: header(), trials, calls: Vec::new(), torn: false }]).unwrap()
}

fn settings(policy: Policy, seed: u64, budget: &str) -> Header {
    let budget = Budget::parse(budget).unwrap();
    Header { policy, seed, budget, from_baseline: false, replays: Some(String::new()), ..header() }
}

fn search(recording: &Recording, header: Header) -> Found {
    let evaluator = Evaluator::Recorded(Box::new(recording.clone()));
    let mut search = Search::new(header, recording.space().clone(), None, evaluator, None);
    search.run(&AtomicBool::new(false), &mut ()).unwrap()
}

/// Evaluations until the best is within 2 % of the best that there is, the median over seeds.
fn median_evaluations(recording: &Recording, policy: Policy, seeds: u64) -> usize {
    let goal = recording.best() / 1.02;
    let mut counts: Vec<usize> = (0..seeds)
        .map(|seed| {
            let reached = |budget| {
                let found = search(recording, settings(policy, seed, budget));
                found.trials.iter().position(|trial| trial.fate.speed_up().is_some_and(|one| one >= goal))
            };
            reached("100 trials").or_else(|| reached("5000 trials")).expect("the whole space was tried") + 1
        })
        .collect();
    counts.sort_unstable();
    counts[counts.len() / 2]
}

#[test]
fn every_policy_beats_a_random_search() {
    let recording = synthetic();
    let [random, best, elite, islands] = [Policy::Random, Policy::Best, Policy::Elite, Policy::Islands]
        .map(|policy| median_evaluations(&recording, policy, 25));
    println!("random {random}, best {best}, elite {elite}, islands {islands}");
    for guided in [best, elite, islands] {
        assert!(2 * guided < random, "random {random}, best {best}, elite {elite}, islands {islands}");
    }
}

#[test]
fn nothing_is_evaluated_twice_and_the_whole_space_ends_a_search() {
    let recording = synthetic();
    for policy in [Policy::Elite, Policy::Random] {
        let found = search(&recording, settings(policy, 3, "5000 trials"));
        let variants: std::collections::HashSet<_> = found.trials.iter().map(|trial| &trial.variant).collect();
        assert_eq!((found.trials.len(), variants.len()), (624, 624));
        assert!(found.ended.contains("all 624 points"), "{}", found.ended);
        assert_eq!(found.elite.len(), 3);
        assert_eq!(found.elite[0].fate.speed_up(), Some(recording.best()));
    }
}

#[test]
fn the_same_seed_gives_the_same_search_and_the_window_changes_what_a_candidate_may_know() {
    let recording = synthetic();
    let with =
        |seed, window| search(&recording, Header { window, ..settings(Policy::Elite, seed, "60 trials") }).trials;
    assert_eq!(with(1, 1), with(1, 1));
    assert_eq!(with(1, 4), with(1, 4));
    assert_ne!(with(1, 1), with(2, 1));
    assert_ne!(with(1, 1), with(1, 4));
    // No candidate descends from one that was still under way.
    for trial in with(5, 4) {
        assert!(trial.origin.parents.iter().all(|parent| parent + 4 <= trial.index), "{trial:?}");
    }
}

#[test]
fn each_budget_ends_a_search() {
    let recording = synthetic();
    let ended = |budget| {
        let found = search(&recording, settings(Policy::Elite, 1, budget));
        (found.trials.len(), found.ended)
    };
    assert_eq!(ended("17 trials"), (17, "17 trials were made".into()));
    assert_eq!(ended("10s"), (40, "10s were spent".into()));
    assert_eq!(ended("5s device"), (20, "5s of device time were spent".into()));
    let (count, reason) = ended("30 stale");
    assert!(count > 30 && count < 300 && reason == "30 trials brought nothing better", "{count}: {reason}");
}

#[test]
fn every_operator_and_every_kind_of_information_is_used_and_tagged() {
    let recording = synthetic();
    // An elite whose members are alike seldom has a crossover that was not tried: several searches.
    let found = [1, 2, 3].map(|seed| search(&recording, settings(Policy::Elite, seed, "150 trials")));
    let any = |holds: &dyn Fn(&Trial) -> bool| found.iter().any(|found| found.trials.iter().any(holds));
    for operator in [Operator::Sample, Operator::Crossover, Operator::Mutation] {
        assert!(any(&|trial| trial.origin.operator == operator), "{operator}");
    }
    for information in [Information::Context, Information::Solutions, Information::Insights, Information::Territory] {
        assert!(any(&|trial| trial.origin.used.contains(&information)), "{information:?}");
    }
    let [found, ..] = found;
    let followed: usize = found.insights.iter().map(|insight| insight.followed).sum();
    let tagged = found.trials.iter().filter(|trial| trial.origin.insight.is_some()).count();
    assert!(followed > 3 && followed <= tagged, "{followed} of {tagged}");
    assert!(found.insights.iter().any(|insight| insight.hits > 0));
    assert!(failures(&found.trials).contains_key("wrong"));
}

#[test]
fn a_search_that_is_resumed_anywhere_ends_as_if_it_had_never_stopped() {
    let recording = synthetic();
    for window in [1, 3] {
        let header = Header { window, ..settings(Policy::Islands, 7, "50 trials") };
        let whole = search(&recording, header.clone());
        for kept in [0, 1, 8, 23, 49, 50] {
            // Outcomes of a window may be written in any order.
            let mut trials = whole.trials[..kept].to_vec();
            trials.reverse();
            let place = tempfile::tempdir().unwrap();
            let journal = Journal::create(place.path(), &header).unwrap();
            let contents = Contents { header: header.clone(), trials, calls: Vec::new(), torn: false };
            let evaluator = Evaluator::Recorded(Box::new(recording.clone()));
            let space = recording.space().clone();
            let mut search = Search::new(header.clone(), space, Some((journal, Some(contents))), evaluator, None);
            let found = search.run(&AtomicBool::new(false), &mut ()).unwrap();
            assert_eq!(found.trials, whole.trials, "{kept}");
            drop(search);
            assert_eq!(journal::read(place.path()).unwrap().trials.len(), 50 - kept);
        }
    }
}

#[test]
fn a_journal_that_another_search_wrote_is_found_out() {
    let recording = synthetic();
    let header = settings(Policy::Elite, 7, "50 trials");
    let other = search(&recording, Header { seed: 8, ..header.clone() });
    let place = tempfile::tempdir().unwrap();
    let journal = Journal::create(place.path(), &header).unwrap();
    let contents = Contents { header: header.clone(), trials: other.trials, calls: Vec::new(), torn: false };
    let evaluator = Evaluator::Recorded(Box::new(recording.clone()));
    let mut search = Search::new(header, recording.space().clone(), Some((journal, Some(contents))), evaluator, None);
    let error = search.run(&AtomicBool::new(false), &mut ()).unwrap_err().to_string();
    assert!(error.contains("resume: trial 0 was cpu:"), "{error}");
}

#[test]
fn a_search_that_is_told_to_stop_stops() {
    let recording = synthetic();
    let evaluator = Evaluator::Recorded(Box::new(recording.clone()));
    let header = settings(Policy::Elite, 1, "50 trials");
    let mut search = Search::new(header, recording.space().clone(), None, evaluator, None);
    let found = search.run(&AtomicBool::new(true), &mut ()).unwrap();
    assert!(found.interrupted && found.trials.is_empty());
}

#[test]
#[cfg(unix)]
fn a_mutator_makes_candidates_under_the_same_rules_and_its_answers_are_replayed() {
    let recording = synthetic();
    let header = Header { mutator: Some("script".into()), ..settings(Policy::Elite, 1, "30 trials") };
    let run = |mutator| {
        let evaluator = Evaluator::Recorded(Box::new(recording.clone()));
        let space = recording.space().clone();
        let place = tempfile::tempdir().unwrap();
        let journal = Journal::create(place.path(), &header).unwrap();
        let mut search = Search::new(header.clone(), space, Some((journal, None)), evaluator, Some(mutator));
        let found = search.run(&AtomicBool::new(false), &mut ()).unwrap();
        drop(search);
        (found, journal::read(place.path()).unwrap().calls)
    };
    // Answers by the trial that it is asked for: a config, one that breaks a rule, garbage, a source, nothing.
    let script = r#"trial=$(sed 's/.*"trial":\([0-9]*\).*/\1/')
        case $trial in
        8) echo '{"config": "tile_queries=64,tile_keys=128", "cost": 2}';;
        12) echo '{"config": "tile_keys=17"}';;
        16) echo garbage;;
        20) echo '{"source": "void"}';;
        esac"#;
    let (found, calls) = run(Mutator::Command(script.into(), std::time::Duration::from_secs(20)));
    let fate = |trial: usize| found.trials[trial].fate.failure();
    assert_eq!(
        [8, 12, 16, 24, 28].map(fate),
        [fate(8), Some("restricted"), Some("no answer"), Some("no answer"), Some("no answer")]
    );
    assert!(found.trials[8].variant.contains("tile_queries=64,tile_keys=128"), "{}", found.trials[8].variant);
    assert!(found.trials[20].origin.source.is_some());
    assert!([8, 12, 16, 20, 24, 28].iter().all(|trial| found.trials[*trial].origin.operator == Operator::Mutator));
    assert_eq!((found.ledger.calls, found.ledger.failed, found.ledger.cost), (6, 3, 2.0));
    assert_eq!(calls.len(), 6);
    let (again, _) = run(Mutator::Recorded(calls.into()));
    assert_eq!(again.trials, found.trials);
    assert_eq!(again.ledger, found.ledger);
}

/// What was recorded of real spaces, by name: the files of one name are journals of one task.
fn recorded() -> BTreeMap<String, Recording> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/evolve");
    let mut journals: BTreeMap<String, Vec<Contents>> = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().split('.').next().unwrap().to_string();
        journals.entry(name).or_default().push(journal::read(&path).unwrap());
    }
    journals.into_iter().map(|(name, journals)| (name, Recording::new(journals).unwrap())).collect()
}

#[test]
fn the_elite_beats_a_random_search_on_every_recorded_space() {
    let recorded = recorded();
    assert_eq!(recorded["cpu-mission"].space().points().len(), 624);
    for (name, recording) in recorded {
        let [random, elite] = [Policy::Random, Policy::Elite].map(|policy| median_evaluations(&recording, policy, 100));
        println!("{name}, {} points: random {random}, elite {elite}", recording.space().points().len());
        assert!(elite < random, "{name}: random {random}, elite {elite}");
        if name == "cpu-mission" {
            let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src/tuning.md");
            let page = std::fs::read_to_string(page).unwrap().replace('\n', " ");
            let told = format!("after {elite} evaluations, a random search after {random} (medians");
            assert!(page.replace("  ", " ").contains(&told), "the page lacks {told}");
        }
    }
}
