//! `eightfold survey`: how far what the plan picks is from the best that is near it, on a grid of problems.

use super::recording::{RecordArguments, Recording, Show};
use super::selection::{ShapeArguments, TimedOutputArguments};
use crate::Verdict;
use crate::output::survey_table;
use crate::progress::KeepingBar;
use clap::Args;
use eightfold::{Error, Problem, Result};
use eightfold_lab::examine::Candidate;
use eightfold_lab::progress::{Part, Progress};
use eightfold_lab::record::Kind;
use eightfold_lab::survey::{self, Found, Spot};
use std::cell::RefCell;
use std::time::Instant;

/// Which problems, and for how long.
#[derive(Args, Debug)]
pub struct Arguments {
    /// Take the third of the grid that is kept aside, instead of the other two: to show that a rule that was made from those holds
    /// where nobody looked
    #[arg(long, conflicts_with = "shape")]
    aside: bool,
    #[command(flatten)]
    shapes: ShapeArguments,
    /// Begin no further problem after so many seconds; those that come first are from all of the grid
    #[arg(long, value_name = "SECONDS", default_value_t = 480.0)]
    budget: f64,
    #[command(flatten)]
    output: TimedOutputArguments,
    #[command(flatten)]
    record: RecordArguments,
}

/// Looks at one problem after the other, prints a row for each, writes the record.
pub fn execute(arguments: &Arguments, json: bool) -> Result<Verdict> {
    if !(arguments.budget > 0.0 && arguments.budget.is_finite()) {
        let rule = format!("{} is no time", arguments.budget);
        return Err(Error::invalid("budget", rule, "give a number of seconds above zero"));
    }
    let mut jobs = Vec::new();
    for spot in arguments.spots()? {
        let problem = Problem::new(spot.shape.shape)?.with_mask(spot.mask);
        let planned = Candidate::planned(&problem)?;
        jobs.push((arguments.output.apply(problem, std::slice::from_ref(&planned)), planned.on_gpu(), spot));
    }
    let mut recording = Recording::open(Kind::Survey, &arguments.record)?;
    if jobs.iter().any(|(_, on_gpu, _)| *on_gpu) {
        recording = recording.with_cuda();
    }
    let thresholds = recording.thresholds().clone();
    let recording = RefCell::new(recording);
    let mut bar = KeepingBar::new(&recording);
    let began = Instant::now();
    let work = |bar: &mut KeepingBar| -> Result<()> {
        let share = 1.0 / jobs.len() as f64;
        for (index, (problem, _, spot)) in jobs.iter().enumerate() {
            if index > 0 && began.elapsed().as_secs_f64() > arguments.budget {
                break;
            }
            let start = index as f64 * share;
            bar.at(start, &format!("{problem}"));
            let found = survey::look(spot, problem, &thresholds, &mut Part { whole: &mut *bar, start, share })?;
            let Found { group, lost, .. } = found;
            recording.borrow_mut().keep(group)?;
            lost.map_or(Ok(()), Err)?;
        }
        Ok(())
    };
    let ended = work(&mut bar);
    drop(bar);
    recording.into_inner().finish(ended, &Show::new(json, survey_table::render))
}

impl Arguments {
    /// The problems: of the grid those on this side of it, or those that were named.
    fn spots(&self) -> Result<Vec<Spot>> {
        if self.shapes.shape.is_empty() {
            if self.shapes.causal {
                return Err(Error::invalid(
                    "causal",
                    "goes with shapes",
                    "name some with --shape, or leave it out: the grid has both",
                ));
            }
            return Ok(survey::grid().into_iter().filter(|spot| spot.aside == self.aside).collect());
        }
        let named = self.shapes.shapes()?.into_iter();
        Ok(named.map(|shape| Spot { shape, mask: self.shapes.mask(), aside: false }).collect())
    }
}
