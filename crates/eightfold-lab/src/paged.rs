//! The same problem as a server poses it: Q packed, K and V in the pages of a cache.

use crate::gates::Subject;
use eightfold::lab::{AlignedCodes, cpu, serving_attention_with};
use eightfold::serving::{BlockTable, KeyValues, Packed, PageLayout, PageScales, PageStrides, PagedTensor};
use eightfold::{
    Dims, Error, Fp8Tensor, Granularity, Layout, Output, Problem, Result, RunReport, Scales, Values, Variant,
};

/// Tensors of a problem, moved into pages in an order that no hardware guesses.
#[derive(Debug, Clone)]
pub struct Paged {
    problem: Problem,
    q: Fp8Tensor<'static>,
    offsets: Vec<i32>,
    layout: PageLayout,
    /// Codes and scales of K, then of V.
    tensors: [Tensor; 2],
    table: Vec<i32>,
    lengths: Vec<i32>,
}

#[derive(Debug, Clone)]
struct Tensor {
    codes: AlignedCodes,
    granularity: PageScales,
    scales: Vec<f32>,
}

impl Paged {
    /// Moves tensors into pages of so many tokens, code by code.
    pub fn new(problem: &Problem, q: &Fp8Tensor, k: &Fp8Tensor, v: &Fp8Tensor, page_size: usize) -> Result<Self> {
        let shape = problem.shape();
        if page_size == 0 {
            return Err(Error::invalid("pages", "of 0 tokens hold nothing", "give at least 1 token per page"));
        }
        if k.means().is_some() || v.means().is_some() {
            return Err(Error::invalid("pages", "hold no centred tensors", "quantise without centring"));
        }
        let per_sequence = shape.key_len.div_ceil(page_size);
        let table = shuffled(shape.batch * per_sequence);
        let layout = PageLayout::nhd(table.len(), page_size, shape.kv_heads, shape.head_dim);
        let tensor = |tensor: &Fp8Tensor| Tensor::new(tensor, &layout, &table);
        Ok(Paged {
            problem: *problem,
            q: packed(q)?,
            offsets: (0..=shape.batch).map(|sequence| (sequence * shape.query_len) as i32).collect(),
            tensors: [tensor(k), tensor(v)],
            lengths: vec![shape.key_len as i32; shape.batch],
            layout,
            table,
        })
    }

    /// Computes attention; the output's rows are packed as those of Q.
    pub fn run(&self, config: &cpu::Config, output: &mut Output) -> Result<RunReport> {
        let [k, v] = self.tensors.each_ref().map(|Tensor { codes, granularity, scales }| {
            PagedTensor::new(self.layout, self.q.format(), codes, *granularity, scales)
        });
        let table = BlockTable::new(&self.table, self.table.len() / self.lengths.len(), &self.lengths)?;
        let (k, v, queries) = (k?, v?, Packed::new(&self.offsets)?);
        let keys = KeyValues::Paged { k: &k, v: &v, table: &table };
        serving_attention_with(config, &self.problem, &self.q, &queries, keys, output)
    }

    /// The codes of K and of V in each page, in the order of the table, as far as tokens go.
    pub fn codes(&self) -> impl Iterator<Item = [&[u8]; 2]> {
        let PageLayout { page_size, strides, .. } = self.layout;
        let per_sequence = self.table.len() / self.lengths.len();
        self.table.iter().enumerate().map(move |(index, page)| {
            let (sequence, before) = (index / per_sequence, index % per_sequence * page_size);
            let tokens = page_size.min(self.lengths[sequence] as usize - before);
            // The heads of a token lie side by side, and the tokens of a page.
            self.tensors
                .each_ref()
                .map(|tensor| &tensor.codes[*page as usize * strides.page..][..tokens * strides.token])
        })
    }

    /// A packed output in the problem's own order.
    pub fn unpacked(&self, packed: &Output) -> Output {
        let mut output = packed.clone();
        let dims = self.problem.shape().query_dims();
        // With heads inside rows, packed rows follow each other as they do anyway.
        if self.problem.output_layout() != Layout::Bshd {
            match (&packed.values, &mut output.values) {
                (Values::F32(from), Values::F32(to)) => unpack(from, to, dims, dims.head_dim),
                (Values::F16(from), Values::F16(to)) => unpack(from, to, dims, dims.head_dim),
                (Values::Bf16(from), Values::Bf16(to)) => unpack(from, to, dims, dims.head_dim),
                _ => {}
            }
        }
        if let (Some(from), Some(to)) = (&packed.lse, &mut output.lse) {
            unpack(from, to, dims, 1);
        }
        output
    }
}

/// Rows of `[head, sequence, row]` in `[sequence, head, row]` order.
fn unpack<T: Copy>(from: &[T], to: &mut [T], dims: Dims, width: usize) {
    let run = dims.len * width;
    for (index, to) in to.chunks_mut(run).enumerate() {
        let (batch, head) = (index / dims.heads, index % dims.heads);
        to.copy_from_slice(&from[(head * dims.batch + batch) * run..][..run]);
    }
}

/// Q as one tensor of batch 1, with a scale for every row of a head.
fn packed(q: &Fp8Tensor) -> Result<Fp8Tensor<'static>> {
    let (dims, strides) = (q.dims(), q.strides());
    let rows = || (0..dims.batch).flat_map(move |batch| (0..dims.len).map(move |row| (batch, row)));
    let mut codes = Vec::with_capacity(dims.count());
    for (batch, row) in rows() {
        for head in 0..dims.heads {
            codes.extend_from_slice(&q.codes()[strides.row_offset(batch, head, row)..][..dims.head_dim]);
        }
    }
    let of_head = |head| rows().map(move |(batch, row)| q.scales().of_row(dims, batch, head, row));
    let scales = Scales::new(Granularity::Block { rows: 1 }, (0..dims.heads).flat_map(of_head).collect())?;
    let packed = Dims::new(1, dims.heads, dims.batch * dims.len, dims.head_dim);
    Fp8Tensor::new(packed, Layout::Bshd, q.format(), codes, scales)
}

impl Tensor {
    fn new(tensor: &Fp8Tensor, layout: &PageLayout, table: &[i32]) -> Self {
        let (dims, strides, scales) = (tensor.dims(), tensor.strides(), tensor.scales());
        let PageLayout { page_size, heads, .. } = *layout;
        let PageStrides { page, token, head, .. } = layout.strides;
        let scale_strides = PageStrides::new(page_size * heads, heads, 1);
        let per_token = !matches!(scales.granularity(), Granularity::Tensor | Granularity::Head);
        // What nobody wrote is no number.
        let mut codes = AlignedCodes::new(0x7f, table.len() * page);
        let mut of_tokens = vec![f32::NAN; if per_token { table.len() * page_size * heads } else { 0 }];
        for batch in 0..dims.batch {
            let pages = &table[batch * table.len() / dims.batch..];
            for row in 0..dims.len {
                let (in_page, place) = (pages[row / page_size] as usize, row % page_size);
                for kv_head in 0..heads {
                    let from = strides.row_offset(batch, kv_head, row);
                    let to = in_page * page + place * token + kv_head * head;
                    for (channel, code) in codes[to..][..dims.head_dim].iter_mut().enumerate() {
                        *code = tensor.codes()[from + channel * strides.channel];
                    }
                    if per_token {
                        of_tokens[(in_page * page_size + place) * heads + kv_head] =
                            scales.of_row(dims, batch, kv_head, row);
                    }
                }
            }
        }
        let (granularity, scales) = match scales.granularity() {
            Granularity::Tensor => (PageScales::Tensor, scales.values().to_vec()),
            Granularity::Head => (PageScales::Sequence, scales.values().to_vec()),
            _ => (PageScales::Token(scale_strides), of_tokens),
        };
        Tensor { codes, granularity, scales }
    }
}

/// 0 to `count` − 1 in an order that is always the same and looks random.
fn shuffled(count: usize) -> Vec<i32> {
    let mut order: Vec<i32> = (0..count as i32).collect();
    let mut state = 1u64;
    for last in (1..count).rev() {
        // Knuth's generator, whose high bits look random enough.
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        order.swap(last, (state >> 33) as usize % (last + 1));
    }
    order
}

/// A variant that reads K and V from pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PagedVariant {
    /// The variant.
    pub variant: Variant,
    /// Tokens of a page.
    pub page_size: usize,
}

impl Subject for PagedVariant {
    fn name(&self) -> String {
        format!("{} from pages of {}", self.variant, self.page_size)
    }

    fn run(
        &mut self,
        problem: &Problem,
        q: &Fp8Tensor,
        k: &Fp8Tensor,
        v: &Fp8Tensor,
        output: &mut Output,
    ) -> Result<RunReport> {
        let paged = Paged::new(problem, q, k, v, self.page_size)?;
        let report = paged.run(&self.variant.on_cpu()?, output)?;
        *output = paged.unpacked(output);
        Ok(report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gates::{Outcome, ReferencePolicy, Thresholds, check, odd};
    use std::collections::BTreeSet;

    #[test]
    fn pages_are_in_no_order_and_none_is_missing() {
        let order = shuffled(100);
        assert_eq!(order.iter().copied().collect::<BTreeSet<_>>(), (0..100).collect());
        let neighbours = order.windows(2).filter(|pair| pair[1] == pair[0] + 1).count();
        assert!(neighbours < 10, "{neighbours} pages follow their neighbour");
    }

    #[test]
    fn codes_of_pages_are_those_of_the_tensor_and_begin_a_cache_line() {
        let problem = Problem::new("2,4,1,2,21,64".parse().unwrap()).unwrap();
        let dims = problem.shape().key_dims();
        let scales = || Scales::per_tensor(1.0).unwrap();
        let tensor = |first: usize| {
            // No code is NaN's.
            let codes = (0..dims.count()).map(|index| ((first + index * 7) % 120) as u8).collect::<Vec<_>>();
            Fp8Tensor::new(dims, Layout::Bshd, problem.input_format(), codes, scales()).unwrap()
        };
        let (k, v) = (tensor(0), tensor(1));
        let q_dims = problem.shape().query_dims();
        let q_codes = vec![56; q_dims.count()];
        let q = Fp8Tensor::new(q_dims, Layout::Bshd, problem.input_format(), q_codes, scales()).unwrap();
        let paged = Paged::new(&problem, &q, &k, &v, 16).unwrap();
        let joined = |which: usize| paged.codes().flat_map(|codes| codes[which].to_vec()).collect::<Vec<u8>>();
        // Tokens follow each other in the order of the table, all heads of each, as in this layout of tensors.
        assert!(joined(0) == k.codes() && joined(1) == v.codes());
        let copy = paged.clone();
        for tensor in paged.tensors.iter().chain(&copy.tensors) {
            assert_eq!(tensor.codes.as_ptr().align_offset(64), 0);
        }
    }

    /// Some of the odd sweep: every format, layout, mask and kind of scales comes up.
    #[test]
    fn odd_problems_from_pages_pass_the_gate() {
        let thresholds = Thresholds::embedded();
        let policy: ReferencePolicy = thresholds.correctness.reference;
        let small = |case: &odd::SweepCase| case.problem.shape().query_len < 140;
        let sweep: Vec<_> = odd::sweep().unwrap().into_iter().filter(small).step_by(3).collect();
        let cases = odd::prepare_all(&sweep, &policy).unwrap();
        for (variant, page_size) in [("cpu:queue", 16), ("cpu:numbers=i16,simd=portable", 1)] {
            let variant = variant.parse().unwrap();
            let tolerance = thresholds.tolerance(&variant);
            let report = check(&mut PagedVariant { variant, page_size }, &cases, tolerance, &thresholds);
            assert_eq!(report.gate.outcome, Outcome::Pass, "{}", report.gate.summary);
        }
    }
}
