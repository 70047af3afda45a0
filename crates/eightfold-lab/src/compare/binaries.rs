//! Two binaries of this program against each other, now: each in processes of its own, which take turns.

use super::contest::{Contest, note, unfinished};
use super::records::differences;
use super::serve::{Hello, Request};
use super::{BUILD, Comparison, Side};
use crate::gates::{Gate, Outcome, Thresholds};
use crate::measure::{Contestant, Manner, Samples, Timer};
use crate::peers::Worker;
use crate::progress::Progress;
use crate::provenance::Provenance;
use crate::record::{Entry, Group};
use eightfold::{Error, Problem, Result};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// What to compare, and how.
pub struct Binaries<'a> {
    /// What a person calls the shape.
    pub shape: &'a str,
    /// The problem.
    pub problem: Problem,
    /// The binary that was there before, under the name that the record has for it.
    pub baseline: (&'a str, &'a Path),
    /// The one that may be faster.
    pub candidate: (&'a str, &'a Path),
    /// What both are told, up to the requests.
    pub arguments: &'a [OsString],
    /// The timing policy.
    pub thresholds: &'a Thresholds,
    /// What the candidate must gain: 0.1 asks for a speed-up of 1.1.
    pub required_gain: f64,
    /// The seed of the order of the turns.
    pub seed: u64,
    /// Rounds at the very most.
    pub most_rounds: usize,
    /// How times are taken.
    pub manner: Manner,
}

/// A comparison of binaries, and the entries that it rests on.
pub struct BinariesCompared {
    /// The entries: the baseline, the baseline again, the candidate.
    pub group: Group,
    /// The verdict.
    pub comparison: Comparison,
    /// Where the baseline ran.
    pub provenance: Provenance,
}

/// Longer than the gates of a slow variant on the longest shapes.
const TIMEOUT: Duration = Duration::from_secs(600);

const FIX: &str =
    "give binaries of Eightfold that are recent enough to be compared, and a problem that both can compute";

/// The part of the work that gating is, for the progress bar.
const GATING_SHARE: f64 = 0.3;

impl Binaries<'_> {
    /// Starts both, the baseline twice, lets each gate itself, and times them if all pass.
    pub fn run(&self, progress: &mut dyn Progress) -> Result<BinariesCompared> {
        let mut processes = Vec::new();
        for (index, (name, path)) in [self.baseline, self.baseline, self.candidate].into_iter().enumerate() {
            progress.at(GATING_SHARE * index as f64 / 3.0, &format!("{}: checking {name}", self.shape));
            processes.push(Process::start(name, path, self.arguments)?);
        }
        let [a, b, c] = &mut processes[..] else { unreachable!("three were started") };
        same_machine(a, c)?;
        let mut group = Group::new(self.shape, &self.problem);
        // What results are written as depends on the device, which they know.
        group.problem = a.hello.problem.clone();
        group.entries = vec![a.entry(), c.entry()];
        let mut comparison = self.unjudged(a, c, &group);
        let provenance = a.hello.provenance.clone();
        let failed = [&*a, &*b, &*c].into_iter().find_map(Process::failure);
        if let Some(reason) = failed {
            comparison.outcome = Outcome::Fail;
            comparison.summary = format!("{reason}; nothing was timed");
            return Ok(BinariesCompared { group, comparison, provenance });
        }
        let what = format!("{} {}: timing", self.shape, self.problem);
        let so_far = comparison.clone();
        let tick = &mut |share: f64, samples: &[Samples]| {
            progress.at(GATING_SHARE + (1.0 - GATING_SHARE) * share, &what);
            progress.unfinished(&unfinished(&group, &so_far, samples));
        };
        let times = Contest {
            seed: self.seed,
            most_rounds: self.most_rounds,
            thresholds: self.thresholds,
            manner: self.manner,
            on_gpu: a.hello.timer.is_some_and(|timer| timer != Timer::HostClock),
        }
        .judge([a, b, c], &mut comparison, tick);
        if let Some(times) = times {
            note(&mut group, &mut comparison, &times);
        }
        Ok(BinariesCompared { group, comparison, provenance })
    }

    fn unjudged(&self, baseline: &Process, candidate: &Process, group: &Group) -> Comparison {
        let side = |process: &Process| {
            let entry = process.entry();
            Side { name: entry.name, implementation: entry.implementation, p50_us: None }
        };
        Comparison {
            shape: group.shape.clone(),
            problem: group.problem.clone(),
            baseline: side(baseline),
            candidate: side(candidate),
            timer: baseline.hello.timer,
            required_gain: self.required_gain,
            outcome: Outcome::Inconclusive,
            summary: String::new(),
            speed_up: None,
            itself: None,
            seed: Some(self.seed),
            planted: None,
            conditions: None,
            cache: self.manner.cache,
            inputs: baseline.hello.inputs,
        }
    }
}

/// A binary at work.
struct Process {
    name: String,
    worker: Worker,
    hello: Hello,
    launches_per_run: usize,
}

impl Process {
    fn start(name: &str, path: &Path, arguments: &[OsString]) -> Result<Process> {
        let mut command = Command::new(path);
        command.args(arguments);
        let mut worker = Worker::start(name, FIX, command, TIMEOUT)?;
        let hello = worker.listen()?;
        let hello: Hello =
            serde_json::from_value(hello).map_err(|error| worker.error(format!("it said no hello: {error}")))?;
        Ok(Process { name: name.into(), worker, hello, launches_per_run: 1 })
    }

    /// Its entry, named after the binary and what it is built from.
    fn entry(&self) -> Entry {
        let Provenance { eightfold, built_from, .. } = &self.hello.provenance;
        let built_from = built_from.as_ref().map(|commit| format!(", commit {commit}")).unwrap_or_default();
        let implementation = format!("{}{BUILD}{eightfold}{built_from}", self.hello.entry.implementation);
        Entry { name: self.name.clone(), implementation, ..self.hello.entry.clone() }
    }

    /// Why it cannot be timed, if it cannot.
    fn failure(&self) -> Option<String> {
        let gate = self.hello.entry.gates.iter().find(|gate| {
            gate.outcome == Outcome::Fail || (gate.gate == Gate::Correctness && gate.outcome != Outcome::Pass)
        });
        let failed = gate.map(|gate| format!("{} failed the {} gate: {}", self.name, gate.gate, gate.summary));
        failed.or_else(|| self.hello.timer.is_none().then(|| format!("{} could not be timed", self.name)))
    }

    fn ask(&mut self, request: Request) -> Result<Value> {
        self.worker.ask(&json!(request))
    }
}

impl Contestant for Process {
    fn prepare(&mut self) -> Result<()> {
        let answer = self.ask(Request::Prepare)?;
        let launches = answer.get("launches_per_run").and_then(Value::as_u64).filter(|launches| *launches > 0);
        let launches = launches.ok_or_else(|| self.worker.error("it did not say what a run is".into()))?;
        self.launches_per_run = launches as usize;
        Ok(())
    }

    fn begin_round(&mut self, round: usize) -> Result<()> {
        self.ask(Request::BeginRound { round }).map(drop)
    }

    fn run_block(&mut self, iterations: usize) -> Result<Vec<u64>> {
        let answer = self.ask(Request::Run { iterations })?;
        let times: Option<Vec<u64>> = answer.get("ns").and_then(|ns| serde_json::from_value(ns.clone()).ok());
        let times = times.filter(|times| times.len() == iterations);
        times.ok_or_else(|| self.worker.error(format!("it gave no {iterations} times")))
    }

    fn launches_per_run(&self) -> usize {
        self.launches_per_run
    }

    fn verify(&mut self) -> Result<()> {
        self.ask(Request::Verify).map(drop)
    }
}

/// A ratio between two devices, two timers or two problems would compare those.
fn same_machine(a: &Process, b: &Process) -> Result<()> {
    let differ = |what: &str, first: String, second: String| {
        let rule = format!("the {what} differ: {first} in {} and {second} in {}", a.name, b.name);
        Err(Error::invalid("compare", rule, "name one --variant that both run on the same device"))
    };
    let timer = |process: &Process| format!("{:?}", process.hello.timer);
    let device = |process: &Process| {
        let Provenance { gpu, machine, threads, .. } = &process.hello.provenance;
        match (process.hello.timer, gpu) {
            (Some(Timer::HostClock) | None, _) | (_, None) => format!("{} on {threads} threads", machine.cpu),
            (_, Some(gpu)) => gpu.name.clone(),
        }
    };
    if device(a) != device(b) {
        return differ("devices", device(a), device(b));
    }
    if a.hello.timer.is_some() && b.hello.timer.is_some() && timer(a) != timer(b) {
        return differ("timers", timer(a), timer(b));
    }
    let differing = differences(&a.hello.problem, &b.hello.problem);
    if !differing.is_empty() {
        let rule = format!("the problems differ: {} ({} and {})", differing.join(", "), a.name, b.name);
        return Err(Error::invalid("compare", rule, "give binaries that time the same problem"));
    }
    Ok(())
}
