//! A kernel that does nothing, launched by the driver's call alone: what the host's share of other launches is measured by.

use super::compile::{Compiler, Program};
use super::driver::{Device, Function, Grid, Module, Stream};
use super::kernel::{ARGUMENT_BYTES, Argument};
use crate::error::{Error, Result};

const TEXT: &str = "struct __align__(8) Argument { unsigned long long words[WORDS]; };\n\
    extern \"C\" __global__ void empty(const __grid_constant__ Argument argument) {}\n";

/// A kernel that does nothing, with an argument of some size.
#[derive(Debug)]
pub struct EmptyKernel {
    function: Function,
    argument: Argument,
}

impl EmptyKernel {
    /// Compiles and loads it for an argument of so many bytes, a multiple of 8.
    pub fn new(device: &Device, argument_bytes: usize) -> Result<EmptyKernel> {
        if argument_bytes == 0 || !argument_bytes.is_multiple_of(8) || argument_bytes > ARGUMENT_BYTES {
            return Err(Error::invalid(
                "argument_bytes",
                format!("{argument_bytes} is not a multiple of 8 up to {ARGUMENT_BYTES}"),
                "take the size of a kernel's argument",
            ));
        }
        let cubin = Compiler::find()?.compile_text(TEXT, &program(argument_bytes), device.arch()?)?;
        let function = Module::load(device, &cubin.image)?.function(&cubin.entry)?;
        Ok(EmptyKernel { function, argument: Argument::of(&[0u64; ARGUMENT_BYTES / 8]) })
    }

    /// Puts a launch of one warp into the stream by the driver's call and nothing else. A launch of another kernel must have
    /// come before in this thread: it leaves the device's context current.
    pub fn launch(&self, stream: &Stream) -> Result<()> {
        let grid = Grid { blocks: 1, threads: 32, dynamic_shared_bytes: 0, cluster: 1 };
        // SAFETY: the kernel takes no more bytes than the argument has, and reads none of them.
        unsafe { self.function.launch_alone(stream, grid, self.argument.address()) }
    }
}

fn program(argument_bytes: usize) -> Program {
    let defines = vec![("WORDS", (argument_bytes / 8).to_string())];
    Program { file: "empty.cu", entry: "empty", defines, dynamic_shared_bytes: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::Arch;

    /// Compiled where NVRTC is, and skipped elsewhere unless `EIGHTFOLD_REQUIRE_NVRTC` is set.
    #[test]
    fn it_compiles_for_every_architecture() {
        let compiler = match Compiler::find() {
            Ok(compiler) => compiler,
            Err(error) => {
                assert!(std::env::var_os("EIGHTFOLD_REQUIRE_NVRTC").is_none(), "{error}");
                return;
            }
        };
        for arch in Arch::ALL {
            let cubin = compiler.compile_text(TEXT, &program(704), *arch).unwrap();
            assert!(!cubin.image.is_empty(), "{arch}");
        }
    }
}
