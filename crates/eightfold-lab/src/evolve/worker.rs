//! The worker's side: a process that takes one candidate after the other through the cascade, and may die of any of them.

use super::cascade::Bench;
use super::fate::Fate;
use super::fault;
use super::protocol::{Answer, Ask, Examined, Ready, Task, VERSION};
use super::validate::validate;
use crate::simulate::{self, Schedules};
use eightfold::lab::Family;
use eightfold::{Error, Result};
use std::io::{BufRead, Write};
use std::sync::mpsc::{Receiver, channel};

/// The schedules of candidates on the simulated device: in turn, and at random with everything late.
const SCHEDULES: [u64; 2] = [0, 5];

/// Serves a search that speaks through standard input and output, until it goes away.
///
/// A thread reads the requests. When they end the process ends at once, whatever it is doing: a search that was killed
/// leaves no worker behind that hangs in a kernel.
pub fn serve() -> Result<()> {
    let (sender, asked) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(std::result::Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
        std::process::exit(0);
    });
    let Ok(line) = asked.recv() else { return Ok(()) };
    let served = match parse(&line) {
        Ok(Ask::Task(task)) if task.version == VERSION => work(&task, &asked),
        Ok(Ask::Task(task)) => Err(Error::invalid(
            "worker",
            format!("the search speaks version {} of the protocol, and this worker {VERSION}", task.version),
            "use the same version of Eightfold everywhere",
        )),
        Ok(_) => Err(Error::invalid("worker", "was asked before it was given a task", "begin with the task")),
        Err(error) => Err(error),
    };
    if let Err(error) = &served {
        answer(&Answer::Refused(error.to_string()))?;
    }
    served
}

fn work(task: &Task, asked: &Receiver<String>) -> Result<()> {
    if task.on_simulator {
        // The search has a time limit of its own, and knows what it means when that is reached.
        let (seeds, limit_seconds) = (SCHEDULES.to_vec(), None);
        simulate::set_schedules(Schedules { seeds, limit_seconds, ..Schedules::default() });
        simulate::install()?;
    }
    let baselines = Bench::baselines(task)?;
    let cases = Bench::cases(task, &baselines)?;
    let mut bench = Bench::new(task, baselines, &cases)?;
    answer(&Answer::Ready(Ready {
        device: bench.device()?,
        source_hash: Family::find(&task.kernel)?.source_hash(),
        baselines: bench.held_against().map(|baseline| baseline.variant.to_string()).collect(),
    }))?;
    while let Ok(line) = asked.recv() {
        match parse(&line)? {
            Ask::Examine(request) => {
                let struck = fault::strike(request.trial);
                let begins = &mut |step| {
                    let _ = answer(&Answer::Begins(step));
                };
                let examined = match struck {
                    Some(fate) => Examined { trial: request.trial, fate, evidence: Default::default(), device_s: 0.0 },
                    None => bench.examine(&request, begins),
                };
                let lost = matches!(examined.fate, Fate::DeviceFault { .. } | Fate::OutOfMemory { .. });
                answer(&Answer::Examined(Box::new(examined)))?;
                if lost {
                    // The context is gone, and with it whatever else this process could do; a new one takes over.
                    return Ok(());
                }
            }
            Ask::Validate(validation) => {
                let tick = &mut |share: f64| {
                    let _ = answer(&Answer::Progress(share));
                };
                let baselines: Vec<_> = bench.held_against().cloned().collect();
                let validated = validate(task, &baselines, &validation, tick);
                answer(&validated.map_or_else(
                    |error| Answer::Refused(error.to_string()),
                    |validated| Answer::Validated(Box::new(validated)),
                ))?;
            }
            Ask::Task(_) => return Err(Error::invalid("worker", "has a task already", "start another worker")),
        }
    }
    Ok(())
}

fn parse(line: &str) -> Result<Ask> {
    serde_json::from_str(line).map_err(|error| {
        let start: String = line.chars().take(60).collect();
        let fix = "workers are started by `eightfold evolve`, which speaks JSON lines to them";
        Error::invalid("worker", format!("was asked `{start}`, which it does not understand: {error}"), fix)
    })
}

fn answer(answer: &Answer) -> Result<()> {
    let text = serde_json::to_string(answer).expect("an answer holds only plain data with string keys");
    let mut output = std::io::stdout().lock();
    let written = writeln!(output, "{text}").and_then(|()| output.flush());
    written.map_err(|error| Error::unavailable("the search", error.to_string(), "it is gone"))
}
