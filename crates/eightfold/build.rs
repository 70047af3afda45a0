//! Fingerprints the sources of the CPU kernel, which the binary does not carry: a search must know when they changed.

use std::fs;
use std::path::{Path, PathBuf};

/// The folders whose files make up the kernel.
const FOLDERS: &[&str] = &["src/cpu", "src/fp8"];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let mut files = Vec::new();
    for folder in FOLDERS {
        println!("cargo:rerun-if-changed={folder}");
        gather(Path::new(folder), &mut files);
    }
    files.sort();
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for file in &files {
        let name = file.to_string_lossy().replace('\\', "/").into_bytes();
        for byte in name.into_iter().chain(fs::read(file).unwrap_or_default()).filter(|byte| *byte != b'\r') {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    println!("cargo:rustc-env=EIGHTFOLD_CPU_SOURCE={hash:016x}");
}

fn gather(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() { gather(&path, files) } else { files.push(path) }
    }
}
