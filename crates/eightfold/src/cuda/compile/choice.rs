//! What a program tells of its compiler, before anything is compiled.

use super::compiler::Toolchain;
use crate::error::{Error, Result};
use std::mem;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Gets the NVRTC that the kernels are tested with, into a folder of the project. The command looks there by itself; a program
/// names it with [`look_in`].
pub const FETCH_COMMAND: &str = "python3 -m pip install --target .nvrtc --no-deps nvidia-cuda-nvrtc==13.0.88";

/// What was told.
#[derive(Debug, Default)]
pub(super) struct Choice {
    /// The library or the folder to take it from, and no other.
    pub(super) nvrtc: Option<PathBuf>,
    /// Folders to look in first, and why.
    pub(super) folders: Vec<(String, PathBuf)>,
    pub(super) cache: Option<PathBuf>,
    pub(super) toolchain: Option<Box<dyn Toolchain>>,
}

/// None once it was asked for: then it can no longer change.
static CHOICE: Mutex<Option<Choice>> =
    Mutex::new(Some(Choice { nvrtc: None, folders: Vec::new(), cache: None, toolchain: None }));

fn choice() -> MutexGuard<'static, Option<Choice>> {
    CHOICE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn change(what: &str, change: impl FnOnce(&mut Choice)) -> Result<()> {
    let late = || Error::invalid(what, "it was named after the search for it", "name it before anything is compiled");
    choice().as_mut().map(change).ok_or_else(late)
}

/// What was told, for good.
pub(super) fn settled() -> Choice {
    let choice = mem::take(&mut *choice()).unwrap_or_default();
    #[cfg(test)]
    let choice = Choice {
        folders: vec![("tests".into(), concat!(env!("CARGO_MANIFEST_DIR"), "/../../.nvrtc").into())],
        ..choice
    };
    choice
}

/// Names the NVRTC to use, a library or a folder that holds one, before anything is compiled. No other is looked for.
pub fn set_nvrtc(path: impl Into<PathBuf>) -> Result<()> {
    change("nvrtc", |choice| choice.nvrtc = Some(path.into()))
}

/// Names a folder to look for NVRTC in before the usual places, before anything is compiled.
pub fn look_in(folder: impl Into<PathBuf>) -> Result<()> {
    look_in_as("named folder", folder)
}

/// The same, with the reason that is told with the folder.
pub fn look_in_as(origin: impl Into<String>, folder: impl Into<PathBuf>) -> Result<()> {
    change("nvrtc", |choice| choice.folders.push((origin.into(), folder.into())))
}

/// Names the folder in which compiled kernels are kept for later processes, before anything is compiled. Without one they
/// are kept in memory alone.
pub fn keep_in(folder: impl Into<PathBuf>) -> Result<()> {
    change("cache", |choice| choice.cache = Some(folder.into()))
}

/// Lets a toolchain stand for NVRTC in this process, before anything is compiled. There is no search then.
pub fn set_toolchain(toolchain: Box<dyn Toolchain>) -> Result<()> {
    change("toolchain", |choice| choice.toolchain = Some(toolchain))
}
