//! `eightfold build`: what the compiler makes of the kernels, on a machine that need not have a GPU.

use super::recording::{RecordArguments, Recording, Show};
use super::selection::SourceArguments;
use crate::Verdict;
use crate::output::build_table;
use crate::progress::Bar;
use clap::Args;
use eightfold::cuda::Arch;
use eightfold::lab::compile::{Compiler, with_overlay};
use eightfold::lab::hopper;
use eightfold::{Error, Mask, Result};
use eightfold_lab::build::{self, Settings};
use eightfold_lab::compile::{self, Nvcc};
use eightfold_lab::examine::{Candidate, OTHER_SOURCE};
use eightfold_lab::gates::Outcome;
use eightfold_lab::kernel::{GPU_WORDS, Kernel, suited};
use eightfold_lab::progress::Progress;
use eightfold_lab::record::Kind;

/// The head dims that kernels are compiled for.
const HEAD_DIMS: [usize; 2] = [64, 128];

/// What may be asked of the compiler.
#[derive(Args, Debug)]
pub struct Arguments {
    /// Variants, such as ladder:unpack,tile_keys=32 or hopper:fast [default: every stage of ladder]
    #[arg(long, value_name = "VARIANT", num_args = 1.., conflicts_with = "kernel")]
    variant: Vec<String>,
    /// Every stage of a kernel: ladder, hopper, or gpu for hopper on sm_90a and ladder elsewhere
    #[arg(long, value_name = "KERNEL")]
    kernel: Option<String>,
    /// Architectures to compile for: sm_89, sm_90, or sm_90a for hopper [default: all that the kernel is for]
    #[arg(long, value_name = "ARCH", value_delimiter = ',', num_args = 1..)]
    arch: Vec<String>,
    #[command(flatten)]
    source: SourceArguments,
    /// Leave out the proof that every knob changes the machine code, which compiles some hundred kernels
    #[arg(long)]
    no_toggle: bool,
    /// Compile with nvcc as well, and show both
    #[arg(long)]
    nvcc: bool,
    #[command(flatten)]
    record: RecordArguments,
}

/// Compiles every chosen variant for every chosen architecture on head dims 64 and 128, under both masks, hopper's also with
/// a last tile that is cut; prints the tables, writes the record.
pub fn execute(arguments: &Arguments, json: bool) -> Result<Verdict> {
    let asked: Vec<Arch> = arguments.arch.iter().map(|arch| arch.parse()).collect::<Result<_>>()?;
    let kernel = arguments.kernel(&asked)?;
    let archs = if asked.is_empty() { arguments.archs(kernel)? } else { asked };
    let candidates = |(head_dim, mask, tail)| -> Result<Settings> {
        let configs = build::configs(&arguments.source.apply(arguments.candidates(kernel, head_dim, mask)?)?)?;
        let others = match arguments.variant.is_empty() {
            true => build::configs(&kernel.others(head_dim, mask))?,
            false => Vec::new(),
        };
        // A kernel that is not for an architecture is an answer to the command, not a table of gaps.
        for arch in &archs {
            configs.iter().try_for_each(|(_, config)| config.target(*arch).map(drop))?;
        }
        Ok(Settings { head_dim, mask, tail, variants: configs, others })
    };
    let kinds = [(Mask::None, false), (Mask::None, true), (Mask::Causal, false)];
    let kinds = HEAD_DIMS.iter().flat_map(|head_dim| kinds.map(|(mask, tail)| (*head_dim, mask, tail)));
    let mut settings: Vec<Settings> = kinds.map(candidates).collect::<Result<_>>()?;
    settings.retain(Settings::makes_kernels_of_its_own);
    let mut recording = Recording::open(Kind::Build, &arguments.record)?.with_compiler();
    let ended = arguments.work(&settings, &archs, &mut recording);
    recording.finish(ended, &Show::new(json, build_table::render))
}

impl Arguments {
    /// The kernel whose stages are compiled unless variants are named.
    fn kernel(&self, archs: &[Arch]) -> Result<Kernel> {
        match self.kernel.as_deref() {
            None => Ok(Kernel::LADDER),
            Some(word) if GPU_WORDS.contains(&word) => {
                let hopper = !archs.is_empty()
                    && archs.iter().all(|arch| hopper::target(*arch).is_ok_and(|found| found == *arch));
                Ok(if hopper { Kernel::HOPPER } else { Kernel::LADDER })
            }
            Some(name) => name.parse(),
        }
    }

    fn candidates(&self, kernel: Kernel, head_dim: usize, mask: Mask) -> Result<Vec<Candidate>> {
        if self.variant.is_empty() {
            return Ok(kernel.stages(head_dim, mask));
        }
        self.variant.iter().map(|text| Ok(Candidate::new(text, suited(text, head_dim, mask)?))).collect()
    }

    /// Every architecture that all that is compiled is for.
    fn archs(&self, kernel: Kernel) -> Result<Vec<Arch>> {
        let configs = build::configs(&self.candidates(kernel, HEAD_DIMS[0], Mask::None)?)?;
        let fits =
            |arch: &&Arch| configs.iter().all(|(_, config)| config.target(**arch).is_ok_and(|found| found == **arch));
        let archs: Vec<Arch> = Arch::ALL.iter().filter(fits).copied().collect();
        let none = || Error::invalid("variant", "no architecture is for all of them", "name variants of one kernel");
        if archs.is_empty() { Err(none()) } else { Ok(archs) }
    }

    fn work(&self, settings: &[Settings], archs: &[Arch], recording: &mut Recording) -> Result<()> {
        // Without a compiler nothing can be checked, which is an answer to the command and not to each kernel.
        let compiler = Compiler::find()?;
        let second = self.nvcc.then(Nvcc::find).transpose()?;
        let source = self.source.read()?;
        let policy = recording.thresholds().resource.clone();
        let compile = |program: &_, arch| with_overlay(source.as_ref(), || compile::compile(compiler, program, arch));
        let mut progress = Bar::new();
        let mut judged = false;
        for (index, arch) in archs.iter().enumerate() {
            let share = |part: f64| (index as f64 + part) / archs.len() as f64;
            progress.at(share(0.0), &format!("{arch}: compiling"));
            let mut groups = build::resources(settings, *arch, &compile, &policy);
            judged |=
                groups.iter().flat_map(|group| &group.entries).any(|entry| entry.gate.outcome != Outcome::Unavailable);
            if let Some(second) = &second {
                let compile = |program: &_, arch| with_overlay(source.as_ref(), || second.compile(program, arch));
                let others = build::resources(settings, *arch, &compile, &policy);
                build::beside(&mut groups, others, second.version());
            }
            progress.at(share(0.2), &format!("{arch}: setting every knob to every other value"));
            let first = settings.first().filter(|_| !self.no_toggle);
            let toggle = first.map(|settings| build::toggles(settings, *arch, &compile));
            if let Some(source) = &source {
                let entries = groups.iter_mut().flat_map(|group| &mut group.entries);
                entries.for_each(|entry| entry.implementation += &format!("{OTHER_SOURCE}{}", source.fingerprint()));
            }
            recording.keep_builds(groups, toggle)?;
        }
        if judged {
            return Ok(());
        }
        Err(Error::unavailable(
            "the resource gate",
            "no kernel could be compiled",
            "the reasons are above; choose another variant or architecture",
        ))
    }
}
