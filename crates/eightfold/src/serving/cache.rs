//! A cache of this library's own.

use super::aligned::AlignedCodes;
use super::append::{AppendScales, PagedTensorMut};
use super::attend::{KeyValues, attention};
use super::layout::{PageLayout, PageScales, PageStrides};
use super::pages::PagedTensor;
use super::pool::{Pool, Sequence};
use super::table::{BlockTable, Packed};
use crate::error::{Error, Result};
use crate::fp8::Element;
use crate::output::Output;
use crate::problem::Problem;
use crate::tensor::{Fp8Format, Fp8Tensor};

/// Keys and values of growing sequences in host memory, quantised to E4M3 as they come, with a scale for each token and head.
///
/// How a page is laid out is the cache's own affair. The [module](super) has an example.
#[derive(Debug, Clone)]
pub struct KvCache {
    layout: PageLayout,
    /// Where the scales of a page lie.
    scale_strides: PageStrides,
    /// K, then V.
    tensors: [Memory; 2],
    pool: Pool,
}

#[derive(Debug, Clone)]
struct Memory {
    codes: AlignedCodes,
    scales: Vec<f32>,
}

/// The format of the codes: what `Problem::new` asks for.
const FORMAT: Fp8Format = Fp8Format::E4m3;

impl KvCache {
    /// An empty cache of so many pages of so many tokens, each of `kv_heads` heads of `head_dim` channels. Pages of a multiple of
    /// 16 tokens are read fastest.
    pub fn new(pages: usize, page_size: usize, kv_heads: usize, head_dim: usize) -> Result<Self> {
        // The tokens of a head lie together: whoever reads them reads one head at a time.
        let layout = PageLayout::hnd(pages, page_size, kv_heads, head_dim);
        let count = layout.check()?;
        let memory = || Memory { codes: AlignedCodes::new(0, count), scales: vec![1.0; count / head_dim] };
        Ok(KvCache {
            layout,
            scale_strides: PageStrides::new(kv_heads * page_size, 1, page_size),
            tensors: [memory(), memory()],
            pool: Pool::new(pages, page_size),
        })
    }

    /// A new sequence, without tokens.
    pub fn open(&mut self) -> Sequence {
        self.pool.open()
    }

    /// Forgets a sequence and frees its pages. Its number may be given to a later one.
    pub fn close(&mut self, sequence: Sequence) -> Result<()> {
        self.pool.close(sequence)
    }

    /// The tokens of a sequence.
    pub fn len_of(&self, sequence: Sequence) -> Result<usize> {
        self.pool.len_of(sequence)
    }

    /// Pages that no sequence has.
    pub fn free_pages(&self) -> usize {
        self.pool.free_pages()
    }

    /// Quantises the keys and values of a sequence's next tokens, both `[token, head, channel]`. Where anything is wrong nothing
    /// is appended.
    pub fn append<T: Element>(&mut self, sequence: Sequence, k: &[T], v: &[T]) -> Result<()> {
        let PageLayout { heads, head_dim, .. } = self.layout;
        if k.len() != v.len() || !k.len().is_multiple_of(heads * head_dim) {
            return Err(Error::invalid(
                "k",
                format!("has {} values and v has {}, for {heads} heads of {head_dim}", k.len(), v.len()),
                "give [token, head, channel] values of the same tokens",
            ));
        }
        let growing = [(sequence, k.len() / (heads * head_dim))];
        let slots = self.pool.slots(&growing)?;
        for (Memory { codes, scales }, values) in self.tensors.iter_mut().zip([k, v]) {
            let scales = AppendScales::Computed { scales, strides: self.scale_strides };
            PagedTensorMut::new(self.layout, FORMAT, codes)?.append(values, &slots, scales)?;
        }
        self.pool.take(&growing)
    }

    /// Attention of queries to these sequences, as [`attention`].
    pub fn attention(
        &self,
        problem: &Problem,
        q: &Fp8Tensor,
        queries: &Packed,
        sequences: &[Sequence],
    ) -> Result<Output> {
        let rows: Vec<&[i32]> = sequences.iter().map(|one| self.pool.pages_of(*one)).collect::<Result<_>>()?;
        let lengths: Vec<i32> =
            sequences.iter().map(|one| self.pool.len_of(*one).map(|len| len as i32)).collect::<Result<_>>()?;
        let max_pages = rows.iter().map(|pages| pages.len()).max().unwrap_or(0);
        let unused = |pages: &[i32]| std::iter::repeat_n(-1, max_pages - pages.len());
        let pages: Vec<i32> = rows.iter().flat_map(|pages| pages.iter().copied().chain(unused(pages))).collect();
        let table = BlockTable::new(&pages, max_pages, &lengths)?;
        let scales = PageScales::Token(self.scale_strides);
        let [k, v] = self
            .tensors
            .each_ref()
            .map(|Memory { codes, scales: values }| PagedTensor::new(self.layout, FORMAT, codes, scales, values));
        attention(problem, q, queries, KeyValues::Paged { k: &k?, v: &v?, table: &table })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_begin_a_cache_line_and_in_a_copy_too() {
        let mut cache = KvCache::new(9, 16, 2, 64).unwrap();
        let sequence = cache.open();
        let values: Vec<f32> = (0..20 * 2 * 64).map(|index| (index as f32).sin()).collect();
        cache.append(sequence, &values, &values).unwrap();
        let copy = cache.clone();
        for (one, other) in cache.tensors.iter().zip(&copy.tensors) {
            assert_eq!((one.codes.as_ptr().align_offset(64), other.codes.as_ptr().align_offset(64)), (0, 0));
            assert!(one.codes[..] == other.codes[..] && one.codes.iter().any(|code| *code != 0));
        }
    }
}
