//! Kernels compiled without a device: what they take, and whether every knob reaches the machine code.

use crate::examine::Candidate;
use crate::gates::resource::{self, Compile, plain_specialisation};
use crate::gates::{Case, ToggleReport, resource_limits::ResourcePolicy, toggle};
use crate::record::{BuildEntry, BuildGroup};
use eightfold::cuda::Arch;
use eightfold::cuda::driver::Device;
use eightfold::lab::compile::{self, Compiler, Overlay, Program};
use eightfold::lab::{Config, Specialisation};
use eightfold::{Error, Mask, Result, Variant};
use rayon::prelude::*;
use std::collections::HashSet;
use std::sync::Arc;

/// The settings of candidates that are compiled; an error names the first that is not.
pub fn configs(candidates: &[Candidate]) -> Result<Vec<(String, Config)>> {
    let config = |candidate: &Candidate| match candidate.variant.on_device() {
        Some(config) => Ok((candidate.name.clone(), config)),
        None => Err(Error::invalid(
            "arch",
            format!("{} is not compiled for a GPU", candidate.name),
            "name the kernel `ladder` or `hopper` or one of their variants",
        )),
    };
    candidates.iter().map(config).collect()
}

/// What to compile for one kind of problem.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Channels per head.
    pub head_dim: usize,
    /// The mask.
    pub mask: Mask,
    /// Whether the keys end within a tile.
    pub tail: bool,
    /// The variants in question, by name.
    pub variants: Vec<(String, Config)>,
    /// Others of the same kernel, for knobs that none of those can turn.
    pub others: Vec<(String, Config)>,
}

impl Settings {
    fn specialisation(&self) -> Specialisation {
        let whole = plain_specialisation(self.head_dim, self.mask);
        Specialisation { key_len: whole.key_len + usize::from(self.tail), ..whole }
    }

    /// Whether a tail of keys, if there is one, makes other kernels than whole tiles do.
    pub fn makes_kernels_of_its_own(&self) -> bool {
        let whole = plain_specialisation(self.head_dim, self.mask);
        let differs = |(_, config): &(String, Config)| self.specialisation().program(*config) != whole.program(*config);
        !self.tail || self.variants.iter().chain(&self.others).any(differs)
    }
}

/// Every candidate through the resource gate on its kind of problem.
pub fn resources(settings: &[Settings], arch: Arch, compile: Compile, policy: &ResourcePolicy) -> Vec<BuildGroup> {
    settings
        .iter()
        .map(|settings| {
            let &Settings { head_dim, mask, tail, ref variants, ref others } = settings;
            let specialisation = settings.specialisation();
            let entries = variants.par_iter().chain(others).map(|(name, config)| {
                let built = resource::examine(config, &specialisation, arch, compile, policy);
                BuildEntry {
                    name: name.clone(),
                    implementation: Variant::from(*config).to_string(),
                    peer: false,
                    gate: built.gate,
                    build: built.build,
                }
            });
            let entries = entries.collect();
            BuildGroup { arch: arch.to_string(), head_dim, causal: mask == Mask::Causal, tail, entries }
        })
        .collect()
}

/// Puts each kernel of a second compiler below the first one's, under that compiler's name.
pub fn beside(groups: &mut [BuildGroup], second: Vec<BuildGroup>, compiler: &str) {
    for (group, second) in groups.iter_mut().zip(second) {
        let first = std::mem::take(&mut group.entries);
        for (first, second) in first.into_iter().zip(second.entries) {
            let name = format!("  {compiler}");
            group.entries.extend([first, BuildEntry { name, peer: true, ..second }]);
        }
    }
}

/// The toggle-effect proof, for one kind of problem: whether a knob has an effect does not depend on it, and each kind
/// more would compile hundreds of kernels.
pub fn toggles(settings: &Settings, arch: Arch, compile: Compile) -> ToggleReport {
    toggle::prove(&settings.variants, &settings.others, &settings.specialisation(), arch, compile)
}

/// Compiles in parallel, and so into the cache, what the candidates will need for these cases. Whatever goes wrong
/// shows again where the kernel is used.
pub fn ahead<'a>(candidates: &[Candidate], cases: impl IntoIterator<Item = &'a Case>, arch: Arch) {
    let cases: Vec<&Case> = cases.into_iter().collect();
    let Ok(compiler) = Compiler::find() else { return };
    programs(candidates, &cases, arch).par_iter().for_each(|(program, target, source)| {
        let _ = compile::with_overlay(source.as_ref(), || compiler.compile(program, *target));
    });
}

/// Compiles here and now what a candidate needs for a case; what it is compiled from may be its own.
pub fn now(candidate: &Candidate, case: &Case) -> Result<()> {
    let arch = Device::default()?.arch()?;
    for (program, target, source) in programs(std::slice::from_ref(candidate), &[case], arch) {
        compile::with_overlay(source.as_ref(), || Compiler::find()?.compile(&program, target))?;
    }
    Ok(())
}

type Job = (Program, Arch, Option<Arc<Overlay>>);

fn programs(candidates: &[Candidate], cases: &[&Case], arch: Arch) -> Vec<Job> {
    let mut seen = HashSet::new();
    let mut programs = Vec::new();
    for candidate in candidates {
        let Some(config) = candidate.variant.on_device() else { continue };
        let Ok(target) = config.target(arch) else { continue };
        for case in cases {
            if config.check_uploaded(&case.problem, case.operands(), arch).is_ok() {
                let program = case.specialisation().program(config);
                let source = candidate.source.clone();
                if seen.insert((program.clone(), source.as_ref().map(|source| source.fingerprint().to_owned()))) {
                    programs.push((program, target, source));
                }
            }
        }
    }
    programs
}
