//! Notes the compiler and the commit that this build comes from.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    if let Some(version) = output(&rustc, &["--version"]) {
        println!("cargo:rustc-env=EIGHTFOLD_RUSTC={version}");
    }
    // Only this project's own checkout counts: an unpacked crate may lie inside somebody else's repository.
    let tracked = output("git", &["ls-files", "--error-unmatch", "build.rs"]).is_some();
    let Some(commit) = output("git", &["rev-parse", "HEAD"]).filter(|_| tracked) else { return };
    println!("cargo:rustc-env=EIGHTFOLD_COMMIT={commit}");
    for file in ["HEAD", "logs/HEAD"] {
        if let Some(path) = output("git", &["rev-parse", "--git-path", file]).filter(|path| Path::new(path).exists()) {
            println!("cargo:rerun-if-changed={path}");
        }
    }
}

fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_string())
}
