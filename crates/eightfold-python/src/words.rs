//! What Python says in words and tuples, as the library's types.

use eightfold::cuda::call::{FormatChoice, best_format};
use eightfold::cuda::driver::Device;
use eightfold::cuda::quantize::ValueFormat;
use eightfold::{
    Accuracy, Dims, Error, Fp8Format, Granularity, Layout, OutputFormat, Problem, Result, Shape, Strides, Window,
};
use pyo3::prelude::*;

/// Batch, query heads, key heads, queries, keys, channels of Q and K, channels of V.
pub(crate) type Sizes = (usize, usize, usize, usize, usize, usize, usize);

/// Batch, head, row, channel, in elements.
pub(crate) type FourStrides = (usize, usize, usize, usize);

fn shape((batch, query_heads, kv_heads, query_len, key_len, head_dim, _): Sizes) -> Shape {
    Shape::new(batch, query_heads, query_len, head_dim).with_kv_heads(kv_heads).with_key_len(key_len)
}

pub(crate) fn strides((batch, head, row, channel): FourStrides) -> Strides {
    Strides::new(batch, head, row, channel)
}

/// How many elements a tensor has.
pub(crate) fn count(dims: Dims) -> Result<usize> {
    let sizes = [dims.batch, dims.heads, dims.len, dims.head_dim];
    sizes.into_iter().try_fold(1usize, usize::checked_mul).ok_or_else(|| {
        Error::invalid("shape", format!("{dims} has more elements than there is memory for"), "pass a smaller tensor")
    })
}

/// Which keys a query sees and how they are weighted, as a dictionary.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Scoring {
    causal: bool,
    sm_scale: Option<f32>,
    /// Keys before and after a query's own; a negative number leaves that side open.
    window: (i64, i64),
    /// 0 is none.
    softcap: f32,
    /// A logit for each query head; on a device, where kernels read them from memory, any list says that there are some.
    pub(crate) sinks: Option<Vec<f32>>,
}

/// What of a call decides the problem.
pub(crate) struct Wishes<'a> {
    pub(crate) sizes: Sizes,
    pub(crate) scoring: &'a Scoring,
    pub(crate) accuracy: &'a str,
    pub(crate) output: &'a str,
    pub(crate) lse: bool,
}

impl Wishes<'_> {
    pub(crate) fn problem(&self) -> Result<Problem> {
        let Scoring { causal, sm_scale, window: (left, right), softcap, ref sinks } = *self.scoring;
        let side = |keys: i64| usize::try_from(keys).ok();
        let mut problem = Problem::new(shape(self.sizes))?
            .with_output_format(self.output.parse::<OutputFormat>()?)
            .with_accuracy(self.accuracy.parse::<Accuracy>()?)
            .with_lse(self.lse)
            .with_window(Window::new(side(left), side(right)))
            .with_value_dim(self.sizes.6)?;
        if causal {
            problem = problem.causal();
        }
        if softcap != 0.0 {
            problem = problem.with_softcap(softcap)?;
        }
        if sinks.is_some() {
            problem = problem.with_sinks();
        }
        match sm_scale {
            Some(scale) => problem.with_softmax_scale(scale),
            None => Ok(problem),
        }
    }
}

pub(crate) fn value_format(name: &str) -> Result<ValueFormat> {
    match name {
        "f32" => Ok(ValueFormat::F32),
        "f16" => Ok(ValueFormat::F16),
        "bf16" => Ok(ValueFormat::Bf16),
        other => Err(Error::invalid("dtype", format!("{other} is not f32, f16 or bf16"), "convert it to one of them")),
    }
}

pub(crate) fn fp8_format(name: &str) -> Result<Fp8Format> {
    match name {
        "e4m3" => Ok(Fp8Format::E4m3),
        "e5m2" => Ok(Fp8Format::E5m2),
        other => Err(Error::invalid("dtype", format!("{other} is not e4m3 or e5m2"), "convert it to one of them")),
    }
}

/// What Q and K are quantised to, where values come in.
#[derive(Debug, Clone, Copy)]
pub(crate) enum InputFormat {
    /// The most exact of those that are about as fast, on a device; E4M3 on the CPU.
    Auto,
    Of(Fp8Format),
}

impl InputFormat {
    pub(crate) fn of(name: &str) -> Result<InputFormat> {
        match name {
            "auto" => Ok(InputFormat::Auto),
            "e4m3" => Ok(InputFormat::Of(Fp8Format::E4m3)),
            "int8" => Ok(InputFormat::Of(Fp8Format::Int8)),
            other => Err(Error::invalid(
                "input_format",
                format!("{other:?} is not a format that Q and K are quantised to"),
                "say \"auto\", \"e4m3\" or \"int8\"",
            )),
        }
    }

    /// The format for a problem, and why: words that begin with its name.
    pub(crate) fn choose(self, device: Option<&Device>, problem: &Problem) -> Result<(Fp8Format, &'static str)> {
        match (self, device) {
            (InputFormat::Of(Fp8Format::Int8), _) => Ok((Fp8Format::Int8, "int8: as it was asked for")),
            (InputFormat::Of(format), _) => Ok((format, "e4m3: as it was asked for")),
            (InputFormat::Auto, Some(device)) => {
                let FormatChoice { format, reason } = best_format(device, problem)?;
                Ok((format, reason))
            }
            (InputFormat::Auto, None) => Ok((Fp8Format::E4m3, "e4m3: what the CPU takes unless it is told otherwise")),
        }
    }
}

pub(crate) fn layout(name: &str) -> Result<Layout> {
    match name {
        "HND" => Ok(Layout::Bhsd),
        "NHD" => Ok(Layout::Bshd),
        other => Err(Error::invalid(
            "tensor_layout",
            format!("{other:?} is not a layout"),
            "say \"NHD\" for (batch, row, head, channel) or \"HND\" for (batch, head, row, channel)",
        )),
    }
}

/// One scale for all, or one for each batch and head.
pub(crate) fn granularity(per_head: bool) -> Granularity {
    if per_head { Granularity::Head } else { Granularity::Tensor }
}
