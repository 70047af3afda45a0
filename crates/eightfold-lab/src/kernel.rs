//! The kernel families, each with its ladder of stages.

use crate::examine::Candidate;
use eightfold::cuda::driver::Device;
use eightfold::cuda::{hopper, ladder};
use eightfold::{Error, Mask, Result, Variant, cpu, suggest};
use std::fmt;
use std::str::FromStr;

/// A kernel family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kernel {
    /// The CPU kernel.
    Cpu,
    /// The staged CUDA kernel.
    Ladder,
    /// The CUDA kernel for Hopper, whose stages are accuracies.
    Hopper,
}

impl Kernel {
    /// Their names.
    pub const NAMES: &'static [&'static str] = &["cpu", "ladder", "hopper"];
    /// All of them, in the same order.
    pub const ALL: &'static [Kernel] = &[Kernel::Cpu, Kernel::Ladder, Kernel::Hopper];

    /// The kernel of this machine's best backend: CUDA where there is a device that kernels are written for.
    pub fn best() -> Kernel {
        if Device::default().is_ok() { Kernel::Ladder } else { Kernel::Cpu }
    }

    /// Whether it runs on a GPU.
    pub fn on_gpu(self) -> bool {
        self != Kernel::Cpu
    }

    /// Whether each stage is a step past the one before, and must have gained by it.
    pub fn climbs(self) -> bool {
        self != Kernel::Hopper
    }

    /// Every stage, from the baseline to the best, as it is for heads of this many channels under this mask.
    pub fn stages(self, head_dim: usize, mask: Mask) -> Vec<Candidate> {
        match self {
            Kernel::Cpu => {
                cpu::STAGES.iter().map(|stage| Candidate::new(stage.name, Variant::Cpu(stage.config))).collect()
            }
            Kernel::Ladder => ladder::STAGES
                .iter()
                .map(|stage| Candidate::new(stage.name, Variant::Ladder(stage.at(head_dim))))
                .collect(),
            Kernel::Hopper => {
                let variant = |stage: &hopper::Stage| Variant::Hopper(stage.at(head_dim, mask));
                hopper::STAGES.iter().map(|stage| Candidate::new(stage.name, variant(stage))).collect()
            }
        }
    }

    /// What the plan picks where no stage fits, by when it does; and what turns knobs that are the same in all of those.
    pub fn others(self, head_dim: usize, mask: Mask) -> Vec<Candidate> {
        match self {
            Kernel::Cpu | Kernel::Ladder => Vec::new(),
            Kernel::Hopper => { hopper::others(head_dim, mask).into_iter() }
                .map(|(name, config)| Candidate::new(name, Variant::Hopper(config)))
                .collect(),
        }
    }
}

/// The variant of this text. A stage of the hopper kernel by its name alone is as it is for heads of this many channels
/// under this mask, because that for others would not fit.
pub fn suited(text: &str, head_dim: usize, mask: Mask) -> Result<Variant> {
    let stage = text.strip_prefix("hopper:").and_then(|name| hopper::find_stage(name).ok());
    stage.map_or_else(|| text.parse(), |stage| Ok(Variant::Hopper(stage.at(head_dim, mask))))
}

/// Knobs that kernels have no more, with the value that is now the only one.
const RETIRED: &[&str] = &["row_sum=tensor", "rescale=lazy", "order=free", "store=alone"];

/// The variant that a record names, though it may name knobs that are gone. An error where one was set to what is gone.
pub fn recorded(text: &str) -> Result<Variant> {
    let (kernel, knobs) = text.split_once(':').unwrap_or((text, ""));
    let known = knobs.split(',').filter(|knob| kernel != "hopper" || !RETIRED.contains(knob));
    format!("{kernel}:{}", known.collect::<Vec<_>>().join(",")).parse()
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(Self::NAMES[*self as usize])
    }
}

impl FromStr for Kernel {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let position = Self::NAMES.iter().position(|name| *name == text);
        position.map(|index| Self::ALL[index]).ok_or_else(|| suggest::unknown("kernel", text, Self::NAMES))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_may_name_knobs_that_are_gone() {
        let fast: Variant = "hopper:fast".parse().unwrap();
        assert_eq!(recorded("hopper:fast,row_sum=tensor,rescale=lazy,order=free,store=alone"), Ok(fast));
        assert_eq!(recorded("cpu"), "cpu".parse());
        for gone in ["row_sum=adds", "rescale=always", "order=pingpong", "store=beside"] {
            let error = recorded(&format!("hopper:fast,{gone}")).unwrap_err().to_string();
            assert!(error.starts_with("knob: "), "{error}");
        }
    }

    #[test]
    fn a_kernel_reads_back_what_it_prints_and_its_stages_are_its_own() {
        for kernel in Kernel::ALL.iter().copied() {
            assert_eq!(kernel.to_string().parse(), Ok(kernel));
            assert!(kernel.stages(64, Mask::None).iter().all(|stage| stage.variant.kernel() == kernel.to_string()));
        }
    }
}
