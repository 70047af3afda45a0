//! Attention on the CPU against candle's own matmul, softmax and matmul.

mod support;

use candle_core::{DType, Device, Result, Tensor, Var};
use eightfold_candle::{Options, Scales, attention, attention_scaled, attention_with};
use proptest::prelude::*;
use support::{error, meant, normal, own, scaled};

/// What quantising N(0, 1) to E4M3 with a scale per head costs, with room for an unlucky draw.
const QUANTISED: f32 = 0.07;
/// What is left where the FP8 values are exact: the CPU's kernel, and the rounding of a 16-bit output.
const EXACT: f32 = 5e-3;

const CPU: &Device = &Device::Cpu;

fn options() -> Options {
    Options { softmax_scale: Some(0.125), lse: true, ..Options::default() }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn attention_is_candles_own_but_for_quantising(
        batch in 1..3usize, kv_heads in 1..3usize, group in 1..4usize, rows in 1..40usize, more in 0..20usize,
        channels in prop_oneof![Just(8usize), Just(24), Just(64)], causal: bool, seed: u64,
        dtype in prop_oneof![Just(DType::F32), Just(DType::F16), Just(DType::BF16)],
        // How each tensor lies: as it is, transposed in memory, a part of a larger one, or repeated over the batch.
        lies in [0..4u8, 0..4u8, 0..4u8],
    ) {
        let keys = rows + more;
        let make = |dims: [usize; 4], lie: u8, seed: u64| -> Result<Tensor> {
            let [batch, len, heads, channels] = dims;
            match lie {
                0 => normal(dims, seed, CPU)?.to_dtype(dtype),
                1 => normal([batch, heads, len, channels], seed, CPU)?.to_dtype(dtype)?.transpose(1, 2),
                2 => normal([batch, len + 3, heads, channels + 8], seed, CPU)?.to_dtype(dtype)?.narrow(1, 2, len)?.narrow(3, 4, channels),
                _ => normal([1, len, heads, channels], seed, CPU)?.to_dtype(dtype)?.expand(&dims[..]),
            }
        };
        let q = make([batch, rows, kv_heads * group, channels], lies[0], seed).unwrap();
        let k = make([batch, keys, kv_heads, channels], lies[1], seed ^ 1).unwrap();
        let v = make([batch, keys, kv_heads, channels], lies[2], seed ^ 2).unwrap();
        let (expected, expected_lse) = own(&q, &k, &v, 0.125, causal).unwrap();
        let (output, lse) = attention_with(&q, &k, &v, &Options { causal, ..options() }).unwrap();
        prop_assert_eq!(output.dtype(), dtype);
        let found = error(&output, &expected).unwrap();
        prop_assert!(found < QUANTISED, "{found}");
        let found = error(&lse.unwrap(), &expected_lse).unwrap();
        prop_assert!(found < QUANTISED, "log-sum-exp: {found}");
        let short = attention(&q, &k, &v, 0.125, causal).unwrap();
        prop_assert_eq!(error(&short, &output.to_dtype(DType::F32).unwrap()).unwrap(), 0.0);
    }
}

#[test]
fn codes_with_scales_are_exact() -> Result<()> {
    for (causal, transposed) in [(false, false), (true, true)] {
        let (q, of_q) = scaled(&normal([2, 33, 4, 64], 1, CPU)?)?;
        let (k, of_k) = scaled(&normal([2, 47, 2, 64], 2, CPU)?)?;
        // One scale for all of V.
        let of_v = Tensor::from_slice(&[0.02f32], 1, CPU)?;
        let v = normal([2, 47, 2, 64], 3, CPU)?.broadcast_div(&of_v)?.to_dtype(DType::F8E4M3)?;
        let lie = |tensor: Tensor| {
            if transposed { tensor.transpose(1, 2)?.contiguous()?.transpose(1, 2) } else { Ok(tensor) }
        };
        let (q, k, v) = (lie(q)?, lie(k)?, lie(v)?);
        let (expected, expected_lse) = own(&meant(&q, &of_q)?, &meant(&k, &of_k)?, &meant(&v, &of_v)?, 0.125, causal)?;
        let scales = Scales { q: of_q, k: of_k, v: of_v };
        let (output, lse) = attention_scaled(&q, &k, &v, &scales, &Options { causal, ..options() })?;
        assert_eq!(output.dtype(), DType::BF16);
        let found = error(&output, &expected)?;
        assert!(found < EXACT, "{found}");
        assert!(error(&lse.unwrap(), &expected_lse)? < EXACT);
        let wide = Options { causal, output: Some(DType::F32), lse: false, ..options() };
        let (output, lse) = attention_scaled(&q, &k, &v, &scales, &wide)?;
        assert_eq!((output.dtype(), lse.is_none()), (DType::F32, true));
        assert!(error(&output, &expected)? < EXACT);
    }
    Ok(())
}

#[track_caller]
fn refused<T>(result: Result<T>, expected: &str) {
    let error = result.err().expect("it is refused").to_string();
    assert!(error.contains(expected), "{error}");
}

#[test]
fn bad_input_is_refused_by_name() -> Result<()> {
    let q = normal([1, 5, 2, 64], 1, CPU)?;
    let k = normal([1, 7, 2, 64], 2, CPU)?;
    let plain = |q: &Tensor, k: &Tensor, v: &Tensor| attention(q, k, v, 0.125, false);
    refused(plain(&q.squeeze(0)?, &k, &k), "q: has dims [5, 2, 64]; pass [batch, rows, heads, channels]");
    refused(plain(&q, &k.to_dtype(DType::F16)?, &k), "k: is F16, but q is F32");
    refused(plain(&q, &k, &k.narrow(1, 0, 6)?), "v: has dims [1, 6, 2, 64], but k has [1, 7, 2, 64]");
    refused(plain(&q, &k.narrow(3, 0, 32)?, &k), "k: has dims");
    refused(
        plain(&q, &normal([1, 7, 3, 64], 2, CPU)?, &normal([1, 7, 3, 64], 2, CPU)?),
        "query_heads: 2 is not a multiple",
    );
    let odd = |tensor: &Tensor| tensor.narrow(3, 0, 63);
    refused(plain(&odd(&q)?, &odd(&k)?, &odd(&k)?), "head_dim: 63 is not a multiple of 8");
    refused(plain(&q.narrow(1, 0, 0)?, &k, &k), "query_len: must be at least 1");
    refused(plain(&(&q * f64::NAN)?, &k, &k), "q: values: NaN at batch 0");
    refused(attention(&q, &k, &k, f32::NAN, false), "softmax_scale: must be finite");
    let whole = q.to_dtype(DType::I64)?;
    refused(plain(&whole, &k.to_dtype(DType::I64)?, &k.to_dtype(DType::I64)?), "q: is I64");
    let options = Options { output: Some(DType::F64), ..options() };
    refused(attention_with(&q, &k, &k, &options), "output: F64 is not offered");
    Ok(())
}

#[test]
fn scales_are_asked_for_and_looked_at() -> Result<()> {
    let (q, scales) = scaled(&normal([1, 5, 2, 64], 1, CPU)?)?;
    let with = |scales: &Tensor| {
        let scales = Scales { q: scales.clone(), k: scales.clone(), v: scales.clone() };
        attention_scaled(&q, &q, &q, &scales, &options())
    };
    with(&scales)?;
    refused(attention(&q, &q, &q, 0.125, false), "q: F8E4M3 means nothing without scales");
    refused(with(&scales.narrow(1, 0, 1)?.expand((2, 1))?), "scales of q: have dims [2, 1]");
    refused(with(&scales.to_dtype(DType::F16)?), "scales of q: are F16");
    refused(with(&(&scales * -1.)?), "q: scales: scale 0 is -");
    let wide = q.to_dtype(DType::F32)?;
    let scales = Scales { q: scales.clone(), k: scales.clone(), v: scales };
    refused(attention_scaled(&wide, &wide, &wide, &scales, &options()), "scales: are for F8E4M3");
    Ok(())
}

#[test]
fn there_is_no_backward_pass_and_candle_says_so() -> Result<()> {
    let q = Var::from_tensor(&normal([1, 5, 2, 64], 1, CPU)?)?;
    let k = normal([1, 7, 2, 64], 2, CPU)?;
    refused(attention(&q, &k, &k, 0.125, false)?.sum_all()?.backward(), "eightfold-attention");
    refused(attention_with(&q, &k, &k, &options()), "lse: is not to be had");
    Ok(())
}
