//! The real binary, from the outside.

mod attend;
mod bad_input;
mod compare;
mod gpu;
mod jobs;
mod machine_faults;
mod support;
mod words;
