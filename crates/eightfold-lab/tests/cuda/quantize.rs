//! Quantising on the device: the same bits as on the host.

use crate::support::{device, gaussian, relative_l2, some};
use eightfold::cuda::attention;
use eightfold::cuda::driver::{Device, Stream};
use eightfold::cuda::quantize::{DeviceQuantizer, DeviceValues, Number, for_attention, quantize};
use eightfold::cuda::tensor::DeviceOutput;
use eightfold::cuda::tensor::{DeviceTensor, RawTensor};
use eightfold::lab::hopper;
use eightfold::quantize::Quantizer;
use eightfold::{Dims, Fp8Format, Fp8Tensor, Granularity, Layout, Output, Problem, Shape, reference};
use eightfold_lab::driver::Record as _;
use half::{bf16, f16};

const FORMATS: [Fp8Format; 2] = [Fp8Format::E4m3, Fp8Format::E5m2];

fn granularities(len: usize) -> [Granularity; 6] {
    [
        Granularity::Tensor,
        Granularity::Head,
        Granularity::Block { rows: 1 },
        Granularity::Block { rows: 17 },
        Granularity::Block { rows: 128 },
        Granularity::Block { rows: len + 1 },
    ]
}

/// Values of many magnitudes, with zeros of both signs, a head of zeros, and the smallest numbers.
fn values(dims: Dims, layout: Layout) -> Vec<f32> {
    let mut values = gaussian(dims.count(), 11);
    for (index, value) in values.iter_mut().enumerate() {
        *value *= [1.0, 1e-3, 30.0, 0.0, -0.0, 1e-30, 1e-7][index % 7];
    }
    if dims.heads > 1 {
        let strides = layout.strides(dims);
        for row in 0..dims.len {
            values[strides.row_offset(0, 1, row)..][..dims.head_dim].fill(0.0);
        }
    }
    values[0] = f32::from_bits(1);
    values
}

fn assert_same<T: Number>(
    device: &Device,
    stream: &Stream,
    values: &[T],
    dims: Dims,
    from: Layout,
    granularities: &[Granularity],
) {
    let on_device = DeviceValues::upload(device, stream, values, dims, from).unwrap();
    for format in FORMATS {
        for granularity in granularities.iter().copied() {
            for to in [Layout::Bhsd, Layout::Bshd, Layout::Bhds, Layout::Packed] {
                let quantized = quantize(stream, &on_device, format, granularity, to).unwrap();
                assert_eq!(quantized.check(stream), Ok(()));
                let got = quantized.tensor().download(stream).unwrap();
                let expected = Quantizer::new(format)
                    .with_granularity(granularity)
                    .with_layout(if to == Layout::Packed { Layout::Bhds } else { to })
                    .quantize(values, dims, from)
                    .unwrap();
                assert_bits(&got, &expected, &format!("{dims} {from} to {to} {format} {granularity}"));
            }
        }
    }
}

fn assert_bits(got: &Fp8Tensor, expected: &Fp8Tensor, what: &str) {
    let bits = |tensor: &Fp8Tensor| tensor.scales().values().iter().map(|scale| scale.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(got), bits(expected), "scales of {what}");
    let differs = got.codes().iter().zip(expected.codes()).position(|(got, expected)| got != expected);
    assert_eq!(differs, None, "codes of {what}");
}

#[test]
fn the_bits_are_those_of_the_host() {
    let Some((device, stream)) = device() else { return };
    for (batch, heads, len, head_dim) in
        some(&[(2, 3, 131, 64), (1, 2, 64, 128), (1, 1, 1, 8), (2, 2, 17, 72), (1, 2, 300, 200)], 3)
    {
        let dims = Dims::new(batch, heads, len, head_dim);
        for from in [Layout::Bhsd, Layout::Bshd] {
            assert_every_number_same(&device, &stream, dims, from, &granularities(len));
        }
    }
}

fn assert_every_number_same(device: &Device, stream: &Stream, dims: Dims, from: Layout, granularities: &[Granularity]) {
    let values = values(dims, from);
    assert_same(device, stream, &values, dims, from, granularities);
    let halves: Vec<f16> = values.iter().map(|value| f16::from_f32(*value)).collect();
    assert_same(device, stream, &halves, dims, from, granularities);
    let brains: Vec<bf16> = values.iter().map(|value| bf16::from_f32(*value)).collect();
    assert_same(device, stream, &brains, dims, from, granularities);
}

/// Heads for clusters of 2, 4, 8 and 16 blocks, of which some end early and some have no rows at all; the last is too
/// long for any cluster of 16-bit values, and the one before for 32-bit values.
#[test]
fn the_bits_of_clusters_are_those_of_the_host() {
    let Some((device, stream)) = device() else { return };
    for (heads, len, head_dim) in
        some(&[(2, 700, 72), (2, 257, 128), (2, 1030, 128), (1, 2100, 128), (1, 4100, 128), (1, 8200, 128)], 3)
    {
        let dims = Dims::new(1, heads, len, head_dim);
        let granularities = [Granularity::Head, Granularity::Block { rows: 160 }, Granularity::Block { rows: 1000 }];
        for from in [Layout::Bhsd, Layout::Bshd] {
            assert_every_number_same(&device, &stream, dims, from, &granularities);
        }
    }
}

/// The largest value in every block of a cluster in turn: each must learn of it from the others.
#[test]
fn every_block_of_a_cluster_is_heard() {
    let Some((device, stream)) = device() else { return };
    let dims = Dims::new(1, 1, 4096, 128);
    let small: Vec<f32> = gaussian(dims.count(), 8);
    for row in (0..dims.len).step_by(255) {
        let mut values: Vec<bf16> = small.iter().map(|value| bf16::from_f32(*value)).collect();
        values[row * dims.head_dim + row % dims.head_dim] = bf16::from_f32(-1000.0);
        let on_device = DeviceValues::upload(&device, &stream, &values, dims, Layout::Bhsd).unwrap();
        let quantized = quantize(&stream, &on_device, Fp8Format::E4m3, Granularity::Head, Layout::Bhsd).unwrap();
        let expected = Quantizer::new(Fp8Format::E4m3).quantize(&values, dims, Layout::Bhsd).unwrap();
        assert_bits(&quantized.tensor().download(&stream).unwrap(), &expected, &format!("the largest in row {row}"));
    }
}

/// More heads than a device holds clusters of 1, 8 and 16 blocks at a time, no two with scales alike.
#[test]
fn every_head_of_many_has_its_own_scale() {
    let Some((device, stream)) = device() else { return };
    for (heads, len, head_dim) in some(&[(700, 20, 64), (41, 1030, 128), (20, 2100, 128)], 3) {
        let dims = Dims::new(1, heads, len, head_dim);
        let mut values = gaussian(dims.count(), 5);
        for (head, values) in values.chunks_mut(len * head_dim).enumerate() {
            values.iter_mut().for_each(|value| *value *= 1.0 + head as f32);
        }
        let values: Vec<bf16> = values.into_iter().map(bf16::from_f32).collect();
        assert_same(&device, &stream, &values, dims, Layout::Bhsd, &[Granularity::Head]);
    }
}

#[test]
fn values_are_read_once_where_they_fit() {
    let Some((device, stream)) = device() else { return };
    let kernels = |len: usize, granularity, layout| {
        let dims = Dims::new(1, 2, len, 128);
        let values = vec![bf16::ONE; dims.count()];
        let values = DeviceValues::upload(&device, &stream, &values, dims, Layout::Bhsd).unwrap();
        DeviceQuantizer::new(&device, &values, Fp8Format::E4m3, granularity, layout).unwrap().kernels()
    };
    let once = if device.arch().unwrap().has_clusters() { 1 } else { 2 };
    for layout in [Layout::Bhsd, Layout::Packed] {
        for len in [1, 131, 4096] {
            assert_eq!(kernels(len, Granularity::Head, layout), once, "{len} {layout}");
        }
        assert_eq!(kernels(300, Granularity::Block { rows: 128 }, layout), once);
        // The lanes that hold a row find its scale.
        let by_row = if layout == Layout::Bhsd { 1 } else { 2 };
        assert_eq!(kernels(300, Granularity::Block { rows: 1 }, layout), by_row, "{layout}");
        assert_eq!(kernels(300, Granularity::Tensor, layout), 2);
        assert_eq!(kernels(8200, Granularity::Head, layout), 2);
    }
}

/// Means in one launch: near the host's, and codes and scales those of the values less these means.
#[test]
fn centring_in_one_launch_has_its_own_means() {
    let Some((device, stream)) = device() else { return };
    for (heads, len, head_dim) in some(&[(3, 150, 64), (2, 700, 128), (2, 1, 128), (1, 4100, 128), (1, 8200, 64)], 2) {
        let dims = Dims::new(1, heads, len, head_dim);
        let mut values = gaussian(dims.count(), 12);
        values.iter_mut().enumerate().for_each(|(index, value)| *value += (index % head_dim) as f32);
        let values: Vec<bf16> = values.into_iter().map(bf16::from_f32).collect();
        let on_device = DeviceValues::upload(&device, &stream, &values, dims, Layout::Bhsd).unwrap();
        let (format, granularity) = (Fp8Format::E4m3, Granularity::Head);
        let quantizer = DeviceQuantizer::centered_once(&device, &on_device, format, granularity, Layout::Bhsd).unwrap();
        let quantizer = quantizer.with_largest_code(16.0).unwrap();
        let fits = device.arch().unwrap().has_clusters();
        assert_eq!(quantizer.kernels(), if fits { 1 } else { 4 });
        let mut quantized = quantizer.allocate().unwrap();
        quantized.poison(&stream).unwrap();
        quantizer.launch(&stream, &on_device, &mut quantized).unwrap();
        assert_eq!(quantized.check(&stream), Ok(()));
        let got = quantized.tensor().download(&stream).unwrap();
        let host = Quantizer::new(format).with_largest_code(16.0);
        let exact = host.centered().quantize(&values, dims, Layout::Bhsd).unwrap();
        let means = got.means().unwrap();
        for (got, exact) in means.iter().zip(exact.means().unwrap()) {
            assert!((got - exact).abs() < 1e-5 * (1.0 + exact.abs()), "{got} and {exact} of {dims}");
        }
        let less: Vec<f32> = (0..dims.count())
            .map(|index| values[index].to_f32() - means[index / (len * head_dim) * head_dim + index % head_dim])
            .collect();
        let expected = host.quantize(&less, dims, Layout::Bhsd).unwrap();
        assert_bits(&got, &expected, &format!("{dims} less its means"));
    }
}

#[test]
fn a_launch_can_be_recorded() {
    let Some((device, stream)) = device() else { return };
    for len in [1030, 8200] {
        let dims = Dims::new(1, 2, len, 128);
        let values: Vec<bf16> = gaussian(dims.count(), 9).into_iter().map(bf16::from_f32).collect();
        let on_device = DeviceValues::upload(&device, &stream, &values, dims, Layout::Bhsd).unwrap();
        let quantizer =
            DeviceQuantizer::new(&device, &on_device, Fp8Format::E4m3, Granularity::Head, Layout::Bhsd).unwrap();
        let mut quantized = quantizer.allocate().unwrap();
        let mut graph = stream.capture(&mut || quantizer.launch(&stream, &on_device, &mut quantized)).unwrap();
        let expected = Quantizer::new(Fp8Format::E4m3).quantize(&values, dims, Layout::Bhsd).unwrap();
        for round in 0..2 {
            quantized.poison(&stream).unwrap();
            // SAFETY: all that the graph uses lives until the stream is done.
            unsafe { graph.launch(&stream) }.unwrap();
            let got = quantized.tensor().download(&stream).unwrap();
            assert_bits(&got, &expected, &format!("{dims}, recorded, round {round}"));
        }
    }
}

/// One scale for each row, of every exponent that a scale can have, and values whose quotients are where codes change.
#[test]
fn the_bits_are_those_of_the_host_at_every_scale() {
    let Some((device, stream)) = device() else { return };
    let dims = Dims::new(1, 1, 254, 128);
    let granularity = Granularity::Block { rows: 1 };
    for mantissa in [0, 1, 0x0012_3457, 0x007f_fffe, 0x007f_ffff] {
        for format in FORMATS {
            let mut values = Vec::new();
            for exponent in 1..=254u32 {
                let largest = f32::from_bits(exponent << 23 | mantissa);
                let scale = (largest / format.max()).max(f32::MIN_POSITIVE);
                values.push(largest);
                for index in 1..dims.head_dim {
                    // Around sixteenths of powers of two, half of which are half way between two codes.
                    let quotient = (16 + index % 16) as f32 / 16.0 * 2.0f32.powi((index / 16) as i32 * 2 - 11);
                    let bits = (quotient.min(format.max()) * scale).to_bits();
                    let value = f32::from_bits(bits.saturating_sub(2) + index as u32 % 5).min(largest);
                    values.push(if index % 3 == 0 { -value } else { value });
                }
            }
            let on_device = DeviceValues::upload(&device, &stream, &values, dims, Layout::Bhsd).unwrap();
            for to in [Layout::Bhsd, Layout::Packed] {
                let quantized = quantize(&stream, &on_device, format, granularity, to).unwrap();
                let expected = Quantizer::new(format)
                    .with_granularity(granularity)
                    .with_layout(if to == Layout::Packed { Layout::Bhds } else { to })
                    .quantize(&values, dims, Layout::Bhsd)
                    .unwrap();
                let got = quantized.tensor().download(&stream).unwrap();
                assert_bits(&got, &expected, &format!("mantissa {mantissa:#x} to {to} {format}"));
            }
        }
    }
}

fn assert_same_centered<T: Number>(device: &Device, stream: &Stream, values: &[T], dims: Dims, from: Layout) {
    let on_device = DeviceValues::upload(device, stream, values, dims, from).unwrap();
    for granularity in [Granularity::Tensor, Granularity::Head, Granularity::Block { rows: 17 }] {
        for to in [Layout::Bhsd, Layout::Bhds, Layout::Packed] {
            let quantizer = DeviceQuantizer::centered(device, &on_device, Fp8Format::E4m3, granularity, to).unwrap();
            let mut quantized = quantizer.allocate().unwrap();
            quantizer.launch(stream, &on_device, &mut quantized).unwrap();
            assert_eq!(quantized.check(stream), Ok(()));
            let got = quantized.tensor().download(stream).unwrap();
            let expected = Quantizer::new(Fp8Format::E4m3)
                .with_granularity(granularity)
                .with_layout(if to == Layout::Packed { Layout::Bhds } else { to })
                .centered()
                .quantize(values, dims, from)
                .unwrap();
            let what = format!("{dims} {from} to {to} {granularity}, centred");
            let means =
                |tensor: &Fp8Tensor| tensor.means().unwrap().iter().map(|mean| mean.to_bits()).collect::<Vec<_>>();
            assert_eq!(means(&got), means(&expected), "means of {what}");
            assert_bits(&got, &expected, &what);
        }
    }
}

#[test]
fn centred_the_bits_are_those_of_the_host() {
    let Some((device, stream)) = device() else { return };
    for (batch, heads, len, head_dim) in
        [(2, 3, 131, 64), (1, 2, 1000, 128), (1, 1, 1, 8), (2, 2, 64, 72), (1, 300, 40, 64), (1, 1, 4100, 128)]
    {
        let dims = Dims::new(batch, heads, len, head_dim);
        for from in [Layout::Bhsd, Layout::Bshd] {
            let mut values = values(dims, from);
            for (index, value) in values.iter_mut().enumerate() {
                *value += (index % head_dim) as f32 / 7.0 - 3.0;
            }
            assert_same_centered(&device, &stream, &values, dims, from);
            let brains: Vec<bf16> = values.iter().map(|value| bf16::from_f32(*value)).collect();
            assert_same_centered(&device, &stream, &brains, dims, from);
        }
    }
}

#[test]
fn the_padding_of_transposed_codes_is_zero() {
    let Some((device, stream)) = device() else { return };
    let dims = Dims::new(1, 2, 21, 64);
    let values = DeviceValues::upload(&device, &stream, &gaussian(dims.count(), 5), dims, Layout::Bhsd).unwrap();
    for make in [DeviceQuantizer::new, DeviceQuantizer::centered] {
        let quantizer = make(&device, &values, Fp8Format::E4m3, Granularity::Head, Layout::Bhds).unwrap();
        assert_padding(&device, &stream, dims, &values, &quantizer);
    }
}

fn assert_padding(device: &Device, stream: &Stream, dims: Dims, values: &DeviceValues, quantizer: &DeviceQuantizer) {
    let mut quantized = quantizer.allocate().unwrap();
    quantized.poison(stream).unwrap();
    quantizer.launch(stream, values, &mut quantized).unwrap();
    // The same memory, seen as a tensor whose keys include the padding.
    let padded = Dims::new(dims.batch, dims.heads, 32, dims.head_dim);
    let (codes, scales) = (quantized.tensor().codes(), quantized.tensor().scales());
    let raw = RawTensor::new(padded, Fp8Format::E4m3, Layout::Bhds, codes, Granularity::Head, scales);
    // SAFETY: the memory is that of `quantized`, which lives longer.
    let seen = unsafe { DeviceTensor::from_raw(device, raw) }.unwrap();
    let codes = seen.download(stream).unwrap();
    for line in codes.codes().chunks(32) {
        assert_eq!(line[21..], [0; 11]);
    }
}

#[test]
fn codes_stay_below_what_was_asked() {
    let Some((device, stream)) = device() else { return };
    let dims = Dims::new(1, 2, 70, 64);
    let values = values(dims, Layout::Bhsd);
    let on_device = DeviceValues::upload(&device, &stream, &values, dims, Layout::Bhsd).unwrap();
    for format in FORMATS {
        let quantizer = DeviceQuantizer::new(&device, &on_device, format, Granularity::Head, Layout::Bhsd).unwrap();
        let quantizer = quantizer.with_largest_code(16.0).unwrap();
        let mut quantized = quantizer.allocate().unwrap();
        quantizer.launch(&stream, &on_device, &mut quantized).unwrap();
        assert_eq!(quantized.tensor().largest_code(), 16.0);
        let expected = Quantizer::new(format).with_largest_code(16.0).quantize(&values, dims, Layout::Bhsd).unwrap();
        assert_bits(&quantized.tensor().download(&stream).unwrap(), &expected, &format!("{format} up to 16"));
    }
}

#[test]
fn a_second_launch_forgets_the_first() {
    let Some((device, stream)) = device() else { return };
    let dims = Dims::new(1, 2, 40, 64);
    let upload = |values: &[f32]| DeviceValues::upload(&device, &stream, values, dims, Layout::Bhsd).unwrap();
    let large = upload(&vec![100.0; dims.count()]);
    let small_values = gaussian(dims.count(), 6);
    let small = upload(&small_values);
    let quantizer = DeviceQuantizer::new(&device, &large, Fp8Format::E4m3, Granularity::Head, Layout::Bhsd).unwrap();
    let mut quantized = quantizer.allocate().unwrap();
    quantizer.launch(&stream, &large, &mut quantized).unwrap();
    quantizer.launch(&stream, &small, &mut quantized).unwrap();
    let expected = eightfold::quantize(&small_values, dims).unwrap();
    assert_bits(&quantized.tensor().download(&stream).unwrap(), &expected, "the second launch");
}

#[test]
fn values_that_are_not_finite_are_found() {
    let Some((device, stream)) = device() else { return };
    let dims = Dims::new(2, 2, 100, 64);
    for (bad, word) in [(f32::NAN, "NaN"), (f32::NEG_INFINITY, "an infinity")] {
        let mut values = gaussian(dims.count(), 7);
        values[Layout::Bhsd.strides(dims).row_offset(1, 0, 70) + 3] = bad;
        let values = DeviceValues::upload(&device, &stream, &values, dims, Layout::Bhsd).unwrap();
        for (granularity, place) in [
            (Granularity::Block { rows: 64 }, "in batch 1, head 0, rows 64 to 99"),
            (Granularity::Head, "in batch 1, head 0"),
            (Granularity::Tensor, "somewhere"),
        ] {
            let quantized = quantize(&stream, &values, Fp8Format::E4m3, granularity, Layout::Bhsd).unwrap();
            let error = quantized.check(&stream).unwrap_err().to_string();
            assert!(error.starts_with(&format!("values: {word} {place}; ")), "{error}");
        }
    }
}

/// What the page of the CUDA backend shows: quantise, attend, read back; and the fast kernel is what runs.
#[test]
fn quantised_for_attention_the_fast_kernel_runs() {
    let Some((device, stream)) = device() else { return };
    let problem = Problem::new(Shape::new(1, 2, 200, 64)).unwrap().causal();
    let dims = problem.shape().query_dims();
    let values = [31, 32, 33].map(|seed| gaussian(dims.count(), seed));
    let on_device =
        values.each_ref().map(|values| DeviceValues::upload(&device, &stream, values, dims, Layout::Bhsd).unwrap());
    let [q, k, v] = for_attention(&stream, &problem, on_device.each_ref()).unwrap();
    let mut output = DeviceOutput::new(&device, &problem).unwrap();
    let report = attention(&stream, &problem, q.tensor(), k.tensor(), v.tensor(), &mut output).unwrap();
    let mut got = Output::zeros(&problem);
    output.download(&stream, &mut got).unwrap();
    let [q, k, v] = values.map(|values| values.into_iter().map(f64::from).collect::<Vec<_>>());
    let expected = reference::attention(&problem, &q, &k, &v).unwrap();
    let error = relative_l2(&got.values.to_f32(), &expected.values);
    assert!(error < 0.08, "{error}");
    if hopper::target(device.arch().unwrap()).is_ok() {
        assert_eq!(report.variant.unwrap().knob("scores").as_deref(), Some("f16"));
    }
}
