//! `eightfold compare`: one variant against another, or one record against another, and a verdict.

use super::recording::{RecordArguments, Recording};
use super::selection::{mask, suited};
use crate::Verdict;
use crate::output::{self, compare_document, compare_table};
use crate::progress::Bar;
use clap::Args;
use eightfold::{Error, Plan, Problem, Result};
use eightfold_lab::compare::{self, Compared, Comparison, Live, RecordSide};
use eightfold_lab::examine::Candidate;
use eightfold_lab::gates::{Outcome, StandardCase, quantizer};
use eightfold_lab::inputs::Family;
use eightfold_lab::progress::Progress;
use eightfold_lab::record::{Kind, Record};
use eightfold_lab::shapes;
use eightfold_lab::store::{RECORD_FILE, write_file};
use eightfold_lab::verdict::RESOLUTION;
use std::path::Path;

/// The verdict for people, beside the record.
const DOCUMENT_FILE: &str = "COMPARE.md";

/// What may be compared.
#[derive(Args, Debug)]
pub struct Arguments {
    /// The baseline: a variant, such as cpu:avx2, or the path of a record
    a: String,
    /// The candidate: a variant, or the path of a record
    b: String,
    /// A named shape, or B,H,S,D or B,Hq,Hkv,Sq,Skv,D, for two variants [default: mission]
    #[arg(long, value_name = "SHAPE")]
    shape: Option<String>,
    /// Causal mask, for two variants: the last query sees every key
    #[arg(long)]
    causal: bool,
    /// The speed-up that B must show over A, such as +10% [default: +2%, the least that can be told]
    #[arg(long, value_name = "GAIN", allow_hyphen_values = true)]
    require: Option<String>,
    /// Rounds at the very most, for two variants [default: 160]
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,
    /// The seed of the order of turns, for two variants [default: 8]
    #[arg(long, value_name = "SEED")]
    seed: Option<u64>,
    /// Test the comparison itself with a planted difference: -5% counts every run of B as 5 % longer, +5% every run of A
    #[arg(long, value_name = "GAIN", allow_hyphen_values = true)]
    plant: Option<String>,
    #[command(flatten)]
    record: RecordArguments,
}

const DEFAULT_SHAPE: &str = "mission";
const DEFAULT_ROUNDS: usize = 160;
const DEFAULT_SEED: u64 = 8;

/// With fewer rounds no interval is worth its name.
const FEWEST_ROUNDS: usize = 10;

/// Compares, writes the record and `COMPARE.md` beside it, prints the table and the verdict last.
pub fn execute(arguments: &Arguments, json: bool) -> Result<Verdict> {
    let required_gain = arguments.share("require", &arguments.require)?;
    let planted = arguments.share("plant", &arguments.plant)?;
    let gain = required_gain.unwrap_or(RESOLUTION);
    let mut recording;
    match [&arguments.a, &arguments.b].map(|text| is_path(text)) {
        [true, true] => {
            arguments.refuse_what_needs_variants()?;
            let [a, b] = [read("A", &arguments.a)?, read("B", &arguments.b)?];
            let comparisons = compare::compare_records(&a, &b, gain)?;
            recording = Recording::open(Kind::Compare, &arguments.record)?;
            recording.keep_comparisons(None, comparisons)?;
        }
        [false, false] => {
            let job = arguments.job()?;
            recording = Recording::open(Kind::Compare, &arguments.record)?;
            if job.baseline.on_gpu() {
                recording = recording.with_cuda();
            }
            let Compared { group, comparison } = arguments.live(&job, gain, planted, &mut recording)?;
            recording.keep_comparisons(Some(group), vec![comparison])?;
        }
        _ => {
            let rule = format!("`{}` and `{}` are a variant and a record", arguments.a, arguments.b);
            return Err(Error::invalid("compare", rule, "give two variants, or the paths of two records"));
        }
    }
    let record = recording.record();
    let verdict = verdict(&record.comparisons, required_gain.is_some());
    let document = recording.path().map(|path| path.with_file_name(DOCUMENT_FILE));
    if let Some(path) = &document {
        write_file(path, compare_document::render(record).as_bytes())?;
    }
    let written = document.as_deref().map(|path| format!("written: {}, {RECORD_FILE} beside it", path.display()));
    let written = written.unwrap_or_default();
    if json {
        output::print(&record.to_json())?;
        output::note(&written);
    } else {
        output::print(&compare_table::render(record, &written))?;
    }
    Ok(verdict)
}

/// Two variants on a problem.
struct Job {
    shape: String,
    problem: Problem,
    baseline: Candidate,
    candidate: Candidate,
}

impl Arguments {
    fn share(&self, argument: &str, text: &Option<String>) -> Result<Option<f64>> {
        text.as_deref().map(|text| compare::parse_percentage(argument, text)).transpose()
    }

    fn job(&self) -> Result<Job> {
        let shape = shapes::parse(self.shape.as_deref().unwrap_or(DEFAULT_SHAPE))?;
        let problem = Problem::new(shape.shape)?.with_mask(mask(self.causal));
        let parse = |text: &String| -> Result<Candidate> {
            let variant = suited(text, problem.shape().head_dim, problem.mask())?;
            Plan::with_variant(&problem, variant)?;
            Ok(Candidate { name: text.clone(), variant })
        };
        if let Some(rounds) = self.rounds.filter(|rounds| *rounds < FEWEST_ROUNDS) {
            let rule = format!("must be at least {FEWEST_ROUNDS}, got {rounds}");
            return Err(Error::invalid("rounds", rule, "leave it out for as many as it takes"));
        }
        Ok(Job { shape: shape.name, problem, baseline: parse(&self.a)?, candidate: parse(&self.b)? })
    }

    fn live(&self, job: &Job, gain: f64, planted: Option<f64>, recording: &mut Recording) -> Result<Compared> {
        let Job { shape, problem, baseline, candidate } = job;
        let thresholds = recording.thresholds().clone();
        let mut progress = Bar::new();
        progress.at(0.0, &format!("{shape}: preparing inputs and references"));
        let case = StandardCase { problem: *problem, family: Family::Gaussian, seed: 1 }
            .prepare(&quantizer(problem, std::slice::from_ref(baseline)), &thresholds.correctness.reference)?;
        let live = Live {
            shape,
            case: &case,
            baseline,
            candidate,
            thresholds: &thresholds,
            required_gain: gain,
            seed: self.seed.unwrap_or(DEFAULT_SEED),
            most_rounds: self.rounds.unwrap_or(DEFAULT_ROUNDS),
            planted,
        };
        live.run(problem, &mut progress)
    }

    fn refuse_what_needs_variants(&self) -> Result<()> {
        let given = [
            ("shape", self.shape.is_some()),
            ("causal", self.causal),
            ("rounds", self.rounds.is_some()),
            ("seed", self.seed.is_some()),
            ("plant", self.plant.is_some()),
        ];
        match given.iter().find(|(_, given)| *given) {
            Some((flag, _)) => Err(Error::invalid(
                *flag,
                "is for two variants, and A and B are records",
                format!("leave out --{flag}: records say what they timed"),
            )),
            None => Ok(()),
        }
    }
}

/// Variants have no separators and no ending.
fn is_path(text: &str) -> bool {
    Path::new(text).exists() || text.ends_with(".json") || text.contains(['/', '\\'])
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
    } else if required && any(&[Outcome::Negative, Outcome::Inconclusive, Outcome::Unavailable]) {
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
        use Outcome::{Fail, Inconclusive, Invalid, Negative, Pass};
        let of = |outcomes: &[Outcome], required| {
            let comparisons: Vec<_> = outcomes.iter().map(|outcome| compare_data::comparison(*outcome)).collect();
            verdict(&comparisons, required)
        };
        assert_eq!(of(&[Pass], true), Verdict::Passed);
        for outcome in [Negative, Inconclusive] {
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
}
