//! Which variants and which shapes: text from the command line into values.

use clap::Args;
use eightfold::{Mask, Plan, Problem, Result, Variant};
use eightfold_lab::examine::Candidate;
use eightfold_lab::shapes::{self, NamedShape};

/// The shapes and the mask of a job on generated inputs.
#[derive(Args, Debug)]
pub struct ShapeArguments {
    /// Named shapes, or B,H,S,D or B,Hq,Hkv,Sq,Skv,D [default: small mission mission_b2 long]
    #[arg(long, value_name = "SHAPE", num_args = 1..)]
    pub shape: Vec<String>,
    /// Causal mask: the last query sees every key
    #[arg(long)]
    pub causal: bool,
}

impl ShapeArguments {
    /// The chosen shapes, or all that have a name.
    pub fn shapes(&self) -> Result<Vec<NamedShape>> {
        if self.shape.is_empty() {
            let known = shapes::registry().iter();
            return Ok(known.map(|known| NamedShape { name: known.name.into(), shape: known.shape }).collect());
        }
        self.shape.iter().map(|text| shapes::parse(text)).collect()
    }

    /// The mask.
    pub fn mask(&self) -> Mask {
        mask(self.causal)
    }
}

/// The mask that `--causal` asks for.
pub fn mask(causal: bool) -> Mask {
    if causal { Mask::Causal } else { Mask::None }
}

/// The variants of a job.
#[derive(Args, Debug)]
pub struct VariantArguments {
    /// Variants, such as cpu, cpu:baseline or cpu:numbers=f32,exp=exact [default: what explain says runs]
    #[arg(long, visible_alias = "kernel", value_name = "VARIANT", num_args = 1..)]
    pub variant: Vec<String>,
}

impl VariantArguments {
    /// The chosen variants under the names that the user gave them, or the one that the plan picks.
    pub fn candidates(&self, problem: &Problem) -> Result<Vec<Candidate>> {
        if self.variant.is_empty() {
            let variant = Plan::new(problem)?.variant();
            return Ok(vec![Candidate { name: "cpu".into(), variant }]);
        }
        let parse = |text: &String| -> Result<Candidate> {
            let variant: Variant = text.parse()?;
            // Asked for by name: if this machine cannot run it, that is an answer, not a table of one gap.
            Plan::with_variant(problem, variant)?;
            Ok(Candidate { name: text.clone(), variant })
        };
        self.variant.iter().map(parse).collect()
    }
}
