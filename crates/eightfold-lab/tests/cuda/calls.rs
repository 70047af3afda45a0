//! Calls with addresses: the same bits as the same steps one by one.

use crate::support::{device, gaussian, relative_l2, small_tensors};
use eightfold::cuda::call::{Addresses, CodeAttention, Codes, CodesOf, ValueAttention, ValuesOf};
use eightfold::cuda::driver::{Device, Stream};
use eightfold::cuda::quantize::{DeviceValues, ValueFormat};
use eightfold::cuda::tensor::{DeviceOutput, DeviceTensor};
use eightfold::cuda::{Workspace, attention};
use eightfold::lab::hopper;
use eightfold::quantize::{Quantizer, SMALL_CODES};
use eightfold::{
    Dims, Fp8Format, Fp8Tensor, Granularity, Layout, Mask, Output, OutputFormat, Problem, Shape, Strides, reference,
};
use eightfold_lab::driver::Record as _;
use half::bf16;

/// Q, K and V side by side in one allocation, as projections leave them: `[batch, row, heads of all three, channel]`.
struct Packed {
    values: Vec<bf16>,
    on_device: DeviceValues,
    heads: [usize; 3],
    dims: Dims,
}

impl Packed {
    fn new(device: &Device, stream: &Stream, shape: Shape, seed: u64) -> Packed {
        let heads = [shape.query_heads, shape.kv_heads, shape.kv_heads];
        let dims = Dims::new(shape.batch, heads.iter().sum(), shape.key_len, shape.head_dim);
        let mut values: Vec<bf16> = gaussian(dims.count(), seed).into_iter().map(bf16::from_f32).collect();
        // Keys with a channel far from zero, which is what centring is for.
        let (row, first) = (dims.heads * dims.head_dim, heads[0] * dims.head_dim);
        values.chunks_mut(row).for_each(|row| row[first + 3] += bf16::from_f32(20.0));
        let on_device = DeviceValues::upload(device, stream, &values, dims, Layout::Bshd).unwrap();
        Packed { values, on_device, heads, dims }
    }

    /// From which element on the heads of Q, K or V lie.
    fn first(&self, which: usize) -> usize {
        self.heads[..which].iter().sum::<usize>() * self.dims.head_dim
    }

    fn address(&self, which: usize) -> u64 {
        self.on_device.pointer() + 2 * self.first(which) as u64
    }

    fn strides(&self) -> Strides {
        Layout::Bshd.strides(self.dims)
    }

    /// The tensor alone, in `[B,H,S,D]` order.
    fn alone(&self, which: usize) -> (Vec<bf16>, Dims) {
        let (dims, strides) =
            (Dims::new(self.dims.batch, self.heads[which], self.dims.len, self.dims.head_dim), self.strides());
        let rows =
            (0..dims.batch).flat_map(|b| (0..dims.heads).flat_map(move |h| (0..dims.len).map(move |s| (b, h, s))));
        let start = |(b, h, s)| self.first(which) + strides.row_offset(b, h, s);
        (rows.flat_map(|row| self.values[start(row)..][..dims.head_dim].to_vec()).collect(), dims)
    }

    /// Quantised on the host as the call does on the device.
    fn quantized(&self, centre_keys: bool) -> [Fp8Tensor<'static>; 3] {
        let plain = Quantizer::new(Fp8Format::E4m3);
        let small = plain.with_largest_code(SMALL_CODES);
        let keys = if centre_keys { small.centered() } else { small };
        [(small, 0), (keys, 1), (plain, 2)].map(|(quantizer, which)| {
            let (values, dims) = self.alone(which);
            quantizer.quantize(&values, dims, Layout::Bhsd).unwrap()
        })
    }
}

fn expected(device: &Device, stream: &Stream, problem: &Problem, [q, k, v]: &[Fp8Tensor; 3]) -> Output {
    let is_hopper = hopper::target(device.arch().unwrap()).is_ok();
    let value_layout = if is_hopper { Layout::Packed } else { Layout::Bhds };
    let upload = |tensor, layout| DeviceTensor::upload(device, stream, tensor, layout).unwrap();
    let mut output = DeviceOutput::new(device, problem).unwrap();
    let (q, k, v) = (upload(q, Layout::Bhsd), upload(k, Layout::Bhsd), upload(v, value_layout));
    attention(stream, problem, &q, &k, &v, &mut output).unwrap();
    downloaded(stream, problem, &output)
}

fn downloaded(stream: &Stream, problem: &Problem, output: &DeviceOutput) -> Output {
    let mut result = Output::zeros(problem);
    output.download(stream, &mut result).unwrap();
    result
}

fn problem(shape: Shape, mask: Mask, lse: bool) -> Problem {
    let problem = Problem::new(shape).unwrap().with_mask(mask).with_lse(lse).with_output_format(OutputFormat::Bf16);
    problem.with_output_layout(Layout::Bshd).unwrap()
}

fn addresses(packed: &Packed, output: &DeviceOutput) -> Addresses {
    let [q, k, v] = [0, 1, 2].map(|which| packed.address(which));
    Addresses { q, k, v, output: output.values(), lse: output.lse() }
}

fn prepared(device: &Device, problem: &Problem, packed: &Packed, centre_keys: bool) -> ValueAttention {
    let strides = packed.strides();
    let output = Layout::Bshd.strides(problem.shape().query_dims());
    let values = ValuesOf { format: ValueFormat::Bf16, q: strides, k: strides, v: strides, output, centre_keys };
    ValueAttention::new(device, problem, values).unwrap()
}

/// Twice with the same call: the second time with other tensors, another output and another workspace.
#[test]
fn values_give_what_the_host_s_quantiser_and_the_same_kernel_give() {
    let Some((device, stream)) = device() else { return };
    for (shape, mask, lse, centre_keys) in [
        (Shape::new(2, 2, 150, 64), Mask::None, false, true),
        (Shape::new(1, 2, 300, 128).with_kv_heads(1), Mask::Causal, true, true),
        (Shape::new(1, 3, 70, 64), Mask::Causal, false, false),
    ] {
        let problem = problem(shape, mask, lse);
        let tensors = [1, 2].map(|seed| Packed::new(&device, &stream, shape, seed));
        let call = prepared(&device, &problem, &tensors[0], centre_keys);
        for packed in &tensors {
            let mut output = DeviceOutput::new(&device, &problem).unwrap();
            output.poison(&stream).unwrap();
            let mut workspace = Workspace::new(&stream, call.workspace_bytes()).unwrap();
            // SAFETY: all of it lives until the download has waited for the launch.
            unsafe { call.launch(&stream, &addresses(packed, &output), &mut workspace).unwrap() };
            let got = downloaded(&stream, &problem, &output);
            let quantized = packed.quantized(centre_keys);
            let by_steps = expected(&device, &stream, &problem, &quantized);
            if centre_keys && device.arch().unwrap().has_clusters() {
                // Means in their last bits, and with them a code here and there.
                let exact: Vec<f64> = by_steps.values.to_f32().iter().map(|value| f64::from(*value)).collect();
                assert!(relative_l2(&got.values.to_f32(), &exact) < 5e-3, "{problem}");
            } else {
                assert_eq!(got, by_steps, "{problem}");
            }

            let [q, k, v] = quantized.each_ref().map(Fp8Tensor::dequantize);
            let exact = reference::attention(&problem, &q, &k, &v).unwrap();
            let (dims, values) = (shape.query_dims(), got.values.to_f32());
            let strides = Layout::Bshd.strides(dims);
            let in_order: Vec<f32> = (0..dims.batch)
                .flat_map(|b| {
                    (0..dims.heads).flat_map(move |h| (0..dims.len).map(move |s| strides.row_offset(b, h, s)))
                })
                .flat_map(|row| values[row..][..dims.head_dim].to_vec())
                .collect();
            let error = relative_l2(&in_order, &exact.values);
            assert!(error < 0.05, "{problem}: {error}");
        }
    }
}

#[test]
fn a_call_can_be_recorded() {
    let Some((device, stream)) = device() else { return };
    let shape = Shape::new(1, 2, 150, 64);
    let problem = problem(shape, Mask::None, false);
    let packed = Packed::new(&device, &stream, shape, 3);
    let call = prepared(&device, &problem, &packed, true);
    let mut output = DeviceOutput::new(&device, &problem).unwrap();
    let mut workspace = Workspace::new(&stream, call.workspace_bytes()).unwrap();
    let addresses = addresses(&packed, &output);
    // SAFETY: all of it lives until the download has waited for the graph.
    let mut launch = || unsafe { call.launch(&stream, &addresses, &mut workspace) };
    launch().unwrap();
    let mut graph = stream.capture(&mut launch).unwrap();
    let first = downloaded(&stream, &problem, &output);
    for _ in 0..2 {
        output.poison(&stream).unwrap();
        // SAFETY: as above.
        unsafe { graph.launch(&stream) }.unwrap();
        assert_eq!(downloaded(&stream, &problem, &output), first);
    }
}

/// FP8 in rows `[B,S,H,D]`, with scales per tensor or per head, at addresses that come with each launch.
#[test]
fn codes_give_the_bits_of_the_short_way() {
    let Some((device, stream)) = device() else { return };
    for (shape, mask, granularity) in [
        (Shape::new(2, 2, 150, 64), Mask::None, Granularity::Head),
        (Shape::new(1, 2, 300, 128).with_kv_heads(1), Mask::Causal, Granularity::Tensor),
        // Keys that are split.
        (Shape::new(1, 4, 600, 64).with_kv_heads(1).with_query_len(1), Mask::None, Granularity::Head),
    ] {
        let problem = problem(shape, mask, true);
        let scaled = |tensor: &Fp8Tensor| {
            let quantizer = Quantizer::new(Fp8Format::E4m3).with_granularity(granularity);
            quantizer.quantize(
                &tensor.dequantize().iter().map(|x| *x as f32).collect::<Vec<_>>(),
                tensor.dims(),
                Layout::Bhsd,
            )
        };
        let tensors = [4, 5].map(|seed| small_tensors(&problem, seed).map(|tensor| scaled(&tensor).unwrap()));
        let codes = |dims| Codes { strides: Layout::Bshd.strides(dims), granularity };
        let (queries, keys) = (shape.query_dims(), shape.key_dims());
        let output = Layout::Bshd.strides(queries);
        let codes = CodesOf { q: codes(queries), k: codes(keys), v: codes(keys), output };
        let call = CodeAttention::new(&device, &problem, codes).unwrap();
        let mut workspace = Workspace::new(&stream, call.workspace_bytes()).unwrap();
        for tensors in &tensors {
            let [q, k, v] =
                tensors.each_ref().map(|one| DeviceTensor::upload(&device, &stream, one, Layout::Bshd).unwrap());
            let mut short = DeviceOutput::new(&device, &problem).unwrap();
            attention(&stream, &problem, &q, &k, &v, &mut short).unwrap();
            let mut output = DeviceOutput::new(&device, &problem).unwrap();
            output.poison(&stream).unwrap();
            let at = Addresses { q: q.codes(), k: k.codes(), v: v.codes(), output: output.values(), lse: output.lse() };
            let scales = [q.scales(), k.scales(), v.scales()];
            // SAFETY: all of it lives until the download has waited for the launch.
            unsafe { call.launch(&stream, &at, scales, &mut workspace).unwrap() };
            let got = downloaded(&stream, &problem, &output);
            assert_eq!(got, downloaded(&stream, &problem, &short), "{problem} {granularity}");
        }
    }
}

#[test]
fn what_a_call_cannot_take_is_refused_by_name() {
    let Some((device, stream)) = device() else { return };
    let shape = Shape::new(1, 2, 70, 64);
    let problem = problem(shape, Mask::None, false);
    let packed = Packed::new(&device, &stream, shape, 6);
    let call = prepared(&device, &problem, &packed, false);
    let output = DeviceOutput::new(&device, &problem).unwrap();
    let good = addresses(&packed, &output);
    let mut workspace = Workspace::new(&stream, call.workspace_bytes() - 1).unwrap();
    let mut refused = |addresses: Addresses| {
        // SAFETY: nothing is launched.
        unsafe { call.launch(&stream, &addresses, &mut workspace) }.unwrap_err().to_string()
    };
    assert!(refused(good).starts_with("workspace: "));
    assert!(refused(Addresses { k: good.k + 2, ..good }).starts_with("k: address"));
    let dims = shape.query_dims();
    let good = Layout::Bshd.strides(dims);
    let values = ValuesOf { format: ValueFormat::F16, q: good, k: good, v: good, output: good, centre_keys: true };
    let refused = |values| ValueAttention::new(&device, &problem, values).unwrap_err().to_string();
    assert!(
        refused(ValuesOf { v: Strides::new(good.batch, good.head, good.row, 2), ..values })
            .starts_with("v: channels are 2")
    );
    assert!(
        refused(ValuesOf { output: Strides::new(good.batch, good.head, 0, good.channel), ..values })
            .starts_with("output: the row stride")
    );
}
