//! `eightfold run --arch`: what the compiler makes of the kernels, on a machine that need not have a GPU.

use super::recording::{RecordArguments, Recording};
use super::selection::VariantArguments;
use crate::Verdict;
use crate::output::build_table;
use crate::progress::Bar;
use clap::Args;
use eightfold::cuda::compile::Compiler;
use eightfold::cuda::{Arch, ladder};
use eightfold::{Error, Mask, Result};
use eightfold_lab::build::{self, Settings};
use eightfold_lab::compile::{self, Nvcc};
use eightfold_lab::gates::Outcome;
use eightfold_lab::kernel::Kernel;
use eightfold_lab::progress::Progress;
use eightfold_lab::record::Kind;

/// What may be asked of the compiler.
#[derive(Args, Debug)]
pub struct BuildArguments {
    /// Compile for these architectures (sm_89, sm_90; sm_90a for hopper), run nothing: the resource gate on head dims 64 and 128 under both
    /// masks, hopper's also with a last tile that is cut, and the proof that every knob changes the machine code
    #[arg(
        long,
        value_name = "ARCH",
        value_delimiter = ',',
        num_args = 1..,
        conflicts_with_all = ["shape", "causal", "families", "seeds", "inputs", "odd", "output"]
    )]
    arch: Vec<String>,
    /// Leave out the proof, which compiles some hundred kernels
    #[arg(long, requires = "arch")]
    no_toggle: bool,
    /// Compile with nvcc as well, and show both
    #[arg(long, requires = "arch")]
    nvcc: bool,
}

impl BuildArguments {
    /// Whether anything is to be compiled instead of run.
    pub fn asked(&self) -> bool {
        !self.arch.is_empty()
    }
}

/// Compiles every chosen variant for every chosen architecture, prints the tables, writes the record.
pub fn execute(
    arguments: &BuildArguments,
    variants: &VariantArguments,
    record: &RecordArguments,
    json: bool,
) -> Result<Verdict> {
    let archs: Vec<Arch> = arguments.arch.iter().map(|arch| arch.parse()).collect::<Result<_>>()?;
    let candidates = |(head_dim, mask, tail)| -> Result<Settings> {
        let named = variants.named(head_dim, mask)?.unwrap_or_else(|| Kernel::Ladder.stages(head_dim, mask));
        let configs = build::configs(&named)?;
        let others = build::configs(&variants.others(head_dim, mask)?)?;
        // A kernel that is not for an architecture is an answer to the command, not a table of gaps.
        for arch in &archs {
            configs.iter().try_for_each(|(_, config)| config.target(*arch).map(drop))?;
        }
        Ok(Settings { head_dim, mask, tail, variants: configs, others })
    };
    let kinds = [(Mask::None, false), (Mask::None, true), (Mask::Causal, false)];
    let kinds = ladder::HEAD_DIMS.iter().flat_map(|head_dim| kinds.map(|(mask, tail)| (*head_dim, mask, tail)));
    let mut settings: Vec<Settings> = kinds.map(candidates).collect::<Result<_>>()?;
    settings.retain(Settings::makes_kernels_of_its_own);
    let mut recording = Recording::open(Kind::Build, record)?.with_compiler();
    let ended = arguments.work(&settings, &archs, &mut recording);
    recording.finish(ended, json, build_table::render)
}

impl BuildArguments {
    fn work(&self, settings: &[Settings], archs: &[Arch], recording: &mut Recording) -> Result<()> {
        // Without a compiler nothing can be checked, which is an answer to the command and not to each kernel.
        let compiler = Compiler::find()?;
        let second = self.nvcc.then(Nvcc::find).transpose()?;
        let policy = recording.thresholds().resource.clone();
        let compile = |program: &_, arch| compile::compile(compiler, program, arch);
        let mut progress = Bar::new();
        let mut judged = false;
        for (index, arch) in archs.iter().enumerate() {
            let share = |part: f64| (index as f64 + part) / archs.len() as f64;
            progress.at(share(0.0), &format!("{arch}: compiling"));
            let mut groups = build::resources(settings, *arch, &compile, &policy);
            judged |=
                groups.iter().flat_map(|group| &group.entries).any(|entry| entry.gate.outcome != Outcome::Unavailable);
            if let Some(second) = &second {
                let compile = |program: &_, arch| second.compile(program, arch);
                let others = build::resources(settings, *arch, &compile, &policy);
                build::beside(&mut groups, others, second.version());
            }
            progress.at(share(0.2), &format!("{arch}: setting every knob to every other value"));
            let first = settings.first().filter(|_| !self.no_toggle);
            let toggle = first.map(|settings| build::toggles(settings, *arch, &compile));
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
