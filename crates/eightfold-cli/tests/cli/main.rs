//! The real binary, from the outside.

mod attend;
mod bad_input;
mod commands;
mod compare;
mod evolve;
mod gate;
mod gpu;
mod jobs;
mod killed;
mod ledger;
mod machine_faults;
mod profile;
mod records;
mod report;
mod simulator;
mod support;
mod words;
