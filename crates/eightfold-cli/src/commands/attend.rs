//! `eightfold attend`: attention on the user's own tensors.

use super::run::{FileLayout, OwnInputArguments};
use super::selection::{self, AccuracyArguments, OutputArgument, ScoringArguments};
use crate::{Verdict, output};
use clap::Args;
use eightfold::quantize::small_codes;
use eightfold::{Mask, Output, Problem, Result};
use eightfold_lab::choice::{self, Choice};
use eightfold_lab::record::ProblemRecord;
use eightfold_lab::store;
use eightfold_lab::tensors::{self, UserTensors};
use serde::Serialize;
use std::collections::HashMap;
use std::path::PathBuf;

/// What may be asked of attention.
#[derive(Args, Debug)]
pub struct Arguments {
    /// Safetensors file with q, k and v
    ///
    /// Each has four dimensions, in F32, F16 or BF16 (quantised here, with one scale per head) or in F8_E4M3 or
    /// F8_E5M2 (q and k also in I8) with q_scale, k_scale, v_scale in F32: one element is a scale for the whole tensor, (B,H) one per
    /// head, (B,H,N) one for each of N blocks of ceil(S/N) rows. v may have other channels than q and k. sinks in F32,
    /// one for each head of q, are attention sinks.
    #[arg(long, value_name = "FILE")]
    inputs: PathBuf,
    /// Safetensors file to write: o in the layout of the inputs, and lse as (B,H,S) if wanted
    #[arg(long, value_name = "FILE")]
    to: PathBuf,
    #[command(flatten)]
    own: OwnInputArguments,
    /// Causal mask: the last query sees every key
    #[arg(long)]
    causal: bool,
    #[command(flatten)]
    scoring: ScoringArguments,
    /// Variant to run, or gpu for what runs on this machine's GPU [default: what explain says runs]
    #[arg(long)]
    variant: Option<String>,
    /// Number format of the output
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = OutputArgument::F32)]
    dtype: OutputArgument,
    #[command(flatten)]
    accuracy: AccuracyArguments,
    /// Also write the log-sum-exp of every row
    #[arg(long)]
    lse: bool,
}

#[derive(Serialize)]
struct Attended {
    to: PathBuf,
    problem: ProblemRecord,
    variant: String,
    quantized_here: bool,
    tiles: u64,
    tiles_in_f32: u64,
}

/// Computes and writes.
pub fn execute(arguments: &Arguments, json: bool) -> Result<Verdict> {
    let tensors = UserTensors::read(&arguments.inputs, arguments.own.layout.into())?;
    let problem = arguments.problem(&tensors)?;
    let chosen = match &arguments.variant {
        Some(variant) => {
            arguments.accuracy.refuse("a variant was named, and has its own")?;
            Choice::named(&problem, selection::variant(variant, &problem)?)?
        }
        None => choice::choose(&problem)?,
    };
    store::check_file(&arguments.to)?;
    let on_device = chosen.variant.on_device().is_some();
    let [q, k, v] =
        tensors.quantize(&problem, if on_device { small_codes(&problem) } else { tensors.format().max() })?;
    let mut result = Output::zeros(&problem);
    let report = choice::run(&chosen.variant, &problem, &q, &k, &v, &mut result)?;
    let variant = chosen.variant.to_string();
    let metadata = [
        ("eightfold", env!("CARGO_PKG_VERSION").to_string()),
        ("variant", variant.clone()),
        ("problem", problem.to_string()),
        ("input_format", problem.input_format().to_string()),
        ("softmax_scale", problem.softmax_scale().to_string()),
        ("layout", problem.output_layout().to_string()),
    ];
    let metadata: HashMap<_, _> = metadata.into_iter().map(|(key, value)| (key.to_string(), value)).collect();
    tensors::write_output(&arguments.to, &problem, &result, metadata)?;
    if json {
        output::print_json(&Attended {
            to: arguments.to.clone(),
            problem: (&problem).into(),
            variant,
            quantized_here: !tensors.has_codes(),
            tiles: report.tiles,
            tiles_in_f32: report.tiles_in_f32,
        })?;
    } else {
        output::print(&format!("{problem} with {variant}, written to {}\n", arguments.to.display()))?;
    }
    Ok(Verdict::Passed)
}

impl Arguments {
    fn problem(&self, tensors: &UserTensors) -> Result<Problem> {
        let problem = self.own.problem(tensors, Mask::causal_if(self.causal))?;
        let problem = self.scoring.apply_to_own(problem, tensors)?;
        let problem = self.accuracy.apply(problem)?.with_output_format(self.dtype.into()).with_lse(self.lse);
        problem.with_output_layout(match self.own.layout {
            FileLayout::Bhsd => eightfold::Layout::Bhsd,
            FileLayout::Bshd => eightfold::Layout::Bshd,
        })
    }
}
