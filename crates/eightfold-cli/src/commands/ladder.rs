//! `eightfold ladder`, and `eightfold` alone: every stage of a kernel through its gates and timing.

use super::recording::{RecordArguments, Recording, Show, machine};
use super::selection::{PeerArguments, ShapeArguments, TimedOutputArguments};
use crate::Verdict;
use crate::output::page::page;
use crate::output::{self, ladder_summary, ladder_table};
use crate::progress::KeepingBar;
use clap::Args;
use eightfold::cuda::driver::Device;
use eightfold::{Error, Problem, Result};
use eightfold_lab::kernel::{self, Kernel};
use eightfold_lab::ladder::Climb;
use eightfold_lab::memory;
use eightfold_lab::record::Kind;
use eightfold_lab::shapes::NamedShape;
use std::cell::RefCell;

/// What may be asked of the main job.
#[derive(Args, Debug)]
pub struct Arguments {
    #[command(flatten)]
    shapes: ShapeArguments,
    /// Whose stages: cpu, ladder, hopper, or gpu for the best on this machine's GPU [default: ladder where there is a GPU,
    /// with the kernel for Hopper beside it, else cpu]
    #[arg(long, value_name = "KERNEL")]
    kernel: Option<String>,
    #[command(flatten)]
    output: TimedOutputArguments,
    #[command(flatten)]
    peers: PeerArguments,
    #[command(flatten)]
    record: RecordArguments,
}

/// Says what will run, climbs the ladder, prints each table as soon as it is done, and then the best; writes the record and
/// the page that shows it.
pub fn execute(arguments: &Arguments, json: bool) -> Result<Verdict> {
    let shapes = arguments.shapes.shapes()?;
    let asked: Option<Kernel> = arguments.kernel.as_deref().map(kernel::find).transpose()?;
    for shape in &shapes {
        memory::check(&Problem::new(shape.shape)?, 1)?;
    }
    let mut recording = Recording::open(Kind::Ladder, &arguments.record)?;
    let kernel = asked.unwrap_or_else(Kernel::best);
    if kernel.on_gpu() {
        Device::default()?;
        recording = recording.with_cuda();
    }
    let flagship = asked.is_none() && kernel == Kernel::LADDER && Kernel::best_on_gpu() == Ok(Kernel::HOPPER);
    let shown = !json && !page().quiet;
    if shown {
        let machine = machine(&recording.record().provenance);
        output::print(&format!("{machine}\n{}\n", arguments.outlook(kernel, flagship, &shapes)))?;
    }
    let thresholds = recording.thresholds().clone();
    let (mut torch, missing) = arguments.peers.start();
    let climb = Climb {
        kernel,
        shapes: &shapes,
        mask: arguments.shapes.mask(),
        flagship,
        output: arguments.output.format(kernel.on_gpu()),
        thresholds: &thresholds,
        torch: torch.as_mut(),
        missing,
    };
    let recording = RefCell::new(recording);
    let mut bar = KeepingBar::new(&recording);
    let line = bar.line();
    let ended = climb.run(&mut bar, &mut |group| {
        let table = ladder_table::render(&group);
        recording.borrow_mut().keep(group)?;
        if json { Ok(()) } else { line.aside(|| output::print(&format!("{table}\n"))) }
    });
    drop((line, bar));
    let recording = recording.into_inner();
    let ended = ended.and_then(|lost: Option<Error>| lost.map_or(Ok(()), Err));
    let show = Show { head: false, page: true, ..Show::new(json, ladder_summary::render) };
    recording.finish(ended, &show)
}

impl Arguments {
    /// What was found, what will run, and what comes of it.
    fn outlook(&self, kernel: Kernel, flagship: bool, shapes: &[NamedShape]) -> String {
        let names: Vec<&str> = shapes.iter().map(|shape| shape.name.as_str()).collect();
        let stages = shapes.first().map_or(0, |shape| kernel.stages(shape.shape.head_dim, self.shapes.mask()).len());
        let beside = if flagship { ", and beside them the kernel for Hopper in each accuracy mode" } else { "" };
        let device = match Device::default() {
            Ok(device) => device.info().name.clone(),
            Err(Error::Unavailable { reason, .. }) => format!("no GPU ({reason})"),
            Err(error) => format!("no GPU ({error})"),
        };
        let peers = if self.peers.asked() { "PyTorch" } else { "none; --peer torch measures PyTorch in the same run" };
        format!(
            "  found  {device}\n  runs   {stages} stages of the {kernel} kernel{beside} on {}: gates, then timing\n  peers  {peers}\n  keeps  a record and report.html in {}; `eightfold --help` lists the other commands\n",
            names.join(", "),
            self.record.records.display()
        )
    }
}
