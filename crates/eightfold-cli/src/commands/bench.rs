//! `eightfold bench`: timing, contestants taking turns, peers included.

use super::doctor::PYTHON;
use super::recording::{FormatArguments, RecordArguments, Recording, Show, tables};
use super::selection::{
    MannerArguments, PageArguments, PeerArguments, ScoringArguments, ShapeArguments, TimedOutputArguments,
    VariantArguments,
};
use crate::Verdict;
use crate::output::{bench_table, host_table, paged_table, quantizer_table};
use crate::progress::{Bar, KeepingBar};
use clap::{Args, Subcommand, ValueEnum};
use eightfold::cuda::driver::Device;
use eightfold::{Error, Problem, Result};
use eightfold_lab::decode::{self, Case};
use eightfold_lab::examine::{Candidate, Examination, Examined};
use eightfold_lab::gates::{Thresholds, timing_cases};
use eightfold_lab::measure::{Method, measure_host};
use eightfold_lab::peers::Torch;
use eightfold_lab::progress::{Part, Progress};
use eightfold_lab::quantizer;
use eightfold_lab::record::Kind;
use eightfold_lab::shapes::{self, NamedShape};
use std::cell::RefCell;

/// What may be asked of the clock.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Arguments {
    #[command(subcommand)]
    what: Option<What>,
    #[command(flatten)]
    variants: VariantArguments,
    #[command(flatten)]
    pages: PageArguments,
    #[command(flatten)]
    shapes: ShapeArguments,
    #[command(flatten)]
    scoring: ScoringArguments,
    #[command(flatten)]
    output: TimedOutputArguments,
    #[command(flatten)]
    peers: PeerArguments,
    #[command(flatten)]
    clock: ClockArguments,
    #[command(flatten)]
    format: FormatArguments,
}

/// What else can be timed.
#[derive(Subcommand, Debug)]
enum What {
    /// Time the GPU's quantiser beside copies that move as many bytes
    Quantizer(QuantizerArguments),
    /// Time the GPU's attention to an FP8 cache in pages, beside a plain read of as many bytes
    Paged(PagedArguments),
    /// Time what a launch costs the host, beside the driver's own call for an empty kernel
    Host(HostArguments),
}

/// What may be asked of launches.
#[derive(Args, Debug)]
struct HostArguments {
    #[command(flatten)]
    variants: VariantArguments,
    #[command(flatten)]
    shapes: ShapeArguments,
    #[command(flatten)]
    output: TimedOutputArguments,
    /// Launches to count per variant [default: 2048]
    #[arg(long, value_name = "N")]
    iterations: Option<usize>,
    #[command(flatten)]
    record: RecordArguments,
}

/// What may be asked of the quantiser.
#[derive(Args, Debug)]
struct QuantizerArguments {
    /// Named shapes, or B,H,S,D [default: 4,16,4096,128, which fits no cache]
    #[arg(long, value_name = "SHAPE", num_args = 1..)]
    shape: Vec<String>,
    #[command(flatten)]
    clock: ClockArguments,
}

/// What may be asked of attention to pages.
#[derive(Args, Debug)]
struct PagedArguments {
    /// Query heads,kv heads,head dim,sequences,keys[,queries]; keys may be ragged, prompts with as many queries, or append, where
    /// sequences are new tokens [default: what models have, 23 of them]
    #[arg(long, value_name = "CASE", num_args = 1..)]
    case: Vec<String>,
    /// Tokens of a page [default: 16 64]
    #[arg(long, value_name = "N", num_args = 1..)]
    page: Vec<usize>,
    /// What one without a kernel for pages runs on the same lengths, in the same run
    #[arg(long, value_enum)]
    peer: Option<PagedPeer>,
    /// The Python that has PyTorch
    #[arg(long, value_name = "PATH", default_value = PYTHON)]
    python: String,
    #[command(flatten)]
    clock: ClockArguments,
}

/// Who is measured beside attention to pages.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
enum PagedPeer {
    /// PyTorch's attention in bf16 on K and V gathered beforehand: scaled_dot_product_attention with the fastest of its
    /// backends, and for different lengths varlen_attn, too
    Torch,
}

/// How times are taken, and where they are kept.
#[derive(Args, Debug)]
struct ClockArguments {
    /// Runs to count per contestant [default: as gates.toml says]
    #[arg(long, value_name = "N")]
    iterations: Option<usize>,
    #[command(flatten)]
    manner: MannerArguments,
    #[command(flatten)]
    record: RecordArguments,
}

/// What the quantiser is timed on unless a shape is named: values that fit no cache.
const QUANTIZER_SHAPE: &str = "4,16,4096,128";

/// Launches that are timed by the host, unless others are asked for.
const HOST_LAUNCHES: usize = 2048;

/// A shape's name, its problem, and who computes it.
type Job = (String, Problem, Vec<Candidate>);

/// Checks and times every chosen variant on every chosen shape, prints the tables, writes the record.
pub fn execute(arguments: &Arguments, json: bool) -> Result<Verdict> {
    match &arguments.what {
        Some(What::Quantizer(own)) => return own.time(json),
        Some(What::Paged(own)) => return own.time(json),
        Some(What::Host(own)) => return own.time(json),
        None => {}
    }
    let format = arguments.format.format(json)?;
    let problems = arguments.shapes.problems(&arguments.scoring)?;
    let mut jobs = jobs(&arguments.variants, problems, &arguments.output)?;
    for (_, _, candidates) in &mut jobs {
        *candidates = arguments.pages.beside(std::mem::take(candidates))?;
    }
    let mut recording = arguments.clock.open(Kind::Bench)?;
    if jobs.iter().any(|(_, _, candidates)| candidates.iter().any(Candidate::on_gpu)) {
        recording = recording.with_cuda();
    }
    let recording = RefCell::new(recording);
    let ended = arguments.work(&jobs, &recording);
    let recording = recording.into_inner();
    let show = Show {
        format,
        csv: bench_table::csv,
        markdown: |record| tables(record, bench_table::markdown),
        ..Show::new(json, |record| tables(record, bench_table::render))
    };
    recording.finish(ended, &show)
}

/// Every chosen variant on every chosen shape.
fn jobs(
    variants: &VariantArguments,
    problems: Vec<(String, Problem)>,
    output: &TimedOutputArguments,
) -> Result<Vec<Job>> {
    let mut jobs = Vec::new();
    for (name, problem) in problems {
        let candidates = variants.candidates(&problem)?;
        jobs.push((name, output.apply(problem, &candidates), candidates));
    }
    Ok(jobs)
}

impl HostArguments {
    /// Times launches of every chosen variant on every chosen shape, prints the tables, writes the record.
    fn time(&self, json: bool) -> Result<Verdict> {
        // Without a device nothing at all would run.
        Device::default()?;
        let shapes = self.shapes.shapes()?.into_iter();
        let problem = |shape: NamedShape| Ok((shape.name, Problem::new(shape.shape)?.with_mask(self.shapes.mask())));
        let jobs = jobs(&self.variants, shapes.map(problem).collect::<Result<_>>()?, &self.output)?;
        let mut recording = Recording::open(Kind::Host, &self.record)?.with_cuda();
        let launches = self.iterations.unwrap_or(HOST_LAUNCHES);
        let mut work = || {
            for (name, problem, candidates) in &jobs {
                let variants: Vec<_> = candidates.iter().map(|one| (one.name.clone(), one.variant)).collect();
                recording.keep_host(measure_host(name, problem, &variants, launches)?)?;
            }
            Ok(())
        };
        let ended = work();
        let show = Show::new(json, |record| record.hosts.iter().map(host_table::render).collect::<Vec<_>>().join("\n"));
        recording.finish(ended, &show)
    }
}

impl ClockArguments {
    /// A record whose policy counts as many runs as were asked for.
    fn open(&self, kind: Kind) -> Result<Recording> {
        let mut recording = Recording::open(kind, &self.record)?;
        if let Some(iterations) = self.iterations {
            if iterations == 0 {
                return Err(Error::invalid("iterations", "must be at least 1, got 0", "leave it out for the policy's"));
            }
            let Thresholds { timing, cuda_timing, .. } = recording.thresholds();
            for timing in [timing, cuda_timing] {
                timing.iterations = iterations;
                timing.min_iterations = timing.min_iterations.min(iterations);
            }
        }
        Ok(recording)
    }
}

impl QuantizerArguments {
    /// Times the quantiser on every chosen shape, prints the tables, writes the record.
    fn time(&self, json: bool) -> Result<Verdict> {
        let shapes: Vec<_> = match self.shape.is_empty() {
            true => vec![shapes::parse(QUANTIZER_SHAPE)?],
            false => self.shape.iter().map(|text| shapes::parse(text)).collect::<Result<_>>()?,
        };
        // Without a device nothing at all would run.
        Device::default()?;
        let mut recording = self.clock.open(Kind::Quantizer)?.with_cuda();
        let policy = recording.thresholds().cuda_timing;
        let method = Method { policy: &policy, manner: self.clock.manner.manner(), on_gpu: true };
        let mut bar = Bar::new();
        let share = 1.0 / shapes.len() as f64;
        let mut work = || {
            for (index, shape) in shapes.iter().enumerate() {
                let mut part = Part { whole: &mut bar, start: index as f64 * share, share };
                recording.keep_quantizer(quantizer::measure(shape, &method, &mut part)?)?;
            }
            Ok(())
        };
        let ended = work();
        drop(bar);
        let show = Show::new(json, |record| {
            record.quantizers.iter().map(quantizer_table::render).collect::<Vec<_>>().join("\n")
        });
        recording.finish(ended, &show)
    }
}

impl PagedArguments {
    /// Times every chosen case, prints the tables, writes the record.
    fn time(&self, json: bool) -> Result<Verdict> {
        let cases: Vec<Case> = match self.case.is_empty() {
            true => decode::CASES.iter().map(|text| text.parse()).collect::<Result<_>>()?,
            false => self.case.iter().map(|text| text.parse()).collect::<Result<_>>()?,
        };
        if let Some(page) = self.page.iter().find(|page| **page == 0 || **page > 4096) {
            let rule = format!("{page} is not 1 to 4096");
            return Err(Error::invalid("page", rule, "give the tokens of a page, such as 16"));
        }
        let pages = if self.page.is_empty() { &decode::PAGE_SIZES[..] } else { &self.page };
        // Without a device nothing at all would run.
        Device::default()?;
        let mut recording = self.clock.open(Kind::Paged)?.with_cuda();
        let torch = self.peer.map(|PagedPeer::Torch| Torch::start(&self.python, rayon::current_num_threads()));
        let (mut torch, missing) = match torch {
            Some(Err(error)) => (None, Some(format!("torch: {error}"))),
            started => (started.and_then(Result::ok), None),
        };
        let policy = recording.thresholds().cuda_timing;
        let method = Method { policy: &policy, manner: self.clock.manner.manner(), on_gpu: true };
        let mut bar = Bar::new();
        let share = 1.0 / cases.len() as f64;
        let mut work = || {
            for (index, case) in cases.iter().enumerate() {
                let mut part = Part { whole: &mut bar, start: index as f64 * share, share };
                let (most, torch) = (decode::MOST_COPIES, torch.as_mut());
                let mut group = decode::measure(case, pages, most, torch, &method, &mut part)?;
                group.peers.extend(missing.clone());
                recording.keep_paged(group)?;
            }
            Ok(())
        };
        let ended = work();
        drop(bar);
        let show =
            Show::new(json, |record| record.paged.iter().map(paged_table::render).collect::<Vec<_>>().join("\n"));
        recording.finish(ended, &show)
    }
}

impl Arguments {
    fn work(&self, jobs: &[Job], recording: &RefCell<Recording>) -> Result<()> {
        let thresholds = recording.borrow_mut().thresholds().clone();
        let (mut torch, missing) = self.peers.start();
        let total: f64 = jobs.iter().map(|(_, problem, _)| problem.flop()).sum();
        let mut progress = KeepingBar::new(recording);
        let mut start = 0.0;
        for (name, problem, candidates) in jobs {
            let share = problem.flop() / total;
            progress.at(start, &format!("{name}: preparing inputs and references"));
            let cases = timing_cases(problem, candidates, &thresholds.correctness.reference)?;
            let examination = Examination {
                shape: name,
                cases: &cases,
                candidates,
                thresholds: &thresholds,
                timed: Some(self.clock.manner.manner()),
                ladder: false,
                sweep: false,
                max_gate_seconds: f64::INFINITY,
            };
            let part = &mut Part { whole: &mut progress, start, share };
            let Examined { mut group, lost } = examination.run(problem, torch.as_mut(), part);
            group.entries.extend(missing.clone());
            recording.borrow_mut().keep(group)?;
            lost.map_or(Ok(()), Err)?;
            start += share;
        }
        Ok(())
    }
}
