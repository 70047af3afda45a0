//! `eightfold contestant`: one variant in a process of its own, for a comparison of two binaries. Hidden: it talks to
//! `eightfold compare` of another binary, and not to people.

use super::selection::{self, MannerArguments, TimedOutputArguments};
use crate::Verdict;
use clap::Args;
use eightfold::{Mask, Problem, Result};
use eightfold_lab::choice;
use eightfold_lab::compare::Serving;
use eightfold_lab::examine::Candidate;
use eightfold_lab::gates::{Thresholds, timing_cases};
use eightfold_lab::provenance::Provenance;
use eightfold_lab::shapes;
use std::path::PathBuf;

/// What is served.
#[derive(Args, Debug)]
pub struct Arguments {
    /// The shape
    #[arg(long)]
    shape: String,
    /// Causal mask
    #[arg(long)]
    causal: bool,
    #[command(flatten)]
    output: TimedOutputArguments,
    /// The variant [default: what explain says runs]
    #[arg(long)]
    variant: Option<String>,
    #[command(flatten)]
    manner: MannerArguments,
    /// Gate limits
    #[arg(long)]
    gates: Option<PathBuf>,
}

/// Serves until nobody asks any more.
pub fn execute(arguments: &Arguments) -> Result<Verdict> {
    let thresholds = arguments.gates.as_deref().map_or_else(|| Ok(Thresholds::embedded()), Thresholds::load)?;
    let shape = shapes::parse(&arguments.shape)?;
    let problem = Problem::new(shape.shape)?.with_mask(Mask::causal_if(arguments.causal));
    let candidate = match &arguments.variant {
        Some(text) => {
            let variant = selection::variant(text, &problem)?;
            choice::check_named(&problem, &variant)?;
            Candidate::new(variant.kernel(), variant)
        }
        None => Candidate::planned(&problem)?,
    };
    let problem = arguments.output.apply(problem, std::slice::from_ref(&candidate));
    let provenance = Provenance::capture(rayon::current_num_threads());
    let provenance = if candidate.on_gpu() { provenance.with_cuda() } else { provenance };
    let cases = timing_cases(&problem, std::slice::from_ref(&candidate), &thresholds.correctness.reference)?;
    let serving = Serving {
        shape: &shape.name,
        candidate,
        cases: &cases,
        thresholds: &thresholds,
        manner: arguments.manner.manner(),
        provenance,
    };
    serving.serve(&problem, std::io::stdin().lock(), std::io::stdout().lock())?;
    Ok(Verdict::Passed)
}
