//! What is asked for, checked; and the operation that candle calls.

use candle_core::op::BackpropOp;
use candle_core::{CpuStorage, CustomOp3, DType, Error, Layout, Result, Shape, Storage, Tensor, bail};
use eightfold::{Accuracy, Granularity, Mask, OutputFormat, Problem};
use std::sync::{Mutex, PoisonError};

/// How to attend; the default asks for nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// What scores are multiplied by before the softmax; none stands for 1/√channels.
    pub softmax_scale: Option<f32>,
    /// Whether a query sees no later keys; the last query sees every key.
    pub causal: bool,
    /// How exact the result must be; the CPU's kernel is always precise.
    pub accuracy: Accuracy,
    /// The type of the result: f32, f16 or bf16.
    pub output: Option<DType>,
    /// Whether the log-sum-exp of every row is wanted, f32 of dims `[batch, heads, rows]`.
    pub lse: bool,
    /// Whether every sequence's result must be the same, bit for bit, in every batch.
    pub batch_invariant: bool,
}

/// The scales of Q, K and V: f32 tensors on the same device, each of one element for the whole tensor or of dims
/// `[batch, heads]`.
#[derive(Debug, Clone)]
pub struct Scales {
    /// Of the queries.
    pub q: Tensor,
    /// Of the keys.
    pub k: Tensor,
    /// Of the values.
    pub v: Tensor,
}

/// The operation, with everything that is not one of its three tensors.
pub(crate) struct Attention {
    pub(crate) problem: Problem,
    pub(crate) scales: Option<[Tensor; 3]>,
    /// The second result, which candle has no place for.
    lse: Mutex<Option<Storage>>,
}

pub(crate) fn apply(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    scales: Option<&Scales>,
    options: &Options,
) -> Result<(Tensor, Option<Tensor>)> {
    let problem = problem(q, k, v, scales.is_some(), options)?;
    let scales = match scales {
        Some(Scales { q: of_q, k: of_k, v: of_v }) => {
            Some([checked_scales("q", q, of_q)?, checked_scales("k", k, of_k)?, checked_scales("v", v, of_v)?])
        }
        None => None,
    };
    #[cfg(feature = "cuda")]
    let [q, k, v] = if q.device().is_cuda() {
        &[crate::cuda::readable(q)?, crate::cuda::readable(k)?, crate::cuda::readable(v)?]
    } else {
        &[q.clone(), k.clone(), v.clone()]
    };
    let op = Attention { problem, scales, lse: Mutex::default() };
    let shape = problem.shape();
    // The result is tracked by hand, so that the log-sum-exp can be taken out of the operation.
    if [q, k, v].iter().any(|tensor| tensor.track_op()) {
        if options.lse {
            bail!("lse: is not to be had of tensors that gradients are wanted of; detach them, or ask for none");
        }
        return Ok((q.apply_op3(k, v, op)?, None));
    }
    let output = q.apply_op3_no_bwd(k, v, &op)?;
    let lse = op.lse.into_inner().unwrap_or_else(PoisonError::into_inner);
    let dims = (shape.batch, shape.query_heads, shape.query_len);
    Ok((output, lse.map(|storage| Tensor::from_storage(storage, dims, BackpropOp::none(), false))))
}

/// The problem that these tensors pose.
fn problem(q: &Tensor, k: &Tensor, v: &Tensor, scaled: bool, options: &Options) -> Result<Problem> {
    let mut dims = [[0; 4]; 3];
    for ((name, tensor), dims) in [("q", q), ("k", k), ("v", v)].into_iter().zip(&mut dims) {
        let (batch, len, heads, channels) = tensor.dims4().map_err(|_| {
            Error::msg(format!("{name}: has dims {:?}; pass [batch, rows, heads, channels]", tensor.dims()))
        })?;
        *dims = [batch, len, heads, channels];
        if tensor.dtype() != q.dtype() {
            bail!("{name}: is {:?}, but q is {:?}; give all three one type", tensor.dtype(), q.dtype());
        }
        if !tensor.device().same_device(q.device()) {
            bail!("{name}: is not on q's device; move it there");
        }
    }
    let [[batch, query_len, query_heads, head_dim], k, v] = dims;
    let [_, key_len, kv_heads, _] = k;
    if k[0] != batch || k[3] != head_dim {
        bail!("k: has dims {k:?}, but q has {:?}; give both the same batch and channels", dims[0]);
    }
    if v != k {
        bail!("v: has dims {v:?}, but k has {k:?}; give both the same dims");
    }
    let given = match (q.dtype(), scaled) {
        (DType::F8E4M3, true) => DType::BF16,
        (DType::F8E4M3, false) => bail!("q: F8E4M3 means nothing without scales; call attention_scaled"),
        (dtype @ (DType::F32 | DType::F16 | DType::BF16), false) => dtype,
        (dtype @ (DType::F32 | DType::F16 | DType::BF16), true) => {
            bail!("scales: are for F8E4M3, and q is {dtype:?}; call attention, which quantises")
        }
        (dtype, _) => bail!("q: is {dtype:?}; pass F32, F16, BF16, or F8E4M3 with scales"),
    };
    let format = match options.output.unwrap_or(given) {
        DType::F32 => OutputFormat::F32,
        DType::F16 => OutputFormat::F16,
        DType::BF16 => OutputFormat::Bf16,
        dtype => bail!("output: {dtype:?} is not offered; choose F32, F16 or BF16"),
    };
    let shape = eightfold::Shape::new(batch, query_heads, query_len, head_dim);
    let shape = shape.with_kv_heads(kv_heads).with_key_len(key_len);
    let mut problem = Problem::new(shape)
        .and_then(|problem| problem.with_output_layout(eightfold::Layout::Bshd))
        .map_err(Error::wrap)?
        .with_mask(Mask::causal_if(options.causal))
        .with_output_format(format)
        .with_accuracy(options.accuracy)
        .with_lse(options.lse);
    if let Some(scale) = options.softmax_scale {
        problem = problem.with_softmax_scale(scale).map_err(Error::wrap)?;
    }
    Ok(if options.batch_invariant { problem.batch_invariant() } else { problem })
}

/// Scales without gaps, if they are those of the tensor.
fn checked_scales(name: &str, tensor: &Tensor, scales: &Tensor) -> Result<Tensor> {
    let (batch, _, heads, _) = tensor.dims4()?;
    if scales.elem_count() != 1 && scales.dims() != [batch, heads] {
        bail!(
            "scales of {name}: have dims {:?}; pass one element, or one for each of [batch, heads] = {:?}",
            scales.dims(),
            [batch, heads]
        );
    }
    if scales.dtype() != DType::F32 {
        bail!("scales of {name}: are {:?}; pass F32", scales.dtype());
    }
    if !scales.device().same_device(tensor.device()) {
        bail!("scales of {name}: are not on its device; move them there");
    }
    scales.contiguous()
}

/// How much of a tensor shares a scale of these.
pub(crate) fn granularity(scales: &Tensor) -> Granularity {
    if scales.elem_count() == 1 { Granularity::Tensor } else { Granularity::Head }
}

impl Attention {
    pub(crate) fn keep_lse(&self, lse: Option<Storage>) {
        *self.lse.lock().unwrap_or_else(PoisonError::into_inner) = lse;
    }

    /// The dims of the result, as candle has them.
    pub(crate) fn shape(&self) -> Shape {
        let shape = self.problem.shape();
        (shape.batch, shape.query_len, shape.query_heads, shape.head_dim).into()
    }
}

impl CustomOp3 for Attention {
    fn name(&self) -> &'static str {
        "eightfold-attention"
    }

    fn cpu_fwd(
        &self,
        q: &CpuStorage,
        q_layout: &Layout,
        k: &CpuStorage,
        k_layout: &Layout,
        v: &CpuStorage,
        v_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        crate::cpu::forward(self, [(q, q_layout), (k, k_layout), (v, v_layout)])
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        q: &candle_core::CudaStorage,
        q_layout: &Layout,
        k: &candle_core::CudaStorage,
        k_layout: &Layout,
        v: &candle_core::CudaStorage,
        v_layout: &Layout,
    ) -> Result<(candle_core::CudaStorage, Shape)> {
        crate::cuda::forward(self, [(q, q_layout), (k, k_layout), (v, v_layout)])
    }
}
