//! A folder of kept records, by topic: what is there, what is stale, what a newer record replaces.

use crate::compare::{Comparison, Side};
use crate::examine::OTHER_SOURCE;
use crate::kernel::{Kernel, recorded};
use crate::ledger::Evolution;
use crate::measure::HostGroup;
use crate::provenance::Provenance;
use crate::python::ShapeRun;
use crate::record::{BuildGroup, Entry, Group, Kind, ProblemRecord, Record};
use crate::sources;
use crate::store::{self, PACKED_FILE, RECORD_FILE};
use crate::verification::Check;
use eightfold::{Error, Result};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{fmt, fs};

/// A record that is kept.
#[derive(Debug, Clone)]
pub struct Filed {
    /// The folder that it is in, below the archive's own.
    pub topic: String,
    /// What tells it from others of its topic: the run's folder, or the file's name.
    pub name: String,
    /// The file.
    pub path: PathBuf,
    /// What it holds.
    pub record: Record,
}

/// Whether the sources of what a record measured have changed since.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Age {
    /// They are the same.
    Current,
    /// Those of these kernels have changed.
    Changed(Vec<String>),
    /// The record is from before sources had fingerprints.
    NoFingerprints,
    /// This program was built without a checkout, and has no fingerprints to compare with.
    Unknown,
}

impl Age {
    /// Whether what was measured is no longer what is there.
    pub fn is_stale(&self) -> bool {
        matches!(self, Age::Changed(_) | Age::NoFingerprints)
    }
}

impl fmt::Display for Age {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Age::Current => f.pad("current"),
            Age::Changed(kernels) => f.pad(&format!("stale: {} changed", kernels.join(", "))),
            Age::NoFingerprints => f.pad("stale: no fingerprints"),
            Age::Unknown => f.pad("unknown"),
        }
    }
}

impl Filed {
    /// The commit that was measured, as far as people write it.
    pub fn short_commit(&self) -> String {
        self.commit().map_or("unknown".into(), |commit| commit.chars().take(7).collect())
    }

    /// The day of the run.
    pub fn date(&self) -> String {
        let time = self.record.provenance.time_utc.compact();
        match (time.get(..4), time.get(4..6), time.get(6..8)) {
            (Some(year), Some(month), Some(day)) => format!("{year}-{month}-{day}"),
            _ => time,
        }
    }

    /// What it ran on; of kernels that were only compiled, the compiler.
    pub fn device(&self) -> String {
        let provenance = &self.record.provenance;
        match (&provenance.gpu, &provenance.nvrtc) {
            (Some(gpu), _) => gpu.name.clone(),
            (None, Some(nvrtc)) if self.record.kind == Kind::Build => format!("no device: compiled by {nvrtc}"),
            _ => format!("{}, {} threads", provenance.machine.cpu, provenance.threads),
        }
    }

    /// The fingerprints of the sources of the kernels that ran; of older records a search's own, or a dash.
    pub fn ran(&self) -> String {
        let then = &self.record.sources;
        let hashes = self.kernels().into_iter().filter_map(|kernel| then.get(kernel));
        let hashes: Vec<&str> = hashes.map(String::as_str).collect();
        match (&self.record.evolution, hashes.as_slice()) {
            (Some(search), []) => search.source_hash.clone(),
            (_, []) => "–".into(),
            (_, hashes) => hashes.join(" "),
        }
    }

    fn commit(&self) -> Option<&str> {
        let provenance = &self.record.provenance;
        provenance.commit()
    }

    /// The names of the kernels that it is about.
    fn kernels(&self) -> Vec<&str> {
        let record = &self.record;
        let entries = record.groups.iter().flat_map(|group| &group.entries).filter(|entry| !entry.peer);
        let built = record.builds.iter().flat_map(|group| &group.entries).map(|entry| &entry.implementation);
        let compared = record.comparisons.iter().map(|comparison| &comparison.candidate.implementation);
        let looked_at = record.verification.iter().flat_map(|verification| &verification.checks);
        let looked_at = looked_at.filter(|check| check.tool != "test").map(|check| &check.subject);
        let variants = entries.map(|entry| &entry.implementation).chain(built).chain(compared).chain(looked_at);
        let mut kernels: Vec<&str> = variants.filter_map(|variant| variant.split(':').next()).collect();
        kernels.extend(record.evolution.as_ref().map(|search| &*search.kernel));
        let launched = record.hosts.iter().flat_map(|group| &group.entries);
        kernels.extend(launched.filter_map(|entry| entry.implementation.split(':').next()));
        let called = record.python.iter().flat_map(|run| &run.shapes);
        kernels.extend(called.filter_map(|shape| shape.kernel.split(':').next()));
        kernels.extend((!record.quantizers.is_empty() || record.python.is_some()).then_some("quantize"));
        kernels.extend((!record.paged.is_empty()).then_some("paged"));
        if record.kind == Kind::Tests {
            kernels.extend(["hopper", "ladder", "quantize"]);
            let of_pages = |check: &Check| check.subject.starts_with("paged::");
            let has_pages = record.verification.iter().flat_map(|one| &one.checks).any(of_pages);
            kernels.extend(has_pages.then_some(["paged", "ragged"]).into_iter().flatten());
        }
        let mutated = record.mutants.iter().flat_map(|trial| &trial.tried);
        let folders = mutated.filter_map(|tried| tried.file.split('/').next());
        kernels.extend(folders.filter(|folder| sources::of(folder).is_some()));
        kernels.sort_unstable();
        kernels.dedup();
        kernels
    }

    /// Whether this one, which is newer, has all that another has; tries of a comparison and searches are never replaced.
    fn replaces(&self, old: &Filed) -> bool {
        let (new, record) = (&self.record, &old.record);
        if (&self.topic, new.kind, self.device()) != (&old.topic, record.kind, old.device()) {
            return false;
        }
        match record.kind {
            Kind::Evolve => false,
            Kind::Compare => {
                let side = |one: &Comparison| [&one.baseline, &one.candidate].map(|side| side.name.clone());
                let about = |one: &Comparison| (one.shape.clone(), one.problem.causal, side(one));
                let alone = |record: &Record| record.comparisons.len() == 1;
                alone(new) && alone(record) && about(&new.comparisons[0]) == about(&record.comparisons[0])
            }
            Kind::Quantizer => {
                let has = |shape: &str| new.quantizers.iter().any(|group| group.shape == shape);
                record.quantizers.iter().all(|group| has(&group.shape))
            }
            Kind::Paged => {
                let has = |case: &str| new.paged.iter().any(|group| group.case == case);
                record.paged.iter().all(|group| has(&group.case))
            }
            Kind::Build => {
                let has = |old: &BuildGroup| new.builds.iter().any(|group| group.kind() == old.kind());
                self.kernels() == old.kernels() && record.builds.iter().all(has)
            }
            Kind::Host => {
                let about = |group: &HostGroup| (group.shape.clone(), group.problem.clone());
                record.hosts.iter().all(|group| new.hosts.iter().any(|other| about(other) == about(group)))
            }
            Kind::Mutants => {
                let place = |record: &Record| record.mutants.as_ref().map(|trial| trial.on);
                place(new) == place(record)
            }
            Kind::Python => {
                let about = |shape: &ShapeRun| (shape.batch, shape.heads, shape.len, shape.head_dim, shape.causal);
                let shapes = |record: &Record| record.python.iter().flat_map(|run| &run.shapes).map(about).collect();
                let has_host = |record: &Record| record.python.iter().any(|run| run.host.is_some());
                let (all, old): (Vec<_>, Vec<_>) = (shapes(new), shapes(record));
                has_host(new) >= has_host(record) && old.iter().all(|shape| all.contains(shape))
            }
            Kind::Sanitizer | Kind::Tests => old.kernels().iter().all(|kernel| self.kernels().contains(kernel)),
            Kind::Ladder | Kind::Gate | Kind::Ablation | Kind::Survey | Kind::Bench | Kind::Profile | Kind::Run => {
                let covers = |old: &Group| new.groups.iter().any(|group| covers(group, old, record.kind));
                let kernels = self.kernels();
                let has_all = old.kernels().iter().all(|kernel| kernels.contains(kernel));
                !record.groups.is_empty() && has_all && record.groups.iter().all(covers)
            }
        }
    }
}

/// Whether a group has all that an older one of the same problem has. A peer that could not be timed stands for none that
/// was. Stages are renamed over time: where they are timed it is enough that there are as many.
fn covers(new: &Group, old: &Group, kind: Kind) -> bool {
    let names = |group: &Group, peer: bool| -> Vec<String> {
        let counts = |entry: &&Entry| entry.peer == peer && (!peer || entry.timing.is_some());
        group.entries.iter().filter(counts).map(|entry| entry.name.clone()).collect()
    };
    let includes = |peer: bool| {
        let all = names(new, peer);
        // A peer that had one kind stands for itself in each: `torch` for `torch-f32`.
        let is_kind = |new: &str, old: &str| new.strip_prefix(old).is_some_and(|rest| rest.starts_with('-'));
        let has = |name: &String| all.iter().any(|new| new == name || peer && is_kind(new, name));
        names(old, peer).iter().all(has)
    };
    let about = |group: &Group| {
        let ProblemRecord { causal, value_dim, window, softcap, sinks, input_format, .. } = group.problem.clone();
        (group.shape.clone(), group.sweep, causal, value_dim, window, softcap, sinks, input_format)
    };
    let same = about(new) == about(old);
    let enough = !matches!(kind, Kind::Run | Kind::Gate) && names(new, false).len() >= names(old, false).len();
    same && includes(true) && (enough || includes(false))
}

/// The topic that a record belongs to, which is the folder that it is kept in.
pub fn topic(record: &Record) -> &'static str {
    let ours = || record.groups.iter().flat_map(|group| &group.entries).filter(|entry| !entry.peer);
    let is = |entry: &Entry, kernel: &str| entry.implementation.split(':').next() == Some(kernel);
    let of = |kernel: &str| ours().any(|entry| is(entry, kernel));
    match record.kind {
        Kind::Run | Kind::Build | Kind::Sanitizer | Kind::Tests | Kind::Mutants => "correctness",
        Kind::Compare if record.comparisons.len() > 1 => "planted",
        Kind::Compare => "comparisons",
        Kind::Evolve => "searches",
        Kind::Quantizer => "quantizer",
        Kind::Paged => "serving",
        Kind::Host => "launch",
        Kind::Python => "python",
        // The main job shows another kernel's rows below those of the ladder.
        Kind::Ladder if ours().next().is_some_and(|entry| is(entry, "ladder")) => "ladder",
        _ if of("hopper") => "hopper",
        _ if of("ladder") => "ladder",
        _ => "cpu",
    }
}

/// Copies every record below one folder into the topics of another, compressed. What pages cannot use is an error before
/// anything is copied: builds that were not for release, and checkouts with changes.
pub fn adopt(from: &Path, to: &Path) -> Result<Vec<PathBuf>> {
    let found = read(from)?;
    let refuse = |filed: &Filed, rule: &str, fix: &str| {
        Err(Error::invalid("adopt", format!("{} {rule}", filed.path.display()), fix))
    };
    for filed in &found {
        let provenance: &Provenance = &filed.record.provenance;
        if !provenance.release {
            return refuse(filed, "is not of a release build", "build with --release and measure again");
        }
        if !provenance.is_of_its_commit() {
            return refuse(filed, "is of no commit, or of changed files", "commit, and measure again");
        }
        if filed.record.kind == Kind::Python && provenance.gpu.is_none() {
            return refuse(filed, "was rehearsed without a device", "make it on a machine with a GPU");
        }
        let entries = filed.record.groups.iter().flat_map(|group| &group.entries).map(|entry| &entry.implementation);
        let built = filed.record.builds.iter().flat_map(|group| &group.entries).map(|entry| &entry.implementation);
        let is_changed = entries.chain(built).any(|implementation| implementation.contains(OTHER_SOURCE));
        if is_changed && filed.record.kind != Kind::Evolve {
            return refuse(filed, "is of changed sources and not of the kernel's own", "remove the record");
        }
        if filed.record.kind != Kind::Evolve && filed.record.failed() {
            return refuse(filed, "holds a gate that failed", "mend what failed, or remove the record");
        }
    }
    let mut adopted = Vec::new();
    for filed in &found {
        let run = filed.path.parent().and_then(Path::file_name).unwrap_or_default();
        let folder = to.join(topic(&filed.record)).join(run);
        let place = folder.join(RECORD_FILE);
        fs::create_dir_all(&folder).map_err(|error| {
            let rule = format!("`{}` cannot be made: {error}", folder.display());
            Error::invalid("adopt", rule, "name a folder that can be written to")
        })?;
        store::write_file(&place, filed.record.to_json().as_bytes())?;
        adopted.push(store::pack(&place)?);
    }
    Ok(adopted)
}

/// Every record below a folder, by topic and name.
pub fn read(folder: &Path) -> Result<Vec<Filed>> {
    let mut filed = Vec::new();
    for path in files(folder) {
        let is_record = path.file_name().is_some_and(|name| name == RECORD_FILE);
        if !is_record && path.extension().is_none_or(|extension| extension != "gz") {
            continue;
        }
        let inside = path.strip_prefix(folder).unwrap_or(&path).to_string_lossy().replace('\\', "/");
        let inside = [PACKED_FILE, RECORD_FILE].iter().find_map(|file| inside.strip_suffix(file)).unwrap_or(&inside);
        let inside = inside.trim_end_matches('/').trim_end_matches(".json.gz");
        let (topic, name) = inside.split_once('/').unwrap_or(("", inside));
        filed.push(Filed { topic: topic.into(), name: name.into(), record: Record::read(&path)?, path });
    }
    filed.sort_by(|a, b| (&a.topic, &a.name).cmp(&(&b.topic, &b.name)));
    Ok(filed)
}

/// The records below a folder that are not compressed.
pub fn unpacked(folder: &Path) -> Vec<PathBuf> {
    let is_json = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "json");
    files(folder).into_iter().filter(is_json).filter(|path| Record::read(path).is_ok()).collect()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut files: Vec<_> = entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect();
    files.sort();
    files
}

/// Which of these a newer one replaces.
pub fn superseded(filed: &[Filed]) -> Vec<usize> {
    let time = |filed: &Filed| filed.record.provenance.time_utc;
    let is_old = |index: &usize| {
        let old = &filed[*index];
        // What lies in a run's folder of its own may go; files that were given names belong together.
        let own_folder = old.path.file_name().is_some_and(|name| name == PACKED_FILE || name == RECORD_FILE);
        own_folder && filed.iter().any(|new| time(new) > time(old) && new.replaces(old))
    };
    (0..filed.len()).filter(is_old).collect()
}

/// Removes a record and its run's folder.
pub fn remove(filed: &Filed) -> Result<()> {
    let folder = filed.path.parent().unwrap_or(&filed.path);
    fs::remove_dir_all(folder).map_err(|error| {
        let rule = format!("`{}` cannot be removed: {error}", folder.display());
        Error::invalid("prune", rule, "remove it by hand, or leave --prune out")
    })
}

/// Which of these say nothing any more. A comparison of two builds does while the newer one's sources are those of today, and until
/// the same kernel was compared on the same device once more. One of two variants does while both can be built, or while a verdict
/// of the ledger rests on it.
pub fn outlived(filed: &[Filed]) -> Vec<usize> {
    let judged = judged(filed);
    let of_builds = |filed: &Filed| {
        filed.record.kind == Kind::Compare && filed.record.comparisons.iter().any(|one| one.candidate.build().is_some())
    };
    let has_newer = |old: &Filed| {
        let newer = |new: &&Filed| new.record.provenance.time_utc > old.record.provenance.time_utc;
        let like = |new: &Filed| of_builds(new) && (new.kernels(), new.device()) == (old.kernels(), old.device());
        filed.iter().filter(newer).any(like)
    };
    let says_nothing = |filed: &Filed| match filed.record.comparisons.as_slice() {
        [one] if filed.record.kind == Kind::Compare => {
            let [a, b] = [&one.baseline, &one.candidate];
            if b.build().is_some() {
                return age(filed).is_stale() && has_newer(filed);
            }
            let can_be_built = |side: &Side| recorded(&side.implementation).is_ok();
            !(judged.contains(&filed.path) || can_be_built(a) && can_be_built(b))
        }
        _ => false,
    };
    (0..filed.len()).filter(|index| says_nothing(&filed[*index])).collect()
}

/// The comparisons that verdicts of the ledgers rest on.
fn judged(filed: &[Filed]) -> BTreeSet<PathBuf> {
    let compared = filed.iter().rev().filter(|filed| filed.record.kind == Kind::Compare);
    let records: Vec<(PathBuf, Record)> = compared.map(|filed| (filed.path.clone(), filed.record.clone())).collect();
    let ledgers = Kernel::all().map(|kernel| Evolution::new(kernel, None).with_comparisons(&records));
    let verdicts = ledgers.flat_map(|ledger| ledger.optimisations).filter_map(|one| one.measured);
    verdicts.map(|measured| PathBuf::from(measured.record)).collect()
}

/// Whether the sources of the kernels that ran have changed since, by their fingerprints. A record without fingerprints is
/// older than they are.
pub fn age(filed: &Filed) -> Age {
    let then = &filed.record.sources;
    if sources::all().is_empty() {
        return Age::Unknown;
    }
    if then.is_empty() {
        return Age::NoFingerprints;
    }
    let changed = |kernel: &&str| then.get(*kernel).is_some_and(|hash| sources::of(kernel).as_ref() != Some(hash));
    let changed: Vec<String> = filed.kernels().into_iter().filter(changed).map(String::from).collect();
    if changed.is_empty() { Age::Current } else { Age::Changed(changed) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gates::Outcome;
    use crate::ledger::Ledger;
    use crate::measure::Cache;
    use crate::mutants::{Fate, Mutants, Place, Trial};
    use crate::profile::fixed_data::timed;
    use crate::provenance::Provenance;
    use crate::store::{Store, pack};
    use crate::verification::Verification;
    use eightfold::{Problem, Shape};

    fn record(names: &[&str]) -> Record {
        let problem = Problem::new(Shape::new(1, 1, 8, 8)).unwrap();
        let mut record = Record::new(Kind::Run, Provenance::capture(1));
        let entries = names.iter().map(|name| Entry::new(*name, format!("cpu:{name}"))).collect();
        record.groups.push(Group { entries, ..Group::new("x", &problem) });
        record
    }

    fn filed(kind: Kind, time: &str, names: &[&str]) -> Filed {
        let mut record = Record { kind, ..record(names) };
        record.provenance.time_utc = time.to_string().try_into().unwrap();
        let path = PathBuf::from(time).join(RECORD_FILE);
        Filed { topic: topic(&record).into(), name: time.into(), path, record }
    }

    const OLD: &str = "2026-01-01T00:00:00Z";
    const NEW: &str = "2026-01-02T00:00:00Z";

    #[test]
    fn a_newer_record_of_the_same_replaces_an_older_one() {
        let place = tempfile::tempdir().unwrap();
        for (names, time) in [(["a"], OLD), (["a"], NEW), (["b"], OLD)] {
            let Filed { record, .. } = filed(Kind::Run, time, &names);
            let path = Store::open(place.path().join("topic")).unwrap().write(&record).unwrap();
            pack(&path).unwrap();
        }
        let found = read(place.path()).unwrap();
        assert_eq!(found.len(), 3);
        assert!(found.iter().all(|filed| filed.topic == "topic"));
        assert_eq!(Some(found[0].ran()), sources::of("cpu"));
        let old = superseded(&found);
        assert_eq!(old.len(), 1);
        assert_eq!((found[old[0]].date().as_str(), found[old[0]].kernels()), ("2026-01-01", vec!["cpu"]));
        remove(&found[old[0]]).unwrap();
        assert_eq!(superseded(&read(place.path()).unwrap()), Vec::<usize>::new());
        assert!(unpacked(place.path()).is_empty());
    }

    #[test]
    fn stages_that_were_renamed_are_replaced_where_they_were_timed_and_peers_are_not_lost() {
        let old = |all: [Filed; 2]| superseded(&all);
        assert_eq!(old([filed(Kind::Bench, OLD, &["a"]), filed(Kind::Bench, NEW, &["b", "c"])]), [0]);
        assert_eq!(old([filed(Kind::Bench, OLD, &["a", "b"]), filed(Kind::Bench, NEW, &["c"])]), Vec::<usize>::new());
        assert_eq!(old([filed(Kind::Run, OLD, &["a"]), filed(Kind::Run, NEW, &["b", "c"])]), Vec::<usize>::new());
        let mut beside = filed(Kind::Bench, OLD, &["a", "torch"]);
        beside.record.groups[0].entries[1].peer = true;
        let timing = timed("hopper:fast", "1,8,512,64", 1, 1.0, &[]).groups[0].entries[0].timing.clone();
        let mut newer = Filed { name: NEW.into(), ..beside.clone() };
        newer.record.provenance.time_utc = NEW.to_string().try_into().unwrap();
        beside.record.groups[0].entries[1].timing = timing.clone();
        assert_eq!(old([beside.clone(), filed(Kind::Bench, NEW, &["a", "b"])]), Vec::<usize>::new());
        // Where the peer could not be timed the older times stay.
        assert_eq!(old([beside.clone(), newer.clone()]), Vec::<usize>::new());
        newer.record.groups[0].entries[1].timing = timing;
        assert_eq!(old([beside.clone(), newer.clone()]), [0]);
        // A peer that has kinds by now.
        newer.record.groups[0].entries[1].name = "torch-f32".into();
        assert_eq!(old([beside, newer]), [0]);
    }

    #[test]
    fn a_window_is_another_problem_of_the_same_shape() {
        let (plain, mut windowed) = (filed(Kind::Run, OLD, &["a"]), filed(Kind::Run, NEW, &["a"]));
        assert_eq!(superseded(&[plain.clone(), windowed.clone()]), [0]);
        windowed.record.groups[0].problem.window = Some("63,0".into());
        assert_eq!(superseded(&[plain, windowed]), Vec::<usize>::new());
    }

    #[test]
    fn tests_and_mutants_are_of_the_kernels_that_they_name() {
        let mut tests = filed(Kind::Tests, NEW, &[]);
        assert_eq!(tests.kernels(), ["hopper", "ladder", "quantize"]);
        let check = Check { subject: "paged::one".into(), tool: "test".into(), findings: 0 };
        let by = String::new();
        tests.record.verification = Some(Verification { by: by.clone(), on: by, checks: vec![check] });
        assert_eq!(tests.kernels(), ["hopper", "ladder", "paged", "quantize", "ragged"]);
        let mut mutants = filed(Kind::Mutants, NEW, &[]);
        let all = Mutants::embedded();
        let tried = all.named(&["parity-never-flips".into(), "merge-skips-a-part".into()]).unwrap();
        let tried = tried.into_iter().map(|mutant| all.report(mutant, Fate::Survived).unwrap()).collect();
        mutants.record.mutants = Some(Trial { on: Place::Device, tried });
        assert_eq!(mutants.kernels(), ["hopper"]);
    }

    #[test]
    fn a_record_is_stale_when_the_sources_of_its_own_kernels_change() {
        let mut one = filed(Kind::Run, NEW, &["a"]);
        assert_eq!(age(&one), Age::Current);
        one.record.sources.insert("hopper".into(), "0".into());
        assert_eq!(age(&one), Age::Current);
        let mut old = one.clone();
        old.record.sources.clear();
        assert_eq!(age(&old), Age::NoFingerprints);
        one.record.sources.insert("cpu".into(), "0".into());
        assert_eq!(age(&one), Age::Changed(vec!["cpu".into()]));
    }

    #[test]
    fn a_comparison_stays_while_it_says_something() {
        let knobs = "cpu:numbers=f32,simd=avx2";
        let gone = "cpu:no-such-knob=1";
        let entry = Ledger::of(Kernel::HOPPER).optimisations.into_iter().find(|entry| entry.retired).unwrap();
        let compared = |baseline: &str, candidate: &str| {
            let side = |text: &str| Side { name: text.into(), implementation: text.into(), p50_us: Some(1.0) };
            let mut one = filed(Kind::Compare, NEW, &[]);
            one.path = PathBuf::from(baseline).join(candidate);
            one.record.comparisons.push(Comparison {
                shape: entry.shape.clone(),
                problem: (&entry.problem().unwrap()).into(),
                baseline: side(baseline),
                candidate: side(candidate),
                timer: None,
                required_gain: 0.02,
                outcome: Outcome::Pass,
                summary: String::new(),
                speed_up: None,
                itself: None,
                seed: Some(1),
                planted: None,
                conditions: None,
                cache: Cache::Hot,
                inputs: 1,
            });
            one
        };
        let build = |knobs: &str| format!("{knobs} of eightfold 0.1.0, commit 0123456");
        let mut of_old_sources = compared(&build(knobs), &build(knobs));
        of_old_sources.record.sources.insert("cpu".into(), "0".into());
        assert_eq!(outlived(std::slice::from_ref(&of_old_sources)), [0usize; 0], "it is the newest there is");
        of_old_sources.record.provenance.time_utc = OLD.to_string().try_into().unwrap();
        let all = [
            compared(knobs, knobs),
            compared(knobs, gone),
            compared(&build(gone), &build(knobs)),
            of_old_sources,
            compared(&entry.without, &entry.with),
            compared(&entry.with, &entry.without),
            filed(Kind::Run, OLD, &["a"]),
        ];
        assert_eq!(outlived(&all), [1, 3, 5]);
    }

    #[test]
    fn calls_of_the_python_package_are_of_their_kernels_and_are_replaced_by_shape() {
        let made = |time: &str, shapes: usize| {
            let mut one = filed(Kind::Python, time, &[]);
            let (mut run, _) = crate::python::read(include_str!("../fixtures/python.json")).unwrap();
            run.shapes.truncate(shapes);
            one.record.python = Some(run);
            one
        };
        let old = made(OLD, 2);
        assert_eq!((old.topic.as_str(), old.kernels()), ("python", vec!["hopper", "quantize"]));
        assert_eq!(superseded(&[made(OLD, 2), made(NEW, 2)]), [0]);
        assert_eq!(superseded(&[made(OLD, 2), made(NEW, 1)]), Vec::<usize>::new());
        let mut calls_alone = made(NEW, 2);
        calls_alone.record.python.as_mut().unwrap().host = None;
        assert_eq!(superseded(&[made(OLD, 2), calls_alone]), Vec::<usize>::new());
    }

    #[test]
    fn new_records_go_to_their_topics_and_what_no_page_can_use_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let (from, to) = (place.path().join("new"), place.path().join("results"));
        let Filed { mut record, .. } = filed(Kind::Ladder, NEW, &["a"]);
        record.provenance.built_from = Some("0123456".into());
        let checkout = |dirty| Some(crate::provenance::Checkout { commit: "0123456".into(), dirty });
        (record.provenance.release, record.provenance.checkout) = (true, checkout(true));
        let path = Store::open(&from).unwrap().write(&record).unwrap();
        let error = adopt(&from, &to).unwrap_err().to_string();
        assert!(error.contains("is of no commit, or of changed files; commit, and measure again"), "{error}");
        assert!(!to.exists());
        record.provenance.checkout = checkout(false);
        Store::rewrite(&path, &Record { kind: Kind::Python, ..record.clone() }).unwrap();
        let error = adopt(&from, &to).unwrap_err().to_string();
        assert!(error.contains("was rehearsed without a device"), "{error}");
        Store::rewrite(&path, &record).unwrap();
        let adopted = adopt(&from, &to).unwrap();
        assert_eq!(adopted, [to.join("cpu/20260102T000000Z-ladder/record.json.gz")]);
        assert_eq!(Record::read(&adopted[0]).unwrap(), record);
    }
}
