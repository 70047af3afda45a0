//! FP8 attention for [candle](https://github.com/huggingface/candle) tensors, with no nvcc of its own to wait for.
//!
//! ```
//! use candle_core::{Device, Tensor};
//!
//! // [batch, rows, heads, channels], as candle-flash-attn takes them; here four query heads share two key heads.
//! let device = Device::Cpu;
//! let q = Tensor::randn(0f32, 1., (1, 32, 4, 64), &device)?;
//! let k = Tensor::randn(0f32, 1., (1, 48, 2, 64), &device)?;
//! let v = Tensor::randn(0f32, 1., (1, 48, 2, 64), &device)?;
//! let output = eightfold_candle::attention(&q, &k, &v, 1. / 8., true)?;
//! assert_eq!(output.dims(), [1, 32, 4, 64]);
//! # Ok::<(), candle_core::Error>(())
//! ```
//!
//! [`attention`] takes f32, f16 or bf16, quantises to E4M3 with one scale per head, K centred, and gives back what it was given.
//! [`attention_scaled`] takes `F8E4M3` with scales. [`attention_with`] is [`attention`] with all [`Options`]. Q, K and V may
//! lie in any order. There is no backward pass: candle says so when one is asked for.
//!
//! On the CPU the tensors are computed by Eightfold's CPU kernel. With the feature `cuda` those on a device are computed there,
//! on candle's stream, without waiting for it; kernels are compiled at run time by NVRTC, once per kind of problem and process.
//! [`set_nvrtc`] names the NVRTC to use, and [`keep_in`] a folder in which compiled kernels are kept for later processes.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod lie;
mod op;

pub use eightfold::Accuracy;
pub use eightfold::cuda::compile::{keep_in, look_in, set_nvrtc};
pub use op::{Options, Scales};

use candle_core::{Result, Tensor};

/// Attention on f32, f16 or bf16 tensors of dims `[batch, rows, heads, channels]`, quantised inside; the result is of their type.
///
/// Every key/value head serves as many query heads. `causal` is aligned bottom-right: the last query sees every key.
pub fn attention(q: &Tensor, k: &Tensor, v: &Tensor, softmax_scale: f32, causal: bool) -> Result<Tensor> {
    let options = Options { softmax_scale: Some(softmax_scale), causal, ..Options::default() };
    Ok(attention_with(q, k, v, &options)?.0)
}

/// The same with all options; the second tensor is the log-sum-exp, if it was asked for.
pub fn attention_with(q: &Tensor, k: &Tensor, v: &Tensor, options: &Options) -> Result<(Tensor, Option<Tensor>)> {
    op::apply(q, k, v, None, options)
}

/// Attention on `F8E4M3` tensors with their scales: value = code · scale. The result is bf16 where the options name no other.
///
/// On a device no code may be NaN, and scales must be finite and positive: that is not looked at.
pub fn attention_scaled(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    scales: &Scales,
    options: &Options,
) -> Result<(Tensor, Option<Tensor>)> {
    op::apply(q, k, v, Some(scales), options)
}
