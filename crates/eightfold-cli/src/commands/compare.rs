//! `eightfold compare`: one variant, binary or record against another, and a verdict.

use super::recording::{RecordArguments, Recording};
use super::selection::{self, CacheArgument, MannerArguments, SourceArguments, TimedOutputArguments};
use crate::Verdict;
use crate::output::{self, compare_document, compare_table};
use crate::progress::{Bar, KeepingBar};
use clap::Args;
use eightfold::{Error, Mask, OutputFormat, Problem, Result};
use eightfold_lab::choice;
use eightfold_lab::compare::{self, Binaries, BinariesCompared, Compared, Comparison, Live, RecordSide};
use eightfold_lab::examine::Candidate;
use eightfold_lab::gates::{Outcome, timing_cases};
use eightfold_lab::progress::Progress;
use eightfold_lab::provenance::without_folders;
use eightfold_lab::record::{Group, Kind, Record};
use eightfold_lab::shapes;
use eightfold_lab::store::{RECORD_FILE, write_in_run};
use eightfold_lab::verdict::RESOLUTION;
use std::cell::RefCell;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The verdict for people, beside the record.
const DOCUMENT_FILE: &str = "COMPARE.md";

/// What may be compared.
#[derive(Args, Debug)]
pub struct Arguments {
    /// The baseline: a variant such as cpu:avx2 or gpu, a binary of Eightfold, or the path of a record
    a: String,
    /// The candidate: a variant, a binary, or the path of a record
    b: String,
    /// A named shape, or B,H,S,D or B,Hq,Hkv,Sq,Skv,D, for a comparison now [default: mission]
    #[arg(long, value_name = "SHAPE")]
    shape: Option<String>,
    /// Causal mask, for a comparison now: the last query sees every key
    #[arg(long)]
    causal: bool,
    #[command(flatten)]
    output: TimedOutputArguments,
    /// The variant that two binaries run [default: what each says runs]
    #[arg(long, value_name = "VARIANT")]
    variant: Option<String>,
    /// Compile B from the files in this folder where they differ from the kernel's own, such as a search's sources/HASH;
    /// then B may be A's variant
    #[arg(long, value_name = "DIR")]
    source: Option<PathBuf>,
    /// The speed-up that B must show over A, such as +10% [default: +2%, the least that can be told]
    #[arg(long, value_name = "GAIN", allow_hyphen_values = true)]
    require: Option<String>,
    /// Rounds at the very most, for a comparison now [default: 160]
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,
    /// The seed of the order of turns, for a comparison now [default: 8]
    #[arg(long, value_name = "SEED")]
    seed: Option<u64>,
    #[command(flatten)]
    manner: MannerArguments,
    /// Test the comparison itself with a planted difference: at -5% B makes 21 runs for every 20 that are counted; at +5% A
    /// does
    #[arg(long, value_name = "GAIN", allow_hyphen_values = true)]
    plant: Option<String>,
    /// Compare so often, with one seed after the other, and keep the verdicts without the times
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    tries: Option<u64>,
    #[command(flatten)]
    record: RecordArguments,
}

const DEFAULT_SHAPE: &str = "mission";
const DEFAULT_ROUNDS: usize = 160;
const DEFAULT_SEED: u64 = 8;

/// With fewer rounds no interval is worth its name.
const FEWEST_ROUNDS: usize = 10;

/// What A and B may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kinds {
    Variants,
    Binaries,
    Records,
}

/// Compares, writes the record and `COMPARE.md` beside it, prints the table and the verdict last.
pub fn execute(arguments: &Arguments, nvrtc: Option<&Path>, json: bool) -> Result<Verdict> {
    let required_gain = arguments.share("require", &arguments.require)?;
    let planted = arguments.share("plant", &arguments.plant)?;
    let gain = required_gain.unwrap_or(RESOLUTION);
    let kinds = arguments.kinds()?;
    arguments.refuse_what_does_not_apply(kinds)?;
    let recording = match kinds {
        Kinds::Records => {
            let [a, b] = [read("A", &arguments.a)?, read("B", &arguments.b)?];
            let comparisons = compare::compare_records(&a, &b, gain)?;
            let mut recording = Recording::open(Kind::Compare, &arguments.record)?;
            recording.keep_comparisons(None, comparisons)?;
            recording
        }
        Kinds::Variants => arguments.variants(gain, planted)?,
        Kinds::Binaries => arguments.binaries(gain, nvrtc)?,
    };
    let record = recording.record();
    let verdict = verdict(&record.comparisons, required_gain.is_some());
    let document = recording.path().map(|path| path.with_file_name(DOCUMENT_FILE));
    if let Some(path) = &document {
        write_in_run(path, compare_document::render(record).as_bytes())?;
    }
    let written = document.as_deref().map(|path| format!("written: {}, {RECORD_FILE} beside it", path.display()));
    let written = written.unwrap_or_default();
    if json {
        output::print_raw(&record.to_json())?;
        output::note(&written);
    } else {
        output::print(&compare_table::render(record, &written))?;
    }
    Ok(verdict)
}

/// What the record calls two binaries: as typed, without the folders of this machine where that tells them apart.
fn names_of_binaries(a: &str, b: &str) -> [String; 2] {
    let names = [a, b].map(without_folders);
    if names[0] == names[1] { [a, b].map(Into::into) } else { names }
}

impl Arguments {
    fn share(&self, argument: &str, text: &Option<String>) -> Result<Option<f64>> {
        text.as_deref().map(|text| compare::parse_percentage(argument, text)).transpose()
    }

    fn kinds(&self) -> Result<Kinds> {
        match [&self.a, &self.b].map(|text| (is_path(text), is_program(text))) {
            [(false, _), (false, _)] => Ok(Kinds::Variants),
            [(true, true), (true, true)] => Ok(Kinds::Binaries),
            [(true, false), (true, false)] => Ok(Kinds::Records),
            found => {
                let name = |(path, program)| match (path, program) {
                    (false, _) => "a variant",
                    (true, true) => "a binary",
                    (true, false) => "a record",
                };
                let rule = format!("`{}` and `{}` are {} and {}", self.a, self.b, name(found[0]), name(found[1]));
                Err(Error::invalid("compare", rule, "give two variants, two binaries, or the paths of two records"))
            }
        }
    }

    /// The problem, under the name of its shape.
    fn problem(&self) -> Result<(String, Problem)> {
        let shape = shapes::parse(self.shape.as_deref().unwrap_or(DEFAULT_SHAPE))?;
        if let Some(rounds) = self.rounds.filter(|rounds| *rounds < FEWEST_ROUNDS) {
            let rule = format!("must be at least {FEWEST_ROUNDS}, got {rounds}");
            return Err(Error::invalid("rounds", rule, "leave it out for as many as it takes"));
        }
        Ok((shape.name, Problem::new(shape.shape)?.with_mask(Mask::causal_if(self.causal))))
    }

    fn seeds(&self) -> impl Iterator<Item = u64> {
        let first = self.seed.unwrap_or(DEFAULT_SEED);
        (0..self.tries.unwrap_or(1)).map(move |more| first.wrapping_add(more))
    }

    /// A bar that keeps the times round by round, unless there are many tries, whose times are not kept.
    fn progress<'r>(&self, recording: &'r RefCell<Recording>) -> Box<dyn Progress + 'r> {
        if self.tries.is_some() { Box::new(Bar::new()) } else { Box::new(KeepingBar::new(recording)) }
    }

    /// Keeps a verdict, and what it rests on unless there are many.
    fn keep(&self, recording: &RefCell<Recording>, group: Group, comparison: Comparison) -> Result<()> {
        recording.borrow_mut().keep_comparisons(Some(group).filter(|_| self.tries.is_none()), vec![comparison])
    }

    fn variants(&self, gain: f64, planted: Option<f64>) -> Result<Recording> {
        let (shape, problem) = self.problem()?;
        let parse = |text: &String| -> Result<Candidate> {
            let variant = selection::variant(text, &problem)?;
            choice::check_named(&problem, &variant)?;
            Ok(Candidate::new(text, variant))
        };
        let (baseline, candidate) = (parse(&self.a)?, parse(&self.b)?);
        let source = SourceArguments { source: self.source.clone() }.read()?;
        let candidate = candidate.with_source(source)?;
        let problem = self.output.apply(problem, &[baseline.clone(), candidate.clone()]);
        let mut recording = Recording::open(Kind::Compare, &self.record)?;
        if baseline.on_gpu() {
            recording = recording.with_cuda();
        }
        let thresholds = recording.thresholds().clone();
        let recording = RefCell::new(recording);
        let mut progress = self.progress(&recording);
        progress.at(0.0, &format!("{shape}: preparing inputs and references"));
        let cases = timing_cases(&problem, &[baseline.clone(), candidate.clone()], &thresholds.correctness.reference)?;
        for seed in self.seeds() {
            let live = Live {
                shape: &shape,
                cases: &cases,
                baseline: &baseline,
                candidate: &candidate,
                thresholds: &thresholds,
                required_gain: gain,
                seed,
                most_rounds: self.rounds.unwrap_or(DEFAULT_ROUNDS),
                manner: self.manner.manner(),
                planted,
            };
            let Compared { group, comparison } = live.run(&problem, &mut *progress)?;
            self.keep(&recording, group, comparison)?;
        }
        drop(progress);
        Ok(recording.into_inner())
    }

    fn binaries(&self, gain: f64, nvrtc: Option<&Path>) -> Result<Recording> {
        let (shape, problem) = self.problem()?;
        let mut recording = Recording::open(Kind::Compare, &self.record)?;
        let thresholds = recording.thresholds().clone();
        let mut line: Vec<OsString> = vec!["contestant".into(), "--shape".into(), shape.clone().into()];
        line.extend(["--threads".into(), rayon::current_num_threads().to_string().into()]);
        line.extend(self.causal.then(|| "--causal".into()));
        line.extend(self.output.dtype.map(|format| format!("--dtype={}", OutputFormat::from(format)).into()));
        line.extend(self.variant.iter().flat_map(|variant| ["--variant".into(), variant.into()]));
        line.extend((self.manner.cache == CacheArgument::Cold).then(|| "--cache=cold".into()));
        let files = [("--gates", self.record.gates.as_deref()), ("--nvrtc", nvrtc)];
        line.extend(files.iter().filter_map(|(flag, path)| Some([(*flag).into(), (*path)?.into()])).flatten());
        let path = |text: &str| Path::new(text).canonicalize().unwrap_or_else(|_| text.into());
        let (baseline, candidate) = (path(&self.a), path(&self.b));
        let [a, b] = names_of_binaries(&self.a, &self.b);
        let recording = RefCell::new(recording);
        let mut progress = self.progress(&recording);
        for seed in self.seeds() {
            let binaries = Binaries {
                shape: &shape,
                problem,
                baseline: (&a, &baseline),
                candidate: (&b, &candidate),
                arguments: &line,
                thresholds: &thresholds,
                required_gain: gain,
                seed,
                most_rounds: self.rounds.unwrap_or(DEFAULT_ROUNDS),
                manner: self.manner.manner(),
            };
            let BinariesCompared { group, comparison, provenance } = binaries.run(&mut *progress)?;
            recording.borrow_mut().adopt_device(&provenance);
            self.keep(&recording, group, comparison)?;
        }
        drop(progress);
        Ok(recording.into_inner())
    }

    fn refuse_what_does_not_apply(&self, kinds: Kinds) -> Result<()> {
        let (variants, binaries, records) = (Kinds::Variants, Kinds::Binaries, Kinds::Records);
        let now = vec![variants, binaries];
        let given = [
            ("shape", self.shape.is_some(), now.clone()),
            ("causal", self.causal, now.clone()),
            ("dtype", self.output.dtype.is_some(), now.clone()),
            ("rounds", self.rounds.is_some(), now.clone()),
            ("seed", self.seed.is_some(), now.clone()),
            ("tries", self.tries.is_some(), now.clone()),
            ("burst", self.manner.burst, now.clone()),
            ("cache", self.manner.cache == CacheArgument::Cold, now),
            ("variant", self.variant.is_some(), vec![binaries]),
            ("plant", self.plant.is_some(), vec![variants]),
            ("source", self.source.is_some(), vec![variants]),
        ];
        let wrong = given.iter().find(|(_, given, fits)| *given && !fits.contains(&kinds));
        if let Some((flag, ..)) = wrong {
            let (what, why) = match kinds {
                _ if kinds == records => ("records", "records say what they timed"),
                _ if kinds == binaries => ("binaries", "two variants of one binary can be told apart with it"),
                _ => ("variants", "A and B name them already"),
            };
            let rule = format!("does not go with two {what}");
            return Err(Error::invalid(*flag, rule, format!("leave out --{flag}: {why}")));
        }
        if self.plant.is_some() && self.manner.cache == CacheArgument::Cold {
            let rule = "does not go with --cache cold, since planted runs follow each other";
            return Err(Error::invalid("plant", rule, "leave out one of them"));
        }
        Ok(())
    }
}

/// Variants have no separators and no ending.
fn is_path(text: &str) -> bool {
    Path::new(text).exists() || text.ends_with(".json") || text.contains(['/', '\\'])
}

/// Whether a path is that of a program.
fn is_program(text: &str) -> bool {
    let path = Path::new(text);
    #[cfg(unix)]
    let executable = {
        use std::os::unix::fs::PermissionsExt;
        path.metadata().is_ok_and(|about| about.permissions().mode() & 0o111 != 0)
    };
    #[cfg(not(unix))]
    let executable = path.extension().is_some_and(|ending| ending == "exe");
    path.is_file() && executable && !text.ends_with(".json")
}

/// The record in this file, or in this run's folder, under the name of the run.
fn read(which: &str, text: &str) -> Result<RecordSide> {
    let mut path = Path::new(text).to_path_buf();
    if path.is_dir() {
        path.push(RECORD_FILE);
    }
    let record = Record::read(&path)?;
    let folder = path.parent().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
    let named = path.file_name().is_some_and(|name| name == RECORD_FILE);
    let stem = path.file_stem().map(|name| name.to_string_lossy().into_owned());
    let name = if named { folder } else { stem };
    Ok(RecordSide { name: name.unwrap_or_else(|| which.into()), record })
}

/// What the exit code will say.
fn verdict(comparisons: &[Comparison], required: bool) -> Verdict {
    let any = |outcomes: &[Outcome]| comparisons.iter().any(|comparison| outcomes.contains(&comparison.outcome));
    if any(&[Outcome::Fail]) {
        Verdict::GateFailed
    } else if any(&[Outcome::Invalid]) {
        Verdict::Unsound
    } else if required && any(&[Outcome::Negative, Outcome::Regression, Outcome::Inconclusive, Outcome::Unavailable]) {
        Verdict::GateFailed
    } else {
        Verdict::Passed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::compare_data;

    #[test]
    fn the_exit_code_follows_the_worst_outcome() {
        use Outcome::{Fail, Inconclusive, Invalid, Negative, Pass, Regression};
        let of = |outcomes: &[Outcome], required| {
            let comparisons: Vec<_> = outcomes.iter().map(|outcome| compare_data::comparison(*outcome)).collect();
            verdict(&comparisons, required)
        };
        assert_eq!(of(&[Pass], true), Verdict::Passed);
        for outcome in [Negative, Regression, Inconclusive] {
            assert_eq!(of(&[Pass, outcome], true), Verdict::GateFailed);
            assert_eq!(of(&[Pass, outcome], false), Verdict::Passed);
        }
        for required in [true, false] {
            assert_eq!(of(&[Negative, Invalid], required), Verdict::Unsound);
            assert_eq!(of(&[Pass, Fail], required), Verdict::GateFailed);
        }
    }

    #[test]
    fn paths_and_variants_are_told_apart() {
        assert!(["runs/x", "./x", "a.json", "/"].iter().all(|text| is_path(text)));
        assert!(["cpu", "cpu:avx2", "ladder:unpack,tile_keys=32"].iter().all(|text| !is_path(text)));
    }

    #[test]
    fn a_record_names_binaries_without_the_folders_of_the_machine_where_it_can() {
        assert_eq!(names_of_binaries("/opt/eightfold-1", "/opt/eightfold-2"), ["eightfold-1", "eightfold-2"]);
        assert_eq!(names_of_binaries("./old", "../new"), ["./old", "../new"]);
        assert_eq!(names_of_binaries("/a/eightfold", "/b/eightfold"), ["/a/eightfold", "/b/eightfold"]);
    }
}
