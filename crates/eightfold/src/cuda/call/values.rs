//! Attention from f32, f16 or bf16, quantised on the way.

use super::{Addresses, Launches, canonical, roles, unbound};
use crate::cuda::driver::{Device, Stream, download, fill};
use crate::cuda::hopper;
use crate::cuda::kernel::Role;
use crate::cuda::quantize::{Lent, Order, Pair, REPORT_BYTES, ValueFormat};
use crate::cuda::tensor::{DeviceTensor, Lines};
use crate::cuda::workspace::{Division, Workspace};
use crate::error::Result;
use crate::operands::{Operand, Operands};
use crate::problem::Problem;
use crate::report::RunReport;
use crate::tensor::{Layout, Strides};
use crate::variant::Variant;

/// How Q, K, V and the output lie, in elements; the channels of a row follow each other, and rows start at multiples of 16
/// bytes. A stride of 0 repeats a batch or a head of Q, K or V.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ValuesOf {
    /// The number format of Q, K and V.
    pub format: ValueFormat,
    /// Of the queries.
    pub q: Strides,
    /// Of the keys.
    pub k: Strides,
    /// Of the values.
    pub v: Strides,
    /// Of the output.
    pub output: Strides,
    /// Whether the mean of K over its rows is subtracted before it is quantised, as it always is for INT8. Softmax does not
    /// notice, and K with channels far from zero loses less.
    pub centre_keys: bool,
}

/// Attention on values in device memory: Q, K and V are quantised as [`Quantizer::for_attention`] says, into the workspace, and
/// attended. The problem says to what format; [`best_format`](super::best_format) knows which is best.
///
/// [`Quantizer::for_attention`]: crate::quantize::Quantizer::for_attention
///
/// ```no_run
/// use eightfold::cuda::call::{Addresses, ValueAttention, ValuesOf};
/// use eightfold::cuda::{Workspace, driver::Device, quantize::ValueFormat};
/// use eightfold::{Layout, OutputFormat, Problem, Shape};
///
/// # let (q, k, v, output) = (0, 0, 0, 0);
/// let device = Device::open(0)?;
/// let stream = device.stream()?;
/// let problem = Problem::new(Shape::new(2, 16, 4096, 128))?.with_output_format(OutputFormat::Bf16);
/// let rows = Layout::Bshd.strides(problem.shape().query_dims());
/// let values = ValuesOf { format: ValueFormat::Bf16, q: rows, k: rows, v: rows, output: rows, centre_keys: true };
/// let call = ValueAttention::new(&device, &problem, values)?;
/// let mut workspace = Workspace::new(&stream, call.workspace_bytes())?;
/// // SAFETY: the addresses are those of tensors like that, which live until the stream is done.
/// unsafe { call.launch(&stream, &Addresses { q, k, v, output, lse: None }, &mut workspace)? };
/// # Ok::<(), eightfold::Error>(())
/// ```
#[derive(Debug)]
pub struct ValueAttention {
    quantizers: [Lent; 3],
    /// Q and K in one launch, where that can be.
    pair: Option<Pair>,
    launches: Launches,
    report: usize,
    bytes: usize,
}

impl ValueAttention {
    /// Checks, compiles or finds, and loads everything that such a call needs. May wait for the device.
    pub fn new(device: &Device, problem: &Problem, values: ValuesOf) -> Result<Self> {
        let is_hopper = hopper::target(device.arch()?).is_ok();
        let value_layout = if is_hopper { Layout::Packed } else { Layout::Bhds };
        let order = |operand: Operand, strides, layout| {
            let Operand { dims, format, granularity, centred, largest_code, .. } = operand;
            let strides = canonical(dims, strides);
            Order { dims, values: values.format, strides, format, layout, granularity, largest_code, centred }
        };
        let Operands { q, k, v } = Operands::assumed(problem);
        let q = order(q, values.q, Layout::Bhsd);
        let k = order(Operand { centred: k.centred || values.centre_keys, ..k }, values.k, Layout::Bhsd);
        let v = order(v, values.v, value_layout);
        let tensors = [quantized(device, &q)?, quantized(device, &k)?, quantized(device, &v)?];
        let launches = Launches::new(device, problem, tensors.each_ref(), values.output)?;
        // The kernel's own part of the workspace comes first.
        let mut division = Division::behind(launches.arguments.workspace_bytes());
        let mut lend = |name, order| Lent::new(device, name, order, &mut division);
        let quantizers = [lend("q", q)?, lend("k", k)?, lend("v", v)?];
        let pair = Pair::new(&quantizers[0], &quantizers[1])?;
        let report = division.take(3 * REPORT_BYTES);
        Ok(ValueAttention { quantizers, pair, launches, report, bytes: division.bytes() })
    }

    /// Of the workspace, which holds codes, scales, means and magnitudes, too.
    pub fn workspace_bytes(&self) -> usize {
        self.bytes
    }

    /// How much of it, at the front, must be zero before the first launch; every launch leaves it so.
    pub fn zeroed_bytes(&self) -> usize {
        self.launches.arguments.zeroed_bytes()
    }

    /// The kernel that attends.
    pub fn variant(&self) -> Variant {
        self.launches.variant()
    }

    /// How many kernels a launch puts into the stream.
    pub fn kernels(&self) -> usize {
        let quantizers: usize = match self.pair {
            Some(_) => 1 + self.quantizers[2].kernels(),
            None => self.quantizers.iter().map(Lent::kernels).sum(),
        };
        quantizers + self.launches.arguments.kernels()
    }

    /// What a launch does.
    pub fn report(&self) -> RunReport {
        self.launches.report()
    }

    /// Looks at Q, K and V on the device, waits, and names the first value that is NaN or an infinity: which tensor, batch, head
    /// and row. Reads every value once more, and compiles on first use, so it cannot be captured into a graph.
    ///
    /// ```no_run
    /// # use eightfold::cuda::{Workspace, call::{Addresses, ValueAttention}, driver::Stream};
    /// # fn f(call: &ValueAttention, stream: &Stream, at: &Addresses, mut workspace: Workspace) -> eightfold::Result<()> {
    /// // SAFETY: as for the launch.
    /// unsafe { call.validate(stream, at, &mut workspace)? }; // k: NaN in batch 0, head 3, row 77; look for where it comes from, …
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Safety
    /// As for [`ValueAttention::launch`].
    pub unsafe fn validate(&self, stream: &Stream, addresses: &Addresses, workspace: &mut Workspace) -> Result<()> {
        self.launches.check(addresses, workspace, self.bytes)?;
        let device = self.launches.kernel.device();
        let report = workspace.pointer() + self.report as u64;
        let mut found = [[0u32; 2]; 3];
        // SAFETY: the workspace was checked to be as large as all the places; the rest is the caller's word.
        unsafe {
            fill(device.context(), report, 3 * REPORT_BYTES, stream, 0)?;
            for (index, values) in [addresses.q, addresses.k, addresses.v].into_iter().enumerate() {
                let report = report + (index * REPORT_BYTES) as u64;
                self.quantizers[index].look().launch(device, stream, values, report)?;
            }
            download(device.context(), report, stream, found.as_flattened_mut())?;
        }
        let mut looks = self.quantizers.iter().zip(["q", "k", "v"]).zip(found);
        looks.try_for_each(|((quantizer, name), found)| quantizer.look().check(name, found))
    }

    /// Puts the work into the stream and returns. Values that are not finite give results without meaning:
    /// [`ValueAttention::validate`] finds them.
    ///
    /// # Safety
    /// At the addresses there must be tensors as the call was made for, on its device and in a stream of it. They, the
    /// workspace and the call must live until the work is done; no other work may write to Q, K or V meanwhile, or use the
    /// output or the workspace.
    pub unsafe fn launch(&self, stream: &Stream, addresses: &Addresses, workspace: &mut Workspace) -> Result<()> {
        self.launches.check(addresses, workspace, self.bytes)?;
        let base = workspace.pointer();
        let mut roles = roles(addresses);
        let values = [addresses.q, addresses.k, addresses.v];
        let [q, k, v] = [0, 1, 2].map(|index| self.quantizers[index].places());
        let at = |place: usize| base + place as u64;
        for (role, place) in [
            (Role::Q, q.codes),
            (Role::K, k.codes),
            (Role::V, v.codes),
            (Role::QScales, q.scales),
            (Role::KScales, k.scales),
            (Role::VScales, v.scales),
        ] {
            roles[role as usize] = at(place);
        }
        roles[Role::KMeans as usize] = k.means.map_or(0, at);
        roles[Role::VMeans as usize] = v.means.map_or(0, at);
        // SAFETY: the workspace was checked to be as large as all the places; the rest is the caller's word.
        unsafe {
            let [q, k, v] = &self.quantizers;
            match &self.pair {
                Some(pair) => pair.launch(stream, [q, k], [values[0], values[1]], base)?,
                None => {
                    q.launch(stream, values[0], base)?;
                    k.launch(stream, values[1], base)?;
                }
            }
            v.launch(stream, values[2], base)?;
            self.launches.launch(stream, &roles, base)
        }
    }
}

/// The tensor that will lie in the workspace.
fn quantized(device: &Device, order: &Order) -> Result<DeviceTensor> {
    let Order { dims, format, layout, granularity, largest_code, centred, .. } = *order;
    let lines = Lines::padded(dims, layout)?;
    let (codes, scales) = (unbound(device), unbound(device));
    let tensor = DeviceTensor::from_parts(dims, format, granularity, lines, codes, scales, largest_code);
    Ok(tensor.with_means(centred.then(|| unbound(device))))
}
