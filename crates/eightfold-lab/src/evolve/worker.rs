//! The worker's side: a process that takes one candidate after the other through the cascade, and may die of any of them.

use super::cascade::Bench;
use super::fate::Fate;
use super::fault;
use super::protocol::{Answer, Ask, Examined, Ready, Task, VERSION};
use super::validate::validate;
use eightfold::{Error, Family, Result};
use std::io::{BufRead, Write};
use std::sync::mpsc::{Receiver, channel};

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
    let baseline = Bench::baseline(task)?;
    let cases = Bench::cases(task, &baseline)?;
    let mut bench = Bench::new(task, baseline, &cases)?;
    answer(&Answer::Ready(Ready {
        device: bench.device()?,
        source_hash: Family::find(&task.kernel)?.source_hash(),
        baseline: bench.baseline.variant.to_string(),
    }))?;
    while let Ok(line) = asked.recv() {
        match parse(&line)? {
            Ask::Examine(request) => {
                let struck = fault::strike(request.trial);
                let examined = match struck {
                    Some(fate) => Examined { trial: request.trial, fate, evidence: Default::default(), device_s: 0.0 },
                    None => bench.examine(&request),
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
                let validated = validate(task, &bench.baseline, &validation, tick);
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
