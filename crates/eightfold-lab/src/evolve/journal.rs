//! The journal of a search: a line for every outcome, on disk before the search goes on.
//!
//! A line is a checksum and a JSON object. What is written is never changed; a process that dies loses at most the
//! candidates in flight and leaves at most one torn line, which the next one drops. The whole search follows from the
//! header's seed and the outcomes, so that a search that reads them again continues as if nothing had happened.

use super::budget::Budget;
use super::mutator::Call;
use super::population::Policy;
use super::trial::Trial;
use crate::record::ProblemRecord;
use eightfold::{Error, Problem, Result};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The name of a journal inside its search's folder.
pub const JOURNAL_FILE: &str = "journal.log";

/// The version of the format.
pub const SCHEMA: u32 = 1;

/// How often, and after which time, a journal that is in use is looked at again.
const LOCK_TRIES: usize = 20;
const LOCK_WAIT: Duration = Duration::from_millis(50);

/// What a search is: everything that its course follows from, but the outcomes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// [`SCHEMA`] at the time of writing.
    pub schema: u32,
    /// The kernel family.
    pub kernel: String,
    /// The hash of the kernel's sources.
    pub source_hash: String,
    /// What the candidates run on.
    pub device: String,
    /// What a person calls the shape.
    pub shape: String,
    /// What is computed.
    pub problem: ProblemRecord,
    /// The variant that all others are timed against.
    pub baseline: String,
    /// Whether the baseline is the first candidate.
    pub from_baseline: bool,
    /// The seed.
    pub seed: u64,
    /// Who is kept.
    pub policy: Policy,
    /// How many are kept.
    pub keep: usize,
    /// The values that may be tried, as the user restricted them.
    pub restriction: String,
    /// Candidates that may be under way at a time.
    pub window: usize,
    /// When the search ends, unless told otherwise when it is resumed.
    pub budget: Budget,
    /// More problems that are searched for together with the first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub more: Vec<Target>,
    /// The accuracy mode that is searched, if not the library's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<String>,
    /// Whether the simulated device stands for a GPU, and counted work for time.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub on_simulator: bool,
    /// Every so many trials are the mutator's, if there is one.
    #[serde(default = "every_fourth")]
    pub mutator_every: usize,
    /// The program that makes some of the candidates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mutator: Option<String>,
    /// The fingerprint of the recording that stands for the device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replays: Option<String>,
}

/// One of the problems that are searched for together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Target {
    /// What a person calls the shape.
    pub shape: String,
    /// What is computed.
    pub problem: ProblemRecord,
    /// The variant that all others are timed against.
    pub baseline: String,
}

/// As it was in searches from before this could be chosen.
pub fn every_fourth() -> usize {
    4
}

/// One line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Header(Box<Header>),
    Trial(Box<Trial>),
    Call(Box<Call>),
}

/// What a journal holds.
#[derive(Debug, Clone, PartialEq)]
pub struct Contents {
    /// What the search is.
    pub header: Header,
    /// Every outcome, in the order in which they came.
    pub trials: Vec<Trial>,
    /// Every call of the mutator.
    pub calls: Vec<Call>,
    /// Whether the last line was torn, and left out.
    pub torn: bool,
}

/// A journal that is open for writing. Nobody else can open it meanwhile.
#[derive(Debug)]
pub struct Journal {
    file: File,
    path: PathBuf,
}

impl Journal {
    /// Begins a journal in this folder, which is made if need be.
    pub fn create(folder: &Path, header: &Header) -> Result<Journal> {
        let path = folder.join(JOURNAL_FILE);
        let opened = std::fs::create_dir_all(folder)
            .and_then(|()| OpenOptions::new().read(true).append(true).create_new(true).open(&path));
        let file = opened.map_err(|error| unwritable(&path, &error))?;
        let mut journal = Journal { file, path }.locked()?;
        journal.append(&Line::Header(Box::new(header.clone())))?;
        // The name must survive as well as the bytes.
        if cfg!(unix) {
            File::open(folder)
                .and_then(|folder| folder.sync_all())
                .map_err(|error| unwritable(&journal.path, &error))?;
        }
        Ok(journal)
    }

    /// Opens a journal to go on with it; a torn last line is cut off.
    pub fn resume(folder: &Path) -> Result<(Journal, Contents)> {
        let path = folder.join(JOURNAL_FILE);
        let opened = OpenOptions::new().read(true).append(true).open(&path);
        let file = opened.map_err(|error| unreadable(&path, &format!("cannot be opened: {error}")))?;
        let mut journal = Journal { file, path }.locked()?;
        let mut bytes = Vec::new();
        let read = journal.file.seek(SeekFrom::Start(0)).and_then(|_| journal.file.read_to_end(&mut bytes));
        read.map_err(|error| unreadable(&journal.path, &error.to_string()))?;
        let (contents, sound) = parse(&bytes, &journal.path)?;
        if sound < bytes.len() {
            let cut = journal.file.set_len(sound as u64).and_then(|()| journal.file.sync_all());
            cut.map_err(|error| unwritable(&journal.path, &error))?;
        }
        Ok((journal, contents))
    }

    /// The folder that it is in.
    pub fn folder(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("."))
    }

    fn locked(self) -> Result<Journal> {
        // A process that a killed search was just starting holds the lock until it is started.
        let mut locked = self.file.try_lock();
        for _ in 0..LOCK_TRIES {
            if !matches!(locked, Err(TryLockError::WouldBlock)) {
                break;
            }
            std::thread::sleep(LOCK_WAIT);
            locked = self.file.try_lock();
        }
        match locked {
            Ok(()) => Ok(self),
            Err(TryLockError::WouldBlock) => Err(Error::invalid(
                "resume",
                format!("{} is in use by another search", self.path.display()),
                "wait until it ends, or end it",
            )),
            // A file system without locks is no reason not to search.
            Err(TryLockError::Error(_)) => Ok(self),
        }
    }

    /// Keeps an outcome; it is on disk when this returns.
    pub fn keep_trial(&mut self, trial: &Trial) -> Result<()> {
        self.append(&Line::Trial(Box::new(trial.clone())))
    }

    /// Keeps a call of the mutator.
    pub fn keep_call(&mut self, call: &Call) -> Result<()> {
        self.append(&Line::Call(Box::new(call.clone())))
    }

    fn append(&mut self, line: &Line) -> Result<()> {
        let written = self.file.write_all(encode(line).as_bytes()).and_then(|()| self.file.sync_data());
        written.map_err(|error| unwritable(&self.path, &error))
    }
}

/// Reads a journal without opening it for writing, such as one that is to be replayed.
pub fn read(path: &Path) -> Result<Contents> {
    let path = if path.is_dir() { path.join(JOURNAL_FILE) } else { path.to_path_buf() };
    let bytes = std::fs::read(&path).map_err(|error| unreadable(&path, &format!("cannot be read: {error}")))?;
    parse(&bytes, &path).map(|(contents, _)| contents)
}

/// A whole journal as text, for one that is put together from others.
pub fn to_text(header: &Header, trials: &[Trial]) -> String {
    let header = encode(&Line::Header(Box::new(header.clone())));
    let trials = trials.iter().map(|trial| encode(&Line::Trial(Box::new(trial.clone()))));
    std::iter::once(header).chain(trials).collect()
}

fn encode(line: &Line) -> String {
    let json = serde_json::to_string(line).expect("a line holds only plain data with string keys");
    format!("{:016x} {json}\n", checksum(json.as_bytes()))
}

/// FNV-1a over bytes, 64 bits.
pub(super) fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

fn decode(line: &[u8]) -> Option<Line> {
    let line = std::str::from_utf8(line).ok()?;
    let (sum, json) = line.split_once(' ')?;
    (sum.len() == 16 && u64::from_str_radix(sum, 16) == Ok(checksum(json.as_bytes()))).then_some(())?;
    serde_json::from_str(json).ok()
}

/// What the bytes hold, and how many of them are sound: a line that is not may only be the last.
fn parse(bytes: &[u8], path: &Path) -> Result<(Contents, usize)> {
    let mut header = None;
    let (mut trials, mut calls) = (Vec::new(), Vec::new());
    let mut sound = 0;
    for (number, line) in bytes.split_inclusive(|byte| *byte == b'\n').enumerate() {
        let end = sound + line.len();
        let parsed = line.strip_suffix(b"\n").and_then(decode);
        let Some(parsed) = parsed else {
            if end < bytes.len() {
                return Err(unreadable(path, &format!("is damaged in line {}", number + 1)));
            }
            break;
        };
        match (parsed, &header) {
            (Line::Header(found), None) if found.schema == SCHEMA => header = Some(*found),
            (Line::Header(found), None) => {
                let rule = format!("has schema {}, and this version reads {SCHEMA}", found.schema);
                return Err(unreadable(path, &rule));
            }
            (Line::Trial(trial), Some(_)) => trials.push(*trial),
            (Line::Call(call), Some(_)) => calls.push(*call),
            _ => return Err(unreadable(path, &format!("has its header not in line 1 but around line {}", number + 1))),
        }
        sound = end;
    }
    let header = header.ok_or_else(|| unreadable(path, "has no header"))?;
    Ok((Contents { header, trials, calls, torn: sound < bytes.len() }, sound))
}

impl Header {
    /// Every problem that is searched for.
    pub fn targets(&self) -> Vec<Target> {
        let Header { shape, problem, baseline, more, .. } = self;
        let first = Target { shape: shape.clone(), problem: problem.clone(), baseline: baseline.clone() };
        std::iter::once(first).chain(more.iter().cloned()).collect()
    }

    /// The problems, in the accuracy mode that is searched.
    pub fn problems(&self) -> Result<Vec<Problem>> {
        let accuracy = self.accuracy.as_deref().map(str::parse).transpose()?;
        let problem = |target: Target| {
            let problem = target.problem.to_problem()?;
            Ok(accuracy.map_or(problem, |accuracy| problem.with_accuracy(accuracy)))
        };
        self.targets().into_iter().map(problem).collect()
    }

    /// An error unless outcomes of this journal are outcomes of these sources on this device.
    pub fn check_same(&self, source_hash: &str, device: &str) -> Result<()> {
        if self.source_hash != source_hash {
            return Err(Error::invalid(
                "resume",
                format!(
                    "the journal is of other sources of the {} kernel ({}, and these are {source_hash})",
                    self.kernel, self.source_hash
                ),
                "go back to those sources, or begin a new search",
            ));
        }
        if self.device != device {
            return Err(Error::invalid(
                "resume",
                format!("the journal is of another machine ({}, and this is {device})", self.device),
                "resume it there, or begin a new search",
            ));
        }
        Ok(())
    }
}

fn unwritable(path: &Path, error: &std::io::Error) -> Error {
    let rule = format!("`{}` cannot be written: {error}", path.display());
    Error::invalid("records", rule, "free some space there, or choose another place with --records")
}

fn unreadable(path: &Path, what: &str) -> Error {
    Error::invalid("journal", format!("{} {what}", path.display()), "give the folder of a search, or its journal.log")
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::evolve::fate::{Depth, Evidence, Fate};
    use crate::evolve::trial::{Operator, Origin};
    use eightfold::Shape;

    pub fn header() -> Header {
        Header {
            schema: SCHEMA,
            kernel: "cpu".into(),
            source_hash: "0123456789abcdef".into(),
            device: "A CPU, 2 threads".into(),
            shape: "small".into(),
            problem: (&Problem::new(Shape::new(1, 8, 32, 64)).unwrap()).into(),
            baseline: "cpu:baseline".into(),
            from_baseline: true,
            seed: 1,
            policy: Policy::Elite,
            keep: 3,
            restriction: String::new(),
            window: 1,
            budget: Budget::parse("20 trials").unwrap(),
            more: Vec::new(),
            accuracy: None,
            on_simulator: false,
            mutator_every: every_fourth(),
            mutator: None,
            replays: None,
        }
    }

    pub fn trial(index: usize) -> Trial {
        Trial {
            index,
            variant: format!("cpu:tile_keys={}", 16 * (index + 1)),
            origin: Origin::of(Operator::Sample),
            fate: Fate::Measured { speed_up: 1.25, p50_us: 10.5, timing: Depth::Quick },
            evidence: Evidence::default(),
            device_s: 0.5,
            at_s: 1.0 + index as f64,
        }
    }

    fn written(place: &Path) -> Vec<u8> {
        let mut journal = Journal::create(place, &header()).unwrap();
        (0..3).for_each(|index| journal.keep_trial(&trial(index)).unwrap());
        std::fs::read(place.join(JOURNAL_FILE)).unwrap()
    }

    #[test]
    fn what_was_written_is_read_back_and_gone_on_with() {
        let place = tempfile::tempdir().unwrap();
        written(place.path());
        let (mut journal, contents) = Journal::resume(place.path()).unwrap();
        assert_eq!((contents.header, contents.trials.len(), contents.torn), (header(), 3, false));
        journal.keep_trial(&trial(3)).unwrap();
        drop(journal);
        assert_eq!(read(place.path()).unwrap().trials, (0..4).map(trial).collect::<Vec<_>>());
    }

    #[test]
    fn a_journal_that_was_cut_anywhere_loses_its_last_line_alone() {
        let place = tempfile::tempdir().unwrap();
        let whole = written(place.path());
        let path = place.path().join(JOURNAL_FILE);
        let ends: Vec<usize> = (0..whole.len()).filter(|at| whole[*at] == b'\n').map(|at| at + 1).collect();
        for length in ends[0]..whole.len() {
            std::fs::write(&path, &whole[..length]).unwrap();
            let (mut journal, contents) = Journal::resume(place.path()).unwrap();
            let complete = ends.iter().filter(|end| **end <= length).count();
            assert_eq!((contents.trials.len(), contents.torn), (complete - 1, !ends.contains(&length)), "{length}");
            journal.keep_trial(&trial(9)).unwrap();
            drop(journal);
            assert_eq!(read(place.path()).unwrap().trials.last(), Some(&trial(9)));
        }
        for length in 0..ends[0] {
            std::fs::write(&path, &whole[..length]).unwrap();
            assert!(Journal::resume(place.path()).unwrap_err().to_string().contains("has no header"));
        }
    }

    #[test]
    fn a_changed_byte_is_found_out() {
        let place = tempfile::tempdir().unwrap();
        let whole = written(place.path());
        let path = place.path().join(JOURNAL_FILE);
        let ends: Vec<usize> = (0..whole.len()).filter(|at| whole[*at] == b'\n').map(|at| at + 1).collect();
        for at in (ends[0]..ends[2]).step_by(13) {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x40;
            std::fs::write(&path, &damaged).unwrap();
            let error = read(place.path()).unwrap_err().to_string();
            assert!(error.contains("is damaged in line"), "{at}: {error}");
        }
        // In the last line it cannot be told from a torn one.
        let mut damaged = whole.clone();
        damaged[ends[2] + 30] ^= 1;
        std::fs::write(&path, &damaged).unwrap();
        assert!(read(place.path()).unwrap().torn);
    }

    #[test]
    fn two_searches_cannot_write_one_journal() {
        let place = tempfile::tempdir().unwrap();
        let journal = Journal::create(place.path(), &header()).unwrap();
        assert!(Journal::resume(place.path()).unwrap_err().to_string().contains("in use by another search"));
        drop(journal);
        assert!(Journal::resume(place.path()).is_ok());
        assert!(Journal::create(place.path(), &header()).is_err());
    }

    #[test]
    fn other_sources_and_other_machines_are_refused_with_the_reason() {
        let header = header();
        assert_eq!(header.check_same(&header.source_hash, &header.device), Ok(()));
        let sources = header.check_same("0", &header.device).unwrap_err().to_string();
        assert!(sources.contains("other sources of the cpu kernel (0123456789abcdef, and these are 0)"), "{sources}");
        let machine = header.check_same(&header.source_hash, "B").unwrap_err().to_string();
        assert!(machine.contains("another machine (A CPU, 2 threads, and this is B)"), "{machine}");
    }

    #[test]
    fn what_is_no_journal_says_so() {
        let place = tempfile::tempdir().unwrap();
        assert!(read(place.path()).unwrap_err().to_string().contains("cannot be read"));
        let text = to_text(&Header { schema: 9, ..header() }, &[]);
        std::fs::write(place.path().join(JOURNAL_FILE), text).unwrap();
        assert!(read(place.path()).unwrap_err().to_string().contains("has schema 9, and this version reads 1"));
        let text = to_text(&header(), &[trial(0)]);
        std::fs::write(place.path().join(JOURNAL_FILE), format!("{text}{text}")).unwrap();
        assert!(read(place.path()).unwrap_err().to_string().contains("header not in line 1"));
    }
}
