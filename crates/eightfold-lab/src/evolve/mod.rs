//! Evolve: a search of a kernel's knobs and sources that loses nothing and believes nothing without evidence.
//!
//! [`Space`] is what may be tried, [`traverse`] decides what is tried next, workers take each candidate through the
//! cascade ([`serve`] is their side, [`Workers`] the search's), a population keeps the best, the [`journal`] keeps
//! everything. [`Search`] is the loop around them.

mod budget;
mod cascade;
mod evolution;
mod fate;
mod fault;
mod genome;
mod insights;
pub mod journal;
mod mutator;
mod population;
mod process;
mod prompt;
mod protocol;
mod replay;
mod search;
mod space;
#[cfg(test)]
mod strategies;
pub mod traverse;
mod trial;
mod validate;
mod worker;
mod workers;

pub use budget::{Budget, Spent};
pub use evolution::{ELITE_FILE, EliteMember, Evolution};
pub use fate::{Depth, Evidence, Fate, Flaw};
pub use genome::Genome;
pub use insights::{Insight, Insights, Step};
pub use journal::{Contents, Header, JOURNAL_FILE, Journal, Target};
pub use mutator::{BUNDLE_VERSION, Call, Edit, Ledger, Mutator, Reply};
pub use population::{Member, Policy, Population};
pub use protocol::{Challenger, Files, Ready, Task, VERSION as PROTOCOL, Validated, Validation};
pub use replay::Recording;
pub use search::{Evaluator, Found, Search, failures};
pub use space::{Point, Restriction, Space};
pub use trial::{Asked, Information, Operator, Origin, Trial};
pub use worker::serve;
pub use workers::{Start, Workers};
