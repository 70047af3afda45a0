//! Attention by candle's own operations, and how far a result is from it.

use candle_core::{D, DType, Device, Result, Tensor};

/// Attention in f32 by matmul, softmax and matmul, on the CPU; and the log-sum-exp. Dims are `[batch, rows, heads, channels]`.
pub fn own(q: &Tensor, k: &Tensor, v: &Tensor, scale: f64, causal: bool) -> Result<(Tensor, Tensor)> {
    let wide = |tensor: &Tensor| tensor.to_device(&Device::Cpu)?.to_dtype(DType::F32)?.transpose(1, 2)?.contiguous();
    let (q, k, v) = (wide(q)?, wide(k)?, wide(v)?);
    let group = q.dim(1)? / k.dim(1)?;
    let repeat = |tensor: Tensor| {
        let (batch, heads, len, channels) = tensor.dims4()?;
        let shape = (batch, heads, group, len, channels);
        tensor.unsqueeze(2)?.expand(shape)?.reshape((batch, heads * group, len, channels))
    };
    let (k, v) = (repeat(k)?, repeat(v)?);
    let mut scores = (q.matmul(&k.t()?)? * scale)?;
    let (rows, keys) = (q.dim(2)?, k.dim(2)?);
    if causal {
        let hidden = (0..rows).flat_map(|row| (0..keys).map(move |key| key + rows > row + keys));
        let mask: Vec<f32> = hidden.map(|hidden| if hidden { -1e30 } else { 0. }).collect();
        scores = scores.broadcast_add(&Tensor::from_vec(mask, (1, 1, rows, keys), &Device::Cpu)?)?;
    }
    let largest = scores.max_keepdim(D::Minus1)?;
    let weights = scores.broadcast_sub(&largest)?.exp()?;
    let sums = weights.sum_keepdim(D::Minus1)?;
    let output = weights.broadcast_div(&sums)?.matmul(&v)?.transpose(1, 2)?.contiguous()?;
    Ok((output, (sums.log()? + largest)?.squeeze(D::Minus1)?))
}

/// The relative L2 norm of the difference.
pub fn error(got: &Tensor, expected: &Tensor) -> Result<f32> {
    let got = got.to_device(&Device::Cpu)?.to_dtype(DType::F32)?;
    assert_eq!(got.dims(), expected.dims());
    let difference = (got - expected)?.sqr()?.sum_all()?.to_scalar::<f32>()?;
    Ok((difference / expected.sqr()?.sum_all()?.to_scalar::<f32>()?).sqrt())
}

/// Values of N(0, 1), the same in every run.
pub fn normal(dims: [usize; 4], seed: u64, device: &Device) -> Result<Tensor> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1);
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as f32 / (1u64 << 31) as f32
    };
    let count = dims.iter().product();
    let values: Vec<f32> = (0..count).map(|_| (0..12).map(|_| uniform()).sum::<f32>() - 6.).collect();
    Tensor::from_vec(values, &dims[..], device)
}

/// E4M3 codes and one scale per (batch, head), as `attention_scaled` takes them.
pub fn scaled(values: &Tensor) -> Result<(Tensor, Tensor)> {
    let largest = values.abs()?.max(D::Minus1)?.max(1)?;
    let scales = (largest / 448.)?;
    let (batch, heads) = scales.dims2()?;
    let codes = values.broadcast_div(&scales.reshape((batch, 1, heads, 1))?)?.to_dtype(DType::F8E4M3)?;
    Ok((codes, scales))
}

/// What codes and scales stand for.
pub fn meant(codes: &Tensor, scales: &Tensor) -> Result<Tensor> {
    let (batch, _, heads, _) = codes.dims4()?;
    let scales = scales.broadcast_as((batch, heads))?.contiguous()?;
    codes.to_dtype(DType::F32)?.broadcast_mul(&scales.reshape((batch, 1, heads, 1))?)
}
