//! What the compilers are told.

use super::Program;
use crate::cuda::arch::Arch;

/// What makes the assembler report registers, memory and spills. Kept apart: with it, NVRTC swallows some of the
/// assembler's own errors.
pub(super) const NVRTC_REPORT: [&str; 2] = ["--ptxas-options=-v", "--ptxas-options=--warn-on-spills"];

/// NVRTC's options, without [`NVRTC_REPORT`].
pub(super) fn nvrtc(program: &Program, arch: Arch) -> Vec<String> {
    // A real architecture: a virtual one, compute_89, yields an empty cubin.
    let mut options = vec![format!("--gpu-architecture={arch}"), "-std=c++17".into(), "-default-device".into()];
    options.extend(defines(program));
    options
}

/// The macros, as both compilers take them.
pub fn defines(program: &Program) -> impl Iterator<Item = String> {
    program.defines.iter().map(|(name, value)| format!("-D{name}={value}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_lines() {
        let program = Program {
            file: "ladder/attention.cu",
            entry: "ladder_attention",
            defines: vec![("HEAD_DIM", "64".into()), ("CAUSAL", "0".into())],
            dynamic_shared_bytes: 0,
        };
        assert_eq!(
            nvrtc(&program, Arch::Sm89).join(" "),
            "--gpu-architecture=sm_89 -std=c++17 -default-device -DHEAD_DIM=64 -DCAUSAL=0"
        );
    }
}
