//! `eightfold` alone: every stage of the ladder through its gates and timing.

use super::recording::{RecordArguments, Recording, tables};
use super::selection::{PeerArguments, ShapeArguments, TimedOutputArguments};
use crate::Verdict;
use crate::output::ladder_table;
use crate::progress::KeepingBar;
use clap::Args;
use eightfold::cuda::driver::Device;
use eightfold::{Error, Result};
use eightfold_lab::kernel::Kernel;
use eightfold_lab::ladder::Climb;
use eightfold_lab::record::Kind;
use std::cell::RefCell;

/// What may be asked of the main job.
#[derive(Args, Debug)]
pub struct Arguments {
    #[command(flatten)]
    shapes: ShapeArguments,
    /// Whose stages: cpu, ladder or hopper [default: ladder where there is a GPU for it, else cpu]
    #[arg(long, value_name = "KERNEL")]
    kernel: Option<String>,
    #[command(flatten)]
    output: TimedOutputArguments,
    #[command(flatten)]
    peers: PeerArguments,
    #[command(flatten)]
    record: RecordArguments,
}

/// Climbs the ladder, prints the tables, writes the record.
pub fn execute(arguments: &Arguments, json: bool) -> Result<Verdict> {
    let shapes = arguments.shapes.shapes()?;
    let asked: Option<Kernel> = arguments.kernel.as_deref().map(str::parse).transpose()?;
    let mut recording = Recording::open(Kind::Ladder, &arguments.record)?;
    let kernel = asked.unwrap_or_else(Kernel::best);
    if kernel.on_gpu() {
        Device::default()?;
        recording = recording.with_cuda();
    }
    let thresholds = recording.thresholds().clone();
    let (mut torch, missing) = arguments.peers.start();
    let climb = Climb {
        kernel,
        shapes: &shapes,
        mask: arguments.shapes.mask(),
        output: arguments.output.format(kernel.on_gpu()),
        thresholds: &thresholds,
        torch: torch.as_mut(),
        missing,
    };
    let recording = RefCell::new(recording);
    let ended = climb.run(&mut KeepingBar::new(&recording), &mut |group| recording.borrow_mut().keep(group));
    let recording = recording.into_inner();
    let ended = ended.and_then(|lost: Option<Error>| lost.map_or(Ok(()), Err));
    recording.finish(ended, json, |record| tables(record, ladder_table::render))
}
