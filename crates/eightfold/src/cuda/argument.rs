//! What every attention kernel is passed: the structs of `kernels/attention/operands.cuh`, field by field.

use super::counts::{scale_strides, size, stride};
use super::kernel::{Argument, Role, Slot};
use super::tensor::{DeviceOutput, DeviceTensor};
use crate::error::Result;
use crate::problem::{Problem, Window};
use std::f32::consts::LOG2_E;
use std::mem::offset_of;

/// Where a tensor's scales are.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Scales {
    values: u64,
    /// Scales from one (batch, head) to the next.
    head_stride: i32,
    /// Rows that share a scale.
    rows: i32,
}

/// Where a tensor's lines are, and how many bytes apart: rows of channels, or for V transposed rows of keys of one channel.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CodeLines {
    codes: u64,
    batch_stride: i64,
    head_stride: i64,
    line_stride: i64,
}

/// Where the output and the log-sum-exp are.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OutputRows {
    values: u64,
    batch_stride: i64,
    head_stride: i64,
    row_stride: i64,
    lse: u64,
}

/// What a problem with a window, a bound of its scores or sinks is passed behind what every problem is.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq)]
struct Extras {
    sinks: u64,
    window_left: i32,
    window_right: i32,
    /// In powers of two.
    softcap: f32,
    /// From scores in powers of two to the power of two that is e^(2 · score / softcap).
    softcap_steepness: f32,
}

/// What a kernel is passed for a problem: `every`, and behind it what only some problems have.
pub(super) fn with_extras<T: Copy>(every: &T, problem: &Problem, sinks: Option<u64>) -> Result<Argument> {
    let argument = Argument::of(every);
    match Extras::new(problem, sinks)? {
        Some(extras) => Ok(argument.followed_by(&extras)),
        None => Ok(argument),
    }
}

/// Where the address of the sinks is, behind a `T`.
pub(super) const fn sinks_behind<T>() -> Slot {
    Slot::pointer(Role::Sinks, size_of::<T>() + offset_of!(Extras, sinks))
}

impl Extras {
    /// None if the problem has none of them.
    fn new(problem: &Problem, sinks: Option<u64>) -> Result<Option<Extras>> {
        let (window, softcap) = (problem.window(), problem.softcap());
        if window == Window::default() && softcap.is_none() && !problem.has_sinks() {
            return Ok(None);
        }
        // A side that reaches as far as the sequence is open, and sums with positions stay small.
        let side = |keys: Option<usize>, all: usize| size("window", keys.map_or(all, |keys| keys.min(all)));
        Ok(Some(Extras {
            sinks: sinks.unwrap_or(0),
            window_left: side(window.left, problem.shape().key_len)?,
            window_right: side(window.right, problem.shape().query_len)?,
            // Far beyond these limits nothing is capped, and everything.
            softcap: softcap.map_or(0.0, |softcap| (softcap * LOG2_E).min(f32::MAX)),
            softcap_steepness: softcap.map_or(0.0, |softcap| (2.0 / softcap).min(1e30)),
        }))
    }
}

impl OutputRows {
    /// Where the address of the log-sum-exp is.
    pub(super) const LSE: usize = offset_of!(OutputRows, lse);
}

// What is given by address is given at the front of these.
const _: () = assert!(
    offset_of!(Scales, values) == 0 && offset_of!(CodeLines, codes) == 0 && offset_of!(OutputRows, values) == 0
);

impl Scales {
    /// As many rows share each as there are.
    pub(super) fn of_heads(values: u64) -> Scales {
        Scales { values, head_stride: 1, rows: i32::MAX }
    }

    /// One for each of so many rows of a head.
    pub(super) fn of_rows(values: u64, rows: i32) -> Scales {
        Scales { values, head_stride: rows, rows: 1 }
    }

    pub(super) fn new(tensor: &DeviceTensor) -> Result<Scales> {
        let (head_stride, rows) = scale_strides(tensor.granularity(), tensor.dims().len)?;
        Ok(Scales { values: tensor.scales(), head_stride, rows })
    }
}

impl CodeLines {
    /// Nothing.
    pub(super) const NONE: CodeLines = CodeLines { codes: 0, batch_stride: 0, head_stride: 0, line_stride: 0 };

    pub(super) fn new(tensor: &DeviceTensor) -> Result<CodeLines> {
        let lines = tensor.lines();
        Ok(CodeLines {
            codes: tensor.codes(),
            batch_stride: stride("strides", lines.batch_stride)?,
            head_stride: stride("strides", lines.head_stride)?,
            line_stride: stride("strides", lines.line_stride)?,
        })
    }

    /// Bytes from one line to the next.
    pub(super) fn line_stride(&self) -> i64 {
        self.line_stride
    }
}

impl OutputRows {
    /// Sequences, heads and rows so many values apart.
    pub(super) fn at(values: u64, [batch_stride, head_stride, row_stride]: [i64; 3], lse: u64) -> OutputRows {
        OutputRows { values, batch_stride, head_stride, row_stride, lse }
    }

    /// The same elsewhere.
    pub(super) fn with_addresses(self, values: u64, lse: u64) -> OutputRows {
        OutputRows { values, lse, ..self }
    }

    pub(super) fn new(output: &DeviceOutput) -> Result<OutputRows> {
        let strides = output.strides();
        Ok(OutputRows {
            values: output.values(),
            batch_stride: stride("output", strides.batch)?,
            head_stride: stride("output", strides.head)?,
            row_stride: stride("output", strides.row)?,
            lse: output.lse().unwrap_or(0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::Shape;

    /// The offsets that the C structs have, by the rules of their language, on the device.
    #[test]
    fn the_layout_is_that_of_the_device_code() {
        assert_eq!((size_of::<Scales>(), size_of::<CodeLines>(), size_of::<OutputRows>()), (16, 32, 40));
        assert_eq!((offset_of!(Scales, head_stride), offset_of!(Scales, rows)), (8, 12));
        assert_eq!((offset_of!(CodeLines, batch_stride), offset_of!(CodeLines, line_stride)), (8, 24));
        assert_eq!((offset_of!(OutputRows, batch_stride), offset_of!(OutputRows, row_stride)), (8, 24));
        assert_eq!(offset_of!(OutputRows, lse), 32);
    }

    #[test]
    fn what_only_some_problems_have_is_at_the_end() {
        assert_eq!((size_of::<Extras>(), align_of::<Extras>(), offset_of!(Extras, sinks)), (24, 8, 0));
        assert_eq!((offset_of!(Extras, window_left), offset_of!(Extras, window_right)), (8, 12));
        assert_eq!((offset_of!(Extras, softcap), offset_of!(Extras, softcap_steepness)), (16, 20));
        let problem = Problem::new(Shape::new(1, 1, 300, 64).with_key_len(500)).unwrap();
        assert_eq!(Extras::new(&problem, None), Ok(None));
        let sides = |window| {
            let extras = Extras::new(&problem.with_window(window), None).unwrap().unwrap();
            (extras.window_left, extras.window_right)
        };
        assert_eq!(sides(Window::new(Some(7), Some(0))), (7, 0));
        assert_eq!(sides(Window::new(None, Some(9))), (500, 9));
        assert_eq!(sides(Window::new(Some(usize::MAX), None)), (500, 300));
        let capped = Extras::new(&problem.with_softcap(50.0).unwrap().with_sinks(), Some(16)).unwrap().unwrap();
        assert_eq!((capped.softcap, capped.softcap_steepness, capped.sinks), (50.0 * LOG2_E, 0.04, 16));
        let extreme = |softcap| Extras::new(&problem.with_softcap(softcap).unwrap(), None).unwrap().unwrap();
        assert!(extreme(f32::MAX).softcap.is_finite() && extreme(1e-45).softcap_steepness.is_finite());
    }
}
