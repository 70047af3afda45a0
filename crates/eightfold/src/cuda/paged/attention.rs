//! Host side of `kernels/paged/attention.cu`: what is compiled, how work is cut, what is passed.

use super::argument::{CacheScales, Output, Paged, Pages, Queries, RowEnds};
use super::program::{Extras, Kind};
use super::validate::{Tables, validate};
use crate::cuda::Arch;
use crate::cuda::argument::with_extras;
use crate::cuda::compile::Program;
use crate::cuda::counts::{size, stride};
use crate::cuda::driver::{ALIGNMENT_BYTES, Device, Grid, Stream};
use crate::cuda::loaded::Loaded;
use crate::cuda::workspace::{Division, Workspace};
use crate::error::{Error, Result};
use crate::problem::{OutputFormat, Problem, Window};
use crate::serving::{PageLayout, PageScales};
use crate::tensor::{Dims, Strides};
use std::f32::consts::LOG2_E;
use std::sync::Arc;

/// Sequences whose work a block adds up; `MOST_SEQUENCES` of the device code.
const MOST_SEQUENCES: usize = 2048;

/// Head dims that the kernel is written for.
const HEAD_DIMS: &[usize] = &[64, 96, 128, 192, 256];

/// Number formats of queries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum QueryFormat {
    /// Values, which the kernel takes as they are: nothing is calibrated.
    Values(OutputFormat),
    /// FP8 codes in the cache's format, with f32 scales in `[sequence, head]` order.
    Codes,
}

/// How queries and the output lie. Rows of channels lie side by side; distances are in elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PagedQueries {
    /// What the queries are.
    pub format: QueryFormat,
    /// Where their rows are.
    pub strides: Strides,
    /// Where the output's are.
    pub output: Strides,
    /// Whether sequences differ in their number of queries, which lie one sequence behind the other: then a launch is given
    /// where each sequence begins (`cu_seqlens`), and the strides' `batch` means nothing.
    pub packed: bool,
}

impl PagedQueries {
    /// As many queries of every sequence, `[sequence, query, head, channel]`, and the output alike.
    pub fn dense(problem: &Problem, format: QueryFormat) -> Self {
        let strides = crate::tensor::Layout::Bshd.strides(problem.shape().query_dims());
        PagedQueries { format, strides, output: strides, packed: false }
    }

    /// `[query, head, channel]`, one sequence behind the other, and the output alike.
    pub fn packed(problem: &Problem, format: QueryFormat) -> Self {
        PagedQueries { packed: true, ..Self::dense(problem, format) }
    }

    /// The same with other strides of the queries, and of the output.
    #[must_use]
    pub fn with_strides(self, strides: Strides, output: Strides) -> Self {
        PagedQueries { strides, output, ..self }
    }
}

/// How keys and values lie in their pages, and how much of them shares a scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PagedKeys {
    /// The keys.
    pub k: PageLayout,
    /// The values, by rows of channels.
    pub v: PageLayout,
    /// The scales of both.
    pub scales: PageScales,
}

impl PagedKeys {
    /// Keys and values that lie alike.
    pub fn new(layout: PageLayout, scales: PageScales) -> Self {
        PagedKeys { k: layout, v: layout, scales }
    }

    /// The same with values that lie otherwise.
    #[must_use]
    pub fn with_values(self, v: PageLayout) -> Self {
        PagedKeys { v, ..self }
    }

    /// Whether kernels can copy rows from where they lie, and one block table serves both.
    pub(in crate::cuda) fn check(&self) -> Result<()> {
        let PagedKeys { k, v, .. } = self;
        let sizes = |layout: &PageLayout| [layout.pages, layout.page_size, layout.heads, layout.head_dim];
        if sizes(k) != sizes(v) {
            return Err(Error::invalid(
                "v",
                format!("has {:?} pages, tokens of a page, heads and channels, and k has {:?}", sizes(v), sizes(k)),
                "one block table serves both: give them pages alike",
            ));
        }
        for (name, layout) in [("k", k), ("v", v)] {
            layout.check()?;
            let strides = layout.strides;
            for (what, stride) in [("page", strides.page), ("token", strides.token), ("head", strides.head)] {
                if !stride.is_multiple_of(ALIGNMENT_BYTES) {
                    return Err(Error::invalid(
                        name,
                        format!("has a {what} every {stride} codes, not a multiple of {ALIGNMENT_BYTES}"),
                        "pad the cache's rows",
                    ));
                }
            }
        }
        Ok(())
    }
}

/// Where everything of a launch lies in device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PagedAddresses {
    /// The queries.
    pub q: u64,
    /// Their scales, where they are codes; else 0.
    pub q_scales: u64,
    /// The first code of the keys.
    pub k: u64,
    /// The scales of the keys, f32.
    pub k_scales: u64,
    /// The first code of the values.
    pub v: u64,
    /// The scales of the values, f32.
    pub v_scales: u64,
    /// The pages of every sequence, i32 in `[sequence, entry]` order.
    pub block_table: u64,
    /// Entries from one sequence of the block table to the next.
    pub max_pages: usize,
    /// The keys of every sequence, i32; those of the queries of this launch included.
    pub lengths: u64,
    /// Where each sequence's queries begin, and behind the last where they end, i32; 0 unless they are packed.
    pub query_starts: u64,
    /// The output.
    pub output: u64,
    /// The log-sum-exp, f32 in `[sequence, head, query]` order, or `[query, head]` where queries are packed; 0 unless the problem
    /// asks for it.
    pub lse: u64,
}

/// Attention to a cache in pages, made once for a kind of problem.
///
/// The problem says the most sequences of a launch (its batch), the most queries of a sequence, and the most keys. A sequence
/// without keys gives zeros, with a log-sum-exp of −∞.
#[derive(Debug, Clone)]
pub struct PagedAttention {
    loaded: Arc<Loaded>,
    device: Device,
    problem: Problem,
    argument: Paged,
    grid: Grid,
    early: bool,
    bytes: usize,
    zeroed_bytes: usize,
    parts: usize,
    packed: bool,
    cache: PageLayout,
    token_scales: bool,
    sinks: Option<u64>,
}

impl PagedAttention {
    /// Checks, compiles or finds, and loads what such launches need.
    pub fn new(device: &Device, problem: &Problem, queries: PagedQueries, keys: PagedKeys) -> Result<Self> {
        let arch = device.arch()?;
        let kind = kind(problem, &queries, &keys)?;
        let ring = kind.ring(arch);
        let threads = 32 * ring.warps;
        let program = kind.program(arch);
        let (loaded, blocks) = Loaded::get_fitting(device, &program, arch, threads, || "paged".into())?;
        let work = Work::new(problem, &kind, device.info().multiprocessors * blocks)?;
        let mut division = Division::default();
        division.counters(work.tickets)?;
        let parts = division.take(4 * work.slots * kind.tile_rows * kind.part_row());
        let grid = Grid {
            blocks: size("blocks", work.blocks)?.unsigned_abs(),
            threads: threads as u32,
            dynamic_shared_bytes: program.dynamic_shared_bytes,
            cluster: 1,
        };
        Ok(PagedAttention {
            loaded,
            device: device.clone(),
            problem: *problem,
            argument: argument(problem, &queries, &keys)?,
            grid,
            early: Kind::is_dependent(arch),
            bytes: division.bytes(),
            zeroed_bytes: division.zeroed_bytes(),
            parts,
            packed: queries.packed,
            cache: keys.k,
            token_scales: kind.token_scales,
            sinks: None,
        })
    }

    /// The same with the logits of the attention sinks, f32 in device memory, one for every query head: launches read them there.
    #[must_use]
    pub fn with_sinks(self, address: u64) -> Self {
        PagedAttention { sinks: Some(address), ..self }
    }

    /// The program for such launches on an architecture.
    #[doc(hidden)]
    pub fn program(problem: &Problem, queries: PagedQueries, keys: PagedKeys, arch: Arch) -> Result<Program> {
        Ok(kind(problem, &queries, &keys)?.program(arch))
    }

    /// Of the workspace.
    pub fn workspace_bytes(&self) -> usize {
        self.bytes
    }

    /// How much of it, at the front, must be zero before the first launch; every launch leaves it so.
    pub fn zeroed_bytes(&self) -> usize {
        self.zeroed_bytes
    }

    /// Puts a launch for so many sequences into the stream and returns. It allocates nothing and waits for nothing, so it may be
    /// captured into a graph; block table, lengths and starts are read when it runs.
    ///
    /// # Safety
    /// At the addresses there must be what this was made for, on its device, alive until the launch is done. Every page that a
    /// sequence's length reaches must be in the block table and in the cache. Codes and scales must be finite, and scales
    /// positive. No other work may write to what is read meanwhile, or use the output or the workspace.
    pub unsafe fn launch(
        &self,
        stream: &Stream,
        sequences: usize,
        addresses: &PagedAddresses,
        workspace: &mut Workspace,
    ) -> Result<()> {
        self.check(sequences, addresses)?;
        workspace.check(self.device.context(), self.bytes)?;
        if sequences == 0 {
            return Ok(());
        }
        let PagedAddresses { q, q_scales, k, k_scales, v, v_scales, .. } = *addresses;
        let base = workspace.pointer();
        let Paged { k: keys, v: values, q: queries, output, lse, .. } = self.argument;
        let argument = Paged {
            k: Pages { codes: k, ..keys },
            v: Pages { codes: v, ..values },
            k_scales: CacheScales { values: k_scales, ..self.argument.k_scales },
            v_scales: CacheScales { values: v_scales, ..self.argument.v_scales },
            q: Queries { values: q, scales: q_scales, ..queries },
            output: Output { values: addresses.output, ..output },
            lse: RowEnds { values: addresses.lse, ..lse },
            block_table: addresses.block_table,
            lengths: addresses.lengths,
            query_starts: addresses.query_starts,
            parts: base + self.parts as u64,
            tickets: base,
            table_stride: stride("max_pages", addresses.max_pages)?,
            sequences: size("sequences", sequences)?,
            ..self.argument
        };
        let argument = with_extras(&argument, &self.problem, self.sinks)?;
        // SAFETY: the argument is laid out as the kernel takes it (tested), and the workspace was checked; the rest is the
        // caller's word.
        unsafe { self.loaded.function().launch_at(stream, self.grid, argument.address(), self.early) }
    }

    /// Whether lengths, block table, starts and scales are sound: what a launch would read beyond the cache, and a scale that is
    /// not finite and positive, is an error that names the sequence. It looks on the device and waits for it; a launch itself
    /// checks nothing there.
    ///
    /// # Safety
    /// There must be as many entries at the addresses as the numbers of sequences and of pages say, and the scales.
    pub unsafe fn validate(
        &self,
        stream: &Stream,
        sequences: usize,
        addresses: &PagedAddresses,
        workspace: &mut Workspace,
    ) -> Result<()> {
        self.check(sequences, addresses)?;
        workspace.check(self.device.context(), self.bytes)?;
        let tables = Tables {
            block_table: addresses.block_table,
            max_pages: addresses.max_pages,
            lengths: addresses.lengths,
            query_starts: addresses.query_starts,
            sequences,
            pages: self.cache.pages,
            page_size: self.cache.page_size,
            key_starts: 0,
            k_scales: CacheScales { values: addresses.k_scales, ..self.argument.k_scales },
            v_scales: CacheScales { values: addresses.v_scales, ..self.argument.v_scales },
            q_scales: CacheScales::of_queries(&self.argument.q, addresses.q_scales),
            token_scales: self.token_scales,
        };
        let report = workspace.pointer() + self.parts as u64;
        // SAFETY: the workspace has room there; the rest is the caller's word.
        unsafe { validate(&self.device, stream, self.device.arch()?, &self.problem, &tables, report).map(|_| ()) }
    }

    fn check(&self, sequences: usize, addresses: &PagedAddresses) -> Result<()> {
        let batch = self.problem.shape().batch;
        if sequences > batch {
            return Err(Error::invalid(
                "sequences",
                format!("{sequences} are more than the {batch} that it was made for"),
                "make it for a problem with the largest batch",
            ));
        }
        let PagedAddresses { q, k, v, output, .. } = *addresses;
        for (name, address) in [("q", q), ("k", k), ("v", v), ("output", output)] {
            check_address(name, address, ALIGNMENT_BYTES)?;
        }
        for (name, address) in [
            ("k_scales", addresses.k_scales),
            ("v_scales", addresses.v_scales),
            ("block_table", addresses.block_table),
            ("lengths", addresses.lengths),
        ] {
            check_address(name, address, 4)?;
        }
        let sinks = self.sinks.unwrap_or(0);
        let wanted = [
            ("sinks", sinks, self.problem.has_sinks(), "the problem has them (PagedAttention::with_sinks)"),
            ("q_scales", addresses.q_scales, self.argument.q.scale_head_stride != 0, "queries are FP8 codes"),
            ("query_starts", addresses.query_starts, self.packed, "queries are packed"),
            ("lse", addresses.lse, self.problem.lse(), "the problem asks for the log-sum-exp"),
        ];
        for (name, address, is_wanted, when) in wanted {
            match (address, is_wanted) {
                (0, false) => {}
                (_, true) => check_address(name, address, 4)?,
                (_, false) => {
                    return Err(Error::invalid(
                        name,
                        format!("is given, but it is for where {when}"),
                        "pass 0, or make the call for it",
                    ));
                }
            }
        }
        let pages = self.problem.shape().key_len.div_ceil(self.cache.page_size);
        if addresses.max_pages < pages {
            return Err(Error::invalid(
                "max_pages",
                format!(
                    "{} entries do not reach the {} keys that it was made for",
                    addresses.max_pages,
                    self.problem.shape().key_len
                ),
                format!("give {pages} entries a sequence, or make it for fewer keys"),
            ));
        }
        Ok(())
    }
}

pub(in crate::cuda) fn check_address(name: &str, address: u64, alignment: usize) -> Result<()> {
    if address == 0 || !address.is_multiple_of(alignment as u64) {
        return Err(Error::invalid(
            name,
            format!("address {address:#x} is null or no multiple of {alignment} bytes"),
            "pass the address of the tensor in device memory, contiguous from there",
        ));
    }
    Ok(())
}

/// What is compiled, if the kernel is written for it.
fn kind(problem: &Problem, queries: &PagedQueries, keys: &PagedKeys) -> Result<Kind> {
    let shape = problem.shape();
    let value_dim = problem.value_dims().head_dim;
    if value_dim != shape.head_dim {
        return Err(Error::unavailable(
            "the paged kernel",
            format!("V has {value_dim} channels where Q and K have {}", shape.head_dim),
            "pad V's rows, or attend on the CPU (eightfold::attention)",
        ));
    }
    if !HEAD_DIMS.contains(&shape.head_dim) {
        return Err(Error::unavailable(
            "the paged kernel",
            format!("it is written for head dims {HEAD_DIMS:?}, not {}", shape.head_dim),
            "attend on the CPU (eightfold::serving)",
        ));
    }
    let layout = &keys.k;
    if (layout.heads, layout.head_dim) != (shape.kv_heads, shape.head_dim) {
        return Err(Error::invalid(
            "k",
            format!(
                "has {} heads of {} channels, but the problem needs {} of {}",
                layout.heads, layout.head_dim, shape.kv_heads, shape.head_dim
            ),
            "give cache and problem the same heads",
        ));
    }
    keys.check()?;
    let elements = match queries.format {
        QueryFormat::Codes => ALIGNMENT_BYTES,
        QueryFormat::Values(OutputFormat::F32) => 4,
        QueryFormat::Values(_) => 8,
    };
    let (dims, rows) = (shape.query_dims(), shape.group() * shape.query_len);
    check_rows("q", dims, queries.strides, elements)?;
    check_rows("output", dims, queries.output, if problem.output_format() == OutputFormat::F32 { 4 } else { 8 })?;
    Ok(Kind {
        head_dim: shape.head_dim,
        mask: problem.mask(),
        extras: Extras {
            window: problem.window() != Window::default(),
            softcap: problem.softcap().is_some(),
            sinks: problem.has_sinks(),
        },
        cache: problem.input_format(),
        queries: match queries.format {
            QueryFormat::Values(format) => Some(format),
            QueryFormat::Codes => None,
        },
        output: problem.output_format(),
        token_scales: matches!(keys.scales, PageScales::Token(_)),
        gather: !keys.k.page_size.is_multiple_of(16),
        fixed_cuts: problem.is_batch_invariant(),
        tile_rows: match rows {
            0..=8 => 8,
            17.. if shape.head_dim <= 128 => 32,
            _ => 16,
        },
    })
}

/// Whether rows can be read and written 16 bytes at a time.
pub(in crate::cuda) fn check_rows(name: &str, dims: Dims, strides: Strides, elements: usize) -> Result<()> {
    if strides.channel != 1 {
        return Err(Error::invalid(
            name,
            format!("its channels are {} elements apart", strides.channel),
            "let the channels of a row lie side by side",
        ));
    }
    let used =
        [("batch", dims.batch, strides.batch), ("head", dims.heads, strides.head), ("row", dims.len, strides.row)];
    for (what, _, stride) in used.into_iter().filter(|(_, count, _)| *count > 1) {
        if !stride.is_multiple_of(elements) {
            return Err(Error::invalid(
                name,
                format!("its {what} stride of {stride} elements is not a multiple of 16 bytes"),
                "pad its rows, or make it contiguous",
            ));
        }
    }
    Ok(())
}

/// How the work is cut, at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Work {
    blocks: usize,
    /// Places for parts.
    slots: usize,
    tickets: usize,
}

impl Work {
    fn new(problem: &Problem, kind: &Kind, resident: usize) -> Result<Work> {
        let shape = problem.shape();
        if shape.batch > MOST_SEQUENCES {
            return Err(Error::invalid(
                "batch",
                format!("{} sequences are more than the {MOST_SEQUENCES} that a launch takes", shape.batch),
                "launch twice, with half of them each",
            ));
        }
        let row_tiles = (shape.query_len * shape.group()).div_ceil(kind.tile_rows);
        let units = shape.batch * shape.kv_heads * row_tiles * shape.key_len.div_ceil(kind.unit_keys()).max(1);
        // The device counts them in 32 bits.
        size("units of work", units)?;
        let blocks = resident.min(units).max(1);
        let slots = if kind.fixed_cuts { units } else { 2 * blocks };
        Ok(Work { blocks, slots, tickets: 2 * slots })
    }
}

/// Where keys or values lie, but for the address.
pub(in crate::cuda) fn pages(layout: &PageLayout) -> Result<Pages> {
    Ok(Pages {
        codes: 0,
        page_stride: stride("strides", layout.strides.page)?,
        head_stride: stride("strides", layout.strides.head)?,
        token_stride: stride("strides", layout.strides.token)?,
    })
}

/// How scales are found, but for the address.
pub(in crate::cuda) fn scales(keys: &PagedKeys) -> Result<CacheScales> {
    let none =
        CacheScales { values: 0, page_stride: 0, sequence_stride: 0, token_stride: 0, head_stride: 0, unused: 0 };
    Ok(match keys.scales {
        PageScales::Tensor => none,
        PageScales::Head => CacheScales { head_stride: 1, ..none },
        PageScales::Sequence => CacheScales { head_stride: 1, sequence_stride: size("heads", keys.k.heads)?, ..none },
        PageScales::Token(strides) => CacheScales {
            page_stride: stride("scales", strides.page)?,
            token_stride: size("scales", strides.token)?,
            head_stride: size("scales", strides.head)?,
            ..none
        },
    })
}

/// What is passed, but for addresses.
fn argument(problem: &Problem, queries: &PagedQueries, keys: &PagedKeys) -> Result<Paged> {
    let shape = problem.shape();
    let row = |strides: Strides, packed: bool| -> Result<[i64; 3]> {
        let batch = if packed { 0 } else { strides.batch };
        Ok([stride("strides", batch)?, stride("strides", strides.head)?, stride("strides", strides.row)?])
    };
    let codes = queries.format == QueryFormat::Codes;
    let heads = size("query_heads", shape.query_heads)?;
    let [q_sequence, q_head, q_token] = row(queries.strides, queries.packed)?;
    let [out_sequence, out_head, out_token] = row(queries.output, queries.packed)?;
    // Where queries are packed the number of all rows is known at the launch alone, so that heads are behind rows there.
    let (lse_sequence, lse_head, lse_token) = match queries.packed {
        true => (0, 1, i64::from(heads)),
        false => (stride("lse", shape.query_heads * shape.query_len)?, stride("lse", shape.query_len)?, 1),
    };
    Ok(Paged {
        k: pages(&keys.k)?,
        v: pages(&keys.v)?,
        k_scales: scales(keys)?,
        v_scales: scales(keys)?,
        q: Queries {
            values: 0,
            sequence_stride: q_sequence,
            token_stride: q_token,
            head_stride: q_head,
            scales: 0,
            scale_sequence_stride: if codes { heads } else { 0 },
            scale_head_stride: i32::from(codes),
        },
        output: Output {
            values: 0,
            sequence_stride: out_sequence,
            head_stride: out_head,
            token_stride: out_token,
            unused: 0,
        },
        lse: RowEnds { values: 0, sequence_stride: lse_sequence, head_stride: lse_head, token_stride: lse_token },
        block_table: 0,
        lengths: 0,
        query_starts: 0,
        parts: 0,
        tickets: 0,
        table_stride: 0,
        sequences: 0,
        query_heads: heads,
        kv_heads: size("kv_heads", shape.kv_heads)?,
        query_len: size("query_len", shape.query_len)?,
        group: size("group", shape.group())?,
        page_tokens: size("page_size", keys.k.page_size)?,
        scale_log2: problem.softmax_scale() * LOG2_E,
        unused: 0,
    })
}
