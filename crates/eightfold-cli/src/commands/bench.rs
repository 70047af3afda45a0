//! `eightfold bench`: timing, contestants taking turns, peers included.

use super::recording::{RecordArguments, Recording};
use super::selection::{ShapeArguments, VariantArguments};
use crate::Verdict;
use crate::output::bench_table;
use crate::progress::Bar;
use clap::{Args, ValueEnum};
use eightfold::quantize::Quantizer;
use eightfold::{Error, Problem, Result};
use eightfold_lab::examine::{Examination, missing_peer};
use eightfold_lab::gates::StandardCase;
use eightfold_lab::inputs::Family;
use eightfold_lab::peers::Torch;
use eightfold_lab::progress::{Part, Progress};
use eightfold_lab::record::Kind;

/// What may be asked of the clock.
#[derive(Args, Debug)]
pub struct Arguments {
    #[command(flatten)]
    variants: VariantArguments,
    #[command(flatten)]
    shapes: ShapeArguments,
    /// Another implementation to measure in the same run
    #[arg(long, value_enum)]
    peer: Option<Peer>,
    /// The Python that has PyTorch
    #[arg(long, value_name = "PATH", default_value = super::doctor::PYTHON)]
    python: String,
    /// Runs to count per contestant [default: as gates.toml says]
    #[arg(long, value_name = "N")]
    iterations: Option<usize>,
    #[command(flatten)]
    record: RecordArguments,
}

/// Who is measured beside our kernels.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// PyTorch's scaled_dot_product_attention on the CPU, in f32 on dequantised inputs
    Torch,
}

/// Checks and times every chosen variant on every chosen shape, prints the tables, writes the record.
pub fn execute(arguments: &Arguments, json: bool) -> Result<Verdict> {
    let mut jobs = Vec::new();
    for shape in arguments.shapes.shapes()? {
        let problem = Problem::new(shape.shape)?.with_mask(arguments.shapes.mask());
        jobs.push((shape.name, problem, arguments.variants.candidates(&problem)?));
    }
    let mut recording = Recording::open(Kind::Bench, &arguments.record)?;
    if let Some(iterations) = arguments.iterations {
        if iterations == 0 {
            return Err(Error::invalid("iterations", "must be at least 1, got 0", "leave it out for the policy's"));
        }
        let timing = &mut recording.thresholds().timing;
        timing.iterations = iterations;
        timing.min_iterations = timing.min_iterations.min(iterations);
    }
    let thresholds = recording.thresholds().clone();
    let mut torch = None;
    let mut missing = None;
    if arguments.peer == Some(Peer::Torch) {
        match Torch::start(&arguments.python, rayon::current_num_threads()) {
            Ok(started) => torch = Some(started),
            Err(error) => missing = Some(missing_peer("torch", error.to_string())),
        }
    }
    let total: f64 = jobs.iter().map(|(_, problem, _)| problem.flop()).sum();
    let mut progress = Bar::new();
    let mut groups = Vec::new();
    let mut start = 0.0;
    for (name, problem, candidates) in &jobs {
        let share = problem.flop() / total;
        progress.at(start, &format!("{name}: preparing inputs and references"));
        let case = StandardCase { problem: *problem, family: Family::Gaussian, seed: 1 }
            .prepare(&Quantizer::new(problem.input_format()), &thresholds.correctness.reference)?;
        let examination = Examination {
            shape: name,
            cases: &[case],
            candidates,
            thresholds: &thresholds,
            timed: true,
            max_gate_seconds: f64::INFINITY,
        };
        let part = &mut Part { whole: &mut progress, start, share };
        let mut group = examination.run(problem, torch.as_mut(), part);
        group.entries.extend(missing.clone());
        groups.push(group);
        start += share;
    }
    drop(progress);
    recording.finish(groups, json, bench_table::render)
}
