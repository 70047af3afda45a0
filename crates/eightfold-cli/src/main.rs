//! The `eightfold` command: parse, run, report, exit.

mod arguments;
mod commands;
mod interrupt;
mod output;
mod progress;
mod renamed;
mod threads;

use arguments::Command;
use eightfold_lab::environment;
use output::page;
use std::process::ExitCode;

/// Whether everything that was asked for holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Passed,
    GateFailed,
    /// The run was no evidence of anything.
    Unsound,
}

const GATE_FAILED: u8 = 1;
const MISTAKE: u8 = 2;

fn main() -> ExitCode {
    let arguments = match arguments::parse() {
        Ok(arguments) => arguments,
        Err(exit) => return exit,
    };
    let (json, nvrtc) = (arguments.json, arguments.nvrtc.as_deref());
    page::settle(arguments.page());
    let settled = threads::settle(arguments.threads).and_then(|()| environment::settle(nvrtc));
    let verdict = settled.and_then(|()| match arguments.command {
        None => commands::ladder::execute(&arguments.ladder, json),
        Some(Command::Ladder(arguments)) => commands::ladder::execute(&arguments, json),
        Some(Command::Survey(arguments)) => commands::survey::execute(&arguments, json),
        Some(Command::Ablation(arguments)) => commands::ablation::execute(&arguments, json),
        Some(Command::Gate(own)) => commands::gate::execute(&own, nvrtc, json),
        Some(Command::Build(arguments)) => commands::build::execute(&arguments, json),
        Some(Command::Run(arguments)) => commands::run::execute(&arguments, json),
        Some(Command::Bench(arguments)) => commands::bench::execute(&arguments, json),
        Some(Command::Dump(arguments)) => commands::dump::execute(&arguments, json),
        Some(Command::List(arguments)) => commands::list::execute(&arguments, json),
        Some(Command::Completions(arguments)) => commands::completions::execute(&arguments),
        Some(Command::Man(arguments)) => commands::man::execute(&arguments),
        Some(Command::Book) => commands::book::execute(),
        Some(Command::Compare(own)) => commands::compare::execute(&own, nvrtc, json),
        Some(Command::Profile(own)) => commands::profile::execute(&own, nvrtc, json),
        Some(Command::Contestant(arguments)) => commands::contestant::execute(&arguments),
        Some(Command::Evolve(own)) => commands::evolve::execute(&own, nvrtc, json),
        Some(Command::Worker(arguments)) => commands::worker::execute(&arguments),
        Some(Command::Ledger(own)) => commands::ledger::execute(&own, nvrtc, json),
        Some(Command::Mutants(own)) => commands::mutants::execute(&own, nvrtc, json),
        Some(Command::Records(arguments)) => commands::records::execute(&arguments, json),
        Some(Command::Report(arguments)) => commands::report::execute(&arguments, json),
        Some(Command::Attend(arguments)) => commands::attend::execute(&arguments, json),
        Some(Command::Explain(arguments)) => commands::explain::execute(&arguments, json),
        Some(Command::Doctor(arguments)) => commands::doctor::execute(&arguments, json),
    });
    match verdict {
        Ok(Verdict::Passed) => ExitCode::SUCCESS,
        Ok(Verdict::GateFailed) => ExitCode::from(GATE_FAILED),
        Ok(Verdict::Unsound) => ExitCode::from(MISTAKE),
        Err(error) => {
            output::complain(&error.to_string());
            ExitCode::from(MISTAKE)
        }
    }
}
