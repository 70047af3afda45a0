//! nvcc, where a CUDA toolkit is: a second compiler to compare the first one with.

use super::{Compiled, inspect};
use eightfold::cuda::Arch;
use eightfold::lab::compile::{self, Cubin, Program};
use eightfold::{Error, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const OUTPUT: &str = "kernel.cubin";

/// The toolkit's compiler. It takes a second or more for a kernel, and nothing that it makes is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nvcc {
    program: PathBuf,
    version: String,
}

impl Nvcc {
    /// The nvcc of `CUDA_HOME`, `CUDA_PATH`, the search path or `/usr/local/cuda`.
    pub fn find() -> Result<Nvcc> {
        let program =
            candidates(|name| std::env::var_os(name).map(PathBuf::from)).into_iter().find(|path| path.is_file());
        let program = program.ok_or_else(|| unavailable("it is neither in CUDA_HOME nor on the search path"))?;
        Nvcc::at(&program)
    }

    /// The nvcc at this path.
    pub fn at(program: &Path) -> Result<Nvcc> {
        let output = Command::new(program).arg("--version").output();
        let output = output.map_err(|error| unavailable(format!("{} does not start: {error}", program.display())))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let version = release(&text)
            .ok_or_else(|| unavailable(format!("{} --version does not tell a version", program.display())))?;
        Ok(Nvcc { program: program.to_owned(), version: format!("nvcc {version}") })
    }

    /// The version, such as `nvcc 13.0`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Compiles. The kernel must mark its device functions `__device__`: nvcc has no `-default-device`.
    pub fn compile(&self, program: &Program, arch: Arch) -> Result<Compiled> {
        self.compile_files(&compile::files(program)?, program, arch)
    }

    /// Compiles this text in place of the program's file.
    pub fn compile_text(&self, text: &str, program: &Program, arch: Arch) -> Result<Compiled> {
        self.compile_files(&compile::files_of_text(program, text)?, program, arch)
    }

    fn compile_files(&self, files: &[(String, String)], program: &Program, arch: Arch) -> Result<Compiled> {
        let folder =
            tempfile::tempdir().map_err(|error| unavailable(format!("there is no temporary folder: {error}")))?;
        for (name, text) in files {
            write(&folder.path().join(name), text)
                .map_err(|error| unavailable(format!("the sources cannot be written: {error}")))?;
        }
        // Names relative to the folder: messages then name files as they are named under kernels/.
        let run = Command::new(&self.program)
            .args(arguments(program, arch))
            .current_dir(folder.path())
            .output()
            .map_err(|error| unavailable(format!("{} does not start: {error}", self.program.display())))?;
        let output = [run.stdout, run.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
        if !run.status.success() {
            let errors = compile::errors_of(&output);
            return Err(compile::failed(program, arch, &self.version, &errors, &run.status.to_string()));
        }
        let image = fs::read(folder.path().join(OUTPUT))
            .map_err(|error| unavailable(format!("it left no cubin behind: {error}")))?;
        let (entry, compiler) = (program.entry.to_owned(), self.version.clone());
        inspect(Cubin { image: image.into(), entry, arch, log: output, compiler, cached: false }, program)
    }
}

/// What it is told, in the folder that holds the sources.
fn arguments(program: &Program, arch: Arch) -> Vec<String> {
    let mut arguments: Vec<String> = vec!["-cubin".into(), format!("-arch={arch}"), "-std=c++17".into()];
    arguments.extend(["-Xptxas=-v", "-Xptxas=--warn-on-spills", "-I."].map(String::from));
    arguments.extend(compile::defines(program));
    arguments.extend(["-o".into(), OUTPUT.into(), program.file.into()]);
    arguments
}

fn candidates(variable: impl Fn(&str) -> Option<PathBuf>) -> Vec<PathBuf> {
    let name = if cfg!(windows) { "nvcc.exe" } else { "nvcc" };
    let toolkits = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(&variable);
    let toolkits = toolkits.filter(|path| !path.as_os_str().is_empty()).map(|path| path.join("bin"));
    let path: Vec<PathBuf> = variable("PATH").map(|path| std::env::split_paths(&path).collect()).unwrap_or_default();
    toolkits.chain(path).chain(["/usr/local/cuda/bin".into()]).map(|folder| folder.join(name)).collect()
}

/// The version in `Cuda compilation tools, release 13.0, V13.0.88`.
fn release(text: &str) -> Option<&str> {
    let version = text.split("release ").nth(1)?.split([',', '\n']).next()?.trim();
    (!version.is_empty()).then_some(version)
}

fn write(path: &Path, text: &str) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(path, text)
}

fn unavailable(reason: impl Into<String>) -> Error {
    Error::unavailable(
        "nvcc",
        reason,
        "install the CUDA toolkit and set CUDA_HOME to it, or do without: NVRTC suffices",
    )
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use crate::compile::cubin::tests::Fake;
    use std::os::unix::fs::PermissionsExt;

    const LOG: &str = "\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'k' for 'sm_89'
ptxas info    : Function properties for k
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 14 registers, used 1 barriers, 4096 bytes smem, 360 bytes cmem[0]
";

    fn program() -> Program {
        Program { file: "inner/kernel.cu", entry: "k", defines: vec![("A", "1".into())], dynamic_shared_bytes: 512 }
    }

    /// A shell script in nvcc's place; `$2` and so on are what it was told.
    fn fake(folder: &Path, compile: &str) -> Nvcc {
        let script = folder.join("nvcc");
        let version = "echo 'Cuda compilation tools, release 13.0, V13.0.88'";
        let text = format!("#!/bin/sh\nif [ \"$1\" = --version ]; then {version}; exit 0; fi\n{compile}\n");
        fs::write(&script, text).unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        // A script that another thread's child still holds open for writing cannot be started for a moment.
        for _ in 0..50 {
            if let Ok(nvcc) = Nvcc::at(&script) {
                return nvcc;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        panic!("{} does not start", script.display());
    }

    #[test]
    fn a_kernel_from_nvcc_looks_like_one_from_nvrtc() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("made"), Fake::new().image()).unwrap();
        fs::write(folder.path().join("log"), LOG).unwrap();
        let at = folder.path().display();
        let nvcc = fake(
            folder.path(),
            &format!(
                "echo \"$@\" > {at}/arguments\ntest -f inner/kernel.cu || exit 3\ncat {at}/log >&2\ncp {at}/made kernel.cubin"
            ),
        );
        assert_eq!(nvcc.version(), "nvcc 13.0");
        let Compiled { cubin, resources, .. } = nvcc.compile_text("// a kernel", &program(), Arch::Sm89).unwrap();
        assert_eq!((cubin.compiler.as_str(), cubin.cached), ("nvcc 13.0", false));
        assert_eq!((resources.registers, resources.static_shared_bytes), (14, 4096));
        assert_eq!(resources.dynamic_shared_bytes, 512);
        let arguments = fs::read_to_string(folder.path().join("arguments")).unwrap();
        assert_eq!(
            arguments.trim(),
            "-cubin -arch=sm_89 -std=c++17 -Xptxas=-v -Xptxas=--warn-on-spills -I. -DA=1 -o kernel.cubin inner/kernel.cu"
        );
    }

    #[test]
    fn a_failure_is_told_in_nvccs_words() {
        let folder = tempfile::tempdir().unwrap();
        let nvcc = fake(folder.path(), "echo 'inner/kernel.cu(7): error: identifier \"x\" is undefined' >&2; exit 2");
        let error = nvcc.compile_text("", &program(), Arch::Sm89).unwrap_err().to_string();
        assert!(error.contains("inner/kernel.cu(7): error: identifier") && error.contains("nvcc 13.0"), "{error}");
    }

    #[test]
    fn no_nvcc_is_unavailable() {
        assert!(matches!(Nvcc::at(Path::new("/nowhere/nvcc")), Err(Error::Unavailable { .. })));
        let set = |name: &str| (name == "CUDA_HOME").then(|| PathBuf::from("/toolkit"));
        assert_eq!(candidates(set), ["/toolkit/bin/nvcc", "/usr/local/cuda/bin/nvcc"].map(PathBuf::from));
    }

    #[test]
    fn the_version_is_read_from_its_own_words() {
        let text = "nvcc: NVIDIA (R) Cuda compiler driver\nCuda compilation tools, release 12.8, V12.8.93\nBuild x";
        assert_eq!(release(text), Some("12.8"));
        assert_eq!(release("gcc (Debian) 12"), None);
    }
}
