//! `eightfold ledger`: what every stage and every optimisation was expected to bring, what it brought, and how the two
//! agree.

use super::measure;
use super::recording::{DEFAULT_FOLDER, Format, FormatArguments};
use crate::output::ledger_table;
use crate::{Verdict, output};
use clap::Args;
use eightfold::{Error, Result};
use eightfold_lab::kernel::{self, Kernel};
use eightfold_lab::ledger::{self, Evolution, Ledger};
use eightfold_lab::record::{Kind, Record};
use std::path::{Path, PathBuf};

/// What may be asked of the ledger.
#[derive(Args, Debug)]
pub struct Arguments {
    /// The ladder record that holds the measurements, or its folder [default: for each kernel the newest in runs and
    /// results, without a mask]
    #[arg(value_name = "RECORD")]
    record: Option<PathBuf>,
    /// The kernel: cpu, ladder, hopper, or gpu for the best on this machine's GPU [default: all, or the record's]
    #[arg(long, value_name = "KERNEL")]
    kernel: Option<String>,
    /// Compare every optimisation now, without and with it, one after the other, and show what came out
    #[arg(long, conflicts_with = "record")]
    measure: bool,
    /// Of the optimisations, those of these names alone
    #[arg(long, value_name = "NAME", num_args = 1.., requires = "measure")]
    only: Vec<String>,
    /// Folder of the records that --measure makes, one subfolder each [default: runs]
    #[arg(long, value_name = "DIR", requires = "measure")]
    records: Option<PathBuf>,
    /// Also say why; for each stage what could go wrong, what to do then, and what the hardware allows; for each
    /// optimisation what was learned
    #[arg(long)]
    long: bool,
    #[command(flatten)]
    format: FormatArguments,
}

/// Where committed records are kept, beside those of one's own runs.
const COMMITTED_FOLDER: &str = "results";

/// Measures if asked to, and prints the evolution of the chosen ladders.
pub fn execute(arguments: &Arguments, nvrtc: Option<&Path>, json: bool) -> Result<Verdict> {
    let format = arguments.format.format(json)?;
    if format == Format::Csv {
        return Err(Error::invalid("format", "csv is for bench and run", "take json, which holds the whole ledger"));
    }
    let asked: Option<Kernel> = arguments.kernel.as_deref().map(kernel::find).transpose()?;
    let kernels = asked.map_or_else(|| Kernel::all().collect(), |kernel| vec![kernel]);
    let out = arguments.records.as_deref().unwrap_or(Path::new(DEFAULT_FOLDER));
    let mut verdict = Verdict::Passed;
    let evolutions = match &arguments.record {
        Some(path) => vec![of_record(path, asked)?],
        None if arguments.measure => {
            let measured = measure::all(&kernels, &arguments.only, out, nvrtc)?;
            if !measured.failed.is_empty() {
                verdict = Verdict::GateFailed;
            }
            let records = read(measured.runs);
            kernels.into_iter().map(|kernel| newest(kernel, out).with_comparisons(&records)).collect()
        }
        None => kernels.into_iter().map(|kernel| with_known_comparisons(kernel, newest(kernel, out))).collect(),
    };
    let all = |render: fn(&Evolution, bool) -> String| {
        evolutions.iter().map(|evolution| render(evolution, arguments.long)).collect::<Vec<_>>().join("\n")
    };
    match format {
        Format::Json => output::print_json(&evolutions)?,
        Format::Markdown => output::print_raw(&all(ledger_table::markdown))?,
        Format::Table | Format::Csv => output::print(&all(ledger_table::render))?,
    }
    Ok(verdict)
}

fn of_record(path: &Path, asked: Option<Kernel>) -> Result<Evolution> {
    let (path, record, kernel) = ledger::load(path)?;
    if let Some(asked) = asked.filter(|asked| *asked != kernel) {
        let rule = format!("is {asked}, but {} measures {kernel}", path.display());
        return Err(Error::invalid("kernel", rule, "leave it out, or give a record of that kernel"));
    }
    Ok(with_known_comparisons(kernel, Evolution::new(kernel, Some((&path, &record)))))
}

/// The newest ladder record of the kernel, in this folder or where records are anyway.
fn newest(kernel: Kernel, out: &Path) -> Evolution {
    let mut folders = vec![out];
    folders.extend([DEFAULT_FOLDER, COMMITTED_FOLDER].map(Path::new).iter().filter(|folder| **folder != out));
    let found = ledger::newest(&folders, kernel);
    pass_over(&found.unreadable);
    Evolution::new(kernel, found.record.as_ref().map(|(path, record)| (path.as_path(), record)))
}

/// The evolution with what records of the ledger's machine say about its optimisations.
fn with_known_comparisons(kernel: Kernel, evolution: Evolution) -> Evolution {
    let ledger = Ledger::of(kernel);
    if ledger.optimisations.is_empty() {
        return evolution;
    }
    let mut records = read(ledger::runs(&[DEFAULT_FOLDER, COMMITTED_FOLDER].map(Path::new), Kind::Compare));
    records.retain(|(_, record)| ledger.applies_to(kernel, &record.provenance));
    evolution.with_comparisons(&records)
}

/// The records of these runs; those that cannot be read are named.
fn read(runs: Vec<PathBuf>) -> Vec<(PathBuf, Record)> {
    let found = ledger::comparisons(runs);
    pass_over(&found.unreadable);
    found.records
}

fn pass_over(unreadable: &[Error]) {
    for error in unreadable {
        output::note(&format!("passed over: {error}"));
    }
}
