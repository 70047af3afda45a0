//! `eightfold bench`: timing, contestants taking turns, peers included.

use super::recording::{RecordArguments, Recording, tables};
use super::selection::{MannerArguments, PeerArguments, ShapeArguments, TimedOutputArguments, VariantArguments};
use crate::Verdict;
use crate::output::bench_table;
use crate::progress::KeepingBar;
use clap::Args;
use eightfold::{Error, Problem, Result};
use eightfold_lab::examine::{Candidate, Examination, Examined};
use eightfold_lab::gates::{Thresholds, quantizer, timing_cases};
use eightfold_lab::progress::{Part, Progress};
use eightfold_lab::record::Kind;
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
    /// Runs to count per contestant [default: as gates.toml says]
    #[arg(long, value_name = "N")]
    iterations: Option<usize>,
    #[command(flatten)]
    manner: MannerArguments,
    #[command(flatten)]
    record: RecordArguments,
}

/// A shape's name, its problem, and who computes it.
type Job = (String, Problem, Vec<Candidate>);

/// Checks and times every chosen variant on every chosen shape, prints the tables, writes the record.
pub fn execute(arguments: &Arguments, json: bool) -> Result<Verdict> {
    let mut jobs = Vec::new();
    for shape in arguments.shapes.shapes()? {
        let problem = Problem::new(shape.shape)?.with_mask(arguments.shapes.mask());
        let candidates = arguments.variants.candidates(&problem)?;
        jobs.push((shape.name, arguments.output.apply(problem, &candidates), candidates));
    }
    let mut recording = Recording::open(Kind::Bench, &arguments.record)?;
    if let Some(iterations) = arguments.iterations {
        if iterations == 0 {
            return Err(Error::invalid("iterations", "must be at least 1, got 0", "leave it out for the policy's"));
        }
        let Thresholds { timing, cuda_timing, .. } = recording.thresholds();
        for timing in [timing, cuda_timing] {
            timing.iterations = iterations;
            timing.min_iterations = timing.min_iterations.min(iterations);
        }
    }
    if jobs.iter().any(|(_, _, candidates)| candidates.iter().any(Candidate::on_gpu)) {
        recording = recording.with_cuda();
    }
    let recording = RefCell::new(recording);
    let ended = arguments.work(&jobs, &recording);
    let recording = recording.into_inner();
    recording.finish(ended, json, |record| tables(record, bench_table::render))
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
            let cases = timing_cases(problem, &quantizer(problem, candidates), &thresholds.correctness.reference)?;
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
