//! Attention to pages, and to prompts of many lengths, on the device: whether sampled heads are right, and how long it takes
//! beside a plain read of as many bytes.
//!
//! Caches are cold, as each layer of a model finds its own: launches of a graph go around copies of the cache that are larger
//! than the second-level cache together.

mod append;
mod case;
mod goals;
mod inputs;
mod peers;

pub use case::{CASES, Case};
pub use goals::{Goal, goals};

use crate::gates::{Gate, GateReport, Outcome};
use crate::measure::{
    Cache, Conditions, Contestant, GRAPH_LAUNCHES, Interleaved, Method, Work, WorkContestant, interleave,
};
use crate::peers::Torch;
use crate::progress::Progress;
use crate::quantizer::QuantizerEntry as Entry;
use crate::record::Timing;
use case::Keys;
use eightfold::cuda::Workspace;
use eightfold::cuda::driver::{Device, Stream};
use eightfold::cuda::paged::{PagedAddresses, PagedAttention, PagedKeys, PagedQueries, QueryFormat};
use eightfold::cuda::ragged::{KeyAddresses, RaggedAddresses, RaggedAttention, RaggedKeys, RaggedRows};
use eightfold::lab::ReadKernel;
use eightfold::lab::driver::{Buffer, download, upload};
use eightfold::serving::PageScales;
use eightfold::{Error, OutputFormat, Result};
use half::bf16;
use inputs::{Inputs, Lie, SAMPLES, SCALE, Sample};
use peers::{PeerContestant, Peers};
use serde::{Deserialize, Serialize};

/// How many times as large as the second-level cache copies are together.
const COLD: usize = 3;

/// Copies, and launches of a graph, at most, unless fewer are asked for.
pub const MOST_COPIES: usize = 512;

/// The largest relative L2 error of the samples: weights are rounded to f16 and outputs to bf16.
const LARGEST_ERROR: f64 = 4e-3;

/// The same where queries and weights are FP8, on values of mean 1.
const LARGEST_FP8_ERROR: f64 = 6e-2;

/// The page sizes that are timed.
pub const PAGE_SIZES: [usize; 2] = [16, 64];

/// Tokens of a page of [`KvCache`](eightfold::cuda::paged::KvCache), as it is timed.
const OWN_PAGE_SIZE: usize = 64;

/// One case with pages of several sizes, timed in one interleaved run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PagedGroup {
    /// The case, as [`Case`] writes it.
    pub case: String,
    /// The case in words.
    pub title: String,
    /// The plain read, then attention with pages of each size, and to pages as this library's own cache lays them out; then
    /// the peers.
    pub entries: Vec<Entry>,
    /// What each peer is, in words; of one that is not there, why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<String>,
    /// What else went on while they took their turns.
    pub conditions: Conditions,
}

impl PagedGroup {
    /// The share of the plain read's rate that an entry reaches; none for the read.
    pub fn share_of_read(&self, entry: &Entry) -> Option<f64> {
        let read = self.entries.iter().find(|other| other.copy).filter(|_| !entry.copy)?;
        Some(read.p50_us()? / entry.p50_us()?)
    }
}

/// Times a case with pages of these sizes, on no more copies of the cache than that, beside what PyTorch has for the same
/// lengths. `progress` is told how far it is.
pub fn measure(
    case: &Case,
    page_sizes: &[usize],
    most_copies: usize,
    torch: Option<&mut Torch>,
    method: &Method,
    progress: &mut dyn Progress,
) -> Result<PagedGroup> {
    let device = Device::default()?;
    progress.at(0.0, &format!("{case}: preparing"));
    if case.keys == Keys::Append {
        let jobs = append::jobs(&device, case)?;
        return time(&device, case, jobs, GRAPH_LAUNCHES, None, method, progress);
    }
    let (copies, launches) = rounds(&device, case.bytes(), most_copies);
    let mut jobs: Vec<Job> =
        vec![("plain read of as many bytes".into(), Box::new(Read::new(&device, case.bytes(), copies)?))];
    if case.keys == Keys::Prompts {
        // Packed keys, whose pages mean nothing.
        jobs.push(("packed".into(), attending(&device, case, 1, Lie::InOrder, copies)));
    } else {
        for (index, page_size) in page_sizes.iter().enumerate() {
            progress.at(0.4 * index as f64 / page_sizes.len() as f64, &format!("{case}: pages of {page_size}"));
            let work = attending(&device, case, *page_size, Lie::Served, copies);
            jobs.push((format!("paged, {page_size} tokens"), work));
        }
    }
    if !case.is_for_tiles() {
        jobs.push((
            format!("a cache of our own, {OWN_PAGE_SIZE} tokens"),
            attending(&device, case, OWN_PAGE_SIZE, Lie::Own, copies),
        ));
    }
    let peers = torch.map(|torch| {
        progress.at(0.4, &format!("{case}: PyTorch"));
        let (copies, launches) = rounds(&device, peers::bytes(case), most_copies);
        Peers::new(torch, case, copies, launches)
    });
    let mut group = time(&device, case, jobs, launches, peers, method, progress)?;
    for timing in group.entries.iter_mut().filter_map(|entry| entry.timing.as_mut()) {
        timing.cache = Cache::Cold;
    }
    Ok(group)
}

/// Of how many copies a cache of so many bytes is cold, and how many launches go around all of them as often.
fn rounds(device: &Device, bytes: usize, most_copies: usize) -> (usize, usize) {
    let copies = (COLD * device.info().l2_bytes).div_ceil(bytes).clamp(1, most_copies);
    (copies, GRAPH_LAUNCHES.next_multiple_of(copies))
}

/// Attention to so many copies of a cache, or why there is none.
fn attending(device: &Device, case: &Case, page_size: usize, lie: Lie, copies: usize) -> Box<dyn Work> {
    match Attending::new(device, case, page_size, lie, copies) {
        Ok(work) => Box::new(work),
        Err(error) => Box::new(Refused(error)),
    }
}

/// A contestant and its name.
type Job = (String, Box<dyn Work>);

/// Times them in turns, the yardstick first and peers last.
fn time(
    device: &Device,
    case: &Case,
    jobs: Vec<Job>,
    launches: usize,
    peers: Option<Peers>,
    method: &Method,
    progress: &mut dyn Progress,
) -> Result<PagedGroup> {
    let (mut entries, mut contestants) = (Vec::new(), Vec::new());
    for (index, (name, work)) in jobs.into_iter().enumerate() {
        entries.push(Entry { name, copy: index == 0, least_bytes: case.bytes(), gate: None, timing: None });
        contestants.push(WorkContestant::new(device, work, Cache::Hot)?.with_graph_launches(launches));
    }
    let mut of_peers = peers.as_ref().map_or(Vec::new(), Peers::contestants);
    for peer in &of_peers {
        let (name, least_bytes) = (peer.name().into(), peers::bytes(case));
        entries.push(Entry { name, copy: false, least_bytes, gate: None, timing: None });
    }
    let mut field: Vec<&mut dyn Contestant> = contestants.iter_mut().map(|one| one as _).collect();
    field.extend(of_peers.iter_mut().map(|one| one as &mut dyn Contestant));
    let Interleaved { measured, conditions } = interleave(&mut field, method, &mut |share, _| {
        progress.at(0.4 + 0.6 * share, &format!("{case}: timing"));
    });
    let ours = contestants.len();
    for (index, (entry, measured)) in entries.iter_mut().zip(measured).enumerate() {
        if entry.copy {
            // Without the yardstick there is nothing to tell.
            entry.timing = Timing::new(WorkContestant::timer(Cache::Hot), measured?);
        } else {
            let limit = if index < ours { largest_error(case) } else { peers::LARGEST_ERROR };
            entry.gate = Some(gate(case, limit, index >= ours, measured.as_ref().err()));
            entry.timing = measured.ok().and_then(|samples| Timing::new(WorkContestant::timer(Cache::Hot), samples));
        }
    }
    let peers = of_peers.iter().filter_map(PeerContestant::describe).collect();
    Ok(PagedGroup { case: case.to_string(), title: case.title(), entries, peers, conditions })
}

/// The largest error of the samples of a case.
fn largest_error(case: &Case) -> f64 {
    if case.is_for_tiles() { LARGEST_FP8_ERROR } else { LARGEST_ERROR }
}

fn gate(case: &Case, limit: f64, is_peer: bool, error: Option<&Error>) -> GateReport {
    let (outcome, summary) = match error {
        None if case.keys == Keys::Append => (Outcome::Pass, "after every turn the bits were the host's".into()),
        None => (Outcome::Pass, format!("after every turn {SAMPLES} heads were within {limit} of float64")),
        // A peer that is not there, or refuses, is no fault of ours.
        Some(error @ Error::Unavailable { .. }) if is_peer => (Outcome::Unavailable, error.to_string()),
        Some(error) => (Outcome::Fail, error.to_string()),
    };
    GateReport { gate: Gate::Correctness, outcome, summary, checks: Vec::new() }
}

/// What could not be made: it fails its gate, and the others go on.
struct Refused(Error);

impl Work for Refused {
    fn launch(&mut self, _stream: &Stream) -> Result<()> {
        Err(self.0.clone())
    }

    fn poison(&mut self, _stream: &Stream) -> Result<()> {
        Ok(())
    }

    fn verify(&mut self, _stream: &Stream) -> Result<()> {
        Ok(())
    }
}

/// Reads as many bytes as the codes take, one copy after the other.
struct Read {
    kernel: ReadKernel,
    copies: Vec<Buffer>,
    bytes: usize,
    next: usize,
}

impl Read {
    fn new(device: &Device, bytes: usize, copies: usize) -> Result<Self> {
        let bytes = bytes.next_multiple_of(16);
        let copies = (0..copies).map(|_| device.allocate(bytes)).collect::<Result<Vec<_>>>()?;
        let stream = device.stream()?;
        copies.iter().try_for_each(|copy| copy.fill(&stream, 0))?;
        stream.synchronize()?;
        Ok(Read { kernel: ReadKernel::new(device)?, copies, bytes, next: 0 })
    }
}

impl Work for Read {
    fn launch(&mut self, stream: &Stream) -> Result<()> {
        self.next = (self.next + 1) % self.copies.len();
        self.kernel.launch(stream, &self.copies[self.next], self.bytes)
    }

    fn poison(&mut self, _stream: &Stream) -> Result<()> {
        Ok(())
    }

    /// There is no result.
    fn verify(&mut self, _stream: &Stream) -> Result<()> {
        Ok(())
    }
}

/// What is launched, but for the copy of the cache.
enum Call {
    Paged(Box<PagedAttention>, PagedAddresses),
    Ragged(Box<RaggedAttention>, RaggedAddresses),
}

/// Attention to copies of a cache, one after the other.
struct Attending {
    call: Call,
    largest_error: f64,
    workspace: Workspace,
    sequences: usize,
    /// Keys, values and the scales of both.
    copies: Vec<[Buffer; 4]>,
    output: Buffer,
    values: usize,
    samples: Vec<Sample>,
    next: usize,
    _others: [Buffer; 4],
}

impl Attending {
    fn new(device: &Device, case: &Case, page_size: usize, lie: Lie, copies: usize) -> Result<Self> {
        let stream = &device.stream()?;
        let problem = case.problem()?;
        let sequences = case.sequences;
        let (lengths, starts) = (case.lengths(), case.query_starts());
        let rows = starts[sequences];
        // Tokens that follow each other are pages of one, in order.
        let is_packed = lie == Lie::InOrder;
        let page_size = if is_packed { 1 } else { page_size };
        let Inputs { layout, granularity, scales, k, v, q, table, max_pages, samples } =
            Inputs::new(case, page_size, lie)?;
        let values = q.len();
        let on_device = |bytes: usize| device.allocate(bytes.max(16));
        let memory = || -> Result<[Buffer; 4]> {
            Ok([on_device(k.len())?, on_device(v.len())?, on_device(4 * scales)?, on_device(4 * scales)?])
        };
        let first = memory()?;
        upload(stream, &first[0], &k)?;
        upload(stream, &first[1], &v)?;
        upload(stream, &first[2], &vec![SCALE; scales])?;
        upload(stream, &first[3], &vec![SCALE; scales])?;
        let mut caches = vec![first];
        while caches.len() < copies {
            let copy = memory()?;
            for (copy, original) in copy.iter().zip(&caches[0]) {
                copy.copy_from(stream, original)?;
            }
            caches.push(copy);
        }
        let others = [
            on_device(2 * values)?,
            on_device(4 * table.len())?,
            on_device(4 * sequences)?,
            on_device(4 * starts.len())?,
        ];
        let numbers = |numbers: &[usize]| numbers.iter().map(|number| *number as i32).collect::<Vec<_>>();
        upload(stream, &others[0], &q)?;
        upload(stream, &others[1], &table)?;
        upload(stream, &others[2], &numbers(&lengths))?;
        upload(stream, &others[3], &numbers(&starts))?;
        let output = on_device(2 * values)?;
        let [q, table, lengths, starts] = others.each_ref().map(Buffer::pointer);
        let format = QueryFormat::Values(OutputFormat::Bf16);
        let (call, bytes) = if case.is_for_tiles() {
            let lies = match is_packed {
                true => RaggedKeys::packed(&problem, PageScales::Tensor),
                false => RaggedKeys::Paged(PagedKeys::new(layout, granularity)),
            };
            let all = RaggedRows { queries: rows, keys: case.lengths().iter().sum() };
            let call = RaggedAttention::new(device, &problem, PagedQueries::packed(&problem, format), lies, all)?;
            let keys = match is_packed {
                // Prompts are as many queries as keys.
                true => KeyAddresses::Packed { starts, lengths: 0 },
                false => KeyAddresses::Paged { block_table: table, max_pages, lengths },
            };
            let addresses = RaggedAddresses {
                q,
                q_scales: 0,
                k: 0,
                k_scales: 0,
                v: 0,
                v_scales: 0,
                keys,
                query_starts: starts,
                output: output.pointer(),
                lse: 0,
            };
            let bytes = call.workspace_bytes();
            (Call::Ragged(Box::new(call), addresses), bytes)
        } else {
            let lies = PagedQueries::dense(&problem, format);
            let call = PagedAttention::new(device, &problem, lies, PagedKeys::new(layout, granularity))?;
            let addresses = PagedAddresses {
                q,
                q_scales: 0,
                k: 0,
                k_scales: 0,
                v: 0,
                v_scales: 0,
                block_table: table,
                max_pages,
                lengths,
                query_starts: 0,
                output: output.pointer(),
                lse: 0,
            };
            let bytes = call.workspace_bytes();
            (Call::Paged(Box::new(call), addresses), bytes)
        };
        let workspace = Workspace::new(stream, bytes)?;
        stream.synchronize()?;
        let copies = caches;
        Ok(Attending {
            call,
            largest_error: largest_error(case),
            workspace,
            sequences,
            copies,
            output,
            values,
            samples,
            next: 0,
            _others: others,
        })
    }
}

impl Work for Attending {
    fn launch(&mut self, stream: &Stream) -> Result<()> {
        self.next = (self.next + 1) % self.copies.len();
        let [k, v, k_scales, v_scales] = self.copies[self.next].each_ref().map(Buffer::pointer);
        // SAFETY: all of it is this value's, which outlives its launches; they follow each other in one stream.
        unsafe {
            match &self.call {
                Call::Paged(call, addresses) => {
                    let addresses = PagedAddresses { k, v, k_scales, v_scales, ..*addresses };
                    call.launch(stream, self.sequences, &addresses, &mut self.workspace)
                }
                Call::Ragged(call, addresses) => {
                    let addresses = RaggedAddresses { k, v, k_scales, v_scales, ..*addresses };
                    call.launch(stream, self.sequences, &addresses, &mut self.workspace)
                }
            }
        }
    }

    fn poison(&mut self, stream: &Stream) -> Result<()> {
        self.output.fill(stream, 0xff)
    }

    fn verify(&mut self, stream: &Stream) -> Result<()> {
        let mut values = vec![bf16::ZERO; self.values];
        download(stream, &self.output, &mut values)?;
        let wrong = |what: String| {
            Err(Error::unavailable(
                "a timing of attention to pages",
                what,
                "look for a fault in kernels/paged and kernels/ragged",
            ))
        };
        if let Some(place) = values.iter().position(|value| !value.is_finite()) {
            return wrong(format!("the timed runs left {} at value {place} of the output", values[place]));
        }
        for sample in &self.samples {
            let row: Vec<f32> =
                values[sample.at..][..sample.expected.len()].iter().map(|value| value.to_f32()).collect();
            sample.check(&row, self.largest_error).or_else(wrong)?;
        }
        Ok(())
    }
}
