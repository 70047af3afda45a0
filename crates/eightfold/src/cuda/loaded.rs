//! Programs that are compiled and loaded, each once per process and device.

use super::arch::Arch;
use super::compile::{self, Compiler, Program};
use super::driver::{Device, Function, Module};
use crate::error::{Error, Result};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Loaded kernels that are kept although no one uses them: enough for every stage of the ladder on some shapes.
const MOST_IDLE: usize = 256;

/// A program, compiled and loaded on a device.
#[derive(Debug)]
pub(crate) struct Loaded {
    module: Arc<Module>,
    function: Function,
}

/// The device, the architecture, the program, and the text that stands for its file, if one does.
type Key = (usize, Arch, Program, Option<Arc<str>>);

impl Loaded {
    /// The kernel of a program on a device, compiled for its architecture or a special form of it: from memory, else
    /// from the compiler's cache, else compiled.
    pub(crate) fn get(device: &Device, program: &Program, arch: Arch) -> Result<Arc<Loaded>> {
        static ALL: OnceLock<Mutex<HashMap<Key, Arc<Loaded>>>> = OnceLock::new();
        let loaded = || ALL.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
        let key = (device.info().ordinal, arch, program.clone(), compile::replacement(program.file));
        if let Some(kernel) = loaded().get(&key) {
            return Ok(kernel.clone());
        }
        // Compiling may take a second: meanwhile others may look. If two compile the same, the first to end is kept.
        let compiled = Arc::new(Loaded::load(device, program, arch)?);
        let mut loaded = loaded();
        let idle: Vec<_> = if loaded.len() >= MOST_IDLE {
            loaded.extract_if(|_, kernel| Arc::strong_count(kernel) == 1).collect()
        } else {
            Vec::new()
        };
        let kernel = loaded.entry(key).or_insert_with(|| compiled.clone()).clone();
        drop(loaded);
        // Unloading waits for the device, so it is done without the lock.
        drop((idle, compiled));
        Ok(kernel)
    }

    fn load(device: &Device, program: &Program, arch: Arch) -> Result<Loaded> {
        if let Some(loss) = device.loss() {
            return Err(loss);
        }
        let cubin = Compiler::find()?.compile(program, arch)?;
        let module = Module::load(device, &cubin.image)?;
        let function = module.function(&cubin.entry)?;
        if program.dynamic_shared_bytes > 0 {
            function.allow_dynamic_shared(program.dynamic_shared_bytes)?;
        }
        Ok(Loaded { module, function })
    }

    /// The same, and how many of its blocks a multiprocessor holds: an error if none. `variant` is for whoever reads that.
    pub(crate) fn get_fitting(
        device: &Device,
        program: &Program,
        arch: Arch,
        threads: usize,
        variant: impl FnOnce() -> String,
    ) -> Result<(Arc<Loaded>, usize)> {
        let loaded = Loaded::get(device, program, arch)?;
        let shared = program.dynamic_shared_bytes;
        match loaded.function().blocks_per_multiprocessor(threads, shared)? {
            0 => Err(Error::unavailable(
                variant(),
                format!(
                    "a block of {threads} threads and {shared} bytes of shared memory fits no multiprocessor of {}",
                    device.info().name
                ),
                "set smaller tiles, fewer warps or fewer stages",
            )),
            blocks => Ok((loaded, blocks)),
        }
    }

    /// The program's function.
    pub(crate) fn function(&self) -> &Function {
        &self.function
    }

    /// Another function of the same file.
    pub(crate) fn other_function(&self, name: &str) -> Result<Function> {
        self.module.function(name)
    }
}
