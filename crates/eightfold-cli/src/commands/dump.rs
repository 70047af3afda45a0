//! `eightfold dump`: what one block of a kernel computed on the way.

use super::run::GeneratedArguments;
use super::selection::variant;
use crate::{Verdict, output};
use clap::Args;
use eightfold::{Error, Mask, Problem, Result};
use eightfold_lab::examine::Candidate;
use eightfold_lab::gates::Thresholds;
use eightfold_lab::{dump, shapes, store};
use serde::Serialize;
use std::path::PathBuf;

/// What is dumped, and where to.
#[derive(Args, Debug)]
pub struct Arguments {
    /// The variant, such as ladder:unpack or hopper:fast
    #[arg(long, value_name = "VARIANT")]
    variant: String,
    /// A named shape, or B,H,S,D or B,Hq,Hkv,Sq,Skv,D
    #[arg(long, value_name = "SHAPE", default_value = "mission")]
    shape: String,
    /// Causal mask: the last query sees every key
    #[arg(long)]
    causal: bool,
    #[command(flatten)]
    inputs: GeneratedArguments,
    /// Safetensors file to write
    #[arg(long, value_name = "FILE")]
    to: PathBuf,
}

/// The unit of work whose tiles are written: the first tile of queries of the first head.
const UNIT: usize = 0;

#[derive(Serialize)]
struct Dumped {
    to: PathBuf,
    variant: String,
    problem: String,
    inputs: String,
    tiles: usize,
}

/// Runs the variant on the first of the inputs in debug mode, and writes its tiles.
pub fn execute(arguments: &Arguments, json: bool) -> Result<Verdict> {
    arguments.inputs.settle()?;
    let shape = shapes::parse(&arguments.shape)?;
    let problem = Problem::new(shape.shape)?.with_mask(Mask::causal_if(arguments.causal)).with_lse(true);
    let variant = variant(&arguments.variant, &problem)?;
    let Some(config) = variant.on_device() else {
        let rule = format!("{} cannot show its tiles: kernels for GPUs can", variant.kernel());
        return Err(Error::invalid("variant", rule, "name a variant of one, such as ladder:unpack or hopper:fast"));
    };
    store::check_file(&arguments.to)?;
    let candidate = Candidate::new(&arguments.variant, variant);
    let job = arguments.inputs.job(shape.name, problem)?;
    let cases = job.cases(&[candidate], &Thresholds::embedded().correctness.reference)?;
    let no_case = || Error::invalid("families", "name no inputs", "name one, or leave it out");
    let case = cases.first().ok_or_else(no_case)?;
    let dumped = dump::tiles(&config, case, UNIT)?;
    let report = Dumped {
        to: arguments.to.clone(),
        variant: variant.to_string(),
        problem: case.problem.to_string(),
        inputs: case.origin.clone(),
        tiles: dumped.tiles.len(),
    };
    dump::write(&arguments.to, &dumped, &report.variant, case)?;
    if json {
        output::print_json(&report)?;
    } else {
        let Dumped { to, problem, variant, tiles, .. } = &report;
        output::print(&format!("{tiles} tiles of {problem} with {variant}, written to {}\n", to.display()))?;
    }
    Ok(Verdict::Passed)
}
