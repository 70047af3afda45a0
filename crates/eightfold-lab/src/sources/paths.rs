// The files that decide what a kernel computes and how fast, relative to the library's folder. Also read by the build script.

/// What every CUDA kernel is launched with, and the device code that families share.
const SHARED: [&str; 10] = [
    "kernels/ptx",
    "kernels/attention",
    "src/cuda/argument.rs",
    "src/cuda/driver",
    "src/cuda/tensor",
    "src/cuda/kernel.rs",
    "src/cuda/loaded.rs",
    "src/cuda/specialisation.rs",
    "src/cuda/tile_list.rs",
    "src/cuda/workspace.rs",
];

/// Each kernel with its own files and folders, and whether it is launched as CUDA kernels are.
const KERNELS: [(&str, &[&str], bool); 6] = [
    ("cpu", &["src/cpu", "src/fp8"], false),
    ("ladder", &["kernels/ladder", "src/cuda/ladder"], true),
    ("hopper", &["kernels/hopper", "src/cuda/hopper"], true),
    ("quantize", &["kernels/quantize", "src/cuda/quantize"], true),
    ("paged", &["kernels/paged", "src/cuda/paged"], true),
    ("ragged", &["kernels/ragged", "kernels/hopper", "src/cuda/ragged", "src/cuda/hopper"], true),
];

/// The names of the kernels that have sources.
pub fn kernels() -> impl Iterator<Item = &'static str> {
    KERNELS.iter().map(|(name, ..)| *name)
}

/// The files and folders of a kernel; none of a name that is no kernel's.
pub fn of(kernel: &str) -> Vec<&'static str> {
    let Some((_, own, cuda)) = KERNELS.iter().find(|(name, ..)| *name == kernel) else { return Vec::new() };
    own.iter().copied().chain(SHARED.into_iter().filter(|_| *cuda)).collect()
}
