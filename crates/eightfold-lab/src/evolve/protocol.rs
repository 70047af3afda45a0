//! What a search and its workers say to each other: one JSON object a line, each request with one answer.

use super::fate::{Evidence, Fate};
use crate::compare::Comparison;
use crate::gates::Thresholds;
use crate::record::{Group, ProblemRecord};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The version of the protocol: both sides must speak the same.
pub const VERSION: u32 = 4;

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
    /// It begins a step of the candidate in hand; more follows, and the time limit begins anew.
    Begins(Step),
    /// What became of the candidate.
    Examined(Box<Examined>),
    /// How far the validation is; more follows.
    Progress(f64),
    /// How good they are.
    Validated(Box<Validated>),
    /// It cannot do what was asked, and no worker like it can.
    Refused(String),
}

/// A step of the way of a candidate that may take forever.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// The compiler has it.
    Compile,
    /// The gates and the clock have it.
    Run,
}

/// What the candidates compute.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// [`VERSION`].
    pub version: u32,
    /// The kernel family.
    pub kernel: String,
    /// What is searched for.
    pub problems: Vec<ProblemRecord>,
    /// The seed of the inputs.
    pub seed: u64,
    /// The accuracy mode that is searched; the library's default if none.
    pub accuracy: Option<String>,
    /// Whether the simulated device stands for a GPU, and counted work for time.
    pub on_simulator: bool,
    /// What all are timed against, for each shape; what the plan runs there if none.
    pub baselines: Vec<String>,
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
    /// What all are timed against, for each shape.
    pub baselines: Vec<String>,
}

/// Files by their names under `kernels/`.
pub type Files = BTreeMap<String, String>;

/// A candidate.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// Its place in the search.
    pub trial: usize,
    /// The variant.
    pub variant: String,
    /// The files to compile in place of the kernel's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Files>,
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
    /// Who they are.
    pub challengers: Vec<Challenger>,
    /// The seed of the fresh inputs and of the order of turns.
    pub seed: u64,
    /// Runs that each is timed with, at least.
    pub iterations: usize,
}

/// One that is to be validated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Challenger {
    /// The variant.
    pub variant: String,
    /// The files to compile in place of the kernel's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Files>,
}

/// How good they are.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Validated {
    /// For each shape the entries: the baseline, the baseline again where it was timed, the challengers.
    pub groups: Vec<Group>,
    /// For each shape a verdict for each challenger.
    pub comparisons: Vec<Vec<Comparison>>,
}
