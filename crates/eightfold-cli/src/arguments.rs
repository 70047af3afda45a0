//! The command line: what may be asked, and mistakes answered in one line.

use crate::commands::{
    ablation, attend, bench, build, compare, completions, contestant, doctor, dump, evolve, explain, gate, ladder,
    ledger, list, man, mutants, profile, records, report, run, survey, worker,
};
use crate::output::page::Page;
use crate::renamed;
use crate::{MISTAKE, output};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;

/// FP8 attention that proves itself.
///
/// Without a command it runs `eightfold ladder`: every stage of this machine's best kernel passes its gates and is timed on
/// the standard shapes.
#[derive(Parser, Debug)]
#[command(name = "eightfold", version, args_conflicts_with_subcommands = true, max_term_width = HELP_WIDTH)]
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
    /// Show every column, whatever the terminal's width
    #[arg(long, global = true, display_order = 103)]
    pub wide: bool,
    /// Print results alone: no notes, no progress
    #[arg(long, global = true, conflicts_with = "verbose", display_order = 104)]
    pub quiet: bool,
    /// Say more: every gate of a table, every knob in explain, every place that doctor searched
    #[arg(long, global = true, display_order = 105)]
    pub verbose: bool,
}

/// The most columns of the help; the command reference has as many everywhere.
pub const HELP_WIDTH: usize = 100;

impl CommandLine {
    /// How results are shown. The book's pages are the same whatever the terminal.
    pub fn page(&self) -> Page {
        match self.command {
            Some(Command::Book) => Page::default(),
            _ => Page::here(self.wide, self.quiet, self.verbose),
        }
    }
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Take every stage of a kernel through its gates and timing: the main job
    ///
    /// It prints each shape's table as soon as it is done, then the best variant against the baseline and the peers. The
    /// record and a page that shows it, report.html, are in the run's folder. On a Hopper GPU the kernel that runs there in
    /// each accuracy mode stands beside the stages.
    Ladder(ladder::Arguments),
    /// Put chosen variants through the gates, on standard inputs or your own
    Run(run::Arguments),
    /// Take one variant through every gate in a row: resources, correctness, performance, profile
    ///
    /// Each gate is hard: the first that the variant does not pass is the last. Performance asks for a gain over another variant,
    /// of a stage over what it extends, and for speed-ups over peers (--require 15x torch-math). Profile asks for no instruction
    /// to local memory, for next to no bank conflicts, and of a stage whose ledger entry claims it that the tensor cores bound
    /// it. All limits are in the gate file (--gates).
    ///
    /// Exit code: 0 if every gate passed, 1 if one did not or could not be applied, 2 for a mistake.
    Gate(gate::Arguments),
    /// Say what each stage of a ladder brings alone, and on top of all the others
    ///
    /// A ladder says what a stage brings on top of those before it, whether those paid or not. Here the baseline with each change
    /// alone and everything but each change take turns in one run. A change that others rest on cannot be left out, and one that
    /// rests on others cannot stand alone: the rule is named then.
    Ablation(ablation::Arguments),
    /// Say how far what the plan picks is from the best near it, on a grid of heads, keys, head dims and masks
    ///
    /// On each problem the plan's pick races every variant that differs from it in one knob and is as exact; the fastest meets it
    /// once more, because the best of many is partly luck. Two thirds of the grid are for making rules; the last third (--aside)
    /// shows whether a rule holds where nobody looked. Nothing is changed by it.
    Survey(survey::Arguments),
    /// Compile GPU kernels without a GPU: resources of each, and the proof that every knob changes the machine code
    Build(build::Arguments),
    /// Write the intermediate tiles of one block of a GPU kernel
    Dump(dump::Arguments),
    /// Time chosen variants, which take turns, with peers beside them; or the GPU's quantiser
    Bench(bench::Arguments),
    /// Write the pages of the book and the parts of the README that come from records
    #[command(hide = true)]
    Book,
    /// Say whether B is faster than A: two variants or two binaries now, or two records
    ///
    /// PASS: the whole 95 % interval of the speed-up p50(A) / p50(B) is at or above the required one. VALID NEGATIVE: all
    /// of it is below the required one. REGRESSION: all of it is below 0.98, so that B is slower than A. INCONCLUSIVE: the
    /// rounds ran out before any of these. INVALID RUN: A against itself is more than 2 % off, or the contestants met
    /// different conditions.
    ///
    /// Two variants take turns, A twice in each round, in random order, after both passed the correctness gate. So do two
    /// binaries of Eightfold, each in processes of its own. Two records are compared where both timed the same problem on
    /// the same device.
    ///
    /// Exit code: 0 for PASS, and without --require for every sound comparison; 1 where a gate failed, or with --require
    /// for every verdict but PASS; 2 for a mistake or an INVALID RUN.
    Compare(compare::Arguments),
    /// Count with Nsight Compute what chosen variants do on a GPU, and say what bounds them
    ///
    /// Each variant is profiled in a process of its own while it passes its correctness gate. Counted are tensor cores,
    /// device memory, throughput, resident warps, bank conflicts, local memory, special functions and stall reasons. Clocks
    /// are left alone.
    ///
    /// The profile gate asks that tensor cores are busy at least 50 % of the time and device memory less than 50 %. A stage
    /// fails it if its ledger entry claims that the tensor cores bound it. For other stages the result is a finding.
    Profile(profile::Arguments),
    /// Search a kernel's knobs for what is faster than the plan's choice
    ///
    /// Every candidate runs in a worker process. It meets the rules, the compiler, the resource gate, the correctness gate
    /// on inputs of its own, and the clock, in this order. Every outcome is in the journal before the search goes on, so
    /// that --resume can continue a search that was ended. Ctrl-C finishes the current candidate. At the end the elite is
    /// timed against the baseline, 500 runs each on fresh inputs, for a verdict.
    Evolve(evolve::Arguments),
    /// Serve a search on standard input and output; evolve starts it
    #[command(hide = true)]
    Worker(worker::Arguments),
    /// Show what every stage and every optimisation was expected to bring, and what it brought
    Ledger(ledger::Arguments),
    /// Change the device code in small ways, each of which a gate must notice
    ///
    /// Every mutant is compiled from a text that stands for a kernel's file, and put through the correctness gate on all kinds
    /// of inputs, in a process of its own: one that hangs is ended. Nothing on disk changes. It exits with 1 where a mutant
    /// was not noticed and is not said to compute the same.
    Mutants(mutants::Arguments),
    /// List the records that are kept: commit, device, date, and whether their sources have changed since
    Records(records::Arguments),
    /// Show records as one page: verdict, charts, errors, resources, environment
    Report(report::Arguments),
    /// Compute attention on your own tensors
    Attend(attend::Arguments),
    /// Serve one side of a comparison of two binaries; compare starts it
    #[command(hide = true)]
    Contestant(contestant::Arguments),
    /// Say what would run for a problem, and why
    Explain(explain::Arguments),
    /// List what can be named: kernels, stages, knobs with what they do, shapes, kinds of inputs, peers
    List(list::Arguments),
    /// Say what was found on this machine, and how to get what is missing
    Doctor(doctor::Arguments),
    /// Print the completions of a shell
    Completions(completions::Arguments),
    /// Print the manual page of a command
    Man(man::Arguments),
}

/// The arguments, or the exit code after help or a mistake was printed.
pub fn parse() -> Result<CommandLine, ExitCode> {
    CommandLine::try_parse().map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => match output::print_raw(&error.render().to_string()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::from(MISTAKE),
        },
        kind => {
            let flag = match error.get(ContextKind::InvalidArg) {
                Some(ContextValue::String(flag)) if kind == ErrorKind::UnknownArgument => Some(flag.as_str()),
                _ => None,
            };
            let line: Vec<String> = std::env::args().skip(1).collect();
            let renamed = flag.and_then(|flag| renamed::advice(&line, flag));
            output::complain(&renamed.unwrap_or_else(|| one_line(&error.render().to_string())));
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
        assert_eq!(one_line("error: required:\n  --to <FILE>\n\nUsage: x"), "required: --to <FILE>");
    }
}
