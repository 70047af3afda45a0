//! The CUDA backend on a real device, and what is said without one.
//!
//! Without a device or NVRTC most of these tests say so and pass; with `EIGHTFOLD_REQUIRE_DEVICE` set they fail instead.

mod attention;
mod faults;
mod hopper;
mod quantize;
mod support;
mod tensors;
mod without;
