//! FP8 tensors and outputs in device memory.

mod lines;
mod memory;
mod output;

pub use output::{DeviceOutput, RawOutput};

use super::driver::{ALIGNMENT_BYTES, Context, Device, Stream, check_pointer};
use crate::error::{Error, Result};
use crate::operands::{Operand, Operands};
use crate::tensor::{Dims, Fp8Format, Fp8Tensor, Granularity, Layout, Strides};
pub(crate) use lines::Lines;
pub(crate) use memory::Memory;
use std::sync::Arc;

/// An FP8 tensor in device memory: codes, scales, means where it was centred, and of Q the sinks of its heads where they have some.
///
/// Its codes lie in lines: rows of channels, or for V also rows of keys ([`Layout::Bhds`], [`Layout::Packed`]). A
/// line starts at a multiple of 16 bytes and is padded to one with zeros.
#[derive(Debug)]
pub struct DeviceTensor {
    dims: Dims,
    layout: Layout,
    format: Fp8Format,
    granularity: Granularity,
    lines: Lines,
    codes: Memory,
    scales: Memory,
    means: Option<Memory>,
    sinks: Option<Memory>,
    largest_code: f32,
}

/// A caller's tensor in device memory, by its addresses.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct RawTensor {
    /// The logical dimensions.
    pub dims: Dims,
    /// The number format of the codes.
    pub format: Fp8Format,
    /// The order of the dimensions in memory.
    pub layout: Layout,
    /// The address of the first code.
    pub codes: u64,
    /// Distances in codes. The innermost must be 1, the others multiples of 16; 0 repeats a batch or a head.
    pub strides: Strides,
    /// How much of the tensor shares a scale.
    pub granularity: Granularity,
    /// The address of the first scale, f32 in `[batch, head, block]` order.
    pub scales: u64,
    /// How many scales there are.
    pub scale_count: usize,
    /// The address of the channel means, f32 in `[batch, head, channel]` order, if the tensor was centred.
    pub means: Option<u64>,
    /// Of queries, the address of the sink of each head, f32, if they have some.
    pub sinks: Option<u64>,
    /// A promise that no code is larger in magnitude than this; none promises nothing.
    pub largest_code: Option<f32>,
}

impl DeviceTensor {
    /// Copies a tensor to the device, laid out as the kernel wants it: rows of channels, or for V also rows of keys
    /// ([`Layout::Bhds`], [`Layout::Packed`]), each padded to a multiple of 16 bytes.
    ///
    /// Waits for the stream, so that the tensor may be dropped.
    pub fn upload(device: &Device, stream: &Stream, tensor: &Fp8Tensor, layout: Layout) -> Result<Self> {
        let lines = Lines::padded(tensor.dims(), layout)?;
        let codes = lines.lay_out(tensor);
        let upload_f32 = |values: &[f32]| {
            let buffer = device.allocate(size_of_val(values))?;
            buffer.upload(stream, values)?;
            Ok::<_, Error>(Memory::Owned(buffer))
        };
        let buffer = device.allocate(codes.len())?;
        buffer.upload(stream, &codes)?;
        Ok(DeviceTensor {
            dims: tensor.dims(),
            layout,
            format: tensor.format(),
            granularity: tensor.scales().granularity(),
            lines,
            codes: Memory::Owned(buffer),
            scales: upload_f32(tensor.scales().values())?,
            means: tensor.means().map(upload_f32).transpose()?,
            sinks: tensor.sinks().map(upload_f32).transpose()?,
            largest_code: tensor.largest_code(),
        })
    }

    /// A caller's tensor, used where it lies: nothing is copied, and nothing is freed.
    ///
    /// # Safety
    /// The memory must hold what `raw` says, stay alive as long as the value is used, and not be written meanwhile.
    /// Every code must be finite and no larger than promised, and so must be what pads a line to 16 bytes; zeros are.
    /// Every scale must be finite and positive, and every sink finite. These are not checked, because that would need a wait for the device.
    pub unsafe fn from_raw(device: &Device, raw: RawTensor) -> Result<Self> {
        let RawTensor { dims, format, layout, granularity, .. } = raw;
        let lines = raw.lines()?;
        let context = device.context();
        check_pointer(context, "codes", raw.codes, lines.extent_bytes(), true)?;
        check_pointer(context, "scales", raw.scales, 4 * raw.scale_count, false)?;
        if let Some(means) = raw.means {
            check_pointer(context, "means", means, 4 * dims.batch * dims.heads * dims.head_dim, false)?;
        }
        if let Some(sinks) = raw.sinks {
            check_pointer(context, "sinks", sinks, 4 * dims.heads, false)?;
        }
        let borrowed = |pointer| Memory::Borrowed { context: context.clone(), pointer };
        Ok(DeviceTensor {
            dims,
            layout,
            format,
            granularity,
            lines,
            codes: borrowed(raw.codes),
            scales: borrowed(raw.scales),
            means: raw.means.map(borrowed),
            sinks: raw.sinks.map(borrowed),
            largest_code: raw.largest_code.unwrap_or(format.max()),
        })
    }

    /// A tensor of parts that a kernel fills.
    pub(super) fn from_parts(
        dims: Dims,
        format: Fp8Format,
        granularity: Granularity,
        lines: Lines,
        codes: Memory,
        scales: Memory,
        largest_code: f32,
    ) -> Self {
        let layout = lines.layout();
        DeviceTensor { dims, layout, format, granularity, lines, codes, scales, means: None, sinks: None, largest_code }
    }

    /// The same, centred: with means that a kernel fills.
    pub(super) fn with_means(self, means: Option<Memory>) -> Self {
        DeviceTensor { means, ..self }
    }

    /// Sets every code, scale and mean to NaN, in the stream's order.
    pub(super) fn poison(&self, stream: &Stream) -> Result<()> {
        // All bits set is NaN in f32 and in both formats.
        self.codes.fill(stream, self.lines.extent_bytes(), 0xff)?;
        self.scales.fill(stream, 4 * self.granularity.count(self.dims), 0xff)?;
        let channels = self.dims.batch * self.dims.heads * self.dims.head_dim;
        self.means.as_ref().map_or(Ok(()), |means| means.fill(stream, 4 * channels, 0xff))
    }

    /// The logical dimensions.
    pub fn dims(&self) -> Dims {
        self.dims
    }

    /// The order of the dimensions in memory.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The number format of the codes.
    pub fn format(&self) -> Fp8Format {
        self.format
    }

    /// How much of the tensor shares a scale.
    pub fn granularity(&self) -> Granularity {
        self.granularity
    }

    /// The address of the first code.
    pub fn codes(&self) -> u64 {
        self.codes.pointer()
    }

    /// The address of the first scale.
    pub fn scales(&self) -> u64 {
        self.scales.pointer()
    }

    /// The address of the first channel mean, if the tensor was centred.
    pub fn means(&self) -> Option<u64> {
        self.means.as_ref().map(Memory::pointer)
    }

    /// The address of the first head's sink, if its heads have some.
    pub fn sinks(&self) -> Option<u64> {
        self.sinks.as_ref().map(Memory::pointer)
    }

    /// No code is larger in magnitude, as far as is known: the format's largest value where nothing is.
    pub fn largest_code(&self) -> f32 {
        self.largest_code
    }

    /// Copies the tensor to the host, into its own layout without padding, and waits for it; what is packed comes back
    /// transposed.
    ///
    /// A scale or a code that is not finite, as quantising values that are not finite leaves them, is an error.
    pub fn download(&self, stream: &Stream) -> Result<Fp8Tensor<'static>> {
        let mut scales = vec![0.0f32; self.granularity.count(self.dims)];
        self.scales.download(stream, &mut scales)?;
        let mut lines = vec![0u8; self.lines.extent_bytes()];
        self.codes.download(stream, &mut lines)?;
        let codes = self.lines.gather(&lines);
        let scales = crate::tensor::Scales::new(self.granularity, scales)?;
        let layout = if self.layout == Layout::Packed { Layout::Bhds } else { self.layout };
        let mut tensor = Fp8Tensor::new(self.dims, layout, self.format, codes, scales)?;
        let download_f32 = |memory: &Memory, count| {
            let mut values = vec![0.0f32; count];
            memory.download(stream, &mut values)?;
            Ok::<_, Error>(values)
        };
        if let Some(means) = &self.means {
            tensor = tensor.with_means(download_f32(means, self.dims.batch * self.dims.heads * self.dims.head_dim)?)?;
        }
        match &self.sinks {
            Some(sinks) => tensor.with_sinks(download_f32(sinks, self.dims.heads)?),
            None => Ok(tensor),
        }
    }

    pub(crate) fn lines(&self) -> &Lines {
        &self.lines
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        self.codes.context()
    }
}

impl Operands {
    /// Of tensors on the device.
    pub fn of(q: &DeviceTensor, k: &DeviceTensor, v: &DeviceTensor) -> Self {
        let [q, k, v] = [q, k, v].map(|tensor| Operand {
            dims: tensor.dims(),
            format: tensor.format(),
            layout: tensor.layout(),
            granularity: tensor.granularity(),
            centred: tensor.means().is_some(),
            largest_code: tensor.largest_code(),
        });
        Operands { q, k, v }
    }
}

impl RawTensor {
    /// A tensor without gaps in this layout. What differs is set in the fields: strides, means, a promise of small codes.
    pub fn new(
        dims: Dims,
        format: Fp8Format,
        layout: Layout,
        codes: u64,
        granularity: Granularity,
        scales: u64,
    ) -> Self {
        RawTensor {
            dims,
            format,
            layout,
            codes,
            strides: layout.strides(dims),
            granularity,
            scales,
            scale_count: granularity.count(dims),
            means: None,
            sinks: None,
            largest_code: None,
        }
    }

    /// The lines of the tensor, if its sizes, strides and counts are sound.
    fn lines(&self) -> Result<Lines> {
        let count = self.dims.checked_count()?;
        if count == 0 {
            return Err(Error::invalid("dims", format!("{} has a zero size", self.dims), "give positive sizes"));
        }
        self.granularity.check("scales")?;
        let expected = self.granularity.count(self.dims);
        if self.scale_count != expected {
            return Err(Error::invalid(
                "scales",
                format!("{} scales {}, but dims {} need {expected}", self.scale_count, self.granularity, self.dims),
                "give one scale for each unit of the granularity",
            ));
        }
        Lines::strided(self.dims, self.layout, self.strides)
    }
}

/// Whether all are on the device whose kernel is to use them.
pub(crate) fn check_device(
    device: &Device,
    q: &DeviceTensor,
    k: &DeviceTensor,
    v: &DeviceTensor,
    output: &DeviceOutput,
) -> Result<()> {
    let context = device.context();
    let tensors = [("q", q.context()), ("k", k.context()), ("v", v.context()), ("output", output.context())];
    if let Some((name, other)) = tensors.iter().find(|(_, other)| !Arc::ptr_eq(other, context)) {
        return Err(Error::invalid(
            *name,
            format!("is on device {}, but the kernel is on device {}", other.ordinal(), context.ordinal()),
            "use one device for all",
        ));
    }
    Ok(())
}

/// The next multiple of what lines are aligned to.
pub(crate) fn padded_bytes(bytes: usize) -> usize {
    bytes.checked_next_multiple_of(ALIGNMENT_BYTES).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIMS: Dims = Dims { batch: 2, heads: 3, len: 5, head_dim: 16 };

    fn raw() -> RawTensor {
        RawTensor {
            dims: DIMS,
            format: Fp8Format::E4m3,
            layout: Layout::Bhsd,
            codes: 0x1000,
            strides: Layout::Bhsd.strides(DIMS),
            granularity: Granularity::Head,
            scales: 0x2000,
            scale_count: 6,
            means: None,
            sinks: None,
            largest_code: None,
        }
    }

    #[track_caller]
    fn assert_refused(raw: RawTensor, expected: &str) {
        let error = raw.lines().unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }

    #[test]
    fn a_callers_tensor_must_be_sound() {
        assert_eq!(raw().lines().unwrap().extent_bytes(), DIMS.count());
        assert_refused(
            RawTensor { scale_count: 5, ..raw() },
            "scales: 5 scales per head, but dims [2, 3, 5, 16] need 6",
        );
        assert_refused(RawTensor { granularity: Granularity::Block { rows: 0 }, ..raw() }, "scales: a block of 0 rows");
        assert_refused(RawTensor { dims: Dims { len: 0, ..DIMS }, ..raw() }, "dims: ");
        let strides = Strides { row: 24, ..raw().strides };
        assert_refused(RawTensor { strides, ..raw() }, "strides: ");
    }
}
