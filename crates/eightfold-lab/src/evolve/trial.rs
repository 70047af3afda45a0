//! One candidate: where it came from, and what became of it.

use super::fate::{Evidence, Fate};
use serde::{Deserialize, Serialize};
use std::fmt;

/// One candidate of a search.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// Its place in the search, from 0.
    pub index: usize,
    /// The variant with every knob.
    pub variant: String,
    /// Where it came from.
    pub origin: Origin,
    /// What became of it.
    pub fate: Fate,
    /// What was seen of it.
    #[serde(default)]
    pub evidence: Evidence,
    /// Seconds that workers spent on its gates and clocks.
    pub device_s: f64,
    /// Seconds from the beginning of the search to its outcome.
    pub at_s: f64,
}

/// Where a candidate came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// What made it.
    pub operator: Operator,
    /// What the guide let the operator see.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub used: Vec<Information>,
    /// The trials that it was made from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parents: Vec<usize>,
    /// The insight that it follows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub insight: Option<String>,
    /// What a mutator was asked to do, if one made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<Asked>,
    /// The fingerprint of the source that it is compiled from, in place of the kernel's own: that of a mutator, or a
    /// parent's. The files are beside the journal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

impl Origin {
    /// Made by an operator, from nothing that is known yet.
    pub fn of(operator: Operator) -> Origin {
        Origin { operator, used: Vec::new(), parents: Vec::new(), insight: None, asked: None, source: None }
    }
}

/// What a mutator is asked to do: each has a prompt of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Asked {
    /// Change the shipped kernel.
    Initial,
    /// Change one that is known.
    Mutate,
    /// Make one of two.
    Cross,
    /// Say why one came out as it did, and change it accordingly.
    Explain,
}

/// What makes a candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operator {
    /// What the plan runs: where every search begins.
    Baseline,
    /// A new place in the space.
    Sample,
    /// Each knob from one of two parents.
    Crossover,
    /// A parent with few knobs changed.
    Mutation,
    /// A program of the user's.
    Mutator,
}

impl fmt::Display for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Operator::Baseline => "baseline",
            Operator::Sample => "sample",
            Operator::Crossover => "crossover",
            Operator::Mutation => "mutation",
            Operator::Mutator => "mutator",
        })
    }
}

/// What the guide may let an operator see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Information {
    /// What is known of the task before anything is tried.
    Context,
    /// What was tried and was good.
    Solutions,
    /// What was learned from outcomes.
    Insights,
    /// Where nothing was tried yet.
    Territory,
}
