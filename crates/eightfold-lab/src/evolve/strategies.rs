//! Strategies against each other on a synthetic space, and what must hold of every search whatever its strategy.

use super::journal::tests::header;
use super::*;
use crate::evolve::space::Restriction;
use crate::evolve::traverse::View;
use eightfold::lab::Family;
use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::atomic::AtomicBool;

/// A recording of the CPU space without tiles, with made-up times: each knob has its effect, two of them together another.
fn synthetic() -> Recording {
    let family = Family::find("cpu").unwrap();
    let without_tiles = Restriction::parse(family, "numbers=f32,numbers=i16").unwrap();
    let space = Space::new(family, &without_tiles, &|_| Ok(())).unwrap();
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
    let script = r#"trial=$(sed 's/^{"version":2,"trial":\([0-9]*\),.*/\1/')
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
        [fate(8), Some("restricted"), Some("answer not understood"), Some("no answer"), Some("no answer")]
    );
    assert!(found.trials[8].variant.contains("tile_queries=64,tile_keys=128"), "{}", found.trials[8].variant);
    assert!(found.trials[20].fate.to_string().contains("the cpu kernel is not compiled at run time"));
    assert!([8, 12, 16, 20, 24, 28].iter().all(|trial| found.trials[*trial].origin.operator == Operator::Mutator));
    assert_eq!((found.ledger.calls, found.ledger.failed, found.ledger.cost), (6, 3, 2.0));
    assert_eq!(calls.len(), 6);
    let (again, _) = run(Mutator::Recorded(calls.into()));
    assert_eq!(again.trials, found.trials);
    assert_eq!(again.ledger, found.ledger);
}

#[test]
fn random_samples_are_few_even_where_many_are_proposed_before_anything_is_known() {
    let recording = synthetic();
    let baseline = recording.space().variant(&recording.space().points()[300]).unwrap().to_string();
    for window in [1, 16] {
        let header = Header {
            from_baseline: true,
            baseline: baseline.clone(),
            window,
            ..settings(Policy::Elite, 4, "40 trials")
        };
        let found = search(&recording, header);
        let count = |operator| found.trials.iter().filter(|trial| trial.origin.operator == operator).count();
        assert_eq!(count(Operator::Baseline), 1);
        assert!(4 * count(Operator::Sample) < 40, "{} of 40 with a window of {window}", count(Operator::Sample));
        // The places of the elite are for what was found.
        assert!(
            found.elite.len() == 3 && found.elite.iter().all(|trial| trial.variant != baseline),
            "{:?}",
            found.elite
        );
    }
}

/// A recording of a part of the ladder's space, with its own source and with two others: the one is always better, the other
/// always worse.
#[cfg(unix)]
fn with_sources() -> (Recording, [String; 2]) {
    let family = Family::find("ladder").unwrap();
    let restriction = "softmax=fused,qk=unpack,pv=unpack,copy=async2,exp=hardware,schedule=grid,producers=0,warps=4";
    let space = Space::new(family, &Restriction::parse(family, restriction).unwrap(), &|_| Ok(())).unwrap();
    let made = |answer: &str| {
        let reply: Reply = serde_json::from_str(answer).unwrap();
        reply.apply(family, "ladder/attention.cu", None).unwrap().unwrap().fingerprint().to_string()
    };
    let sources = ["a better idea", "a worse idea"].map(|note| made(&answer(note)));
    let mut trials = Vec::new();
    for (place, point) in space.points().iter().enumerate() {
        let variant = space.variant(point).unwrap().to_string();
        let knobs = 1.0 + 0.3 * (place as f64 / space.points().len() as f64);
        for (source, factor) in [(None, 1.0), (Some(&sources[0]), 1.5), (Some(&sources[1]), 0.5)] {
            let index = trials.len();
            let fate = Fate::Measured { speed_up: knobs * factor, p50_us: 1.0, timing: Depth::Quick };
            let mut trial = Trial { variant: variant.clone(), fate, ..journal::tests::trial(index) };
            trial.origin.source = source.cloned();
            trials.push(trial);
        }
    }
    let baseline = space.variant(&space.points()[0]).unwrap().to_string();
    let header = Header { kernel: "ladder".into(), baseline, ..header() };
    (Recording::new(vec![Contents { header, trials, calls: Vec::new(), torn: false }]).unwrap(), sources)
}

/// An answer with a whole file, so that it makes the same source of every parent.
#[cfg(unix)]
fn answer(note: &str) -> String {
    let text = format!("// {note}\n{}", eightfold::lab::compile::source_text("ladder/store.cuh").unwrap());
    serde_json::json!({ "note": note, "files": { "ladder/store.cuh": text } }).to_string()
}

#[test]
#[cfg(unix)]
fn sources_become_parents_and_elite_and_are_kept_beside_the_journal() {
    let (recording, [better, worse]) = with_sources();
    // By turns: good, bad, and what cannot be tried.
    let [good, bad] = ["a better idea", "a worse idea"].map(answer);
    let script = format!(
        r##"case $(sed 's/^{{"version":2,"trial":\([0-9]*\),.*/\1/') in
        4) cat <<'END'
{good}
END
        ;;
        6) cat <<'END'
{bad}
END
        ;;
        8) echo '{{"files": {{"../../x.cu": "x"}}}}';;
        10) echo '{{"edits": [{{"file": "ladder/store.cuh", "before": "stands nowhere", "after": "x"}}]}}';;
        12) echo '{{"files": {{"ladder/store.cuh": "#include \"ladder/none.cuh\""}}}}';;
        14) printf '\377\376';;
        *) echo '{{"note": "knobs", "config": "banks=swizzled"}}';;
        esac"##
    );
    let header = Header {
        mutator: Some("script".into()),
        mutator_every: 2,
        from_baseline: true,
        ..Header {
            replays: Some(String::new()),
            budget: Budget::parse("40 trials").unwrap(),
            ..recording.header().clone()
        }
    };
    let place = tempfile::tempdir().unwrap();
    let mutator = || Mutator::Command(script.clone(), std::time::Duration::from_secs(20));
    let run = |place: &Path, contents: Option<Contents>| {
        let evaluator = Evaluator::Recorded(Box::new(recording.clone()));
        let journal = match contents {
            None => (Journal::create(place, &header).unwrap(), None),
            Some(_) => Journal::resume(place).map(|(journal, contents)| (journal, Some(contents))).unwrap(),
        };
        let mut search =
            Search::new(header.clone(), recording.space().clone(), Some(journal), evaluator, Some(mutator()));
        search.run(&AtomicBool::new(false), &mut ()).unwrap()
    };
    let found = run(place.path(), None);
    let kind = |trial: usize| found.trials[trial].fate.failure();
    assert_eq!(
        [4, 6, 8, 10, 12, 14].map(kind),
        [None, None, Some("path outside"), Some("patch does not apply"), Some("bad source"), Some("answer not text")]
    );
    assert_eq!(found.elite.len(), 3);
    assert!(found.elite.iter().all(|trial| trial.origin.source.as_ref() == Some(&better)), "{:?}", found.elite);
    assert_eq!(found.sources.keys().collect::<Vec<_>>(), [&better]);
    let inherited = |trial: &&Trial| {
        trial.origin.source.as_ref() == Some(&better)
            && matches!(trial.origin.operator, Operator::Mutation | Operator::Crossover)
    };
    assert!(found.trials.iter().any(|trial| inherited(&trial)));
    let insight = |name: &str| found.insights.iter().find(|insight| insight.name == name).unwrap();
    assert_eq!((insight("a better idea").hits, insight("a worse idea").hits), (1, 0));
    for source in [&better, &worse] {
        let kept = crate::overlay::read(&crate::overlay::place(place.path(), source)).unwrap();
        assert_eq!(kept.fingerprint(), source.as_str());
    }
    // Resumed at its end it is the same, and its sources are told again.
    let contents = journal::read(place.path()).unwrap();
    assert_eq!(run(place.path(), Some(contents.clone())).trials, found.trials);
    let mut known = Search::of_known(contents).unwrap();
    let bundle: serde_json::Value = serde_json::from_str(&known.next_bundle().unwrap()).unwrap();
    assert_eq!((&bundle["version"], &bundle["trial"]), (&2.into(), &40.into()));
    let prompt = bundle["prompt"].as_str().unwrap();
    for told in ["a better idea (followed 1, helped 1", "patch does not apply", "--- ladder/attention.cu", "banks ("] {
        assert!(prompt.contains(told), "the prompt lacks {told}:\n{prompt}");
    }
    assert!(bundle["sources"]["attention/lanes.cuh"].is_string());
}

#[test]
fn what_a_mutator_is_asked_follows_from_what_is_known() {
    let recording = synthetic();
    let (space, insights) = (recording.space(), Insights::default());
    let (tried, order) = (HashSet::new(), Vec::new());
    let trial = |index, operator, fate, source: Option<&str>, parents: &[usize]| {
        let mut trial = Trial { index, fate, ..journal::tests::trial(index) };
        trial.origin = Origin { source: source.map(str::to_string), parents: parents.to_vec(), ..Origin::of(operator) };
        trial
    };
    let measured = |speed_up| Fate::Measured { speed_up, p50_us: 1.0, timing: Depth::Quick };
    let wrong = Fate::Wrong { reason: "made up".into() };
    let member = |trial, speed_up, source: Option<&str>| Member {
        trial,
        speed_up,
        genome: Genome { point: space.points()[trial].clone(), source: source.map(Into::into) },
    };
    let asked = |history: &[Trial], parents: &[Member]| -> Vec<(Asked, Vec<usize>)> {
        let view = View {
            space,
            policy: Policy::Elite,
            trial: 9,
            history,
            tried: &tried,
            order: &order,
            parents,
            insights: &insights,
        };
        (0..200).map(|draw| traverse::ask(&view, &mut traverse::generator(1, draw))).collect()
    };
    let baseline = trial(0, Operator::Baseline, measured(1.0), None, &[]);
    let one = trial(1, Operator::Mutator, measured(1.2), Some("a"), &[0]);
    let two = trial(2, Operator::Mutator, measured(1.1), Some("b"), &[0]);
    let bad = trial(3, Operator::Mutator, wrong, Some("c"), &[1]);
    let kinds = |asked: &[(Asked, Vec<usize>)]| {
        asked.iter().map(|(asked, _)| *asked as usize).collect::<std::collections::BTreeSet<_>>()
    };
    // Nothing of its own has held: it begins from the shipped source.
    let first = asked(std::slice::from_ref(&baseline), &[member(0, 1.0, None)]);
    assert!(first.iter().all(|one| *one == (Asked::Initial, vec![0])));
    let parents = [member(1, 1.2, Some("a")), member(2, 1.1, Some("b")), member(0, 1.0, None)];
    let later = asked(&[baseline.clone(), one.clone(), two.clone()], &parents);
    assert_eq!(kinds(&later), [Asked::Initial, Asked::Mutate, Asked::Cross].map(|one| one as usize).into());
    assert!(later.iter().all(|(asked, parents)| parents.len() == 1 + usize::from(*asked == Asked::Cross)));
    let failed = asked(&[baseline.clone(), one.clone(), two.clone(), bad.clone()], &parents);
    assert!(failed.contains(&(Asked::Explain, vec![1, 3])));
    // Once it was explained it is not asked about again.
    let mut explained = trial(4, Operator::Mutator, measured(0.9), Some("d"), &[1, 3]);
    explained.origin.asked = Some(Asked::Explain);
    assert!(!kinds(&asked(&[baseline, one, two, bad, explained], &parents)).contains(&(Asked::Explain as usize)));
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
