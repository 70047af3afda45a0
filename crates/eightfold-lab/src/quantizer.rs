//! The device's quantiser: whether its bits are the host's, and how long it takes beside a copy that moves as many bytes.

use crate::gates::{Gate, GateReport, Outcome};
use crate::inputs::{Family, Inputs};
use crate::measure::{Conditions, Contestant, Interleaved, Method, Work, WorkContestant, interleave};
use crate::progress::Progress;
use crate::record::Timing;
use crate::shapes::NamedShape;
use eightfold::cuda::driver::{Device, Stream};
use eightfold::cuda::quantize::{DeviceQuantizer, DeviceValues, Number, Quantized};
use eightfold::lab::driver::Buffer;
use eightfold::quantize::{INT8_BLOCK, Quantizer};
use eightfold::{Dims, Error, Fp8Format, Fp8Tensor, Granularity, Layout, Result};
use half::bf16;
use serde::{Deserialize, Serialize};

/// The quantiser on tensors of one size, and the copies that it is measured by, timed in one interleaved run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct QuantizerGroup {
    /// The shape's name, or the list of its sizes.
    pub shape: String,
    /// Batches of the tensor, which is K or V of the shape.
    pub batch: usize,
    /// Its heads.
    pub heads: usize,
    /// Its rows.
    pub len: usize,
    /// Channels of a row.
    pub head_dim: usize,
    /// The jobs, each copy before those that move as many bytes.
    pub entries: Vec<QuantizerEntry>,
    /// What else went on while they took their turns.
    pub conditions: Conditions,
}

/// A job of the quantiser, or a copy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct QuantizerEntry {
    /// What a person calls it.
    pub name: String,
    /// Whether it is a copy.
    pub copy: bool,
    /// What any implementation has to move: the values read once and the codes written once; of a copy, what it reads
    /// and writes.
    pub least_bytes: usize,
    /// Whether the bits are the host's; none for a copy.
    pub gate: Option<GateReport>,
    /// The time; none where the bits were others.
    pub timing: Option<Timing>,
}

impl QuantizerEntry {
    /// The median time, where there is one.
    pub fn p50_us(&self) -> Option<f64> {
        self.timing.as_ref().map(|timing| timing.summary.p50_us)
    }

    /// What must be moved, per second.
    pub fn bytes_per_second(&self) -> Option<f64> {
        self.p50_us().map(|p50_us| self.least_bytes as f64 / (p50_us * 1e-6))
    }
}

impl QuantizerGroup {
    /// The copy that moves as many bytes as a job.
    pub fn copy_for(&self, entry: &QuantizerEntry) -> Option<&QuantizerEntry> {
        self.entries.iter().find(|other| other.copy && other.least_bytes == entry.least_bytes)
    }

    /// The share of that copy's rate that a job reaches; none for a copy.
    pub fn share_of_copy(&self, entry: &QuantizerEntry) -> Option<f64> {
        let copy = self.copy_for(entry).filter(|_| !entry.copy)?;
        Some(copy.p50_us()? / entry.p50_us()?)
    }

    /// What the tensors are, in words.
    pub fn title(&self) -> String {
        let QuantizerGroup { shape, batch, heads, len, head_dim, .. } = self;
        format!("quantiser, {shape}: K and V of [{batch}, {heads}, {len}, {head_dim}], one scale per head")
    }
}

/// What is meant by the bytes of a job.
pub const BYTES_MEANT: &str = "bytes: what must move at least, values read once and codes written once";

/// Times every job for K and V of this shape. `progress` is told how far it is.
pub fn measure(shape: &NamedShape, method: &Method, progress: &mut dyn Progress) -> Result<QuantizerGroup> {
    let device = Device::default()?;
    let dims = shape.shape.key_dims();
    progress.at(0.0, &format!("{}: preparing values", shape.name));
    let Inputs { k, v, .. } = Inputs::generate(shape.shape, Family::Gaussian, 1);
    let [narrow_k, narrow_v] = [&k, &v].map(|values| values.iter().map(|x| bf16::from_f32(*x)).collect::<Vec<_>>());
    let head = Granularity::Head;
    let straight = Job {
        device: &device,
        dims,
        format: Fp8Format::E4m3,
        granularity: head,
        layout: Layout::Bhsd,
        centered: false,
    };
    let centered = Job { centered: true, ..straight };
    let turned = Job { layout: Layout::Packed, ..straight };
    let rows = Job { format: Fp8Format::Int8, granularity: Granularity::Block { rows: 1 }, ..straight };
    let blocks = Job { granularity: Granularity::Block { rows: INT8_BLOCK }, centered: true, ..rows };
    let for_int8 = Job { centered: true, ..turned };
    let (narrow, wide) = (dims.count() * (2 + 1), dims.count() * (4 + 1));
    progress.at(0.05, &format!("{}: quantising on the host", shape.name));
    let jobs: Vec<(&str, usize, Box<dyn Work>)> = vec![
        ("copy, as many bytes as bf16 → FP8", narrow, Box::new(Copy::new(&device, narrow)?)),
        ("K bf16 → FP8", narrow, Box::new(straight.prepare(&narrow_k)?)),
        ("K bf16 → FP8, centred", narrow, Box::new(centered.prepare(&narrow_k)?)),
        ("V bf16 → FP8, transposed", narrow, Box::new(turned.prepare(&narrow_v)?)),
        ("V bf16 → FP8, transposed, centred", narrow, Box::new(for_int8.prepare(&narrow_v)?)),
        ("Q bf16 → INT8, a scale per row", narrow, Box::new(rows.prepare(&narrow_k)?)),
        ("K bf16 → INT8, centred, a scale per 256", narrow, Box::new(blocks.prepare(&narrow_k)?)),
        ("copy, as many bytes as f32 → FP8", wide, Box::new(Copy::new(&device, wide)?)),
        ("K f32 → FP8", wide, Box::new(straight.prepare(&k)?)),
        ("V f32 → FP8, transposed", wide, Box::new(turned.prepare(&v)?)),
    ];
    let cache = method.manner.cache;
    let (mut entries, mut contestants) = (Vec::new(), Vec::new());
    for (name, least_bytes, work) in jobs {
        let copy = name.starts_with("copy");
        entries.push(QuantizerEntry { name: name.into(), copy, least_bytes, gate: None, timing: None });
        contestants.push(WorkContestant::new(&device, work, cache)?);
    }
    let mut field: Vec<&mut dyn Contestant> = contestants.iter_mut().map(|one| one as _).collect();
    let Interleaved { measured, conditions } = interleave(&mut field, method, &mut |share, _| {
        progress.at(0.1 + 0.9 * share, &format!("{}: timing", shape.name));
    });
    for (entry, measured) in entries.iter_mut().zip(measured) {
        if entry.copy {
            // Without the yardstick there is nothing to tell.
            entry.timing = Timing::new(WorkContestant::timer(cache), measured?);
        } else {
            entry.gate = Some(gate(measured.as_ref().err()));
            entry.timing = measured.ok().and_then(|samples| Timing::new(WorkContestant::timer(cache), samples));
        }
        if let Some(timing) = &mut entry.timing {
            timing.cache = cache;
        }
    }
    let Dims { batch, heads, len, head_dim, .. } = dims;
    Ok(QuantizerGroup { shape: shape.name.clone(), batch, heads, len, head_dim, entries, conditions })
}

fn gate(error: Option<&Error>) -> GateReport {
    let (outcome, summary) = match error {
        None => (Outcome::Pass, "after every turn the bits were the host's".into()),
        Some(error) => (Outcome::Fail, error.to_string()),
    };
    GateReport { gate: Gate::Correctness, outcome, summary, checks: Vec::new() }
}

/// A way to quantise.
#[derive(Clone, Copy)]
struct Job<'a> {
    device: &'a Device,
    dims: Dims,
    format: Fp8Format,
    granularity: Granularity,
    layout: Layout,
    centered: bool,
}

impl Job<'_> {
    /// The values on the device, room for the result, and what the host makes of them.
    fn prepare<T: Number>(&self, values: &[T]) -> Result<Quantizing> {
        let Job { device, dims, format, granularity, layout, centered } = *self;
        let on_device = DeviceValues::upload(device, &device.stream()?, values, dims, Layout::Bhsd)?;
        let prepare = if centered { DeviceQuantizer::centered } else { DeviceQuantizer::new };
        let quantizer = prepare(device, &on_device, format, granularity, layout)?;
        let host = Quantizer::new(format).with_granularity(granularity).with_layout(if layout.is_transposed() {
            Layout::Bhds
        } else {
            layout
        });
        let host = if centered { host.centered() } else { host };
        Ok(Quantizing {
            quantized: quantizer.allocate()?,
            quantizer,
            values: on_device,
            expected: host.quantize(values, dims, Layout::Bhsd)?,
        })
    }
}

struct Quantizing {
    quantizer: DeviceQuantizer,
    values: DeviceValues,
    quantized: Quantized,
    expected: Fp8Tensor<'static>,
}

impl Work for Quantizing {
    fn launch(&mut self, stream: &Stream) -> Result<()> {
        self.quantizer.launch(stream, &self.values, &mut self.quantized)
    }

    fn poison(&mut self, stream: &Stream) -> Result<()> {
        self.quantized.poison(stream)
    }

    fn verify(&mut self, stream: &Stream) -> Result<()> {
        if self.quantized.tensor().download(stream)? == self.expected {
            return Ok(());
        }
        Err(Error::unavailable(
            "a timing of the quantiser",
            "the timed runs gave other bits than the host's quantiser",
            "look for a fault in the device's quantiser",
        ))
    }
}

/// Reads half of the bytes and writes as many.
pub(crate) struct Copy {
    from: Buffer,
    to: Buffer,
}

impl Copy {
    pub(crate) fn new(device: &Device, moved_bytes: usize) -> Result<Self> {
        let bytes = moved_bytes.div_ceil(2);
        Ok(Copy { from: device.allocate(bytes)?, to: device.allocate(bytes)? })
    }
}

impl Work for Copy {
    fn launch(&mut self, stream: &Stream) -> Result<()> {
        self.to.copy_from(stream, &self.from)
    }

    fn poison(&mut self, _stream: &Stream) -> Result<()> {
        Ok(())
    }

    /// The driver's copies are taken at its word.
    fn verify(&mut self, _stream: &Stream) -> Result<()> {
        Ok(())
    }
}
