//! The gates: what a kernel must show before anything is said about its speed.

mod case;
pub mod correctness;
mod evidence;
pub(crate) mod fingerprint;
mod limits;
pub mod odd;
mod promises;
pub mod resource;
pub mod resource_limits;
mod rounding;
mod sample;
mod speed;
pub mod standard;
mod subject;
mod tally;
pub mod thresholds;
pub mod toggle;

use serde::{Deserialize, Serialize};
use std::fmt;

pub use case::Case;
pub use correctness::{CaseReport, CorrectnessReport, RunCounts, check, checks};
pub use limits::room_over_inputs;
pub use promises::promise;
pub use resource::{Build, Built};
pub use speed::{PerformancePolicy, ProfilePolicy};
pub use standard::{StandardCase, Thoroughness, prepare_all, quantizer, standard_cases, timing_cases};
pub use subject::{PlannedVariant, Subject};
pub(crate) use thresholds::is_int8;
pub use thresholds::{ReferencePolicy, Thresholds, TimingPolicy, Tolerance};
pub use toggle::{KnobProof, ToggleReport};

/// What a gate decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Every check holds.
    Pass,
    /// A check does not hold.
    Fail,
    /// The gate could not be applied here; the summary says what would make it available.
    Unavailable,
    /// The evidence does not decide.
    Inconclusive,
    /// The run itself was unsound, so that its result means nothing.
    Invalid,
    /// The evidence decides against what was hoped for: a result of the performance gate, and no fault of the run.
    Negative,
    /// The evidence decides that it is slower than what it was measured against: a result of the performance gate as well.
    Regression,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Outcome::Pass => "PASS",
            Outcome::Fail => "FAIL",
            Outcome::Unavailable => "UNAVAILABLE",
            Outcome::Inconclusive => "INCONCLUSIVE",
            Outcome::Invalid => "INVALID",
            Outcome::Negative => "VALID NEGATIVE",
            Outcome::Regression => "REGRESSION",
        })
    }
}

/// The gates, in the order in which a kernel meets them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gate {
    /// Registers, memory, spills.
    Resource,
    /// Every knob reaches the machine code.
    Toggle,
    /// The numbers are right.
    Correctness,
    /// It is fast enough.
    Performance,
    /// It is fast for the reason we think.
    Profile,
}

impl fmt::Display for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Gate::Resource => "resource",
            Gate::Toggle => "toggle",
            Gate::Correctness => "correctness",
            Gate::Performance => "performance",
            Gate::Profile => "profile",
        })
    }
}

/// One measured value against its limit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// What was measured; ends in `(at least)` where the limit is a lower one.
    pub name: String,
    /// The measured value.
    #[serde(deserialize_with = "crate::record::number_or_null")]
    pub value: f64,
    /// What it may be at most, or must be at least.
    pub limit: f64,
    /// Whether it holds.
    pub pass: bool,
}

impl Check {
    /// A value that may not be above the limit; NaN fails.
    pub fn at_most(name: impl Into<String>, value: f64, limit: f64) -> Self {
        Check { name: name.into(), value, limit, pass: value <= limit }
    }

    /// A value that may not be below the limit; NaN fails. The name is made to end in `(at least)`.
    pub fn at_least(name: impl Into<String>, value: f64, limit: f64) -> Self {
        let mut name = name.into();
        if !name.ends_with(AT_LEAST) {
            name = format!("{name} {AT_LEAST}");
        }
        Check { name, value, limit, pass: value >= limit }
    }

    /// How much of an upper limit the value takes; 0 where the limit is 0 or a lower one.
    pub fn share(&self) -> f64 {
        let has_share = self.limit > 0.0 && !self.name.ends_with(AT_LEAST);
        if has_share { self.value / self.limit } else { 0.0 }
    }
}

/// How the name of a check with a lower limit ends.
const AT_LEAST: &str = "(at least)";

/// What a gate decided, and on what evidence.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GateReport {
    /// The gate.
    pub gate: Gate,
    /// Its decision.
    pub outcome: Outcome,
    /// One line for a person: why it failed, or what would make it available.
    pub summary: String,
    /// The evidence.
    pub checks: Vec<Check>,
}

impl GateReport {
    /// The checks that do not hold.
    pub fn failed(&self) -> impl Iterator<Item = &Check> {
        self.checks.iter().filter(|check| !check.pass)
    }
}
