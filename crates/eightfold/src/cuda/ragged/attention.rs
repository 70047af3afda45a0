//! Host side of `kernels/ragged/`, and of the hopper kernel behind it.

use super::argument::Ragged;
use super::keys::{KeyAddresses, RaggedKeys};
use crate::cuda::Arch;
use crate::cuda::argument::{OutputRows, with_extras};
use crate::cuda::compile::Program;
use crate::cuda::counts::{size, stride};
use crate::cuda::driver::{ALIGNMENT_BYTES, Device, Grid, Stream};
use crate::cuda::family::{self, check_extras, refuse_int8};
use crate::cuda::hopper::launch::argument::{Attention, Gathered, RaggedLaunch};
use crate::cuda::hopper::{self, Config};
use crate::cuda::loaded::Loaded;
use crate::cuda::paged::argument::{CacheScales, Pages, Queries};
use crate::cuda::paged::attention::{check_address, check_rows};
use crate::cuda::paged::program::{Extras, number, shared_settings};
use crate::cuda::paged::validate::{Tables, Totals, validate};
use crate::cuda::paged::{PagedQueries, QueryFormat};
use crate::cuda::specialisation::{Specialisation, settings};
use crate::cuda::workspace::{Division, Workspace};
use crate::error::{Error, Result};
use crate::problem::{Accuracy, OutputFormat, Problem, Window};
use crate::tensor::{Fp8Format, Granularity};
use crate::variant::Variant;
use std::sync::Arc;

/// The head dims that keys are gathered for.
const HEAD_DIMS: &[usize] = &[64, 128];

/// Sequences whose rows one block finds; `MOST_SEQUENCES` of the device code.
const MOST_SEQUENCES: usize = 2048;

/// Keys that are gathered at a time, and where every sequence's begin at a multiple of; `BLOCK_ROWS` of the device code.
const BLOCK_ROWS: usize = 128;

/// Threads of a block of the plan, and of one that gathers.
const PLAN_THREADS: u32 = 256;
const GATHER_THREADS: u32 = 128;

/// Blocks that gather, of each multiprocessor: enough to keep memory busy.
const GATHERING: usize = 8;

/// By how many different numbers of keys tiles are ordered; `BUCKETS` of the device code.
const BUCKETS: usize = 256;

/// How many rows all sequences of a launch have together, at most: by that memory is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RaggedRows {
    /// Of queries.
    pub queries: usize,
    /// Of keys.
    pub keys: usize,
}

impl RaggedRows {
    /// As many as a problem allows: of every sequence the most.
    pub fn of(problem: &Problem) -> Self {
        let shape = problem.shape();
        RaggedRows {
            queries: shape.batch.saturating_mul(shape.query_len),
            keys: shape.batch.saturating_mul(shape.key_len),
        }
    }
}

/// Where everything of a launch lies in device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RaggedAddresses {
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
    /// Which tokens are whose.
    pub keys: KeyAddresses,
    /// Where each sequence's queries begin, and behind the last where they end, i32; 0 unless they are packed.
    pub query_starts: u64,
    /// The output.
    pub output: u64,
    /// The log-sum-exp, f32 in `[sequence, head, query]` order, or `[query, head]` where queries are packed; 0 unless the problem
    /// asks for it.
    pub lse: u64,
}

/// Places in the workspace, behind its counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Places {
    sequences: usize,
    tile_order: usize,
    blocks: usize,
    scales: usize,
    q: usize,
    q_scales: usize,
    k: usize,
    v: usize,
}

/// Attention to sequences of different lengths, made once for a kind of problem.
///
/// The problem says the most sequences of a launch (its batch), the most queries of a sequence, and the most keys. A sequence
/// without keys gives zeros, with a log-sum-exp of −∞. Queries are rounded to FP8, a scale for each token and head, by a power of
/// two where they are codes already.
#[derive(Debug, Clone)]
pub struct RaggedAttention {
    device: Device,
    problem: Problem,
    config: Config,
    keys: RaggedKeys,
    queries: PagedQueries,
    plan: Arc<Loaded>,
    gather: Arc<Loaded>,
    main: Arc<Loaded>,
    argument: Ragged,
    main_blocks: usize,
    places: Places,
    bytes: usize,
    query_rows: usize,
    key_rows: usize,
    keys_in_all: usize,
    sinks: Option<u64>,
}

impl RaggedAttention {
    /// Checks, compiles or finds, and loads what such launches need.
    pub fn new(
        device: &Device,
        problem: &Problem,
        queries: PagedQueries,
        keys: RaggedKeys,
        rows: RaggedRows,
    ) -> Result<Self> {
        check(problem, &queries)?;
        let arch = target(device.arch()?)?;
        let shape = problem.shape();
        let config = hopper::for_ragged(problem);
        let (k, v, scales) = keys.lie(problem)?;
        let multiprocessors = device.info().multiprocessors;
        let plan = Loaded::get(device, &prepare("ragged_plan", problem, &queries), arch)?;
        let gather = Loaded::get(device, &prepare("ragged_gather", problem, &queries), arch)?;
        let program = main_program(problem, &config);
        let variant = || Variant::from(crate::cuda::Config::from(config)).to_string();
        let (main, per_multiprocessor) = Loaded::get_fitting(device, &program, arch, config.threads(), variant)?;

        // Sequences begin at whole blocks, and a tile of keys may reach a block beyond the last.
        let most_blocks = rows.keys / BLOCK_ROWS + shape.batch;
        let key_rows = (most_blocks + 1) * BLOCK_ROWS;
        let most_tiles = rows.queries / config.tile_queries() + shape.batch;
        size("query_rows", most_tiles.saturating_mul(shape.query_heads))?;
        size("query_rows", rows.queries.saturating_mul(shape.query_heads))?;
        let mut division = Division::default();
        let mut take = |count: usize, bytes: usize| division.take(count.saturating_mul(bytes));
        let row_codes = shape.kv_heads * shape.head_dim;
        let places = Places {
            sequences: take(shape.batch, 16),
            tile_order: take(1 + most_tiles, 8),
            blocks: take(2 + most_blocks, 4),
            scales: take(2 * shape.batch * shape.kv_heads, 4),
            q: take(rows.queries, shape.query_heads * shape.head_dim),
            q_scales: take(rows.queries, 4 * shape.query_heads),
            k: take(key_rows, row_codes),
            v: take(key_rows, row_codes),
        };
        let PagedQueries { output, packed, .. } = queries;
        let [sequences, heads, rows_apart] =
            [if packed { 0 } else { output.batch }, output.head, output.row].map(|distance| stride("output", distance));
        let argument = Ragged {
            k,
            v,
            k_scales: scales,
            v_scales: scales,
            q: self::queries(problem, &queries)?,
            output: OutputRows::at(0, [sequences?, heads?, rows_apart?], 0),
            lse_strides: lse_strides(problem, packed)?,
            block_table: 0,
            lengths: 0,
            key_starts: 0,
            query_starts: 0,
            sequences: 0,
            tile_order: 0,
            blocks: 0,
            scales: 0,
            q_codes: 0,
            q_codes_scales: 0,
            k_codes: 0,
            v_codes: 0,
            table_stride: 0,
            sequence_count: 0,
            query_heads: size("query_heads", shape.query_heads)?,
            kv_heads: size("kv_heads", shape.kv_heads)?,
            query_len: size("query_len", shape.query_len)?,
            page_tokens: match &keys {
                RaggedKeys::Paged(keys) => size("page_size", keys.k.page_size)?,
                RaggedKeys::Packed { .. } => 1,
            },
            tile_queries: size("tile_queries", config.tile_queries())?,
            bucket_keys: size("key_len", shape.key_len / BUCKETS + 1)?,
            query_rows: size("query_rows", rows.queries)?,
            key_rows: size("key_rows", key_rows)?,
            unused: 0,
        };
        Ok(RaggedAttention {
            device: device.clone(),
            problem: *problem,
            config,
            keys,
            queries,
            plan,
            gather,
            main,
            argument,
            main_blocks: (multiprocessors * per_multiprocessor)
                .min(most_tiles.saturating_mul(shape.query_heads))
                .max(1),
            places,
            bytes: division.bytes(),
            query_rows: rows.queries,
            key_rows,
            keys_in_all: rows.keys,
            sinks: None,
        })
    }

    /// The same with the logits of the attention sinks, f32 in device memory, one for every query head: launches read them there.
    #[must_use]
    pub fn with_sinks(self, address: u64) -> Self {
        RaggedAttention { sinks: Some(address), ..self }
    }

    /// The programs of such launches, for Hopper, in their order.
    #[doc(hidden)]
    pub fn programs(problem: &Problem, queries: &PagedQueries) -> Result<[Program; 3]> {
        check(problem, queries)?;
        Ok([
            prepare("ragged_plan", problem, queries),
            prepare("ragged_gather", problem, queries),
            main_program(problem, &hopper::for_ragged(problem)),
        ])
    }

    /// The kernel that computes, and its knobs.
    pub fn variant(&self) -> Variant {
        crate::cuda::Config::from(self.config).into()
    }

    /// Of the workspace.
    pub fn workspace_bytes(&self) -> usize {
        self.bytes
    }

    /// Puts the launches for so many sequences into the stream and returns. It allocates nothing and waits for nothing, so it may
    /// be captured into a graph; block table, lengths and starts are read when it runs.
    ///
    /// # Safety
    /// At the addresses there must be what this was made for, on its device, alive until the launch is done. Lengths must be
    /// within what the problem and [`RaggedRows`] say, and every page that a length reaches must be in the block table and in
    /// the cache. Codes and scales must be finite, and scales positive. No other work may write to what is read meanwhile, or
    /// use the output or the workspace.
    pub unsafe fn launch(
        &self,
        stream: &Stream,
        sequences: usize,
        addresses: &RaggedAddresses,
        workspace: &mut Workspace,
    ) -> Result<()> {
        self.check(sequences, addresses)?;
        workspace.check(self.device.context(), self.bytes)?;
        if sequences == 0 {
            return Ok(());
        }
        let argument = self.argument(sequences, addresses, workspace.pointer())?;
        let gathered = self.gathered(&argument);
        let main = Attention::ragged(self.device.context(), &self.problem, &self.config, &gathered, self.sinks)?;
        let argument = with_extras(&argument, &self.problem, self.sinks)?;
        let grid = |blocks: usize, threads, dynamic_shared_bytes| -> Result<Grid> {
            Ok(Grid { blocks: size("blocks", blocks)?.unsigned_abs(), threads, dynamic_shared_bytes, cluster: 1 })
        };
        let gathering = grid(GATHERING * self.device.info().multiprocessors, GATHER_THREADS, 0)?;
        let head_dim = self.problem.shape().head_dim;
        let shared = hopper::shared_bytes(&self.config, head_dim, head_dim);
        let computing = grid(self.main_blocks, self.config.threads() as u32, shared)?;
        // SAFETY: the arguments are laid out as the kernels take them (tested), and the workspace was checked; the rest is the
        // caller's word.
        unsafe {
            self.plan.function().launch_at(stream, grid(1, PLAN_THREADS, 0)?, argument.address(), false)?;
            self.gather.function().launch_at(stream, gathering, argument.address(), false)?;
            self.main.function().launch_at(stream, computing, main.address(), false)
        }
    }

    /// Whether lengths, block table, starts and scales are sound, and [`RaggedRows`] reach: what a launch would read or write
    /// beyond its memory, and a scale that is not finite and positive, is an error that names the sequence. It looks on the
    /// device and waits for it; a launch itself checks nothing there.
    ///
    /// # Safety
    /// There must be as many entries at the addresses as the numbers of sequences and of pages say, and the scales.
    pub unsafe fn validate(
        &self,
        stream: &Stream,
        sequences: usize,
        addresses: &RaggedAddresses,
        workspace: &mut Workspace,
    ) -> Result<()> {
        self.check(sequences, addresses)?;
        workspace.check(self.device.context(), self.bytes)?;
        let (pages, page_size) = match &self.keys {
            RaggedKeys::Paged(keys) => (keys.k.pages, keys.k.page_size),
            RaggedKeys::Packed { .. } => (1, 1),
        };
        let (block_table, max_pages, lengths, key_starts) = match addresses.keys {
            KeyAddresses::Paged { block_table, max_pages, lengths } => (block_table, max_pages, lengths, 0),
            KeyAddresses::Packed { starts, lengths } => (0, 0, lengths, starts),
        };
        let query_starts = addresses.query_starts;
        let tables = Tables {
            block_table,
            max_pages,
            lengths,
            query_starts,
            sequences,
            pages,
            page_size,
            key_starts,
            k_scales: CacheScales { values: addresses.k_scales, ..self.argument.k_scales },
            v_scales: CacheScales { values: addresses.v_scales, ..self.argument.v_scales },
            q_scales: CacheScales::of_queries(&self.argument.q, addresses.q_scales),
            token_scales: false,
        };
        // The gathered keys are not yet there.
        let report = workspace.pointer() + self.places.k as u64;
        // SAFETY: the workspace has room there; the rest is the caller's word.
        let Totals { keys, queries } =
            unsafe { validate(&self.device, stream, self.device.arch()?, &self.problem, &tables, report)? };
        let queries = if self.queries.packed { queries } else { sequences * self.problem.shape().query_len };
        for (name, rows, most) in [("queries", queries, self.query_rows), ("keys", keys, self.keys_in_all)] {
            if rows > most {
                return Err(Error::invalid(
                    name,
                    format!("are {rows} in all sequences, and the call was made for {most}"),
                    "make it with larger RaggedRows",
                ));
            }
        }
        Ok(())
    }

    fn argument(&self, sequences: usize, addresses: &RaggedAddresses, base: u64) -> Result<Ragged> {
        let at = |place: usize| base + place as u64;
        let Places { sequences: found, tile_order, blocks, scales, q, q_scales, k, v } = self.places;
        let Ragged { k: keys, v: values, q: queries, k_scales, v_scales, .. } = self.argument;
        let (block_table, table_stride, key_starts, lengths) = match addresses.keys {
            KeyAddresses::Paged { block_table, max_pages, lengths } => (block_table, max_pages, 0, lengths),
            KeyAddresses::Packed { starts, lengths } => (0, 0, starts, lengths),
        };
        Ok(Ragged {
            k: Pages { codes: addresses.k, ..keys },
            v: Pages { codes: addresses.v, ..values },
            k_scales: CacheScales { values: addresses.k_scales, ..k_scales },
            v_scales: CacheScales { values: addresses.v_scales, ..v_scales },
            q: Queries { values: addresses.q, scales: addresses.q_scales, ..queries },
            output: self.argument.output.with_addresses(addresses.output, addresses.lse),
            block_table,
            lengths,
            key_starts,
            query_starts: addresses.query_starts,
            sequences: at(found),
            tile_order: at(tile_order),
            blocks: at(blocks),
            scales: at(scales),
            q_codes: at(q),
            q_codes_scales: at(q_scales),
            k_codes: at(k),
            v_codes: at(v),
            table_stride: stride("max_pages", table_stride)?,
            sequence_count: size("sequences", sequences)?,
            ..self.argument
        })
    }

    /// What the hopper kernel is told.
    fn gathered(&self, argument: &Ragged) -> Gathered {
        let kv_heads = self.problem.shape().kv_heads;
        let sequences = argument.sequence_count as usize;
        Gathered {
            q: argument.q_codes,
            q_scales: argument.q_codes_scales,
            query_rows: self.query_rows,
            k: argument.k_codes,
            k_scales: argument.scales,
            v: argument.v_codes,
            v_scales: argument.scales + 4 * (sequences * kv_heads) as u64,
            key_rows: self.key_rows,
            output: argument.output,
            behind: RaggedLaunch {
                sequences: argument.sequences,
                tile_order: argument.tile_order,
                lse_strides: argument.lse_strides,
                packed: i32::from(self.queries.packed),
                unused: 0,
            },
        }
    }

    fn check(&self, sequences: usize, addresses: &RaggedAddresses) -> Result<()> {
        let batch = self.problem.shape().batch;
        if sequences > batch {
            return Err(Error::invalid(
                "sequences",
                format!("{sequences} are more than the {batch} that it was made for"),
                "make it for a problem with the largest batch",
            ));
        }
        let RaggedAddresses { q, k, v, output, k_scales, v_scales, .. } = *addresses;
        for (name, address) in [("q", q), ("k", k), ("v", v), ("output", output)] {
            check_address(name, address, ALIGNMENT_BYTES)?;
        }
        check_address("k_scales", k_scales, 4)?;
        check_address("v_scales", v_scales, 4)?;
        addresses.keys.check(&self.keys, &self.problem)?;
        let sinks = self.sinks.unwrap_or(0);
        let wanted = [
            ("sinks", sinks, self.problem.has_sinks(), "the problem has them (RaggedAttention::with_sinks)"),
            ("q_scales", addresses.q_scales, self.queries.format == QueryFormat::Codes, "queries are FP8 codes"),
            ("query_starts", addresses.query_starts, self.queries.packed, "queries are packed"),
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
        Ok(())
    }
}

/// What to use instead.
const OTHERWISE: &str =
    "use PagedAttention, which takes as many queries and keys, or attend on the CPU (eightfold::serving)";

/// What the kernels are compiled for on a device of this architecture.
fn target(arch: Arch) -> Result<Arch> {
    let rule = || format!("its kernels are made of instructions of {}, which {arch} does not have", Arch::Sm90a);
    hopper::target(arch).map_err(|_| Error::unavailable("ragged attention", rule(), OTHERWISE))
}

/// Whether the kernels are written for it.
fn check(problem: &Problem, queries: &PagedQueries) -> Result<()> {
    let shape = problem.shape();
    refuse_int8("ragged", problem)?;
    check_extras("ragged", problem, family::Extras { window: true, sinks: true, ..family::Extras::default() })?;
    let refuse = |reason: String| Err(Error::unavailable("ragged attention", reason, OTHERWISE));
    if !HEAD_DIMS.contains(&shape.head_dim) {
        return refuse(format!("it is written for head dims {HEAD_DIMS:?}, not {}", shape.head_dim));
    }
    if problem.input_format() != Fp8Format::E4m3 {
        return refuse("scores of E5M2 codes do not fit f16".into());
    }
    if problem.accuracy() == Accuracy::Precise {
        return refuse("it rounds queries to FP8, which is not precise".into());
    }
    if shape.batch > MOST_SEQUENCES {
        return Err(Error::invalid(
            "batch",
            format!("{} sequences are more than the {MOST_SEQUENCES} that a launch takes", shape.batch),
            "launch twice, with half of them each",
        ));
    }
    let elements = match queries.format {
        QueryFormat::Codes => ALIGNMENT_BYTES,
        QueryFormat::Values(OutputFormat::F32) => 4,
        QueryFormat::Values(_) => 8,
    };
    check_rows("q", shape.query_dims(), queries.strides, elements)?;
    let elements = if problem.output_format() == OutputFormat::F32 { 4 } else { 8 };
    check_rows("output", shape.query_dims(), queries.output, elements)
}

/// The launches before.
fn prepare(entry: &'static str, problem: &Problem, queries: &PagedQueries) -> Program {
    let head_dim = problem.shape().head_dim;
    let extras = Extras { window: problem.window() != Window::default(), softcap: false, sinks: problem.has_sinks() };
    let mut compiled_in =
        shared_settings(head_dim, problem.mask(), extras, problem.input_format(), problem.output_format());
    let file = if entry == "ragged_plan" {
        "ragged/plan.cu"
    } else {
        let format = match queries.format {
            QueryFormat::Values(format) => number(format),
            QueryFormat::Codes => "3",
        };
        compiled_in.push(("QUERY_FORMAT", format.into()));
        "ragged/gather.cu"
    };
    Program { file, entry, defines: settings(&compiled_in), dynamic_shared_bytes: 0 }
}

/// The launch that computes: every query has a scale of its own.
fn main_program(problem: &Problem, config: &Config) -> Program {
    let kind = Specialisation::new(problem, Granularity::Block { rows: 1 }, Granularity::Head, Granularity::Head);
    hopper::ragged_program(&kind, config)
}

/// Where queries are, but for addresses.
fn queries(problem: &Problem, queries: &PagedQueries) -> Result<Queries> {
    let codes = queries.format == QueryFormat::Codes;
    let batch = if queries.packed { 0 } else { queries.strides.batch };
    Ok(Queries {
        values: 0,
        sequence_stride: stride("strides", batch)?,
        token_stride: stride("strides", queries.strides.row)?,
        head_stride: stride("strides", queries.strides.head)?,
        scales: 0,
        scale_sequence_stride: if codes { size("query_heads", problem.shape().query_heads)? } else { 0 },
        scale_head_stride: i32::from(codes),
    })
}

/// From one sequence, one head and one query to the next: heads are behind rows where queries are packed.
fn lse_strides(problem: &Problem, packed: bool) -> Result<[i64; 3]> {
    let (heads, len) = (problem.shape().query_heads, problem.shape().query_len);
    let strides = if packed { [0, 1, heads] } else { [heads.saturating_mul(len), len, 1] };
    Ok([stride("lse", strides[0])?, stride("lse", strides[1])?, stride("lse", strides[2])?])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::compile::Compiler;
    use crate::problem::Shape;

    /// Compiled where NVRTC is, and skipped elsewhere unless `EIGHTFOLD_REQUIRE_NVRTC` is set.
    #[test]
    fn every_kind_compiles_without_spills() {
        let compiler = match Compiler::find() {
            Ok(compiler) => compiler,
            Err(error) => {
                assert!(std::env::var_os("EIGHTFOLD_REQUIRE_NVRTC").is_none(), "{error}");
                return;
            }
        };
        let formats = [QueryFormat::Codes, QueryFormat::Values(OutputFormat::Bf16)];
        for (head_dim, accuracy, causal, window) in [
            (64, Accuracy::Fast, true, None),
            (128, Accuracy::Fast, true, None),
            (128, Accuracy::ExactExp, true, None),
            (64, Accuracy::Balanced, false, None),
            (64, Accuracy::Fast, true, Some(127)),
            (128, Accuracy::Balanced, false, Some(500)),
        ] {
            let shape = Shape::new(3, 8, 2048, head_dim).with_kv_heads(2).with_key_len(9000);
            let problem = Problem::new(shape).unwrap().with_accuracy(accuracy).with_output_format(OutputFormat::Bf16);
            let problem = if causal { problem.causal() } else { problem };
            let problem = match window {
                Some(_) => problem.with_window(Window::new(window, None)).with_sinks(),
                None => problem,
            };
            let queries = PagedQueries::packed(&problem, formats[usize::from(causal)]);
            for program in RaggedAttention::programs(&problem, &queries).unwrap() {
                let cubin = compiler.compile(&program, Arch::Sm90a).unwrap();
                assert!(cubin.is_lean(), "{head_dim} {accuracy} {}: {}", program.entry, cubin.log);
            }
        }
    }

    #[test]
    fn what_it_is_not_written_for_is_refused_by_name() {
        let refused = |problem: Problem| {
            let queries = PagedQueries::packed(&problem, QueryFormat::Codes);
            RaggedAttention::programs(&problem, &queries).unwrap_err().to_string()
        };
        let problem = |head_dim| Problem::new(Shape::new(2, 8, 300, head_dim)).unwrap();
        assert!(refused(problem(96)).contains("head dims [64, 128], not 96"));
        assert!(refused(problem(64).with_softcap(9.0).unwrap()).starts_with("softcap: "));
        assert!(refused(problem(64).with_accuracy(Accuracy::Precise)).contains("not precise"));
        assert!(refused(problem(64).with_input_format(Fp8Format::E5m2)).contains("E5M2"));
        assert_eq!(target(Arch::Sm90), Ok(Arch::Sm90a));
        let ada = target(Arch::Sm89).unwrap_err().to_string();
        assert!(ada.starts_with("ragged attention is not available: its kernels are made of instructions of sm_90a"));
        assert!(ada.contains("which sm_89 does not have; use PagedAttention") && ada.contains("the CPU"), "{ada}");
    }
}
