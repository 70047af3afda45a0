//! What a kernel may take of a multiprocessor, per architecture and head dim.

use eightfold::cuda::Arch;
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
    /// Registers per thread, where the target lists none for the head dim.
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
    /// Registers per thread for kernels of a head dim.
    #[serde(default)]
    pub registers: BTreeMap<HeadDim, u32>,
}

/// Channels per head as a key: JSON and TOML know text alone there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct HeadDim(pub usize);

impl From<HeadDim> for String {
    fn from(head_dim: HeadDim) -> String {
        head_dim.0.to_string()
    }
}

impl TryFrom<String> for HeadDim {
    type Error = String;

    fn try_from(text: String) -> std::result::Result<Self, String> {
        text.parse().map(HeadDim).map_err(|_| format!("`{text}` is not a head dim"))
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
    /// The limits of a kernel of this head dim on this architecture.
    pub fn limits(&self, arch: Arch, head_dim: usize) -> ResourceLimits {
        let target = self.targets.get(&arch.to_string());
        let registers = target.and_then(|target| target.registers.get(&HeadDim(head_dim)));
        ResourceLimits {
            registers: registers.copied().unwrap_or(self.default.registers),
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
    use crate::gates::Thresholds;
    use eightfold::cuda::Arch;

    #[test]
    fn a_target_overrides_the_default_for_the_head_dims_it_lists() {
        let mut policy = Thresholds::embedded().resource;
        policy.default.registers = 7;
        let target = policy.targets.get_mut("sm_90").unwrap();
        target.registers.clear();
        target.registers.insert(super::HeadDim(64), 99);
        assert_eq!(policy.limits(Arch::Sm90, 64).registers, 99);
        assert_eq!(policy.limits(Arch::Sm90, 128).registers, 7);
    }

    #[test]
    fn shared_memory_is_limited_by_the_architecture_alone() {
        let policy = Thresholds::embedded().resource;
        for arch in Arch::ALL {
            assert_eq!(policy.limits(*arch, 64).shared_bytes, arch.max_shared_bytes());
        }
    }
}
