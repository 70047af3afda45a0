//! Tools of the CUDA toolkit that are used where they are found.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// A program and what it is good for.
pub struct Tool {
    /// The program.
    pub name: &'static str,
    /// What is done without it.
    pub what: &'static str,
    /// How to get it.
    pub fix: &'static str,
    /// Its folders below a CUDA folder.
    folders: &'static [&'static str],
}

/// Every tool that is of use here.
pub const ALL: &[Tool] = &[
    Tool {
        name: "nvcc",
        what: "NVRTC alone compiles",
        fix: "install the CUDA toolkit to compare the two compilers",
        folders: &["bin"],
    },
    Tool {
        name: "ncu",
        what: "kernels cannot be profiled",
        fix: "install Nsight Compute",
        folders: &["bin", "nsight-compute"],
    },
    Tool {
        name: "compute-sanitizer",
        what: "kernels cannot be checked for races and stray accesses",
        fix: "install the CUDA toolkit",
        folders: &["bin", "compute-sanitizer"],
    },
];

/// Where CUDA is unless a variable says otherwise.
const USUAL: &[&str] = &["/usr/local/cuda", "/opt/cuda"];

/// The tool on the search path, or in a CUDA folder.
pub fn find(tool: &Tool) -> Option<PathBuf> {
    let variables = ["CUDA_HOME", "CUDA_PATH"].map(|name| std::env::var_os(name).map(PathBuf::from));
    let roots = variables.into_iter().flatten().chain(USUAL.iter().map(PathBuf::from));
    find_in(tool, std::env::var_os("PATH"), roots)
}

fn find_in(tool: &Tool, path: Option<OsString>, roots: impl Iterator<Item = PathBuf>) -> Option<PathBuf> {
    let on_path: Vec<PathBuf> = path.iter().flat_map(std::env::split_paths).collect();
    let below = roots.flat_map(|root| tool.folders.iter().map(move |folder| root.join(folder)));
    let name = format!("{}{}", tool.name, std::env::consts::EXE_SUFFIX);
    on_path.into_iter().chain(below).map(|folder| folder.join(&name)).find(|path: &PathBuf| Path::is_file(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_search_path_goes_before_the_cuda_folders() {
        let place = tempfile::tempdir().unwrap();
        let sanitizer = &ALL[2];
        let (on_path, root) = (place.path().join("bin"), place.path().join("cuda"));
        let folder = root.join("compute-sanitizer");
        std::fs::create_dir_all(&on_path).unwrap();
        std::fs::create_dir_all(&folder).unwrap();
        let name = format!("compute-sanitizer{}", std::env::consts::EXE_SUFFIX);
        let found = || find_in(sanitizer, Some(on_path.clone().into_os_string()), [root.clone()].into_iter());
        assert_eq!(found(), None);
        std::fs::write(folder.join(&name), "").unwrap();
        assert_eq!(found(), Some(folder.join(&name)));
        std::fs::write(on_path.join(&name), "").unwrap();
        assert_eq!(found(), Some(on_path.join(&name)));
    }
}
