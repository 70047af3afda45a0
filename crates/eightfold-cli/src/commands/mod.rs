//! One file per subcommand.

pub mod attend;
pub mod bench;
pub mod book;
mod build;
pub mod compare;
pub mod contestant;
pub mod doctor;
mod dump;
pub mod evolve;
pub mod explain;
pub mod ladder;
pub mod ledger;
mod measure;
pub mod profile;
pub mod recording;
pub mod records;
pub mod report;
pub mod run;
mod selection;
mod tools;
pub mod worker;
