//! The bench on which every attention kernel earns its place: inputs, gates, timing, records.

pub mod bound;
pub mod build;
pub mod compare;
pub mod dump;
pub mod errors;
pub mod evolve;
pub mod examine;
pub mod gates;
pub mod inputs;
pub mod kernel;
pub mod ladder;
pub mod ledger;
pub mod measure;
pub mod memory;
pub mod numbers;
pub mod peers;
pub mod profile;
pub mod progress;
pub mod provenance;
pub mod quantizer;
pub mod record;
pub mod report;
pub mod shapes;
pub mod store;
pub mod tensors;
pub mod verdict;
