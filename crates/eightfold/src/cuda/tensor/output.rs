//! The output of attention in device memory.

use super::memory::Memory;
use crate::cuda::driver::{ALIGNMENT_BYTES, Context, Device, Stream, check_pointer};
use crate::error::{Error, Result};
use crate::output::{Output, Values};
use crate::problem::{OutputFormat, Problem};
use crate::tensor::{Dims, Layout, Strides};
use std::sync::Arc;

/// An attention output in device memory: values, and the log-sum-exp where the problem asks for it.
#[derive(Debug)]
pub struct DeviceOutput {
    dims: Dims,
    format: OutputFormat,
    strides: Strides,
    values: Memory,
    lse: Option<Memory>,
}

/// A caller's output in device memory, by its addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RawOutput {
    /// The address of the first value.
    pub values: u64,
    /// Distances in elements; channels must be contiguous, the others multiples of 16 bytes.
    pub strides: Strides,
    /// The address of the log-sum-exp, f32 in `[batch, head, row]` order, if the problem asks for it.
    pub lse: Option<u64>,
}

impl RawOutput {
    /// Values at these distances; the log-sum-exp, where the problem asks for it, is set in its field.
    pub fn new(values: u64, strides: Strides) -> Self {
        RawOutput { values, strides, lse: None }
    }
}

impl DeviceOutput {
    /// Room for the output of a problem.
    pub fn new(device: &Device, problem: &Problem) -> Result<Self> {
        let dims = problem.output_dims();
        let count = dims.checked_count()?;
        let format = problem.output_format();
        let lse = problem.lse().then(|| device.allocate(4 * (count / dims.head_dim))).transpose()?;
        Ok(DeviceOutput {
            dims,
            format,
            strides: problem.output_layout().strides(dims),
            values: Memory::Owned(device.allocate(count * element_bytes(format))?),
            lse: lse.map(Memory::Owned),
        })
    }

    /// A caller's memory, written where it lies: nothing is copied, and nothing is freed.
    ///
    /// # Safety
    /// The memory must be as large as the problem and the strides say, stay alive until every launch into it is done,
    /// and be used by no one else meanwhile.
    pub unsafe fn from_raw(device: &Device, problem: &Problem, raw: RawOutput) -> Result<Self> {
        let dims = problem.output_dims();
        let format = problem.output_format();
        let bytes = check_raw(problem, &raw)?;
        let context = device.context();
        check_pointer(context, "output", raw.values, bytes, true)?;
        if let Some(lse) = raw.lse {
            check_pointer(context, "lse", lse, 4 * (dims.count() / dims.head_dim), false)?;
        }
        let borrowed = |pointer| Memory::Borrowed { context: context.clone(), pointer };
        Ok(DeviceOutput {
            dims,
            format,
            strides: raw.strides,
            values: borrowed(raw.values),
            lse: raw.lse.map(borrowed),
        })
    }

    /// An output whose addresses come with every launch; `placeholder` stands for them.
    pub(in crate::cuda) fn unbound(
        device: &Device,
        problem: &Problem,
        strides: Strides,
        placeholder: u64,
    ) -> Result<Self> {
        let lse = problem.lse().then_some(placeholder);
        check_raw(problem, &RawOutput { values: placeholder, strides, lse })?;
        let borrowed = |pointer| Memory::Borrowed { context: device.context().clone(), pointer };
        Ok(DeviceOutput {
            dims: problem.output_dims(),
            format: problem.output_format(),
            strides,
            values: borrowed(placeholder),
            lse: lse.map(borrowed),
        })
    }

    /// Fills it with NaN, in the stream's order.
    #[doc(hidden)]
    pub fn poison(&mut self, stream: &Stream) -> Result<()> {
        // All bits set is NaN in every output format.
        let bytes = self.dense_bytes("be poisoned")?;
        self.values.fill(stream, bytes, 0xff)?;
        match &self.lse {
            Some(lse) => lse.fill(stream, 4 * (self.dims.count() / self.dims.head_dim), 0xff),
            None => Ok(()),
        }
    }

    /// Copies it to the host and waits for it.
    pub fn download(&self, stream: &Stream, output: &mut Output) -> Result<()> {
        self.dense_bytes("be downloaded")?;
        let count = self.dims.count();
        match (&mut output.values, self.format) {
            (Values::F32(values), OutputFormat::F32) if values.len() == count => {
                self.values.download(stream, values)?
            }
            (Values::F16(values), OutputFormat::F16) if values.len() == count => {
                self.values.download(stream, values)?
            }
            (Values::Bf16(values), OutputFormat::Bf16) if values.len() == count => {
                self.values.download(stream, values)?;
            }
            _ => return Err(self.misfit()),
        }
        match (&mut output.lse, &self.lse) {
            (Some(lse), Some(memory)) if lse.len() == count / self.dims.head_dim => memory.download(stream, lse),
            (None, None) => Ok(()),
            _ => Err(self.misfit()),
        }
    }

    /// The address of the first value.
    pub fn values(&self) -> u64 {
        self.values.pointer()
    }

    /// The address of the log-sum-exp, if there is room for it.
    pub fn lse(&self) -> Option<u64> {
        self.lse.as_ref().map(Memory::pointer)
    }

    /// Distances between neighbours, in elements.
    pub fn strides(&self) -> Strides {
        self.strides
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        self.values.context()
    }

    /// Whether this is room for that problem's output.
    pub(crate) fn check(&self, problem: &Problem) -> Result<()> {
        let fits = self.dims == problem.output_dims()
            && self.format == problem.output_format()
            && self.lse.is_some() == problem.lse();
        if !fits {
            return Err(Error::invalid(
                "output",
                format!("does not fit the problem {problem}"),
                "make it with DeviceOutput::new for the same problem",
            ));
        }
        Ok(())
    }

    /// The bytes of the values, if there is nothing between them that belongs to someone else.
    fn dense_bytes(&self, verb: &str) -> Result<usize> {
        let dense = [Layout::Bhsd, Layout::Bshd].iter().any(|layout| layout.strides(self.dims) == self.strides);
        if !dense {
            return Err(Error::invalid(
                "output",
                format!("has gaps between its rows and cannot {verb} as a whole"),
                "use an output without gaps, or do it with the library that owns the memory",
            ));
        }
        Ok(self.dims.count() * element_bytes(self.format))
    }

    fn misfit(&self) -> Error {
        Error::invalid(
            "output",
            format!("does not fit the device's output of dims {}", self.dims),
            "make it with Output::zeros for the same problem",
        )
    }
}

fn element_bytes(format: OutputFormat) -> usize {
    match format {
        OutputFormat::F32 => 4,
        OutputFormat::F16 | OutputFormat::Bf16 => 2,
    }
}

/// The bytes from the first value to the last, if the strides are sound and the log-sum-exp is there if it is wanted.
fn check_raw(problem: &Problem, raw: &RawOutput) -> Result<usize> {
    let Dims { batch, heads, len, head_dim } = problem.output_dims();
    let element = element_bytes(problem.output_format());
    if raw.strides.channel != 1 {
        return Err(Error::invalid(
            "output",
            format!("channels are {} elements apart", raw.strides.channel),
            "make the innermost dimension contiguous",
        ));
    }
    if raw.lse.is_some() != problem.lse() {
        let words = if problem.lse() { "the problem asks for it, but it is missing" } else { "no one asked for it" };
        return Err(Error::invalid("lse", words, "set Problem::with_lse to whether there is room for it"));
    }
    let mut extent = Some(head_dim);
    for (name, count, stride) in
        [("batch", batch, raw.strides.batch), ("head", heads, raw.strides.head), ("row", len, raw.strides.row)]
    {
        if !stride.wrapping_mul(element).is_multiple_of(ALIGNMENT_BYTES) {
            return Err(Error::invalid(
                "output",
                format!("the {name} stride of {stride} elements is not a multiple of {ALIGNMENT_BYTES} bytes"),
                "pad each row to a multiple of 16 bytes",
            ));
        }
        if count > 1 && stride < head_dim {
            return Err(Error::invalid(
                "output",
                format!("the {name} stride of {stride} elements makes rows of {head_dim} overlap"),
                "give every row room of its own",
            ));
        }
        extent = extent.zip(stride.checked_mul(count - 1)).and_then(|(extent, step)| extent.checked_add(step));
    }
    extent.and_then(|extent| extent.checked_mul(element)).filter(|bytes| *bytes <= isize::MAX as usize).ok_or_else(
        || Error::invalid("output", "the last value lies beyond what can be addressed", "make the strides smaller"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::Shape;

    fn problem() -> Problem {
        Problem::new(Shape::new(2, 3, 5, 64)).unwrap().with_output_format(OutputFormat::F16)
    }

    fn raw() -> RawOutput {
        RawOutput { values: 0x1000, strides: Layout::Bshd.strides(problem().shape().query_dims()), lse: None }
    }

    #[test]
    fn a_callers_output_must_be_sound() {
        assert_eq!(check_raw(&problem(), &raw()), Ok(2 * 3 * 5 * 64 * 2));
        let refused = |raw| check_raw(&problem(), &raw).unwrap_err().to_string();
        let strides = raw().strides;
        assert!(refused(RawOutput { lse: Some(0x2000), ..raw() }).starts_with("lse: no one asked"));
        assert!(refused(RawOutput { strides: Strides { channel: 2, ..strides }, ..raw() }).contains("channels are 2"));
        assert!(refused(RawOutput { strides: Strides { row: 68, ..strides }, ..raw() }).contains("row stride of 68"));
        assert!(refused(RawOutput { strides: Strides { row: 0, ..strides }, ..raw() }).contains("overlap"));
        assert!(refused(RawOutput { strides: Strides { row: 32, ..strides }, ..raw() }).contains("overlap"));
        let far = Strides { batch: usize::MAX / 64 * 64, ..strides };
        assert!(refused(RawOutput { strides: far, ..raw() }).contains("addressed"));
        let missing = check_raw(&problem().with_lse(true), &raw()).unwrap_err().to_string();
        assert!(missing.starts_with("lse: the problem asks for it"), "{missing}");
    }
}
