//! Keys, values and queries of a case, and what sampled heads must give.

use super::case::Case;
use eightfold::serving::{PageLayout, PageScales, PageStrides};
use eightfold::{Fp8Format, Result, fp8};
use half::bf16;

/// Heads whose outputs are compared with float64.
pub(super) const SAMPLES: usize = 12;

/// By what codes are multiplied.
pub(super) const SCALE: f32 = 0.02;

/// How a cache lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lie {
    /// As servers have it: pages in an order that no one expects, rows of tokens, one scale.
    Served,
    /// As this library's own cache has it: pages by heads, and scales by tokens.
    Own,
    /// One token behind the other, as if it had been gathered.
    InOrder,
}

/// An output of a sampled head, in float64.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Sample {
    /// Where its first channel is in the output.
    pub(super) at: usize,
    pub(super) expected: Vec<f64>,
}

impl Sample {
    /// Its row's relative L2 error, if it is too large, in words.
    pub(super) fn check(&self, row: &[f32], largest_error: f64) -> std::result::Result<(), String> {
        let pairs = || row.iter().map(|value| f64::from(*value)).zip(&self.expected);
        let error: f64 = pairs().map(|(value, expected)| (value - expected).powi(2)).sum();
        let size: f64 = self.expected.iter().map(|value| value * value).sum();
        let relative = (error / size.max(f64::MIN_POSITIVE)).sqrt();
        if row.len() != self.expected.len() || relative.is_nan() || relative > largest_error {
            return Err(format!("the row at value {} has a relative L2 error of {relative:.2e}", self.at));
        }
        Ok(())
    }
}

/// What attention reads, in host memory.
pub(super) struct Inputs {
    pub(super) layout: PageLayout,
    pub(super) granularity: PageScales,
    /// How many scales there are, all of them [`SCALE`].
    pub(super) scales: usize,
    pub(super) k: Vec<u8>,
    pub(super) v: Vec<u8>,
    /// `[row, head, channel]`, one sequence behind the other.
    pub(super) q: Vec<bf16>,
    pub(super) table: Vec<i32>,
    pub(super) max_pages: usize,
    pub(super) samples: Vec<Sample>,
}

impl Inputs {
    /// K of mean 0 and V of mean 1 in pages of so many tokens; [`Lie::InOrder`] is for pages of one.
    pub(super) fn new(case: &Case, page_size: usize, lie: Lie) -> Result<Self> {
        let problem = case.problem()?;
        let Case { query_heads, kv_heads, head_dim, sequences, .. } = *case;
        let (lengths, starts) = (case.lengths(), case.query_starts());
        let rows = starts[sequences];
        let pages: usize = lengths.iter().map(|length| length.div_ceil(page_size)).sum();
        let (layout, granularity, scales) = match lie {
            Lie::Own => (
                PageLayout::hnd(pages, page_size, kv_heads, head_dim),
                PageScales::Token(PageStrides::new(kv_heads * page_size, 1, page_size)),
                pages * page_size * kv_heads,
            ),
            _ => (PageLayout::nhd(pages, page_size, kv_heads, head_dim), PageScales::Tensor, 1),
        };
        let noise = &mut Noise(1);
        let [k, v] = [0.0, 1.0].map(|mean| noise.codes(pages * page_size * kv_heads * head_dim, mean, SCALE));
        // Taken from the end.
        let mut order: Vec<i32> = (0..pages as i32).collect();
        match lie {
            Lie::InOrder => order.reverse(),
            _ => (1..pages).for_each(|index| order.swap(index, noise.below(index + 1))),
        }
        let max_pages = problem.shape().key_len.div_ceil(page_size);
        let mut table = vec![0i32; sequences * max_pages];
        for (row, length) in table.chunks_mut(max_pages).zip(&lengths) {
            row[..length.div_ceil(page_size)].fill_with(|| order.pop().unwrap_or(0));
        }
        let q: Vec<bf16> = (0..rows * query_heads * head_dim).map(|_| bf16::from_f32(noise.normal())).collect();
        let sampled = |index: usize| {
            let (row, head) = (index * 7919 % rows, index * 7 % query_heads);
            let sequence = starts.partition_point(|start| *start <= row) - 1;
            let (query, queries) = (row - starts[sequence], starts[sequence + 1] - starts[sequence]);
            let visible = (lengths[sequence] + query + 1).saturating_sub(queries);
            let at = (row * query_heads + head) * head_dim;
            let kv_head = head / (query_heads / kv_heads);
            let codes = |token: usize| {
                let page = table[sequence * max_pages + token / page_size] as usize;
                let strides = layout.strides;
                page * strides.page + token % page_size * strides.token + kv_head * strides.head
            };
            let value = |code: u8| f64::from(fp8::decode(Fp8Format::E4m3, code)) * f64::from(SCALE);
            let scores: Vec<f64> = (0..visible)
                .map(|token| {
                    let row = &k[codes(token)..][..head_dim];
                    let dot: f64 = q[at..].iter().zip(row).map(|(q, code)| q.to_f64() * value(*code)).sum();
                    dot * f64::from(problem.softmax_scale())
                })
                .collect();
            let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
            let sum: f64 = weights.iter().sum();
            let mut expected = vec![0.0; head_dim];
            for (token, weight) in weights.iter().enumerate() {
                let row = &v[codes(token)..][..head_dim];
                expected.iter_mut().zip(row).for_each(|(sum_of, code)| *sum_of += weight / sum * value(*code));
            }
            Sample { at, expected }
        };
        let samples = (0..SAMPLES).map(sampled).collect();
        Ok(Inputs { layout, granularity, scales, k, v, q, table, max_pages, samples })
    }
}

/// Numbers that look random, the same in every run, and quickly made.
pub(super) struct Noise(pub(super) u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(super) fn below(&mut self, count: usize) -> usize {
        (self.next() % count.max(1) as u64) as usize
    }

    pub(super) fn normal(&mut self) -> f32 {
        // The sum of twelve uniform numbers, less their mean.
        (0..12).map(|_| (self.next() >> 40) as f32 / (1u64 << 24) as f32).sum::<f32>() - 6.0
    }

    /// Codes of normal numbers with this mean, drawn from a few thousand of them.
    pub(super) fn codes(&mut self, count: usize, mean: f32, scale: f32) -> Vec<u8> {
        let drawn: Vec<u8> = (0..4096).map(|_| fp8::encode(Fp8Format::E4m3, (self.normal() + mean) / scale)).collect();
        (0..count).map(|_| drawn[(self.next() >> 52) as usize]).collect()
    }
}
