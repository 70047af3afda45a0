//! Which variants, shapes and peers: text from the command line into values.

use clap::{Args, ValueEnum};
use eightfold::cuda::driver::Device;
use eightfold::{Error, Mask, OutputFormat, Problem, Result};
use eightfold_lab::choice;
use eightfold_lab::examine::{Candidate, missing_peer};
use eightfold_lab::kernel::{Kernel, suited};
use eightfold_lab::measure::{Cache, Manner, timed_output};
use eightfold_lab::peers::Torch;
use eightfold_lab::record::Entry;
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
        Mask::causal_if(self.causal)
    }
}

/// How exact a plan's result must be.
#[derive(Args, Debug)]
pub struct AccuracyArguments {
    /// fast, balanced, exact-exp or precise: how exact the kernel must be where it has a choice [default: fast]
    #[arg(long, value_name = "WORD")]
    accuracy: Option<String>,
}

impl AccuracyArguments {
    /// An error if it was given although it is for what the plan picks.
    pub fn refuse(&self, rule: &str) -> Result<()> {
        match &self.accuracy {
            Some(_) => Err(Error::invalid("accuracy", rule, "leave it out, or let the plan pick the variant")),
            None => Ok(()),
        }
    }

    /// The problem with the accuracy that was asked for.
    pub fn apply(&self, problem: Problem) -> Result<Problem> {
        Ok(match &self.accuracy {
            Some(accuracy) => problem.with_accuracy(accuracy.parse()?),
            None => problem,
        })
    }
}

/// The variants of a job.
#[derive(Args, Debug)]
pub struct VariantArguments {
    /// Variants, such as cpu:baseline, ladder:unpack,tile_keys=32 or hopper:fast [default: what explain says runs]
    #[arg(long, value_name = "VARIANT", num_args = 1.., conflicts_with = "kernel")]
    pub variant: Vec<String>,
    /// Every stage of a kernel: cpu, ladder or hopper
    #[arg(long, value_name = "KERNEL")]
    pub kernel: Option<String>,
    /// How exact what explain says runs must be: fast, balanced, exact-exp or precise, or several [default: fast]
    #[arg(long, value_name = "WORD", num_args = 1.., conflicts_with_all = ["variant", "kernel"])]
    accuracy: Vec<String>,
}

impl VariantArguments {
    /// The chosen variants under the names that the user gave them, the stages of a kernel, or the one variant that the
    /// plan picks.
    pub fn candidates(&self, problem: &Problem) -> Result<Vec<Candidate>> {
        if let Some(named) = self.named(problem.shape().head_dim, problem.mask())? {
            if self.kernel.is_none() {
                // Asked for by name: if this machine cannot run it, that is an answer, not a table of one gap.
                for candidate in &named {
                    choice::check(problem, &candidate.variant)?;
                }
            }
            if named.iter().all(Candidate::on_gpu) {
                // Without a device nothing at all would run.
                Device::default()?;
            }
            return Ok(named);
        }
        self.planned(problem)
    }

    /// The one variant that the plan picks, or one for each accuracy that was asked for.
    pub fn planned(&self, problem: &Problem) -> Result<Vec<Candidate>> {
        if self.accuracy.is_empty() {
            return Ok(vec![Candidate::planned(problem)?]);
        }
        let mut candidates: Vec<Candidate> = Vec::new();
        for accuracy in &self.accuracy {
            let planned = Candidate::planned(&problem.with_accuracy(accuracy.parse()?))?;
            // A kernel that has no choice is the same for every accuracy.
            if planned.accuracy.is_some() || candidates.iter().all(|other| other.variant != planned.variant) {
                candidates.push(Candidate { name: format!("{} {accuracy}", planned.name), ..planned });
            }
        }
        Ok(candidates)
    }

    /// What else than stages the chosen kernel is compiled as.
    pub fn others(&self, head_dim: usize, mask: Mask) -> Result<Vec<Candidate>> {
        self.kernel.as_ref().map_or(Ok(Vec::new()), |kernel| Ok(kernel.parse::<Kernel>()?.others(head_dim, mask)))
    }

    /// The chosen variants or stages for heads of this many channels under this mask; none if nothing was chosen.
    pub fn named(&self, head_dim: usize, mask: Mask) -> Result<Option<Vec<Candidate>>> {
        if let Some(kernel) = &self.kernel {
            return Ok(Some(kernel.parse::<Kernel>()?.stages(head_dim, mask)));
        }
        let parse = |text: &String| -> Result<Candidate> {
            let variant = suited(text, head_dim, mask)?;
            Ok(Candidate::new(text, variant))
        };
        let variants: Vec<_> = self.variant.iter().map(parse).collect::<Result<_>>()?;
        Ok(Some(variants).filter(|variants| !variants.is_empty()))
    }
}

/// A number format that results may be written as.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputArgument {
    F32,
    F16,
    Bf16,
}

impl From<OutputArgument> for OutputFormat {
    fn from(format: OutputArgument) -> OutputFormat {
        match format {
            OutputArgument::F32 => OutputFormat::F32,
            OutputArgument::F16 => OutputFormat::F16,
            OutputArgument::Bf16 => OutputFormat::Bf16,
        }
    }
}

/// What is written by whatever is timed.
#[derive(Args, Debug, Clone, Copy)]
pub struct TimedOutputArguments {
    /// What results are written as [default: bf16 on a GPU, as peers do, and f32 on a CPU]
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub output: Option<OutputArgument>,
}

impl TimedOutputArguments {
    /// What was asked for, or else what suits where it runs.
    pub fn format(self, on_gpu: bool) -> OutputFormat {
        self.output.map_or_else(|| timed_output(on_gpu), OutputFormat::from)
    }

    /// The problem as these candidates are timed on it.
    pub fn apply(self, problem: Problem, candidates: &[Candidate]) -> Problem {
        problem.with_output_format(self.format(candidates.iter().any(Candidate::on_gpu)))
    }
}

/// How times are taken.
#[derive(Args, Debug, Clone, Copy)]
pub struct MannerArguments {
    /// Where the inputs are when a run begins: in the caches, or, since those are emptied before, in memory
    #[arg(long, value_enum, default_value_t = CacheArgument::Hot)]
    pub cache: CacheArgument,
    /// Rest before every turn, so that short bursts meet a device that has cooled down
    #[arg(long)]
    pub burst: bool,
}

/// The state of the caches.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheArgument {
    /// As the run before left them
    Hot,
    /// Emptied before every run, outside of the timed region
    Cold,
}

impl From<CacheArgument> for Cache {
    fn from(cache: CacheArgument) -> Cache {
        match cache {
            CacheArgument::Hot => Cache::Hot,
            CacheArgument::Cold => Cache::Cold,
        }
    }
}

impl MannerArguments {
    /// As the lab knows it.
    pub fn manner(self) -> Manner {
        Manner { cache: self.cache.into(), burst: self.burst }
    }
}

/// Who is measured in the same run.
#[derive(Args, Debug)]
pub struct PeerArguments {
    /// Another implementation to measure in the same run
    #[arg(long, value_enum)]
    peer: Option<Peer>,
    /// The Python that has PyTorch
    #[arg(long, value_name = "PATH", default_value = super::doctor::PYTHON)]
    python: String,
}

/// Who is measured beside our kernels.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// PyTorch's scaled_dot_product_attention on dequantised inputs: on the CPU in f32, beside kernels on a GPU in bf16
    /// with each of its four backends
    Torch,
}

impl PeerArguments {
    /// The peer, or the entry that says why it could not be had.
    pub fn start(&self) -> (Option<Torch>, Option<Entry>) {
        match self.peer.map(|Peer::Torch| Torch::start(&self.python, rayon::current_num_threads())) {
            None => (None, None),
            Some(Ok(torch)) => (Some(torch), None),
            Some(Err(error)) => (None, Some(missing_peer("torch", error.to_string()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_timed_writes_what_its_peers_write_unless_told_otherwise() {
        let problem = Problem::new("1,8,512,64".parse().unwrap()).unwrap();
        let candidate = |text: &str| Candidate::new(text, text.parse().unwrap());
        let (cpu, gpu) = (candidate("cpu:avx2"), candidate("hopper:fast"));
        let written = |output, candidates: &[Candidate]| {
            TimedOutputArguments { output }.apply(problem, candidates).output_format().to_string()
        };
        assert_eq!(written(None, std::slice::from_ref(&cpu)), "f32");
        assert_eq!(written(None, std::slice::from_ref(&gpu)), "bf16");
        // One problem for all: they could not be compared else.
        assert_eq!(written(None, &[cpu, gpu.clone()]), "bf16");
        assert_eq!(written(Some(OutputArgument::F16), &[gpu]), "f16");
    }
}
