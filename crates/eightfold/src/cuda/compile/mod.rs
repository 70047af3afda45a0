//! CUDA C++ → cubin by NVRTC, at run time.
//!
//! NVRTC is taken where the program says ([`set_nvrtc`], [`look_in`]), or else is the one that the process has loaded
//! already (PyTorch's, say), that of a toolkit in its usual folder, or what the system's loader finds by name. No environment variable
//! and no working folder is looked at. [`FETCH_COMMAND`] gets one where there is none.
//!
//! What is compiled is kept in memory, and on disk in the folder that [`keep_in`] names, if it is called: nothing is written
//! otherwise.

mod cache;
pub(crate) mod choice;
pub(crate) mod compiler;
mod fingerprint;
mod nvrtc;
mod options;
mod overlay;
mod search;
mod source;

pub use choice::{FETCH_COMMAND, keep_in, look_in, set_nvrtc};
pub(crate) use compiler::{Compiler, Program, source_fingerprint};
pub(crate) use overlay::replacement;
