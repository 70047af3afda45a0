//! The CUDA backend on a device: a real one, or where there is none the simulated one, which takes a part of the cases.
//!
//! With `EIGHTFOLD_REQUIRE_DEVICE` set, no real device is a failure. Without a C++ compiler there is no simulated one either,
//! and the tests say so and pass, unless `EIGHTFOLD_REQUIRE_SIMULATOR` is set.

mod attention;
mod calls;
mod faults;
mod hopper;
mod launch;
mod paged;
#[path = "../paged/mod.rs"]
mod pages;
mod quantize;
mod sharing;
mod support;
mod tensors;
