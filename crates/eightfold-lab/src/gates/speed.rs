//! What is asked of a kernel's speed: the limits of the performance gate and of the profile gate, as data.

use crate::kernel::Kernel;
use eightfold::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What a stage must gain over the one before.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PerformancePolicy {
    /// 0.1 asks for a speed-up of 1.1.
    pub required_gain: f64,
    /// The same for stages of which more or less is asked, by `kernel:stage`.
    #[serde(default)]
    pub stages: BTreeMap<String, f64>,
}

/// What a profile must show.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProfilePolicy {
    /// The tensor cores of a kernel that is bound by computing are busy at least this much of the time, in percent.
    pub tensor_least_percent: f64,
    /// Device memory is then busy less than this, in percent.
    pub dram_below_percent: f64,
    /// Bank conflicts in shared memory for each instruction of a warp, at most.
    pub bank_conflicts_per_instruction: f64,
    /// Instructions that go to local memory, at most.
    pub local_instructions: f64,
}

impl PerformancePolicy {
    /// What a stage of this name must gain.
    pub fn required_of(&self, kernel: &str, stage: &str) -> f64 {
        self.stages.get(&format!("{kernel}:{stage}")).copied().unwrap_or(self.required_gain)
    }

    /// Every number by its key.
    pub(super) fn numbers(&self) -> impl Iterator<Item = (String, f64)> {
        let stages = self.stages.iter().map(|(stage, gain)| (format!("performance.stages.{stage}"), *gain));
        std::iter::once(("performance.required_gain".to_string(), self.required_gain)).chain(stages)
    }

    /// An error if a stage is named that there is not.
    pub(super) fn check(&self, name: &str) -> Result<()> {
        let known = |text: &&String| {
            let stage = text.split_once(':').and_then(|(kernel, stage)| {
                let kernel: Kernel = kernel.parse().ok()?;
                kernel.stages(64, eightfold::Mask::None).into_iter().find(|known| known.name == stage)
            });
            stage.is_some()
        };
        match self.stages.keys().find(|text| !known(text)) {
            None => Ok(()),
            Some(unknown) => {
                let rule = format!("{name}: performance.stages.{unknown} is no stage");
                Err(Error::invalid("gates", rule, "name one that `eightfold list stages` lists, such as ladder:mma-pv"))
            }
        }
    }
}

impl ProfilePolicy {
    /// The limits that may not be zero, by their keys.
    pub(super) fn positive(&self) -> [(String, f64); 3] {
        [
            ("profile.tensor_least_percent".into(), self.tensor_least_percent),
            ("profile.dram_below_percent".into(), self.dram_below_percent),
            ("profile.bank_conflicts_per_instruction".into(), self.bank_conflicts_per_instruction),
        ]
    }
}
