//! A kernel that reads memory and does nothing else: what the times of kernels bound by memory are measured by.

use super::compile::{Compiler, Program};
use super::driver::{Buffer, Device, Function, Grid, Module, Stream};
use crate::error::{Error, Result};

const THREADS: u32 = 512;

/// Blocks of a multiprocessor: as many as its threads allow.
const BLOCKS: u32 = 4;

const TEXT: &str = "struct __align__(8) Argument { const uint4* from; unsigned* to; unsigned long long vectors; };\n\
    extern \"C\" __global__ void __launch_bounds__(512) read_all(const __grid_constant__ Argument argument) {\n\
    unsigned long long step = gridDim.x * 512ull;\n\
    unsigned all = 0;\n\
    #pragma unroll 8\n\
    for (unsigned long long i = blockIdx.x * 512ull + threadIdx.x; i < argument.vectors; i += step) {\n\
        uint4 words = argument.from[i];\n\
        all |= words.x ^ words.y ^ words.z ^ words.w;\n\
    }\n\
    // Never, but the compiler does not know.\n\
    if (all == 0x5eed1e55u) *argument.to = all;\n\
    }\n";

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Argument {
    from: u64,
    to: u64,
    vectors: u64,
}

/// A kernel that reads a buffer.
#[derive(Debug)]
pub struct ReadKernel {
    function: Function,
    grid: Grid,
}

impl ReadKernel {
    /// Compiles and loads it.
    pub fn new(device: &Device) -> Result<ReadKernel> {
        let cubin = Compiler::find()?.compile_text(TEXT, &program(), device.arch()?)?;
        let function = Module::load(device, &cubin.image)?.function(&cubin.entry)?;
        let blocks = BLOCKS * u32::try_from(device.info().multiprocessors).unwrap_or(1);
        Ok(ReadKernel { function, grid: Grid { blocks, threads: THREADS, dynamic_shared_bytes: 0, cluster: 1 } })
    }

    /// Puts a launch into the stream that reads so many bytes, a multiple of 16, from the front of the buffer, which must live
    /// until the launch is done.
    pub fn launch(&self, stream: &Stream, from: &Buffer, bytes: usize) -> Result<()> {
        if bytes > from.bytes() || !bytes.is_multiple_of(16) {
            return Err(Error::invalid(
                "bytes",
                format!("{bytes} are not a multiple of 16 up to the buffer's {}", from.bytes()),
                "read what is there",
            ));
        }
        let argument = Argument { from: from.pointer(), to: from.pointer(), vectors: bytes as u64 / 16 };
        // SAFETY: the kernel takes this struct, and reads no more than the buffer has; freeing it waits for the launch.
        unsafe { self.function.launch(stream, self.grid, &argument) }
    }
}

fn program() -> Program {
    Program { file: "read.cu", entry: "read_all", defines: Vec::new(), dynamic_shared_bytes: 0 }
}
