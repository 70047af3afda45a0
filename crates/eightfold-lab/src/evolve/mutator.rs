//! A program of the user's that makes candidates: it is given what the search knows as one JSON object on standard
//! input, and prints one with a config, edits or files. Whatever it does is an outcome, never an end of the search.

use super::fate::{Evidence, Fate, Flaw, Refused};
use super::insights::Insight;
use super::journal::Target;
use super::process::{Process, shell};
use super::prompt;
use super::protocol::Files;
use super::trial::Asked;
use eightfold::lab::Family;
use eightfold::lab::compile::{self, Overlay};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::io::{Read, Write};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Bytes of an answer at the very most.
const MOST_BYTES: usize = 1 << 20;

/// The version of what a mutator is given.
pub const BUNDLE_VERSION: u32 = 2;

/// What the search knows.
#[derive(Debug, Clone, Serialize)]
pub struct Bundle<'a> {
    /// [`BUNDLE_VERSION`].
    pub version: u32,
    /// The trial that the answer will be.
    pub trial: usize,
    /// What it is asked to do.
    pub asked: Asked,
    /// All that follows, in words, for a language model.
    pub prompt: String,
    /// The folder of the search, if it keeps anything: for a transcript.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub folder: Option<String>,
    /// What is computed, and what all are held against there.
    pub targets: Vec<Target>,
    /// The accuracy mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<&'a str>,
    /// The kernel family.
    pub kernel: &'a str,
    /// What it runs on.
    pub device: &'a str,
    /// What is measured.
    pub clock: &'static str,
    /// The knobs, their values and what they do.
    pub knobs: Vec<KnobText>,
    /// Whom this is about. The answer is a change of the first.
    pub parents: Vec<Parent<'a>>,
    /// The best so far, the best first.
    pub elite: Vec<Told<'a>>,
    /// Those that failed last: compiler errors, wrong numbers, faults.
    pub failures: Vec<Told<'a>>,
    /// What was learned.
    pub insights: Vec<Insight>,
    /// Every file that the first parent's kernel is compiled from; empty where the kernel is not compiled at run time.
    pub sources: BTreeMap<String, String>,
}

/// A knob.
#[derive(Debug, Clone, Serialize)]
pub struct KnobText {
    /// Its name.
    pub name: &'static str,
    /// What it may be set to.
    pub values: &'static [&'static str],
    /// What it does.
    pub what: &'static str,
}

/// A candidate and what became of it.
#[derive(Debug, Clone, Serialize)]
pub struct Told<'a> {
    /// Its trial.
    pub trial: usize,
    /// The variant with every knob.
    pub variant: &'a str,
    /// The fingerprint of its source, where that is not the kernel's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<&'a str>,
    /// What a mutator noted with it, or the insight that it follows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<&'a str>,
    /// What became of it.
    pub fate: &'a Fate,
    /// What was seen of it.
    pub evidence: &'a Evidence,
}

/// One that the answer is to be made of, or that is to be explained.
#[derive(Debug, Clone, Serialize)]
pub struct Parent<'a> {
    /// What became of it.
    #[serde(flatten)]
    pub told: Told<'a>,
    /// The files in which it differs from the kernel's own.
    pub files: Files,
}

/// What a mutator may answer: a config, edits, files, or several of these, all of them changes of the first parent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reply {
    /// `knob=value,…`; knobs that are not named are the first parent's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<String>,
    /// Replacements within files, in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub edits: Vec<Edit>,
    /// Whole files.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub files: Files,
    /// The whole text of the kernel's main file, whichever that is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// What it cost, in whatever the program counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<f64>,
    /// The idea: an insight, which is told again with how often it helped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// A replacement in a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Edit {
    /// The file under `kernels/`.
    pub file: String,
    /// What stands there, once.
    pub before: String,
    /// What is to stand there.
    pub after: String,
}

/// Letters of a note that are kept.
const NOTE_LETTERS: usize = 240;

impl Reply {
    /// Whether it changes the source.
    pub fn has_source(&self) -> bool {
        !(self.edits.is_empty() && self.files.is_empty() && self.source.is_none())
    }

    /// The note on one line.
    pub fn insight(&self) -> Option<String> {
        let words: Vec<&str> = self.note.as_deref()?.split_whitespace().collect();
        let note: String = words.join(" ").chars().take(NOTE_LETTERS).collect();
        Some(note).filter(|note| !note.is_empty())
    }

    /// The files that result for a family if its files are these; `main` is the file that [`Reply::source`] means.
    pub fn apply(&self, family: &Family, main: &str, parent: Option<&Overlay>) -> Result<Option<Overlay>, Refused> {
        let bad = |error: eightfold::Error| Refused(Flaw::BadSource, error.to_string());
        let known = crate::overlay::reached(family, parent).map_err(bad)?;
        let mut files = parent.map(|parent| parent.files().clone()).unwrap_or_default();
        let inside = |name: &str| {
            let own = name.strip_prefix(family.name).is_some_and(|rest| rest.starts_with('/'));
            let is_name = || Overlay::new([(name.to_string(), "x".to_string())].into()).is_ok();
            if known.contains_key(name) || own && is_name() {
                return Ok(());
            }
            let name: String = name.chars().take(80).collect();
            let rule = format!("{name:?} is no file of the {} kernel, and none beside them", family.name);
            Err(Refused(Flaw::PathOutside, rule))
        };
        let main = self.source.iter().map(|text| (main.to_string(), text.clone()));
        for (name, text) in self.files.clone().into_iter().chain(main) {
            inside(&name)?;
            files.insert(name, text);
        }
        for Edit { file, before, after } in &self.edits {
            inside(file)?;
            let text = files.get(file).map(String::as_str).or_else(|| compile::source_text(file)).unwrap_or_default();
            let found = if before.is_empty() { 0 } else { text.matches(before.as_str()).count() };
            if found != 1 {
                let start: String = before.chars().take(60).collect();
                let rule = format!("{start:?} stands {found} times in {file}");
                return Err(Refused(Flaw::PatchDoesNotApply, rule));
            }
            files.insert(file.clone(), text.replacen(before.as_str(), after, 1));
        }
        files.retain(|name, text| compile::source_text(name) != Some(text));
        if files.is_empty() {
            return Ok(None);
        }
        Overlay::new(files).map(Some).map_err(bad)
    }
}

/// One call, as the journal keeps it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Call {
    /// The trial that the answer is.
    pub trial: usize,
    /// What it was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<Asked>,
    /// Seconds until the answer.
    pub seconds: f64,
    /// Bytes that it was given.
    pub bundle_bytes: usize,
    /// The answer, or why there is none.
    pub reply: Result<Reply, String>,
    /// What is wrong with what came instead of an answer, if anything came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flaw: Option<Flaw>,
}

/// What the calls of a search came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Ledger {
    /// Calls.
    pub calls: usize,
    /// Of those, without an answer that could be tried.
    pub failed: usize,
    /// Seconds that they took.
    pub seconds: f64,
    /// What they cost, as far as the program said.
    pub cost: f64,
}

impl Ledger {
    /// Counts a call.
    pub fn add(&mut self, call: &Call) {
        self.calls += 1;
        self.failed += usize::from(call.reply.is_err());
        self.seconds += call.seconds;
        self.cost += call.reply.as_ref().ok().and_then(|reply| reply.cost).unwrap_or(0.0);
    }
}

/// Who is asked.
#[derive(Debug, Clone)]
pub enum Mutator {
    /// A line for the shell, and how long it may take.
    Command(String, Duration),
    /// What such a program answered in an earlier search, in that order.
    Recorded(VecDeque<Call>),
}

/// No answer, with what is wrong where something came.
#[derive(Debug)]
struct Silent(Option<Flaw>, String);

impl Mutator {
    /// Asks for the candidate of a trial.
    pub fn call(&mut self, bundle: &Bundle) -> Call {
        let text = to_json(bundle);
        let call = Call {
            trial: bundle.trial,
            asked: Some(bundle.asked),
            seconds: 0.0,
            bundle_bytes: text.len(),
            reply: Err("the recording has no more answers".into()),
            flaw: None,
        };
        match self {
            Mutator::Command(line, timeout) => {
                let start = Instant::now();
                let answer = run(line, &text, *timeout).and_then(|answer| read(&answer));
                let seconds = start.elapsed().as_secs_f64();
                match answer {
                    Ok(reply) => Call { seconds, reply: Ok(reply), ..call },
                    Err(Silent(flaw, reason)) => Call { seconds, flaw, reply: Err(reason), ..call },
                }
            }
            Mutator::Recorded(calls) => match calls.pop_front() {
                Some(Call { seconds, reply, flaw, .. }) => Call { seconds, reply, flaw, ..call },
                None => call,
            },
        }
    }
}

/// A bundle as the program gets it.
pub fn to_json(bundle: &Bundle) -> String {
    serde_json::to_string(bundle).expect("a bundle holds only plain data with string keys")
}

impl Bundle<'_> {
    /// The same with its prompt.
    pub fn with_prompt(self) -> Self {
        Bundle { prompt: prompt::render(&self), ..self }
    }
}

/// What the program prints; it gets its input from another thread, since it may never read it.
fn run(line: &str, input: &str, timeout: Duration) -> Result<String, Silent> {
    let silent = |reason: String| Silent(None, reason);
    let started = Process::start(shell(line));
    let (mut process, mut stdin, stdout) = started.map_err(|error| silent(format!("it cannot be started: {error}")))?;
    let input = input.to_string();
    std::thread::spawn(move || {
        let _ = stdin.write_all(input.as_bytes());
    });
    let (sender, output) = channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let read = stdout.take(MOST_BYTES as u64 + 1).read_to_end(&mut bytes);
        let _ = sender.send(read.map(|_| bytes));
    });
    match output.recv_timeout(timeout) {
        Ok(Ok(bytes)) if bytes.len() > MOST_BYTES => {
            Err(Silent(Some(Flaw::TooLarge), format!("it printed more than {MOST_BYTES} bytes")))
        }
        Ok(Ok(bytes)) if bytes.is_empty() => Err(silent(format!("it printed nothing ({})", process.obituary()))),
        Ok(Ok(bytes)) => String::from_utf8(bytes).map_err(|error| {
            let at = error.utf8_error().valid_up_to();
            Silent(Some(Flaw::NotText), format!("it printed bytes that are not UTF-8, from byte {at} on"))
        }),
        Ok(Err(error)) => Err(silent(format!("its answer cannot be read: {error}"))),
        Err(RecvTimeoutError::Timeout) => Err(silent(format!("no answer within {} s", timeout.as_secs_f64()))),
        Err(RecvTimeoutError::Disconnected) => Err(silent("its answer cannot be read".into())),
    }
}

fn read(answer: &str) -> Result<Reply, Silent> {
    let not_understood = |reason: String| Silent(Some(Flaw::NotUnderstood), reason);
    let start = || answer.trim().chars().take(60).collect::<String>();
    let reply: Reply = serde_json::from_str(answer)
        .map_err(|error| not_understood(format!("it printed `{}`, which is no answer: {error}", start())))?;
    if reply.config.is_none() && !reply.has_source() {
        return Err(not_understood("its answer has neither a config nor edits nor files".into()));
    }
    Ok(reply)
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    fn answer(line: &str) -> Result<Reply, Silent> {
        run(line, &"x".repeat(200_000), Duration::from_millis(800)).and_then(|answer| read(&answer))
    }

    #[test]
    fn configs_and_sources_are_understood() {
        let reply = answer(r#"cat >/dev/null; echo '{"config": "exp=poly", "cost": 0.25}'"#).unwrap();
        assert_eq!((reply.config.as_deref(), reply.cost), (Some("exp=poly"), Some(0.25)));
        // One that does not read its input does no harm.
        assert_eq!(answer(r#"echo '{"source": "__global__"}'"#).unwrap().source.as_deref(), Some("__global__"));
        let reply = answer(r#"echo '{"files": {"a": "b"}, "edits": [{"file": "a", "before": "b", "after": "c"}]}'"#);
        assert!(reply.unwrap().has_source());
        let reply = Reply { note: Some("  one\n idea ".into()), ..Reply::default() };
        assert_eq!(reply.insight().as_deref(), Some("one idea"));
    }

    #[test]
    fn garbage_hangs_floods_and_deaths_are_answers_of_a_kind() {
        let failure = |line: &str| {
            let Silent(flaw, reason) = answer(line).unwrap_err();
            (flaw, reason)
        };
        let said = |line: &str, flaw: Option<Flaw>, part: &str| {
            let (found, reason) = failure(line);
            assert!(reason.contains(part) && found == flaw, "{line}: {found:?} {reason}");
        };
        said("echo hello", Some(Flaw::NotUnderstood), "`hello`, which is no answer");
        said("echo '{}'", Some(Flaw::NotUnderstood), "neither a config nor edits");
        said(r#"echo '{"confg": "x"}'"#, Some(Flaw::NotUnderstood), "unknown field");
        said("printf 'ab\\377\\376'", Some(Flaw::NotText), "not UTF-8, from byte 2 on");
        said("echo no model >&2; exit 7", None, "it printed nothing (exit code 7: no model)");
        let start = Instant::now();
        said("sleep 60", None, "no answer within 0.8 s");
        assert!(start.elapsed() < Duration::from_secs(20));
    }

    #[test]
    fn a_gigabyte_is_not_read() {
        let flood = "yes | head -c 1073741824";
        let Silent(flaw, reason) = run(flood, "", Duration::from_secs(60)).unwrap_err();
        assert_eq!((flaw, reason.as_str()), (Some(Flaw::TooLarge), "it printed more than 1048576 bytes"));
    }

    fn hopper(reply: Reply, parent: Option<&Overlay>) -> Result<Option<Overlay>, Refused> {
        reply.apply(Family::find("hopper").unwrap(), "hopper/attention.cu", parent)
    }

    fn edit(file: &str, before: &str, after: &str) -> Edit {
        Edit { file: file.into(), before: before.into(), after: after.into() }
    }

    #[test]
    fn edits_files_and_parents_add_up() {
        let header = "hopper/store.cuh";
        let line = "if (!row.exists) continue;";
        let first = Reply { edits: vec![edit(header, line, "if (false) continue;")], ..Reply::default() };
        let first = hopper(first, None).unwrap().unwrap();
        assert_eq!(first.files().keys().collect::<Vec<_>>(), [header]);
        // A change of a change; and a change that takes it back.
        let second = vec![edit(header, "if (false) continue;", "if (true) continue;")];
        let second =
            Reply { edits: second, files: [("hopper/new.cuh".into(), "//".into())].into(), ..Reply::default() };
        let second = hopper(second, Some(&first)).unwrap().unwrap();
        assert_eq!(second.files().keys().collect::<Vec<_>>(), ["hopper/new.cuh", header]);
        assert!(second.text(header).unwrap().contains("if (true) continue;"));
        let back = Reply { edits: vec![edit(header, "if (false) continue;", line)], ..Reply::default() };
        assert_eq!(hopper(back, Some(&first)), Ok(None));
    }

    #[test]
    fn what_cannot_be_put_together_is_typed() {
        let flaw = |reply: Reply| hopper(reply, None).unwrap_err();
        let files = |name: &str| Reply { files: [(name.into(), "//".into())].into(), ..Reply::default() };
        for name in
            ["../a.cu", "/etc/passwd", "hopper/../../a.cu", "ladder/scores.cuh", "quantize/turn.cuh", "hopper/a.sh"]
        {
            assert_eq!(flaw(files(name)).0, Flaw::PathOutside, "{name}");
        }
        let edits = |one: Edit| Reply { edits: vec![one], ..Reply::default() };
        assert_eq!(flaw(edits(edit("../a.cu", "x", "y"))).0, Flaw::PathOutside);
        for before in ["this stands nowhere", "", ";"] {
            let Refused(kind, reason) = flaw(edits(edit("hopper/store.cuh", before, "y")));
            assert_eq!(kind, Flaw::PatchDoesNotApply, "{before:?}: {reason}");
        }
        assert!(flaw(edits(edit("hopper/store.cuh", "nowhere", "y"))).1.contains("stands 0 times in hopper/store.cuh"));
    }
}
