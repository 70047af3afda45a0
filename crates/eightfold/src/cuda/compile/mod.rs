//! CUDA C++ → cubin, with what the compiler says about it.

use super::arch::Arch;
use crate::error::{Error, Result};
use std::path::PathBuf;
use std::sync::Arc;

/// One kernel to be compiled: which file, which function, which settings.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Program {
    /// The file under `kernels/` that holds the function, such as `ladder/attention.cu`.
    pub file: &'static str,
    /// The function, `extern "C"`.
    pub entry: &'static str,
    /// Macros that the source reads, in the order in which they are given to the compiler.
    pub defines: Vec<(&'static str, String)>,
    /// Shared memory that the launch will ask for on top of what the source declares.
    pub dynamic_shared_bytes: usize,
}

/// What the compiler reports about a kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Resources {
    /// Registers per thread.
    pub registers: u32,
    /// Shared memory that the source declares.
    pub static_shared_bytes: usize,
    /// Shared memory that the launch asks for.
    pub dynamic_shared_bytes: usize,
    /// Bytes written to local memory because registers ran out.
    pub spill_store_bytes: usize,
    /// Bytes read back.
    pub spill_load_bytes: usize,
    /// The stack frame.
    pub stack_bytes: usize,
    /// What the compiler warned of, one line each.
    pub warnings: Vec<String>,
}

/// A compiled kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cubin {
    /// The ELF file that the driver loads.
    pub image: Arc<[u8]>,
    /// The function.
    pub entry: String,
    /// What it was compiled for.
    pub arch: Arch,
    /// What it needs.
    pub resources: Resources,
    /// A hash of the machine code alone: equal hashes mean equal instructions.
    pub code_hash: u64,
    /// The compiler and its version.
    pub compiler: String,
    /// Whether it came from the cache.
    pub cached: bool,
}

/// One place where NVRTC was looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tried {
    /// Why it was looked at: an environment variable, the toolkit, a Python package, the project's folder.
    pub origin: String,
    /// The path.
    pub path: PathBuf,
    /// The version that was loaded from there, or why none was.
    pub found: std::result::Result<String, String>,
}

/// A loaded NVRTC with a cache of what it compiled.
#[derive(Debug)]
pub struct Compiler {
    version: String,
}

impl Compiler {
    /// The first NVRTC that can be found and loaded. The search runs once per process.
    pub fn find() -> Result<&'static Compiler> {
        Err(Error::unavailable("NVRTC", "not written yet", "wait"))
    }

    /// Every place that was looked at, in order, up to and including the one that is used.
    pub fn search() -> &'static [Tried] {
        &[]
    }

    /// The version, such as `NVRTC 13.0`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Compiles, or takes the result from the cache.
    pub fn compile(&self, program: &Program, arch: Arch) -> Result<Cubin> {
        let _ = (program, arch);
        Err(Error::unavailable("NVRTC", "not written yet", "wait"))
    }
}
