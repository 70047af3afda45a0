//! The command line: what may be asked, and mistakes answered in one line.

use crate::commands::{
    attend, bench, compare, contestant, doctor, evolve, explain, ladder, ledger, profile, records, report, run, worker,
};
use crate::{MISTAKE, output};
use clap::error::ErrorKind;
use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;

/// FP8 attention that proves itself.
///
/// Alone, it takes every stage of the ladder of this machine's best backend through its gates and timing on the standard
/// shapes, prints the table and writes the record.
#[derive(Parser, Debug)]
#[command(name = "eightfold", version, args_conflicts_with_subcommands = true)]
pub struct CommandLine {
    #[command(subcommand)]
    pub command: Option<Command>,
    #[command(flatten)]
    pub ladder: ladder::Arguments,
    /// Print JSON, and nothing else, on standard output
    #[arg(long, global = true, display_order = 100)]
    pub json: bool,
    /// Threads to run on [default: all cores]
    #[arg(long, global = true, value_name = "N", display_order = 101)]
    pub threads: Option<usize>,
    /// The NVRTC library that compiles GPU kernels, or its folder [default: what doctor finds]
    #[arg(long, global = true, value_name = "PATH", display_order = 102)]
    pub nvrtc: Option<PathBuf>,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Put chosen variants through the gates, on standard inputs or your own
    Run(run::Arguments),
    /// Time chosen variants, taking turns, with peers beside them
    Bench(bench::Arguments),
    /// Write the pages of the book and the parts of the README that come from records
    #[command(hide = true)]
    Book,
    /// Say whether B is faster than A: two variants or two binaries now, or two records
    ///
    /// PASS: the whole 95 % interval of the speed-up p50(A) / p50(B) is at or above the required one. VALID NEGATIVE: all
    /// of it is below. INCONCLUSIVE: the rounds ran out before either. INVALID RUN: A against itself is more than 2 % off,
    /// or the contestants met different conditions. Two variants take turns, A twice in each round, in random order, after
    /// both passed the correctness gate; so do two binaries of Eightfold, each in processes of its own. Two records are compared where both timed the same problem on the same device.
    ///
    /// Exit code: 0 for PASS, and without --require for every sound comparison; 1 where a gate failed, or with --require
    /// for VALID NEGATIVE and INCONCLUSIVE; 2 for a mistake or an INVALID RUN.
    Compare(compare::Arguments),
    /// Count with Nsight Compute what chosen variants do on a GPU, and say what bounds them
    ///
    /// Each variant is profiled in a process of its own while it passes its correctness gate: tensor cores, device memory,
    /// throughput, resident warps, bank conflicts, local memory, special functions, stall reasons. Clocks are left alone.
    /// The profile gate asks for tensor cores that are busy at least 50 % of the time and device memory that is busy less
    /// than 50 %: a stage whose ledger entry claims that the tensor cores bound it fails without; for others it is a finding.
    Profile(profile::Arguments),
    /// Search a kernel's knobs for what is faster than the plan's choice
    ///
    /// Every candidate runs in a worker process and meets the rules, the compiler, the resource gate, the correctness gate
    /// on inputs of its own, and the clock, in this order. Every outcome is in the journal before the search goes on:
    /// whatever ends it, --resume continues it. Ctrl-C finishes the candidate in hand. At the end the elite is timed
    /// against the baseline, 500 runs each on fresh inputs, for a verdict.
    Evolve(evolve::Arguments),
    /// Serve a search on standard input and output; evolve starts it
    Worker(worker::Arguments),
    /// Show what every stage and every optimisation was expected to bring, and what it brought
    Ledger(ledger::Arguments),
    /// List the records that are kept: commit, device, date, and whether their sources have changed since
    Records(records::Arguments),
    /// Show records as one page: verdict, charts, errors, resources, environment
    Report(report::Arguments),
    /// Compute attention on your own tensors
    Attend(attend::Arguments),
    /// Be one side of a comparison of two binaries
    #[command(hide = true)]
    Contestant(contestant::Arguments),
    /// Say what would run for a problem, and why
    Explain(explain::Arguments),
    /// Say what was found on this machine, and how to get what is missing
    Doctor(doctor::Arguments),
}

/// The arguments, or the exit code after help or a mistake was printed.
pub fn parse() -> Result<CommandLine, ExitCode> {
    CommandLine::try_parse().map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => match output::print(&error.render().to_string()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::from(MISTAKE),
        },
        _ => {
            output::complain(&one_line(&error.render().to_string()));
            ExitCode::from(MISTAKE)
        }
    })
}

/// The sentences of a message of clap's, without the usage that follows them.
fn one_line(message: &str) -> String {
    let sentences = message
        .lines()
        .map(str::trim)
        .take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more information"))
        .filter(|line| !line.is_empty());
    let joined = sentences.fold(String::new(), |text, line| match text.chars().last() {
        None => line.to_string(),
        Some(':') => format!("{text} {line}"),
        Some(_) => format!("{text}; {line}"),
    });
    joined.strip_prefix("error: ").unwrap_or(&joined).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        CommandLine::command().debug_assert();
    }

    #[test]
    fn a_message_becomes_one_line() {
        let message =
            "error: unexpected argument '--shpe' found\n\n  tip: a similar argument exists: '--shape'\n\nUsage: x";
        assert_eq!(one_line(message), "unexpected argument '--shpe' found; tip: a similar argument exists: '--shape'");
        assert_eq!(one_line("error: required:\n  --out <FILE>\n\nUsage: x"), "required: --out <FILE>");
    }
}
