//! `eightfold worker`: serves a search, one candidate after the other.

use crate::Verdict;
use clap::Args;
use eightfold::Result;
use eightfold_lab::evolve;

/// It is told everything by the search.
#[derive(Args, Debug)]
pub struct Arguments {}

/// Serves until the search goes away.
pub fn execute(_arguments: &Arguments) -> Result<Verdict> {
    evolve::serve()?;
    Ok(Verdict::Passed)
}
