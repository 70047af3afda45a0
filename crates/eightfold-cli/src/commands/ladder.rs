//! `eightfold` alone: every stage of the ladder through correctness and timing.

use super::recording::{RecordArguments, Recording};
use super::selection::ShapeArguments;
use crate::Verdict;
use crate::output::ladder_table;
use crate::progress::Bar;
use clap::Args;
use eightfold::Result;
use eightfold_lab::ladder;
use eightfold_lab::record::Kind;

/// What may be asked of the main job.
#[derive(Args, Debug)]
pub struct Arguments {
    #[command(flatten)]
    shapes: ShapeArguments,
    #[command(flatten)]
    record: RecordArguments,
}

/// Climbs the ladder, prints the tables, writes the record.
pub fn execute(arguments: &Arguments, json: bool) -> Result<Verdict> {
    let shapes = arguments.shapes.shapes()?;
    let mut recording = Recording::open(Kind::Ladder, &arguments.record)?;
    let masks = [arguments.shapes.mask()];
    let groups = ladder::climb(&shapes, &masks, recording.thresholds(), &mut Bar::new())?;
    recording.finish(groups, json, ladder_table::render)
}
