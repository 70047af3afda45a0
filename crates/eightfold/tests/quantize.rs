//! Quantising: every layout, granularity and number type, centring, extremes and errors.

use eightfold::quantize::{Element, Quantizer, quantize};
use eightfold::{Dims, Fp8Format, Fp8Tensor, Granularity, Layout, fp8};
use half::{bf16, f16};
use proptest::prelude::*;

const LAYOUTS: [Layout; 3] = [Layout::Bhsd, Layout::Bshd, Layout::Bhds];
const FLOATS: [Fp8Format; 2] = [Fp8Format::E4m3, Fp8Format::E5m2];
const FORMATS: [Fp8Format; 3] = [Fp8Format::E4m3, Fp8Format::E5m2, Fp8Format::Int8];

/// Every place of a tensor in `[batch, head, row, channel]` order.
fn places(dims: Dims) -> impl Iterator<Item = [usize; 4]> {
    let Dims { heads, len, head_dim, .. } = dims;
    (0..dims.count()).map(move |index| {
        let (line, channel) = (index / head_dim, index % head_dim);
        [line / len / heads, line / len % heads, line % len, channel]
    })
}

fn offset(dims: Dims, layout: Layout, [batch, head, row, channel]: [usize; 4]) -> usize {
    let strides = layout.strides(dims);
    strides.row_offset(batch, head, row) + channel * strides.channel
}

/// The same values, moved from `[B,H,S,D]` to another layout.
fn arrange<T: Copy>(values: &[T], dims: Dims, layout: Layout) -> Vec<T> {
    let mut arranged = values.to_vec();
    for (value, place) in values.iter().zip(places(dims)) {
        arranged[offset(dims, layout, place)] = *value;
    }
    arranged
}

/// Numbers around −1 … 1 that look random and are the same in every run.
fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    (0..count)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
            (state >> 40) as f32 / (1u32 << 23) as f32 - 1.0
        })
        .collect()
}

/// The distance between neighbouring values of the format around a value of this magnitude.
fn step(format: Fp8Format, magnitude: f64) -> f64 {
    let (mantissa_bits, smallest_exponent) = match format {
        Fp8Format::E4m3 => (3, -6),
        Fp8Format::E5m2 => (2, -14),
        Fp8Format::Int8 => return 1.0,
    };
    let exponent = if magnitude == 0.0 { f64::MIN } else { magnitude.log2().floor() };
    (exponent.max(f64::from(smallest_exponent)) - f64::from(mantissa_bits)).exp2()
}

/// Every value, after centring, comes back within half a step of its own size, and each scale is used to the full.
fn check_error(values: &[f32], tensor: &Fp8Tensor) {
    let dims = tensor.dims();
    let dequantized = tensor.dequantize();
    for ((value, back), [batch, head, row, channel]) in values.iter().zip(&dequantized).zip(places(dims)) {
        let scale = f64::from(tensor.scales().of_row(dims, batch, head, row));
        let mean = tensor.head_means(batch, head).map_or(0.0, |means| f64::from(means[channel]));
        let centred = f64::from(*value) - mean;
        // The division by the scale and the subtraction of the mean are rounded to f32.
        let slack = 1.0 + 1e-5;
        let limit = 0.5 * step(tensor.format(), centred.abs() / scale) * scale * slack;
        let rounding = 2f64.powi(-24) * centred.abs();
        assert!(
            (f64::from(*value) - back).abs() <= limit + rounding,
            "{value} came back as {back} at {:?}, scale {scale}, mean {mean}",
            [batch, head, row, channel]
        );
    }
}

fn granularities() -> impl Strategy<Value = Granularity> {
    prop_oneof![
        Just(Granularity::Tensor),
        Just(Granularity::Head),
        (1usize..50).prop_map(|rows| Granularity::Block { rows }),
    ]
}

fn all_dims() -> impl Strategy<Value = Dims> {
    (1usize..3, 1usize..4, 1usize..150, 1usize..80)
        .prop_map(|(batch, heads, len, head_dim)| Dims::new(batch, heads, len, head_dim))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn values_come_back_within_half_a_step(
        dims in all_dims(), granularity in granularities(), format in prop::sample::select(&FORMATS),
        centred: bool, seed: u64, exponent in -60i32..60, bias in -3f32..3.0,
    ) {
        let unit = 2f32.powi(exponent);
        let values: Vec<f32> =
            numbers(dims.count(), seed).iter().map(|x| (x * x * x + bias) * unit).collect();
        let quantizer = Quantizer::new(format).with_granularity(granularity);
        let quantizer = if centred { quantizer.centered() } else { quantizer };
        let tensor = quantizer.quantize(&values, dims, Layout::Bhsd)?;
        prop_assert_eq!(tensor.means().is_some(), centred);
        check_error(&values, &tensor);
    }

    #[test]
    fn every_layout_gives_the_same_codes_scales_and_means(
        dims in all_dims(), granularity in granularities(), centred: bool, seed: u64,
    ) {
        let values = numbers(dims.count(), seed);
        let quantizer = Quantizer::new(Fp8Format::E4m3).with_granularity(granularity);
        let quantizer = if centred { quantizer.centered() } else { quantizer };
        let expected = quantizer.quantize(&values, dims, Layout::Bhsd)?;
        for from in LAYOUTS {
            let arranged = arrange(&values, dims, from);
            for to in LAYOUTS {
                let tensor = quantizer.with_layout(to).quantize(&arranged, dims, from)?;
                prop_assert_eq!(tensor.layout(), to);
                prop_assert_eq!(tensor.scales(), expected.scales());
                prop_assert_eq!(tensor.means(), expected.means());
                let codes = arrange(expected.codes(), dims, to);
                prop_assert_eq!(tensor.codes(), &codes[..], "{} to {}", from, to);
            }
        }
    }

    #[test]
    fn halves_are_quantised_as_the_f32_that_they_are(dims in all_dims(), seed: u64, centred: bool) {
        let values = numbers(dims.count(), seed);
        let quantizer = Quantizer::new(Fp8Format::E5m2);
        let quantizer = if centred { quantizer.centered() } else { quantizer };
        let halves: Vec<f16> = values.iter().map(|x| f16::from_f32(*x)).collect();
        let bfloats: Vec<bf16> = values.iter().map(|x| bf16::from_f32(*x)).collect();
        check_as_f32(&quantizer, &halves, dims);
        check_as_f32(&quantizer, &bfloats, dims);
    }

    #[test]
    fn every_scale_is_the_largest_magnitude_over_the_formats_largest(
        dims in all_dims(), granularity in granularities(), seed: u64,
    ) {
        let values = numbers(dims.count(), seed);
        let tensor = Quantizer::new(Fp8Format::E4m3)
            .with_granularity(granularity)
            .quantize(&values, dims, Layout::Bhsd)?;
        let mut largest = vec![0f32; tensor.scales().values().len()];
        for (value, [batch, head, row, _]) in values.iter().zip(places(dims)) {
            let head = batch * dims.heads + head;
            let index = match granularity {
                Granularity::Tensor => 0,
                Granularity::Head => head,
                Granularity::Block { rows } => head * dims.len.div_ceil(rows) + row / rows,
                other => panic!("{other} is not covered"),
            };
            largest[index] = largest[index].max(value.abs());
        }
        let expected: Vec<f32> = largest.iter().map(|largest| largest / 448.0).collect();
        prop_assert_eq!(tensor.scales().values(), &expected[..]);
    }
}

fn check_as_f32<T: Element>(quantizer: &Quantizer, narrow: &[T], dims: Dims) {
    let wide: Vec<f32> = narrow.iter().map(|value| value.to_f32()).collect();
    let expected = quantizer.quantize(&wide, dims, Layout::Bhsd).unwrap();
    assert_eq!(quantizer.quantize(narrow, dims, Layout::Bhsd).unwrap(), expected);
}

#[test]
fn a_long_head_is_cut_into_tasks_without_a_seam() {
    let dims = Dims::new(1, 2, 1037, 72);
    let values = numbers(dims.count(), 5);
    let expected = quantize(&values, dims).unwrap();
    for from in LAYOUTS {
        let arranged = arrange(&values, dims, from);
        for to in LAYOUTS {
            let quantizer = Quantizer::new(Fp8Format::E4m3).with_layout(to);
            let tensor = quantizer.quantize(&arranged, dims, from).unwrap();
            assert_eq!(tensor.codes(), arrange(expected.codes(), dims, to), "{from} to {to}");
        }
    }
    check_error(&values, &expected);
}

#[test]
fn zeros_get_the_scale_one() {
    let dims = Dims::new(1, 2, 3, 8);
    let mut values = vec![0.0f32; dims.count()];
    values[24..].fill(-448.0);
    let tensor = quantize(&values, dims).unwrap();
    assert_eq!(tensor.scales().values(), [1.0, 1.0]);
    assert!(tensor.codes()[..24].iter().all(|code| *code == 0));
    assert!(tensor.codes()[24..].iter().all(|code| *code == 0xfe));
}

#[test]
fn tiny_and_huge_values_keep_their_precision() {
    let dims = Dims::new(1, 1, 16, 8);
    for format in FLOATS {
        for unit in [1e-38, 1e-36, 1e-30, 1e30, 3e38f32] {
            let values: Vec<f32> = numbers(dims.count(), 6).iter().map(|x| x * unit).collect();
            let tensor = Quantizer::new(format).quantize(&values, dims, Layout::Bhsd).unwrap();
            let scale = tensor.scales().values()[0];
            assert!(scale.is_normal() && scale.recip().is_finite(), "{unit:e}: scale {scale:e}");
            check_error(&values, &tensor);
            let largest = values.iter().fold(0f32, |largest, x| largest.max(x.abs()));
            let back = tensor.dequantize().iter().fold(0f64, |largest, x| largest.max(x.abs()));
            assert!((back / f64::from(largest) - 1.0).abs() < 0.07, "{unit:e}: {back:e}");
        }
    }
}

#[test]
fn the_smallest_subnormal_does_no_harm() {
    let dims = Dims::new(1, 1, 1, 8);
    let tensor = quantize(&[f32::from_bits(1); 8], dims).unwrap();
    assert_eq!(tensor.scales().values(), [f32::MIN_POSITIVE]);
    assert_eq!(tensor.dequantize(), [0.0; 8]);
}

#[test]
fn centring_subtracts_the_mean_that_it_keeps() {
    let dims = Dims::new(2, 2, 33, 8);
    let values: Vec<f32> = numbers(dims.count(), 7).iter().enumerate().map(|(i, x)| x + (i % 8) as f32).collect();
    let quantizer = Quantizer::new(Fp8Format::E4m3).centered();
    let tensor = quantizer.quantize(&values, dims, Layout::Bhsd).unwrap();
    let mut sums = vec![0f64; 2 * 2 * 8];
    for (value, [batch, head, _, channel]) in values.iter().zip(places(dims)) {
        sums[(batch * 2 + head) * 8 + channel] += f64::from(*value);
    }
    let means: Vec<f32> = sums.iter().map(|sum| (sum / 33.0) as f32).collect();
    assert_eq!(tensor.means().unwrap(), means);
    for ((value, code), [batch, head, row, channel]) in values.iter().zip(tensor.codes()).zip(places(dims)) {
        let mean = tensor.head_means(batch, head).unwrap()[channel];
        let scale = tensor.scales().of_row(dims, batch, head, row);
        assert_eq!(*code, fp8::encode(Fp8Format::E4m3, (value - mean) / scale));
    }
}

#[test]
fn centring_makes_a_constant_exact() {
    let dims = Dims::new(1, 1, 100, 8);
    let values = vec![0.1f32; dims.count()];
    let quantizer = Quantizer::new(Fp8Format::E4m3).centered();
    let tensor = quantizer.quantize(&values, dims, Layout::Bhsd).unwrap();
    assert!(tensor.dequantize().iter().all(|value| *value == f64::from(0.1f32)));
}

#[test]
fn a_value_that_is_not_finite_is_named_with_its_place() {
    let dims = Dims::new(2, 3, 70, 8);
    for (bad, text) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (f32::NEG_INFINITY, "-inf")] {
        let mut values = numbers(dims.count(), 8);
        values[((3 + 2) * 70 + 69) * 8 + 5] = bad;
        for layout in LAYOUTS {
            let arranged = arrange(&values, dims, layout);
            for quantizer in [Quantizer::new(Fp8Format::E4m3), Quantizer::new(Fp8Format::E4m3).centered()] {
                let error = quantizer.quantize(&arranged, dims, layout).unwrap_err();
                assert_eq!(
                    error.to_string(),
                    format!("values: {text} at batch 1, head 2, row 69, channel 5; quantise finite values only")
                );
            }
            let halves: Vec<f16> = arranged.iter().map(|value| f16::from_f32(*value)).collect();
            let quantizer = Quantizer::new(Fp8Format::E4m3);
            assert!(quantizer.quantize(&halves, dims, layout).is_err());
        }
    }
}

#[test]
fn centring_that_overflows_is_an_error() {
    let dims = Dims::new(1, 1, 3, 1);
    let quantizer = Quantizer::new(Fp8Format::E4m3).centered();
    let error = quantizer.quantize(&[3e38f32, 3e38, -3e38], dims, Layout::Bhsd).unwrap_err();
    let error = error.to_string();
    assert!(error.contains(" at batch 0, head 0, row 2, channel 0 minus"), "{error}");
    assert!(error.contains("overflows f32; scale the values down"), "{error}");
}

#[test]
fn wrong_sizes_name_the_argument() {
    let dims = Dims::new(1, 2, 3, 8);
    let error = quantize(&[0.0f32; 47], dims).unwrap_err().to_string();
    assert!(error.starts_with("values: has 47 elements, but dims [1, 2, 3, 8] hold 48"), "{error}");
    let error = quantize::<f32>(&[], Dims::new(dims.batch, dims.heads, 0, dims.head_dim)).unwrap_err().to_string();
    assert!(error.starts_with("dims: [1, 2, 0, 8] has zero len"), "{error}");
    let error =
        quantize::<f32>(&[], Dims::new(dims.batch, dims.heads, usize::MAX, dims.head_dim)).unwrap_err().to_string();
    assert!(error.contains("more elements than can be addressed"), "{error}");
    let quantizer = Quantizer::new(Fp8Format::E4m3).with_granularity(Granularity::Block { rows: 0 });
    let error = quantizer.quantize(&[0.0f32; 48], dims, Layout::Bhsd).unwrap_err().to_string();
    assert!(error.starts_with("granularity: a block of 0 rows"), "{error}");
}

#[test]
fn a_block_larger_than_the_head_is_the_head() {
    let dims = Dims::new(1, 2, 5, 8);
    let values = numbers(dims.count(), 9);
    for layout in LAYOUTS {
        let blocks = Quantizer::new(Fp8Format::E4m3)
            .with_granularity(Granularity::Block { rows: usize::MAX })
            .quantize(&values, dims, layout)
            .unwrap();
        let heads = Quantizer::new(Fp8Format::E4m3).quantize(&values, dims, layout).unwrap();
        assert_eq!(blocks.scales().values(), heads.scales().values());
        assert_eq!(blocks.codes(), heads.codes());
    }
}

#[test]
fn the_number_of_threads_changes_nothing() {
    let dims = Dims::new(1, 3, 700, 40);
    let values = numbers(dims.count(), 10);
    let quantizer = Quantizer::new(Fp8Format::E4m3).with_layout(Layout::Bhds).centered();
    let with_threads = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| quantizer.quantize(&values, dims, Layout::Bshd).unwrap())
    };
    assert_eq!(with_threads(1), with_threads(5));
}

#[test]
fn codes_stay_below_what_was_asked() {
    let dims = Dims::new(1, 2, 33, 24);
    let values = numbers(dims.count(), 5);
    for format in FLOATS {
        let full = Quantizer::new(format).quantize(&values, dims, Layout::Bhsd).unwrap();
        assert_eq!(full.largest_code(), format.max());
        let small = Quantizer::new(format).with_largest_code(16.0).quantize(&values, dims, Layout::Bhsd).unwrap();
        assert_eq!(small.largest_code(), 16.0);
        for (full, small) in full.dequantize().iter().zip(small.dequantize()) {
            // Each is within half a step, of which there are four to a power of two in E5M2.
            assert!((full - small).abs() <= 0.25 * full.abs() + 0.02, "{format}: {full} and {small}");
        }
    }
    for bad in [0.0, -16.0, 17.0, 500.0, f32::NAN, f32::INFINITY] {
        let quantizer = Quantizer::new(Fp8Format::E4m3).with_largest_code(bad);
        let error = quantizer.quantize(&values, dims, Layout::Bhsd).unwrap_err().to_string();
        assert!(error.starts_with(&format!("largest_code: {bad} is not a positive value of e4m3; ")), "{error}");
    }
    let packed = Quantizer::new(Fp8Format::E4m3).with_layout(Layout::Packed);
    let error = packed.quantize(&values, dims, Layout::Bhsd).unwrap_err().to_string();
    assert!(error.starts_with("layout: packed is for tensors in device memory; "), "{error}");
}
