//! What a compiler made of a kernel: its resources, by the log and by the machine code, which must agree.

mod cubin;
mod disassembler;
mod in_flight;
mod log;
mod nvcc;

pub use disassembler::Disassembler;
pub use in_flight::early_touches;
pub use nvcc::Nvcc;

use eightfold::cuda::Arch;
use eightfold::lab::compile::{Compiler, Cubin, Program};
use eightfold::{Error, Result};
use rayon::prelude::*;

/// What the compiler reports about a kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Resources {
    /// Registers per thread.
    pub registers: u32,
    /// Barriers per block, where the compiler tells.
    pub barriers: Option<u32>,
    /// Shared memory that the source declares.
    pub static_shared_bytes: usize,
    /// Shared memory that the launch asks for.
    pub dynamic_shared_bytes: usize,
    /// Bytes written to local memory because registers ran out.
    pub spill_store_bytes: usize,
    /// Bytes read back.
    pub spill_load_bytes: usize,
    /// The stack frame, with those of the functions that are called.
    pub stack_bytes: usize,
    /// What the compiler warned of, one line each.
    pub warnings: Vec<String>,
}

/// A compiled kernel and what is known of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compiled {
    /// The kernel.
    pub cubin: Cubin,
    /// What it needs.
    pub resources: Resources,
    /// A hash of the machine code alone: equal hashes mean equal instructions.
    pub code_hash: u64,
}

/// Compiles, or takes the result from the cache.
pub fn compile(compiler: &Compiler, program: &Program, arch: Arch) -> Result<Compiled> {
    compiler.compile(program, arch).and_then(|cubin| inspect(cubin, program))
}

/// Compiles this text in place of the program's file; it may include the headers under `kernels/`.
pub fn compile_text(compiler: &Compiler, text: &str, program: &Program, arch: Arch) -> Result<Compiled> {
    compiler.compile_text(text, program, arch).and_then(|cubin| inspect(cubin, program))
}

/// Compiles many programs on all threads of the pool; the results are in the order of the jobs.
pub fn compile_all(compiler: &Compiler, jobs: &[(Program, Arch)]) -> Vec<Result<Compiled>> {
    jobs.par_iter().map(|(program, arch)| compile(compiler, program, *arch)).collect()
}

/// Puts together what the log and the file say; where they do not agree, neither is to be believed.
fn inspect(cubin: Cubin, program: &Program) -> Result<Compiled> {
    let Cubin { entry, arch, compiler, .. } = &cubin;
    let odd = |reason: String| {
        Error::invalid(
            format!("{} `{entry}` for {arch}", program.file),
            format!("{reason} ({compiler})"),
            "declare the kernel extern \"C\" under this very name; failing that, use the NVRTC that the kernels are \
             tested with",
        )
    };
    let inspection = cubin::inspect(&cubin.image, entry, *arch).map_err(odd)?;
    let report = log::report(&cubin.log, entry).map_err(odd)?;
    cubin::cross_check(&inspection, &report).map_err(odd)?;
    let resources = Resources {
        registers: report.registers,
        barriers: report.barriers,
        static_shared_bytes: report.static_shared_bytes,
        dynamic_shared_bytes: program.dynamic_shared_bytes,
        spill_store_bytes: report.spill_store_bytes,
        spill_load_bytes: report.spill_load_bytes,
        stack_bytes: report.stack_bytes,
        warnings: log::warnings(&cubin.log),
    };
    Ok(Compiled { resources, code_hash: inspection.code_hash, cubin })
}

/// FNV-1a, 64 bits: equal machine code. Not for secrets.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}
