//! The kernels' own source on the simulated device: every stage, every mode and the quantisers without a finding, and
//! planted faults, each of which must be found.
//!
//! `EIGHTFOLD_SIMULATOR_RECORD` names a folder: then every variant runs under 100 schedules, every fault under 54, and
//! what came of it is written there. That takes an hour.

mod calibration;
mod clean;
mod dump;
mod faults;
mod instructions;
mod int8;
mod page_faults;
mod paged;
#[path = "../paged/mod.rs"]
mod pages;
mod problems;
mod quantizers;
mod support;
