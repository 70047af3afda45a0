//! Notes the compiler, the commit, and the fingerprints of the kernels' sources that this build comes from.

#[path = "src/sources/paths.rs"]
mod paths;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The library, in a checkout.
const LIBRARY: &str = "../eightfold";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=src/sources/paths.rs");
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    if let Some(version) = output(&rustc, &["--version"]) {
        println!("cargo:rustc-env=EIGHTFOLD_RUSTC={version}");
    }
    // Only this project's own checkout counts: an unpacked crate may lie inside somebody else's repository.
    let tracked = output("git", &["ls-files", "--error-unmatch", "build.rs"]).is_some();
    note_sources();
    let Some(commit) = output("git", &["rev-parse", "HEAD"]).filter(|_| tracked) else { return };
    println!("cargo:rustc-env=EIGHTFOLD_COMMIT={commit}");
    for file in ["HEAD", "logs/HEAD"] {
        if let Some(path) = output("git", &["rev-parse", "--git-path", file]).filter(|path| Path::new(path).exists()) {
            println!("cargo:rerun-if-changed={path}");
        }
    }
}

/// The fingerprint of each kernel's sources, where they are beside this crate.
fn note_sources() {
    let library = Path::new(LIBRARY);
    if !library.join("Cargo.toml").exists() {
        return;
    }
    let mut all = Vec::new();
    for kernel in paths::kernels() {
        let mut files = Vec::new();
        for path in paths::of(kernel).into_iter().map(|path| library.join(path)).filter(|path| path.exists()) {
            println!("cargo:rerun-if-changed={}", path.display());
            gather(&path, &mut files);
        }
        files.sort();
        all.push(format!("{kernel}={:016x}", fingerprint(&files)));
    }
    println!("cargo:rustc-env=EIGHTFOLD_SOURCES={}", all.join(";"));
}

fn gather(path: &Path, files: &mut Vec<PathBuf>) {
    if path.is_file() && path.file_name().is_some_and(|name| name != "tests.rs") {
        files.push(path.into());
    }
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        gather(&entry.path(), files);
    }
}

/// FNV-1a, which is the same everywhere and always, over the names of the files and the lines that count.
fn fingerprint(files: &[PathBuf]) -> u64 {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    let mut add = |text: &str| {
        for byte in text.bytes().chain([b'\n']) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    for file in files {
        let text = fs::read_to_string(file).unwrap_or_default();
        add(&file.to_string_lossy().replace('\\', "/"));
        let lines: Vec<&str> =
            text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//")).collect();
        // Unit tests are the last item of a file.
        let tests = lines.windows(2).position(|pair| pair[0] == "#[cfg(test)]" && pair[1].starts_with("mod tests"));
        lines[..tests.unwrap_or(lines.len())].iter().for_each(|line| add(line));
    }
    hash
}

fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_string())
}
