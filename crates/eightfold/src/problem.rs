//! What to compute, never how: shape, mask, scale, formats.

use crate::error::{Error, Result};
use crate::knobs::knob_values;
use crate::tensor::{Dims, Fp8Format, Layout};
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

/// The sizes of an attention problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Independent sequences.
    pub batch: usize,
    /// Heads of Q and of the output; a multiple of `kv_heads`.
    pub query_heads: usize,
    /// Heads of K and V; each serves `query_heads / kv_heads` query heads.
    pub kv_heads: usize,
    /// Rows of Q per head.
    pub query_len: usize,
    /// Rows of K and V per head.
    pub key_len: usize,
    /// Channels per head.
    pub head_dim: usize,
}

impl Shape {
    /// Self-attention: as many key as query heads, as many keys as queries.
    pub fn new(batch: usize, heads: usize, len: usize, head_dim: usize) -> Self {
        Shape { batch, query_heads: heads, kv_heads: heads, query_len: len, key_len: len, head_dim }
    }

    /// Query heads that share one key/value head.
    pub fn group(&self) -> usize {
        self.query_heads / self.kv_heads
    }

    /// The dimensions of Q and of the output.
    pub fn query_dims(&self) -> Dims {
        Dims { batch: self.batch, heads: self.query_heads, len: self.query_len, head_dim: self.head_dim }
    }

    /// The dimensions of K and of V.
    pub fn key_dims(&self) -> Dims {
        Dims { batch: self.batch, heads: self.kv_heads, len: self.key_len, head_dim: self.head_dim }
    }
}

/// `B,H,S,D` for self-attention, else `B,Hq,Hkv,Sq,Skv,D`.
impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shape { batch, query_heads, kv_heads, query_len, key_len, head_dim } = self;
        if query_heads == kv_heads && query_len == key_len {
            write!(f, "{batch},{query_heads},{query_len},{head_dim}")
        } else {
            write!(f, "{batch},{query_heads},{kv_heads},{query_len},{key_len},{head_dim}")
        }
    }
}

impl FromStr for Shape {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let invalid = || {
            Error::invalid(
                "shape",
                format!("`{text}` is not a list of 4 or 6 positive integers"),
                "write B,H,S,D or B,Hq,Hkv,Sq,Skv,D, for example 1,8,512,64",
            )
        };
        let sizes: Vec<usize> =
            text.split(',').map(|part| part.trim().parse().map_err(|_| invalid())).collect::<Result<_>>()?;
        match sizes[..] {
            [batch, heads, len, head_dim] => Ok(Shape::new(batch, heads, len, head_dim)),
            [batch, query_heads, kv_heads, query_len, key_len, head_dim] => {
                Ok(Shape { batch, query_heads, kv_heads, query_len, key_len, head_dim })
            }
            _ => Err(invalid()),
        }
    }
}

/// Which keys a query may see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mask {
    /// Every query sees every key.
    None,
    /// Bottom-right aligned, as FlashAttention does: the last query sees every key, and query `i` sees
    /// keys `0 ..= i + key_len - query_len`. With more queries than keys the first ones see nothing.
    Causal,
}

impl Mask {
    /// The causal mask if it is asked for, and else none.
    pub fn causal_if(causal: bool) -> Mask {
        if causal { Mask::Causal } else { Mask::None }
    }
}

knob_values! {
    /// The number format of the output.
    OutputFormat("output") {
        /// 32-bit float.
        F32 = "f32",
        /// IEEE half precision.
        F16 = "f16",
        /// bfloat16.
        Bf16 = "bf16",
    }
}

knob_values! {
    /// How exact the result must be. Kernels whose every variant is `precise` do not ask.
    ///
    /// The error is that of the kernel alone, relative to attention in float64 on the same FP8 tensors, in the mean over inputs
    /// of N(0, 1). It depends on the keys that a query sees, and on no other sequence or head.
    #[derive(Default)]
    Accuracy("accuracy") {
        /// Within 31e-3: every exponential is linear between powers of two; where keys are many, fewer are.
        #[default]
        Fast = "fast",
        /// Within 28.5e-3: three of eight are, or fewer.
        Balanced = "balanced",
        /// Within 26e-3: exact exponentials, rounded to FP8; where keys are many, one in eight to two FP8 numbers.
        ExactExp = "exact-exp",
        /// Within 3e-3.
        Precise = "precise",
    }
}

impl Accuracy {
    /// How far a kernel is from float64 attention on values of N(0, 1), in the mean: the relative L2 norm of its error.
    pub fn within(self) -> f64 {
        match self {
            Accuracy::Fast => 31e-3,
            Accuracy::Balanced => 28.5e-3,
            Accuracy::ExactExp => 26e-3,
            Accuracy::Precise => 3e-3,
        }
    }
}

/// One attention problem, with every rule checked.
///
/// ```
/// use eightfold::{Problem, Shape};
///
/// let problem = Problem::new(Shape::new(1, 8, 512, 64))?.causal();
/// assert_eq!(problem.softmax_scale(), 0.125);
/// assert_eq!(problem.to_string(), "1,8,512,64 causal");
///
/// let error = Problem::new(Shape::new(1, 8, 512, 65)).unwrap_err();
/// assert!(error.to_string().starts_with("head_dim: "));
/// # Ok::<(), eightfold::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Problem {
    shape: Shape,
    mask: Mask,
    softmax_scale: f32,
    input_format: Fp8Format,
    output_format: OutputFormat,
    output_layout: Layout,
    lse: bool,
    accuracy: Accuracy,
    batch_invariant: bool,
}

/// The widest head that any kernel serves.
pub const MAX_HEAD_DIM: usize = 256;

impl Problem {
    /// A problem of this shape: no mask, scale 1/√D, E4M3 in, f32 out in `[B,H,S,D]`, no log-sum-exp.
    pub fn new(shape: Shape) -> Result<Self> {
        let sizes = [
            ("batch", shape.batch),
            ("query_heads", shape.query_heads),
            ("kv_heads", shape.kv_heads),
            ("query_len", shape.query_len),
            ("key_len", shape.key_len),
            ("head_dim", shape.head_dim),
        ];
        for (name, size) in sizes {
            if size == 0 {
                return Err(Error::invalid(name, "must be at least 1, got 0", "give a positive size"));
            }
        }
        if !shape.query_heads.is_multiple_of(shape.kv_heads) {
            return Err(Error::invalid(
                "query_heads",
                format!("{} is not a multiple of kv_heads {}", shape.query_heads, shape.kv_heads),
                "each key/value head must serve the same number of query heads",
            ));
        }
        if !shape.head_dim.is_multiple_of(8) || shape.head_dim > MAX_HEAD_DIM {
            let padded = shape.head_dim.next_multiple_of(8);
            let fix = if padded <= MAX_HEAD_DIM {
                format!("pad each head with zeros to {padded} and keep the softmax scale of the original")
            } else {
                format!("split the head; the widest supported is {MAX_HEAD_DIM}")
            };
            return Err(Error::invalid(
                "head_dim",
                format!("{} is not a multiple of 8 up to {MAX_HEAD_DIM}", shape.head_dim),
                fix,
            ));
        }
        for dims in [shape.query_dims(), shape.key_dims()] {
            dims.checked_count()?;
        }
        Ok(Problem {
            shape,
            mask: Mask::None,
            softmax_scale: 1.0 / (shape.head_dim as f32).sqrt(),
            input_format: Fp8Format::E4m3,
            output_format: OutputFormat::F32,
            output_layout: Layout::Bhsd,
            lse: false,
            accuracy: Accuracy::default(),
            batch_invariant: false,
        })
    }

    /// The same problem under a causal mask.
    pub fn causal(self) -> Self {
        self.with_mask(Mask::Causal)
    }

    /// The same problem under this mask.
    pub fn with_mask(self, mask: Mask) -> Self {
        Problem { mask, ..self }
    }

    /// The same problem with another softmax scale; it must be finite and positive.
    pub fn with_softmax_scale(self, softmax_scale: f32) -> Result<Self> {
        if !softmax_scale.is_finite() || softmax_scale <= 0.0 {
            return Err(Error::invalid(
                "softmax_scale",
                format!("must be finite and positive, got {softmax_scale}"),
                format!("leave it out for the default 1/sqrt({})", self.shape.head_dim),
            ));
        }
        Ok(Problem { softmax_scale, ..self })
    }

    /// The same problem with inputs in another FP8 format.
    pub fn with_input_format(self, input_format: Fp8Format) -> Self {
        Problem { input_format, ..self }
    }

    /// The same problem with the output in another number format.
    pub fn with_output_format(self, output_format: OutputFormat) -> Self {
        Problem { output_format, ..self }
    }

    /// The same problem with the output in another layout; the transposed one is for V alone.
    pub fn with_output_layout(self, output_layout: Layout) -> Result<Self> {
        if output_layout.is_transposed() {
            return Err(Error::invalid(
                "output_layout",
                format!("the transposed layout {output_layout} is for V alone"),
                "choose bhsd or bshd",
            ));
        }
        Ok(Problem { output_layout, ..self })
    }

    /// The same problem with (or without) the log-sum-exp of every row as a second output.
    pub fn with_lse(self, lse: bool) -> Self {
        Problem { lse, ..self }
    }

    /// The same problem with another accuracy.
    pub fn with_accuracy(self, accuracy: Accuracy) -> Self {
        Problem { accuracy, ..self }
    }

    /// The same problem with every sequence's result the same, bit for bit, in every batch. Kernels, and how they split keys,
    /// are then chosen as for one sequence alone, which is slower where other sequences would have filled the device.
    pub fn batch_invariant(self) -> Self {
        Problem { batch_invariant: true, ..self }
    }

    /// The sizes.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The mask.
    pub fn mask(&self) -> Mask {
        self.mask
    }

    /// What the scores are multiplied by before the softmax.
    pub fn softmax_scale(&self) -> f32 {
        self.softmax_scale
    }

    /// The FP8 format of Q, K and V.
    pub fn input_format(&self) -> Fp8Format {
        self.input_format
    }

    /// The number format of the output.
    pub fn output_format(&self) -> OutputFormat {
        self.output_format
    }

    /// The layout of the output.
    pub fn output_layout(&self) -> Layout {
        self.output_layout
    }

    /// Whether the log-sum-exp is wanted.
    pub fn lse(&self) -> bool {
        self.lse
    }

    /// How exact the result must be.
    pub fn accuracy(&self) -> Accuracy {
        self.accuracy
    }

    /// Whether a sequence's result is the same, bit for bit, in every batch.
    pub fn is_batch_invariant(&self) -> bool {
        self.batch_invariant
    }

    /// The problem by which kernels and their splits are chosen: one sequence of it where results must not depend on the
    /// others.
    pub(crate) fn deciding(&self) -> Problem {
        let batch = if self.batch_invariant { 1 } else { self.shape.batch };
        Problem { shape: Shape { batch, ..self.shape }, ..*self }
    }

    /// The keys that query `query` sees. Later queries see neither earlier first keys nor earlier last ones.
    pub fn visible(&self, query: usize) -> Range<usize> {
        let Shape { query_len, key_len, .. } = self.shape;
        match self.mask {
            Mask::None => 0..key_len,
            Mask::Causal => 0..(query + 1 + key_len).saturating_sub(query_len).min(key_len),
        }
    }

    /// The keys that some of these queries see, of which there is at least one.
    pub(crate) fn visible_to(&self, queries: &Range<usize>) -> Range<usize> {
        self.visible(queries.start).start..self.visible(queries.end - 1).end
    }

    /// The tiles of so many keys of which some of these queries see something.
    pub(crate) fn visible_tiles(&self, queries: &Range<usize>, tile_keys: usize) -> Range<usize> {
        let keys = self.visible_to(queries);
        keys.start / tile_keys..keys.end.div_ceil(tile_keys)
    }

    /// How many tiles of so many queries and so many keys have a pair that is visible, over all heads.
    pub(crate) fn tiles(&self, tile_queries: usize, tile_keys: usize) -> usize {
        let Shape { batch, query_heads, query_len, .. } = self.shape;
        let firsts = (0..query_len).step_by(tile_queries);
        let seen =
            firsts.map(|first| self.visible_tiles(&(first..query_len.min(first + tile_queries)), tile_keys).len());
        seen.sum::<usize>() * batch * query_heads
    }

    /// The FLOP of QKᵀ and PV: multiply-adds count double, masked pairs count not at all.
    pub fn flop(&self) -> f64 {
        let Shape { batch, query_heads, query_len, key_len, head_dim, .. } = self.shape;
        let (queries, keys) = (query_len as f64, key_len as f64);
        let pairs = match self.mask {
            Mask::None => queries * keys,
            // The last query sees every key, and each one before it one key less, down to none.
            Mask::Causal => {
                let seeing = queries.min(keys);
                seeing * keys - seeing * (seeing - 1.0) / 2.0
            }
        };
        4.0 * pairs * (batch * query_heads * head_dim) as f64
    }
}

/// The shape, and `causal` where it is.
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mask = if self.mask == Mask::Causal { " causal" } else { "" };
        write!(f, "{}{mask}", self.shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SHAPE: Shape = Shape { batch: 2, query_heads: 6, kv_heads: 3, query_len: 5, key_len: 7, head_dim: 16 };

    #[track_caller]
    fn assert_refused(result: Result<Problem>, expected: &str) {
        let error = result.unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }

    #[test]
    fn the_defaults_are_the_usual_ones() {
        let problem = Problem::new(SHAPE).unwrap();
        assert_eq!(problem.shape(), SHAPE);
        assert_eq!(problem.mask(), Mask::None);
        assert_eq!(problem.softmax_scale(), 0.25);
        assert_eq!(problem.input_format(), Fp8Format::E4m3);
        assert_eq!(problem.output_format(), OutputFormat::F32);
        assert_eq!(problem.output_layout(), Layout::Bhsd);
        assert!(!problem.lse());
        assert_eq!(problem.accuracy().to_string(), "fast");
    }

    #[test]
    fn every_setting_is_kept() {
        let problem = Problem::new(SHAPE)
            .unwrap()
            .causal()
            .with_softmax_scale(0.7)
            .unwrap()
            .with_input_format(Fp8Format::E5m2)
            .with_output_format(OutputFormat::Bf16)
            .with_output_layout(Layout::Bshd)
            .unwrap()
            .with_lse(true)
            .with_accuracy(Accuracy::Precise);
        assert_eq!(problem.mask(), Mask::Causal);
        assert_eq!(problem.accuracy(), Accuracy::Precise);
        assert_eq!(problem.softmax_scale(), 0.7);
        assert_eq!(problem.input_format(), Fp8Format::E5m2);
        assert_eq!(problem.output_format(), OutputFormat::Bf16);
        assert_eq!(problem.output_layout(), Layout::Bshd);
        assert!(problem.lse());
        assert_eq!(problem.with_mask(Mask::None).with_lse(false).to_string(), SHAPE.to_string());
    }

    #[test]
    fn a_zero_size_is_refused_by_name() {
        let shapes = [
            ("batch", Shape { batch: 0, ..SHAPE }),
            ("query_heads", Shape { query_heads: 0, ..SHAPE }),
            ("kv_heads", Shape { kv_heads: 0, ..SHAPE }),
            ("query_len", Shape { query_len: 0, ..SHAPE }),
            ("key_len", Shape { key_len: 0, ..SHAPE }),
            ("head_dim", Shape { head_dim: 0, ..SHAPE }),
        ];
        for (name, shape) in shapes {
            assert_refused(Problem::new(shape), &format!("{name}: must be at least 1, got 0"));
        }
    }

    #[test]
    fn query_heads_must_be_a_multiple_of_key_heads() {
        assert_refused(
            Problem::new(Shape { query_heads: 7, ..SHAPE }),
            "query_heads: 7 is not a multiple of kv_heads 3; ",
        );
        assert_refused(
            Problem::new(Shape { query_heads: 1, ..SHAPE }),
            "query_heads: 1 is not a multiple of kv_heads 3; ",
        );
        assert!(Problem::new(Shape { kv_heads: 1, ..SHAPE }).is_ok());
        assert!(Problem::new(Shape { kv_heads: 6, ..SHAPE }).is_ok());
    }

    #[test]
    fn head_dim_must_be_a_multiple_of_eight_up_to_the_widest() {
        for head_dim in 1..=2 * MAX_HEAD_DIM {
            let result = Problem::new(Shape { head_dim, ..SHAPE });
            if head_dim % 8 == 0 && head_dim <= MAX_HEAD_DIM {
                assert!(result.is_ok(), "{head_dim}");
            } else {
                let fix = match head_dim < MAX_HEAD_DIM {
                    true => format!("to {} and keep", head_dim.next_multiple_of(8)),
                    false => "the widest supported is 256".into(),
                };
                let error = result.unwrap_err().to_string();
                let rule = format!("head_dim: {head_dim} is not a multiple of 8 up to 256; ");
                assert!(error.starts_with(&rule) && error.contains(&fix), "{error}");
            }
        }
    }

    #[test]
    fn a_size_beyond_the_address_space_is_refused() {
        let huge = usize::MAX / 8;
        for shape in [
            Shape { batch: huge, ..SHAPE },
            Shape { query_len: huge, ..SHAPE },
            Shape { key_len: huge, ..SHAPE },
            Shape { key_len: usize::MAX / 32 / 16, batch: 1, kv_heads: 3, ..SHAPE },
        ] {
            assert_refused(Problem::new(shape), "shape: [");
        }
    }

    #[test]
    fn the_softmax_scale_must_be_finite_and_positive() {
        let problem = Problem::new(SHAPE).unwrap();
        for scale in [0.0, -0.0, -1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert_refused(
                problem.with_softmax_scale(scale),
                &format!("softmax_scale: must be finite and positive, got {scale}; "),
            );
        }
        assert!(problem.with_softmax_scale(f32::MIN_POSITIVE).is_ok());
    }

    #[test]
    fn the_output_is_never_transposed() {
        let problem = Problem::new(SHAPE).unwrap();
        assert_refused(problem.with_output_layout(Layout::Bhds), "output_layout: ");
    }

    #[test]
    fn a_shape_reads_as_four_or_six_sizes() {
        assert_eq!("1,8,512,64".parse(), Ok(Shape::new(1, 8, 512, 64)));
        assert_eq!(" 2, 6,3,5 ,7,16 ".parse(), Ok(SHAPE));
        for text in ["", "1", "1,2,3", "1,2,3,4,5", "1,2,3,4,5,6,7", "1,8,-2,64", "1,8,x,64", "1,8,512,64,"] {
            let error = text.parse::<Shape>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("shape: `{text}` is not a list of 4 or 6")), "{error}");
        }
    }

    #[test]
    fn under_the_causal_mask_the_last_query_sees_every_key() {
        let seen = |query_len, key_len| -> Vec<usize> {
            let shape = Shape { query_len, key_len, ..SHAPE };
            let problem = Problem::new(shape).unwrap().causal();
            (0..query_len).map(|query| problem.visible(query).len()).collect()
        };
        assert_eq!(seen(4, 4), [1, 2, 3, 4]);
        assert_eq!(seen(3, 5), [3, 4, 5]);
        assert_eq!(seen(5, 3), [0, 0, 1, 2, 3]);
        assert_eq!(seen(1, 9), [9]);
        assert_eq!(seen(3, 1), [0, 0, 1]);
        let unmasked = Problem::new(SHAPE).unwrap();
        assert!((0..5).all(|query| unmasked.visible(query) == (0..7)));
    }

    #[test]
    fn flop_counts_what_is_not_masked() {
        let problem = Problem::new(Shape::new(2, 3, 4, 8)).unwrap();
        assert_eq!(problem.flop(), (4 * 2 * 3 * 4 * 4 * 8) as f64);
        assert_eq!(problem.causal().flop(), (4 * 2 * 3 * (1 + 2 + 3 + 4) * 8) as f64);
    }

    fn shapes() -> impl Strategy<Value = Shape> {
        (1usize..5, 1usize..5, 1usize..5, 1usize..40, 1usize..40, 1usize..5).prop_map(
            |(batch, kv_heads, group, query_len, key_len, eighths)| Shape {
                batch,
                query_heads: kv_heads * group,
                kv_heads,
                query_len,
                key_len,
                head_dim: 8 * eighths,
            },
        )
    }

    proptest! {
        #[test]
        fn a_shape_survives_being_printed_and_parsed(shape in shapes()) {
            prop_assert_eq!(shape.to_string().parse(), Ok(shape));
        }

        #[test]
        fn visible_keys_are_those_that_the_mask_allows(shape in shapes()) {
            let problem = Problem::new(shape)?.causal();
            let mut pairs = 0;
            for query in 0..shape.query_len {
                // The last query is aligned with the last key.
                let allowed = (0..shape.key_len)
                    .filter(|key| key + shape.query_len <= query + shape.key_len)
                    .count();
                prop_assert_eq!(problem.visible(query), 0..allowed);
                pairs += allowed;
            }
            let lines = shape.batch * shape.query_heads * shape.head_dim;
            prop_assert_eq!(problem.flop(), (4 * pairs * lines) as f64);
        }
    }
}
