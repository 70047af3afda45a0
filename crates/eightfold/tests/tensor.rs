//! What a tensor must be.

use eightfold::{Dims, Fp8Format, Fp8Tensor, Granularity, Layout, Result, Scales};

const DIMS: Dims = Dims::new(2, 3, 5, 8);

fn scales() -> Scales {
    Scales::per_tensor(0.5).unwrap()
}

fn tensor(codes: Vec<u8>) -> Result<Fp8Tensor<'static>> {
    Fp8Tensor::new(DIMS, Layout::Bhsd, Fp8Format::E4m3, codes, scales())
}

#[track_caller]
fn assert_refused<T: std::fmt::Debug>(result: Result<T>, expected: &str) {
    let error = result.unwrap_err().to_string();
    assert!(error.starts_with(expected), "{error}");
}

#[test]
fn packed_rows_are_for_the_device() {
    let tensor = Fp8Tensor::new(DIMS, Layout::Packed, Fp8Format::E4m3, vec![0; 240], scales());
    assert_refused(tensor, "layout: packed is for tensors in device memory; ");
    assert!(Layout::Packed.is_transposed() && !Layout::Bshd.is_transposed());
}

#[test]
fn wrong_lengths_and_zero_sizes_are_refused() {
    assert_refused(tensor(vec![0; 239]), "codes: 239 codes for dims [2, 3, 5, 8], which hold 240; ");
    for (granularity, given, expected) in
        [(Granularity::Tensor, 2, 1), (Granularity::Head, 5, 6), (Granularity::Block { rows: 2 }, 17, 18)]
    {
        let scales = Scales::new(granularity, vec![1.0; given]).unwrap();
        assert_refused(
            Fp8Tensor::new(DIMS, Layout::Bhsd, Fp8Format::E4m3, vec![0; 240], scales),
            &format!("scales: {given} scales {granularity}, but dims [2, 3, 5, 8] need {expected}; "),
        );
    }
    let dims = Dims::new(DIMS.batch, 0, DIMS.len, DIMS.head_dim);
    assert_refused(
        Fp8Tensor::new(dims, Layout::Bhsd, Fp8Format::E4m3, vec![], scales()),
        "dims: [2, 0, 5, 8] has a zero size; ",
    );
    let dims = Dims::new(DIMS.batch, usize::MAX, DIMS.len, DIMS.head_dim);
    assert_refused(Fp8Tensor::new(dims, Layout::Bhsd, Fp8Format::E4m3, vec![], scales()), "shape: ");
}

#[test]
fn a_code_that_is_not_finite_is_refused_with_its_place() {
    let wide = Dims::new(DIMS.batch, DIMS.heads, 1000, DIMS.head_dim);
    for (format, code) in (0..=255).flat_map(|code| [(Fp8Format::E4m3, code), (Fp8Format::E5m2, code)]) {
        let mut codes = vec![1; wide.count()];
        for index in [0, 1023, 1024, 47_999] {
            codes[index] = code;
            let tensor = Fp8Tensor::new(wide, Layout::Bhsd, format, &codes, scales());
            if eightfold::fp8::decode(format, code).is_finite() {
                assert!(tensor.is_ok(), "{format} {code:#04x}");
            } else {
                let expected = format!("codes: code {code:#04x} at index {index} is NaN or");
                assert_refused(tensor, &expected);
            }
            codes[index] = 1;
        }
    }
}

#[test]
fn means_are_one_finite_number_per_channel_of_each_head() {
    let fresh = || tensor(vec![0; 240]).unwrap();
    assert_eq!(fresh().means(), None);
    assert_eq!(fresh().head_means(0, 0), None);
    let means: Vec<f32> = (0..48).map(|index| index as f32).collect();
    let centred = fresh().with_means(means.clone()).unwrap();
    assert_eq!(centred.means(), Some(&means[..]));
    assert_eq!(centred.head_means(1, 2), Some(&means[40..]));
    assert_refused(fresh().with_means(means[..47].to_vec()), "means: 47 values");
    for bad in [f32::NAN, f32::INFINITY] {
        assert_refused(fresh().with_means(vec![bad; 48]), "means: ");
    }
}

#[test]
fn a_value_is_code_times_scale_plus_mean() {
    // 0x38 is 1.0 and 0xc4 is −3.0 in E4M3.
    let mut codes = vec![0x38; 240];
    let strides = Layout::Bhds.strides(DIMS);
    codes[strides.row_offset(1, 0, 3) + 6 * strides.channel] = 0xc4;
    let scales = Scales::new(Granularity::Head, vec![1.0, 2.0, 4.0, 8.0, 16.0, 32.0]).unwrap();
    let means = (0..48).map(|index| index as f32 / 64.0).collect();
    let tensor =
        Fp8Tensor::new(DIMS, Layout::Bhds, Fp8Format::E4m3, &codes, scales).unwrap().with_means(means).unwrap();
    let values = tensor.dequantize();
    assert_eq!(tensor.largest_code(), 3.0);
    assert_eq!(values.len(), 240);
    assert_eq!(values[0], 1.0);
    assert_eq!(values[((2 * 5) + 4) * 8 + 7], 4.0 + 23.0 / 64.0);
    assert_eq!(values[((3 * 5) + 3) * 8 + 6], -24.0 + 30.0 / 64.0);
}

#[test]
fn borrowed_codes_are_not_copied() {
    let codes = vec![0; 240];
    let tensor = Fp8Tensor::new(DIMS, Layout::Bshd, Fp8Format::E5m2, &codes, scales()).unwrap();
    assert!(std::ptr::eq(tensor.codes(), &codes[..]));
    assert_eq!(tensor.format(), Fp8Format::E5m2);
    assert_eq!(tensor.layout(), Layout::Bshd);
    assert_eq!(tensor.strides(), Layout::Bshd.strides(DIMS));
}

#[test]
fn a_scale_must_be_finite_and_positive() {
    for bad in [0.0, -0.0, -1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        assert_refused(
            Scales::new(Granularity::Head, vec![1.0, 2.0, bad]),
            &format!("scales: scale 2 is {bad}, not a finite positive number; "),
        );
        assert_refused(Scales::per_tensor(bad), "scales: scale 0 is ");
    }
    assert_refused(Scales::new(Granularity::Block { rows: 0 }, vec![1.0]), "scales: a block of 0 rows");
}

#[test]
fn each_row_finds_its_own_scale() {
    let numbered = |granularity: Granularity| {
        let count = granularity.count(DIMS);
        Scales::new(granularity, (1..=count).map(|index| index as f32).collect()).unwrap()
    };
    let tensor = numbered(Granularity::Tensor);
    assert_eq!(tensor.values(), [1.0]);
    assert_eq!(tensor.of_row(DIMS, 1, 2, 4), 1.0);
    let heads = numbered(Granularity::Head);
    assert_eq!(heads.values().len(), 6);
    assert_eq!(heads.of_row(DIMS, 0, 2, 4), 3.0);
    assert_eq!(heads.of_row(DIMS, 1, 0, 0), 4.0);
    let blocks = numbered(Granularity::Block { rows: 2 });
    assert_eq!(blocks.values().len(), 18);
    let of_rows: Vec<f32> = (0..5).map(|row| blocks.of_row(DIMS, 1, 1, row)).collect();
    assert_eq!(of_rows, [13.0, 13.0, 14.0, 14.0, 15.0]);
}
