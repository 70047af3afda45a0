//! The limits of the gates, as data: `gates.toml`.

use crate::inputs::Family;
use eightfold::{Error, Result, Variant, cpu::Numbers};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// Every limit and policy of the gates.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Thresholds {
    /// The limits of the correctness gate.
    pub correctness: CorrectnessLimits,
    /// How kernels are timed.
    pub timing: TimingPolicy,
}

/// How kernels are timed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimingPolicy {
    /// Runs before the first that counts.
    pub warmup_iterations: usize,
    /// Warm-up ends early after this long.
    pub warmup_max_seconds: f64,
    /// Runs that count.
    pub iterations: usize,
    /// Runs that count at the very least, however slow the kernel.
    pub min_iterations: usize,
    /// Beyond this long no further runs are counted.
    pub max_seconds_per_cell: f64,
}

/// The limits of the correctness gate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CorrectnessLimits {
    /// Limits of the kernel's own error that hold for every variant.
    pub kernel: KernelLimits,
    /// How much is compared with the float64 reference.
    pub reference: ReferencePolicy,
    /// The tolerance that each number path declares, by its name.
    pub tolerance: BTreeMap<String, Tolerance>,
    /// The limits of the end-to-end error, by input family; `user` for a user's own inputs.
    pub end_to_end: BTreeMap<String, EndToEndLimits>,
}

/// Limits of the kernel's own error that hold for every variant.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelLimits {
    /// The largest error.
    pub max_abs: f64,
    /// The mean magnitude of the errors.
    pub mean_abs: f64,
    /// The share of bad elements.
    pub bad_fraction: f64,
    /// An element is bad above `bad_atol + bad_rtol · |reference|`.
    pub bad_atol: f64,
    /// See `bad_atol`.
    pub bad_rtol: f64,
}

/// How much is compared with the float64 reference.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReferencePolicy {
    /// Problems of more arithmetic than this are compared on a sample of row blocks.
    pub max_gflop: f64,
    /// Rows per block of the sample.
    pub block_rows: usize,
}

/// The error that a number path declares for itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tolerance {
    /// The relative L2 norm of the kernel's own error, on families that are not named below.
    pub relative_l2: f64,
    /// The largest error of the log-sum-exp.
    pub lse_nats: f64,
    /// The relative L2 norm on these families.
    pub families: BTreeMap<Family, f64>,
}

impl Tolerance {
    /// The relative L2 norm allowed on a family, or on a user's own inputs.
    pub fn relative_l2(&self, family: Option<Family>) -> f64 {
        family.and_then(|family| self.families.get(&family)).copied().unwrap_or(self.relative_l2)
    }
}

/// The limits of the end-to-end error.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndToEndLimits {
    /// The largest relative L2 norm.
    pub relative_l2: f64,
    /// The smallest cosine.
    pub cosine: f64,
}

const EMBEDDED: &str = include_str!("../../gates.toml");

impl Thresholds {
    /// The limits that come with this program.
    pub fn embedded() -> Self {
        Thresholds::parse(EMBEDDED, "gates.toml").expect("the embedded gates.toml is tested")
    }

    /// The limits in a file of the user's.
    pub fn load(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(|error| {
            Error::invalid(
                "gates",
                format!("{} cannot be read: {error}", path.display()),
                "give the path of a TOML file, or leave it out for the embedded limits",
            )
        })?;
        Thresholds::parse(&text, &path.display().to_string())
    }

    /// The text of the embedded file, to start a file of one's own from.
    pub fn embedded_text() -> &'static str {
        EMBEDDED
    }

    fn parse(text: &str, name: &str) -> Result<Self> {
        let thresholds: Thresholds = toml::from_str(text).map_err(|error| {
            Error::invalid("gates", format!("{name}: {error}"), "start from a copy of gates.toml")
        })?;
        Ok(thresholds)
    }

    /// The tolerance that a variant declares.
    pub fn tolerance(&self, variant: &Variant) -> &Tolerance {
        let numbers = match variant {
            Variant::Cpu(config) => config.numbers,
            _ => Numbers::F32,
        };
        &self.correctness.tolerance[&numbers.to_string()]
    }

    /// The end-to-end limits of a family, or of a user's own inputs.
    pub fn end_to_end(&self, family: Option<Family>) -> EndToEndLimits {
        self.correctness.end_to_end[family.map_or(USER, Family::name)]
    }
}

/// The name under which the limits of a user's own inputs are listed.
const USER: &str = "user";
