//! Attention on a CUDA device against candle's own on the CPU. Skips itself where there is none, unless
//! `EIGHTFOLD_REQUIRE_DEVICE` is set.

#![cfg(feature = "cuda")]

mod support;

use candle_core::{DType, Device, Result, Tensor};
use eightfold_candle::{Accuracy, Options, Scales, attention, attention_scaled, attention_with};
use support::{error, meant, normal, own, scaled};

/// What quantising costs, and the fast kernel beside it.
const QUANTISED: f32 = 0.08;
/// What is left of a precise kernel where the FP8 values are exact: its own error, and bf16's rounding.
const EXACT: f32 = 1e-2;

fn device() -> Option<Device> {
    match Device::new_cuda(0) {
        Ok(device) => Some(device),
        Err(error) => {
            assert!(std::env::var_os("EIGHTFOLD_REQUIRE_DEVICE").is_none(), "{error}");
            eprintln!("skipped: no CUDA device: {error}");
            None
        }
    }
}

/// Batch, query heads, key heads, queries, keys, channels, causal.
const SHAPES: [(usize, usize, usize, usize, usize, usize, bool); 5] = [
    (2, 4, 4, 256, 256, 128, false),
    (1, 8, 2, 300, 300, 64, true),
    (3, 2, 2, 77, 130, 64, true),
    (1, 8, 1, 1, 4000, 128, true),
    (2, 4, 2, 1024, 1024, 128, true),
];

#[test]
fn values_are_quantised_and_attended() -> Result<()> {
    let Some(device) = device() else { return Ok(()) };
    for (batch, heads, kv_heads, rows, keys, channels, causal) in SHAPES {
        for dtype in [DType::F16, DType::BF16] {
            // Q lies in rows, K transposed in memory, and V is a part of a larger tensor.
            let q = normal([batch, rows, heads, channels], 1, &device)?.to_dtype(dtype)?;
            let k = normal([batch, kv_heads, keys, channels], 2, &device)?.to_dtype(dtype)?.transpose(1, 2)?;
            let v =
                normal([batch, keys, kv_heads, channels + 4], 3, &device)?.to_dtype(dtype)?.narrow(3, 4, channels)?;
            let scale = 1. / (channels as f64).sqrt();
            let (expected, expected_lse) = own(&q, &k, &v, scale, causal)?;
            let options = Options { softmax_scale: Some(scale as f32), causal, lse: true, ..Options::default() };
            for _ in 0..2 {
                let (output, lse) = attention_with(&q, &k, &v, &options)?;
                assert_eq!((output.dtype(), output.device().is_cuda()), (dtype, true));
                let found = error(&output, &expected)?;
                println!("{batch},{heads},{kv_heads},{rows},{keys},{channels} {dtype:?}: {found:.4}");
                assert!(found < QUANTISED, "{found}");
                assert!(error(&lse.unwrap(), &expected_lse)? < QUANTISED);
            }
        }
    }
    Ok(())
}

#[test]
fn codes_with_scales_are_attended_where_they_lie() -> Result<()> {
    let Some(device) = device() else { return Ok(()) };
    for (batch, heads, kv_heads, rows, keys, channels, causal) in SHAPES {
        let cpu = &Device::Cpu;
        let (q, of_q) = scaled(&normal([batch, rows, heads, channels], 1, cpu)?)?;
        let (k, of_k) = scaled(&normal([batch, keys, kv_heads, channels], 2, cpu)?)?;
        let of_v = Tensor::from_slice(&[0.02f32], 1, cpu)?;
        let v = normal([batch, keys, kv_heads, channels], 3, cpu)?.broadcast_div(&of_v)?.to_dtype(DType::F8E4M3)?;
        let (expected, expected_lse) = own(&meant(&q, &of_q)?, &meant(&k, &of_k)?, &meant(&v, &of_v)?, 0.1, causal)?;
        let move_it = |tensor: &Tensor| tensor.to_device(&device);
        let scales = Scales { q: move_it(&of_q)?, k: move_it(&of_k)?, v: move_it(&of_v)? };
        let accuracy = Accuracy::Precise;
        let options = Options { softmax_scale: Some(0.1), causal, accuracy, lse: true, ..Options::default() };
        let (output, lse) = attention_scaled(&move_it(&q)?, &move_it(&k)?, &move_it(&v)?, &scales, &options)?;
        assert_eq!(output.dtype(), DType::BF16);
        let found = error(&output, &expected)?;
        println!("{batch},{heads},{kv_heads},{rows},{keys},{channels} F8E4M3: {found:.5}");
        assert!(found < EXACT, "{found}");
        assert!(error(&lse.unwrap(), &expected_lse)? < EXACT);
    }
    Ok(())
}

#[test]
fn threads_and_streams_do_not_meet() -> Result<()> {
    if device().is_none() {
        return Ok(());
    }
    let work = |seed: u64| -> Result<()> {
        // Each thread has a stream of its own.
        let device = Device::new_cuda_with_stream(0)?;
        let tensor = |seed| normal([2, 512, 4, 128], seed, &device)?.to_dtype(DType::BF16);
        let (q, k, v) = (tensor(seed)?, tensor(seed + 1)?, tensor(seed + 2)?);
        let (expected, _) = own(&q, &k, &v, 0.1, true)?;
        let outputs = (0..20).map(|_| attention(&q, &k, &v, 0.1, true)).collect::<Result<Vec<_>>>()?;
        for output in outputs {
            assert!(error(&output, &expected)? < QUANTISED);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|index| scope.spawn(move || work(10 * index))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("the thread ends well"))
    })
}

#[test]
fn what_a_device_cannot_do_is_said() -> Result<()> {
    let Some(device) = device() else { return Ok(()) };
    let q = normal([1, 16, 2, 12], 1, &device)?.to_dtype(DType::F16)?;
    let error = attention(&q, &q, &q, 0.1, false).unwrap_err().to_string();
    assert!(error.contains("head_dim: 12"), "{error}");
    let q = normal([1, 16, 2, 64], 1, &device)?;
    let error = attention(&q, &q.to_device(&Device::Cpu)?, &q, 0.1, false).unwrap_err().to_string();
    assert!(error.contains("k: is not on q's device"), "{error}");
    Ok(())
}
