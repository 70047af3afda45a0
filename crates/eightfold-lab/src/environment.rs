//! What a program of this project takes from the environment. The library takes nothing by itself.

use eightfold::Result;
use eightfold::cuda::compile;
use std::path::{Path, PathBuf};

/// Names the NVRTC to use: a library, or a folder that holds one.
pub const NVRTC_VARIABLE: &str = "EIGHTFOLD_NVRTC";
/// Names the folder for compiled kernels.
pub const CACHE_VARIABLE: &str = "EIGHTFOLD_CACHE";
/// Where [`compile::FETCH_COMMAND`] puts NVRTC.
const PROJECT_FOLDER: &str = ".nvrtc";

/// Tells the library which NVRTC to use, where to look for one, and where to keep what is compiled. Must come before anything
/// is compiled.
///
/// What was named by hand goes before the variable, and the variable before the project's own folder, which is looked for in
/// the current folder and above it.
pub fn settle(nvrtc: Option<&Path>) -> Result<()> {
    match nvrtc.map(Path::to_owned).or_else(|| variable(NVRTC_VARIABLE)) {
        Some(path) => compile::set_nvrtc(path)?,
        None => {
            let current = std::env::current_dir().ok();
            let above = current.iter().flat_map(|folder| folder.ancestors());
            if let Some(folder) = above.map(|folder| folder.join(PROJECT_FOLDER)).find(|folder| folder.is_dir()) {
                compile::look_in(folder)?;
            }
        }
    }
    cache_folder().map_or(Ok(()), compile::keep_in)
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
