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

/// nvcc's arguments, run in the folder that holds the sources.
pub(super) fn nvcc(program: &Program, arch: Arch, output: &str) -> Vec<String> {
    let mut arguments: Vec<String> = vec!["-cubin".into(), format!("-arch={arch}"), "-std=c++17".into()];
    arguments.extend(["-Xptxas=-v", "-Xptxas=--warn-on-spills", "-I."].map(String::from));
    arguments.extend(defines(program));
    arguments.extend(["-o".into(), output.into(), program.file.into()]);
    arguments
}

fn defines(program: &Program) -> impl Iterator<Item = String> {
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
        assert_eq!(
            nvcc(&program, Arch::Sm90, "out.cubin").join(" "),
            "-cubin -arch=sm_90 -std=c++17 -Xptxas=-v -Xptxas=--warn-on-spills -I. -DHEAD_DIM=64 -DCAUSAL=0 \
             -o out.cubin ladder/attention.cu"
        );
    }
}
