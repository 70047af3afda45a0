//! `eightfold ablation`: what each stage of a ladder brings alone, and on top of all the others.

use super::recording::{RecordArguments, Recording, Show};
use super::selection::{MannerArguments, ShapeArguments, TimedOutputArguments};
use crate::Verdict;
use crate::output::ablation_table;
use crate::progress::KeepingBar;
use clap::Args;
use eightfold::cuda::driver::Device;
use eightfold::{Problem, Result};
use eightfold_lab::ablation;
use eightfold_lab::examine::{Examination, Examined};
use eightfold_lab::gates::timing_cases;
use eightfold_lab::kernel::{self, Kernel};
use eightfold_lab::progress::{Part, Progress};
use eightfold_lab::record::{Kind, Record};
use std::cell::RefCell;

/// Whose stages, and on what.
#[derive(Args, Debug)]
pub struct Arguments {
    /// Whose stages: cpu or ladder [default: ladder where there is a GPU, else cpu]
    #[arg(long, value_name = "KERNEL")]
    kernel: Option<String>,
    #[command(flatten)]
    shapes: ShapeArguments,
    #[command(flatten)]
    output: TimedOutputArguments,
    #[command(flatten)]
    manner: MannerArguments,
    #[command(flatten)]
    record: RecordArguments,
}

/// Times the baseline, everything, and for each stage what shows what it brings, in one interleaved run a shape; prints a row for
/// each stage, writes the record.
pub fn execute(arguments: &Arguments, json: bool) -> Result<Verdict> {
    let kernel = arguments.kernel.as_deref().map_or_else(|| Ok(Kernel::best()), kernel::find)?;
    let mask = arguments.shapes.mask();
    let shapes = arguments.shapes.shapes()?;
    // A kernel without steps is a mistake whatever there is to run it on.
    ablation::of(kernel, 64, mask)?;
    let mut recording = Recording::open(Kind::Ablation, &arguments.record)?;
    if kernel.on_gpu() {
        Device::default()?;
        recording = recording.with_cuda();
    }
    let thresholds = recording.thresholds().clone();
    let recording = RefCell::new(recording);
    let mut bar = KeepingBar::new(&recording);
    let work = |bar: &mut KeepingBar| -> Result<()> {
        for (index, shape) in shapes.iter().enumerate() {
            let (start, share) = (index as f64 / shapes.len() as f64, 1.0 / shapes.len() as f64);
            bar.at(start, &format!("{}: preparing inputs and references", shape.name));
            let head_dim = shape.shape.head_dim;
            let ablations = ablation::of(kernel, head_dim, mask)?;
            let candidates = ablation::candidates(kernel, &ablations, head_dim, mask);
            let problem = arguments.output.apply(Problem::new(shape.shape)?.with_mask(mask), &candidates);
            let cases = timing_cases(&problem, &candidates, &thresholds.correctness.reference)?;
            let examination = Examination {
                shape: &shape.name,
                cases: &cases,
                candidates: &candidates,
                thresholds: &thresholds,
                timed: Some(arguments.manner.manner()),
                ladder: false,
                sweep: false,
                max_gate_seconds: f64::INFINITY,
            };
            let Examined { group, lost } = examination.run(&problem, None, &mut Part { whole: bar, start, share });
            recording.borrow_mut().keep(group)?;
            lost.map_or(Ok(()), Err)?;
        }
        Ok(())
    };
    let ended = work(&mut bar);
    drop(bar);
    recording.into_inner().finish(ended, &Show::new(json, tables))
}

fn tables(record: &Record) -> String {
    super::recording::tables(record, ablation_table::render)
}
