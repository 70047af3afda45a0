//! Two records against each other: only where both timed the same problem, on the same device, with the same timer.

use super::decision::not_itself;
use super::{Comparison, Side};
use crate::gates::Outcome;
use crate::measure::Timer;
use crate::record::{Entry, Group, ProblemRecord, Record, Timing};
use crate::verdict::{self, SpeedUp};
use eightfold::{Error, Result};

/// A record and what a person calls it.
pub struct RecordSide {
    /// The name of the run.
    pub name: String,
    /// What it recorded.
    pub record: Record,
}

/// One comparison for each variant that both records timed. The error names what differs where there is none.
///
/// The runs did not take turns, so whatever changed between them is in the ratio. A peer that both timed shows how much
/// that is: it stands for the baseline against itself.
pub fn compare_records(baseline: &RecordSide, candidate: &RecordSide, required_gain: f64) -> Result<Vec<Comparison>> {
    let mut comparisons = Vec::new();
    for before in timed_groups(&baseline.record) {
        let same = |after: &&Group| same_problem(&before.problem, &after.problem);
        let Some(after) = timed_groups(&candidate.record).find(same) else { continue };
        let itself = control(before, after);
        for (old, new) in pairs(before, after) {
            let (Some(old_timing), Some(new_timing)) = (&old.timing, &new.timing) else { continue };
            check_devices([baseline, candidate], old_timing.timer, new_timing.timer)?;
            check_caches(old_timing, new_timing)?;
            let speed_up = SpeedUp::of_separate_runs(&old_timing.samples, &new_timing.samples);
            let report = verdict::judge(&side_name(baseline, old), speed_up, required_gain);
            let unsound = itself.as_ref().and_then(|(peer, itself)| not_itself(peer, itself));
            comparisons.push(Comparison {
                shape: before.shape.clone(),
                problem: before.problem.clone(),
                baseline: side(baseline, old, old_timing),
                candidate: side(candidate, new, new_timing),
                timer: Some(old_timing.timer),
                required_gain,
                outcome: if unsound.is_some() { Outcome::Invalid } else { report.outcome },
                summary: unsound.unwrap_or(report.summary),
                speed_up,
                itself: itself.as_ref().map(|(_, itself)| *itself),
                seed: None,
                planted: None,
                conditions: None,
                cache: old_timing.cache,
                inputs: old_timing.inputs,
            });
        }
    }
    if comparisons.is_empty() { Err(nothing_in_common(baseline, candidate)) } else { Ok(comparisons) }
}

fn side_name(side: &RecordSide, entry: &Entry) -> String {
    format!("{} of {}", entry.name, side.name)
}

fn side(of: &RecordSide, entry: &Entry, timing: &Timing) -> Side {
    let p50_us = Some(timing.summary.p50_us);
    Side { name: side_name(of, entry), implementation: entry.implementation.clone(), p50_us }
}

fn timed_groups(record: &Record) -> impl Iterator<Item = &Group> {
    record.groups.iter().filter(|group| !group.sweep && ours(group).next().is_some())
}

fn ours(group: &Group) -> impl Iterator<Item = &Entry> {
    group.entries.iter().filter(|entry| !entry.peer && entry.timing.is_some())
}

/// The same variants by name, or by every knob; or the only ones there are.
fn pairs<'a>(before: &'a Group, after: &'a Group) -> Vec<(&'a Entry, &'a Entry)> {
    let (old, new): (Vec<_>, Vec<_>) = (ours(before).collect(), ours(after).collect());
    if let ([old], [new]) = (&old[..], &new[..]) {
        return vec![(old, new)];
    }
    let partner = |entry: &Entry| {
        let named = new.iter().find(|other| other.name == entry.name);
        named.or_else(|| new.iter().find(|other| other.implementation == entry.implementation)).copied()
    };
    old.into_iter().filter_map(|entry| Some((entry, partner(entry)?))).collect()
}

/// The first peer that both groups timed with the same timer, against itself.
fn control(before: &Group, after: &Group) -> Option<(String, SpeedUp)> {
    before.entries.iter().filter(|entry| entry.peer).find_map(|old| {
        let new = after.entries.iter().find(|new| new.peer && new.implementation == old.implementation)?;
        let (old_timing, new_timing) = (old.timing.as_ref()?, new.timing.as_ref()?);
        let same = old_timing.timer == new_timing.timer;
        let itself = SpeedUp::of_separate_runs(&old_timing.samples, &new_timing.samples).filter(|_| same)?;
        Some((old.name.clone(), itself))
    })
}

/// Whether both say the same about what is computed, as far as it takes time.
fn same_problem(a: &ProblemRecord, b: &ProblemRecord) -> bool {
    differences(a, b).is_empty()
}

pub(super) fn differences(a: &ProblemRecord, b: &ProblemRecord) -> Vec<String> {
    let sizes = |problem: &ProblemRecord| {
        let ProblemRecord { batch, query_heads, kv_heads, query_len, key_len, head_dim, value_dim, .. } = problem;
        let values = value_dim.map_or_else(String::new, |value_dim| format!("/{value_dim}"));
        format!("{batch},{query_heads},{kv_heads},{query_len},{key_len},{head_dim}{values}")
    };
    let mask = |problem: &ProblemRecord| if problem.causal { "causal" } else { "none" }.to_string();
    let window = |problem: &ProblemRecord| problem.window.clone().unwrap_or_else(|| "none".into());
    let softcap =
        |problem: &ProblemRecord| problem.softcap.map_or_else(|| "none".into(), |softcap| softcap.to_string());
    let sinks = |problem: &ProblemRecord| problem.sinks.to_string();
    let scale = |problem: &ProblemRecord| problem.softmax_scale.to_string();
    let lse = |problem: &ProblemRecord| problem.lse.to_string();
    let aspects: [(&str, String, String); 10] = [
        ("shape", sizes(a), sizes(b)),
        ("mask", mask(a), mask(b)),
        ("window", window(a), window(b)),
        ("softcap", softcap(a), softcap(b)),
        ("sinks", sinks(a), sinks(b)),
        ("softmax scale", scale(a), scale(b)),
        ("input format", a.input_format.clone(), b.input_format.clone()),
        ("output format", a.output_format.clone(), b.output_format.clone()),
        ("output layout", a.output_layout.clone(), b.output_layout.clone()),
        ("log-sum-exp", lse(a), lse(b)),
    ];
    let differing = aspects.into_iter().filter(|(_, a, b)| a != b);
    differing.map(|(aspect, a, b)| format!("{aspect} {a} and {b}")).collect()
}

/// What a timer's times depend on.
fn device(record: &Record, timer: Timer) -> String {
    let provenance = &record.provenance;
    match (timer, &provenance.gpu) {
        (Timer::HostClock, _) => format!("{} on {} threads", provenance.machine.cpu, provenance.threads),
        (_, Some(gpu)) => gpu.name.clone(),
        (_, None) => "an unknown GPU".into(),
    }
}

fn check_devices([baseline, candidate]: [&RecordSide; 2], old: Timer, new: Timer) -> Result<()> {
    let fix = "run both on one device with compare and two variants";
    if old != new {
        let rule = format!("the timers differ: {old:?} in {} and {new:?} in {}", baseline.name, candidate.name);
        return Err(Error::invalid("compare", rule, fix));
    }
    let [a, b] = [baseline, candidate].map(|side| device(&side.record, old));
    if a != b {
        let rule = format!("the devices differ: {a} in {} and {b} in {}", baseline.name, candidate.name);
        return Err(Error::invalid("compare", rule, fix));
    }
    Ok(())
}

fn check_caches(old: &Timing, new: &Timing) -> Result<()> {
    if old.cache == new.cache {
        return Ok(());
    }
    let rule = format!("the caches differ: {:?} in one record and {:?} in the other", old.cache, new.cache);
    Err(Error::invalid("compare", rule.to_lowercase(), "compare times on caches in the same state"))
}

/// Why nothing can be compared: the nearest problems and what sets them apart, or the variants.
fn nothing_in_common(baseline: &RecordSide, candidate: &RecordSide) -> Error {
    let sides = [baseline, candidate];
    if let Some(side) = sides.iter().find(|side| timed_groups(&side.record).next().is_none()) {
        let rule = format!("{} holds no time of a variant", side.name);
        return Error::invalid("compare", rule, "give records of the ladder, of bench or of compare");
    }
    let all = timed_groups(&baseline.record)
        .flat_map(|a| timed_groups(&candidate.record).map(move |b| differences(&a.problem, &b.problem)));
    let nearest = all.min_by_key(Vec::len).unwrap_or_default();
    let (what, fix) = if nearest.is_empty() {
        ("no variant is in both".into(), "give records that timed the same variants, or one each")
    } else {
        (format!("the problems differ: {}", nearest.join(", ")), "give records of the same problem")
    };
    Error::invalid("compare", format!("{what} ({} and {})", baseline.name, candidate.name), fix)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Samples;
    use crate::provenance::Provenance;
    use crate::record::Kind;
    use eightfold::{OutputFormat, Problem, Shape};

    fn timed(name: &str, timer: Timer, us: u64) -> Entry {
        let samples = Samples { ns: (0..100).map(|run| us * 1000 + run % 7).collect(), rounds: vec![10; 10] };
        Entry { timing: Timing::new(timer, samples), ..Entry::new(name, name) }
    }

    fn problem() -> Problem {
        Problem::new(Shape::new(1, 8, 512, 64)).unwrap()
    }

    fn side(name: &str, problem: &Problem, entries: Vec<Entry>) -> RecordSide {
        let mut record = Record::new(Kind::Bench, Provenance::capture(2));
        record.groups.push(Group { entries, ..Group::new("mission", problem) });
        RecordSide { name: name.into(), record }
    }

    fn host(name: &str, us: u64) -> Entry {
        timed(name, Timer::HostClock, us)
    }

    fn refusal(a: &RecordSide, b: &RecordSide) -> String {
        compare_records(a, b, 0.1).unwrap_err().to_string()
    }

    #[test]
    fn variants_meet_their_namesakes() {
        let a = side("old", &problem(), vec![host("x", 100), host("y", 100), host("z", 1)]);
        let b = side("new", &problem(), vec![host("y", 99), host("x", 50), host("w", 1)]);
        let found = compare_records(&a, &b, 0.1).unwrap();
        let words: Vec<_> = found.iter().map(|one| (one.baseline.name.as_str(), one.outcome)).collect();
        assert_eq!(words, [("x of old", Outcome::Pass), ("y of old", Outcome::Negative)]);
        assert!((found[0].speed_up.unwrap().ratio - 2.0).abs() < 1e-3);
    }

    #[test]
    fn one_variant_each_is_compared_whatever_its_name() {
        let (a, b) = (side("old", &problem(), vec![host("x", 100)]), side("new", &problem(), vec![host("y", 50)]));
        assert_eq!(compare_records(&a, &b, 0.1).unwrap()[0].candidate.name, "y of new");
    }

    #[test]
    fn a_peer_that_changed_makes_it_invalid() {
        let peer = |us| Entry { peer: true, ..host("torch", us) };
        let a = side("old", &problem(), vec![host("x", 100), peer(100)]);
        let b = |us| side("new", &problem(), vec![host("x", 50), peer(us)]);
        let outcome = |us| compare_records(&a, &b(us), 0.1).unwrap()[0].outcome;
        assert_eq!((outcome(101), outcome(90)), (Outcome::Pass, Outcome::Invalid));
    }

    #[test]
    fn what_differs_is_named() {
        let plain = side("old", &problem(), vec![host("x", 100)]);
        let causal = side("new", &problem().causal(), vec![host("x", 100)]);
        assert!(refusal(&plain, &causal).contains("the problems differ: mask none and causal"));
        let shorter = side("new", &Problem::new(Shape::new(1, 8, 32, 64)).unwrap(), vec![host("x", 100)]);
        assert!(refusal(&plain, &shorter).contains("shape 1,8,8,512,512,64 and 1,8,8,32,32,64"));
        let narrower = side("new", &problem().with_output_format(OutputFormat::Bf16), vec![host("x", 50)]);
        assert!(refusal(&plain, &narrower).contains("the problems differ: output format f32 and bf16"));
        let replayed = side("new", &problem(), vec![timed("x", Timer::GraphReplay, 100)]);
        assert!(refusal(&plain, &replayed).contains("the timers differ: HostClock in old and GraphReplay in new"));
        let mut elsewhere = side("new", &problem(), vec![host("x", 100)]);
        elsewhere.record.provenance.machine.cpu = "another CPU".into();
        assert!(refusal(&plain, &elsewhere).contains("the devices differ: "));
        let others = side("new", &problem(), vec![host("y", 100), host("z", 100)]);
        assert!(refusal(&plain, &others).contains("no variant is in both"));
        let untimed = side("new", &problem(), vec![Entry::new("x", "x")]);
        assert!(refusal(&plain, &untimed).contains("new holds no time"));
    }

    #[test]
    fn records_from_before_rounds_were_kept_decide_nothing() {
        let mut old = host("x", 100);
        old.timing.as_mut().unwrap().samples.rounds.clear();
        let (a, b) = (side("old", &problem(), vec![old]), side("new", &problem(), vec![host("x", 10)]));
        assert_eq!(compare_records(&a, &b, 0.1).unwrap()[0].outcome, Outcome::Inconclusive);
    }
}
