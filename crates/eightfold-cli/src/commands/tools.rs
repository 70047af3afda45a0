//! Tools of the CUDA toolkit that are used where they are found.

use eightfold::{Error, Result};
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
    /// The variable of the environment that names it.
    variable: Option<&'static str>,
    /// A folder that holds one folder for each version of it.
    versions: Option<&'static str>,
}

/// The profiler.
const NCU: Tool = Tool {
    name: "ncu",
    what: "kernels cannot be profiled",
    fix: "install Nsight Compute, or name its ncu with EIGHTFOLD_NCU or profile --ncu",
    folders: &["bin", "nsight-compute"],
    variable: Some("EIGHTFOLD_NCU"),
    versions: Some("/opt/nvidia/nsight-compute"),
};

/// Every tool that is of use here.
pub const ALL: &[Tool] = &[
    Tool {
        name: "nvcc",
        what: "NVRTC alone compiles",
        fix: "install the CUDA toolkit to compare the two compilers",
        folders: &["bin"],
        variable: None,
        versions: None,
    },
    NCU,
    Tool {
        name: "compute-sanitizer",
        what: "kernels cannot be checked for races and stray accesses",
        fix: "install the CUDA toolkit",
        folders: &["bin", "compute-sanitizer"],
        variable: None,
        versions: None,
    },
];

/// Where CUDA is unless a variable says otherwise.
const USUAL: &[&str] = &["/usr/local/cuda", "/opt/cuda"];

/// The tool that its variable names, or the one on the search path or in a CUDA folder.
pub fn find(tool: &Tool) -> Option<PathBuf> {
    let named = tool.variable.and_then(std::env::var_os).filter(|path| !path.is_empty());
    if let Some(path) = named {
        return Some(PathBuf::from(path)).filter(|path| path.is_file());
    }
    let variables = ["CUDA_HOME", "CUDA_PATH"].map(|name| std::env::var_os(name).map(PathBuf::from));
    let roots = variables.into_iter().flatten().chain(USUAL.iter().map(PathBuf::from));
    find_in(tool, std::env::var_os("PATH"), roots)
}

/// Nsight Compute: the one that was asked for, or what [`find`] finds.
pub fn find_ncu(asked: Option<&Path>) -> Result<PathBuf> {
    if let Some(path) = asked {
        let rule =
            || Error::invalid("ncu", format!("`{}` is not a file", path.display()), "give the path of ncu itself");
        return path.is_file().then(|| path.to_path_buf()).ok_or_else(rule);
    }
    find(&NCU).ok_or_else(|| Error::unavailable("profiling", "ncu was not found", NCU.fix))
}

fn find_in(tool: &Tool, path: Option<OsString>, roots: impl Iterator<Item = PathBuf>) -> Option<PathBuf> {
    let on_path: Vec<PathBuf> = path.iter().flat_map(std::env::split_paths).collect();
    let below = roots.flat_map(|root| tool.folders.iter().map(move |folder| root.join(folder)));
    let name = format!("{}{}", tool.name, std::env::consts::EXE_SUFFIX);
    let folders = on_path.into_iter().chain(below).chain(tool.versions.map(newest_first).unwrap_or_default());
    folders.map(|folder| folder.join(&name)).find(|path: &PathBuf| Path::is_file(path))
}

/// The folders in this one, from the last to the first by name.
fn newest_first(folder: &str) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> =
        std::fs::read_dir(folder).map(|all| all.flatten().map(|one| one.path()).collect()).unwrap_or_default();
    found.sort_unstable_by(|a, b| b.cmp(a));
    found
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
