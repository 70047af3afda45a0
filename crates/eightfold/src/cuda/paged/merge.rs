//! Host side of `kernels/paged/merge_outputs.cu`.

use super::attention::check_address;
use super::program::{Extras, shared_settings};
use crate::cuda::compile::Program;
use crate::cuda::counts::{size, stride};
use crate::cuda::driver::{Device, Grid, Stream};
use crate::cuda::loaded::Loaded;
use crate::cuda::specialisation::settings;
use crate::error::{Error, Result};
use crate::problem::{Mask, OutputFormat};
use crate::tensor::Fp8Format;
use std::sync::Arc;

/// Parts of a launch; `MOST_PARTS` of the device code.
const MOST_PARTS: usize = 16;

/// Threads of a block, a warp for each row; `THREADS` of the device code.
const THREADS: usize = 256;

/// One launch; the struct of the same name in the device code, field by field.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Argument {
    values: [u64; MOST_PARTS],
    lse: [u64; MOST_PARTS],
    output: u64,
    output_lse: u64,
    rows: i64,
    parts: i32,
    unused: i32,
}

/// Where the attention of rows to some of the keys lies in device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartAddresses {
    /// The output, `[row, channel]`.
    pub output: u64,
    /// The log-sum-exp of every row, f32, natural.
    pub lse: u64,
}

/// Merges attention to parts of the keys, such as a shared prefix and what follows it, or keys on several devices.
#[derive(Debug)]
pub struct MergeOutputs {
    loaded: Arc<Loaded>,
}

impl MergeOutputs {
    /// Compiles or finds, and loads the kernel for rows of so many channels in this format.
    pub fn new(device: &Device, head_dim: usize, format: OutputFormat) -> Result<Self> {
        if head_dim == 0 || head_dim > crate::problem::MAX_HEAD_DIM {
            return Err(Error::invalid(
                "head_dim",
                format!("{head_dim} is not 1 to {}", crate::problem::MAX_HEAD_DIM),
                "give the channels of a head",
            ));
        }
        Ok(MergeOutputs { loaded: Loaded::get(device, &program(head_dim, format), device.arch()?)? })
    }

    /// Puts the merging of so many rows into the stream and returns. The parts' order changes nothing but rounding. A row that
    /// sees no key in any part is zero. `merged.lse` may be 0; `merged` may be one of the parts.
    ///
    /// # Safety
    /// At the addresses there must be as many rows, alive until the launch is done and used by no other work meanwhile.
    pub unsafe fn launch(
        &self,
        stream: &Stream,
        rows: usize,
        parts: &[PartAddresses],
        merged: PartAddresses,
    ) -> Result<()> {
        if parts.is_empty() || parts.len() > MOST_PARTS {
            return Err(Error::invalid(
                "parts",
                format!("{} parts are not 1 to {MOST_PARTS}", parts.len()),
                "merge some of them first",
            ));
        }
        for part in parts {
            check_address("part", part.output, 4)?;
            check_address("lse", part.lse, 4)?;
        }
        check_address("output", merged.output, 4)?;
        if rows == 0 {
            return Ok(());
        }
        let mut argument = Argument {
            values: [0; MOST_PARTS],
            lse: [0; MOST_PARTS],
            output: merged.output,
            output_lse: merged.lse,
            rows: stride("rows", rows)?,
            parts: parts.len() as i32,
            unused: 0,
        };
        for (index, part) in parts.iter().enumerate() {
            argument.values[index] = part.output;
            argument.lse[index] = part.lse;
        }
        let grid = Grid {
            blocks: size("rows", rows.div_ceil(THREADS / 32))?.unsigned_abs(),
            threads: THREADS as u32,
            dynamic_shared_bytes: 0,
            cluster: 1,
        };
        // SAFETY: the argument is laid out as the kernel takes it (tested); the rest is the caller's word.
        unsafe { self.loaded.function().launch(stream, grid, &argument) }
    }
}

fn program(head_dim: usize, format: OutputFormat) -> Program {
    let defines = settings(&shared_settings(head_dim, Mask::None, Extras::default(), Fp8Format::E4m3, format));
    Program { file: "paged/merge_outputs.cu", entry: "paged_merge", defines, dynamic_shared_bytes: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn the_layout_is_that_of_the_device_code() {
        assert_eq!((size_of::<Argument>(), align_of::<Argument>()), (288, 8));
        assert_eq!(
            [offset_of!(Argument, output), offset_of!(Argument, rows), offset_of!(Argument, parts)],
            [256, 272, 280]
        );
    }
}
