//! Attention over pages and ragged batches against the float64 reference: layouts, pages, scales, groups, lengths, and bad input.

use eightfold::lab::cpu::{Config, Numbers, Simd};
use eightfold::lab::serving_attention_with;
use eightfold::quantize::Quantizer;
use eightfold::serving::{
    AppendScales, BlockTable, KeyValues, KvCache, Packed, PageLayout, PageScales, PageStrides, PagedTensor,
    PagedTensorMut, attention, merge,
};
use eightfold::{
    Dims, Fp8Format, Fp8Tensor, Granularity, Layout, Operands, Output, OutputFormat, Problem, Result, Shape, Target,
    Variant, reference,
};
use proptest::prelude::*;

const FORMAT: Fp8Format = Fp8Format::E4m3;

/// Numbers below a bound, always the same for a seed.
struct Numbered(u64);

impl Numbered {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % bound.max(1)
    }

    /// About N(0, 1).
    fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.below(1 << 20) as f32 / (1 << 20) as f32).sum::<f32>() - 6.0
    }

    fn values(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.normal()).collect()
    }

    /// 0 … count − 1 in random order.
    fn order(&mut self, count: usize) -> Vec<i32> {
        let mut order: Vec<i32> = (0..count as i32).collect();
        for last in (1..count).rev() {
            order.swap(last, self.below(last + 1));
        }
        order
    }
}

/// How a server lays out its cache: K's layout, V's, and where V starts in the memory of both; `usize::MAX` for memory of its own.
#[derive(Debug, Clone, Copy)]
enum Server {
    /// `[page, head, token, K and V]`.
    Vllm,
    /// `[page, K or V, token, head, channel]`.
    FlashInferNhd,
    /// `[page, K or V, head, token, channel]`.
    FlashInferHnd,
    /// `[token, head, channel]`, K and V apart.
    Sglang,
    /// `[page, token, head, channel]`, K and V apart, with room between heads.
    Fa3,
}

const SERVERS: [Server; 5] = [Server::Vllm, Server::FlashInferNhd, Server::FlashInferHnd, Server::Sglang, Server::Fa3];

impl Server {
    /// The layout of K and of V, where V starts behind K in the same memory, and the size of that memory.
    fn layout(
        self,
        pages: usize,
        page_size: usize,
        heads: usize,
        head_dim: usize,
    ) -> (PageLayout, Option<usize>, usize) {
        let (nhd, hnd) =
            (PageLayout::nhd(pages, page_size, heads, head_dim), PageLayout::hnd(pages, page_size, heads, head_dim));
        let page = page_size * heads * head_dim;
        match self {
            Server::Vllm => {
                let wide = PageLayout::hnd(pages, page_size, heads, 2 * head_dim).strides;
                (hnd.with_strides(wide), Some(head_dim), 2 * pages * page)
            }
            Server::FlashInferNhd => {
                let PageStrides { token, head, .. } = nhd.strides;
                (nhd.with_strides(PageStrides::new(2 * page, token, head)), Some(page), 2 * pages * page)
            }
            Server::FlashInferHnd => {
                let PageStrides { token, head, .. } = hnd.strides;
                (hnd.with_strides(PageStrides::new(2 * page, token, head)), Some(page), 2 * pages * page)
            }
            Server::Sglang => (nhd, None, pages * page),
            Server::Fa3 => {
                let wide = PageLayout::nhd(pages, page_size, heads, head_dim + 16).strides;
                (nhd.with_strides(wide), None, pages * page_size * heads * (head_dim + 16))
            }
        }
    }
}

/// A batch with its cache.
#[derive(Debug)]
struct Batch {
    problem: Problem,
    q: Fp8Tensor<'static>,
    offsets: Vec<i32>,
    layout: PageLayout,
    /// Where V starts, if it is in the memory of K.
    v_start: Option<usize>,
    memory: [Vec<u8>; 2],
    granularity: PageScales,
    scales: [Vec<f32>; 2],
    table: Vec<i32>,
    max_pages: usize,
    lengths: Vec<i32>,
}

/// What a batch is made from.
#[derive(Debug, Clone)]
struct Recipe {
    server: Server,
    page_size: usize,
    kv_heads: usize,
    group: usize,
    head_dim: usize,
    /// Queries and keys of each sequence.
    sequences: Vec<(usize, usize)>,
    scales: usize,
    seed: u64,
}

impl Recipe {
    fn batch(&self) -> Batch {
        let Recipe { server, page_size, kv_heads, group, head_dim, ref sequences, scales, seed } = *self;
        let mut random = Numbered(seed);
        let queries: usize = sequences.iter().map(|(queries, _)| queries).sum::<usize>().max(1);
        let most = |of: fn(&(usize, usize)) -> usize| sequences.iter().map(of).max().unwrap().max(1);
        let shape = Shape::new(sequences.len(), kv_heads * group, most(|one| one.0), head_dim)
            .with_kv_heads(kv_heads)
            .with_key_len(most(|one| one.1));
        let problem = Problem::new(shape).unwrap().with_lse(true).with_output_layout(Layout::Bshd).unwrap();
        let dims = Dims::new(1, kv_heads * group, queries, head_dim);
        let per_token = Quantizer::new(FORMAT).with_granularity(Granularity::Block { rows: 1 });
        let q = per_token.with_layout(Layout::Bshd).quantize(&random.values(dims.count()), dims, Layout::Bshd).unwrap();
        let mut offsets = vec![0];
        offsets.extend(sequences.iter().scan(0, |end, (queries, _)| {
            *end += *queries as i32;
            Some(*end)
        }));

        // Pages in random order; a page that is whole in two sequences is shared now and then.
        let needed: Vec<usize> = sequences.iter().map(|(_, keys)| keys.div_ceil(page_size)).collect();
        let max_pages = needed.iter().max().unwrap() + 1;
        let pages = needed.iter().sum::<usize>() + 2;
        let mut order = random.order(pages).into_iter();
        let mut table = vec![-1; max_pages * sequences.len()];
        let mut shared = None;
        for (row, (needed, (_, keys))) in table.chunks_mut(max_pages).zip(needed.iter().zip(sequences)) {
            for (index, entry) in row[..*needed].iter_mut().enumerate() {
                let whole = (index + 1) * page_size <= *keys;
                *entry = shared.filter(|_| whole && index == 0).unwrap_or_else(|| order.next().unwrap());
                shared = shared.or((whole && index == 0).then_some(*entry));
            }
        }

        let (layout, v_start, bytes) = server.layout(pages, page_size, kv_heads, head_dim);
        // Memory that nobody wrote holds codes that are no numbers.
        let mut memory = [vec![0x7f; bytes], vec![0x7f; if v_start.is_some() { 0 } else { bytes }]];
        let token_strides = PageStrides::new(page_size * kv_heads, kv_heads, 1);
        let granularity =
            [PageScales::Tensor, PageScales::Head, PageScales::Sequence, PageScales::Token(token_strides)][scales];
        let slots: Vec<i64> = (0..pages as i64 * page_size as i64).collect();
        let written: Vec<i64> = {
            let used: Vec<bool> = {
                let mut used = vec![false; slots.len()];
                for (sequence, (_, keys)) in sequences.iter().enumerate() {
                    for token in 0..*keys {
                        let page = table[sequence * max_pages + token / page_size] as usize;
                        used[page * page_size + token % page_size] = true;
                    }
                }
                used
            };
            slots.iter().map(|slot| if used[*slot as usize] { *slot } else { -1 }).collect()
        };
        let count = match granularity {
            PageScales::Tensor => 1,
            PageScales::Head => kv_heads,
            PageScales::Sequence => kv_heads * sequences.len(),
            _ => pages * page_size * kv_heads,
        };
        let scales = [0, 1].map(|which| {
            let values = random.values(slots.len() * kv_heads * head_dim);
            let mut scales = vec![f32::NAN; count];
            let codes = match (which, v_start) {
                (0, _) => &mut memory[0][..],
                (_, Some(start)) => &mut memory[0][start..],
                (_, None) => &mut memory[1][..],
            };
            let mut tensor = PagedTensorMut::new(layout, FORMAT, codes).unwrap();
            match granularity {
                PageScales::Token(strides) => {
                    let computed = AppendScales::Computed { scales: &mut scales, strides };
                    tensor.append(&values, &written, computed).unwrap();
                }
                PageScales::Sequence => {
                    // Codes of one scale, which then mean something else in each sequence.
                    scales.iter_mut().for_each(|scale| *scale = 0.005 + 0.001 * random.below(10) as f32);
                    tensor.append(&values, &written, AppendScales::Given(&[0.01])).unwrap();
                }
                _ => {
                    scales.iter_mut().for_each(|scale| *scale = 0.01 + 0.001 * random.below(10) as f32);
                    tensor.append(&values, &written, AppendScales::Given(&scales)).unwrap();
                }
            }
            scales
        });
        let lengths = sequences.iter().map(|(_, keys)| *keys as i32).collect();
        Batch { problem, q, offsets, layout, v_start, memory, granularity, scales, table, max_pages, lengths }
    }
}

impl Batch {
    /// Hands the call's arguments to `work`.
    fn with<R>(&self, work: impl FnOnce(&Packed, KeyValues) -> R) -> R {
        let [k, v] = self.tensors();
        let table = BlockTable::new(&self.table, self.max_pages, &self.lengths).unwrap();
        work(&Packed::new(&self.offsets).unwrap(), KeyValues::Paged { k: &k, v: &v, table: &table })
    }

    fn tensors(&self) -> [PagedTensor<'_>; 2] {
        let v = self.v_start.map_or(&self.memory[1][..], |start| &self.memory[0][start..]);
        [(&self.memory[0][..], 0), (v, 1)].map(|(codes, which)| {
            PagedTensor::new(self.layout, FORMAT, codes, self.granularity, &self.scales[which]).unwrap()
        })
    }

    fn reference(&self, problem: &Problem) -> reference::Reference {
        self.with(|queries, keys| reference::ragged_attention(problem, &self.q, queries, keys)).unwrap()
    }

    fn run(&self, problem: &Problem, config: &Config) -> Output {
        let mut output = Output::zeros_of(problem, self.q.dims());
        output.poison();
        self.with(|queries, keys| serving_attention_with(config, problem, &self.q, queries, keys, &mut output))
            .unwrap();
        output
    }

    /// The relative error of an output, and the largest of its log-sum-exp.
    #[track_caller]
    fn errors(&self, problem: &Problem, output: &Output, expected: &reference::Reference) -> (f64, f64) {
        let Dims { heads, len, head_dim, .. } = self.q.dims();
        let strides = problem.output_layout().strides(self.q.dims());
        let values = output.values.to_f32();
        let (mut error, mut size) = (0.0, 0.0);
        for head in 0..heads {
            for row in 0..len {
                let got = &values[strides.row_offset(0, head, row)..][..head_dim];
                let wanted = &expected.values[(head * len + row) * head_dim..][..head_dim];
                for (got, wanted) in got.iter().zip(wanted) {
                    assert!(got.is_finite(), "{problem}: head {head}, row {row}: {got}");
                    error += (f64::from(*got) - wanted).powi(2);
                    size += wanted * wanted;
                }
            }
        }
        let lse =
            output.lse.iter().flatten().zip(&expected.lse).map(|(lse, wanted)| match f64::from(*lse) == *wanted {
                true => 0.0,
                false => (f64::from(*lse) - wanted).abs(),
            });
        (if error == 0.0 { 0.0 } else { (error / size).sqrt() }, lse.fold(0.0, f64::max))
    }

    /// Whether an output is that of the reference.
    #[track_caller]
    fn check(&self, problem: &Problem, output: &Output, expected: &reference::Reference, tolerance: f64) {
        let (relative, lse) = self.errors(problem, output, expected);
        assert!(relative <= tolerance, "{problem}: the relative error is {relative:.1e}");
        // Weights that are truncated to bf16 are summed as they then are.
        assert!(lse <= 2e-3f64.max(1.4 * tolerance), "{problem}: the log-sum-exp is off by {lse:.1e}");
    }
}

fn recipes() -> impl Strategy<Value = Recipe> {
    let page_sizes = prop::sample::select(vec![1, 16, 24, 32, 64, 128, 256]);
    let groups = prop::sample::select(vec![1, 2, 4, 5, 6, 7, 8, 12, 16]);
    let head_dims = prop::sample::select(vec![64, 72, 96, 128, 256]);
    let server = prop::sample::select(SERVERS.to_vec());
    (server, page_sizes, 1usize..=3, groups, head_dims, any::<[u16; 4]>(), 1usize..=4, 0usize..4, any::<u64>())
        .prop_map(|(server, page_size, kv_heads, group, head_dim, kinds, batch, scales, seed)| {
            let sequence = |kind: &u16| {
                let keys = [0, 1, page_size - 1, page_size, page_size + 1, 2 * page_size, 333][usize::from(*kind) % 7];
                let queries = [1, 1, 2, 4, 16, 0, 40][usize::from(*kind) / 7 % 7];
                (queries, keys)
            };
            let sequences = kinds[..batch].iter().map(sequence).collect();
            Recipe { server, page_size, kv_heads, group, head_dim, sequences, scales, seed }
        })
}

/// Number paths, and the relative error that each may have.
const PATHS: [(Numbers, f64); 3] = [(Numbers::F32, 1e-5), (Numbers::Int16, 1e-3), (Numbers::Bf16, 6e-3)];

/// The best config with other numbers and tiles; for bf16 it computes in tile registers, or in their twin.
fn config(problem: &Problem, numbers: Numbers, tile_keys: usize) -> Config {
    if numbers == Numbers::Bf16 {
        let twin: Config = "amx,simd=amx-twin".parse().unwrap();
        return Config { tile_keys, ..twin };
    }
    let Ok(Variant::Cpu(best)) = eightfold::select(problem, &Operands::assumed(problem), Target::Cpu) else {
        panic!("no CPU kernel for {problem}")
    };
    let numbers = if best.simd == Simd::Portable { Numbers::F32 } else { numbers };
    Config { numbers, tile_keys, ..best }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]

    /// Whatever the server, the pages, the scales and the lengths, the result is attention.
    #[test]
    fn pages_are_attended_as_the_reference_does(
        recipe in recipes(),
        causal in any::<bool>(),
        invariant in any::<bool>(),
        bhsd in any::<bool>(),
        (numbers, tolerance) in prop::sample::select(PATHS.to_vec()),
        tile in prop::sample::select(vec![16, 48, 256]),
    ) {
        let batch = recipe.batch();
        let mut problem = if causal { batch.problem.causal() } else { batch.problem };
        if invariant {
            problem = problem.batch_invariant();
        }
        if bhsd {
            problem = problem.with_output_layout(Layout::Bhsd).unwrap();
        }
        let output = batch.run(&problem, &config(&problem, numbers, tile));
        batch.check(&problem, &output, &batch.reference(&problem), tolerance);
    }
}

fn per_token() -> Quantizer {
    Quantizer::new(FORMAT).with_granularity(Granularity::Block { rows: 1 })
}

fn bits(output: &Output) -> Vec<u32> {
    output.values.to_f32().iter().chain(output.lse.iter().flatten()).map(|value| value.to_bits()).collect()
}

#[test]
fn a_long_ragged_batch_is_right_in_every_server_s_layout() {
    for (index, server) in SERVERS.into_iter().enumerate() {
        let sequences = vec![(1, 17), (3, 4097), (0, 5), (1, 0), (70, 1500), (16, 16), (40, 9)];
        let page_size = [16, 64, 128, 1, 256][index];
        let recipe = Recipe { server, page_size, kv_heads: 2, group: 6, head_dim: 64, sequences, scales: 3, seed: 7 };
        let batch = recipe.batch();
        let problem = batch.problem.causal().with_output_format(OutputFormat::Bf16);
        let expected = batch.reference(&problem);
        for numbers in [Numbers::F32, Numbers::Int16] {
            batch.check(&problem, &batch.run(&problem, &config(&problem, numbers, 256)), &expected, 5e-3);
        }
    }
}

/// What breaks a batch.
type Plant<'a> = &'a dyn Fn(&mut Batch);

/// What is compared above would see each of these.
#[test]
fn every_planted_fault_shows() {
    let sequences = vec![(1, 40), (3, 300), (1, 40)];
    let recipe = Recipe {
        server: Server::FlashInferHnd,
        page_size: 16,
        kv_heads: 2,
        group: 4,
        head_dim: 64,
        sequences,
        scales: 3,
        seed: 9,
    };
    let right = recipe.batch();
    let problem = right.problem.causal();
    let expected = right.reference(&problem);
    let config = config(&problem, Numbers::F32, 256);
    let errors = |plant: Plant| {
        let mut batch = recipe.batch();
        plant(&mut batch);
        right.errors(&problem, &batch.run(&problem, &config), &expected)
    };
    let width = right.max_pages;
    let bytes_of_a_page = right.layout.strides.page;
    let faults: [(&str, Plant); 6] = [
        ("a wrong page", &|batch| batch.table[width + 7] = batch.table[width + 2]),
        ("a stale page", &|batch| {
            let page = batch.table[width + 9] as usize;
            batch.memory[0][page * bytes_of_a_page..][..bytes_of_a_page].fill(0x38);
        }),
        ("a key too few", &|batch| batch.lengths[1] -= 1),
        ("the row of another sequence", &|batch| {
            let (first, rest) = batch.table.split_at_mut(width);
            first.swap_with_slice(&mut rest[width..]);
        }),
        ("the scales of another head", &|batch| batch.scales[1].chunks_mut(2).for_each(|heads| heads.swap(0, 1))),
        ("keys for values", &|batch| batch.v_start = Some(0)),
    ];
    assert!(errors(&|_| ()).0 < 1e-5);
    for (name, plant) in faults {
        let (relative, _) = errors(plant);
        assert!(relative > 1e-2, "{name} leaves an error of {relative:.1e}");
    }
}

#[test]
fn a_sequence_has_the_same_bits_alone_and_in_a_batch() {
    let sequences = vec![(1, 3000), (1, 40), (9, 700), (1, 1), (600, 650)];
    let recipe = Recipe {
        server: Server::Vllm,
        page_size: 16,
        kv_heads: 2,
        group: 4,
        head_dim: 64,
        sequences: sequences.clone(),
        scales: 1,
        seed: 3,
    };
    let batch = recipe.batch();
    for numbers in [Numbers::F32, Numbers::Int16] {
        let problem = batch.problem.causal().batch_invariant();
        let together = batch.run(&problem, &config(&problem, numbers, 256));
        let together = together.values.to_f32();
        let width = 2 * 4 * 64;
        for (sequence, (queries, keys)) in sequences.iter().enumerate() {
            let rows = batch.offsets[sequence] as usize..batch.offsets[sequence + 1] as usize;
            let q = batch.q.codes()[rows.start * width..rows.end * width].to_vec();
            // A scale for every token of each head.
            let len = batch.q.dims().len;
            let scales =
                (0..8).flat_map(|head| &batch.q.scales().values()[head * len..][rows.clone()]).copied().collect();
            let scales = eightfold::Scales::new(Granularity::Block { rows: 1 }, scales).unwrap();
            let q = Fp8Tensor::new(Dims::new(1, 8, *queries, 64), Layout::Bshd, FORMAT, q, scales).unwrap();
            let row = &batch.table[sequence * batch.max_pages..][..batch.max_pages];
            let lengths = [*keys as i32];
            let table = BlockTable::new(row, batch.max_pages, &lengths).unwrap();
            let shape = Shape::new(1, 8, *queries, 64).with_kv_heads(2).with_key_len(*keys);
            let alone = Problem::new(shape).unwrap().causal().with_lse(true).with_output_layout(Layout::Bshd).unwrap();
            let alone = alone.batch_invariant();
            let mut output = Output::zeros_of(&alone, q.dims());
            let [k, v] = batch.tensors();
            let offsets = [0, *queries as i32];
            let (queries, keys) = (Packed::new(&offsets).unwrap(), KeyValues::Paged { k: &k, v: &v, table: &table });
            let config = config(&problem, numbers, 256);
            serving_attention_with(&config, &alone, &q, &queries, keys, &mut output).unwrap();
            assert_eq!(output.values.to_f32(), together[rows.start * width..rows.end * width], "sequence {sequence}");
        }
    }
}

#[test]
fn packed_keys_are_attended_as_pages_are() {
    let lengths = [5usize, 0, 300, 64];
    let (heads, kv_heads, head_dim) = (6, 2, 64);
    let mut random = Numbered(11);
    let total = lengths.iter().sum::<usize>() + 3;
    let dims = Dims::new(1, kv_heads, total, head_dim);
    let q_dims = Dims::new(1, heads, 9, head_dim);
    let q = per_token().quantize(&random.values(q_dims.count()), q_dims, Layout::Bhsd).unwrap();
    let (k, v) = (random.values(dims.count()), random.values(dims.count()));
    let offsets: Vec<i32> = [0, 5, 5, 308, 372].to_vec();
    let used = [5, 0, 300, 64];
    let rows = Packed::new(&offsets).unwrap().with_used(&used).unwrap();
    let shape = Shape::new(4, heads, 4, head_dim).with_kv_heads(kv_heads).with_key_len(300);
    let problem = Problem::new(shape).unwrap().causal().with_lse(true);
    let queries = Packed::new(&[0, 1, 3, 5, 9]).unwrap();
    for (granularity, layout, v_layout) in [
        (Granularity::Head, Layout::Bshd, Layout::Bhds),
        (Granularity::Block { rows: 1 }, Layout::Bhsd, Layout::Bhsd),
        (Granularity::Block { rows: 7 }, Layout::Bshd, Layout::Bhds),
        (Granularity::Tensor, Layout::Bhsd, Layout::Bshd),
    ] {
        let quantizer = Quantizer::new(FORMAT).with_granularity(granularity);
        let k = quantizer.with_layout(layout).quantize(&k, dims, Layout::Bhsd).unwrap();
        let v = quantizer.with_layout(v_layout).centered().quantize(&v, dims, Layout::Bhsd).unwrap();
        let keys = KeyValues::Packed { k: &k, v: &v, rows: &rows };
        let expected = reference::ragged_attention(&problem, &q, &queries, keys).unwrap();
        let output = attention(&problem, &q, &queries, keys).unwrap();
        for (index, (value, expected)) in output.values.to_f32().iter().zip(&expected.values).enumerate() {
            assert!(
                (f64::from(*value) - expected).abs() < 1e-4,
                "{granularity} {layout} at {index}: {value}, {expected}"
            );
        }
        assert_eq!(output.lse.unwrap()[1], f32::NEG_INFINITY, "a sequence without keys");
    }
}

#[test]
fn a_cache_that_grows_token_by_token_is_that_of_all_tokens() {
    let (kv_heads, group, head_dim, page_size) = (2, 5, 64, 16);
    let mut random = Numbered(5);
    let mut cache = KvCache::new(40, page_size, kv_heads, head_dim).unwrap();
    let token = kv_heads * head_dim;
    let kept: Vec<(_, usize)> = [33, 1, 200].map(|len| (cache.open(), len)).to_vec();
    let given: Vec<[Vec<f32>; 2]> =
        kept.iter().map(|(_, len)| [random.values(len * token), random.values(len * token)]).collect();
    let gone = cache.open();
    cache.append(gone, &random.values(50 * token), &random.values(50 * token)).unwrap();
    for step in 0..200 {
        // Sequences grow by turns, and one is closed in between, so that pages are used again.
        if step == 30 {
            cache.close(gone).unwrap();
        }
        for ((sequence, len), [k, v]) in kept.iter().zip(&given) {
            if step < *len {
                let part = step * token..(step + 1) * token;
                cache.append(*sequence, &k[part.clone()], &v[part]).unwrap();
            }
        }
    }
    assert_eq!(cache.free_pages(), 40 - 3 - 1 - 13);
    assert!(cache.len_of(gone).is_err() && cache.close(gone).is_err());
    let (heads, queries) = (kv_heads * group, 4);
    let q_dims = Dims::new(1, heads, queries, head_dim);
    let q =
        per_token().with_layout(Layout::Bshd).quantize(&random.values(q_dims.count()), q_dims, Layout::Bshd).unwrap();
    let shape = Shape::new(3, heads, 2, head_dim).with_kv_heads(kv_heads).with_key_len(200);
    let problem = Problem::new(shape).unwrap().causal().with_lse(true).batch_invariant();
    let rows = Packed::new(&[0, 1, 2, 4]).unwrap();
    let sequences: Vec<_> = kept.iter().map(|(sequence, _)| *sequence).collect();
    let output = cache.attention(&problem, &q, &rows, &sequences).unwrap();

    let total = 234;
    let dims = Dims::new(1, kv_heads, total, head_dim);
    let [k, v] = [0, 1].map(|which| {
        let values: Vec<f32> = given.iter().flat_map(|given| given[which].clone()).collect();
        per_token().quantize(&values, dims, Layout::Bshd).unwrap()
    });
    let offsets = [0, 33, 34, 234];
    let packed = Packed::new(&offsets).unwrap();
    let keys = KeyValues::Packed { k: &k, v: &v, rows: &packed };
    let expected = attention(&problem, &q, &rows, keys).unwrap();
    assert!(bits(&output) == bits(&expected), "pages give other bits than packed keys");
}

#[test]
fn a_full_cache_and_wrong_values_change_nothing() {
    let mut cache = KvCache::new(2, 16, 1, 8).unwrap();
    let sequence = cache.open();
    let refused = |result: Result<()>, expected: &str| {
        let error = result.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    refused(cache.append(sequence, &[1.0f32; 33 * 8], &[1.0; 33 * 8]), "room for 33 tokens is not available");
    refused(cache.append(sequence, &[1.0f32; 8], &[f32::NAN; 8]), "values: NaN at token 0, head 0, channel 0");
    refused(cache.append(sequence, &[1.0f32; 8], &[1.0; 16]), "k: has 8 values and v has 16");
    refused(cache.append(sequence, &[1.0f32; 7], &[1.0; 7]), "k: has 7 values");
    assert_eq!((cache.len_of(sequence), cache.free_pages()), (Ok(0), 2));
    cache.append(sequence, &[1.0f32; 32 * 8], &[1.0; 32 * 8]).unwrap();
    refused(cache.append(sequence, &[1.0f32; 8], &[1.0; 8]), "it takes 1 more pages, and 0 are free");
    assert_eq!(cache.len_of(sequence), Ok(32));
}

#[test]
fn what_is_too_large_for_a_given_scale_saturates() {
    let layout = PageLayout::hnd(2, 4, 2, 8);
    let mut codes = vec![0x7f; 2 * 4 * 2 * 8];
    let values: Vec<f32> = (0..3 * 16).map(|index| [1e9, -3.0][index % 2]).collect();
    let mut tensor = PagedTensorMut::new(layout, FORMAT, &mut codes).unwrap();
    tensor.append(&values, &[7, -1, 0], AppendScales::Given(&[1.0, 2.0])).unwrap();
    let slots = BlockTable::new(&[0, 1], 2, &[1]).unwrap();
    assert_eq!(slots.sequences(), 1);
    let decoded = |slot: usize, head: usize| {
        let start = slot / 4 * 64 + head * 32 + slot % 4 * 8;
        [0, 1].map(|channel| eightfold::fp8::decode(FORMAT, codes[start + channel]))
    };
    assert_eq!([decoded(7, 0), decoded(7, 1), decoded(0, 1)], [[448.0, -3.0], [448.0, -1.5], [448.0, -1.5]]);
    let untouched = codes.iter().filter(|code| **code == 0x7f).count();
    assert_eq!(untouched, codes.len() - 2 * 16, "a slot that was not named was written");
}

#[test]
fn wrong_appends_name_the_token_and_write_nothing() {
    let layout = PageLayout::nhd(3, 4, 1, 8);
    let refused = |slots: &[i64], values: &[f32], scales: &[f32], expected: &str| {
        let mut codes = vec![1; 3 * 4 * 8];
        let mut tensor = PagedTensorMut::new(layout, FORMAT, &mut codes).unwrap();
        let error = tensor.append(values, slots, AppendScales::Given(scales)).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
        assert_eq!(codes, [1; 3 * 4 * 8]);
    };
    let two = [1.0; 16];
    refused(&[0, -2], &two, &[1.0], "slots: token 1 has slot -2");
    refused(&[12, 0], &two, &[1.0], "slots: token 0 has slot 12, but the cache has slots 0 to 11");
    refused(&[i64::MAX, i64::MIN], &two, &[1.0], "slots: token 0");
    refused(&[0], &two, &[1.0], "values: 16 values for 1 slots");
    refused(&[0, 1], &two, &[1.0, 1.0], "scales: 2 scales for 1 heads");
    refused(&[0, 1], &two, &[f32::NAN], "scales: scale 0 is NaN");
    refused(&[0, 1], &two, &[0.0], "scales: scale 0 is 0");
    let mut infinite = two;
    infinite[9] = f32::INFINITY;
    refused(&[0, 1], &infinite, &[1.0], "values: inf at token 1, head 0, channel 1");
    let mut codes = vec![0; 3 * 4 * 8];
    let mut tensor = PagedTensorMut::new(layout, FORMAT, &mut codes).unwrap();
    tensor.append(&infinite, &[0, -1], AppendScales::Given(&[1.0])).unwrap();
    let strides = PageStrides::new(4, 1, 1);
    let short = AppendScales::Computed { scales: &mut [0.0; 11], strides };
    assert!(tensor.append(&two, &[0, 1], short).unwrap_err().to_string().starts_with("scales: 11 do not hold the 12"));
    assert!(PagedTensorMut::new(layout, FORMAT, &mut codes[..95]).unwrap_err().to_string().starts_with("codes: 95"));
}

#[test]
fn parts_of_the_keys_merge_to_the_whole() {
    let shape = Shape::new(2, 4, 3, 64).with_kv_heads(2).with_key_len(160);
    let whole = Problem::new(shape).unwrap().with_lse(true).with_output_layout(Layout::Bshd).unwrap();
    let mut random = Numbered(2);
    let quantized = |dims: Dims, values: &[f32]| eightfold::quantize(values, dims).unwrap();
    let q = quantized(shape.query_dims(), &random.values(shape.query_dims().count()));
    let (k, v) = (random.values(shape.key_dims().count()), random.values(shape.key_dims().count()));
    // One scale for all, so that the parts are those of the whole.
    let tensor = |values: &[f32], keys: std::ops::Range<usize>| {
        let dims = Dims::new(2, 2, keys.len(), 64);
        let rows =
            values.chunks(160 * 64).flat_map(|head| &head[keys.start * 64..keys.end * 64]).map(|value| value / 0.02);
        let mut codes = vec![0; dims.count()];
        eightfold::fp8::encode_slice(FORMAT, &rows.collect::<Vec<f32>>(), &mut codes).unwrap();
        Fp8Tensor::new(dims, Layout::Bhsd, FORMAT, codes, eightfold::Scales::per_tensor(0.02).unwrap()).unwrap()
    };
    let attend = |keys: std::ops::Range<usize>, format| {
        let problem = Problem::new(shape.with_key_len(keys.len())).unwrap().with_lse(true);
        let problem = problem.with_output_layout(Layout::Bshd).unwrap().with_output_format(format);
        eightfold::attention(&problem, &q, &tensor(&k, keys.clone()), &tensor(&v, keys)).unwrap()
    };
    for format in [OutputFormat::F32, OutputFormat::F16, OutputFormat::Bf16] {
        let tolerance = if format == OutputFormat::F32 { 1e-5 } else { 1e-2 };
        let expected = attend(0..160, format);
        for parts in 1..=16 {
            let mut outputs: Vec<Output> =
                (0..parts).map(|part| attend(160 * part / parts..160 * (part + 1) / parts, format)).collect();
            // A part without keys says so, and takes no part.
            let mut empty = Output::zeros(&whole.with_output_format(format));
            empty.lse.as_mut().unwrap().fill(f32::NEG_INFINITY);
            outputs.insert(parts / 2, empty.clone());
            let merged = merge(q.dims(), Layout::Bshd, &outputs.iter().collect::<Vec<_>>()).unwrap();
            for (merged, expected) in merged.values.to_f32().iter().zip(expected.values.to_f32()) {
                assert!((merged - expected).abs() < tolerance, "{parts} parts in {format}: {merged} and {expected}");
            }
            for (merged, expected) in merged.lse.unwrap().iter().zip(expected.lse.as_ref().unwrap()) {
                assert!((merged - expected).abs() < 1e-4, "{parts} parts: {merged} and {expected}");
            }
            let nothing = merge(q.dims(), Layout::Bshd, &[&empty, &empty]).unwrap();
            assert_eq!(bits(&nothing), bits(&empty));
        }
    }
}

#[test]
fn parts_that_do_not_belong_together_are_refused() {
    let problem = Problem::new(Shape::new(1, 2, 3, 8)).unwrap().with_lse(true);
    let (dims, part) = (problem.shape().query_dims(), Output::zeros(&problem));
    let refused = |parts: &[&Output], expected: &str| {
        let error = merge(dims, Layout::Bhsd, parts).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    refused(&[], "there are none");
    refused(&[&part, &Output::zeros(&problem.with_lse(false))], "part 1 is no output");
    refused(&[&part, &Output::zeros(&problem.with_output_format(OutputFormat::F16))], "part 1 is no output");
    let shorter = Problem::new(Shape::new(1, 2, 2, 8)).unwrap().with_lse(true);
    refused(&[&Output::zeros(&shorter)], "part 0 is no output");
    for wrong in [f32::NAN, f32::INFINITY] {
        let mut other = part.clone();
        other.lse.as_mut().unwrap()[4] = wrong;
        refused(&[&part, &other], "the log-sum-exp of row 4 of part 1");
    }
    assert!(merge(dims, Layout::Bhds, &[&part]).unwrap_err().to_string().starts_with("layout: bhds"));
}

/// A sound call, of which tests break one thing.
fn sound() -> Batch {
    let sequences = vec![(1, 40), (2, 17)];
    Recipe { server: Server::Fa3, page_size: 16, kv_heads: 2, group: 2, head_dim: 64, sequences, scales: 3, seed: 1 }
        .batch()
}

#[test]
fn a_call_that_does_not_fit_names_what_is_wrong() {
    let refused = |break_it: &dyn Fn(&mut Batch), expected: &str| {
        let mut batch = sound();
        break_it(&mut batch);
        let problem = batch.problem;
        let result = batch.with(|queries, keys| attention(&problem, &batch.q, queries, keys).map(|_| ()));
        let error = result.expect_err(expected).to_string();
        assert!(error.contains(expected), "{error}");
        let result = batch.with(|queries, keys| reference::ragged_attention(&problem, &batch.q, queries, keys));
        assert_eq!(result.unwrap_err().to_string(), error, "the reference says the same");
    };
    refused(&|batch| batch.table[2] = 9999, "block_table: entry 2 of sequence 0 is page 9999");
    refused(&|batch| batch.table[4] = -1, "block_table: entry 0 of sequence 1 is page -1");
    refused(&|batch| batch.lengths[1] = 65, "lengths: sequence 1 has 65 tokens, but its 4 pages of 16 tokens hold 64");
    refused(&|batch| batch.offsets[2] = 4, "q: has 3 rows, but its cu_seqlens end at 4");
    refused(
        &|batch| batch.problem = shaped(2, 4, 1, 64, 2, 40),
        "queries: sequence 1 has 2, but the problem says at most 1",
    );
    refused(
        &|batch| batch.problem = shaped(2, 4, 2, 64, 2, 39),
        "keys: sequence 0 has 40, but the problem says at most 39",
    );
    refused(&|batch| batch.problem = shaped(3, 4, 2, 64, 2, 40), "queries: are of 2 sequences");
    refused(&|batch| batch.problem = shaped(2, 6, 2, 64, 2, 40), "q: has dims [1, 4, 3, 64]");
    refused(&|batch| batch.problem = shaped(2, 4, 2, 64, 4, 40), "k: has 2 heads of 64 channels");
    refused(&|batch| batch.problem = batch.problem.with_input_format(Fp8Format::E5m2), "q: is in e4m3");
    for (wrong, text) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (0.0, "0"), (-1.0, "-1")] {
        let last = move |batch: &mut Batch| {
            // Token 16 of sequence 1 is the first of its second page; the other head of V.
            let page = batch.table[5] as usize;
            batch.scales[1][page * 16 * 2 + 1] = wrong;
        };
        refused(&last, "v: token 16 of sequence 1, slot 0 of page");
        refused(&last, &format!("has the scale {text} for head 1"));
    }
}

fn shaped(batch: usize, heads: usize, query_len: usize, head_dim: usize, kv_heads: usize, key_len: usize) -> Problem {
    Problem::new(Shape::new(batch, heads, query_len, head_dim).with_kv_heads(kv_heads).with_key_len(key_len)).unwrap()
}

#[test]
fn scales_of_a_cache_are_counted_and_looked_at() {
    let layout = PageLayout::nhd(2, 16, 3, 64);
    let codes = vec![0; 2 * 16 * 3 * 64];
    let refused = |granularity, scales: &[f32], expected: &str| {
        let error = PagedTensor::new(layout, FORMAT, &codes, granularity, scales).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    };
    refused(PageScales::Tensor, &[], "scales: 0 do not suffice where 1 are needed");
    refused(PageScales::Head, &[1.0, 1.0], "scales: 2 do not suffice where 3 are needed");
    refused(PageScales::Head, &[1.0, f32::NAN, 1.0], "scales: scale 1 is NaN");
    refused(PageScales::Sequence, &[f32::INFINITY], "scales: scale 0 is inf");
    refused(PageScales::Token(PageStrides::new(48, 3, 1)), &[1.0; 95], "scales: 95 do not suffice where 96 are needed");
    refused(PageScales::Token(PageStrides::new(48, 1, 1)), &[1.0; 96], "strides: ");
    let tensor = PagedTensor::new(layout, FORMAT, &codes, PageScales::Sequence, &[1.0; 3]).unwrap();
    let table = BlockTable::new(&[0, 1], 1, &[3, 3]).unwrap();
    let q = per_token().quantize(&[1.0f32; 2 * 3 * 64], Dims::new(1, 3, 2, 64), Layout::Bhsd).unwrap();
    let problem = shaped(2, 3, 1, 64, 3, 3);
    let keys = KeyValues::Paged { k: &tensor, v: &tensor, table: &table };
    let error = attention(&problem, &q, &Packed::new(&[0, 1, 2]).unwrap(), keys).unwrap_err().to_string();
    assert!(error.starts_with("k: has 3 scales, but 2 sequences need 6"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Whatever a server hands over, there is an answer or an error, and never a panic or a read out of bounds.
    #[test]
    fn no_input_is_fatal(
        entries in prop::collection::vec(-3i32..12, 0..12),
        max_pages in 0usize..5,
        lengths in prop::collection::vec(-2i32..90, 0..4),
        offsets in prop::collection::vec(-1i32..7, 0..5),
        pages in 0usize..10,
        page_size in prop::sample::select(vec![0usize, 1, 3, 16, 32]),
        strides in prop::option::of((0usize..5000, 0usize..300, 0usize..300)),
        memory in 0usize..40_000,
        scales in prop::collection::vec(prop_oneof![Just(1.0f32), Just(f32::NAN), Just(0.0), Just(f32::MIN_POSITIVE)], 0..40),
        which in 0usize..4,
        slots in prop::collection::vec(-2i64..200, 3),
        huge in prop::bool::weighted(0.1),
    ) {
        let scale = if huge { usize::MAX / 3 } else { 1 };
        let layout = PageLayout::nhd(pages.saturating_mul(scale), page_size, 2, 64);
        let layout = match strides {
            Some((page, token, head)) => layout.with_strides(PageStrides::new(page, token, head)),
            None => layout,
        };
        let stride = layout.strides;
        let mut codes = vec![0x30; memory];
        if let Ok(mut tensor) = PagedTensorMut::new(layout, FORMAT, &mut codes) {
            let _ = tensor.append(&[1.0f32; 3 * 2 * 64], &slots, AppendScales::Given(&scales));
        }
        let granularity = [PageScales::Tensor, PageScales::Head, PageScales::Sequence, PageScales::Token(stride)][which];
        let q = per_token().quantize(&[0.5f32; 2 * 6 * 64], Dims::new(1, 2, 6, 64), Layout::Bshd).unwrap();
        let call = || -> Result<Output> {
            let tensor = PagedTensor::new(layout, FORMAT, &codes, granularity, &scales)?;
            let table = BlockTable::new(&entries, max_pages, &lengths)?;
            let queries = Packed::new(&offsets)?;
            let problem = shaped(queries.sequences(), 2, 6, 64, 2, 90).with_lse(true);
            attention(&problem, &q, &queries, KeyValues::Paged { k: &tensor, v: &tensor, table: &table })
        };
        if let Ok(output) = call() {
            prop_assert!(output.values.to_f32().iter().all(|value| value.is_finite()));
        }
    }
}
