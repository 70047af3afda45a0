//! Q, K and V from a safetensors file, and the output into one.

use crate::inputs::Inputs;
use crate::store;
use eightfold::quantize::Quantizer;
use eightfold::{
    Dims, Error, Fp8Format, Fp8Tensor, Granularity, Layout, Output, Problem, Result, Scales, Shape, Values,
};
use half::{bf16, f16};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use std::collections::HashMap;
use std::path::Path;

/// Q, K and V as a user gave them.
///
/// In the file, `q`, `k` and `v` have four dimensions, in the order of the layout, in F32, F16, BF16, F8_E4M3 or
/// F8_E5M2; V may have other channels than Q and K. FP8 tensors need `q_scale`, `k_scale`, `v_scale` in F32: one element is a scale for the whole tensor,
/// `[B,H]` one per head, `[B,H,N]` one for each of N blocks of ⌈S/N⌉ rows (the last block may be shorter). `sinks` in F32, one
/// for each head of Q, are attention sinks.
#[derive(Debug, Clone, PartialEq)]
pub struct UserTensors {
    /// The sizes.
    pub shape: Shape,
    /// Channels of V.
    pub value_dim: usize,
    /// The order of the dimensions, in the file and in memory.
    pub layout: Layout,
    /// The name of the file, without its folder.
    pub origin: String,
    q: Given,
    k: Given,
    v: Given,
    sinks: Option<Vec<f32>>,
}

/// One tensor in the numbers that it came in.
#[derive(Debug, Clone, PartialEq)]
enum Given {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
    Fp8(Fp8Tensor<'static>),
}

impl UserTensors {
    /// Reads the file and checks that the three tensors belong together.
    pub fn read(path: &Path, layout: Layout) -> Result<Self> {
        let file = path.display();
        let bytes = std::fs::read(path).map_err(|error| {
            Error::invalid("inputs", format!("{file} cannot be read: {error}"), "give the path of a safetensors file")
        })?;
        let tensors = SafeTensors::deserialize(&bytes).map_err(|error| {
            Error::invalid(
                "inputs",
                format!("{file} is not a sound safetensors file: {error}"),
                "write it again with safetensors' save_file",
            )
        })?;
        let [q_dims, k_dims, v_dims] = ["q", "k", "v"].map(|name| dims(&tensors, name, layout));
        let (q_dims, k_dims, v_dims) = (q_dims?, k_dims?, v_dims?);
        let shape = common_shape(q_dims, k_dims, v_dims)?;
        Problem::new(shape)?.with_value_dim(v_dims.head_dim)?;
        let given = |name, dims| given(&tensors, name, dims, layout);
        let tensors = UserTensors {
            shape,
            value_dim: v_dims.head_dim,
            layout,
            origin: path.file_name().map_or_else(|| file.to_string(), |name| name.to_string_lossy().into()),
            q: given("q", q_dims)?,
            k: given("k", k_dims)?,
            v: given("v", v_dims)?,
            sinks: sinks(&tensors)?,
        };
        tensors.check_formats()?;
        Ok(tensors)
    }

    /// Whether the file holds attention sinks.
    pub fn has_sinks(&self) -> bool {
        self.sinks.is_some()
    }

    /// The format in which attention will see them: that of the first tensor that came as codes, E4M3 where there is none.
    pub fn format(&self) -> Fp8Format {
        let formats = self.named().into_iter().filter_map(|(_, given, _)| given.format());
        formats.into_iter().next().unwrap_or(Fp8Format::E4m3)
    }

    /// Whether at least one tensor came as FP8 codes, so that the unquantised numbers are not known.
    pub fn has_codes(&self) -> bool {
        self.named().into_iter().any(|(_, given, _)| given.format().is_some())
    }

    /// The tensors as a problem's codes: codes as they came, everything else quantised, in FP8 with one scale per head and Q and
    /// K up to this code, in INT8 as [`Quantizer::for_attention`] says.
    pub fn quantize(&self, problem: &Problem, largest_code: f32) -> Result<[Fp8Tensor<'static>; 3]> {
        let [of_q, of_k, of_v] = match problem.input_format() {
            Fp8Format::Int8 => Quantizer::for_attention(problem),
            format => {
                let plain = Quantizer::new(format);
                let small = plain.with_largest_code(largest_code);
                [small, small, plain]
            }
        };
        let quantized = self.named().map(|(name, given, dims)| {
            let quantizer = match name {
                "q" => of_q,
                "k" => of_k,
                _ => of_v,
            };
            let quantizer = quantizer.with_layout(self.layout);
            let result = match given {
                Given::F32(values) => quantizer.quantize(values, dims, self.layout),
                Given::F16(values) => quantizer.quantize(values, dims, self.layout),
                Given::Bf16(values) => quantizer.quantize(values, dims, self.layout),
                Given::Fp8(tensor) => Ok(tensor.clone()),
            };
            result.map_err(|error| of_tensor(name, error))
        });
        let [q, k, v] = quantized;
        let q = match &self.sinks {
            Some(sinks) => q?.with_sinks(sinks.clone())?,
            None => q?,
        };
        Ok([q, k?, v?])
    }

    /// The unquantised numbers in `[B,H,S,D]` order, for the gates; codes stand for what they decode to.
    pub fn to_inputs(&self) -> Inputs {
        let [q, k, v] = self.named().map(|(_, given, dims)| given.to_f32(dims, self.layout));
        Inputs { shape: self.shape, origin: self.origin.clone(), family: None, q, k, v, sinks: self.sinks.clone() }
    }

    fn named(&self) -> [(&'static str, &Given, Dims); 3] {
        let (queries, keys) = (self.shape.query_dims(), self.shape.key_dims());
        let values = Dims::new(keys.batch, keys.heads, keys.len, self.value_dim);
        [("q", &self.q, queries), ("k", &self.k, keys), ("v", &self.v, values)]
    }

    fn check_formats(&self) -> Result<()> {
        let of_all = self.format();
        for (name, given, _) in self.named() {
            let expected = if name == "v" && of_all == Fp8Format::Int8 { Fp8Format::E4m3 } else { of_all };
            if let Some(found) = given.format().filter(|found| *found != expected) {
                return Err(Error::invalid(
                    name,
                    format!("is in {found}, another tensor in {expected}"),
                    "give all FP8 tensors in one format; beside Q and K in int8, V is in E4M3",
                ));
            }
        }
        Ok(())
    }
}

impl Given {
    fn format(&self) -> Option<Fp8Format> {
        match self {
            Given::Fp8(tensor) => Some(tensor.format()),
            _ => None,
        }
    }

    fn to_f32(&self, dims: Dims, layout: Layout) -> Vec<f32> {
        match self {
            Given::F32(values) => to_bhsd(values, dims, layout, |value| value),
            Given::F16(values) => to_bhsd(values, dims, layout, f16::to_f32),
            Given::Bf16(values) => to_bhsd(values, dims, layout, bf16::to_f32),
            Given::Fp8(tensor) => tensor.dequantize().into_iter().map(|value| value as f32).collect(),
        }
    }
}

fn to_bhsd<T: Copy>(values: &[T], dims: Dims, layout: Layout, widen: impl Fn(T) -> f32) -> Vec<f32> {
    let strides = layout.strides(dims);
    let mut ordered = Vec::with_capacity(values.len());
    for batch in 0..dims.batch {
        for head in 0..dims.heads {
            for row in 0..dims.len {
                let start = strides.row_offset(batch, head, row);
                let channels = (0..dims.head_dim).map(|channel| values[start + channel * strides.channel]);
                ordered.extend(channels.map(&widen));
            }
        }
    }
    ordered
}

/// The tensor of this name.
fn find<'data>(tensors: &SafeTensors<'data>, name: &str, fix: &str) -> Result<TensorView<'data>> {
    tensors.tensor(name).map_err(|_| {
        let mut names: Vec<_> = tensors.names().into_iter().map(String::from).collect();
        names.sort_unstable();
        let found = if names.is_empty() { "no tensors".into() } else { names.join(", ") };
        Error::invalid(name, format!("is not in the file, which holds {found}"), fix)
    })
}

/// The sizes of q, k or v, read in the layout's order.
fn dims(tensors: &SafeTensors, name: &str, layout: Layout) -> Result<Dims> {
    let view = find(tensors, name, "store the three tensors as q, k and v")?;
    let &[batch, second, third, head_dim] = view.shape() else {
        return Err(Error::invalid(
            name,
            format!("has {} dimensions, not four", view.shape().len()),
            format!("reshape it to {}", if layout == Layout::Bshd { "[B,S,H,D]" } else { "[B,H,S,D]" }),
        ));
    };
    let (heads, len) = if layout == Layout::Bshd { (third, second) } else { (second, third) };
    Ok(Dims::new(batch, heads, len, head_dim))
}

/// The shape of the problem that three tensors of these sizes pose.
fn common_shape(q: Dims, k: Dims, v: Dims) -> Result<Shape> {
    let mismatch =
        |name: &str, rule: String| Err(Error::invalid(name, rule, "make the sizes agree, and check --layout"));
    if (k.batch, k.heads, k.len) != (v.batch, v.heads, v.len) {
        return mismatch("v", format!("is {v} (batch, heads, rows, channels) where k is {k}"));
    }
    if q.batch != k.batch || q.head_dim != k.head_dim {
        return mismatch(
            "k",
            format!("is {k} (batch, heads, rows, channels), and does not share the batch and the channels of q, {q}"),
        );
    }
    Ok(Shape::new(q.batch, q.heads, q.len, q.head_dim).with_kv_heads(k.heads).with_key_len(k.len))
}

fn given(tensors: &SafeTensors, name: &str, dims: Dims, layout: Layout) -> Result<Given> {
    let view = find(tensors, name, "store the three tensors as q, k and v")?;
    let codes = |format| {
        let scales = scales(tensors, name, dims)?;
        let tensor = Fp8Tensor::new(dims, layout, format, view.data().to_vec(), scales);
        tensor.map(Given::Fp8).map_err(|error| of_tensor(name, error))
    };
    match view.dtype() {
        Dtype::F32 => Ok(Given::F32(numbers(view.data(), f32::from_le_bytes))),
        Dtype::F16 => Ok(Given::F16(numbers(view.data(), f16::from_le_bytes))),
        Dtype::BF16 => Ok(Given::Bf16(numbers(view.data(), bf16::from_le_bytes))),
        Dtype::F8_E4M3 => codes(Fp8Format::E4m3),
        Dtype::F8_E5M2 => codes(Fp8Format::E5m2),
        Dtype::I8 => codes(Fp8Format::Int8),
        other => {
            Err(Error::invalid(name, format!("is in {other}"), "convert it to F32, F16, BF16, F8_E4M3, F8_E5M2 or I8"))
        }
    }
}

fn scales(tensors: &SafeTensors, name: &str, dims: Dims) -> Result<Scales> {
    let name = format!("{name}_scale");
    let view = find(tensors, &name, "FP8 codes mean nothing without their scales: add them in F32")?;
    if view.dtype() != Dtype::F32 {
        return Err(Error::invalid(&name, format!("is in {}", view.dtype()), "store scales in F32"));
    }
    let values = numbers(view.data(), f32::from_le_bytes);
    let Dims { batch, heads, len, .. } = dims;
    let granularity = match *view.shape() {
        _ if values.len() == 1 => Some(Granularity::Tensor),
        [b, h] if (b, h) == (batch, heads) => Some(Granularity::Head),
        [b, h, blocks] if (b, h) == (batch, heads) && blocks > 0 => {
            let rows = len.div_ceil(blocks);
            (len.div_ceil(rows) == blocks).then_some(Granularity::Block { rows })
        }
        _ => None,
    };
    let granularity = granularity.ok_or_else(|| {
        Error::invalid(
            &name,
            format!("has the sizes {:?}", view.shape()),
            format!(
                "give one scale, [{batch}, {heads}], or [{batch}, {heads}, N] for N blocks of ceil({len} / N) rows"
            ),
        )
    })?;
    Scales::new(granularity, values).map_err(|error| of_tensor(&name, error))
}

/// One logit for each head of Q, if the file holds them; how many there must be is for the problem to say.
fn sinks(tensors: &SafeTensors) -> Result<Option<Vec<f32>>> {
    let Ok(view) = tensors.tensor("sinks") else { return Ok(None) };
    match view.dtype() {
        Dtype::F32 => Ok(Some(numbers(view.data(), f32::from_le_bytes))),
        other => Err(Error::invalid("sinks", format!("is in {other}"), "store sinks in F32")),
    }
}

fn numbers<const N: usize, T>(bytes: &[u8], number: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks::<N>().0.iter().map(|bytes| number(*bytes)).collect()
}

/// The same error about the tensor that the user knows by this name.
fn of_tensor(name: &str, error: Error) -> Error {
    match error {
        Error::Invalid { rule, fix, .. } => Error::invalid(name, rule, fix),
        other => other,
    }
}

/// The bytes of a safetensors file that holds `o` in the problem's output layout, and `lse` as `[B,H,S]` if there is one.
pub fn encode_output(problem: &Problem, output: &Output, metadata: HashMap<String, String>) -> Result<Vec<u8>> {
    let Shape { batch, query_heads, query_len, .. } = problem.shape();
    let value_dim = problem.value_dims().head_dim;
    let sizes = match problem.output_layout() {
        Layout::Bshd => vec![batch, query_len, query_heads, value_dim],
        _ => vec![batch, query_heads, query_len, value_dim],
    };
    let (dtype, bytes) = match &output.values {
        Values::F32(values) => (Dtype::F32, bytes(values, |value| value.to_le_bytes())),
        Values::F16(values) => (Dtype::F16, bytes(values, |value| value.to_le_bytes())),
        Values::Bf16(values) => (Dtype::BF16, bytes(values, |value| value.to_le_bytes())),
        _ => (Dtype::F32, bytes(&output.values.to_f32(), |value| value.to_le_bytes())),
    };
    let lse = output.lse.as_ref().map(|lse| self::bytes(lse, |value| value.to_le_bytes()));
    let unfit = |error| Error::invalid("output", format!("cannot be stored: {error}"), "make it for the same problem");
    let mut tensors = vec![("o", TensorView::new(dtype, sizes, &bytes).map_err(unfit)?)];
    if let Some(lse) = &lse {
        let sizes = vec![batch, query_heads, query_len];
        tensors.push(("lse", TensorView::new(Dtype::F32, sizes, lse).map_err(unfit)?));
    }
    safetensors::serialize(tensors, Some(metadata)).map_err(unfit)
}

/// Writes the output of attention as a safetensors file, whole or not at all.
pub fn write_output(path: &Path, problem: &Problem, output: &Output, metadata: HashMap<String, String>) -> Result<()> {
    store::write_file(path, &encode_output(problem, output, metadata)?)
}

fn bytes<const N: usize, T: Copy>(values: &[T], encode: impl Fn(T) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(|value| encode(*value)).collect()
}
