//! `eightfold ledger`: what every stage was expected to bring, what it brought, and how the two agree.

use super::recording::DEFAULT_FOLDER;
use crate::output::ledger_table;
use crate::{Verdict, output};
use clap::Args;
use eightfold::{Error, Result};
use eightfold_lab::kernel::Kernel;
use eightfold_lab::ledger::{self, Evolution};
use std::path::{Path, PathBuf};

/// What may be asked of the ledger.
#[derive(Args, Debug)]
pub struct Arguments {
    /// The ladder record that holds the measurements, or its folder [default: for each kernel the newest in runs and
    /// results, without a mask]
    #[arg(value_name = "RECORD")]
    record: Option<PathBuf>,
    /// The kernel: cpu, ladder or hopper [default: all, or the record's]
    #[arg(long, value_name = "KERNEL")]
    kernel: Option<String>,
    /// Also say for each stage why, what could go wrong, what to do then, and what the hardware allows
    #[arg(long)]
    long: bool,
    /// Print Markdown
    #[arg(long)]
    markdown: bool,
}

/// Where committed records are kept, beside those of one's own runs.
const COMMITTED_FOLDER: &str = "results";

/// Prints the evolution of the chosen ladders.
pub fn execute(arguments: &Arguments, json: bool) -> Result<Verdict> {
    if json && arguments.markdown {
        return Err(Error::invalid("markdown", "cannot go with --json", "choose one of them"));
    }
    let asked: Option<Kernel> = arguments.kernel.as_deref().map(str::parse).transpose()?;
    let evolutions = match &arguments.record {
        Some(path) => vec![of_record(path, asked)?],
        None => {
            let all = || Kernel::ALL.to_vec();
            asked.map_or_else(all, |kernel| vec![kernel]).into_iter().map(newest).collect()
        }
    };
    if json {
        output::print_json(&evolutions)?;
    } else {
        let render = if arguments.markdown { ledger_table::markdown } else { ledger_table::render };
        let texts = evolutions.iter().map(|evolution| render(evolution, arguments.long));
        output::print(&texts.collect::<Vec<_>>().join("\n"))?;
    }
    Ok(Verdict::Passed)
}

fn of_record(path: &Path, asked: Option<Kernel>) -> Result<Evolution> {
    let (path, record, kernel) = ledger::load(path)?;
    if let Some(asked) = asked.filter(|asked| *asked != kernel) {
        let rule = format!("is {asked}, but {} measures {kernel}", path.display());
        return Err(Error::invalid("kernel", rule, "leave it out, or give a record of that kernel"));
    }
    Ok(Evolution::new(kernel, Some((&path, &record))))
}

fn newest(kernel: Kernel) -> Evolution {
    let found = ledger::newest(&[DEFAULT_FOLDER, COMMITTED_FOLDER].map(Path::new), kernel);
    for error in &found.unreadable {
        output::note(&format!("passed over: {error}"));
    }
    Evolution::new(kernel, found.record.as_ref().map(|(path, record)| (path.as_path(), record)))
}
