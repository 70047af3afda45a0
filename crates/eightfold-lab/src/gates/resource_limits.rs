//! What a kernel may take of a multiprocessor, per architecture and by what its warps hold.

use eightfold::cuda::Arch;
use eightfold::lab::Config;
use eightfold::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The limits of the resource gate for every architecture.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResourcePolicy {
    /// What holds unless a target says otherwise.
    pub default: DefaultLimits,
    /// What each architecture has, and may say otherwise.
    pub targets: BTreeMap<String, TargetLimits>,
}

/// Limits that hold on every architecture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DefaultLimits {
    /// Registers per thread, where the target lists none for what a warp holds.
    pub registers: u32,
    /// Bytes written to local memory because registers ran out.
    pub spill_store_bytes: usize,
    /// Bytes read back.
    pub spill_load_bytes: usize,
    /// The stack frame.
    pub stack_bytes: usize,
    /// Lines in which the compiler warns.
    pub warnings: usize,
}

/// Limits of one architecture.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TargetLimits {
    /// Shared memory of one block, static and dynamic together.
    pub shared_bytes: usize,
    /// Registers per thread, by the sums that a warp holds: those of the next larger that is listed.
    #[serde(default)]
    pub registers: BTreeMap<WarpTile, u32>,
}

/// The sums that a warp holds, rows by channels, as a key such as `16x64`: JSON and TOML know text alone there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct WarpTile {
    /// Query rows.
    pub rows: usize,
    /// Channels per head.
    pub head_dim: usize,
}

impl WarpTile {
    /// What a warp of this config holds.
    pub fn of(config: &Config, head_dim: usize) -> Self {
        WarpTile { rows: config.rows_per_warp(), head_dim }
    }
}

impl From<WarpTile> for String {
    fn from(tile: WarpTile) -> String {
        format!("{}x{}", tile.rows, tile.head_dim)
    }
}

impl TryFrom<String> for WarpTile {
    type Error = String;

    fn try_from(text: String) -> std::result::Result<Self, String> {
        let sizes = text.split_once('x').and_then(|(rows, head_dim)| rows.parse().ok().zip(head_dim.parse().ok()));
        sizes
            .map(|(rows, head_dim)| WarpTile { rows, head_dim })
            .ok_or_else(|| format!("`{text}` is not rows x channels of a warp, such as 16x64"))
    }
}

/// The limits that one kernel meets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResourceLimits {
    /// Registers per thread.
    pub registers: u32,
    /// Shared memory of one block.
    pub shared_bytes: usize,
    /// What holds whatever the target.
    pub default: DefaultLimits,
}

impl ResourcePolicy {
    /// The limits of a kernel whose warps hold this much, on this architecture.
    pub fn limits(&self, arch: Arch, tile: WarpTile) -> ResourceLimits {
        let target = self.targets.get(&arch.to_string());
        let room = |listed: &WarpTile| listed.rows == tile.rows && listed.head_dim >= tile.head_dim;
        let registers = target.and_then(|target| target.registers.iter().find(|(listed, _)| room(listed)));
        ResourceLimits {
            registers: registers.map_or(self.default.registers, |(_, most)| *most),
            shared_bytes: target.map_or(arch.max_shared_bytes(), |target| target.shared_bytes),
            default: self.default,
        }
    }

    /// An error unless every architecture, and nothing else, has a target.
    pub(super) fn check(&self, name: &str) -> Result<()> {
        let invalid =
            |key: String, rule: &str, fix: &str| Error::invalid("gates", format!("{name}: {key} {rule}"), fix);
        if let Some(missing) = Arch::NAMES.iter().find(|arch| !self.targets.contains_key(**arch)) {
            let key = format!("resource.targets.{missing}");
            return Err(invalid(key, "is missing", "give every architecture its shared_bytes"));
        }
        if let Some(unknown) = self.targets.keys().find(|arch| !Arch::NAMES.contains(&arch.as_str())) {
            let fix = format!("name one of {}", Arch::NAMES.join(", "));
            return Err(invalid(format!("resource.targets.{unknown}"), "is no architecture that is known", &fix));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gates::Thresholds;

    const USUAL: WarpTile = WarpTile { rows: 16, head_dim: 64 };

    #[test]
    fn a_target_overrides_the_default_for_what_it_lists() {
        let mut policy = Thresholds::embedded().resource;
        policy.default.registers = 7;
        let target = policy.targets.get_mut("sm_90").unwrap();
        target.registers.clear();
        target.registers.insert(USUAL, 99);
        assert_eq!(policy.limits(Arch::Sm90, USUAL).registers, 99);
        assert_eq!(policy.limits(Arch::Sm90, WarpTile { head_dim: 24, ..USUAL }).registers, 99);
        assert_eq!(policy.limits(Arch::Sm90, WarpTile { head_dim: 72, ..USUAL }).registers, 7);
        assert_eq!(policy.limits(Arch::Sm90, WarpTile { rows: 32, ..USUAL }).registers, 7);
    }

    #[test]
    fn shared_memory_is_limited_by_the_architecture_alone() {
        let policy = Thresholds::embedded().resource;
        for arch in Arch::ALL {
            assert_eq!(policy.limits(*arch, USUAL).shared_bytes, arch.max_shared_bytes());
        }
    }

    #[test]
    fn what_a_warp_holds_reads_back_what_it_prints() {
        assert_eq!(WarpTile::try_from(String::from(USUAL)), Ok(USUAL));
        for bad in ["64", "16x", "x64", "16 x 64"] {
            assert!(WarpTile::try_from(bad.to_string()).is_err(), "{bad}");
        }
    }
}
