//! f32, f16 or bf16 in device memory → FP8 or INT8 codes and scales there, the same bits as the host's
//! [`Quantizer`](crate::quantize::Quantizer) makes, centred or not.

mod argument;
mod fused;
mod kind;
mod lent;
mod pair;
#[cfg(test)]
mod quotient;
mod validate;
mod values;

pub(crate) use lent::{Lent, Order};
pub(crate) use pair::Pair;
pub(crate) use validate::{Look, REPORT_BYTES};

pub use values::{DeviceValues, Number, ValueFormat};

use super::counts::{scale_strides, size, stride};
use super::driver::{Buffer, Device, Function, Grid, Stream, fill};
use super::loaded::Loaded;
use super::tensor::{DeviceTensor, Lines, Memory};
use crate::cuda::hopper;
use crate::error::{Error, Result};
use crate::operands::{Operand, Operands};
use crate::problem::Problem;
use crate::quantize::{ROWS_PER_SUM, check_largest_code};
use crate::tensor::{Dims, Fp8Format, Granularity, Layout, Strides};
use argument::{Blocks, Cut, Quantize, SUM_THREADS, THREADS};
use fused::Fused;
use kind::Kind;
use std::sync::Arc;

/// A tensor that was quantised on the device, with what it takes to find out whether all went well.
#[derive(Debug)]
pub struct Quantized {
    tensor: DeviceTensor,
    /// The bits of the largest magnitude of everything that shares a scale.
    magnitudes: Buffer,
    /// Where it is centred, what the means are made of.
    sums: Option<Buffer>,
}

/// A quantiser compiled and loaded for values of one kind, ready to be launched any number of times.
#[derive(Debug, Clone)]
pub struct DeviceQuantizer {
    device: Device,
    way: Way,
    dims: Dims,
    values: ValueFormat,
    format: Fp8Format,
    granularity: Granularity,
    layout: Layout,
    largest_code: f32,
    centred: bool,
}

/// How the work is done.
#[derive(Debug, Clone)]
enum Way {
    /// One launch that reads every value once, where everything that shares a scale fits the blocks of a cluster.
    Fused { kernel: Arc<Loaded>, fused: Fused },
    /// One launch for scales of a row each.
    Rows { kernel: Function, blocks: Blocks },
    /// One launch for the largest magnitudes and one for the codes, both of which read the values; and where it is
    /// centred, two before them.
    Steps { codes: Arc<Loaded>, magnitudes: Function, centring: Option<Centring>, cut: Cut },
}

/// What finds the means.
#[derive(Debug, Clone)]
struct Centring {
    sums: Function,
    means: Function,
}

/// Quantises values on the device; `layout` is that of the codes, for V also transposed or packed.
///
/// Allocates the tensor, puts the work into the stream and returns. Values that are not finite give codes without
/// meaning: [`Quantized::check`] tells.
pub fn quantize(
    stream: &Stream,
    values: &DeviceValues,
    format: Fp8Format,
    granularity: Granularity,
    layout: Layout,
) -> Result<Quantized> {
    let quantizer = DeviceQuantizer::new(stream.device(), values, format, granularity, layout)?;
    let mut quantized = quantizer.allocate()?;
    quantizer.launch(stream, values, &mut quantized)?;
    Ok(quantized)
}

/// Quantises Q, K and V for attention, each as the fastest kernel for the problem on this device reads it: as
/// [`Quantizer::for_attention`](crate::quantize::Quantizer::for_attention) says, V in the order that its tensor cores take.
///
/// Allocates the tensors, puts the work into the stream and returns. Values that are not finite give codes without meaning:
/// [`Quantized::check`] tells.
pub fn for_attention(stream: &Stream, problem: &Problem, [q, k, v]: [&DeviceValues; 3]) -> Result<[Quantized; 3]> {
    let device = stream.device();
    let Operands { q: of_q, k: of_k, v: of_v } = Operands::assumed(problem);
    let is_hopper = hopper::target(device.arch()?).is_ok();
    let value_layout = if is_hopper { Layout::Packed } else { Layout::Bhds };
    let quantize = |values: &DeviceValues, operand: Operand, layout| {
        let Operand { format, granularity, centred, largest_code, .. } = operand;
        let new = if centred { DeviceQuantizer::centered } else { DeviceQuantizer::new };
        let quantizer = new(device, values, format, granularity, layout)?;
        let quantizer = quantizer.with_largest_code(largest_code)?;
        let mut quantized = quantizer.allocate()?;
        quantizer.launch(stream, values, &mut quantized)?;
        Ok::<_, Error>(quantized)
    };
    Ok([quantize(q, of_q, Layout::Bhsd)?, quantize(k, of_k, Layout::Bhsd)?, quantize(v, of_v, value_layout)?])
}

impl DeviceQuantizer {
    /// Compiles (or takes from the cache) and loads the kernels for values like these.
    pub fn new(
        device: &Device,
        values: &DeviceValues,
        format: Fp8Format,
        granularity: Granularity,
        layout: Layout,
    ) -> Result<Self> {
        let (dims, values) = (values.dims(), values.format());
        Self::prepare(device, Kind::new(dims, values, format, layout, false), dims, granularity)
    }

    /// The same for a tensor with each channel's mean over the rows subtracted before quantising and kept beside the
    /// codes. The means are summed in f64 in the order of the host's quantiser: they, too, are the same bits.
    pub fn centered(
        device: &Device,
        values: &DeviceValues,
        format: Fp8Format,
        granularity: Granularity,
        layout: Layout,
    ) -> Result<Self> {
        let (dims, values) = (values.dims(), values.format());
        Self::prepare(device, Kind::new(dims, values, format, layout, true), dims, granularity)
    }

    /// The same in one launch, where a cluster of blocks holds a head: the means are then summed in f32 in another order, and
    /// differ from the host's in their last bits. Codes and scales are those of the values less these very means.
    pub fn centered_once(
        device: &Device,
        values: &DeviceValues,
        format: Fp8Format,
        granularity: Granularity,
        layout: Layout,
    ) -> Result<Self> {
        let (dims, values) = (values.dims(), values.format());
        Self::prepare_once(device, Kind::new(dims, values, format, layout, true), dims, granularity)
    }

    fn prepare(device: &Device, kind: Kind, dims: Dims, granularity: Granularity) -> Result<Self> {
        let may_fuse = !kind.centered && device.arch()?.has_clusters();
        let fused = may_fuse.then(|| Fused::new(dims, kind.values, granularity, kind.layout)).flatten();
        Self::prepare_as(device, kind, dims, granularity, fused)
    }

    /// In one launch where that can be, centred or not.
    fn prepare_once(device: &Device, kind: Kind, dims: Dims, granularity: Granularity) -> Result<Self> {
        let new = if kind.centered { Fused::centred } else { Fused::new };
        let may_fuse = device.arch()?.has_clusters();
        let fused = may_fuse.then(|| new(dims, kind.values, granularity, kind.layout)).flatten();
        Self::prepare_as(device, kind, dims, granularity, fused)
    }

    fn prepare_as(
        device: &Device,
        kind: Kind,
        dims: Dims,
        granularity: Granularity,
        fused: Option<Fused>,
    ) -> Result<Self> {
        let Kind { values, format, layout, centered, .. } = kind;
        let cut = Cut::new(dims, values, granularity, layout)?;
        let fused = fused.map(|fused| Way::fused(device, kind, fused)).transpose()?.flatten();
        let way = match fused {
            Some(fused) => fused,
            None if granularity == (Granularity::Block { rows: 1 }) && kind.lanes_hold_rows() => {
                let codes = Loaded::get(device, &kind.program(cut.rows), device.arch()?)?;
                Way::Rows { kernel: codes.other_function("quantize_rows")?, blocks: cut.codes }
            }
            None => Way::steps(device, kind, cut)?,
        };
        Ok(DeviceQuantizer {
            device: device.clone(),
            way,
            dims,
            values,
            format,
            granularity,
            layout,
            largest_code: format.max(),
            centred: centered,
        })
    }

    /// How many kernels a launch puts into the stream: 1 where every value is read once, else 2, and 4 where it is
    /// centred.
    #[doc(hidden)]
    pub fn kernels(&self) -> usize {
        match &self.way {
            Way::Fused { .. } | Way::Rows { .. } => 1,
            Way::Steps { centring: None, .. } => 2,
            Way::Steps { centring: Some(_), .. } => 4,
        }
    }

    fn is_centered(&self) -> bool {
        self.centred
    }

    /// Whether launches keep partial sums.
    fn has_sums(&self) -> bool {
        matches!(self.way, Way::Steps { centring: Some(_), .. })
    }

    /// The same with larger scales, so that no code stands for more than this; it must be a value of the format. Set it
    /// before [`DeviceQuantizer::allocate`].
    pub fn with_largest_code(self, largest_code: f32) -> Result<Self> {
        check_largest_code(self.format, largest_code)?;
        Ok(DeviceQuantizer { largest_code, ..self })
    }

    /// Room for what a launch writes.
    pub fn allocate(&self) -> Result<Quantized> {
        let lines = Lines::padded(self.dims, self.layout)?;
        let count = self.granularity.count(self.dims);
        let codes = Memory::Owned(self.device.allocate(lines.extent_bytes())?);
        let scales = Memory::Owned(self.device.allocate(4 * count)?);
        let tensor =
            DeviceTensor::from_parts(self.dims, self.format, self.granularity, lines, codes, scales, self.largest_code);
        let Dims { batch, heads, len, head_dim } = self.dims;
        let channels = batch * heads * head_dim;
        let means = self.is_centered().then(|| self.device.allocate(4 * channels)).transpose()?.map(Memory::Owned);
        let sums_bytes = 8 * channels * len.div_ceil(ROWS_PER_SUM);
        let sums = self.has_sums().then(|| self.device.allocate(sums_bytes)).transpose()?;
        Ok(Quantized { tensor: tensor.with_means(means), magnitudes: self.device.allocate(4 * count)?, sums })
    }

    /// Puts the work into the stream and returns at once: nothing is allocated, and nothing waits. Values and result
    /// must live until it is done.
    pub fn launch(&self, stream: &Stream, values: &DeviceValues, quantized: &mut Quantized) -> Result<()> {
        let argument = self.argument(values, quantized)?;
        // SAFETY: the pointers were checked to be of this device and of the sizes that the struct says; that they live is the
        // caller's part.
        unsafe { self.put(stream, argument) }
    }

    /// # Safety
    /// What the argument points at must be on the quantiser's device, as large as the argument says, and live until the
    /// work is done.
    unsafe fn put(&self, stream: &Stream, argument: Quantize) -> Result<()> {
        match &self.way {
            Way::Fused { kernel, fused } => {
                let argument = Quantize { blocks_per_head: fused.per_head, block_rows: fused.block_rows, ..argument };
                // SAFETY: the kernel takes this struct (its layout is tested); the rest is the caller's word.
                unsafe { kernel.function().launch(stream, fused.grid(), &argument) }
            }
            Way::Rows { kernel, blocks } => {
                let grid = Grid { blocks: blocks.all, threads: THREADS, dynamic_shared_bytes: 0, cluster: 1 };
                // SAFETY: as above.
                unsafe { kernel.launch(stream, grid, &Quantize { blocks_per_head: blocks.per_head, ..argument }) }
            }
            Way::Steps { codes, magnitudes, centring, cut } => {
                let bytes = 4 * self.granularity.count(self.dims);
                // SAFETY: there is a magnitude for every scale, by the caller's word.
                unsafe { fill(self.device.context(), argument.magnitudes, bytes, stream, 0)? };
                let launch = |function: &Function, blocks: Blocks, threads| {
                    let grid = Grid { blocks: blocks.all, threads, dynamic_shared_bytes: 0, cluster: 1 };
                    // SAFETY: as above.
                    unsafe { function.launch(stream, grid, &Quantize { blocks_per_head: blocks.per_head, ..argument }) }
                };
                if let Some(Centring { sums, means }) = centring {
                    launch(sums, cut.sums, SUM_THREADS)?;
                    launch(means, cut.means, THREADS)?;
                }
                launch(magnitudes, cut.magnitudes, THREADS)?;
                launch(codes.function(), cut.codes, THREADS)
            }
        }
    }

    fn argument(&self, values: &DeviceValues, quantized: &Quantized) -> Result<Quantize> {
        let tensor = &quantized.tensor;
        let is_same = values.dims() == self.dims
            && values.format() == self.values
            && tensor.dims() == self.dims
            && tensor.format() == self.format
            && tensor.layout() == self.layout
            && tensor.granularity() == self.granularity
            && tensor.means().is_some() == self.is_centered()
            && tensor.largest_code() == self.largest_code;
        if !is_same {
            return Err(Error::invalid(
                "values",
                format!(
                    "values {} or their room {} are of another kind than prepared for",
                    values.dims(),
                    tensor.dims()
                ),
                "make a DeviceQuantizer for these values, and the room with its allocate()",
            ));
        }
        let context = self.device.context();
        if let Some(other) = [values.context(), tensor.context()].iter().find(|other| !Arc::ptr_eq(other, context)) {
            return Err(Error::invalid(
                "values",
                format!("device {} is not the quantiser's device {}", other.ordinal(), context.ordinal()),
                "use one device for all",
            ));
        }
        Ok(Quantize {
            values: values.pointer(),
            codes: tensor.codes(),
            magnitudes: quantized.magnitudes.pointer(),
            scales: tensor.scales(),
            sums: quantized.sums.as_ref().map_or(0, Buffer::pointer),
            means: tensor.means().unwrap_or(0),
            ..self.unbound(values.layout().strides(self.dims), tensor.lines())?
        })
    }

    /// What is passed to the kernels, but for the addresses.
    fn unbound(&self, strides: Strides, lines: &Lines) -> Result<Quantize> {
        let (scale_head_stride, scale_rows) = scale_strides(self.granularity, self.dims.len)?;
        Ok(Quantize {
            values: 0,
            batch_stride: stride("values", strides.batch)?,
            head_stride: stride("values", strides.head)?,
            codes: 0,
            code_batch_stride: stride("codes", lines.batch_stride)?,
            code_head_stride: stride("codes", lines.head_stride)?,
            magnitudes: 0,
            scales: 0,
            sums: 0,
            means: 0,
            row_stride: size("values", strides.row)?,
            code_line_stride: size("codes", lines.line_stride)?,
            scale_head_stride,
            scale_rows,
            heads: size("heads", self.dims.heads)?,
            len: size("len", self.dims.len)?,
            blocks_per_head: 0,
            largest_code: self.largest_code,
            block_rows: 0,
        })
    }
}

impl Way {
    /// None where the device cannot hold such a cluster, of which it is asked before anything is launched.
    fn fused(device: &Device, kind: Kind, fused: Fused) -> Result<Option<Way>> {
        let kernel = Loaded::get(device, &kind.fused_program(fused), device.arch()?)?;
        let function = kernel.function();
        let clusters = function.allow_large_clusters().and_then(|()| function.clusters_at_a_time(fused.grid()));
        let holds = clusters.is_ok_and(|clusters| clusters > 0);
        Ok(holds.then_some(Way::Fused { kernel, fused }))
    }

    fn steps(device: &Device, kind: Kind, cut: Cut) -> Result<Way> {
        let codes = Loaded::get(device, &kind.program(cut.rows), device.arch()?)?;
        let centring = || {
            let [sums, means] = ["quantize_sums", "quantize_means"].map(|name| codes.other_function(name));
            Ok::<_, Error>(Centring { sums: sums?, means: means? })
        };
        Ok(Way::Steps {
            magnitudes: codes.other_function("quantize_magnitudes")?,
            centring: kind.centered.then(centring).transpose()?,
            codes,
            cut,
        })
    }
}

impl Quantized {
    /// The tensor.
    pub fn tensor(&self) -> &DeviceTensor {
        &self.tensor
    }

    /// The tensor alone. The driver waits for the device when what else there was is freed.
    pub fn into_tensor(self) -> DeviceTensor {
        self.tensor
    }

    /// Sets every code and scale to NaN, in the stream's order: what a launch does not write is then seen.
    #[doc(hidden)]
    pub fn poison(&mut self, stream: &Stream) -> Result<()> {
        self.tensor.poison(stream)
    }

    /// Waits for the stream; an error if a value was not finite, with where it was.
    pub fn check(&self, stream: &Stream) -> Result<()> {
        let mut bits = vec![0u32; self.magnitudes.bytes() / 4];
        self.magnitudes.download(stream, &mut bits)?;
        check_magnitudes(&bits, self.tensor.dims(), self.tensor.granularity())
    }
}

fn check_magnitudes(bits: &[u32], dims: Dims, granularity: Granularity) -> Result<()> {
    let Some(index) = bits.iter().position(|bits| !f32::from_bits(*bits).is_finite()) else { return Ok(()) };
    let value = f32::from_bits(bits[index]);
    let of_head = |index: usize| format!("batch {}, head {}", index / dims.heads, index % dims.heads);
    let place = match granularity {
        Granularity::Tensor => "somewhere".into(),
        Granularity::Head => format!("in {}", of_head(index)),
        Granularity::Block { rows } => {
            let blocks = dims.len.div_ceil(rows.max(1));
            let first = index % blocks * rows;
            let last = first.saturating_add(rows).min(dims.len) - 1;
            format!("in {}, rows {first} to {last}", of_head(index / blocks))
        }
    };
    let what = if value.is_nan() { "NaN" } else { "an infinity" };
    Err(Error::invalid("values", format!("{what} {place}"), "quantise finite values only"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIMS: Dims = Dims { batch: 2, heads: 3, len: 100, head_dim: 64 };

    #[test]
    fn what_is_not_finite_is_found_where_it_is() {
        let error = |bits: &[u32], granularity| check_magnitudes(bits, DIMS, granularity).unwrap_err().to_string();
        assert_eq!(check_magnitudes(&[0, 1.0f32.to_bits(), f32::MAX.to_bits()], DIMS, Granularity::Head), Ok(()));
        let nan = f32::NAN.to_bits();
        let infinity = f32::INFINITY.to_bits();
        assert_eq!(error(&[nan], Granularity::Tensor), "values: NaN somewhere; quantise finite values only");
        assert_eq!(
            error(&[0, 0, 0, 0, infinity, nan], Granularity::Head),
            "values: an infinity in batch 1, head 1; quantise finite values only"
        );
        let mut bits = [0; 12];
        bits[9] = nan;
        assert_eq!(
            error(&bits, Granularity::Block { rows: 64 }),
            "values: NaN in batch 1, head 1, rows 64 to 99; quantise finite values only"
        );
    }
}
