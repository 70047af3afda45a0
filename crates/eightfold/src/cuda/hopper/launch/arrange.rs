//! Host side of `kernels/hopper/arrange.cu`: V that lies otherwise, put in the order that the kernel reads.

use crate::cuda::Arch;
use crate::cuda::compile::Program;
use crate::cuda::counts::{size, stride};
use crate::cuda::driver::{Device, Grid};
use crate::cuda::kernel::{Address, Argument, Call, Role, Slot};
use crate::cuda::loaded::Loaded;
use crate::cuda::tensor::{DeviceTensor, Lines};
use crate::error::Result;
use crate::tensor::Dims;
use std::mem::offset_of;

/// Threads of a block; `THREADS` of the device code.
const THREADS: usize = 128;
/// Keys and channels of a block that turns rows.
const TILE_KEYS: usize = 128;
const TILE_CHANNELS: usize = 64;
/// Groups of 16 keys of a block that exchanges them.
const GROUPS: usize = 4 * THREADS;

/// What `hopper_arrange` is passed by value, field by field.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Arrange {
    codes: u64,
    batch_stride: i64,
    head_stride: i64,
    line_stride: i64,
    arranged: u64,
    arranged_batch_stride: i64,
    arranged_head_stride: i64,
    arranged_line_stride: i64,
    heads: i32,
    len: i32,
    head_dim: i32,
    blocks_per_head: i32,
}

/// What it is given by address, but for the workspace.
pub(super) const SLOTS: &[Slot] = &[Slot::pointer(Role::V, offset_of!(Arrange, codes))];

/// The launch that puts V in order, at this place of the workspace, in these lines.
pub(super) fn call(device: &Device, v: &DeviceTensor, to: &Lines, place: usize) -> Result<Call> {
    let (dims, from) = (v.dims(), v.lines());
    let from_rows = !v.layout().is_transposed();
    let per_head = blocks_per_head(dims, from_rows);
    let blocks = size("blocks that put V in order", per_head.saturating_mul(dims.batch * dims.heads))?;
    let argument = Arrange {
        codes: v.codes(),
        batch_stride: stride("strides", from.batch_stride)?,
        head_stride: stride("strides", from.head_stride)?,
        line_stride: stride("strides", from.line_stride)?,
        arranged: 0,
        arranged_batch_stride: stride("strides", to.batch_stride)?,
        arranged_head_stride: stride("strides", to.head_stride)?,
        arranged_line_stride: stride("strides", to.line_stride)?,
        heads: size("kv_heads", dims.heads)?,
        len: size("key_len", dims.len)?,
        head_dim: size("head_dim", dims.head_dim)?,
        blocks_per_head: size("key_len", per_head)?,
    };
    Ok(Call {
        loaded: Loaded::get(device, &program(from_rows), Arch::Sm90a)?,
        grid: Grid { blocks: blocks.unsigned_abs(), threads: THREADS as u32, dynamic_shared_bytes: 0, cluster: 1 },
        early: false,
        argument: Argument::of(&argument),
        addresses: [Some(Address::Pointer { at: offset_of!(Arrange, arranged), place }), None, None],
    })
}

fn blocks_per_head(dims: Dims, from_rows: bool) -> usize {
    match from_rows {
        true => dims.len.div_ceil(TILE_KEYS) * dims.head_dim.div_ceil(TILE_CHANNELS),
        false => (dims.len.div_ceil(16) * dims.head_dim).div_ceil(GROUPS),
    }
}

fn program(from_rows: bool) -> Program {
    Program {
        file: "hopper/arrange.cu",
        entry: "hopper_arrange",
        defines: vec![("FROM_ROWS", u8::from(from_rows).to_string())],
        dynamic_shared_bytes: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::compile::Compiler;

    #[test]
    fn the_layout_is_that_of_the_device_code() {
        assert_eq!((size_of::<Arrange>(), align_of::<Arrange>()), (80, 8));
        assert_eq!((offset_of!(Arrange, arranged), offset_of!(Arrange, heads)), (32, 64));
        assert_eq!(offset_of!(Arrange, blocks_per_head), 76);
    }

    #[test]
    fn blocks_cover_every_key_and_channel() {
        let dims = Dims { batch: 1, heads: 1, len: 129, head_dim: 128 };
        assert_eq!(blocks_per_head(dims, true), 4);
        assert_eq!(blocks_per_head(dims, false), (9usize * 128).div_ceil(512));
    }

    /// Compiled where NVRTC is, and skipped elsewhere unless `EIGHTFOLD_REQUIRE_NVRTC` is set.
    #[test]
    fn both_programs_compile_without_spills() {
        let compiler = match Compiler::find() {
            Ok(compiler) => compiler,
            Err(error) => {
                assert!(std::env::var_os("EIGHTFOLD_REQUIRE_NVRTC").is_none(), "{error}");
                return;
            }
        };
        for from_rows in [true, false] {
            let cubin = compiler.compile(&program(from_rows), Arch::Sm90a).unwrap();
            assert!(cubin.is_lean(), "{}", cubin.log);
        }
    }
}
