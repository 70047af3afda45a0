//! What the commands that leave a record have in common.

use crate::{Verdict, output};
use clap::Args;
use eightfold::Result;
use eightfold_lab::gates::Thresholds;
use eightfold_lab::provenance::Provenance;
use eightfold_lab::record::{Group, Kind, Record};
use eightfold_lab::store::Store;
use std::path::PathBuf;

/// Where the record goes, and by which limits it was judged.
#[derive(Args, Debug)]
pub struct RecordArguments {
    /// Folder of the records, one subfolder per run
    #[arg(long, value_name = "DIR", default_value = DEFAULT_FOLDER)]
    pub out: PathBuf,
    /// Gate limits and timing policy to use instead of the embedded gates.toml
    #[arg(long, value_name = "FILE")]
    pub gates: Option<PathBuf>,
}

/// Where records go unless told otherwise.
pub const DEFAULT_FOLDER: &str = "runs";

/// A record in the making.
pub struct Recording {
    store: Store,
    record: Record,
}

impl Recording {
    /// Finds out, before the long work, whether a record can be written, and notes where everything comes from.
    pub fn open(kind: Kind, arguments: &RecordArguments) -> Result<Self> {
        let thresholds = arguments.gates.as_deref().map_or_else(|| Ok(Thresholds::embedded()), Thresholds::load)?;
        let store = Store::open(&arguments.out)?;
        let provenance = Provenance::capture(rayon::current_num_threads());
        Ok(Recording { store, record: Record { thresholds, ..Record::new(kind, provenance) } })
    }

    /// The limits that apply.
    pub fn thresholds(&mut self) -> &mut Thresholds {
        &mut self.record.thresholds
    }

    /// Writes the record, then prints it, as tables or as JSON.
    pub fn finish(mut self, groups: Vec<Group>, json: bool, render: fn(&Group) -> String) -> Result<Verdict> {
        self.record.groups = groups;
        let path = self.store.write(&self.record)?;
        if json {
            output::print(&self.record.to_json())?;
            output::note(&format!("record written to {}", path.display()));
        } else {
            let tables: Vec<_> = self.record.groups.iter().map(render).collect();
            output::print(&format!(
                "{}\n\n{}\nrecord: {}\n",
                machine(&self.record.provenance),
                tables.join("\n"),
                path.display()
            ))?;
        }
        Ok(if self.record.failed() { Verdict::GateFailed } else { Verdict::Passed })
    }
}

/// Which machine, on how many threads, in one line.
fn machine(provenance: &Provenance) -> String {
    let Provenance { machine, threads, eightfold, release, .. } = provenance;
    let plural = if *threads == 1 { "" } else { "s" };
    let build = if *release { "" } else { " (not a release build: times say little)" };
    format!("eightfold {eightfold}{build} on {}, {threads} thread{plural}", machine.cpu)
}
