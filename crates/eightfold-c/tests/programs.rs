//! The C programs of `examples/c`, compiled against the header and run with the library, as its users do.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// What a Rust library needs of a C toolchain on Linux: `rustc --print native-static-libs`.
const SYSTEM: &[&str] = &["-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl", "-lc"];

/// Where the test, and with it the library, was built.
fn library_folder() -> PathBuf {
    let test = env::current_exe().expect("the test knows where it is");
    test.parent().expect("it lies in a folder").into()
}

/// Compiles a program; the library is linked as `link` says.
fn compile(source: &str, name: &str, flags: &[&str], link: &[&str]) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(env!("CARGO_TARGET_TMPDIR")).expect("there is a folder for the program");
    let compiler = env::var("CC").unwrap_or("cc".into());
    let mut command = Command::new(&compiler);
    command
        .args(["-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Wno-unused-function", "-pedantic", "-Werror"])
        .args(flags);
    command.arg("-I").arg(folder.join("include")).arg(folder.join("../../examples/c").join(source));
    command.args(link).args(SYSTEM).arg("-o").arg(&out);
    let output = command.output().unwrap_or_else(|error| panic!("a C compiler is needed: {compiler}: {error}"));
    assert!(output.status.success(), "{source}: {}", String::from_utf8_lossy(&output.stderr));
    out
}

/// Runs a program and gives back what it printed.
fn run(program: &Path) -> String {
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", library_folder());
    let output = command.output().expect("the program starts");
    let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(output.status.success(), "{}: {}\n{text}", program.display(), output.status);
    text
}

fn shared() -> String {
    format!("-L{}", library_folder().display())
}

fn fixed() -> String {
    library_folder().join("libeightfold_c.a").display().to_string()
}

const SANITIZERS: &str = "-fsanitize=address,undefined";

#[test]
fn attention_on_the_host_is_right() {
    let text = run(&compile("host.c", "host", &[], &[&shared(), "-leightfold_c"]));
    assert_eq!(text.matches("PASS").count(), 5, "{text}");
}

#[test]
fn attention_on_the_host_is_clean_under_sanitizers() {
    let text = run(&compile("host.c", "host-sanitized", &[SANITIZERS], &[&fixed()]));
    assert!(text.ends_with("PASS\n"), "{text}");
}

#[test]
fn caches_in_pages_on_the_host_are_right_and_clean_under_sanitizers() {
    let text = run(&compile("paged.c", "paged-sanitized", &[SANITIZERS], &[&fixed()]));
    assert!(text.ends_with("PASS\n") && text.matches("PASS").count() == 8, "{text}");
}

/// On a machine with a GPU this is the device's test; elsewhere the program says why it is skipped.
#[test]
fn attention_on_a_device_is_right() {
    let text = run(&compile("device.c", "device", &[], &[&shared(), "-leightfold_c"]));
    let skipped = text.contains("SKIP");
    assert!(!skipped || env::var_os("EIGHTFOLD_REQUIRE_DEVICE").is_none(), "{text}");
    assert!(skipped || text.ends_with("PASS\n"), "{text}");
}

#[test]
fn a_program_for_devices_is_clean_under_sanitizers_where_there_is_none() {
    let program = compile("device.c", "device-sanitized", &[SANITIZERS], &[&fixed()]);
    let mut command = Command::new(program);
    // The driver does not get along with the address sanitizer: no device is shown to it.
    let output =
        command.env("CUDA_VISIBLE_DEVICES", "").env("ASAN_OPTIONS", "detect_leaks=0").output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("SKIP"), "{text}{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_header_is_sound_in_c_plus_plus() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new(env::var("CXX").unwrap_or("c++".into()));
    command.args(["-std=c++17", "-Wall", "-Wextra", "-pedantic", "-Werror", "-fsyntax-only", "-x", "c++"]);
    let output = command.arg(folder.join("include/eightfold.h")).output().expect("a C++ compiler is needed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
