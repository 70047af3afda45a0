//! The operation on tensors in host memory.

use crate::lie;
use crate::op::{Attention, granularity};
use candle_core::{CpuStorage, Error, Layout, Result, Shape, Storage, Tensor, bail};
use eightfold::quantize::{Element, Quantizer};
use eightfold::{Fp8Format, Fp8Tensor, Scales, Values};

pub(crate) fn forward(op: &Attention, tensors: [(&CpuStorage, &Layout); 3]) -> Result<(CpuStorage, Shape)> {
    let mut quantized = Vec::with_capacity(3);
    for (index, (name, (storage, layout))) in ["q", "k", "v"].into_iter().zip(tensors).enumerate() {
        let quantizer = Quantizer::new(Fp8Format::E4m3);
        // Softmax does not notice what is taken from all keys alike.
        let quantizer = if name == "k" { quantizer.centered() } else { quantizer };
        quantized.push(match (storage, &op.scales) {
            (CpuStorage::F8E4M3(codes), Some(scales)) => scaled(name, codes, layout, &scales[index])?,
            (CpuStorage::F32(values), None) => values_of(name, values, layout, quantizer)?,
            (CpuStorage::F16(values), None) => values_of(name, values, layout, quantizer)?,
            (CpuStorage::BF16(values), None) => values_of(name, values, layout, quantizer)?,
            _ => bail!("{name}: is of a type that attention does not take"),
        });
    }
    let [q, k, v] = &quantized[..] else { bail!("three tensors are needed") };
    let output = eightfold::attention(&op.problem, q, k, v).map_err(Error::wrap)?;
    op.keep_lse(output.lse.map(|lse| Storage::Cpu(CpuStorage::F32(lse))));
    let storage = match output.values {
        Values::F32(values) => CpuStorage::F32(values),
        Values::F16(values) => CpuStorage::F16(values),
        Values::Bf16(values) => CpuStorage::BF16(values),
        _ => bail!("output: is of a type that candle does not have"),
    };
    Ok((storage, op.shape()))
}

fn values_of<T: Element>(
    name: &str,
    values: &[T],
    layout: &Layout,
    quantizer: Quantizer,
) -> Result<Fp8Tensor<'static>> {
    let Some((values, dims, order)) = lie::in_order(values, layout) else { return Err(odd(name)) };
    quantizer.quantize(&values, dims, order).map_err(|error| named(name, error))
}

fn scaled(name: &str, codes: &[float8::F8E4M3], layout: &Layout, scales: &Tensor) -> Result<Fp8Tensor<'static>> {
    let Some((codes, dims, order)) = lie::in_order(codes, layout) else { return Err(odd(name)) };
    let codes: Vec<u8> = codes.iter().map(|code| code.to_bits()).collect();
    let values = scales.flatten_all()?.to_vec1::<f32>()?;
    Scales::new(granularity(scales), values)
        .and_then(|scales| Fp8Tensor::new(dims, order, Fp8Format::E4m3, codes, scales))
        .map_err(|error| named(name, error))
}

fn odd(name: &str) -> Error {
    Error::msg(format!("{name}: its layout does not fit its memory; pass [batch, rows, heads, channels]"))
}

fn named(name: &str, error: eightfold::Error) -> Error {
    Error::msg(format!("{name}: {error}"))
}
