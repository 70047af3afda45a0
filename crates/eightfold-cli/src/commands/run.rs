//! `eightfold run`: the gates for chosen variants.

use super::recording::{FormatArguments, RecordArguments, Recording, Show, tables};
use super::selection::{
    OutputArgument, PageArguments, ScoringArguments, ShapeArguments, SourceArguments, VariantArguments,
};
use crate::Verdict;
use crate::output::gates_table;
use crate::progress::Bar;
use clap::{Args, ValueEnum};
use eightfold::{Error, Layout, Mask, Problem, Result};
use eightfold_lab::examine::{Candidate, Examination, Examined};
use eightfold_lab::gates::odd::{self, SweepCase};
use eightfold_lab::gates::{Case, ReferencePolicy, StandardCase, Thoroughness, prepare_all, quantizer, standard_cases};
use eightfold_lab::inputs::Family;
use eightfold_lab::progress::{Part, Progress};
use eightfold_lab::record::Kind;
use eightfold_lab::simulate::{self, Schedules};
use eightfold_lab::tensors::UserTensors;
use std::path::PathBuf;

/// What may be asked of the gates.
#[derive(Args, Debug)]
pub struct Arguments {
    #[command(flatten)]
    variants: VariantArguments,
    #[command(flatten)]
    pages: PageArguments,
    #[command(flatten)]
    source: SourceArguments,
    #[command(flatten)]
    shapes: ShapeArguments,
    #[command(flatten)]
    scoring: ScoringArguments,
    #[command(flatten)]
    inputs: GeneratedArguments,
    /// Your own q, k and v (safetensors) instead of generated inputs
    #[arg(id = "inputs", long = "inputs", value_name = "FILE", conflicts_with_all = ["shape", "families", "seeds"])]
    file: Option<PathBuf>,
    #[command(flatten)]
    own: OwnInputArguments,
    /// Number format of the output; in f32 the kernel's own error is seen best
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = OutputArgument::F32)]
    dtype: OutputArgument,
    /// Ask for no log-sum-exp, as whatever is timed does not
    #[arg(long)]
    no_lse: bool,
    /// Sweep sizes that are no multiples of a tile: head dims 64 and 128, both masks, every format, layout and kind of scales
    #[arg(long, conflicts_with_all = ["shape", "causal", "window", "softcap", "sinks", "input_format", "families", "seeds", "inputs", "dtype", "no_lse"])]
    odd: bool,
    #[command(flatten)]
    format: FormatArguments,
    #[command(flatten)]
    record: RecordArguments,
}

/// Which generated inputs, and where variants for GPUs run on them.
#[derive(Args, Debug)]
pub struct GeneratedArguments {
    /// Kinds of generated inputs: gaussian, outliers, biased-v, key-channels, sink, constant, tiny, huge [default: a
    /// standard set]
    #[arg(long, value_name = "FAMILY", value_delimiter = ',', num_args = 1..)]
    families: Vec<String>,
    /// Seeds of generated inputs [default: a standard set]; on the simulator those of schedules, such as 0,4 or 0-99
    /// [default: 0-2]
    #[arg(long, value_name = "SEED", value_delimiter = ',', num_args = 1.., value_parser = seed_range)]
    seeds: Vec<SeedRange>,
    #[command(flatten)]
    simulator: SimulatorArguments,
}

/// Where variants for GPUs run.
#[derive(Args, Debug)]
pub struct SimulatorArguments {
    /// What runs the variants for GPUs: the device, or this machine's CPU in its place, which is slow and finds races
    #[arg(long, value_enum, value_name = "WHERE", default_value_t = Place::Device)]
    pub on: Place,
    /// On the simulator: do not look for races, which takes two to three times as long
    #[arg(long)]
    pub no_races: bool,
    /// On the simulator: how long one launch may take
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0)]
    pub limit: f64,
}

/// What runs variants for GPUs.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The GPU of this machine
    Device,
    /// The simulated device: needs a C++ compiler
    Simulator,
}

impl GeneratedArguments {
    /// Makes the simulated device the device of this process, if it was asked for.
    pub fn settle(&self) -> Result<()> {
        self.simulator.settle(&self.seeds())
    }

    fn seeds(&self) -> Vec<u64> {
        self.seeds.iter().flat_map(|range| range.first..=range.last).collect()
    }

    /// The gates for a problem on the chosen inputs.
    pub fn job(&self, name: String, problem: Problem) -> Result<Job> {
        let mut cases = standard_cases(&problem, Thoroughness::Full);
        // On the simulator the seeds are those of schedules.
        let simulated = self.simulator.on == Place::Simulator;
        if simulated || !self.families.is_empty() || !self.seeds.is_empty() {
            let named: Vec<Family> = self.families.iter().map(|name| name.parse()).collect::<Result<_>>()?;
            let families = if named.is_empty() { Family::ALL.to_vec() } else { named };
            let seeds = if simulated || self.seeds.is_empty() { vec![1] } else { self.seeds() };
            cases = families
                .iter()
                .flat_map(|&family| seeds.iter().map(move |&seed| StandardCase { problem, family, seed }))
                .collect();
        }
        Ok(Job { name, problem, source: Source::Generated(cases) })
    }
}

impl SimulatorArguments {
    /// Makes the simulated device the device of this process, if it was asked for.
    pub fn settle(&self, seeds: &[u64]) -> Result<()> {
        if self.on == Place::Device {
            return Ok(());
        }
        if !(self.limit > 0.0 && self.limit.is_finite()) {
            let fix = "give a number of seconds above zero";
            return Err(Error::invalid("limit", format!("{} is no time", self.limit), fix));
        }
        let mut schedules =
            Schedules { races: !self.no_races, limit_seconds: Some(self.limit), ..Schedules::default() };
        if !seeds.is_empty() {
            schedules.seeds = seeds.to_vec();
        }
        simulate::set_schedules(schedules);
        simulate::install()
    }
}

/// Seeds from the first to the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeedRange {
    first: u64,
    last: u64,
}

fn seed_range(text: &str) -> std::result::Result<SeedRange, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let number = |text: &str| text.parse::<u64>().map_err(|error| format!("{text:?} is no seed: {error}"));
    let (first, last) = (number(first)?, number(last)?);
    if last < first || last - first >= 100_000 {
        return Err(format!("{text:?} is no range of at most 100000 seeds"));
    }
    Ok(SeedRange { first, last })
}

/// How to read, and what to compute on, a user's own tensors.
#[derive(Args, Debug)]
pub struct OwnInputArguments {
    /// Order of the dimensions of q, k and v in the file
    #[arg(long, value_enum, default_value_t = FileLayout::Bhsd, requires = "inputs")]
    pub layout: FileLayout,
    /// Softmax scale [default: 1/sqrt(D)]
    #[arg(long, value_name = "X", requires = "inputs", allow_negative_numbers = true)]
    pub scale: Option<f32>,
}

/// The order of the dimensions in a file.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileLayout {
    /// [batch, head, row, channel]
    Bhsd,
    /// [batch, row, head, channel]
    Bshd,
}

impl From<FileLayout> for Layout {
    fn from(layout: FileLayout) -> Layout {
        match layout {
            FileLayout::Bhsd => Layout::Bhsd,
            FileLayout::Bshd => Layout::Bshd,
        }
    }
}

impl OwnInputArguments {
    /// The problem that these tensors pose.
    pub fn problem(&self, tensors: &UserTensors, mask: Mask) -> Result<Problem> {
        let problem = Problem::new(tensors.shape)?.with_value_dim(tensors.value_dim)?;
        let problem = problem.with_mask(mask).with_input_format(tensors.format());
        self.scale.map_or(Ok(problem), |scale| problem.with_softmax_scale(scale))
    }
}

/// Checks every chosen variant on every chosen shape, prints the tables, writes the record.
pub fn execute(arguments: &Arguments, json: bool) -> Result<Verdict> {
    let format = arguments.format.format(json)?;
    arguments.inputs.settle()?;
    let mut jobs = Vec::new();
    for job in arguments.jobs()? {
        let candidates = arguments.source.apply(arguments.variants.candidates(&job.problem)?)?;
        let candidates = arguments.pages.beside(candidates)?;
        jobs.push((job, candidates));
    }
    let mut recording = Recording::open(Kind::Run, &arguments.record)?;
    if jobs.iter().any(|(_, candidates)| candidates.iter().any(Candidate::on_gpu)) {
        recording = recording.with_cuda();
    }
    let ended = work(&jobs, &mut recording);
    let show = Show {
        format,
        csv: gates_table::csv,
        markdown: |record| tables(record, gates_table::markdown),
        ..Show::new(json, |record| tables(record, gates_table::render))
    };
    recording.finish(ended, &show)
}

fn work(jobs: &[(Job, Vec<Candidate>)], recording: &mut Recording) -> Result<()> {
    let thresholds = recording.thresholds().clone();
    let total: f64 = jobs.iter().map(|(job, _)| job.problem.flop()).sum();
    let mut progress = Bar::new();
    let mut start = 0.0;
    for (job, candidates) in jobs {
        let share = job.problem.flop() / total;
        progress.at(start, &format!("{}: preparing inputs and references", job.name));
        let cases = job.cases(candidates, &thresholds.correctness.reference)?;
        let examination = Examination {
            shape: &job.name,
            cases: &cases,
            candidates,
            thresholds: &thresholds,
            timed: None,
            ladder: false,
            sweep: matches!(job.source, Source::Sweep(_)),
            max_gate_seconds: f64::INFINITY,
        };
        let Examined { group, lost } =
            examination.run(&job.problem, None, &mut Part { whole: &mut progress, start, share });
        recording.keep(group)?;
        lost.map_or(Ok(()), Err)?;
        start += share;
    }
    Ok(())
}

/// One problem and where its inputs come from.
pub struct Job {
    name: String,
    problem: Problem,
    source: Source,
}

enum Source {
    Generated(Vec<StandardCase>),
    Sweep(Vec<SweepCase>),
    File(Box<UserTensors>),
}

impl Arguments {
    fn jobs(&self) -> Result<Vec<Job>> {
        let mask = self.shapes.mask();
        if let Some(path) = &self.file {
            let tensors = UserTensors::read(path, self.own.layout.into())?;
            let problem = self.scoring.apply_to_own(self.own.problem(&tensors, mask)?, &tensors)?;
            let problem = self.written(problem);
            let name = tensors.origin.clone();
            return Ok(vec![Job { name, problem, source: Source::File(Box::new(tensors)) }]);
        }
        if self.odd {
            return sweeps();
        }
        let problems = self.shapes.problems(&self.scoring)?.into_iter();
        problems.map(|(name, problem)| self.inputs.job(name, self.written(problem))).collect()
    }

    /// The problem with what is to be written.
    fn written(&self, problem: Problem) -> Problem {
        problem.with_output_format(self.dtype.into()).with_lse(!self.no_lse)
    }
}

/// All odd problems as one job for each head dim, so that each variant has one row in it.
fn sweeps() -> Result<Vec<Job>> {
    let mut jobs: Vec<Job> = Vec::new();
    for case in odd::sweep()? {
        let problem = case.problem;
        let head_dim = problem.shape().head_dim;
        match jobs.iter_mut().find(|job| job.problem.shape().head_dim == head_dim) {
            Some(Job { problem: largest, source: Source::Sweep(cases), .. }) => {
                cases.push(case);
                if problem.flop() > largest.flop() {
                    *largest = problem;
                }
            }
            _ => jobs.push(Job { name: String::new(), problem, source: Source::Sweep(vec![case]) }),
        }
    }
    for job in &mut jobs {
        if let Source::Sweep(cases) = &job.source {
            job.name = format!("{} odd problems, head dim {}", cases.len(), job.problem.shape().head_dim);
        }
    }
    Ok(jobs)
}

impl Job {
    /// The inputs with their references, for these candidates.
    pub fn cases(&self, candidates: &[Candidate], policy: &ReferencePolicy) -> Result<Vec<Case>> {
        let quantizer = quantizer(&self.problem, candidates);
        match &self.source {
            Source::Generated(cases) => prepare_all(cases, &quantizer, policy),
            Source::Sweep(cases) => odd::prepare_all(cases, policy),
            Source::File(tensors) if tensors.has_codes() => {
                let [q, k, v] = tensors.quantize(&self.problem, quantizer.largest_code())?;
                Ok(vec![Case::of_tensors(&self.problem, &tensors.origin, q, k, v, policy)?])
            }
            Source::File(tensors) => Ok(vec![Case::prepare(&self.problem, &tensors.to_inputs(), &quantizer, policy)?]),
        }
    }
}
