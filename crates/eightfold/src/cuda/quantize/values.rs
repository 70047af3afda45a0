//! Values in device memory, before they are quantised.

use crate::cuda::driver::{Context, Device, Plain, Stream, check_pointer};
use crate::cuda::tensor::Memory;
use crate::error::{Error, Result};
use crate::fp8::Element;
use crate::tensor::{Dims, Layout};
use half::{bf16, f16};
use std::sync::Arc;

/// The number format of values that can be quantised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ValueFormat {
    /// 32-bit float.
    F32,
    /// IEEE half precision.
    F16,
    /// bfloat16.
    Bf16,
}

/// A number type that can be uploaded and quantised on the device: `f32`, `half::f16`, `half::bf16`.
pub trait Number: Element + Plain {
    /// Its format.
    const FORMAT: ValueFormat;
}

impl Number for f32 {
    const FORMAT: ValueFormat = ValueFormat::F32;
}

impl Number for f16 {
    const FORMAT: ValueFormat = ValueFormat::F16;
}

impl Number for bf16 {
    const FORMAT: ValueFormat = ValueFormat::Bf16;
}

/// Values in device memory, without gaps: `[B,H,S,D]` or `[B,S,H,D]`.
#[derive(Debug)]
pub struct DeviceValues {
    dims: Dims,
    layout: Layout,
    format: ValueFormat,
    memory: Memory,
}

impl DeviceValues {
    /// Copies values to the device and waits until they are there.
    pub fn upload<T: Number>(
        device: &Device,
        stream: &Stream,
        values: &[T],
        dims: Dims,
        layout: Layout,
    ) -> Result<Self> {
        let count = check(dims, layout)?;
        if values.len() != count {
            return Err(Error::invalid(
                "values",
                format!("has {} elements, but dims {dims} hold {count}", values.len()),
                "pass one value per element",
            ));
        }
        let buffer = device.allocate(size_of_val(values))?;
        buffer.upload(stream, values)?;
        Ok(DeviceValues { dims, layout, format: T::FORMAT, memory: Memory::Owned(buffer) })
    }

    /// A caller's values, used where they lie: nothing is copied, and nothing is freed.
    ///
    /// # Safety
    /// The memory must hold as many values of the format, stay alive as long as the value is used, and not be written
    /// while they are quantised.
    pub unsafe fn from_raw(
        device: &Device,
        pointer: u64,
        dims: Dims,
        layout: Layout,
        format: ValueFormat,
    ) -> Result<Self> {
        let count = check(dims, layout)?;
        let context = device.context();
        check_pointer(context, "values", pointer, count * format.bytes(), true)?;
        Ok(DeviceValues { dims, layout, format, memory: Memory::Borrowed { context: context.clone(), pointer } })
    }

    /// The logical dimensions.
    pub fn dims(&self) -> Dims {
        self.dims
    }

    /// The order of the dimensions in memory.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The number format.
    pub fn format(&self) -> ValueFormat {
        self.format
    }

    /// The address of the first value.
    pub fn pointer(&self) -> u64 {
        self.memory.pointer()
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        self.memory.context()
    }
}

impl ValueFormat {
    /// Bytes of a value.
    pub fn bytes(self) -> usize {
        match self {
            ValueFormat::F32 => 4,
            ValueFormat::F16 | ValueFormat::Bf16 => 2,
        }
    }
}

/// How many values there are.
fn check(dims: Dims, layout: Layout) -> Result<usize> {
    let count = dims.checked_count()?;
    if count == 0 {
        return Err(Error::invalid("dims", format!("{dims} has a zero size"), "give positive sizes"));
    }
    if layout.is_transposed() {
        return Err(Error::invalid(
            "layout",
            format!("values that lie transposed ({layout}) are not quantised on the device"),
            "pass them as bhsd or bshd; the codes may be transposed",
        ));
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_a_size_and_lie_in_rows() {
        let dims = Dims { batch: 1, heads: 2, len: 3, head_dim: 8 };
        assert_eq!(check(dims, Layout::Bshd), Ok(48));
        assert!(check(dims, Layout::Bhds).unwrap_err().to_string().starts_with("layout: "));
        assert!(check(Dims { len: 0, ..dims }, Layout::Bhsd).unwrap_err().to_string().starts_with("dims: "));
    }
}
