//! `eightfold bench`: timing, contestants taking turns, peers included.

use super::recording::{RecordArguments, Recording, tables};
use super::selection::{MannerArguments, PeerArguments, ShapeArguments, TimedOutputArguments, VariantArguments};
use crate::Verdict;
use crate::output::{bench_table, quantizer_table};
use crate::progress::{Bar, KeepingBar};
use clap::Args;
use eightfold::cuda::driver::Device;
use eightfold::{Error, Problem, Result};
use eightfold_lab::examine::{Candidate, Examination, Examined};
use eightfold_lab::gates::{self, Thresholds, timing_cases};
use eightfold_lab::measure::Method;
use eightfold_lab::progress::{Part, Progress};
use eightfold_lab::record::Kind;
use eightfold_lab::{quantizer, shapes};
use std::cell::RefCell;

/// What may be asked of the clock.
#[derive(Args, Debug)]
pub struct Arguments {
    #[command(flatten)]
    variants: VariantArguments,
    #[command(flatten)]
    shapes: ShapeArguments,
    #[command(flatten)]
    output: TimedOutputArguments,
    #[command(flatten)]
    peers: PeerArguments,
    /// Time the GPU's quantiser instead, beside copies that move as many bytes [default shape: 4,16,4096,128]
    #[arg(long, conflicts_with_all = ["variant", "kernel", "accuracy", "causal", "peer", "python"])]
    quantizer: bool,
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

/// A shape's name, its problem, and who computes it.
type Job = (String, Problem, Vec<Candidate>);

/// Checks and times every chosen variant on every chosen shape, prints the tables, writes the record.
pub fn execute(arguments: &Arguments, json: bool) -> Result<Verdict> {
    if arguments.quantizer {
        return arguments.time_quantizer(json);
    }
    let mut jobs = Vec::new();
    for shape in arguments.shapes.shapes()? {
        let problem = Problem::new(shape.shape)?.with_mask(arguments.shapes.mask());
        let candidates = arguments.variants.candidates(&problem)?;
        jobs.push((shape.name, arguments.output.apply(problem, &candidates), candidates));
    }
    let mut recording = arguments.open(Kind::Bench)?;
    if jobs.iter().any(|(_, _, candidates)| candidates.iter().any(Candidate::on_gpu)) {
        recording = recording.with_cuda();
    }
    let recording = RefCell::new(recording);
    let ended = arguments.work(&jobs, &recording);
    let recording = recording.into_inner();
    recording.finish(ended, json, |record| tables(record, bench_table::render))
}

impl Arguments {
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

    /// Times the quantiser on every chosen shape, prints the tables, writes the record.
    fn time_quantizer(&self, json: bool) -> Result<Verdict> {
        let shapes = match self.shapes.shape.is_empty() {
            true => vec![shapes::parse(QUANTIZER_SHAPE)?],
            false => self.shapes.shapes()?,
        };
        // Without a device nothing at all would run.
        Device::default()?;
        let mut recording = self.open(Kind::Quantizer)?.with_cuda();
        let policy = recording.thresholds().cuda_timing;
        let method = Method { policy: &policy, manner: self.manner.manner(), on_gpu: true };
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
        recording.finish(ended, json, |record| {
            record.quantizers.iter().map(quantizer_table::render).collect::<Vec<_>>().join("\n")
        })
    }

    fn work(&self, jobs: &[Job], recording: &RefCell<Recording>) -> Result<()> {
        let thresholds = recording.borrow_mut().thresholds().clone();
        let (mut torch, missing) = self.peers.start();
        let total: f64 = jobs.iter().map(|(_, problem, _)| problem.flop()).sum();
        let mut progress = KeepingBar::new(recording);
        let mut start = 0.0;
        for (name, problem, candidates) in jobs {
            let share = problem.flop() / total;
            progress.at(start, &format!("{name}: preparing inputs and references"));
            let cases =
                timing_cases(problem, &gates::quantizer(problem, candidates), &thresholds.correctness.reference)?;
            let examination = Examination {
                shape: name,
                cases: &cases,
                candidates,
                thresholds: &thresholds,
                timed: Some(self.manner.manner()),
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
