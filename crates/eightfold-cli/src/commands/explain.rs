//! `eightfold explain`: what would run for a problem, and why.

use super::selection::{self, AccuracyArguments, ScoringArguments};
use crate::Verdict;
use crate::output::page::page;
use crate::output::{self, explain_table};
use clap::Args;
use eightfold::cuda::driver::Device;
use eightfold::{Considered, Mask, Result};
use eightfold_lab::choice::{self, Choice};
use eightfold_lab::record::ProblemRecord;
use eightfold_lab::shapes;
use serde::Serialize;

/// What may be asked of the plan.
#[derive(Args, Debug)]
pub struct Arguments {
    /// A named shape, or B,H,S,D or B,Hq,Hkv,Sq,Skv,D; D/Dv where V has other channels than Q and K
    #[arg(long, default_value = "mission")]
    shape: String,
    /// Causal mask: the last query sees every key
    #[arg(long)]
    causal: bool,
    #[command(flatten)]
    scoring: ScoringArguments,
    #[command(flatten)]
    accuracy: AccuracyArguments,
    /// Ask about this variant alone; gpu is what runs on this machine's GPU
    #[arg(long)]
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
        let on_gpu = |considered: &Considered| {
            considered.variant.on_device().is_some() && choice::check(&choice.problem, &considered.variant).is_ok()
        };
        let what = match &self.variant {
            Some(variant) => choice.variant.on_device().map(|_| format!("--variant {variant}")),
            None => choice.considered.iter().any(on_gpu).then(|| "--kernel hopper".into()),
        };
        let causal = if self.causal { " --causal" } else { "" };
        let what = what.filter(|_| Device::default().is_err())?;
        Some(format!(
            "check: `eightfold run --on simulator {what} --shape {}{causal}` runs it on this CPU in a GPU's place\n",
            self.shape
        ))
    }
}

/// Prints the plan.
pub fn execute(arguments: &Arguments, json: bool) -> Result<Verdict> {
    let (_, problem) = shapes::problem(&arguments.shape)?;
    let problem = arguments.scoring.apply(problem.with_mask(Mask::causal_if(arguments.causal)))?;
    let problem = arguments.accuracy.apply(problem)?;
    let chosen = match &arguments.variant {
        Some(variant) => {
            arguments.accuracy.refuse("a variant was named, and has its own")?;
            Choice::named(&problem, selection::variant(variant, &problem)?)?
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
        let check = arguments.on_simulator(&chosen).unwrap_or_default();
        output::print(&(explain_table::render(&chosen, page().verbose) + &check))?;
    }
    Ok(Verdict::Passed)
}
