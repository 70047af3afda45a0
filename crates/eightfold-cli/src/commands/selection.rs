//! Which variants, shapes and peers: text from the command line into values.

use clap::{Args, ValueEnum};
use eightfold::cuda::driver::Device;
use eightfold::lab::compile::Overlay;
use eightfold::{Error, Fp8Format, Mask, OutputFormat, Problem, Result, Variant};
use eightfold_lab::choice;
use eightfold_lab::examine::{Candidate, missing_peer};
use eightfold_lab::kernel::{self, suited};
use eightfold_lab::measure::{Cache, Manner, timed_output};
use eightfold_lab::overlay;
use eightfold_lab::peers::Torch;
use eightfold_lab::record::Entry;
use eightfold_lab::shapes::{self, NamedShape};
use eightfold_lab::tensors::UserTensors;
use std::path::PathBuf;
use std::sync::Arc;

/// The shapes and the mask of a job on generated inputs.
#[derive(Args, Debug)]
pub struct ShapeArguments {
    /// Named shapes, or B,H,S,D or B,Hq,Hkv,Sq,Skv,D; for run and bench D/Dv where V has other channels than Q and K
    /// [default: small mission mission_b2 long]
    #[arg(long, value_name = "SHAPE", num_args = 1..)]
    pub shape: Vec<String>,
    /// Causal mask: the last query sees every key
    #[arg(long)]
    pub causal: bool,
}

/// What else a problem may have.
#[derive(Args, Debug, Clone)]
pub struct ScoringArguments {
    /// Sliding window: keys to the left and to the right of a query's own that it sees, -1 for all of a side
    #[arg(long, value_name = "L,R", allow_hyphen_values = true)]
    window: Option<String>,
    /// Bound of the scores: each becomes X · tanh(score / X)
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    softcap: Option<f32>,
    /// Attention sinks, one for each query head: random ones, or with inputs of your own the tensor `sinks`
    #[arg(long)]
    sinks: bool,
    /// Format that Q and K are quantised to, and V where it is FP8; beside int8, V is in e4m3 [default: e4m3, or that of your
    /// own tensors]
    #[arg(long, value_enum, value_name = "FORMAT")]
    input_format: Option<InputArgument>,
}

/// A number format that inputs may be quantised to.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum InputArgument {
    E4m3,
    E5m2,
    Int8,
}

impl From<InputArgument> for Fp8Format {
    fn from(format: InputArgument) -> Fp8Format {
        match format {
            InputArgument::E4m3 => Fp8Format::E4m3,
            InputArgument::E5m2 => Fp8Format::E5m2,
            InputArgument::Int8 => Fp8Format::Int8,
        }
    }
}

impl ScoringArguments {
    /// The problem with what was asked for.
    pub fn apply(&self, problem: Problem) -> Result<Problem> {
        let mut problem = problem;
        if let Some(window) = &self.window {
            problem = problem.with_window(window.parse()?);
        }
        if let Some(softcap) = self.softcap {
            problem = problem.with_softcap(softcap)?;
        }
        if let Some(format) = self.input_format {
            problem = problem.with_input_format(format.into());
        }
        Ok(if self.sinks { problem.with_sinks() } else { problem })
    }

    /// The same for a problem of the user's own tensors, whose file says whether there are sinks.
    pub fn apply_to_own(&self, problem: Problem, tensors: &UserTensors) -> Result<Problem> {
        let has_sinks = tensors.has_sinks();
        if tensors.has_codes() && self.input_format.is_some_and(|format| Fp8Format::from(format) != tensors.format()) {
            let rule = format!("the file holds codes in {}", tensors.format());
            return Err(Error::invalid("input-format", rule, "leave it out, or give values"));
        }
        if self.sinks && !has_sinks {
            let fix = "store one logit for each head of q in F32";
            return Err(Error::invalid("sinks", "the file holds no tensor of this name", fix));
        }
        Ok(if has_sinks { self.apply(problem)?.with_sinks() } else { self.apply(problem)? })
    }
}

impl ShapeArguments {
    /// The problems of the chosen shapes, with what people call those.
    pub fn problems(&self, scoring: &ScoringArguments) -> Result<Vec<(String, Problem)>> {
        let named = match self.shape.is_empty() {
            true => shapes::registry().iter().map(|known| shapes::problem(known.name)).collect::<Result<Vec<_>>>()?,
            false => self.shape.iter().map(|text| shapes::problem(text)).collect::<Result<_>>()?,
        };
        let apply = |(name, problem): (String, Problem)| Ok((name, scoring.apply(problem.with_mask(self.mask()))?));
        named.into_iter().map(apply).collect()
    }

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

/// Sources of a kernel that is being changed, for any command that takes a variant.
#[derive(Args, Debug, Clone, Default)]
pub struct SourceArguments {
    /// Compile the kernel from the files in this folder where they differ from its own, such as a search's
    /// sources/HASH or a copy of kernels/ with changes
    #[arg(long, value_name = "DIR")]
    pub source: Option<PathBuf>,
}

impl SourceArguments {
    /// The files; none where the kernel's own are meant.
    pub fn read(&self) -> Result<Option<Arc<Overlay>>> {
        self.source.as_deref().map(|folder| overlay::read(folder).map(Arc::new)).transpose()
    }

    /// The candidates compiled from these files, each marked by that in records.
    pub fn apply(&self, candidates: Vec<Candidate>) -> Result<Vec<Candidate>> {
        let Some(source) = self.read()? else { return Ok(candidates) };
        candidates.into_iter().map(|candidate| candidate.with_source(Some(source.clone()))).collect()
    }
}

/// How exact a plan's result must be.
#[derive(Args, Debug)]
pub struct AccuracyArguments {
    /// Accuracy mode: fast, balanced, exact-exp or precise. For kernels that have a choice [default: fast]
    #[arg(long, value_name = "MODE")]
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

    /// The mode, if one was asked for.
    pub fn named(&self) -> Option<&str> {
        self.accuracy.as_deref()
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
    #[command(flatten)]
    named: NamedArguments,
    /// Accuracy modes in which to run what explain says runs: fast, balanced, exact-exp, precise [default: fast]
    #[arg(long, value_name = "MODE", num_args = 1.., conflicts_with_all = ["variant", "kernel"])]
    accuracy: Vec<String>,
}

/// Where CPU variants find K and V.
#[derive(Args, Debug)]
pub struct PageArguments {
    /// Beside each variant for the CPU the same that reads K and V from pages of so many tokens, in random order
    #[arg(long, value_name = "TOKENS", num_args = 1..)]
    pages: Vec<usize>,
}

impl PageArguments {
    /// The candidates, and those that read from pages behind them.
    pub fn beside(&self, mut candidates: Vec<Candidate>) -> Result<Vec<Candidate>> {
        let on_cpu: Vec<Candidate> = candidates.iter().filter(|candidate| !candidate.on_gpu()).cloned().collect();
        if on_cpu.is_empty() && !self.pages.is_empty() {
            let fix = "name a variant for the CPU, such as cpu:queue";
            return Err(Error::invalid("pages", "no kernel for GPUs reads pages yet", fix));
        }
        for tokens in &self.pages {
            candidates.extend(on_cpu.iter().map(|candidate| candidate.in_pages(*tokens)));
        }
        Ok(candidates)
    }
}

/// Variants by name, or all stages of a kernel.
#[derive(Args, Debug)]
pub struct NamedArguments {
    /// Variants, such as cpu:baseline, ladder:unpack,tile_keys=32, hopper:fast, or gpu for what runs on this machine's GPU
    /// [default: what explain says runs]
    #[arg(long, value_name = "VARIANT", num_args = 1.., conflicts_with = "kernel")]
    pub variant: Vec<String>,
    /// Every stage of a kernel: cpu, ladder, hopper, or gpu for the best on this machine's GPU
    #[arg(long, value_name = "KERNEL")]
    pub kernel: Option<String>,
}

impl NamedArguments {
    /// The chosen variants under the names that the user gave them, or the stages of the chosen kernel; none if nothing was
    /// chosen.
    pub fn candidates(&self, problem: &Problem) -> Result<Option<Vec<Candidate>>> {
        if let Some(kernel) = &self.kernel {
            return Ok(Some(kernel::find(kernel)?.stages(problem.shape().head_dim, problem.mask())));
        }
        let parse = |text: &String| Ok(Candidate::new(text, variant(text, problem)?));
        let variants: Vec<_> = self.variant.iter().map(parse).collect::<Result<_>>()?;
        Ok(Some(variants).filter(|variants| !variants.is_empty()))
    }
}

/// The variant of this text, as it suits a problem; by `gpu` or `cuda` what runs the problem on this machine's GPU.
pub fn variant(text: &str, problem: &Problem) -> Result<Variant> {
    match kernel::GPU_WORDS.contains(&text) {
        true => kernel::planned_on_gpu(problem),
        false => suited(text, problem.shape().head_dim, problem.mask()),
    }
}

impl VariantArguments {
    /// The chosen variants under the names that the user gave them, the stages of a kernel, or the one variant that the
    /// plan picks.
    pub fn candidates(&self, problem: &Problem) -> Result<Vec<Candidate>> {
        if let Some(named) = self.named.candidates(problem)? {
            if self.named.kernel.is_none() {
                // Asked for by name: if this machine cannot run it, that is an answer, not a table of one gap.
                for candidate in &named {
                    choice::check_named(problem, &candidate.variant)?;
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

    /// The chosen variants or stages; none if nothing was chosen.
    pub fn named(&self, problem: &Problem) -> Result<Option<Vec<Candidate>>> {
        self.named.candidates(problem)
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
    /// Number format of the output [default: bf16 on a GPU, as peers write, and f32 on a CPU]
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub dtype: Option<OutputArgument>,
}

impl TimedOutputArguments {
    /// What was asked for, or else what suits where it runs.
    pub fn format(self, on_gpu: bool) -> OutputFormat {
        self.dtype.map_or_else(|| timed_output(on_gpu), OutputFormat::from)
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
    /// PyTorch's scaled_dot_product_attention on dequantised inputs: on the CPU in f32, bf16 and f16, beside kernels on a
    /// GPU in bf16 with each of its four backends
    Torch,
}

impl PeerArguments {
    /// Whether one was asked for.
    pub fn asked(&self) -> bool {
        self.peer.is_some()
    }

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
        let written = |dtype, candidates: &[Candidate]| {
            TimedOutputArguments { dtype }.apply(problem, candidates).output_format().to_string()
        };
        assert_eq!(written(None, std::slice::from_ref(&cpu)), "f32");
        assert_eq!(written(None, std::slice::from_ref(&gpu)), "bf16");
        // One problem for all: they could not be compared else.
        assert_eq!(written(None, &[cpu, gpu.clone()]), "bf16");
        assert_eq!(written(Some(OutputArgument::F16), &[gpu]), "f16");
    }
}
