//! The ledger: what each stage of a ladder was expected to bring and why, what could go wrong, what the hardware allows;
//! and what each optimisation that is a knob was expected to bring. Joined with records, what came of it.
//!
//! Predictions are data, in `ledger/cpu.toml`, `ledger/ladder.toml` and `ledger/hopper.toml`. Measurements are not: they come from records alone.

mod check;
mod evolution;
mod find;
mod optimisation;

pub use evolution::{Evolution, Floor, FloorTerm, Gain, Judgement, Measured, Row, StageVerdict, Standing};
pub use find::{Comparisons, Found, comparisons, kernel_of, load, newest, runs};
pub use optimisation::{Optimisation, OptimisationEntry, Tested};

use crate::kernel::Kernel;
use eightfold::{Error, Mask, Result};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The ledger of one ladder.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ledger {
    /// The machine that the rates are of: a GPU's name, or a CPU's.
    pub machine: String,
    /// The threads that the rates are of; none where threads of the host do not matter.
    pub threads: Option<usize>,
    /// What the machine does in a second, at most.
    pub rates: Vec<Rate>,
    /// One entry per stage, in the ladder's order.
    pub stages: Vec<StageEntry>,
    /// What is measured for itself, by a comparison without and with it.
    #[serde(default)]
    pub optimisations: Vec<OptimisationEntry>,
}

/// What a part of the machine does in a second, at most.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    /// The part.
    pub name: String,
    /// What is counted.
    pub unit: String,
    /// Their product is the rate per second.
    pub factors: Vec<f64>,
    /// What the factors are.
    pub from: String,
}

/// What is known about a stage without measuring it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StageEntry {
    /// The stage.
    pub name: String,
    /// The shape that it is predicted and measured for, without a mask.
    pub shape: String,
    /// What it should bring; none for the first, which follows nothing.
    pub prediction: Option<Prediction>,
    /// What could go wrong.
    pub risk: String,
    /// What to do then.
    pub fallback: String,
    /// The shape that the arithmetic is for.
    pub floor_shape: Option<String>,
    /// The part of the machine that is claimed to bound the stage: a claim needs arithmetic that says so.
    pub bound: Option<String>,
    /// The least that the stage must do, by part of the machine.
    #[serde(default)]
    pub arithmetic: Vec<Term>,
}

/// A speed-up, over the stage before or over the same without an optimisation, as a range.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prediction {
    /// The lower end.
    pub least: f64,
    /// The upper end.
    pub most: f64,
    /// Where it comes from.
    pub origin: Origin,
    /// What should move.
    pub moves: String,
    /// The forecast in its own words, or the arithmetic.
    pub because: String,
}

/// Where a prediction comes from, and so how much a hit is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// A forecast from before the kernel existed.
    Plan,
    /// Counted out from instructions and bytes, written down when first measurements were known.
    Arithmetic,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Origin::Plan => "plan",
            Origin::Arithmetic => "arithmetic",
        })
    }
}

/// Work for one part of the machine.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Term {
    /// The name of the [`Rate`].
    pub uses: String,
    /// Their product is the amount, in the rate's unit.
    pub factors: Vec<f64>,
    /// What the factors are.
    pub what: String,
}

/// The ledger of every kernel.
const LEDGERS: &[(&str, &str)] = &[
    ("cpu", include_str!("../../ledger/cpu.toml")),
    ("ladder", include_str!("../../ledger/ladder.toml")),
    ("hopper", include_str!("../../ledger/hopper.toml")),
];

impl Ledger {
    /// The ledger of a kernel's stages.
    pub fn of(kernel: Kernel) -> Self {
        let name = kernel.to_string();
        let text = LEDGERS.iter().find(|(of, _)| *of == name).map_or("", |(_, text)| text);
        Ledger::parse(kernel, text).expect("a test parses the embedded files")
    }

    /// A ledger from its text, if it keeps the rules.
    pub fn parse(kernel: Kernel, text: &str) -> Result<Self> {
        let ledger: Ledger = toml::from_str(text).map_err(|error: toml::de::Error| {
            let line = error.span().map_or(0, |span| text[..span.start].matches('\n').count()) + 1;
            let message = error.message().lines().collect::<Vec<_>>().join(", ");
            Error::invalid("ledger", format!("{kernel}.toml line {line}: {message}"), "compare with its neighbours")
        })?;
        check::check(&ledger, kernel)?;
        Ok(ledger)
    }

    fn rate(&self, name: &str) -> Option<&Rate> {
        self.rates.iter().find(|rate| rate.name == name)
    }

    /// How long the work takes at the machine's rate; none without such a rate.
    fn time_us(&self, term: &Term) -> Option<f64> {
        let per_second: f64 = self.rate(&term.uses)?.factors.iter().product();
        Some(term.factors.iter().product::<f64>() / per_second * 1e6)
    }
}

/// Names of a kernel's stages and what changed in each, in order.
fn stages(kernel: Kernel) -> Vec<(&'static str, &'static str)> {
    kernel.family().stages(64, Mask::None).iter().map(|stage| (stage.name, stage.what)).collect()
}
