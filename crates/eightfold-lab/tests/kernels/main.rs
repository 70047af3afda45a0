//! Every CUDA kernel, compiled for every architecture that it is for: no device needed.
//!
//! Without NVRTC these tests say so and pass; with `EIGHTFOLD_REQUIRE_NVRTC` set they fail instead.

mod hopper;
mod ladder;
mod support;
