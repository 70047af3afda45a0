//! `eightfold explain`: what would run for a problem, and why.

use super::selection::AccuracyArguments;
use crate::{Verdict, output};
use clap::Args;
use eightfold::cuda::driver::Device;
use eightfold::{Considered, Mask, Problem, Result};
use eightfold_lab::choice::{self, Choice};
use eightfold_lab::kernel::suited;
use eightfold_lab::record::ProblemRecord;
use eightfold_lab::shapes;
use serde::Serialize;

/// What may be asked of the plan.
#[derive(Args, Debug)]
pub struct Arguments {
    /// A named shape, or B,H,S,D or B,Hq,Hkv,Sq,Skv,D
    #[arg(long, default_value = "mission")]
    shape: String,
    /// Causal mask: the last query sees every key
    #[arg(long)]
    causal: bool,
    #[command(flatten)]
    accuracy: AccuracyArguments,
    /// Ask about this variant alone
    #[arg(long, visible_alias = "kernel")]
    variant: Option<String>,
}

#[derive(Serialize)]
struct Explanation {
    problem: ProblemRecord,
    variant: String,
    considered: Vec<Listed>,
}

#[derive(Serialize)]
struct Listed {
    variant: String,
    chosen: bool,
    reason: String,
}

impl Arguments {
    /// Where there is no GPU: how what would run on one is checked all the same.
    fn on_simulator(&self, choice: &Choice) -> Option<String> {
        let on_gpu = |considered: &Considered| considered.variant.on_device().is_some();
        let what = match &self.variant {
            Some(variant) => choice.variant.on_device().map(|_| format!("--variant {variant}")),
            None => choice.considered.iter().any(on_gpu).then(|| "--kernel hopper".into()),
        };
        let causal = if self.causal { " --causal" } else { "" };
        let what = what.filter(|_| Device::default().is_err())?;
        Some(format!(
            "check    eightfold run --on simulator {what} --shape {}{causal}: on this CPU in a GPU's place\n",
            self.shape
        ))
    }
}

/// Prints the plan.
pub fn execute(arguments: &Arguments, json: bool) -> Result<Verdict> {
    let shape = shapes::parse(&arguments.shape)?.shape;
    let problem = arguments.accuracy.apply(Problem::new(shape)?.with_mask(Mask::causal_if(arguments.causal)))?;
    let chosen = match &arguments.variant {
        Some(variant) => {
            arguments.accuracy.refuse("a variant was named, and has its own")?;
            Choice::named(&problem, suited(variant, shape.head_dim, problem.mask())?)?
        }
        None => choice::choose(&problem)?,
    };
    if json {
        let considered = chosen.considered.iter().map(|considered| Listed {
            variant: considered.variant.to_string(),
            chosen: considered.chosen,
            reason: considered.reason.clone(),
        });
        output::print_json(&Explanation {
            problem: (&problem).into(),
            variant: chosen.variant.to_string(),
            considered: considered.collect(),
        })?;
    } else {
        output::print(&(chosen.explain() + &arguments.on_simulator(&chosen).unwrap_or_default()))?;
    }
    Ok(Verdict::Passed)
}
