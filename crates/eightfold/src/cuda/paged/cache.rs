//! A cache of this library's own in device memory.

use super::append::{AppendAddresses, PagedAppend};
use super::attention::{PagedAddresses, PagedKeys};
use crate::cuda::driver::{Buffer, Device, Stream};
use crate::error::{Error, Result};
use crate::problem::OutputFormat;
use crate::serving::{PageLayout, PageScales, PageStrides, Pool, Sequence};
use crate::tensor::{Fp8Format, Strides};

/// Keys and values of growing sequences in device memory, quantised to E4M3 as they come, with a scale for each token and head.
///
/// It owns its memory, hands out pages, and keeps block table and lengths where kernels find them: at addresses that stay the
/// same, so that a graph may be replayed after they changed. How a page is laid out is the cache's own affair.
#[derive(Debug)]
pub struct KvCache {
    device: Device,
    keys: PagedKeys,
    pool: Pool,
    /// Codes, and scales.
    k: [Buffer; 2],
    v: [Buffer; 2],
    table: Buffer,
    lengths: Buffer,
    slots: Buffer,
    limits: CacheLimits,
}

/// The most that a [`KvCache`] is asked at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheLimits {
    /// Sequences of a launch.
    pub sequences: usize,
    /// Tokens of a sequence.
    pub tokens: usize,
    /// Tokens that are appended together.
    pub appended: usize,
}

/// The format of the codes: what `Problem::new` asks for.
const FORMAT: Fp8Format = Fp8Format::E4m3;

impl KvCache {
    /// An empty cache of so many pages of so many tokens, each of `kv_heads` heads of `head_dim` channels. Pages of a multiple of
    /// 16 tokens are read fastest.
    pub fn new(
        stream: &Stream,
        pages: usize,
        page_size: usize,
        [kv_heads, head_dim]: [usize; 2],
        limits: CacheLimits,
    ) -> Result<Self> {
        // The tokens of a head lie together: a block reads one head at a time.
        let layout = PageLayout::hnd(pages, page_size, kv_heads, head_dim);
        let count = layout.check()?;
        let scales = PageScales::Token(PageStrides::new(kv_heads * page_size, 1, page_size));
        let keys = PagedKeys::new(layout, scales);
        keys.check()?;
        let device = stream.device();
        let zeroed = |bytes: usize| -> Result<Buffer> {
            let buffer = device.allocate(bytes.max(16))?;
            buffer.fill(stream, 0)?;
            Ok(buffer)
        };
        let memory = || -> Result<[Buffer; 2]> { Ok([zeroed(count)?, zeroed(4 * (count / head_dim))?]) };
        let entries = limits.sequences.saturating_mul(limits.tokens.div_ceil(page_size));
        Ok(KvCache {
            device: device.clone(),
            keys,
            pool: Pool::new(pages, page_size),
            k: memory()?,
            v: memory()?,
            table: zeroed(entries.saturating_mul(4))?,
            lengths: zeroed(limits.sequences.saturating_mul(4))?,
            slots: zeroed(limits.appended.saturating_mul(8))?,
            limits,
        })
    }

    /// How its keys and values lie: what [`PagedAttention::new`](super::PagedAttention::new) is to be told.
    pub fn keys(&self) -> PagedKeys {
        self.keys
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

    /// Quantises the next tokens of each sequence into their pages, in one launch: `k` and `v` are the addresses of
    /// `[token, head, channel]` values of this format, one sequence behind the other. It waits until the slots of the tokens are
    /// on the device, and for nothing else. Where anything is wrong nothing is appended.
    ///
    /// # Safety
    /// There must be as many values at the addresses, finite, on the cache's device, alive until the launch is done. All launches
    /// on this cache must be in one stream, or ordered as if they were.
    pub unsafe fn append(
        &mut self,
        stream: &Stream,
        growing: &[(Sequence, usize)],
        values: OutputFormat,
        [k, v]: [u64; 2],
    ) -> Result<()> {
        let slots = self.pool.slots(growing)?;
        if slots.len() > self.limits.appended {
            return Err(Error::invalid(
                "tokens",
                format!("{} are more than the {} that the cache was made for", slots.len(), self.limits.appended),
                "append fewer together, or make the cache with larger limits",
            ));
        }
        for (sequence, count) in growing {
            let len = self.pool.len_of(*sequence)? + count;
            if len > self.limits.tokens {
                return Err(Error::invalid(
                    "tokens",
                    format!("a sequence would have {len}, and the cache was made for {}", self.limits.tokens),
                    "make the cache with larger limits",
                ));
            }
        }
        let PageLayout { heads, head_dim, .. } = self.keys.k;
        let rows = Strides::new(0, head_dim, heads * head_dim, 1);
        let append = PagedAppend::new(&self.device, self.keys, FORMAT, values, [rows; 2])?;
        self.slots.upload(stream, &slots)?;
        let addresses = AppendAddresses {
            k,
            v,
            slots: self.slots.pointer(),
            k_cache: self.k[0].pointer(),
            v_cache: self.v[0].pointer(),
            k_scales: self.k[1].pointer(),
            v_scales: self.v[1].pointer(),
        };
        // SAFETY: slots are pages of this cache, which outlives its launches by the caller's word, as do the values.
        unsafe { append.launch(stream, slots.len(), &addresses)? };
        self.pool.take(growing)
    }

    /// Brings block table and lengths of these sequences to the device, and says where a launch finds them and the cache; queries
    /// and output are for the caller to fill in. It waits until they are there.
    ///
    /// ```no_run
    /// # use eightfold::cuda::paged::{KvCache, PagedAddresses};
    /// # fn f(cache: &mut KvCache, stream: &eightfold::cuda::driver::Stream, q: u64, output: u64) -> eightfold::Result<()> {
    /// let sequence = cache.open();
    /// let addresses = PagedAddresses { q, output, ..cache.addresses(stream, &[sequence])? };
    /// # Ok(())
    /// # }
    /// ```
    pub fn addresses(&mut self, stream: &Stream, sequences: &[Sequence]) -> Result<PagedAddresses> {
        if sequences.len() > self.limits.sequences {
            return Err(Error::invalid(
                "sequences",
                format!("{} are more than the {} that the cache was made for", sequences.len(), self.limits.sequences),
                "make the cache with larger limits",
            ));
        }
        let max_pages = self.limits.tokens.div_ceil(self.keys.k.page_size);
        let (mut table, mut lengths) = (vec![-1; sequences.len() * max_pages], Vec::with_capacity(sequences.len()));
        for (index, sequence) in sequences.iter().enumerate() {
            let pages = self.pool.pages_of(*sequence)?;
            table[index * max_pages..][..pages.len()].copy_from_slice(pages);
            lengths.push(self.pool.len_of(*sequence)? as i32);
        }
        self.table.upload(stream, &table)?;
        self.lengths.upload(stream, &lengths)?;
        Ok(PagedAddresses {
            q: 0,
            q_scales: 0,
            k: self.k[0].pointer(),
            k_scales: self.k[1].pointer(),
            v: self.v[0].pointer(),
            v_scales: self.v[1].pointer(),
            block_table: self.table.pointer(),
            max_pages,
            lengths: self.lengths.pointer(),
            query_starts: 0,
            output: 0,
            lse: 0,
        })
    }
}
