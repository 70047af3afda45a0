//! f32, f16 or bf16 in device memory → FP8 codes and scales there, the same bits as the host's
//! [`Quantizer`](crate::quantize::Quantizer) makes, centred or not.

mod argument;
#[cfg(test)]
mod quotient;
mod values;

pub use values::{DeviceValues, Number, ValueFormat};

use super::compile::Program;
use super::counts::{scale_strides, size, stride};
use super::driver::{Buffer, Device, Function, Grid, Stream};
use super::kernel::Kernel;
use super::tensor::{DeviceTensor, Lines, Memory};
use crate::error::{Error, Result};
use crate::quantize::{ROWS_PER_SUM, check_largest_code};
use crate::tensor::{Dims, Fp8Format, Granularity, Layout};
use argument::{Blocks, Cut, Quantize, THREADS};
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
#[derive(Debug)]
pub struct DeviceQuantizer {
    device: Device,
    kernels: Arc<Kernel>,
    magnitudes: Function,
    centring: Option<Centring>,
    dims: Dims,
    values: ValueFormat,
    format: Fp8Format,
    granularity: Granularity,
    layout: Layout,
    cut: Cut,
    largest_code: f32,
}

/// What finds the means.
#[derive(Debug)]
struct Centring {
    sums: Function,
    means: Function,
}

/// Quantises values on the device; `layout` is that of the codes, for V also transposed or exchanged.
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

impl DeviceQuantizer {
    /// Compiles (or takes from the cache) and loads the kernels for values like these.
    pub fn new(
        device: &Device,
        values: &DeviceValues,
        format: Fp8Format,
        granularity: Granularity,
        layout: Layout,
    ) -> Result<Self> {
        Self::prepare(device, values, format, granularity, layout, false)
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
        Self::prepare(device, values, format, granularity, layout, true)
    }

    fn prepare(
        device: &Device,
        values: &DeviceValues,
        format: Fp8Format,
        granularity: Granularity,
        layout: Layout,
        centered: bool,
    ) -> Result<Self> {
        let dims = values.dims();
        let cut = Cut::new(dims, values.format(), granularity, layout)?;
        let program = program(dims.head_dim, cut.rows, values.format(), format, layout, centered);
        let kernels = Kernel::get(device, &program, device.arch())?;
        let centring = || {
            let [sums, means] = ["quantize_sums", "quantize_means"].map(|name| kernels.other_function(name));
            Ok::<_, Error>(Centring { sums: sums?, means: means? })
        };
        Ok(DeviceQuantizer {
            device: device.clone(),
            magnitudes: kernels.other_function("quantize_magnitudes")?,
            centring: centered.then(centring).transpose()?,
            kernels,
            dims,
            values: values.format(),
            format,
            granularity,
            layout,
            cut,
            largest_code: format.max(),
        })
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
        let (means, sums) = match self.centring {
            Some(_) => {
                let channels = batch * heads * head_dim;
                let means = Memory::Owned(self.device.allocate(4 * channels)?);
                (Some(means), Some(self.device.allocate(8 * channels * len.div_ceil(ROWS_PER_SUM))?))
            }
            None => (None, None),
        };
        Ok(Quantized { tensor: tensor.with_means(means), magnitudes: self.device.allocate(4 * count)?, sums })
    }

    /// Puts the work into the stream and returns at once: nothing is allocated, and nothing waits. Values and result
    /// must live until it is done.
    pub fn launch(&self, stream: &Stream, values: &DeviceValues, quantized: &mut Quantized) -> Result<()> {
        let argument = self.argument(values, quantized)?;
        quantized.magnitudes.fill(stream, 0)?;
        let launch = |function: &Function, blocks: Blocks| {
            let grid = Grid { blocks: blocks.all, threads: THREADS, dynamic_shared_bytes: 0 };
            // SAFETY: the kernels take this struct (its layout is tested), whose pointers were checked to be of this
            // device and of the sizes that the struct says; that they live is the caller's part.
            unsafe { function.launch(stream, grid, &Quantize { blocks_per_head: blocks.per_head, ..argument }) }
        };
        if let Some(Centring { sums, means }) = &self.centring {
            launch(sums, self.cut.sums)?;
            launch(means, self.cut.means)?;
        }
        launch(&self.magnitudes, self.cut.magnitudes)?;
        launch(self.kernels.function(), self.cut.codes)
    }

    fn argument(&self, values: &DeviceValues, quantized: &Quantized) -> Result<Quantize> {
        let tensor = &quantized.tensor;
        let is_same = values.dims() == self.dims
            && values.format() == self.values
            && tensor.dims() == self.dims
            && tensor.format() == self.format
            && tensor.layout() == self.layout
            && tensor.granularity() == self.granularity
            && tensor.means().is_some() == self.centring.is_some()
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
        let strides = values.layout().strides(self.dims);
        let lines = tensor.lines();
        let (scale_head_stride, scale_rows) = scale_strides(self.granularity, self.dims.len)?;
        Ok(Quantize {
            values: values.pointer(),
            batch_stride: stride("values", strides.batch)?,
            head_stride: stride("values", strides.head)?,
            codes: tensor.codes(),
            code_batch_stride: stride("codes", lines.batch_stride)?,
            code_head_stride: stride("codes", lines.head_stride)?,
            magnitudes: quantized.magnitudes.pointer(),
            scales: tensor.scales(),
            sums: quantized.sums.as_ref().map_or(0, Buffer::pointer),
            means: tensor.means().unwrap_or(0),
            row_stride: size("values", strides.row)?,
            code_line_stride: size("codes", lines.line_stride)?,
            scale_head_stride,
            scale_rows,
            heads: size("heads", self.dims.heads)?,
            len: size("len", self.dims.len)?,
            blocks_per_head: 0,
            largest_code: self.largest_code,
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

fn program(
    head_dim: usize,
    rows: usize,
    values: ValueFormat,
    format: Fp8Format,
    layout: Layout,
    centered: bool,
) -> Program {
    let flag = |on: bool| u8::from(on).to_string();
    Program {
        file: "quantize/quantize.cu",
        entry: "quantize_codes",
        defines: vec![
            ("ELEMENT", (values as u8).to_string()),
            ("HEAD_DIM", head_dim.to_string()),
            ("ROWS", rows.to_string()),
            ("FORMAT_E5M2", flag(format == Fp8Format::E5m2)),
            ("TRANSPOSED", flag(layout.is_transposed())),
            ("EXCHANGED", flag(layout == Layout::BhdsExchanged)),
            ("CENTERED", flag(centered)),
        ],
        dynamic_shared_bytes: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::Arch;
    use crate::cuda::compile::Compiler;
    use rayon::prelude::*;
    use std::collections::HashSet;

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

    /// Every program for heads of this many channels.
    fn programs(head_dim: usize) -> Vec<Program> {
        let mut programs = Vec::new();
        for values in [ValueFormat::F32, ValueFormat::F16, ValueFormat::Bf16] {
            let dims = Dims { head_dim, ..DIMS };
            let rows = Cut::new(dims, values, Granularity::Head, Layout::Bhsd).unwrap().rows;
            for format in [Fp8Format::E4m3, Fp8Format::E5m2] {
                for layout in [Layout::Bhsd, Layout::Bhds, Layout::BhdsExchanged] {
                    programs.extend(
                        [false, true].map(|centered| program(head_dim, rows, values, format, layout, centered)),
                    );
                }
            }
        }
        programs
    }

    /// Compiled where NVRTC is, and skipped elsewhere unless `EIGHTFOLD_REQUIRE_NVRTC` is set.
    #[test]
    fn every_program_compiles_without_spills() {
        let compiler = match Compiler::find() {
            Ok(compiler) => compiler,
            Err(error) => {
                assert!(std::env::var_os("EIGHTFOLD_REQUIRE_NVRTC").is_none(), "{error}");
                return;
            }
        };
        let some = |head_dim, step| programs(head_dim).into_iter().step_by(step);
        // Heads of odd sizes have loops that the usual ones do not.
        let hopper = programs(128).into_iter().chain([8, 72, 1 << 14].into_iter().flat_map(|dim| some(dim, 11)));
        let jobs: Vec<_> = hopper.map(|program| (program, Arch::Sm90)).collect();
        let jobs = jobs.into_iter().chain(some(128, 5).map(|program| (program, Arch::Sm89))).collect::<Vec<_>>();
        jobs.into_par_iter().for_each(|(program, arch)| {
            let resources = compiler.compile(&program, arch).unwrap().resources;
            assert_eq!((resources.spill_store_bytes, resources.stack_bytes), (0, 0), "{program:?}");
            assert_eq!(resources.warnings, Vec::<String>::new());
        });
    }

    #[test]
    fn every_kind_of_values_and_codes_is_a_program_of_its_own() {
        let all: HashSet<_> = [64, 128].into_iter().flat_map(programs).collect();
        assert_eq!(all.len(), 2 * 3 * 2 * 3 * 2);
        let of = |layout| program(64, 128, ValueFormat::F16, Fp8Format::E4m3, layout, false);
        assert_eq!(of(Layout::Bhsd), of(Layout::Bshd));
    }
}
