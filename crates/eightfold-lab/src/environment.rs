//! What a program of this project takes from the environment. The library takes nothing by itself.

mod nvrtc;

use eightfold::Result;
use eightfold::lab::compile::{self, Compiler};
use nvrtc::Surroundings;
use std::path::{Path, PathBuf};
use std::sync::Once;

/// Names the NVRTC to use: a library, or a folder that holds one.
pub const NVRTC_VARIABLE: &str = "EIGHTFOLD_NVRTC";
/// Names the folder for compiled kernels.
pub const CACHE_VARIABLE: &str = "EIGHTFOLD_CACHE";

/// Tells the library which NVRTC to use, where to look for one, and where to keep what is compiled. Must come before anything
/// is compiled.
///
/// What was named by hand goes before the variable. Without either, NVRTC is looked for in the project's own folder, in the
/// current folder and above it, in toolkits and among Python's packages.
pub fn settle(nvrtc: Option<&Path>) -> Result<()> {
    match nvrtc.map(Path::to_owned).or_else(|| variable(NVRTC_VARIABLE)) {
        Some(path) => compile::set_nvrtc(path)?,
        None => {
            for (origin, folder) in Surroundings::of_process().folders() {
                compile::look_in_as(origin, folder)?;
            }
        }
    }
    cache_folder().map_or(Ok(()), compile::keep_in)
}

/// The compiler, found as the command finds it.
pub fn compiler() -> Result<&'static Compiler> {
    static SETTLED: Once = Once::new();
    // It is too late where something was compiled already: then what was told before stands.
    SETTLED.call_once(|| drop(settle(None)));
    Compiler::find()
}

/// Where a program of NVIDIA's tools may be: beside NVRTC, in toolkits, among Python's packages, on the search path.
pub(crate) fn tools(name: &str) -> Vec<PathBuf> {
    let program = format!("{name}{}", std::env::consts::EXE_SUFFIX);
    let folders = Surroundings::of_process().folders();
    // In the project's folder each wheel has a folder of its own: pip replaces what another has put there.
    let wheel = format!("{name}/nvidia/cu13/bin");
    let of_folder = |(_, folder): (String, PathBuf)| ["bin", "nvidia/cu13/bin", &wheel].map(|below| folder.join(below));
    let path: Vec<PathBuf> = variable("PATH").map(|path| std::env::split_paths(&path).collect()).unwrap_or_default();
    folders.into_iter().flat_map(of_folder).chain(path).map(|folder| folder.join(&program)).collect()
}

/// The folder for compiled kernels: the variable's, else the user's; none without a home.
pub fn cache_folder() -> Option<PathBuf> {
    cache_folder_of(variable)
}

fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).map(PathBuf::from).filter(|path| !path.as_os_str().is_empty())
}

fn cache_folder_of(variable: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    let absolute = |name: &str| variable(name).filter(|path| path.is_absolute());
    if let Some(folder) = variable(CACHE_VARIABLE) {
        return Some(folder);
    }
    let platform = if cfg!(windows) {
        absolute("LOCALAPPDATA")
    } else if cfg!(target_os = "macos") {
        absolute("HOME").map(|home| home.join("Library/Caches"))
    } else {
        absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")))
    };
    platform.map(|folder| folder.join("eightfold").join("cubins"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_follows_the_environment() {
        let folder = |set: &[(&str, &str)]| {
            cache_folder_of(|name| set.iter().find(|(key, _)| *key == name).map(|(_, value)| PathBuf::from(value)))
        };
        let home = ("HOME", "/home/someone");
        assert_eq!(folder(&[home]), Some("/home/someone/.cache/eightfold/cubins".into()));
        assert_eq!(folder(&[home, ("XDG_CACHE_HOME", "/cache")]), Some("/cache/eightfold/cubins".into()));
        assert_eq!(folder(&[home, ("XDG_CACHE_HOME", "not/absolute")]), folder(&[home]));
        assert_eq!(folder(&[home, (CACHE_VARIABLE, "/here")]), Some("/here".into()));
        assert_eq!(folder(&[]), None);
    }
}
