//! The GPU architectures that kernels are compiled for.

use super::driver::Device;
use crate::error::{Error, Result};
use crate::suggest;
use std::fmt;
use std::str::FromStr;

/// A GPU architecture, as the compiler names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Arch {
    /// Ada: compute capability 8.9 (L4, L40, RTX 40).
    Sm89,
    /// Hopper: compute capability 9.0 (H100, H200).
    Sm90,
    /// Hopper with the instructions that no later architecture keeps: `wgmma`, and registers divided anew. It runs where
    /// [`Arch::Sm90`] does.
    Sm90a,
}

impl Arch {
    /// Every architecture.
    pub const ALL: &'static [Arch] = &[Arch::Sm89, Arch::Sm90, Arch::Sm90a];
    /// Their names, in the same order.
    pub const NAMES: &'static [&'static str] = &["sm_89", "sm_90", "sm_90a"];

    /// The architecture of a device of this compute capability, if kernels are compiled for it.
    pub fn of_capability(major: i32, minor: i32) -> Option<Arch> {
        match (major, minor) {
            (8, 9) => Some(Arch::Sm89),
            (9, 0) => Some(Arch::Sm90),
            _ => None,
        }
    }

    /// Whether blocks can be launched in clusters, which reach each other's shared memory.
    pub fn has_clusters(self) -> bool {
        matches!(self, Arch::Sm90 | Arch::Sm90a)
    }

    /// The most shared memory, static and dynamic together, that one block can have.
    pub fn max_shared_bytes(self) -> usize {
        match self {
            Arch::Sm89 => 99 * 1024,
            Arch::Sm90 | Arch::Sm90a => 227 * 1024,
        }
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(Self::NAMES[*self as usize])
    }
}

impl FromStr for Arch {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let position = Self::NAMES.iter().position(|name| *name == text);
        position.map(|index| Self::ALL[index]).ok_or_else(|| suggest::unknown("arch", text, Self::NAMES))
    }
}

impl Device {
    /// The architecture that kernels are compiled for on this device; an error where none are.
    pub fn arch(&self) -> Result<Arch> {
        supported_arch(&self.info().name, self.info().capability)
    }
}

fn supported_arch(device: &str, (major, minor): (i32, i32)) -> Result<Arch> {
    Arch::of_capability(major, minor).ok_or_else(|| {
        Error::unavailable(
            format!("CUDA on {device}"),
            format!(
                "its compute capability is {major}.{minor}, and kernels are compiled for {}",
                Arch::NAMES.join(", ")
            ),
            "use the cpu kernel, or another device",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_architectures_are_in_the_same_order() {
        assert_eq!(Arch::ALL.len(), Arch::NAMES.len());
        for (arch, name) in Arch::ALL.iter().zip(Arch::NAMES) {
            assert_eq!(arch.to_string(), *name);
            assert_eq!(name.parse::<Arch>().unwrap(), *arch);
        }
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_nearest() {
        let error = "sm_98".parse::<Arch>().unwrap_err().to_string();
        assert!(error.starts_with("arch: `sm_98` is unknown"), "{error}");
        // A virtual architecture has no machine code.
        assert!("compute_89".parse::<Arch>().is_err());
    }

    #[test]
    fn a_capability_without_kernels_has_no_architecture() {
        assert_eq!(Arch::of_capability(9, 0), Some(Arch::Sm90));
        assert_eq!(Arch::of_capability(7, 5), None);
        assert_eq!(supported_arch("NVIDIA H100", (9, 0)), Ok(Arch::Sm90));
        let error = supported_arch("NVIDIA A100", (8, 0)).unwrap_err().to_string();
        assert!(error.starts_with("CUDA on NVIDIA A100 is not available: its compute capability is 8.0"), "{error}");
    }
}
