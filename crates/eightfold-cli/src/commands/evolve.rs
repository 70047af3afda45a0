//! `eightfold evolve`: searches a kernel's knobs and sources for what is faster than the plan's choice.

use super::recording::RecordArguments;
use super::run::Place;
use super::selection::{self, AccuracyArguments, ScoringArguments, TimedOutputArguments};
use crate::output::{self, evolve_table};
use crate::progress::Bar;
use crate::{Verdict, interrupt};
use clap::Args;
use eightfold::lab::Family;
use eightfold::{Error, Fp8Format, Mask, Problem, Result, Variant};
use eightfold_lab::evolve::{
    Budget, Contents, ELITE_FILE, Evaluator, Evolution, Found, Header, Journal, Mutator, PROTOCOL, Policy, Ready,
    Recording, Restriction, Search, Space, Start, Target, Task, Validation, Workers, journal,
};
use eightfold_lab::gates::Thresholds;
use eightfold_lab::installed::{self, Installed};
use eightfold_lab::kernel::{self, Kernel};
use eightfold_lab::progress::Progress;
use eightfold_lab::provenance::Provenance;
use eightfold_lab::record::{Kind, Record};
use eightfold_lab::shapes::{self, NamedShape};
use eightfold_lab::store::{RECORD_FILE, Store, write_in_run};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What may be searched, how, and for how long.
#[derive(Args, Debug)]
pub struct Arguments {
    /// The kernel whose knobs are searched: cpu, ladder, hopper, or gpu for the best on this machine's GPU [default: ladder
    /// where there is a GPU for it, else cpu]
    #[arg(long, value_name = "KERNEL")]
    kernel: Option<String>,
    /// A named shape, or B,H,S,D or B,Hq,Hkv,Sq,Skv,D; of several the geometric mean of the speed-ups counts [default:
    /// mission]
    #[arg(long, value_name = "SHAPE", num_args = 1..)]
    shape: Vec<String>,
    /// Causal mask: the last query sees every key
    #[arg(long)]
    causal: bool,
    #[command(flatten)]
    scoring: ScoringArguments,
    /// Begin from this variant, and hold all others against it; what is found can then not be installed [default: what the
    /// plan runs]
    #[arg(long, value_name = "VARIANT", conflicts_with = "install")]
    baseline: Option<String>,
    #[command(flatten)]
    accuracy: AccuracyArguments,
    #[command(flatten)]
    output: TimedOutputArguments,
    /// What runs kernels for GPUs: the device, or the simulated one, where nothing is timed: steps are counted
    #[arg(long, value_enum, value_name = "WHERE", default_value_t = Place::Device)]
    on: Place,
    /// When the search ends, without the validation that follows: 5m, 200 trials, 90s device, 50 stale (trials without a
    /// better one), or several with commas between, whichever comes first [default: 5m]
    #[arg(long, value_name = "BUDGET")]
    budget: Option<String>,
    /// Who is kept as parents: best, elite, islands, or random for nobody [default: elite]
    #[arg(long, value_name = "POLICY")]
    policy: Option<String>,
    /// How many are kept, on each island if there are islands [default: 3]
    #[arg(long, value_name = "K")]
    elite: Option<usize>,
    /// The seed of everything that is drawn [default: 8]
    #[arg(long, value_name = "SEED")]
    seed: Option<u64>,
    /// Try these values of these knobs alone: knob=value,…; a knob may be named several times
    #[arg(long, value_name = "KNOBS")]
    restrict: Option<String>,
    /// Start a worker with this command, such as 'ssh gpu3 eightfold worker'; once for each worker [default: one here]
    #[arg(long, value_name = "CMD")]
    worker: Vec<String>,
    /// Candidates that are compiled together, ahead of their turn [default: 8 for kernels that are compiled]
    #[arg(long, value_name = "N")]
    ahead: Option<usize>,
    /// Seconds after which a worker that does not answer is killed
    #[arg(long, value_name = "S", default_value_t = 60.0)]
    timeout: f64,
    /// Ask this program for candidates: what is known as JSON on its standard input, changes of knobs and source files as
    /// JSON on its standard output
    #[arg(long, value_name = "CMD", conflicts_with = "mutator_replay")]
    mutator: Option<String>,
    /// Ask the mutator for every so many candidates; with 1 for all but the first two [default: 4]
    #[arg(long, value_name = "N")]
    mutator_every: Option<usize>,
    /// Print what the mutator would be given next, and end: of a search that begins, or of that in --resume
    #[arg(long, conflicts_with_all = ["install", "mutator_replay", "replay"])]
    print_bundle: bool,
    /// Seconds after which a mutator that does not answer is killed
    #[arg(long, value_name = "S", default_value_t = 60.0)]
    mutator_timeout: f64,
    /// Let the answers that this journal recorded stand for the mutator
    #[arg(long, value_name = "JOURNAL")]
    mutator_replay: Option<PathBuf>,
    /// Let what these journals recorded stand for the device: the search runs without hardware
    #[arg(long, value_name = "JOURNAL", num_args = 1.., conflicts_with_all = ["kernel", "shape", "causal", "window", "softcap", "sinks", "baseline", "dtype", "accuracy", "on", "worker",
        "install"])]
    replay: Vec<PathBuf>,
    /// Go on with the search in this folder
    #[arg(
        long,
        value_name = "DIR",
        conflicts_with_all = [
            "kernel", "shape", "causal", "window", "softcap", "sinks", "baseline", "dtype", "accuracy", "on", "policy", "elite", "seed", "restrict", "ahead", "mutator",
            "mutator_every", "mutator_replay", "records"
        ]
    )]
    resume: Option<PathBuf>,
    /// Do not time the elite once more at the end
    #[arg(long, conflicts_with = "install")]
    no_validation: bool,
    /// Let the plan run what is surely faster, for this problem on this device
    #[arg(long)]
    install: bool,
    #[command(flatten)]
    record: RecordArguments,
}

const DEFAULT_BUDGET: &str = "5m";
const DEFAULT_SHAPE: &str = "mission";
const DEFAULT_SEED: u64 = 8;
const DEFAULT_KEEP: usize = 3;
const DEFAULT_AHEAD: usize = 8;

/// Runs of each of the elite when it is validated.
const VALIDATION_RUNS: usize = 500;

/// Far from the seeds of the search's own inputs.
const VALIDATION_SEED: u64 = 1_000_000;

/// Searches, validates the elite, writes the record, installs the winner if asked to.
pub fn execute(arguments: &Arguments, nvrtc: Option<&Path>, json: bool) -> Result<Verdict> {
    let budget = arguments.budget.as_deref().map(Budget::parse).transpose()?;
    let plans = arguments.install.then(plans_file).transpose()?;
    for (name, seconds) in [("timeout", arguments.timeout), ("mutator-timeout", arguments.mutator_timeout)] {
        if !(seconds > 0.0 && seconds <= 86_400.0) {
            let rule = format!("must lie between 0 and 86400 seconds, got {seconds}");
            return Err(Error::invalid(name, rule, "leave it out for 60 seconds"));
        }
    }
    let recorded_mutator = arguments.recorded_mutator()?;
    if arguments.print_bundle {
        return arguments.print_bundle(nvrtc);
    }
    let stop = interrupt::watch();
    let Begun { header, space, journal, contents, evaluator, folder, provenance } = arguments.begin(budget, nvrtc)?;
    let budget = budget.unwrap_or(header.budget);
    let mutator = recorded_mutator.or_else(|| arguments.mutator(&header));
    output::note(&format!(
        "{} of {} settings of {} are legal; journal in {}",
        space.points().len(),
        space.settings(),
        header.kernel,
        folder.display()
    ));
    if let Some(contents) = contents.as_ref().filter(|contents| contents.torn) {
        output::note(&format!(
            "the last line of the journal was torn and is dropped; {} outcomes are whole",
            contents.trials.len()
        ));
    }
    let mut search =
        Search::new(header.clone(), space.clone(), Some((journal, contents)), evaluator, mutator).with_budget(budget);
    let mut progress = Bar::new();
    let found = search.run(stop, &mut progress).inspect_err(|_| output::note(&resume_words(&folder)))?;
    let mut record = Record { thresholds: arguments.thresholds()?, ..Record::new(Kind::Evolve, provenance) };
    record.ended_early = found.interrupted.then(|| found.ended.clone());
    let mut evolution = Evolution::new(&header, budget, &space, &found);
    let wanted = !found.interrupted && !arguments.no_validation && !evolution.replayed;
    if wanted && let Evaluator::Workers(workers) = &mut search.into_evaluator() {
        progress.at(1.0, "validating the elite");
        if let Err(error) = validate(&mut evolution, &mut record, workers, &found) {
            // What the search found is kept all the same.
            drop(progress);
            record.ended_early = Some(error.to_string());
            finish(record, evolution, &found, &folder, json)?;
            output::note(&resume_words(&folder));
            return Err(error);
        }
    }
    drop(progress);
    if let Some(path) = plans {
        install(&mut evolution, &header, &path, &record)?;
    }
    finish(record, evolution, &found, &folder, json)
}

/// A search that is ready to run.
struct Begun {
    header: Header,
    space: Space,
    journal: Journal,
    contents: Option<Contents>,
    evaluator: Evaluator,
    folder: PathBuf,
    provenance: Provenance,
}

impl Arguments {
    fn thresholds(&self) -> Result<Thresholds> {
        self.record.gates.as_deref().map_or_else(|| Ok(Thresholds::embedded()), Thresholds::load)
    }

    fn recording(&self) -> Result<Option<Recording>> {
        if self.replay.is_empty() {
            return Ok(None);
        }
        let journals = self.replay.iter().map(|path| journal::read(path)).collect::<Result<Vec<_>>>()?;
        Recording::new(journals).map(Some)
    }

    /// A new search, or the one in the folder that is to be resumed.
    fn begin(&self, budget: Option<Budget>, nvrtc: Option<&Path>) -> Result<Begun> {
        let provenance = Provenance::capture(rayon::current_num_threads());
        let resumed = self.resume.as_deref().map(Journal::resume).transpose()?;
        let recording = self.recording()?;
        let header = match &resumed {
            Some((_, contents)) => contents.header.clone(),
            None => self.header(budget, recording.as_ref())?,
        };
        let family = Family::find(&header.kernel)?;
        let restriction = Restriction::parse(family, &header.restriction)?;
        let (header, evaluator, space) = match recording {
            Some(recording) => {
                let replays = Some(recording.fingerprint().to_string());
                if resumed.is_some() && header.replays != replays {
                    return Err(another_recording(&header));
                }
                let space = recording.space().restricted(&restriction)?;
                (Header { replays, ..header }, Evaluator::Recorded(Box::new(recording)), space)
            }
            None if header.replays.is_some() => return Err(another_recording(&header)),
            None => {
                let workers = self.workers(&header, nvrtc)?;
                let ready = workers.ready();
                if resumed.is_some() {
                    header.check_same(&ready.source_hash, &ready.device)?;
                }
                let (header, space) = told_by(ready, header, family, &restriction)?;
                let window = if resumed.is_some() { header.window } else { header.window.max(workers.count()) };
                let header = Header { window, ..header };
                (header, Evaluator::Workers(workers), space)
            }
        };
        // After the workers: a device that serves one process at a time is theirs.
        let on_device = family.on_gpu() && !header.on_simulator && matches!(evaluator, Evaluator::Workers(_));
        let provenance = if on_device { provenance.with_cuda() } else { provenance };
        let (journal, contents, folder) = match (resumed, &self.resume) {
            (Some((journal, contents)), Some(folder)) => (journal, Some(contents), folder.clone()),
            _ => {
                let folder = Store::open(&self.record.records)?.claim(&provenance.time_utc, Kind::Evolve)?;
                (Journal::create(&folder, &header)?, None, folder)
            }
        };
        Ok(Begun { header, space, journal, contents, evaluator, folder, provenance })
    }

    /// What a new search is, as far as it is known before the workers are.
    fn header(&self, budget: Option<Budget>, recording: Option<&Recording>) -> Result<Header> {
        let policy: Policy = self.policy.as_deref().map_or(Ok(Policy::Elite), str::parse)?;
        let keep = self.elite.unwrap_or(DEFAULT_KEEP);
        if keep == 0 {
            return Err(Error::invalid("elite", "must be at least 1, got 0", "leave it out for 3"));
        }
        let budget = budget.map_or_else(|| Budget::parse(DEFAULT_BUDGET), Ok)?;
        let every = self.mutator_every.unwrap_or_else(journal::every_fourth);
        if every == 0 {
            return Err(Error::invalid("mutator-every", "must be at least 1, got 0", "leave it out for 4"));
        }
        let (kernel, named) = match recording {
            Some(recording) => {
                let Header { kernel, shape, problem, .. } = recording.header();
                (kernel.clone(), vec![NamedShape { name: shape.clone(), shape: problem.shape() }])
            }
            None if self.shape.is_empty() => (self.kernel()?, vec![shapes::parse(DEFAULT_SHAPE)?]),
            None => {
                let named = self.shape.iter().map(|text| shapes::parse(text)).collect::<Result<Vec<_>>>()?;
                (self.kernel()?, named)
            }
        };
        let family = Family::find(&kernel)?;
        let restriction = Restriction::parse(family, self.restrict.as_deref().unwrap_or_default())?;
        let ahead = self.ahead.unwrap_or(if family.on_gpu() { DEFAULT_AHEAD } else { 1 });
        if ahead == 0 {
            return Err(Error::invalid("ahead", "must be at least 1, got 0", "leave it out"));
        }
        let output = self.output.format(family.on_gpu());
        let on_simulator = self.on == Place::Simulator;
        if on_simulator && !family.on_gpu() {
            let rule = format!("the simulator is for kernels of GPUs, and {kernel} is none");
            return Err(Error::invalid("on", rule, "search hopper or ladder there"));
        }
        let target = |NamedShape { name, shape }: NamedShape| -> Result<Target> {
            let problem = self.scoring.apply(Problem::new(shape)?.with_mask(Mask::causal_if(self.causal)))?;
            let problem = problem.with_output_format(output);
            if problem.input_format() != Fp8Format::E4m3 {
                return Err(Error::invalid("input-format", "a search quantises to e4m3", "leave it out"));
            }
            // Checked here for the message; the header keeps the word.
            self.accuracy.apply(problem)?;
            let named =
                self.baseline.as_deref().map(|text| self.named_baseline(text, &kernel, &problem)).transpose()?;
            Ok(Target { shape: name, problem: (&problem).into(), baseline: named.unwrap_or_default() })
        };
        let mut targets = named.into_iter().map(target).collect::<Result<Vec<_>>>()?.into_iter();
        let Some(Target { shape, problem, baseline }) = targets.next() else {
            return Err(Error::invalid("shape", "there is none", "name one"));
        };
        let asked = self.mutator.clone();
        let mutator = asked.or_else(|| self.mutator_replay.as_ref().map(|_| "a recording".into()));
        let header = Header {
            schema: journal::SCHEMA,
            kernel,
            source_hash: family.source_hash(),
            device: String::new(),
            shape,
            problem,
            baseline,
            more: targets.collect(),
            accuracy: self.accuracy.named().map(str::to_string),
            on_simulator,
            mutator_every: every,
            from_baseline: true,
            seed: self.seed.unwrap_or(DEFAULT_SEED),
            policy,
            keep,
            restriction: restriction.to_string(),
            window: ahead,
            budget,
            mutator,
            replays: None,
        };
        Ok(match recording.map(Recording::header) {
            Some(Header { source_hash, device, problem, baseline, .. }) => Header {
                source_hash: source_hash.clone(),
                device: device.clone(),
                problem: problem.clone(),
                baseline: baseline.clone(),
                window: self.ahead.unwrap_or(1),
                ..header
            },
            None => header,
        })
    }

    fn named_baseline(&self, text: &str, kernel: &str, problem: &Problem) -> Result<String> {
        let variant = selection::variant(text, problem)?;
        if variant.kernel() != kernel {
            let rule = format!("{text} is of the {} kernel, and {kernel} is searched", variant.kernel());
            return Err(Error::invalid("baseline", rule, format!("add --kernel {}", variant.kernel())));
        }
        Ok(variant.to_string())
    }

    fn kernel(&self) -> Result<String> {
        match &self.kernel {
            Some(kernel) => Ok(kernel::find(kernel)?.to_string()),
            None => Ok(Kernel::best().to_string()),
        }
    }

    fn workers(&self, header: &Header, nvrtc: Option<&Path>) -> Result<Workers> {
        let targets = header.targets();
        let task = Task {
            version: PROTOCOL,
            kernel: header.kernel.clone(),
            problems: targets.iter().map(|target| target.problem.clone()).collect(),
            seed: header.seed,
            accuracy: header.accuracy.clone(),
            on_simulator: header.on_simulator,
            baselines: { targets.into_iter().map(|target| target.baseline) }.filter(|text| !text.is_empty()).collect(),
            thresholds: self.thresholds()?,
        };
        let mut starts: Vec<Start> = self.worker.iter().map(|line| Start::Shell(line.clone())).collect();
        if starts.is_empty() {
            let program = std::env::current_exe()
                .map_err(|error| Error::unavailable("this program", error.to_string(), "name one with --worker"))?;
            let mut command: Vec<String> = ["worker", "--threads"].map(String::from).to_vec();
            command.push(rayon::current_num_threads().to_string());
            if let Some(nvrtc) = nvrtc {
                command.extend(["--nvrtc".into(), nvrtc.display().to_string()]);
            }
            starts.push(Start::Program(program, command));
        }
        Workers::start(&starts, &task, Duration::from_secs_f64(self.timeout))
    }

    /// Prints what a mutator would be given next, without evaluating anything and without a trace.
    fn print_bundle(&self, nvrtc: Option<&Path>) -> Result<Verdict> {
        let mut search = match &self.resume {
            // Nobody need be asked what else could run here.
            Some(folder) => Search::of_known(journal::read(folder)?)?,
            None => {
                let header = self.header(None, None)?;
                let family = Family::find(&header.kernel)?;
                let restriction = Restriction::parse(family, &header.restriction)?;
                let workers = self.workers(&header, nvrtc)?;
                let (header, space) = told_by(workers.ready(), header, family, &restriction)?;
                Search::new(header, space, None, Evaluator::Workers(workers), None)
            }
        };
        output::print_raw(&(search.next_bundle()? + "\n"))?;
        Ok(Verdict::Passed)
    }

    fn recorded_mutator(&self) -> Result<Option<Mutator>> {
        let Some(path) = &self.mutator_replay else { return Ok(None) };
        let calls = journal::read(path)?.calls;
        if calls.is_empty() {
            let rule = format!("{} holds no answers of a mutator", path.display());
            return Err(Error::invalid("mutator-replay", rule, "give the journal of a search that had one"));
        }
        Ok(Some(Mutator::Recorded(calls.into())))
    }

    fn mutator(&self, header: &Header) -> Option<Mutator> {
        let timeout = Duration::from_secs_f64(self.mutator_timeout);
        header.mutator.clone().map(|line| Mutator::Command(line, timeout))
    }
}

/// What the workers found out about a search, and the space that is legal there.
fn told_by(
    ready: &Ready,
    header: Header,
    family: &'static Family,
    restriction: &Restriction,
) -> Result<(Header, Space)> {
    let baselines: Vec<Variant> = ready.baselines.iter().map(|text| text.parse()).collect::<Result<_>>()?;
    let problems: Vec<_> = header.problems()?.into_iter().zip(baselines).collect();
    let space = Space::of_problems(family, restriction, &problems)?;
    let mut baselines = ready.baselines.iter().cloned();
    let baseline = baselines.next().unwrap_or_default();
    let with_baseline = |(target, baseline)| Target { baseline, ..target };
    let more = header.more.iter().cloned().zip(baselines).map(with_baseline).collect();
    let (device, source_hash) = (ready.device.clone(), ready.source_hash.clone());
    Ok((Header { device, source_hash, baseline, more, ..header }, space))
}

fn another_recording(header: &Header) -> Error {
    let rule = match &header.replays {
        Some(fingerprint) => format!("the search replays the recording {fingerprint}, and that is not what is given"),
        None => "the search is one on a device, and a recording is given".into(),
    };
    Error::invalid("replay", rule, "give --replay with the journals that the search began with, or not at all")
}

fn plans_file() -> Result<PathBuf> {
    installed::file().ok_or_else(|| {
        let rule = format!("there is no file for it: {} is off, or there is no home folder", installed::VARIABLE);
        Error::invalid("install", rule, format!("name a file in {}", installed::VARIABLE))
    })
}

/// Times the elite once more, against the baseline, on fresh inputs.
fn validate(evolution: &mut Evolution, record: &mut Record, workers: &mut Workers, found: &Found) -> Result<()> {
    let challengers = evolution.challengers(&found.sources);
    if challengers.is_empty() {
        return Ok(());
    }
    let seed = VALIDATION_SEED + evolution.seed;
    let validated = workers.validate(&Validation { challengers, seed, iterations: VALIDATION_RUNS })?;
    evolution.note(&validated.comparisons);
    record.groups.extend(validated.groups);
    record.comparisons = validated.comparisons.into_iter().flatten().collect();
    Ok(())
}

/// Makes the winner the plan's choice on each shape where it is surely faster; without one everything stays as it is. A plan
/// chooses knobs: what is compiled from another source than the kernel's own cannot be installed.
fn install(evolution: &mut Evolution, header: &Header, path: &Path, record: &Record) -> Result<()> {
    let Some(winner) = evolution.best_of_knobs() else { return Ok(()) };
    let variant: Variant = winner.variant.parse()?;
    let gain = winner.validated.map(|found| {
        format!("{:.3}× the shipped default (95 % interval {:.3} to {:.3}), ", found.ratio, found.lower, found.upper)
    });
    let note = format!("{}found by a search at {}", gain.unwrap_or_default(), record.provenance.time_utc);
    for (target, problem) in header.targets().into_iter().zip(header.problems()?) {
        if header.more.is_empty() || winner.faster_on.contains(&target.shape) {
            let (device, note) = (header.device.clone(), note.clone());
            installed::install(path, &Installed { device, problem: problem.to_string(), variant, note })?;
        }
    }
    evolution.installed = Some(variant.to_string());
    Ok(())
}

fn finish(mut record: Record, evolution: Evolution, found: &Found, folder: &Path, json: bool) -> Result<Verdict> {
    write_in_run(&folder.join(ELITE_FILE), evolution.elite_json().as_bytes())?;
    record.evolution = Some(evolution);
    let path = folder.join(RECORD_FILE);
    write_in_run(&path, record.to_json().as_bytes())?;
    let written = format!("written: {}, {ELITE_FILE} and {} beside it", path.display(), journal::JOURNAL_FILE);
    if json {
        output::print_raw(&record.to_json())?;
        output::note(&written);
    } else {
        output::print(&evolve_table::render(&record, &written))?;
    }
    if found.interrupted {
        output::note(&resume_words(folder));
    }
    Ok(Verdict::Passed)
}

fn resume_words(folder: &Path) -> String {
    format!("go on with `eightfold evolve --resume {}`", folder.display())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::evolve_data;

    #[test]
    fn the_winner_is_installed_and_without_one_nothing_is() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("plans.tsv");
        let record = evolve_data::record();
        let mut evolution = record.evolution.clone().unwrap();
        let header = Header {
            schema: journal::SCHEMA,
            kernel: evolution.kernel.clone(),
            source_hash: evolution.source_hash.clone(),
            device: evolution.device.clone(),
            shape: evolution.shape.clone(),
            problem: evolution.problem.clone(),
            baseline: evolution.baseline.clone(),
            from_baseline: true,
            seed: 8,
            policy: Policy::Elite,
            keep: 3,
            restriction: String::new(),
            window: 1,
            budget: evolution.budget,
            more: Vec::new(),
            accuracy: None,
            on_simulator: false,
            mutator_every: 4,
            mutator: None,
            replays: None,
        };
        install(&mut evolution, &header, &path, &record).unwrap();
        let choices = installed::read(&path);
        assert_eq!((choices.len(), choices[0].problem.as_str()), (1, "1,8,512,64 causal"));
        assert_eq!(Some(choices[0].variant.to_string()), evolution.installed);
        assert!(choices[0].note.starts_with("1.080× the shipped default (95 % interval 1.070 to 1.100), found by"));

        // A source is not installed, and neither is what is compiled from it.
        let mut source = record.evolution.clone().unwrap();
        source.elite[0].source = Some("0123456789abcdef".into());
        let elsewhere = place.path().join("source.tsv");
        install(&mut source, &header, &elsewhere, &record).unwrap();
        assert!(!elsewhere.exists() && source.installed.is_none() && source.winner().is_some());

        let mut none = record.evolution.clone().unwrap();
        none.elite.remove(0);
        let elsewhere = place.path().join("other.tsv");
        install(&mut none, &header, &elsewhere, &record).unwrap();
        assert!(!elsewhere.exists() && none.installed.is_none());
    }
}
