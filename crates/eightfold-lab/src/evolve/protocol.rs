//! What a search and its workers say to each other: one JSON object a line, each request with one answer.

use super::fate::{Evidence, Fate};
use crate::compare::Comparison;
use crate::gates::Thresholds;
use crate::record::Group;
use serde::{Deserialize, Serialize};

/// The version of the protocol: both sides must speak the same.
pub const VERSION: u32 = 2;

/// What a worker is asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ask {
    /// What the candidates compute; comes first.
    Task(Box<Task>),
    /// What becomes of this candidate?
    Examine(Box<Request>),
    /// How good are these, on fresh inputs and with many runs?
    Validate(Validation),
}

/// What a worker answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// It is ready for candidates.
    Ready(Ready),
    /// What became of the candidate.
    Examined(Box<Examined>),
    /// How far the validation is; more follows.
    Progress(f64),
    /// How good they are.
    Validated(Box<Validated>),
    /// It cannot do what was asked, and no worker like it can.
    Refused(String),
}

/// What the candidates compute.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// [`VERSION`].
    pub version: u32,
    /// The kernel family.
    pub kernel: String,
    /// The sizes, as text.
    pub shape: String,
    /// The causal mask.
    pub causal: bool,
    /// What results are written as.
    pub output_format: String,
    /// The seed of the inputs.
    pub seed: u64,
    /// What all are timed against; what the plan runs there if none.
    pub baseline: Option<String>,
    /// The limits and the timing policy.
    pub thresholds: Thresholds,
}

/// What a worker is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// What the candidates run on.
    pub device: String,
    /// The hash of the kernel's sources.
    pub source_hash: String,
    /// What all are timed against.
    pub baseline: String,
}

/// A candidate.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// Its place in the search.
    pub trial: usize,
    /// The variant.
    pub variant: String,
    /// The kernel source to use in place of the kernel's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The best speed-up so far.
    pub best: f64,
    /// The machine-code hashes that were timed already.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub known_code: Vec<String>,
    /// Candidates that will come soon, to be compiled together with this one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ahead: Vec<String>,
}

/// What became of a candidate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Examined {
    /// Its place in the search.
    pub trial: usize,
    /// What became of it.
    pub fate: Fate,
    /// What was seen.
    pub evidence: Evidence,
    /// Seconds that it took, without compiling.
    pub device_s: f64,
}

/// Those who are to be validated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Validation {
    /// The variants.
    pub variants: Vec<String>,
    /// The seed of the fresh inputs and of the order of turns.
    pub seed: u64,
    /// Runs that each is timed with, at least.
    pub iterations: usize,
}

/// How good they are.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Validated {
    /// The entries: the baseline, the baseline again, the variants.
    pub group: Group,
    /// A verdict for each variant.
    pub comparisons: Vec<Comparison>,
}
