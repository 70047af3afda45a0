//! A program of the user's that makes candidates: it is given what the search knows as one JSON object on standard
//! input, and prints one with a config or a kernel source. Whatever it does is an outcome, never an end of the search.

use super::fate::{Evidence, Fate};
use super::insights::Insight;
use super::process::{Process, shell};
use crate::record::ProblemRecord;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Bytes of an answer at the very most.
const MOST_BYTES: usize = 1 << 20;

/// What the search knows.
#[derive(Debug, Clone, Serialize)]
pub struct Bundle<'a> {
    /// The version of this format.
    pub version: u32,
    /// The trial that the answer will be.
    pub trial: usize,
    /// What is computed.
    pub problem: &'a ProblemRecord,
    /// The kernel family.
    pub kernel: &'a str,
    /// What it runs on.
    pub device: &'a str,
    /// What all are timed against.
    pub baseline: &'a str,
    /// The knobs, their values and what they do.
    pub knobs: Vec<KnobText>,
    /// The best so far, the best first.
    pub elite: Vec<Told<'a>>,
    /// Those that failed last: compiler errors, wrong numbers, faults.
    pub failures: Vec<Told<'a>>,
    /// What was learned.
    pub insights: Vec<Insight>,
    /// The kernel's source, where it is compiled at run time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<&'static str>,
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
    /// The variant with every knob.
    pub variant: &'a str,
    /// What became of it.
    pub fate: &'a Fate,
    /// What was seen of it.
    pub evidence: &'a Evidence,
}

/// What a mutator may answer: a config, a source, or a source with a config.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reply {
    /// `knob=value,…`; knobs that are not named are the best candidate's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<String>,
    /// The kernel's whole source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// What it cost, in whatever the program counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<f64>,
    /// Why, for a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// One call, as the journal keeps it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Call {
    /// The trial that the answer is.
    pub trial: usize,
    /// Seconds until the answer.
    pub seconds: f64,
    /// Bytes that it was given.
    pub bundle_bytes: usize,
    /// The answer, or why there is none.
    pub reply: Result<Reply, String>,
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

impl Mutator {
    /// Asks for the candidate of a trial.
    pub fn call(&mut self, bundle: &Bundle) -> Call {
        let text = serde_json::to_string(bundle).expect("a bundle holds only plain data with string keys");
        let start = Instant::now();
        let (reply, recorded_s) = match self {
            Mutator::Command(line, timeout) => (run(line, &text, *timeout).and_then(|answer| read(&answer)), None),
            Mutator::Recorded(calls) => match calls.pop_front() {
                Some(call) => (call.reply, Some(call.seconds)),
                None => (Err("the recording has no more answers".into()), Some(0.0)),
            },
        };
        let seconds = recorded_s.unwrap_or_else(|| start.elapsed().as_secs_f64());
        Call { trial: bundle.trial, seconds, bundle_bytes: text.len(), reply }
    }
}

/// What the program prints; it gets its input from another thread, since it may never read it.
fn run(line: &str, input: &str, timeout: Duration) -> Result<String, String> {
    let started = Process::start(shell(line));
    let (mut process, mut stdin, stdout) = started.map_err(|error| format!("it cannot be started: {error}"))?;
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
        Ok(Ok(bytes)) if bytes.len() > MOST_BYTES => Err(format!("it printed more than {MOST_BYTES} bytes")),
        Ok(Ok(bytes)) if bytes.is_empty() => Err(format!("it printed nothing ({})", process.obituary())),
        Ok(Ok(bytes)) => String::from_utf8(bytes).map_err(|_| "it printed bytes that are not text".into()),
        Ok(Err(error)) => Err(format!("its answer cannot be read: {error}")),
        Err(RecvTimeoutError::Timeout) => Err(format!("no answer within {} s", timeout.as_secs_f64())),
        Err(RecvTimeoutError::Disconnected) => Err("its answer cannot be read".into()),
    }
}

fn read(answer: &str) -> Result<Reply, String> {
    let start = || answer.trim().chars().take(60).collect::<String>();
    let reply: Reply = serde_json::from_str(answer)
        .map_err(|error| format!("it printed `{}`, which is no answer: {error}", start()))?;
    if reply.config.is_none() && reply.source.is_none() {
        return Err("its answer has neither a config nor a source".into());
    }
    Ok(reply)
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    fn answer(line: &str) -> Result<Reply, String> {
        run(line, &"x".repeat(200_000), Duration::from_millis(800)).and_then(|answer| read(&answer))
    }

    #[test]
    fn configs_and_sources_are_understood() {
        let reply = answer(r#"cat >/dev/null; echo '{"config": "exp=poly", "cost": 0.25}'"#).unwrap();
        assert_eq!((reply.config.as_deref(), reply.cost), (Some("exp=poly"), Some(0.25)));
        // One that does not read its input does no harm.
        assert_eq!(answer(r#"echo '{"source": "__global__"}'"#).unwrap().source.as_deref(), Some("__global__"));
    }

    #[test]
    fn garbage_hangs_floods_and_deaths_are_answers_of_a_kind() {
        let failure = |line: &str| answer(line).unwrap_err();
        assert!(failure("echo hello").contains("`hello`, which is no answer"));
        assert!(failure("echo '{}'").contains("neither a config nor a source"));
        assert!(failure(r#"echo '{"confg": "x"}'"#).contains("unknown field"));
        assert!(failure("printf '\\377\\376'").contains("not text"));
        assert!(failure("echo no model >&2; exit 7").contains("it printed nothing (exit code 7: no model)"));
        let start = Instant::now();
        assert!(failure("sleep 60").contains("no answer within 0.8 s"));
        assert!(failure("yes").contains("more than 1048576 bytes"));
        assert!(start.elapsed() < Duration::from_secs(20));
    }
}
