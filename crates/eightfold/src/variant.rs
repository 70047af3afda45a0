//! A kernel with its knobs set, as text: `cpu:numbers=i16,simd=avx2` or `cpu:int16-avx2`.

use crate::cpu;
use crate::cuda::{self, compile, hopper, ladder};
use crate::error::{Error, Result};
use crate::knobs::Knob;
use crate::problem::Accuracy;
use crate::suggest;
use std::fmt;
use std::str::FromStr;

/// A kernel and one setting of its knobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Variant {
    /// The CPU kernel.
    Cpu(cpu::Config),
    /// The staged CUDA kernel.
    Ladder(ladder::Config),
    /// The CUDA kernel for Hopper.
    Hopper(hopper::Config),
}

impl Variant {
    /// The name of the kernel family.
    pub fn kernel(&self) -> &'static str {
        match self {
            Variant::Cpu(_) => "cpu",
            Variant::Ladder(_) => "ladder",
            Variant::Hopper(_) => "hopper",
        }
    }

    /// Its knobs, if it runs on the CPU.
    pub fn on_cpu(&self) -> Result<cpu::Config> {
        match self {
            Variant::Cpu(config) => Ok(*config),
            other => Err(Error::invalid(
                "variant",
                format!("the {} kernel is for tensors in device memory", other.kernel()),
                "use cuda::attention, or a variant of the cpu kernel",
            )),
        }
    }

    /// Its knobs, if it runs on a CUDA device.
    pub fn on_device(&self) -> Option<cuda::Config> {
        match *self {
            Variant::Cpu(_) => None,
            Variant::Ladder(config) => Some(cuda::Config::Ladder(config)),
            Variant::Hopper(config) => Some(cuda::Config::Hopper(config)),
        }
    }

    /// The word for how exact its results are; none where its kernel knows no such words.
    pub fn accuracy(&self) -> Option<Accuracy> {
        match self {
            Variant::Hopper(config) => Some(config.accuracy()),
            Variant::Cpu(_) | Variant::Ladder(_) => None,
        }
    }

    /// The file under `kernels/` that is compiled for it; none where the kernel is part of the library.
    pub fn file(&self) -> Option<&'static str> {
        match self {
            Variant::Cpu(_) => None,
            Variant::Ladder(_) => Some(ladder::FILE),
            Variant::Hopper(config) => Some(config.file()),
        }
    }

    /// The value of a knob as text; none if its kernel has no such knob.
    pub fn knob(&self, name: &str) -> Option<String> {
        let text = self.to_string();
        let (_, knobs) = text.split_once(':')?;
        let mut pairs = knobs.split(',').filter_map(|part| part.split_once('='));
        pairs.find(|(knob, _)| *knob == name).map(|(_, value)| value.to_string())
    }
}

impl From<cuda::Config> for Variant {
    fn from(config: cuda::Config) -> Self {
        match config {
            cuda::Config::Ladder(config) => Variant::Ladder(config),
            cuda::Config::Hopper(config) => Variant::Hopper(config),
        }
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
}

/// Every kernel family.
pub const FAMILIES: &[Family] = &[
    Family { name: "cpu", knobs: cpu::KNOBS, files: &[] },
    Family { name: "ladder", knobs: ladder::KNOBS, files: &[ladder::FILE] },
    Family { name: "hopper", knobs: hopper::KNOBS, files: hopper::FILES },
];

impl Family {
    /// The family of this name.
    pub fn find(name: &str) -> Result<&'static Family> {
        let names: Vec<_> = FAMILIES.iter().map(|family| family.name).collect();
        FAMILIES.iter().find(|family| family.name == name).ok_or_else(|| suggest::unknown("kernel", name, &names))
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
            Variant::Cpu(config) => write!(f, "cpu:{config}"),
            Variant::Ladder(config) => write!(f, "ladder:{config}"),
            Variant::Hopper(config) => write!(f, "hopper:{config}"),
        }
    }
}

/// `kernel`, `kernel:stage`, or `kernel:knob=value,…` where unnamed knobs keep the kernel's defaults.
impl FromStr for Variant {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (kernel, config) = text.split_once(':').unwrap_or((text, ""));
        match kernel {
            "cpu" => Ok(Variant::Cpu(config.parse()?)),
            "ladder" => Ok(Variant::Ladder(config.parse()?)),
            "hopper" => Ok(Variant::Hopper(config.parse()?)),
            _ => Err(suggest::unknown("kernel", kernel, &["cpu", "ladder", "hopper"])),
        }
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
