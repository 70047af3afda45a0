//! nvdisasm, where there is one: the machine code as text.

use super::in_flight;
use crate::environment;
use eightfold::lab::compile::Cubin;
use eightfold::{Error, Result};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

/// The command that fetches it beside NVRTC.
pub const FETCH_COMMAND: &str = "python3 -m pip install --target .nvrtc/nvdisasm --no-deps nvidia-cuda-nvdisasm";

/// NVIDIA's disassembler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disassembler {
    program: PathBuf,
}

impl Disassembler {
    /// The one beside NVRTC, of a toolkit or on the search path.
    pub fn find() -> Result<&'static Disassembler> {
        static FOUND: OnceLock<Option<Disassembler>> = OnceLock::new();
        let found = FOUND.get_or_init(|| {
            let programs = environment::tools("nvdisasm").into_iter().filter(|path| path.is_file());
            let mut starting = programs.filter(|path| {
                Command::new(path).arg("--version").output().is_ok_and(|output| output.status.success())
            });
            starting.next().map(|program| Disassembler { program })
        });
        found.as_ref().ok_or_else(|| unavailable("it is neither beside NVRTC nor in a toolkit nor on the search path"))
    }

    /// Every instruction that touches an accumulator of a product under way, before the wait for it.
    pub fn early_touches(&self, cubin: &Cubin) -> Result<Vec<String>> {
        let text = self.disassemble(cubin)?;
        in_flight::early_touches(&text).map_err(|reason| {
            let rule = format!("its machine code cannot be judged: {reason}");
            Error::invalid(format!("`{}` for {}", cubin.entry, cubin.arch), rule, "compile it with another NVRTC")
        })
    }

    /// The machine code as text.
    pub fn disassemble(&self, cubin: &Cubin) -> Result<String> {
        let folder =
            tempfile::tempdir().map_err(|error| unavailable(format!("there is no temporary folder: {error}")))?;
        let file = folder.path().join("kernel.cubin");
        fs::write(&file, &cubin.image).map_err(|error| unavailable(format!("the cubin cannot be written: {error}")))?;
        let output = Command::new(&self.program).arg("-c").arg(&file).output();
        let output =
            output.map_err(|error| unavailable(format!("{} does not start: {error}", self.program.display())))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or("nothing").to_string();
            return Err(unavailable(format!("it ended with {}: {said}", output.status)));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

fn unavailable(reason: impl Into<String>) -> Error {
    Error::unavailable("nvdisasm", reason, format!("fetch it with `{FETCH_COMMAND}`, or do without"))
}
