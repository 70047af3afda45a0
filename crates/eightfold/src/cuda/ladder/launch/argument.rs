//! What is passed to `ladder_attention` by value; the structs of `kernels/ladder/problem.cuh`, field by field.

use crate::cuda::argument::{CodeLines, OutputRows, Scales, sinks_behind};
use crate::cuda::counts::size;
use crate::cuda::kernel::{Role, Slot};
use crate::cuda::tensor::{DeviceOutput, DeviceTensor};
use crate::error::{Error, Result};
use crate::problem::Problem;
use std::f32::consts::LOG2_E;
use std::mem::offset_of;

/// An FP8 tensor.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Operand {
    lines: CodeLines,
    scales: Scales,
}

/// One problem with its tensors.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Attention {
    q: Operand,
    k: Operand,
    v: Operand,
    k_means: u64,
    v_means: u64,
    output: OutputRows,
    pub(super) queue: u64,
    pub(super) dump: u64,
    batch: i32,
    query_heads: i32,
    kv_heads: i32,
    query_len: i32,
    key_len: i32,
    scale_log2: f32,
    pub(super) dump_work: i32,
    /// From this block on, blocks share a multiprocessor with an earlier one; 0 if they do not all run at once.
    pub(super) paired_from: i32,
}

/// What it is given by address, but for the workspace and V's means, which no caller's V has.
pub(super) const SLOTS: &[Slot] = &[
    Slot::pointer(Role::Q, offset_of!(Attention, q) + offset_of!(Operand, lines)),
    Slot::pointer(Role::K, offset_of!(Attention, k) + offset_of!(Operand, lines)),
    Slot::pointer(Role::V, offset_of!(Attention, v) + offset_of!(Operand, lines)),
    Slot::pointer(Role::QScales, offset_of!(Attention, q) + offset_of!(Operand, scales)),
    Slot::pointer(Role::KScales, offset_of!(Attention, k) + offset_of!(Operand, scales)),
    Slot::pointer(Role::VScales, offset_of!(Attention, v) + offset_of!(Operand, scales)),
    Slot::pointer(Role::KMeans, offset_of!(Attention, k_means)),
    Slot::pointer(Role::Output, offset_of!(Attention, output)),
    Slot::pointer(Role::Lse, offset_of!(Attention, output) + OutputRows::LSE),
    sinks_behind::<Attention>(),
];

impl Operand {
    fn new(tensor: &DeviceTensor) -> Result<Operand> {
        let lines = CodeLines::new(tensor)?;
        // The kernel multiplies by it in 32 bits.
        if u32::try_from(lines.line_stride()).is_err() {
            return Err(Error::invalid("strides", "lines are 4 GiB or more apart", "lay the tensor out as bhsd"));
        }
        Ok(Operand { lines, scales: Scales::new(tensor)? })
    }
}

impl Attention {
    /// Without queue and dump.
    pub(super) fn new(
        problem: &Problem,
        q: &DeviceTensor,
        k: &DeviceTensor,
        v: &DeviceTensor,
        output: &DeviceOutput,
    ) -> Result<Attention> {
        let shape = problem.shape();
        Ok(Attention {
            q: Operand::new(q)?,
            k: Operand::new(k)?,
            v: Operand::new(v)?,
            k_means: k.means().unwrap_or(0),
            v_means: v.means().unwrap_or(0),
            output: OutputRows::new(output)?,
            queue: 0,
            dump: 0,
            batch: size("batch", shape.batch)?,
            query_heads: size("query_heads", shape.query_heads)?,
            kv_heads: size("kv_heads", shape.kv_heads)?,
            query_len: size("query_len", shape.query_len)?,
            key_len: size("key_len", shape.key_len)?,
            scale_log2: problem.softmax_scale() * LOG2_E,
            dump_work: -1,
            paired_from: 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The offsets that the C struct has, by the rules of its language, on the device.
    #[test]
    fn the_layout_is_that_of_the_device_code() {
        assert_eq!(size_of::<Operand>(), 48);
        assert_eq!(offset_of!(Operand, scales), 32);
        assert_eq!((size_of::<Attention>(), align_of::<Attention>()), (248, 8));
        let offsets = [
            (offset_of!(Attention, k), 48),
            (offset_of!(Attention, v), 96),
            (offset_of!(Attention, k_means), 144),
            (offset_of!(Attention, v_means), 152),
            (offset_of!(Attention, output), 160),
            (offset_of!(Attention, queue), 200),
            (offset_of!(Attention, dump), 208),
            (offset_of!(Attention, batch), 216),
            (offset_of!(Attention, key_len), 232),
            (offset_of!(Attention, scale_log2), 236),
            (offset_of!(Attention, dump_work), 240),
            (offset_of!(Attention, paired_from), 244),
        ];
        for (offset, expected) in offsets {
            assert_eq!(offset, expected);
        }
    }
}
