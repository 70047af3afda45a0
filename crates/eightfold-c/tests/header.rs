//! `include/eightfold.h` is what cbindgen makes of this crate. `EIGHTFOLD_UPDATE=1` writes it anew.

use std::path::Path;
use std::{env, fs};

/// In the order in which a reader needs them.
const FILES: [&str; 10] =
    ["status", "constants", "problem", "tensor", "host", "paged", "cache", "context", "call", "paged_call"];

/// `cargo cinstall` takes the manifest for one that is not meant for it where these are missing.
#[test]
fn the_manifest_has_what_cargo_c_asks_for() {
    let manifest = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml")).expect("it is there");
    assert!(manifest.contains("\n[features]\n") && manifest.contains("\ncapi = []\n"));
    let version = manifest.lines().find_map(|line| line.strip_prefix("min_version = \"")?.strip_suffix('"'));
    let numbers: Vec<u32> = version.expect("it is named").split('.').filter_map(|part| part.parse().ok()).collect();
    assert_eq!(numbers.len(), 3, "cargo-c reads a whole version: {version:?}");
}

#[test]
fn the_header_is_that_of_the_crate() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(folder.join("cbindgen.toml")).expect("cbindgen.toml can be read");
    let files = FILES.iter().map(|name| folder.join(format!("src/{name}.rs")));
    let builder = files.fold(cbindgen::Builder::new().with_config(config), |builder, file| builder.with_src(file));
    let mut made = Vec::new();
    builder.generate().expect("a header can be made").write(&mut made);
    let made = String::from_utf8(made).expect("it is text");
    let path = folder.join("include/eightfold.h");
    if env::var_os("EIGHTFOLD_UPDATE").is_some() {
        fs::write(&path, &made).expect("the header is written");
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        made == committed,
        "include/eightfold.h is not what cbindgen makes; if that is meant: EIGHTFOLD_UPDATE=1 cargo test -p eightfold-c --test header"
    );
}
