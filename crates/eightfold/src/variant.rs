//! A kernel with its knobs set, as text: `cpu:numbers=i16,simd=avx2` or `cpu:int16-avx2`.

use crate::cpu;
use crate::cuda::{self, REGISTRY, compile};
use crate::error::{Error, Result};
use crate::knobs::Knob;
use crate::problem::{Accuracy, Mask};
use crate::suggest;
use std::fmt;
use std::str::FromStr;

/// A kernel and one setting of its knobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Variant {
    /// The CPU kernel.
    #[doc(hidden)]
    Cpu(cpu::Config),
    /// One of the CUDA kernels.
    #[doc(hidden)]
    Cuda(cuda::family::Config),
}

impl Variant {
    /// The name of the kernel family.
    pub fn kernel(&self) -> &'static str {
        match self {
            Variant::Cpu(_) => CPU.name,
            Variant::Cuda(config) => config.kernel(),
        }
    }

    /// Its knobs, if it runs on the CPU.
    #[doc(hidden)]
    pub fn on_cpu(&self) -> Result<cpu::Config> {
        match self {
            Variant::Cpu(config) => Ok(*config),
            Variant::Cuda(config) => Err(Error::invalid(
                "variant",
                format!("the {} kernel is for tensors in device memory", config.kernel()),
                "use cuda::attention, or a variant of the cpu kernel",
            )),
        }
    }

    /// Its knobs, if it runs on a CUDA device.
    #[doc(hidden)]
    pub fn on_device(&self) -> Option<cuda::Config> {
        match *self {
            Variant::Cpu(_) => None,
            Variant::Cuda(config) => Some(config),
        }
    }

    /// How exact its results are; none where its kernel knows no accuracy modes.
    #[doc(hidden)]
    pub fn accuracy(&self) -> Option<Accuracy> {
        self.on_device()?.accuracy()
    }

    /// The file under `kernels/` that is compiled for it; none where the kernel is part of the library.
    #[doc(hidden)]
    pub fn file(&self) -> Option<&'static str> {
        self.on_device().map(|config| config.file())
    }

    /// The value of a knob as text; none if its kernel has no such knob.
    #[doc(hidden)]
    pub fn knob(&self, name: &str) -> Option<String> {
        match self {
            Variant::Cpu(config) => config.knob(name),
            Variant::Cuda(config) => config.knob(name),
        }
    }
}

impl From<cuda::Config> for Variant {
    fn from(config: cuda::Config) -> Self {
        Variant::Cuda(config)
    }
}

/// A kernel family as a search sees it: `name:knob=value,…` is a variant, or an error that names the rule it breaks.
#[derive(Debug, Clone, Copy)]
pub struct Family {
    /// Its name in the text of a variant.
    pub name: &'static str,
    /// Its knobs, in the order in which a variant prints them.
    pub knobs: &'static [Knob],
    /// The files under `kernels/` that are compiled at run time; none where the kernel is part of the library.
    pub files: &'static [&'static str],
    pub(crate) parse: fn(&str) -> Result<Variant>,
    pub(crate) stages: fn(usize, Mask) -> Vec<NamedVariant>,
}

/// A stage of a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NamedVariant {
    /// Its name, usable wherever a config is.
    pub name: &'static str,
    /// What changed since the stage before.
    pub what: &'static str,
    /// The kernel with its knobs.
    pub variant: Variant,
}

const CPU: Family = Family {
    name: "cpu",
    knobs: cpu::KNOBS,
    files: &[],
    parse: |text| text.parse().map(Variant::Cpu),
    stages: |_, _| {
        let named = |stage: &cpu::Stage| NamedVariant {
            name: stage.name,
            what: stage.what,
            variant: Variant::Cpu(stage.config),
        };
        cpu::STAGES.iter().map(named).collect()
    },
};

/// Every kernel family.
pub const FAMILIES: &[Family] = &{
    let mut families = [CPU; 1 + REGISTRY.len()];
    let mut index = 0;
    while index < REGISTRY.len() {
        families[1 + index] = REGISTRY[index].family;
        index += 1;
    }
    families
};

impl Family {
    /// The family of this name.
    pub fn find(name: &str) -> Result<&'static Family> {
        let names: Vec<_> = FAMILIES.iter().map(|family| family.name).collect();
        FAMILIES.iter().find(|family| family.name == name).ok_or_else(|| suggest::unknown("kernel", name, &names))
    }

    /// Its named configs, from the first to the best, as they are for heads of this many channels under this mask.
    pub fn stages(&self, head_dim: usize, mask: Mask) -> Vec<NamedVariant> {
        (self.stages)(head_dim, mask)
    }

    /// The knob of this name.
    pub fn knob(&self, name: &str) -> Result<&'static Knob> {
        let names: Vec<_> = self.knobs.iter().map(|knob| knob.name).collect();
        self.knobs.iter().find(|knob| knob.name == name).ok_or_else(|| suggest::unknown("knob", name, &names))
    }

    /// Whether its kernels are compiled at run time, for a GPU.
    pub fn on_gpu(&self) -> bool {
        !self.files.is_empty()
    }

    /// A hash of the kernel's sources, in hexadecimal: what was measured of others says nothing about these.
    pub fn source_hash(&self) -> String {
        match self.files {
            [] => env!("EIGHTFOLD_CPU_SOURCE").into(),
            files => compile::source_fingerprint(files),
        }
    }
}

/// `kernel:knob=value,…` with every knob; parses back to the same variant.
impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Variant::Cpu(config) => write!(f, "{}:{config}", CPU.name),
            Variant::Cuda(config) => write!(f, "{}:{config}", config.kernel()),
        }
    }
}

/// `kernel`, `kernel:stage`, or `kernel:knob=value,…` where unnamed knobs keep the kernel's defaults.
impl FromStr for Variant {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (kernel, config) = text.split_once(':').unwrap_or((text, ""));
        (Family::find(kernel)?.parse)(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_family_prints_the_knobs_that_it_lists() {
        for family in FAMILIES {
            let variant: Variant = family.name.parse().unwrap();
            let text = variant.to_string();
            let printed: Vec<_> = text.split([':', ',']).skip(1).map(|part| part.split('=').next().unwrap()).collect();
            assert_eq!(printed, family.knobs.iter().map(|knob| knob.name).collect::<Vec<_>>());
            assert_eq!(variant.kernel(), Family::find(family.name).unwrap().name);
            assert_eq!(family.source_hash().len(), 16);
            assert!(variant.file().is_none_or(|file| family.files.contains(&file)));
            assert_eq!(variant.on_device().is_some(), family.on_gpu());
        }
        let variant: Variant = "ladder:unpack".parse().unwrap();
        assert_eq!((variant.knob("pv").as_deref(), variant.knob("simd")), (Some("unpack"), None));
        assert_eq!(variant.accuracy(), None);
        let variant: Variant = "hopper:balanced".parse().unwrap();
        assert_eq!((variant.knob("linear").as_deref(), variant.accuracy()), (Some("3"), Some(Accuracy::Balanced)));
        assert!(FAMILIES[1].knob("tile_key").unwrap_err().to_string().contains("did you mean `tile_keys`"));
    }
}
