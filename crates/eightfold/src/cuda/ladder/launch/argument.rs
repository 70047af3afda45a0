//! What is passed to `ladder_attention` by value; the structs of `kernels/ladder/attention.cu`, field by field.

use crate::cuda::counts::{scale_strides, size, stride};
use crate::cuda::tensor::{DeviceOutput, DeviceTensor};
use crate::error::{Error, Result};
use crate::problem::Problem;
use std::f32::consts::LOG2_E;

/// Where a tensor lies: line = row of channels, or for V transposed a row of keys of one channel.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Operand {
    codes: u64,
    batch_stride: i64,
    head_stride: i64,
    line_stride: i64,
    scales: u64,
    /// Scales from one (batch, head) to the next.
    scale_head_stride: i32,
    /// Rows that share a scale.
    scale_rows: i32,
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
    output: u64,
    output_batch_stride: i64,
    output_head_stride: i64,
    output_row_stride: i64,
    lse: u64,
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

impl Operand {
    fn new(tensor: &DeviceTensor) -> Result<Operand> {
        let lines = tensor.lines();
        let (scale_head_stride, scale_rows) = scale_strides(tensor.granularity(), tensor.dims().len)?;
        Ok(Operand {
            codes: tensor.codes(),
            batch_stride: stride("strides", lines.batch_stride)?,
            head_stride: stride("strides", lines.head_stride)?,
            // The kernel multiplies by it in 32 bits.
            line_stride: u32::try_from(lines.line_stride).map(i64::from).map_err(|_| {
                Error::invalid("strides", "lines are 4 GiB or more apart", "lay the tensor out as bhsd")
            })?,
            scales: tensor.scales(),
            scale_head_stride,
            scale_rows,
        })
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
        let strides = output.strides();
        Ok(Attention {
            q: Operand::new(q)?,
            k: Operand::new(k)?,
            v: Operand::new(v)?,
            k_means: k.means().unwrap_or(0),
            v_means: v.means().unwrap_or(0),
            output: output.values(),
            output_batch_stride: stride("output", strides.batch)?,
            output_head_stride: stride("output", strides.head)?,
            output_row_stride: stride("output", strides.row)?,
            lse: output.lse().unwrap_or(0),
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
    use std::mem::offset_of;

    /// The offsets that the C struct has, by the rules of its language, on the device.
    #[test]
    fn the_layout_is_that_of_the_device_code() {
        assert_eq!(size_of::<Operand>(), 48);
        assert_eq!((offset_of!(Operand, scales), offset_of!(Operand, scale_rows)), (32, 44));
        assert_eq!((size_of::<Attention>(), align_of::<Attention>()), (248, 8));
        let offsets = [
            (offset_of!(Attention, k), 48),
            (offset_of!(Attention, v), 96),
            (offset_of!(Attention, k_means), 144),
            (offset_of!(Attention, v_means), 152),
            (offset_of!(Attention, output), 160),
            (offset_of!(Attention, output_row_stride), 184),
            (offset_of!(Attention, lse), 192),
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
