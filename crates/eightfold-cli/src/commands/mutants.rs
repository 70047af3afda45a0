//! `eightfold mutants`: small changes to the device code, each of which a gate must notice.

use super::recording::{FormatArguments, RecordArguments, Recording, Show};
use super::run::{Place, SimulatorArguments};
use crate::Verdict;
use crate::output::{self, mutants_table};
use crate::progress::Bar;
use clap::Args;
use eightfold::{Error, Result};
use eightfold_lab::gates::Thresholds;
use eightfold_lab::mutants::{self, Mutant, Mutants};
use eightfold_lab::progress::Progress;
use eightfold_lab::record::Kind;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Which mutants, and where they run.
#[derive(Args, Debug)]
pub struct Arguments {
    /// Mutants to try [default: all]
    #[arg(long, value_name = "NAME", num_args = 1..)]
    only: Vec<String>,
    #[command(flatten)]
    simulator: SimulatorArguments,
    /// How long one mutant may take, compiling and all
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    patience: u64,
    /// How many are tried at a time
    #[arg(long, value_name = "N", default_value_t = 1)]
    jobs: usize,
    /// Try the one mutant in this process, and write what became of it
    #[arg(long, hide = true)]
    here: bool,
    #[command(flatten)]
    format: FormatArguments,
    #[command(flatten)]
    record: RecordArguments,
}

/// Tries them all, each in a process of its own, prints the table, writes the record.
pub fn execute(arguments: &Arguments, nvrtc: Option<&Path>, json: bool) -> Result<Verdict> {
    let mutants = Mutants::embedded();
    let chosen = mutants.named(&arguments.only)?;
    let on = match arguments.simulator.on {
        Place::Device => mutants::Place::Device,
        Place::Simulator => mutants::Place::Simulator,
    };
    if arguments.here {
        arguments.simulator.settle(&[0])?;
        let limits = arguments.record.gates.as_deref().map_or_else(|| Ok(Thresholds::embedded()), Thresholds::load)?;
        for mutant in chosen {
            let fate = mutants.try_here(mutant, on, &limits)?;
            output::print_raw(&format!("{}\n", serde_json::to_string(&fate).expect("a fate is plain data")))?;
        }
        return Ok(Verdict::Passed);
    }
    let format = arguments.format.format(json)?;
    arguments.simulator.settle(&[0])?;
    let mut recording = Recording::open(Kind::Mutants, &arguments.record)?.with_cuda();
    let mut progress = Bar::new();
    let limit = Duration::from_secs(arguments.patience);
    let command = |mutant: &Mutant| apart(arguments, &mutant.name, nvrtc);
    let mut done = 0.0;
    let ended = mutants.try_each(&chosen, arguments.jobs, command, limit, |tried| {
        done += 1.0;
        progress.at(done / chosen.len() as f64, &format!("mutant {}", tried.name));
        recording.keep_mutant(on, tried)
    });
    drop(progress);
    let show = Show {
        format,
        csv: mutants_table::csv,
        markdown: mutants_table::markdown,
        ..Show::new(json, mutants_table::render)
    };
    recording.finish(ended, &show)
}

/// This program, for one mutant.
fn apart(arguments: &Arguments, name: &str, nvrtc: Option<&Path>) -> Result<Command> {
    let program = std::env::current_exe()
        .map_err(|error| Error::unavailable("this program", error.to_string(), "start it from a place that stays"))?;
    let mut command = Command::new(program);
    command.args(["mutants", "--here", "--only", name, "--limit", &arguments.simulator.limit.to_string()]);
    if arguments.simulator.on == Place::Simulator {
        command.args(["--on", "simulator"]);
    }
    if arguments.simulator.no_races {
        command.arg("--no-races");
    }
    if let Some(gates) = &arguments.record.gates {
        command.arg("--gates").arg(gates);
    }
    if let Some(nvrtc) = nvrtc {
        command.arg("--nvrtc").arg(nvrtc);
    }
    Ok(command)
}
