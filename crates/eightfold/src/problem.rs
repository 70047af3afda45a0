//! What to compute, never how: shape, mask, scoring, formats.

mod mask;
mod scoring;

use crate::error::{Error, Result};
use crate::knobs::knob_values;
use crate::tensor::{Dims, Fp8Format, Layout};
pub use mask::{Mask, Window};
pub(crate) use scoring::Scoring;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

/// The sizes of an attention problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
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
    pub const fn new(batch: usize, heads: usize, len: usize, head_dim: usize) -> Self {
        Shape { batch, query_heads: heads, kv_heads: heads, query_len: len, key_len: len, head_dim }
    }

    /// The same with another number of sequences.
    pub const fn with_batch(self, batch: usize) -> Self {
        Shape { batch, ..self }
    }

    /// The same with so many heads of K and V, each for as many heads of Q.
    pub const fn with_kv_heads(self, kv_heads: usize) -> Self {
        Shape { kv_heads, ..self }
    }

    /// The same with so many rows of Q per head.
    pub const fn with_query_len(self, query_len: usize) -> Self {
        Shape { query_len, ..self }
    }

    /// The same with so many rows of K and V per head.
    pub const fn with_key_len(self, key_len: usize) -> Self {
        Shape { key_len, ..self }
    }

    /// Query heads that share one key/value head.
    pub fn group(&self) -> usize {
        self.query_heads / self.kv_heads
    }

    /// The dimensions of Q.
    pub fn query_dims(&self) -> Dims {
        Dims { batch: self.batch, heads: self.query_heads, len: self.query_len, head_dim: self.head_dim }
    }

    /// The dimensions of K, and of V unless [`Problem::with_value_dim`] says otherwise.
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

knob_values! {
    /// The number format of the output.
    #[non_exhaustive]
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
    #[non_exhaustive]
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
    value_dim: usize,
    mask: Mask,
    window: Window,
    scoring: Scoring,
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
        check_head_dim("head_dim", shape.head_dim, " and keep the softmax scale of the original")?;
        for dims in [shape.query_dims(), shape.key_dims()] {
            dims.checked_count()?;
        }
        Ok(Problem {
            shape,
            value_dim: shape.head_dim,
            mask: Mask::None,
            window: Window::default(),
            scoring: Scoring::scaled(1.0 / (shape.head_dim as f32).sqrt()),
            input_format: Fp8Format::E4m3,
            output_format: OutputFormat::F32,
            output_layout: Layout::Bhsd,
            lse: false,
            accuracy: Accuracy::default(),
            batch_invariant: false,
        })
    }

    /// The same problem with so many channels per head of V and of the output; the shape's are those of Q and K.
    pub fn with_value_dim(self, value_dim: usize) -> Result<Self> {
        if value_dim == 0 {
            return Err(Error::invalid("value_dim", "must be at least 1, got 0", "give a positive size"));
        }
        check_head_dim("value_dim", value_dim, "")?;
        let problem = Problem { value_dim, ..self };
        for dims in [problem.value_dims(), problem.output_dims()] {
            dims.checked_count()?;
        }
        Ok(problem)
    }

    /// The same problem under a causal mask.
    pub fn causal(self) -> Self {
        self.with_mask(Mask::Causal)
    }

    /// The same problem under this mask.
    pub fn with_mask(self, mask: Mask) -> Self {
        Problem { mask, ..self }
    }

    /// The same problem with a sliding window, within what the mask leaves.
    pub fn with_window(self, window: Window) -> Self {
        Problem { window, ..self }
    }

    /// The same problem with another softmax scale; it must be finite and positive.
    pub fn with_softmax_scale(self, softmax_scale: f32) -> Result<Self> {
        Ok(Problem { scoring: self.scoring.with_scale(softmax_scale, self.shape.head_dim)?, ..self })
    }

    /// The same problem with scores that stay below a bound: each becomes `softcap · tanh(score / softcap)` after it was
    /// scaled. The bound must be finite and positive.
    pub fn with_softcap(self, softcap: f32) -> Result<Self> {
        Ok(Problem { scoring: self.scoring.with_softcap(softcap)?, ..self })
    }

    /// The same problem with an attention sink for every query head: a logit, neither scaled nor capped, that is in the sum of
    /// each of the head's rows and stands for no key. Q carries the logits: [`Fp8Tensor::with_sinks`](crate::Fp8Tensor::with_sinks).
    ///
    /// ```
    /// use eightfold::{Problem, Shape, Window, attention, quantize};
    ///
    /// // A window of 128 keys and sinks, as every other layer of gpt-oss has them.
    /// let shape = Shape::new(1, 8, 300, 64).with_kv_heads(1);
    /// let problem = Problem::new(shape)?.causal().with_window(Window::new(Some(127), None)).with_sinks();
    /// let [queries, keys] = [shape.query_dims(), shape.key_dims()].map(|dims| vec![0.5f32; dims.count()]);
    /// let [q, k, v] = quantize::for_attention(&problem, [&queries[..], &keys, &keys])?;
    /// let output = attention(&problem, &q.with_sinks(vec![0.25; 8])?, &k, &v)?;
    /// // 128 keys of a score of 2, and the sink.
    /// let share = 128.0 * 2f32.exp() / (128.0 * 2f32.exp() + 0.25f32.exp());
    /// assert!((output.values.to_f32().last().unwrap() - 0.5 * share).abs() < 1e-3);
    /// # Ok::<(), eightfold::Error>(())
    /// ```
    pub fn with_sinks(self) -> Self {
        Problem { scoring: Scoring { sinks: true, ..self.scoring }, ..self }
    }

    /// The same problem with inputs in another format; INT8 is for Q and K, beside V in E4M3.
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

    /// The dimensions of V.
    pub fn value_dims(&self) -> Dims {
        Dims { head_dim: self.value_dim, ..self.shape.key_dims() }
    }

    /// The dimensions of the output.
    pub fn output_dims(&self) -> Dims {
        Dims { head_dim: self.value_dim, ..self.shape.query_dims() }
    }

    /// The mask.
    pub fn mask(&self) -> Mask {
        self.mask
    }

    /// The sliding window; by default it is open on both sides.
    pub fn window(&self) -> Window {
        self.window
    }

    /// What the scores are multiplied by before the softmax.
    pub fn softmax_scale(&self) -> f32 {
        self.scoring.scale
    }

    /// The bound of the scores, if they have one.
    pub fn softcap(&self) -> Option<f32> {
        self.scoring.softcap
    }

    /// Whether every query head has an attention sink.
    pub fn has_sinks(&self) -> bool {
        self.scoring.sinks
    }

    /// What becomes of products before the softmax.
    pub(crate) fn scoring(&self) -> Scoring {
        self.scoring
    }

    /// The format of Q and K, and of V where that is FP8.
    pub fn input_format(&self) -> Fp8Format {
        self.input_format
    }

    /// The FP8 format of V: E4M3 beside Q and K in INT8, else theirs.
    pub fn value_format(&self) -> Fp8Format {
        match self.input_format {
            Fp8Format::Int8 => Fp8Format::E4m3,
            format => format,
        }
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

    /// The problem of one sequence of so many queries and keys, of either of which there may be none.
    pub(crate) fn with_lengths(&self, query_len: usize, key_len: usize) -> Problem {
        Problem { shape: Shape { batch: 1, query_len, key_len, ..self.shape }, ..*self }
    }

    /// The keys that query `query` sees. Later queries see neither earlier first keys nor earlier last ones.
    #[inline]
    pub fn visible(&self, query: usize) -> Range<usize> {
        let Shape { query_len, key_len, .. } = self.shape;
        // A query's own key is that many keys behind the first, or before it.
        let own = query + key_len;
        let end = |right: usize| own.saturating_add(right.saturating_add(1)).saturating_sub(query_len).min(key_len);
        let start = |left: usize| own.saturating_sub(query_len.saturating_add(left));
        self.window.left.map_or(0, start)..self.right().map_or(key_len, end)
    }

    /// Keys after its own that a query sees under mask and window; all where this is none.
    fn right(&self) -> Option<usize> {
        if self.mask == Mask::Causal { Some(0) } else { self.window.right }
    }

    /// The keys that some of these queries see, of which there is at least one.
    #[doc(hidden)]
    pub fn visible_to(&self, queries: &Range<usize>) -> Range<usize> {
        self.visible(queries.start).start..self.visible(queries.end - 1).end
    }

    /// The most keys between the first and the last that some of so many queries in a row see.
    pub(crate) fn most_visible_to(&self, queries: usize) -> usize {
        let all = self.shape.key_len;
        match (self.window.left, self.right()) {
            (Some(left), Some(right)) => left.saturating_add(right).saturating_add(queries).min(all),
            _ => all,
        }
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
    #[doc(hidden)]
    pub fn flop(&self) -> f64 {
        let Shape { batch, query_heads, head_dim, .. } = self.shape;
        2.0 * self.visible_pairs() * (batch * query_heads * (head_dim + self.value_dim)) as f64
    }

    /// Pairs of a query and a key that it sees, in one head.
    fn visible_pairs(&self) -> f64 {
        let (queries, keys) = (self.shape.query_len as f64, self.shape.key_len as f64);
        // The sum over the queries of `query + offset`, each held within 0 and the number of keys.
        let sum = |offset: f64| {
            let first = (-offset).clamp(0.0, queries);
            let last = (keys - offset).clamp(first, queries);
            (last - first) * ((first + last - 1.0) / 2.0 + offset) + (queries - last) * keys
        };
        let ends = self.right().map_or(queries * keys, |right| sum(1.0 + right as f64 + keys - queries));
        let starts = self.window.left.map_or(0.0, |left| sum(keys - queries - left as f64));
        ends - starts
    }
}

/// A head is of 8 to [`MAX_HEAD_DIM`] channels in steps of 8.
fn check_head_dim(name: &str, head_dim: usize, padded_how: &str) -> Result<()> {
    if head_dim.is_multiple_of(8) && head_dim <= MAX_HEAD_DIM {
        return Ok(());
    }
    let padded = head_dim.checked_next_multiple_of(8).filter(|padded| *padded <= MAX_HEAD_DIM);
    let fix = match padded {
        Some(padded) => format!("pad each head with zeros to {padded}{padded_how}"),
        None => format!("split the head; the widest supported is {MAX_HEAD_DIM}"),
    };
    Err(Error::invalid(name, format!("{head_dim} is not a multiple of 8 up to {MAX_HEAD_DIM}"), fix))
}

/// The shape, with `D/Dv` for D where V has other channels, and each of `causal`, `window=L,R`, `softcap=X` and `sinks` where
/// it is.
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.shape)?;
        if self.value_dim != self.shape.head_dim {
            write!(f, "/{}", self.value_dim)?;
        }
        if self.mask == Mask::Causal {
            write!(f, " causal")?;
        }
        if self.window != Window::default() {
            write!(f, " window={}", self.window)?;
        }
        if let Some(softcap) = self.scoring.softcap {
            write!(f, " softcap={softcap}")?;
        }
        if self.scoring.sinks { write!(f, " sinks") } else { Ok(()) }
    }
}
