//! Quantising into a part of a workspace: what a call from values does before it attends.

use super::argument::Quantize;
use super::{DeviceQuantizer, Kind, Look, ValueFormat};
use crate::cuda::driver::{ALIGNMENT_BYTES, Device, Stream};
use crate::cuda::tensor::Lines;
use crate::cuda::workspace::Division;
use crate::error::{Error, Result};
use crate::quantize::ROWS_PER_SUM;
use crate::tensor::{Dims, Fp8Format, Granularity, Layout, Strides};

/// A quantiser for values at fixed strides that writes into a workspace.
#[derive(Debug, Clone)]
pub(crate) struct Lent {
    pub(super) quantizer: DeviceQuantizer,
    argument: Quantize,
    places: Places,
    look: Look,
}

/// Where the results are, from the start of the workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Places {
    pub(crate) codes: usize,
    pub(crate) scales: usize,
    magnitudes: usize,
    pub(crate) means: Option<usize>,
    sums: Option<usize>,
}

/// What is quantised, and how.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Order {
    pub(crate) dims: Dims,
    pub(crate) values: ValueFormat,
    /// Of the values, in elements; the channels follow each other.
    pub(crate) strides: Strides,
    pub(crate) format: Fp8Format,
    /// Of the codes.
    pub(crate) layout: Layout,
    pub(crate) granularity: Granularity,
    pub(crate) largest_code: f32,
    pub(crate) centred: bool,
}

impl Lent {
    /// `name` is that of the tensor, for errors.
    pub(crate) fn new(device: &Device, name: &str, order: Order, division: &mut Division) -> Result<Lent> {
        let Order { dims, values, strides, format, layout, granularity, largest_code, centred } = order;
        check_strides(name, dims, values, strides)?;
        let kind = Kind::new(dims, values, format, layout, centred);
        let quantizer = DeviceQuantizer::prepare_once(device, kind, dims, granularity)?;
        let quantizer = quantizer.with_largest_code(largest_code)?;
        let lines = Lines::padded(dims, layout)?;
        let Dims { batch, heads, len, head_dim } = dims;
        let (scale_count, channels) = (granularity.count(dims), batch * heads * head_dim);
        let places = Places {
            codes: division.take(lines.extent_bytes()),
            scales: division.take(4 * scale_count),
            magnitudes: division.take(4 * scale_count),
            means: centred.then(|| division.take(4 * channels)),
            sums: quantizer.has_sums().then(|| division.take(8 * channels * len.div_ceil(ROWS_PER_SUM))),
        };
        let argument = quantizer.unbound(strides, &lines)?;
        Ok(Lent { look: Look::new(dims, values, argument), argument, quantizer, places })
    }

    pub(crate) fn places(&self) -> Places {
        self.places
    }

    /// How many kernels a launch puts into the stream.
    pub(crate) fn kernels(&self) -> usize {
        self.quantizer.kernels()
    }

    /// What finds values that are not finite.
    pub(crate) fn look(&self) -> &Look {
        &self.look
    }

    /// Puts the work into the stream.
    ///
    /// # Safety
    /// The values and the workspace must be on the quantiser's device, as large as they were said to be, and live until the
    /// work is done.
    pub(crate) unsafe fn launch(&self, stream: &Stream, values: u64, workspace: u64) -> Result<()> {
        // SAFETY: the places are as large as the argument says; the rest is the caller's word.
        unsafe { self.quantizer.put(stream, self.argument(values, workspace)) }
    }

    /// What is passed to the kernels.
    pub(super) fn argument(&self, values: u64, workspace: u64) -> Quantize {
        let at = |place: usize| workspace + place as u64;
        let Places { codes, scales, magnitudes, means, sums } = self.places;
        Quantize {
            values,
            codes: at(codes),
            scales: at(scales),
            magnitudes: at(magnitudes),
            means: means.map_or(0, at),
            sums: sums.map_or(0, at),
            ..self.argument
        }
    }
}

/// Kernels load 16 bytes at a time and count rows, in bytes, in 32 bits.
fn check_strides(name: &str, dims: Dims, values: ValueFormat, strides: Strides) -> Result<()> {
    let bytes = values.bytes();
    if strides.channel != 1 {
        return Err(Error::invalid(
            name,
            format!("channels are {} elements apart", strides.channel),
            "make the last dimension contiguous",
        ));
    }
    let Dims { batch, heads, len, .. } = dims;
    for (which, count, stride) in
        [("batch", batch, strides.batch), ("head", heads, strides.head), ("row", len, strides.row)]
    {
        if count > 1 && !stride.wrapping_mul(bytes).is_multiple_of(ALIGNMENT_BYTES) {
            return Err(Error::invalid(
                name,
                format!("the {which} stride of {stride} elements is not a multiple of {ALIGNMENT_BYTES} bytes"),
                "make it contiguous",
            ));
        }
    }
    if strides.row.checked_mul(bytes).is_none_or(|bytes| i32::try_from(bytes).is_err()) {
        return Err(Error::invalid(
            name,
            format!("rows are {} elements apart, and the quantiser counts to 2 GiB", strides.row),
            "make it contiguous",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strides_that_the_quantiser_cannot_follow_are_refused_by_name() {
        let dims = Dims { batch: 2, heads: 3, len: 5, head_dim: 64 };
        let good = Layout::Bshd.strides(dims);
        let check = |strides| check_strides("k", dims, ValueFormat::Bf16, strides);
        let refused = |strides| check(strides).unwrap_err().to_string();
        assert_eq!(check(good), Ok(()));
        assert_eq!(check(Strides { batch: 0, ..good }), Ok(()));
        assert!(refused(Strides { channel: 2, ..good }).starts_with("k: channels are 2 elements apart"));
        assert!(refused(Strides { row: 68, ..good }).starts_with("k: the row stride of 68 elements"));
        assert!(refused(Strides { row: 1 << 30, ..good }).contains("2 GiB"));
    }
}
