//! How the space is traversed, in two layers: the guide decides what to look at, the proposal turns it into a candidate.
//!
//! The split is EvoEngineer's (arXiv 2510.03760), whose full variant looks at everything: the task, past solutions, and
//! insights. Proposals of knobs need no language model. One can be plugged in as a mutator: [`ask`] then decides what it is
//! asked to do, and the prompt says it.

mod ask;
mod guide;
mod propose;

pub use ask::ask;
pub use guide::{Guidance, decide};
pub use propose::propose;

use super::genome::Genome;
use super::insights::Insights;
use super::population::{Member, Policy};
use super::space::{Point, Space};
use super::trial::Trial;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use std::collections::HashSet;

/// What the guide may look at.
pub struct View<'a> {
    /// The space.
    pub space: &'a Space,
    /// The policy.
    pub policy: Policy,
    /// The trial that is to be proposed.
    pub trial: usize,
    /// What was tried before, as far as its outcome is known to this trial.
    pub history: &'a [Trial],
    /// What those were and what is under way.
    pub tried: &'a HashSet<Genome>,
    /// The points in the order of the trials.
    pub order: &'a [Point],
    /// Whom this trial's candidate may be made from, the best first. The baseline's speed-up is known before it is timed.
    pub parents: &'a [Member],
    /// What was learned.
    pub insights: &'a Insights,
}

/// The random numbers of one trial: the same for the same seed, whatever happened in between.
pub fn generator(seed: u64, trial: usize) -> ChaCha8Rng {
    let mut generator = ChaCha8Rng::seed_from_u64(seed);
    generator.set_stream(trial as u64);
    generator
}
