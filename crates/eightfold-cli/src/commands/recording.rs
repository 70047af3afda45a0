//! What the commands that leave a record have in common.

use crate::output::page::page;
use crate::{Verdict, output};
use clap::{Args, ValueEnum};
use eightfold::{Error, Result};
use eightfold_lab::compare::Comparison;
use eightfold_lab::decode::PagedGroup;
use eightfold_lab::gates::{Thresholds, ToggleReport};
use eightfold_lab::measure::HostGroup;
use eightfold_lab::mutants::{Place, Trial, Tried};
use eightfold_lab::provenance::Provenance;
use eightfold_lab::quantizer::QuantizerGroup;
use eightfold_lab::record::{BuildGroup, Group, Kind, Record};
use eightfold_lab::report::{self, Source};
use eightfold_lab::store::{Store, write_in_run};
use std::path::{Path, PathBuf};

/// Where the record goes, and by which limits it was judged.
#[derive(Args, Debug)]
pub struct RecordArguments {
    /// Folder of the records, one subfolder per run
    #[arg(long, value_name = "DIR", default_value = DEFAULT_FOLDER)]
    pub records: PathBuf,
    /// Gate limits and timing policy to use instead of the embedded gates.toml
    #[arg(long, value_name = "FILE")]
    pub gates: Option<PathBuf>,
}

/// Where records go unless told otherwise.
pub const DEFAULT_FOLDER: &str = "runs";

/// A record in the making. It is on disk as soon as there is something in it, so that a run that dies leaves what it
/// had.
pub struct Recording {
    store: Store,
    record: Record,
    /// What the problem under way has come to.
    unfinished: Option<Group>,
    path: Option<PathBuf>,
}

impl Recording {
    /// Finds out, before the long work, whether a record can be written, and notes where everything comes from.
    pub fn open(kind: Kind, arguments: &RecordArguments) -> Result<Self> {
        let thresholds = arguments.gates.as_deref().map_or_else(|| Ok(Thresholds::embedded()), Thresholds::load)?;
        let store = Store::open(&arguments.records)?;
        let provenance = Provenance::capture(rayon::current_num_threads());
        Ok(Recording {
            store,
            record: Record { thresholds, ..Record::new(kind, provenance) },
            unfinished: None,
            path: None,
        })
    }

    /// Notes the GPU and its compiler as well, for jobs that use them.
    pub fn with_cuda(mut self) -> Self {
        self.record.provenance = self.record.provenance.with_cuda();
        self
    }

    /// Notes the compiler alone: what is compiled for another machine says nothing about this one's GPU.
    pub fn with_compiler(mut self) -> Self {
        self.record.provenance = self.record.provenance.with_compiler();
        self
    }

    /// The limits that apply.
    pub fn thresholds(&mut self) -> &mut Thresholds {
        &mut self.record.thresholds
    }

    /// Adds the results of one problem.
    pub fn keep(&mut self, group: Group) -> Result<()> {
        self.unfinished = None;
        self.record.groups.push(group);
        self.save()
    }

    /// Keeps what the problem under way has come to, in place of what it had come to before: a run that is killed loses no
    /// more than the round in progress.
    pub fn keep_unfinished(&mut self, group: &Group) -> Result<()> {
        self.unfinished = Some(group.clone());
        self.save()
    }

    /// Adds what was compiled for one architecture.
    pub fn keep_builds(&mut self, builds: Vec<BuildGroup>, toggle: Option<ToggleReport>) -> Result<()> {
        self.record.builds.extend(builds);
        self.record.toggles.extend(toggle);
        self.save()
    }

    /// Adds verdicts, and the times that they rest on where those were taken now.
    pub fn keep_comparisons(&mut self, group: Option<Group>, comparisons: Vec<Comparison>) -> Result<()> {
        self.unfinished = None;
        self.record.groups.extend(group);
        self.record.comparisons.extend(comparisons);
        self.save()
    }

    /// Adds the times of the device's quantiser on one shape.
    pub fn keep_quantizer(&mut self, group: QuantizerGroup) -> Result<()> {
        self.record.quantizers.push(group);
        self.save()
    }

    /// Adds the times of attention to pages in one case.
    pub fn keep_paged(&mut self, group: PagedGroup) -> Result<()> {
        self.record.paged.push(group);
        self.save()
    }

    /// Adds what launches on one shape cost the host.
    pub fn keep_host(&mut self, group: HostGroup) -> Result<()> {
        self.record.hosts.push(group);
        self.save()
    }

    /// Adds what became of a mutant.
    pub fn keep_mutant(&mut self, on: Place, tried: Tried) -> Result<()> {
        self.record.mutants.get_or_insert(Trial { on, tried: Vec::new() }).tried.push(tried);
        self.save()
    }

    /// Notes the GPU and its compiler as another process found them.
    pub fn adopt_device(&mut self, found: &Provenance) {
        self.record.provenance.gpu = found.gpu.clone();
        self.record.provenance.nvrtc = found.nvrtc.clone();
    }

    /// Adds what was counted for one variant, on the device that the profiled program found.
    pub fn keep_profile(&mut self, device: &Provenance, group: Group) -> Result<()> {
        self.adopt_device(device);
        match self.record.groups.last_mut().filter(|last| last.problem == group.problem) {
            Some(last) => last.entries.extend(group.entries),
            None => self.record.groups.push(group),
        }
        self.save()
    }

    /// The record so far.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Where it is, once there is something in it.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    fn save(&mut self) -> Result<()> {
        let mut record = self.record.clone();
        if let Some(group) = &self.unfinished {
            let cut = || format!("it was ended, or had not ended yet, while {} was timed", group.shape);
            record.ended_early = record.ended_early.or_else(|| Some(cut()));
            record.groups.push(group.clone());
        }
        match &self.path {
            Some(path) => Store::rewrite(path, &record),
            None => {
                self.path = Some(self.store.write(&record)?);
                Ok(())
            }
        }
    }

    /// Shows the record. Work that ended early is an error, but what it had is kept and shown.
    pub fn finish(mut self, ended: Result<()>, show: &Show) -> Result<Verdict> {
        if let Err(error) = &ended
            && self.path.is_some()
        {
            self.record.ended_early = Some(error.to_string());
            // The same error may keep this from being written; then what is on disk has to do.
            let _ = self.save();
        }
        let Some(path) = &self.path else { return ended.and_then(|()| Err(nothing_done())) };
        let mut kept = format!("record: {}\n", path.display());
        if show.page {
            kept.push_str(&format!("report: {}\n", write_page(path)?.display()));
        }
        match show.format {
            Format::Table => {
                let head = if show.head { head(&self.record.provenance) } else { String::new() };
                output::print(&format!("{head}{}\n{kept}", (show.tables)(&self.record)))?;
            }
            Format::Json => output::print_raw(&self.record.to_json())?,
            Format::Csv => output::print_raw(&(show.csv)(&self.record))?,
            Format::Markdown => output::print_raw(&(show.markdown)(&self.record))?,
        }
        if show.format != Format::Table {
            output::note(&kept);
        }
        ended?;
        Ok(if self.record.failed() { Verdict::GateFailed } else { Verdict::Passed })
    }
}

/// How a command shows its record.
pub struct Show {
    /// For whom.
    pub format: Format,
    /// Whether the machine is named first.
    pub head: bool,
    /// Whether a page that shows the record is written beside it.
    pub page: bool,
    /// As tables.
    pub tables: fn(&Record) -> String,
    /// As rows with commas between.
    pub csv: fn(&Record) -> String,
    /// As Markdown.
    pub markdown: fn(&Record) -> String,
}

impl Show {
    /// As tables, or as JSON.
    pub fn new(json: bool, tables: fn(&Record) -> String) -> Self {
        let format = if json { Format::Json } else { Format::Table };
        Show { format, head: true, page: false, tables, csv: tables, markdown: tables }
    }
}

/// What is printed on standard output.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Tables for a person
    Table,
    /// The record, as --json prints it
    Json,
    /// A header and a row for each contestant: numbers without units
    Csv,
    /// Tables for documents
    Markdown,
}

/// What a person may choose.
#[derive(Args, Debug, Clone, Copy)]
pub struct FormatArguments {
    /// What to print on standard output [default: table]
    #[arg(long, value_enum, value_name = "FORMAT")]
    format: Option<Format>,
}

impl FormatArguments {
    /// What was chosen; an error if --json says something else.
    pub fn format(self, json: bool) -> Result<Format> {
        match (self.format, json) {
            (None | Some(Format::Json), true) => Ok(Format::Json),
            (Some(_), true) => Err(Error::invalid("format", "cannot go with --json", "choose one of them")),
            (format, false) => Ok(format.unwrap_or(Format::Table)),
        }
    }
}

/// Writes the page that shows a record beside it.
fn write_page(path: &Path) -> Result<PathBuf> {
    let page = path.with_file_name(PAGE_FILE);
    write_in_run(&page, report::render(&[Source::read(path)?]).as_bytes())?;
    Ok(page)
}

/// The page that shows a record, in the folder of the run.
const PAGE_FILE: &str = "report.html";

fn nothing_done() -> Error {
    Error::invalid("shape", "nothing was asked for", "name at least one shape")
}

/// The tables of all problems.
pub fn tables(record: &Record, render: fn(&Group) -> String) -> String {
    record.groups.iter().map(render).collect::<Vec<_>>().join("\n")
}

/// Which machine, where a person wants to know, with a blank line below.
fn head(provenance: &Provenance) -> String {
    if page().quiet { String::new() } else { format!("{}\n\n", machine(provenance)) }
}

/// Which machine, on how many threads, in one line.
pub fn machine(provenance: &Provenance) -> String {
    let Provenance { machine, threads, eightfold, release, gpu, nvrtc, .. } = provenance;
    let plural = if *threads == 1 { "" } else { "s" };
    let build = if *release { "" } else { " (not a release build: times say little)" };
    let gpu = gpu.as_ref().map(|gpu| format!("{} (driver {}), ", gpu.name, gpu.driver)).unwrap_or_default();
    let nvrtc = nvrtc.as_ref().map(|nvrtc| format!("{nvrtc}, ")).unwrap_or_default();
    format!("eightfold {eightfold}{build} on {gpu}{nvrtc}{}, {threads} thread{plural}", machine.cpu)
}

#[cfg(test)]
mod tests {
    use super::*;
    use eightfold::{Problem, Shape};

    fn recording(folder: &std::path::Path) -> Recording {
        Recording::open(Kind::Run, &RecordArguments { records: folder.into(), gates: None }).unwrap()
    }

    fn group(shape: &str) -> Group {
        let problem = Problem::new(Shape::new(1, 1, 8, 8)).unwrap();
        Group::new(shape, &problem)
    }

    fn lost() -> Error {
        Error::unavailable("the device", "its context is gone", "start again")
    }

    #[test]
    fn what_was_done_before_the_run_ended_early_is_kept_with_the_reason() {
        let place = tempfile::tempdir().unwrap();
        let mut recording = recording(place.path());
        recording.keep(group("first")).unwrap();
        let path = recording.path.clone().unwrap();
        assert_eq!(Record::read(&path).unwrap().groups.len(), 1);
        recording.keep(group("second")).unwrap();
        let error = recording.finish(Err(lost()), &Show::new(false, |_| String::new())).unwrap_err();
        assert_eq!(error, lost());
        let record = Record::read(&path).unwrap();
        let shapes: Vec<_> = record.groups.iter().map(|group| group.shape.as_str()).collect();
        assert_eq!((shapes, record.ended_early), (vec!["first", "second"], Some(lost().to_string())));
    }

    #[test]
    fn a_run_that_ended_before_its_first_result_leaves_nothing() {
        let place = tempfile::tempdir().unwrap();
        let error = recording(place.path()).finish(Err(lost()), &Show::new(false, |_| String::new())).unwrap_err();
        assert_eq!(error, lost());
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
    }
}
