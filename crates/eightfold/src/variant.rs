//! A kernel with its knobs set, as text: `cpu:numbers=i16,simd=avx2` or `cpu:int16-avx2`.

use crate::cpu;
use crate::cuda::{self, hopper, ladder};
use crate::error::{Error, Result};
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

    /// Its knobs, if it runs on a CUDA device.
    pub fn on_device(&self) -> Option<cuda::Config> {
        match *self {
            Variant::Cpu(_) => None,
            Variant::Ladder(config) => Some(cuda::Config::Ladder(config)),
            Variant::Hopper(config) => Some(cuda::Config::Hopper(config)),
        }
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
            _ => Err(crate::suggest::unknown("kernel", kernel, &["cpu", "ladder", "hopper"])),
        }
    }
}
