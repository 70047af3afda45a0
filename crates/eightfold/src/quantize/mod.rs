//! f32, f16 or bf16 → FP8 or INT8 codes and scales.

mod centre;
mod codes;
mod run;
mod scales;
mod source;
mod transpose;

pub use crate::fp8::Element;
pub(crate) use centre::ROWS_PER_SUM;
pub(crate) use run::{Shift, encode, largest_magnitude};
pub(crate) use scales::scale_of;

use crate::error::{Error, Result};
use crate::fp8;
use crate::operands::Operand;
use crate::problem::Problem;
use crate::tensor::{Dims, Fp8Format, Fp8Tensor, Granularity, Layout};
use source::Source;

/// How to quantise: format, scales, layout in memory, centring.
///
/// ```
/// use eightfold::quantize::Quantizer;
/// use eightfold::{Dims, Fp8Format, Granularity, Layout};
///
/// // V of one head of 4 rows × 8 channels, transposed, with one scale for every 2 rows.
/// let values: Vec<f32> = (0..32).map(|index| index as f32).collect();
/// let v = Quantizer::new(Fp8Format::E4m3)
///     .with_granularity(Granularity::Block { rows: 2 })
///     .with_layout(Layout::Bhds)
///     .quantize(&values, Dims::new(1, 1, 4, 8), Layout::Bhsd)?;
/// assert_eq!(v.scales().values(), [15.0 / 448.0, 31.0 / 448.0]);
/// assert!((v.dequantize()[10] - 10.0).abs() < 0.5);
/// # Ok::<(), eightfold::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Quantizer {
    format: Fp8Format,
    granularity: Granularity,
    layout: Layout,
    centered: bool,
    largest_code: f32,
}

impl Quantizer {
    /// Codes of a format with one scale per (batch, head), laid out `[B,H,S,D]`, not centred.
    pub fn new(format: Fp8Format) -> Self {
        Quantizer {
            format,
            granularity: Granularity::Head,
            layout: Layout::Bhsd,
            centered: false,
            largest_code: format.max(),
        }
    }

    /// INT8 codes of Q or K, with one scale for every row, laid out `[B,H,S,D]`, not centred. For K, center it and give 64 to 256
    /// rows one scale: [`Quantizer::for_attention`].
    pub fn int8() -> Self {
        Quantizer::new(Fp8Format::Int8).with_granularity(Granularity::Block { rows: 1 })
    }

    /// How Q, K and V are quantised for attention where nothing else was asked for.
    ///
    /// In FP8: one scale per (batch, head), and codes of Q and K up to [`small_codes`]. In INT8: a scale for every row of Q and
    /// for [`INT8_BLOCK`] rows of K; K and V are centred, V is in E4M3.
    pub fn for_attention(problem: &Problem) -> [Quantizer; 3] {
        let plain = Quantizer::new(problem.value_format());
        match problem.input_format() {
            Fp8Format::Int8 => {
                let keys = Granularity::Block { rows: INT8_BLOCK };
                [Quantizer::int8(), Quantizer::int8().with_granularity(keys).centered(), plain.centered()]
            }
            _ => {
                let small = plain.with_largest_code(small_codes(problem));
                [small, small, plain]
            }
        }
    }

    /// What a tensor of these dimensions is that this makes.
    pub(crate) fn operand(&self, dims: Dims) -> Operand {
        let Quantizer { format, granularity, layout, centered: centred, largest_code } = *self;
        Operand { dims, format, layout, granularity, centred, largest_code }
    }

    /// The same with other scales.
    pub fn with_granularity(self, granularity: Granularity) -> Self {
        Quantizer { granularity, ..self }
    }

    /// The same with the codes laid out otherwise, for example transposed for V.
    pub fn with_layout(self, layout: Layout) -> Self {
        Quantizer { layout, ..self }
    }

    /// The same, with each channel's mean over the rows subtracted before quantising and kept beside the codes.
    pub fn centered(self) -> Self {
        Quantizer { centered: true, ..self }
    }

    /// The same with larger scales, so that no code stands for more than this; it must be a value of the format.
    ///
    /// Relative precision hardly changes, and sums of products of small codes fit narrower numbers: with Q and K up to
    /// [`SMALL_CODES`] the hopper kernel keeps its scores in f16.
    pub fn with_largest_code(self, largest_code: f32) -> Self {
        Quantizer { largest_code, ..self }
    }

    /// What no code stands for more than.
    pub fn largest_code(&self) -> f32 {
        self.largest_code
    }

    /// Quantises values that lie in memory in `layout` order.
    ///
    /// Each scale is the largest magnitude among its values divided by the largest code, so that
    /// nothing saturates; it is 1 where all values are zero. A value that is not finite is an error.
    pub fn quantize<T: Element>(&self, values: &[T], dims: Dims, layout: Layout) -> Result<Fp8Tensor<'static>> {
        self.granularity.check("granularity")?;
        for layout in [self.layout, layout] {
            layout.check_on_host()?;
        }
        check_largest_code(self.format, self.largest_code)?;
        let source = Source::new(values, dims, layout)?;
        let means = self.centered.then(|| centre::means(&source)).transpose()?;
        let scales = scales::find(&source, means.as_deref(), self.largest_code, self.granularity)?;
        let codes = codes::encode(&source, means.as_deref(), &scales, self.format, self.layout);
        let tensor = Fp8Tensor::new(dims, self.layout, self.format, codes, scales)?;
        match means {
            Some(means) => tensor.with_means(means),
            None => Ok(tensor),
        }
    }
}

/// The largest code of Q and K with which sums of their products over 128 channels stay finite in f16.
pub const SMALL_CODES: f32 = 16.0;

/// The largest code of Q and K with which sums of their products over a problem's channels stay finite in f16: [`SMALL_CODES`], or
/// in E4M3 the next smaller where channels are more than 255.
pub fn small_codes(problem: &Problem) -> f32 {
    const NEXT_SMALLER: f32 = 15.0;
    let is_wide = problem.shape().head_dim > 255 && problem.input_format() == Fp8Format::E4m3;
    if is_wide { NEXT_SMALLER } else { SMALL_CODES }
}

/// Rows of K in INT8 that share a scale: as many as a tile of the kernel that multiplies integers has.
pub const INT8_BLOCK: usize = 256;

/// Whether codes can go up to this very value: only then does nothing round above it.
pub(crate) fn check_largest_code(format: Fp8Format, largest_code: f32) -> Result<()> {
    let nearest = fp8::decode(format, fp8::encode(format, largest_code));
    if !(largest_code > 0.0 && nearest == largest_code) {
        return Err(Error::invalid(
            "largest_code",
            format!("{largest_code} is not a positive value of {format}"),
            format!("choose a power of two, or {} for the largest", format.max()),
        ));
    }
    Ok(())
}

/// Quantises `[B,H,S,D]` values of Q, K and V for attention, by [`Quantizer::for_attention`].
///
/// ```
/// use eightfold::{Problem, Shape, attention, quantize};
///
/// let problem = Problem::new(Shape::new(1, 2, 16, 64))?;
/// let values = vec![0.5f32; problem.shape().query_dims().count()];
/// let [q, k, v] = quantize::for_attention(&problem, [&values[..]; 3])?;
/// assert_eq!((q.largest_code(), v.largest_code()), (16.0, 448.0));
/// attention(&problem, &q, &k, &v)?;
/// # Ok::<(), eightfold::Error>(())
/// ```
pub fn for_attention<T: Element>(problem: &Problem, [q, k, v]: [&[T]; 3]) -> Result<[Fp8Tensor<'static>; 3]> {
    let [of_q, of_k, of_v] = Quantizer::for_attention(problem);
    let shape = problem.shape();
    let named = |name: &str, tensor: Result<Fp8Tensor<'static>>| {
        tensor.map_err(|error| match error {
            Error::Invalid { rule, fix, .. } => Error::invalid(name, rule, fix),
            other => other,
        })
    };
    Ok([
        named("q", of_q.quantize(q, shape.query_dims(), Layout::Bhsd))?,
        named("k", of_k.quantize(k, shape.key_dims(), Layout::Bhsd))?,
        named("v", of_v.quantize(v, problem.value_dims(), Layout::Bhsd))?,
    ])
}

/// Quantises `[B,H,S,D]` values to E4M3 with one scale per (batch, head) and codes up to 448. [`for_attention`] does better by
/// Q and K.
pub fn quantize<T: Element>(values: &[T], dims: Dims) -> Result<Fp8Tensor<'static>> {
    Quantizer::new(Fp8Format::E4m3).quantize(values, dims, Layout::Bhsd)
}
