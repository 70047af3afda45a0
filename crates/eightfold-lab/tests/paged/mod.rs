//! Problems on pages of a cache, for every device that tests run on.

use eightfold::cuda::Workspace;
use eightfold::cuda::driver::{Device, Stream};
use eightfold::cuda::paged::{PagedAddresses, PagedAttention, PagedKeys, PagedQueries, QueryFormat};
use eightfold::cuda::ragged::{KeyAddresses, RaggedAddresses, RaggedAttention, RaggedKeys, RaggedRows};
use eightfold::lab::driver::{Buffer, Plain, download, upload};
use eightfold::serving::{PageLayout, PageScales, PageStrides};
use eightfold::{Fp8Format, Mask, OutputFormat, Problem, Result, Shape, Window, fp8};
use half::{bf16, f16};

/// Numbers that look random, the same in every run.
pub struct Noise(pub u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.0 >> 33
    }

    pub fn below(&mut self, count: usize) -> usize {
        self.next() as usize % count
    }

    /// About normal.
    pub fn value(&mut self) -> f32 {
        (0..4).map(|_| self.next() as f32 / 2f32.powi(31) - 0.5).sum::<f32>() * 1.7
    }
}

#[derive(Debug, Clone)]
pub struct Case {
    pub name: &'static str,
    heads: (usize, usize),
    head_dim: usize,
    page_size: usize,
    /// Queries and keys of every sequence.
    sequences: Vec<(usize, usize)>,
    packed: bool,
    format: Fp8Format,
    queries: QueryFormat,
    output: OutputFormat,
    mask: Mask,
    /// `[page, head, token, K and V]` instead of `[page, token, head]`.
    interleaved: bool,
    scales: Scaling,
    batch_invariant: bool,
    mean: f32,
    window: Window,
    softcap: Option<f32>,
    sinks: bool,
    /// By tensor cores of Hopper, whose weights are FP8, as are the queries then.
    ragged: bool,
    /// Keys one sequence behind the other instead of in pages, which then are of one token and in order.
    packed_keys: bool,
    /// The one sequence that has keys: then what all others have is not there.
    alone: Option<usize>,
    /// Pages of the first sequence that all others begin with.
    shared: usize,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scaling {
    Tensor,
    Head,
    Sequence,
    Token,
}

impl Case {
    fn new(name: &'static str, heads: (usize, usize), head_dim: usize, sequences: &[(usize, usize)]) -> Case {
        Case {
            name,
            heads,
            head_dim,
            page_size: 16,
            sequences: sequences.to_vec(),
            packed: false,
            format: Fp8Format::E4m3,
            queries: QueryFormat::Values(OutputFormat::Bf16),
            output: OutputFormat::F32,
            mask: Mask::Causal,
            interleaved: false,
            scales: Scaling::Tensor,
            batch_invariant: false,
            mean: 0.0,
            window: Window::new(None, None),
            softcap: None,
            sinks: false,
            ragged: false,
            packed_keys: false,
            alone: None,
            shared: 0,
        }
    }
}

pub fn cases() -> Vec<Case> {
    use QueryFormat::{Codes, Values};
    let one = |name, heads, head_dim, lengths: &[usize]| {
        Case::new(name, heads, head_dim, &lengths.iter().map(|keys| (1, *keys)).collect::<Vec<_>>())
    };
    vec![
        one("ragged", (4, 2), 64, &[0, 1, 15, 16, 17, 129, 700]),
        Case {
            page_size: 64,
            interleaved: true,
            scales: Scaling::Head,
            ..one("wide pages", (8, 1), 128, &[63, 64, 65, 300])
        },
        Case { page_size: 1, scales: Scaling::Sequence, ..one("gathered", (5, 1), 64, &[33, 7, 260]) },
        Case { page_size: 7, format: Fp8Format::E5m2, ..one("odd pages", (6, 2), 64, &[50, 0, 77]) },
        Case {
            scales: Scaling::Token,
            queries: Codes,
            output: OutputFormat::Bf16,
            ..one("token scales", (7, 1), 64, &[40, 161])
        },
        Case {
            mean: 1.0,
            queries: Values(OutputFormat::F16),
            output: OutputFormat::F16,
            ..one("mean 1", (2, 1), 128, &[513])
        },
        Case { shared: 3, ..one("shared pages", (4, 1), 64, &[100, 40, 90, 7]) },
        Case { page_size: 32, ..Case::new("four queries", (8, 2), 64, &[(4, 4), (4, 100), (4, 3), (4, 33)]) },
        Case { packed: true, ..Case::new("mixed", (12, 4), 64, &[(1, 90), (0, 50), (37, 70), (3, 3), (1, 0)]) },
        Case { mask: Mask::None, page_size: 48, ..Case::new("unmasked", (3, 3), 96, &[(2, 50), (2, 97)]) },
        Case { batch_invariant: true, ..one("fixed cuts", (2, 1), 64, &[100, 2100, 1024]) },
        Case { queries: Values(OutputFormat::F32), interleaved: true, ..one("wide heads", (2, 1), 256, &[70, 5]) },
        Case { mask: Mask::None, ..Case::new("two tiles of rows", (20, 1), 128, &[(2, 80), (2, 31)]) },
        one("some parts", (2, 1), 64, &[64 * 45]),
        one("many parts", (2, 1), 64, &[64 * 70]),
        Case {
            window: Window::new(Some(127), None),
            sinks: true,
            ..one("window and sinks", (8, 1), 64, &[700, 0, 90, 128, 129])
        },
        Case {
            mask: Mask::None,
            window: Window::new(Some(70), Some(20)),
            packed: true,
            ..Case::new("two sides", (12, 4), 64, &[(37, 300), (3, 3), (40, 20), (0, 9)])
        },
        Case { softcap: Some(2.0), page_size: 64, ..Case::new("softcap", (8, 2), 128, &[(3, 130), (3, 65)]) },
        Case {
            softcap: Some(9.0),
            sinks: true,
            window: Window::new(Some(40), None),
            scales: Scaling::Token,
            batch_invariant: true,
            ..one("all of them", (7, 1), 64, &[1500, 1024, 2])
        },
    ]
}

/// Every page size with both layouts and every size of groups, on lengths around a page; and long sequences.
pub fn sweep() -> Vec<Case> {
    let mut cases = Vec::new();
    let scales = [Scaling::Tensor, Scaling::Head, Scaling::Sequence];
    for (index, page_size) in [1, 7, 16, 32, 48, 64, 128, 256].into_iter().enumerate() {
        for interleaved in [false, true] {
            for group in [1, 4, 5, 6, 7, 8, 12, 16, 20] {
                let lengths = [0, 1, page_size - 1, page_size, page_size + 1, 700];
                let sequences: Vec<_> = lengths.iter().map(|keys| (1, *keys)).collect();
                // The larger of two groups has one KV head.
                let kv_heads = if group < 12 { 2 } else { 1 };
                let scales = scales[(index + group) % 3];
                let case = Case::new("sweep", (group * kv_heads, kv_heads), [128, 64][(index + group) % 2], &sequences);
                cases.push(Case { page_size, interleaved, scales, output: OutputFormat::Bf16, mean: 1.0, ..case });
            }
        }
    }
    for (page_size, group, queries) in [(16, 4, 1), (64, 8, 1), (16, 8, 4), (1, 4, 1)] {
        let sequences = [(queries, 131072), (queries, 0), (queries, 8191), (queries, queries)];
        let case = Case::new("long", (group, 1), 128, &sequences);
        cases.push(Case { page_size, output: OutputFormat::Bf16, mean: 1.0, ..case });
    }
    cases
}

/// For tensor cores of Hopper.
pub fn ragged_cases() -> Vec<Case> {
    use QueryFormat::{Codes, Values};
    let new = |name, heads, head_dim, sequences: &[(usize, usize)]| Case {
        ragged: true,
        packed: true,
        ..Case::new(name, heads, head_dim, sequences)
    };
    vec![
        new("chunks", (6, 2), 64, &[(1, 90), (0, 50), (200, 270), (130, 130), (3, 0), (70, 40)]),
        Case { queries: Codes, packed: false, ..new("dense queries", (2, 1), 64, &[(20, 300), (20, 20), (20, 5)]) },
        Case {
            mean: 1.0,
            output: OutputFormat::Bf16,
            scales: Scaling::Sequence,
            page_size: 64,
            interleaved: true,
            ..new("prompts of mean 1", (2, 1), 128, &[(140, 700), (30, 30)])
        },
        Case {
            packed_keys: true,
            page_size: 1,
            mask: Mask::None,
            scales: Scaling::Head,
            queries: Values(OutputFormat::F16),
            ..new("packed keys", (2, 2), 128, &[(40, 129), (1, 256), (10, 1)])
        },
        Case {
            packed_keys: true,
            page_size: 1,
            queries: Values(OutputFormat::F32),
            output: OutputFormat::F16,
            ..new("prompts", (4, 1), 64, &[(193, 193), (17, 17), (0, 0), (250, 250)])
        },
        Case {
            window: Window::new(Some(100), None),
            sinks: true,
            ..new("prompts behind a window", (2, 1), 64, &[(193, 600), (17, 17), (0, 5), (50, 10)])
        },
        Case {
            mask: Mask::None,
            window: Window::new(Some(70), Some(20)),
            queries: Codes,
            packed: false,
            ..new("two sides of prompts", (1, 1), 128, &[(130, 300), (130, 90), (130, 0)])
        },
    ]
}

/// What lies in device memory, and what it stands for.
struct Cache {
    keys: PagedKeys,
    codes: Vec<u8>,
    /// Where V's first code is.
    values_at: usize,
    k_scales: Vec<f32>,
    v_scales: Vec<f32>,
    table: Vec<i32>,
    max_pages: usize,
    /// Of each sequence: token, head, channel.
    k: Vec<Vec<f64>>,
    v: Vec<Vec<f64>>,
}

impl Cache {
    fn new(case: &Case, noise: &mut Noise) -> Cache {
        let (_, heads) = case.heads;
        let (size, width) = (case.page_size, case.head_dim);
        let pages_of = |keys: usize| keys.div_ceil(size);
        let used: usize = case.sequences.iter().map(|(_, keys)| pages_of(*keys)).sum();
        let pages = used + 3;
        let layout = PageLayout::nhd(pages, size, heads, width);
        let (layout, bytes, values_at) = match case.interleaved {
            false => (layout, 2 * pages * size * heads * width, pages * size * heads * width),
            true => {
                let row = 2 * width;
                let strides = PageStrides::new(heads * size * row, row, size * row);
                (layout.with_strides(strides), pages * size * heads * row, width)
            }
        };
        // What no sequence has is NaN.
        let mut codes = vec![0x7f; bytes];
        let beside = PageStrides::new(size * heads, heads, 1);
        let granularity = match case.scales {
            Scaling::Tensor => PageScales::Tensor,
            Scaling::Head => PageScales::Head,
            Scaling::Sequence => PageScales::Sequence,
            Scaling::Token => PageScales::Token(beside),
        };
        let count = match case.scales {
            Scaling::Tensor => 1,
            Scaling::Head => heads,
            Scaling::Sequence => heads * case.sequences.len(),
            Scaling::Token => pages * size * heads,
        };
        let mut scales = || -> Vec<f32> { (0..count).map(|_| 0.01 * (1 + noise.below(9)) as f32).collect() };
        let (k_scales, v_scales) = (scales(), scales());
        // Pages in no order.
        let mut free: Vec<i32> = (0..pages as i32).collect();
        for index in (1..pages).rev() {
            free.swap(index, noise.below(index + 1));
        }
        if case.packed_keys {
            free.sort_unstable_by_key(|page| -page);
        }
        let max_pages = case.sequences.iter().map(|(_, keys)| pages_of(*keys)).max().unwrap_or(0).max(1);
        let mut table = vec![i32::MAX; case.sequences.len() * max_pages];
        let (mut all_k, mut all_v) = (Vec::<Vec<f64>>::new(), Vec::<Vec<f64>>::new());
        for (sequence, (_, keys)) in case.sequences.iter().enumerate() {
            let first = table[..max_pages].to_vec();
            let row = &mut table[sequence * max_pages..][..max_pages];
            row[..pages_of(*keys)].fill_with(|| free.pop().unwrap());
            let shared = if sequence > 0 { case.shared.min(pages_of(*keys)) } else { 0 };
            row[..shared].copy_from_slice(&first[..shared]);
            let (mut k, mut v) = (Vec::new(), Vec::new());
            for token in 0..*keys {
                if token < shared * size {
                    let of = token * heads * width..(token + 1) * heads * width;
                    k.extend_from_slice(&all_k[0][of.clone()]);
                    v.extend_from_slice(&all_v[0][of]);
                    continue;
                }
                let (page, place) = (row[token / size] as usize, token % size);
                for head in 0..heads {
                    let scale_at = match case.scales {
                        Scaling::Tensor => 0,
                        Scaling::Head => head,
                        Scaling::Sequence => sequence * heads + head,
                        Scaling::Token => offset(&beside, page, place, head),
                    };
                    let at = offset(&layout.strides, page, place, head);
                    for (start, scale, all, mean) in
                        [(0, k_scales[scale_at], &mut k, 0.0), (values_at, v_scales[scale_at], &mut v, case.mean)]
                    {
                        for channel in 0..width {
                            let code = fp8::encode(case.format, (noise.value() + mean) / scale);
                            codes[start + at + channel] = code;
                            all.push(f64::from(fp8::decode(case.format, code)) * f64::from(scale));
                        }
                    }
                }
            }
            all_k.push(k);
            all_v.push(v);
        }
        let keys = PagedKeys::new(layout, granularity);
        Cache { keys, codes, values_at, k_scales, v_scales, table, max_pages, k: all_k, v: all_v }
    }
}

fn offset(strides: &PageStrides, page: usize, token: usize, head: usize) -> usize {
    page * strides.page + token * strides.token + head * strides.head
}

/// The queries in memory, their scales, and what they stand for.
fn queries(case: &Case, rows: usize, noise: &mut Noise) -> (Vec<u8>, Vec<f32>, Vec<f64>) {
    let (heads, _) = case.heads;
    let scales: Vec<f32> = (0..case.sequences.len() * heads).map(|_| 0.01 * (1 + noise.below(9)) as f32).collect();
    let (mut bytes, mut values) = (Vec::new(), Vec::new());
    for row in 0..rows {
        // Codes are tested where sequences have as many queries each.
        let sequence = row * case.sequences.len() / rows.max(1);
        for head in 0..heads {
            for _ in 0..case.head_dim {
                let value = noise.value();
                values.push(match case.queries {
                    QueryFormat::Codes => {
                        let scale = scales[sequence * heads + head];
                        let code = fp8::encode(case.format, value / scale);
                        bytes.push(code);
                        f64::from(fp8::decode(case.format, code)) * f64::from(scale)
                    }
                    QueryFormat::Values(OutputFormat::F16) => {
                        let half = f16::from_f32(value);
                        bytes.extend(half.to_ne_bytes());
                        half.to_f64()
                    }
                    QueryFormat::Values(OutputFormat::Bf16) => {
                        let half = bf16::from_f32(value);
                        bytes.extend(half.to_ne_bytes());
                        half.to_f64()
                    }
                    _ => {
                        bytes.extend(value.to_ne_bytes());
                        f64::from(value)
                    }
                });
            }
        }
    }
    (bytes, scales, values)
}

pub fn on_device<T: Plain>(device: &Device, stream: &Stream, values: &[T]) -> Result<Buffer> {
    let buffer = device.allocate(size_of_val(values).max(16))?;
    upload(stream, &buffer, values)?;
    Ok(buffer)
}

/// Where each sequence's keys begin, one behind the other.
fn key_starts_of(case: &Case) -> Vec<i32> {
    let mut starts = vec![0];
    for (_, keys) in &case.sequences {
        starts.push(starts[starts.len() - 1] + *keys as i32);
    }
    starts
}

/// Attends twice, and compares with float64.
pub fn run(case: &Case) -> std::result::Result<(), String> {
    attend(case).map(|_| ())
}

/// Whether every sequence gets the same bits alone as beside the others.
pub fn run_alone(case: &Case) -> std::result::Result<(), String> {
    let case = Case { batch_invariant: true, ..case.clone() };
    let all = attend(&case)?;
    for index in 0..case.sequences.len() {
        let alone = attend(&Case { alone: Some(index), ..case.clone() })?;
        if alone[index].iter().zip(&all[index]).any(|(a, b)| a.to_bits() != b.to_bits()) {
            return Err(format!("sequence {index} has other bits alone"));
        }
    }
    Ok(())
}

/// The output by sequences, compared with float64 unless one is alone.
fn attend(case: &Case) -> std::result::Result<Vec<Vec<f64>>, String> {
    let noise = &mut Noise(7 + case.head_dim as u64);
    let (query_heads, kv_heads) = case.heads;
    let cache = Cache::new(case, noise);
    let most = |of: fn(&(usize, usize)) -> usize| case.sequences.iter().map(of).max().unwrap();
    let (query_len, key_len) = (most(|sequence| sequence.0), most(|sequence| sequence.1).max(1));
    let shape = Shape::new(case.sequences.len(), query_heads, query_len, case.head_dim)
        .with_kv_heads(kv_heads)
        .with_key_len(key_len);
    let problem = Problem::new(shape).unwrap().with_mask(case.mask).with_input_format(case.format);
    let problem = problem.with_output_format(case.output).with_lse(true).with_window(case.window);
    let problem = case.softcap.map_or(problem, |softcap| problem.with_softcap(softcap).unwrap());
    let problem = if case.sinks { problem.with_sinks() } else { problem };
    let sink_of = |head: usize| head as f32 - 1.5;
    let sinks: Vec<f32> = (0..query_heads).map(sink_of).collect();
    let problem = if case.batch_invariant { problem.batch_invariant() } else { problem };
    let mut starts = vec![0i32];
    for (queries, _) in &case.sequences {
        starts.push(starts[starts.len() - 1] + if case.packed { *queries } else { query_len } as i32);
    }
    let rows = starts[case.sequences.len()] as usize;
    let (bytes, q_scales, q) = queries(case, rows, noise);
    let has_keys = |index: usize| case.alone.is_none_or(|one| one == index);
    let lengths: Vec<i32> = case
        .sequences
        .iter()
        .enumerate()
        .map(|(index, (_, keys))| if has_keys(index) { *keys as i32 } else { 0 })
        .collect();

    let launch = || -> Result<(Vec<f64>, Vec<f32>)> {
        let device = Device::default()?;
        let stream = device.stream()?;
        let lie = match case.packed {
            true => PagedQueries::packed(&problem, case.queries),
            false => PagedQueries::dense(&problem, case.queries),
        };
        let q = on_device(&device, &stream, &bytes)?;
        let codes = on_device(&device, &stream, &cache.codes)?;
        let q_scales = on_device(&device, &stream, &q_scales)?;
        let k_scales = on_device(&device, &stream, &cache.k_scales)?;
        let v_scales = on_device(&device, &stream, &cache.v_scales)?;
        let table = on_device(&device, &stream, &cache.table)?;
        let lengths = on_device(&device, &stream, &lengths)?;
        let starts = on_device(&device, &stream, &starts)?;
        let key_starts = on_device(&device, &stream, &key_starts_of(case))?;
        let count = rows * query_heads * case.head_dim;
        let width = if case.output == OutputFormat::F32 { 4 } else { 2 };
        let poison = vec![0xffu8; width * count + 64];
        let output = on_device(&device, &stream, &poison)?;
        let lse = on_device(&device, &stream, &vec![f32::NAN; rows * query_heads])?;
        let q_scales = if case.queries == QueryFormat::Codes { q_scales.pointer() } else { 0 };
        let query_starts = if case.packed { starts.pointer() } else { 0 };
        let (k, v) = (codes.pointer(), codes.pointer() + cache.values_at as u64);
        let sequences = case.sequences.len();
        let sinks = on_device(&device, &stream, &sinks)?;
        if case.ragged {
            let (lies, keys) = match case.packed_keys {
                true => (
                    RaggedKeys::packed(&problem, cache.keys.scales),
                    KeyAddresses::Packed { starts: key_starts.pointer(), lengths: 0 },
                ),
                false => (
                    RaggedKeys::Paged(cache.keys),
                    KeyAddresses::Paged {
                        block_table: table.pointer(),
                        max_pages: cache.max_pages,
                        lengths: lengths.pointer(),
                    },
                ),
            };
            let all = RaggedRows { queries: rows, keys: key_starts_of(case)[sequences] as usize };
            let call = RaggedAttention::new(&device, &problem, lie, lies, all)?;
            let call = if case.sinks { call.with_sinks(sinks.pointer()) } else { call };
            let mut workspace = Workspace::new(&stream, call.workspace_bytes())?;
            let addresses = RaggedAddresses {
                q: q.pointer(),
                q_scales,
                k,
                k_scales: k_scales.pointer(),
                v,
                v_scales: v_scales.pointer(),
                keys,
                query_starts,
                output: output.pointer(),
                lse: lse.pointer(),
            };
            // SAFETY: tables, lengths and starts are as long as the numbers say.
            unsafe { call.validate(&stream, sequences, &addresses, &mut workspace)? };
            let few = RaggedRows { keys: all.keys - 1, ..all };
            if all.keys > 0 && case.alone.is_none() {
                let call = RaggedAttention::new(&device, &problem, lie, lies, few)?;
                let call = if case.sinks { call.with_sinks(sinks.pointer()) } else { call };
                // SAFETY: as above.
                let told = unsafe { call.validate(&stream, sequences, &addresses, &mut workspace) };
                assert!(told.unwrap_err().to_string().starts_with("keys: are "));
            }
            for _ in 0..2 {
                // SAFETY: all of it lives until the downloads have waited for the launches.
                unsafe { call.launch(&stream, sequences, &addresses, &mut workspace)? };
            }
            stream.synchronize()?;
        } else {
            let call = PagedAttention::new(&device, &problem, lie, cache.keys)?;
            let call = if case.sinks { call.with_sinks(sinks.pointer()) } else { call };
            let mut workspace = Workspace::new(&stream, call.workspace_bytes())?;
            let addresses = PagedAddresses {
                q: q.pointer(),
                q_scales,
                k,
                k_scales: k_scales.pointer(),
                v,
                v_scales: v_scales.pointer(),
                block_table: table.pointer(),
                max_pages: cache.max_pages,
                lengths: lengths.pointer(),
                query_starts,
                output: output.pointer(),
                lse: lse.pointer(),
            };
            // Twice: a launch leaves the workspace as it found it.
            for _ in 0..2 {
                // SAFETY: all of it lives until the downloads have waited for the launches.
                unsafe { call.launch(&stream, case.sequences.len(), &addresses, &mut workspace)? };
            }
            stream.synchronize()?;
        }
        let mut bytes = vec![0u8; width * count];
        download(&stream, &output, &mut bytes)?;
        let mut ends = vec![0.0f32; rows * query_heads];
        download(&stream, &lse, &mut ends)?;
        let values = bytes.chunks_exact(width).map(|bytes| match case.output {
            OutputFormat::F16 => f16::from_ne_bytes([bytes[0], bytes[1]]).to_f64(),
            OutputFormat::Bf16 => bf16::from_ne_bytes([bytes[0], bytes[1]]).to_f64(),
            _ => f64::from(f32::from_ne_bytes(bytes.try_into().unwrap())),
        });
        Ok((values.collect(), ends))
    };
    let (got, ends) = launch().map_err(|error| error.to_string())?;
    let row = query_heads * case.head_dim;
    let of = |range: &[i32]| got[range[0] as usize * row..range[1] as usize * row].to_vec();
    let by_sequence: Vec<Vec<f64>> = starts.windows(2).map(of).collect();
    if case.alone.is_some() {
        return Ok(by_sequence);
    }

    let (width, group) = (case.head_dim, query_heads / kv_heads);
    let (mut error, mut size) = (0.0, 0.0);
    let lse_limit = if case.ragged { 0.2 } else { 2e-3 };
    for (sequence, (queries, keys)) in case.sequences.iter().enumerate() {
        for query in 0..*queries {
            for head in 0..query_heads {
                let row = (starts[sequence] as usize + query) * query_heads + head;
                // Where it stands among the keys, which may be before the first.
                let own = (*keys + query) as isize - *queries as isize;
                let right = if case.mask == Mask::Causal { Some(0) } else { case.window.right };
                let place = |key: isize| key.clamp(0, *keys as isize) as usize;
                let first = case.window.left.map_or(0, |left| place(own - left as isize));
                let end = right.map_or(*keys, |right| place(own + right as isize + 1));
                let visible = first..end.max(first);
                let at = |token: usize| (token * kv_heads + head / group) * width;
                let of = &q[row * width..][..width];
                let scores: Vec<f64> = visible
                    .clone()
                    .map(|token| of.iter().zip(&cache.k[sequence][at(token)..]).map(|(a, b)| a * b).sum::<f64>())
                    .map(|score| score * f64::from(problem.softmax_scale()))
                    .map(|score| case.softcap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh()))
                    .collect();
                let sink = if case.sinks { f64::from(sink_of(head)) } else { f64::NEG_INFINITY };
                let largest = scores.iter().copied().fold(sink, f64::max);
                let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
                let sum = weights.iter().sum::<f64>() + if case.sinks { (sink - largest).exp() } else { 0.0 };
                let end = if sum == 0.0 { f64::NEG_INFINITY } else { largest + sum.ln() };
                let lse_at = match case.packed {
                    true => row,
                    false => (sequence * query_heads + head) * query_len + query,
                };
                let difference = f64::from(ends[lse_at]) - end;
                if !(difference.abs() < lse_limit || f64::from(ends[lse_at]) == end) {
                    return Err(format!(
                        "log-sum-exp of sequence {sequence}, query {query}, head {head}: {difference}"
                    ));
                }
                for channel in 0..width {
                    let expected: f64 = weights
                        .iter()
                        .zip(visible.clone())
                        .map(|(weight, token)| weight / sum * cache.v[sequence][at(token) + channel])
                        .sum();
                    let value = got[row * width + channel];
                    if value.is_nan() {
                        return Err(format!("NaN in sequence {sequence}, query {query}, head {head}"));
                    }
                    error += (value - expected).powi(2);
                    size += expected.powi(2);
                }
            }
        }
    }
    let relative = (error / size).sqrt();
    let limit = match (case.ragged, case.queries == QueryFormat::Codes, case.output == OutputFormat::Bf16) {
        (true, false, _) => 6e-2,
        (true, true, _) => 3.5e-2,
        (false, _, true) => 3e-3,
        (false, _, false) => 6e-4,
    };
    if relative < limit { Ok(by_sequence) } else { Err(format!("relative L2 {relative:.2e}")) }
}
