//! The search's side: workers as processes, each with a thread that waits for it, buries it and starts another.

use super::fate::{Evidence, Fate};
use super::process::{Heard, Process, lines, shell};
use super::protocol::{Answer, Ask, Examined, Ready, Request, Step, Task, Validated, Validation};
use eightfold::{Error, Result};
use std::io::Write;
use std::process::{ChildStdin, Command};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// How a worker is started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Start {
    /// This program with these arguments.
    Program(std::path::PathBuf, Vec<String>),
    /// A line for the shell, such as `ssh gpu3 eightfold worker`.
    Shell(String),
}

impl Start {
    fn command(&self) -> Command {
        match self {
            Start::Program(program, arguments) => {
                let mut command = Command::new(program);
                command.args(arguments);
                command
            }
            Start::Shell(line) => shell(line),
        }
    }
}

impl std::fmt::Display for Start {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Start::Program(..) => f.write_str("eightfold worker"),
            Start::Shell(line) => f.write_str(line),
        }
    }
}

/// Bytes of an answer at the very most: the raw samples of a validation are the largest.
const MOST_ANSWER_BYTES: usize = 64 << 20;

/// Preparing inputs, references and the baseline takes longer than any candidate.
const START_SECONDS: f64 = 300.0;

/// The same for validating the elite, between two signs of progress.
const VALIDATION_SECONDS: f64 = 300.0;

/// Why a worker gave no answer.
enum Silence {
    /// In this step, if it said which.
    Hung(Option<Step>),
    Ended(String),
    Refused(String),
}

/// One worker process that has its task.
struct Worker {
    process: Process,
    requests: ChildStdin,
    answers: Receiver<Heard>,
    ready: Ready,
}

impl Worker {
    fn start(start: &Start, task: &Task) -> Result<Worker> {
        let unavailable = |reason: String| {
            Error::unavailable(
                format!("the worker `{start}`"),
                reason,
                "see that the command starts `eightfold worker`",
            )
        };
        let (process, requests, output) =
            Process::start(start.command()).map_err(|error| unavailable(format!("it cannot be started: {error}")))?;
        let ready = Ready { device: String::new(), source_hash: String::new(), baselines: Vec::new() };
        let mut worker = Worker { process, requests, answers: lines(output, MOST_ANSWER_BYTES), ready };
        let task = Ask::Task(Box::new(task.clone()));
        match worker.ask(&task, Duration::from_secs_f64(START_SECONDS), &mut |_| {}) {
            Ok(Answer::Ready(ready)) => Ok(Worker { ready, ..worker }),
            Ok(_) => Err(unavailable("it answered something else than that it is ready".into())),
            Err(Silence::Refused(reason)) => Err(unavailable(reason)),
            Err(Silence::Ended(how)) => Err(unavailable(format!("it ended before it was ready: {how}"))),
            Err(Silence::Hung(_)) => Err(unavailable(format!("it was not ready within {START_SECONDS} s"))),
        }
    }

    /// Asks, and waits for the answer; signs of progress start the clock anew.
    fn ask(
        &mut self,
        ask: &Ask,
        timeout: Duration,
        progress: &mut dyn FnMut(f64),
    ) -> std::result::Result<Answer, Silence> {
        let text = serde_json::to_string(ask).expect("a request holds only plain data with string keys");
        // A worker that died is told by its silence.
        let _ = writeln!(self.requests, "{text}").and_then(|()| self.requests.flush());
        let mut deadline = Instant::now() + timeout;
        let mut step = None;
        loop {
            let line = match self.answers.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(Heard::Line(line)) => line,
                Ok(Heard::Flood) => return Err(Silence::Ended("it answered without end".into())),
                Err(RecvTimeoutError::Timeout) => return Err(Silence::Hung(step)),
                Err(RecvTimeoutError::Disconnected) => return Err(Silence::Ended(self.process.obituary())),
            };
            match serde_json::from_str::<Answer>(&line) {
                Ok(Answer::Progress(share)) => {
                    progress(share);
                    deadline = Instant::now() + timeout;
                }
                Ok(Answer::Begins(begun)) => {
                    step = Some(begun);
                    deadline = Instant::now() + timeout;
                }
                Ok(Answer::Refused(reason)) => return Err(Silence::Refused(reason)),
                Ok(answer) => return Ok(answer),
                Err(_) => {
                    let start: String = line.chars().take(60).collect();
                    return Err(Silence::Ended(format!("it answered `{start}`, which is no answer")));
                }
            }
        }
    }
}

enum Job {
    Examine(Box<Request>),
    Validate(Validation, Sender<Result<Box<Validated>>>),
}

/// What comes back from a worker's thread.
enum Event {
    Examined(Examined),
    /// The worker cannot be had any more, for this reason.
    Lost(Error),
}

struct Lane {
    jobs: Sender<Job>,
    idle: bool,
}

/// Several workers that serve one search.
pub struct Workers {
    lanes: Vec<Lane>,
    events: Receiver<(usize, Event)>,
    ready: Ready,
    lost: Option<Error>,
}

/// A worker that does not start this many times in a row is given up.
const STARTS: usize = 3;

impl Workers {
    /// Starts them all; every one must be like the first.
    pub fn start(starts: &[Start], task: &Task, timeout: Duration) -> Result<Workers> {
        let mut started = Vec::new();
        for start in starts {
            started.push(Worker::start(start, task)?);
        }
        let Some(first) = started.first().map(|worker| worker.ready.clone()) else {
            return Err(Error::invalid("worker", "there is none", "name at least one"));
        };
        if let Some((odd, start)) = started.iter().zip(starts).find(|(worker, _)| worker.ready != first) {
            let Ready { device, source_hash, .. } = &odd.ready;
            return Err(Error::invalid(
                "worker",
                format!(
                    "`{start}` is {device} with sources {source_hash}, and the first is {} with {}",
                    first.device, first.source_hash
                ),
                "let all workers of a search be alike",
            ));
        }
        // From here on all are told what the first found out.
        let task = Task { baselines: first.baselines.clone(), ..task.clone() };
        let (sender, events) = channel();
        let lanes = started.into_iter().zip(starts).enumerate().map(|(place, (worker, start))| {
            let (jobs, asked) = channel();
            let lane = LaneThread {
                start: start.clone(),
                task: task.clone(),
                timeout,
                like: first.clone(),
                worker: Some(worker),
            };
            let sender = sender.clone();
            std::thread::spawn(move || lane.run(place, &asked, &sender));
            Lane { jobs, idle: true }
        });
        Ok(Workers { lanes: lanes.collect(), events, ready: first, lost: None })
    }

    /// What they are.
    pub fn ready(&self) -> &Ready {
        &self.ready
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.lanes.len()
    }

    /// Gives a candidate to an idle worker; false where all are busy.
    pub fn submit(&mut self, request: &Request) -> bool {
        let Some(lane) = self.lanes.iter_mut().find(|lane| lane.idle) else { return false };
        lane.idle = false;
        // A thread whose worker was given up answers that it is.
        let _ = lane.jobs.send(Job::Examine(Box::new(request.clone())));
        true
    }

    /// The next outcome, if one comes in this time.
    pub fn wait(&mut self, timeout: Duration) -> Result<Option<Examined>> {
        if let Some(error) = &self.lost {
            return Err(error.clone());
        }
        match self.events.recv_timeout(timeout) {
            Ok((place, Event::Examined(examined))) => {
                self.lanes[place].idle = true;
                Ok(Some(examined))
            }
            Ok((_, Event::Lost(error))) => {
                self.lost = Some(error.clone());
                Err(error)
            }
            Err(_) => Ok(None),
        }
    }

    /// Has the elite validated by the first worker.
    pub fn validate(&mut self, validation: &Validation) -> Result<Box<Validated>> {
        let (sender, answer) = channel();
        let gone = || Error::unavailable("the validation", "the worker is gone", "resume the search to try again");
        self.lanes[0].jobs.send(Job::Validate(validation.clone(), sender)).map_err(|_| gone())?;
        answer.recv().unwrap_or_else(|_| Err(gone()))
    }
}

/// What a worker's thread needs.
struct LaneThread {
    start: Start,
    task: Task,
    timeout: Duration,
    like: Ready,
    worker: Option<Worker>,
}

impl LaneThread {
    fn run(mut self, place: usize, asked: &Receiver<Job>, events: &Sender<(usize, Event)>) {
        while let Ok(job) = asked.recv() {
            if let Err(error) = self.revive() {
                if let Job::Validate(_, answer) = job {
                    let _ = answer.send(Err(error));
                } else if events.send((place, Event::Lost(error))).is_err() {
                    return;
                }
                continue;
            }
            match job {
                Job::Examine(request) => {
                    let examined = self.examine(*request);
                    if events.send((place, Event::Examined(examined))).is_err() {
                        return;
                    }
                }
                Job::Validate(validation, answer) => {
                    let _ = answer.send(self.validate(validation));
                }
            }
        }
    }

    /// Sees to it that there is a worker, and that it is like the one before.
    fn revive(&mut self) -> Result<()> {
        let mut failure = None;
        for _ in 0..STARTS {
            if self.worker.is_some() {
                return Ok(());
            }
            match Worker::start(&self.start, &self.task) {
                Ok(worker) if worker.ready == self.like => self.worker = Some(worker),
                Ok(worker) => {
                    let reason = format!("it came back as {} instead of {}", worker.ready.device, self.like.device);
                    let fix = "resume the search on the machine that it began on";
                    return Err(Error::unavailable(format!("the worker `{}`", self.start), reason, fix));
                }
                Err(error) => failure = Some(error),
            }
        }
        match failure {
            Some(error) if self.worker.is_none() => Err(error),
            _ => Ok(()),
        }
    }

    fn examine(&mut self, request: Request) -> Examined {
        let trial = request.trial;
        let start = Instant::now();
        let mut fate = self.attempt(&request);
        if let (Err(Fate::Crashed { .. }), false) = (&fate, request.ahead.is_empty()) {
            // It may have died of another candidate that it compiled ahead: alone, it dies of its own faults only.
            let alone = Request { ahead: Vec::new(), ..request };
            if self.revive().is_ok() {
                fate = self.attempt(&alone);
            }
        }
        fate.unwrap_or_else(|fate| Examined {
            trial,
            fate,
            evidence: Evidence::default(),
            device_s: start.elapsed().as_secs_f64(),
        })
    }

    /// The worker's answer, or what its silence means; then it is gone.
    fn attempt(&mut self, request: &Request) -> std::result::Result<Examined, Fate> {
        let crashed = |reason: &str| Fate::Crashed { reason: reason.into() };
        let Some(worker) = &mut self.worker else { return Err(crashed("there is no worker")) };
        let answered = worker.ask(&Ask::Examine(Box::new(request.clone())), self.timeout, &mut |_| {});
        let fate = match answered {
            Ok(Answer::Examined(examined)) if examined.trial == request.trial => {
                if matches!(examined.fate, Fate::DeviceFault { .. } | Fate::OutOfMemory { .. }) {
                    self.worker = None;
                }
                return Ok(*examined);
            }
            Ok(_) => crashed("it answered another question"),
            Err(Silence::Hung(Some(Step::Compile))) => Fate::CompilerHung { seconds: self.timeout.as_secs_f64() },
            Err(Silence::Hung(_)) => Fate::Hung { seconds: self.timeout.as_secs_f64() },
            Err(Silence::Ended(how) | Silence::Refused(how)) => Fate::Crashed { reason: how },
        };
        // Question and answer may be out of step now, so the process goes, and its children with it.
        self.worker = None;
        Err(fate)
    }

    fn validate(&mut self, validation: Validation) -> Result<Box<Validated>> {
        let failed =
            |reason: String| Error::unavailable("the validation", reason, "resume the search to try it once more");
        let Some(worker) = &mut self.worker else { return Err(failed("there is no worker".into())) };
        let timeout = Duration::from_secs_f64(VALIDATION_SECONDS);
        let answered = worker.ask(&Ask::Validate(validation), timeout, &mut |_| {});
        if let Ok(Answer::Validated(validated)) = answered {
            return Ok(validated);
        }
        self.worker = None;
        Err(failed(match answered {
            Ok(_) => "the worker answered another question".into(),
            Err(Silence::Hung(_)) => format!("no sign of progress within {VALIDATION_SECONDS} s"),
            Err(Silence::Ended(how) | Silence::Refused(how)) => how,
        }))
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use crate::evolve::protocol::VERSION;
    use crate::gates::Thresholds;
    use eightfold::{Problem, Shape};

    fn task() -> Task {
        Task {
            version: VERSION,
            kernel: "cpu".into(),
            problems: vec![(&Problem::new(Shape::new(1, 1, 16, 8)).unwrap()).into()],
            accuracy: None,
            on_simulator: false,
            seed: 1,
            baselines: Vec::new(),
            thresholds: Thresholds::embedded(),
        }
    }

    /// A worker made of shell: it is ready, and then does this with every request.
    fn scripted(device: &str, each: &str) -> Start {
        Start::Shell(format!(
            r#"read -r task
            echo '{{"ready": {{"device": "{device}", "source_hash": "s", "baselines": ["b"]}}}}'
            while read -r line; do
                trial=$(echo "$line" | sed 's/.*"trial":\([0-9]*\).*/\1/')
                {each}
                echo "{{\"examined\": {{\"trial\": $trial, \"fate\": {{\"kind\": \"hung\", \"seconds\": $trial}}, \"evidence\": {{}}, \"device_s\": 0}}}}"
            done"#
        ))
    }

    fn started(starts: &[Start]) -> Result<Workers> {
        Workers::start(starts, &task(), Duration::from_secs(20))
    }

    fn outcome(workers: &mut Workers, request: Request) -> Result<Fate> {
        assert!(workers.submit(&request));
        loop {
            if let Some(examined) = workers.wait(Duration::from_secs(1))? {
                assert_eq!(examined.trial, request.trial);
                return Ok(examined.fate);
            }
        }
    }

    fn request(trial: usize) -> Request {
        Request { trial, variant: "cpu".into(), best: 1.0, ..Request::default() }
    }

    #[test]
    fn one_that_dies_of_what_it_compiled_ahead_is_asked_again_alone() {
        let mut workers = started(&[scripted("d", r#"case $line in *ahead*) exit 9;; esac"#)]).unwrap();
        let ahead = vec!["cpu:lanes".to_string()];
        assert_eq!(outcome(&mut workers, Request { ahead, ..request(3) }), Ok(Fate::Hung { seconds: 3.0 }));
        assert_eq!(outcome(&mut workers, request(4)), Ok(Fate::Hung { seconds: 4.0 }));
    }

    #[test]
    fn a_compiler_that_hangs_is_told_from_a_kernel_that_does_and_each_step_has_its_time() {
        let begins = |step: &str| format!(r#"echo '{{"begins": "{step}"}}'"#);
        let (compile, run) = (begins("compile"), begins("run"));
        let each = format!(
            "[ $trial = 1 ] && {{ {compile}; sleep 60; }}\n[ $trial = 2 ] && {{ {compile}; {run}; sleep 60; }}
            [ $trial = 3 ] && {{ sleep 1; {compile}; sleep 1; {run}; sleep 1; }}"
        );
        let mut workers = Workers::start(&[scripted("d", &each)], &task(), Duration::from_millis(1800)).unwrap();
        let kind = |workers: &mut Workers, trial| outcome(workers, request(trial)).unwrap().failure();
        assert_eq!(kind(&mut workers, 1), Some("compiler hung"));
        assert_eq!(kind(&mut workers, 2), Some("hung"));
        assert_eq!(outcome(&mut workers, request(3)), Ok(Fate::Hung { seconds: 3.0 }));
    }

    #[test]
    fn an_answer_to_another_question_ends_the_worker_and_a_new_one_takes_over() {
        let mut workers = started(&[scripted("d", "[ $trial = 1 ] && trial=7")]).unwrap();
        let said = outcome(&mut workers, request(1)).unwrap().to_string();
        assert_eq!(said, "crashed: it answered another question");
        assert_eq!(outcome(&mut workers, request(2)), Ok(Fate::Hung { seconds: 2.0 }));
    }

    #[test]
    fn workers_must_be_alike() {
        let error = started(&[scripted("one", ":"), scripted("two", ":")]).err().unwrap().to_string();
        assert!(error.contains("is two with sources s, and the first is one with s"), "{error}");
        let refused = r#"read -r task; echo '{"refused": "there is no device"}'"#;
        let error = started(&[Start::Shell(refused.into())]).err().unwrap().to_string();
        assert!(error.contains("there is no device"), "{error}");
    }

    #[test]
    fn one_that_does_not_come_back_ends_the_search_with_the_reason() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("started");
        let Start::Shell(script) = scripted("d", "exit 1") else { panic!("a shell") };
        let once = format!("[ -e '{0}' ] && {{ echo gone >&2; exit 4; }}; touch '{0}'\n{script}", file.display());
        let mut workers = started(&[Start::Shell(once)]).unwrap();
        assert_eq!(outcome(&mut workers, request(0)).unwrap().failure(), Some("crashed"));
        let error = outcome(&mut workers, request(1)).unwrap_err().to_string();
        assert!(error.contains("it ended before it was ready: exit code 4: gone"), "{error}");
        assert!(workers.wait(Duration::from_secs(1)).is_err());
    }
}
