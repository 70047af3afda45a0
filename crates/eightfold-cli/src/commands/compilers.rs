//! The compilers of the GPU's kernels: which NVRTC, and nvcc beside it.

use eightfold::cuda::Arch;
use eightfold::cuda::compile::{Cubin, Program};
use eightfold::{Error, Result};
use std::path::Path;

/// Names the NVRTC to use, before anything looks for one.
pub fn choose_nvrtc(path: &Path) -> Result<()> {
    // To be wired: eightfold::cuda::compile::set_nvrtc(path).
    Err(Error::unavailable("--nvrtc", format!("{} cannot be chosen yet", path.display()), "set EIGHTFOLD_NVRTC to it"))
}

/// nvcc, as a second opinion.
pub struct Second;

impl Second {
    /// The nvcc of this machine.
    pub fn find() -> Result<Second> {
        // To be wired: eightfold::cuda::compile::Nvcc::find().
        Err(Error::unavailable("nvcc", "it cannot be used yet", "leave out --nvcc"))
    }

    /// Its version, such as `nvcc 13.0`.
    pub fn version(&self) -> &str {
        "nvcc"
    }

    /// Compiles.
    pub fn compile(&self, program: &Program, arch: Arch) -> Result<Cubin> {
        let _ = (program, arch);
        Err(Error::unavailable("nvcc", "it cannot be used yet", "leave out --nvcc"))
    }
}
