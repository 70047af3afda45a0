//! The real binary, from the outside.

mod attend;
mod bad_input;
mod compare;
mod evolve;
mod gpu;
mod jobs;
mod ledger;
mod machine_faults;
mod report;
mod support;
mod words;
