//! Products of bf16 in tile registers: those of AMX, or their portable twin.
//!
//! FP8 codes are exact in bf16, and so are their products in f32. Weights are rounded: to one bf16 each, or to two that add up
//! to it. Queries go by in strips of 32, keys in blocks of 32 and chunks of four blocks; every strip and chunk takes three steps:
//! scores, weights, sums. The sums of a chunk wait until the scores of the next one are stored, so that nothing reads what was
//! stored a moment ago.
//!
//! bf16 has the exponents of f32: where the norms of Q and K prove that no 2^score leaves them by far, no maximum is looked for.

#[cfg(target_arch = "x86_64")]
mod amx;
mod operations;
mod permission;
mod products;
mod twin;
mod vectors;

use super::{KeyTile, Path, Tile};
use crate::cpu::config::{Numbers, Simd};
use crate::cpu::kernels::{Bound, CapScores, RowState, Visible};
use crate::cpu::lanes::LANES;
use crate::cpu::scratch::{Buffer, Staging};
use crate::cpu::source::{Ahead, Apart, Codes, Head};
use crate::cpu::task::Task;
use operations::Tiles;
use products::Values;
use std::ops::Range;
use vectors::{BLOCK, BLOCK_SCORES, BLOCKS, Chunk, Rows, STRIP, TILE, Vectors, Weights};

pub use operations::Configuration;
pub(in crate::cpu) use permission::check as check_permission;
pub use permission::{Missing, assume};
pub use twin::Twin;

/// Keys of a chunk.
const CHUNK: usize = BLOCKS * BLOCK;

/// No maximum is subtracted from scores within ± this, in units of log₂. Weights then lie between 2^-80 and 2^80, their products
/// with codes above 2^-96 and below 2^96, and 2^31 of those add up to less than 2^127.
const PROVEN: f32 = 80.0;

/// Nor where V's scales lie beyond these: weights are multiplied by a key's scale relative to the largest, and rows divided by
/// sums of weights are multiplied by the largest. Both then stay among normal numbers.
const ORDINARY_SCALES: std::ops::RangeInclusive<f32> = 1.0 / (1u32 << 30) as f32..=(1u32 << 30) as f32;

/// A row's reference stays as it is until a score exceeds it by this much, in units of log₂: sums are seldom rescaled then, and
/// weights up to 2^16 are as precise as those up to 1.
const HEADROOM: f32 = 16.0;

/// Q, K and V as tiles of bf16. Scales of rows enter with the scores and the weights.
#[derive(Default)]
pub(in crate::cpu) struct TilePath {
    queries: Buffer<u16>,
    /// Of each row, the largest score that it can have with a key whose codes have norm 1.
    query_bounds: Vec<f32>,
    keys: Buffer<u16>,
    /// The largest norm of a key of the tile, with its scale.
    key_norm: f32,
    values: Buffer<u16>,
    scores: Buffer<f32>,
    weights: Buffer<u16>,
    remainders: Buffer<u16>,
    /// The sums of a strip that is not whole.
    strip: Buffer<f32>,
}

/// The tile registers of a thread, configured for as long as this lives where a level computes in them.
pub(in crate::cpu) struct TileRegisters {
    #[cfg(target_arch = "x86_64")]
    _configured: Option<amx::Configured>,
}

impl TileRegisters {
    /// Those that a level computes in.
    #[cfg(target_arch = "x86_64")]
    pub(in crate::cpu) fn of(simd: Simd) -> Self {
        let has_tiles = simd == Simd::Amx && check_permission().is_ok();
        // SAFETY: CPU and system allow it.
        TileRegisters { _configured: has_tiles.then(|| unsafe { amx::Configured::new() }) }
    }

    /// There are none.
    #[cfg(not(target_arch = "x86_64"))]
    pub(in crate::cpu) fn of(_simd: Simd) -> Self {
        TileRegisters {}
    }
}

/// The bytes that the buffers hold on to at most, for so many rows and keys of a tile.
///
/// Rows of V are `value_width` numbers.
pub(in crate::cpu) fn working_bytes(rows: usize, keys: usize, head_dim: usize, value_width: usize) -> usize {
    let rows = rows.next_multiple_of(STRIP);
    let queries = rows * (head_dim.next_multiple_of(BLOCK) * size_of::<u16>() + 2 * size_of::<f32>());
    let packed_keys = keys.next_multiple_of(BLOCK) * head_dim.next_multiple_of(BLOCK);
    let packed_values = keys.next_multiple_of(CHUNK) * value_width;
    let chunk = STRIP * CHUNK * (size_of::<f32>() + 2 * size_of::<u16>());
    queries + (packed_keys + packed_values) * size_of::<u16>() + chunk + STRIP * value_width * size_of::<f32>()
}

/// Tiles of 32 channels that a row of Q or K takes.
fn steps(task: &Task) -> usize {
    task.job.problem.shape().head_dim.div_ceil(BLOCK)
}

/// Runs a step of [`Vectors`] in the instruction set of the task.
macro_rules! vectors {
    ($task:expr, $step:ident($($argument:expr),* $(,)?)) => {
        match $task.job.config.simd {
            // SAFETY: `check_permission` looked for them, and else this asks for them.
            #[cfg(target_arch = "x86_64")]
            Simd::Amx => unsafe { vectors::Avx512::$step($($argument),*) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            _ if vectors::avx512_is_here() => unsafe { vectors::Avx512::$step($($argument),*) },
            // SAFETY: these ask for nothing.
            _ => unsafe { vectors::Portable::$step($($argument),*) },
        }
    };
}

impl Path for TilePath {
    fn pack_queries(&mut self, task: &Task, staging: &mut Staging) {
        let steps = steps(task);
        let packed = self.queries.get(task.rows.next_multiple_of(STRIP) * steps * BLOCK);
        self.query_bounds.resize(task.rows, 0.0);
        let rows = Rows { codes: task.queries(staging), channels: task.job.problem.shape().head_dim };
        vectors!(task, pack_queries(rows, steps, packed, &mut self.query_bounds));
        for (bound, scale) in self.query_bounds.iter_mut().zip(task.row_scales) {
            *bound = bound.sqrt() * scale;
        }
    }

    fn pack_keys(&mut self, task: &Task, keys: &KeyTile, staging: &mut Staging) {
        const PANEL: usize = BLOCK / 2;
        let (steps, channels) = (steps(task), task.job.problem.shape().head_dim);
        let packed = self.keys.get(keys.range.len().next_multiple_of(BLOCK) * steps * BLOCK);
        let mut largest = 0f32;
        for (panel, packed) in packed.chunks_exact_mut(steps * TILE).enumerate() {
            let first = panel * PANEL;
            let rows = keys.rows(task.keys, channels, first..first + PANEL, staging);
            let scales = keys.key_scales.get(first..).unwrap_or(&[]);
            largest = largest.max(vectors!(task, pack_keys(rows, steps, scales, packed)));
        }
        self.key_norm = largest.sqrt();
    }

    fn pack_values(&mut self, task: &Task, keys: &KeyTile, staging: &mut Staging) {
        const STRIDE: usize = BLOCKS * TILE;
        let (columns, channels) = (task.value_width / 16, task.job.problem.value_dims().head_dim);
        let packed = self.values.get(keys.range.len().next_multiple_of(CHUNK) * task.value_width);
        for (chunk, packed) in packed.chunks_exact_mut(columns * STRIDE).enumerate() {
            for block in 0..BLOCKS {
                let first = chunk * CHUNK + block * BLOCK;
                let rows = keys.rows(task.values, channels, first..first + BLOCK, staging);
                vectors!(task, pack_values(rows, columns, STRIDE, &mut packed[block * TILE..]));
            }
        }
    }

    /// Codes and their products are exact, and weights are what the numbers promise, whatever the inputs.
    fn is_precise(&self, _task: &Task, _keys: &KeyTile) -> bool {
        true
    }

    fn attend(&mut self, task: &Task, tile: &mut Tile) {
        match (task.job.config.simd, task.job.config.numbers) {
            #[cfg(target_arch = "x86_64")]
            (Simd::Amx, Numbers::Bf16x2) => self.attend_with::<_, true>(&mut amx::Amx, task, tile),
            #[cfg(target_arch = "x86_64")]
            (Simd::Amx, _) => self.attend_with::<_, false>(&mut amx::Amx, task, tile),
            (_, Numbers::Bf16x2) => self.attend_with::<_, true>(&mut Twin::configured(), task, tile),
            _ => self.attend_with::<_, false>(&mut Twin::configured(), task, tile),
        }
    }
}

/// A strip of queries and what it has seen so far.
struct Strip<'a> {
    /// Its first row, counted in the block.
    first: usize,
    /// The keys of the tile that each of its rows sees.
    visible: &'a [Range<usize>],
    states: &'a mut [RowState],
    /// 32 rows of sums, whatever the rows.
    output: &'a mut [f32],
}

impl TilePath {
    fn attend_with<T: Tiles, const PRECISE: bool>(&mut self, tiles: &mut T, task: &Task, tile: &mut Tile) {
        let width = task.value_width;
        let Tile { keys, rows: ref tile_rows, visible, ref mut states, ref mut output, .. } = *tile;
        for first in (0..tile_rows.len()).step_by(STRIP) {
            let rows = first..tile_rows.len().min(first + STRIP);
            let mut attend = |path: &mut Self, output: &mut [f32]| {
                let (visible, states) = (&visible.ranges()[rows.clone()], &mut states[rows.clone()]);
                let strip = Strip { first: tile_rows.start + first, visible, states, output };
                path.attend_strip::<T, PRECISE>(tiles, task, keys, strip);
            };
            let output = &mut output[rows.start * width..rows.end * width];
            if rows.len() == STRIP {
                attend(self, output);
                continue;
            }
            let mut whole = std::mem::take(&mut self.strip);
            let sums = whole.get(STRIP * width);
            sums[..output.len()].copy_from_slice(output);
            sums[output.len()..].fill(0.0);
            attend(self, sums);
            output.copy_from_slice(&sums[..output.len()]);
            self.strip = whole;
        }
    }

    fn attend_strip<T: Tiles, const PRECISE: bool>(
        &mut self,
        tiles: &mut T,
        task: &Task,
        keys: &KeyTile,
        strip: Strip,
    ) {
        let Strip { first, visible, states, output } = strip;
        let (rows, steps) = (visible.len(), steps(task));
        let seen = visible.iter().filter(|keys| !keys.is_empty());
        let Some(start) = seen.clone().map(|keys| keys.start).min() else { return };
        let end = seen.map(|keys| keys.end).max().unwrap_or(start);
        let bound = task.bound(first..first + rows);
        let proven = self.is_proven(task, keys, first..first + rows, states);
        if proven {
            states.iter_mut().zip(visible).filter(|(_, keys)| !keys.is_empty()).for_each(|(state, _)| state.max = 0.0);
        }
        let mut sums = [0.0; STRIP];
        sums.iter_mut().zip(&*states).for_each(|(sum, state)| *sum = state.sum);
        self.weights.get(2 * BLOCKS * TILE);
        self.remainders.get(if PRECISE { 2 * BLOCKS * TILE } else { 0 });

        // What the chunk before left: its first tile of values and its blocks.
        let mut waiting = None;
        for chunk in start / CHUNK..end.div_ceil(CHUNK) {
            let first_key = chunk * CHUNK;
            let blocks = (end - first_key).min(CHUNK).div_ceil(BLOCK);
            self.compute_scores(tiles, first, chunk * BLOCKS..chunk * BLOCKS + blocks, steps);
            if let Some((chunk, blocks)) = waiting.replace((chunk, blocks)) {
                self.add_values::<T, PRECISE>(tiles, task.value_width, chunk, blocks, output);
            }
            let in_chunk = |key: usize| key.saturating_sub(first_key).min(blocks * BLOCK);
            let visible: [Range<usize>; STRIP] = std::array::from_fn(|row| match visible.get(row) {
                Some(keys) => in_chunk(keys.start)..in_chunk(keys.end),
                None => 0..0,
            });
            let (key_scales, value_scales) =
                (of_chunk(keys.key_scales, first_key), of_chunk(keys.value_scales, first_key));
            let mut scores = Chunk {
                scores: self.scores.used_mut(),
                blocks,
                scales: &task.row_scales[first..first + rows],
                visible: &visible[..rows],
                key_scales: if keys.key_scales.is_empty() { &[] } else { &key_scales },
                value_scales: if keys.value_scales.is_empty() { &[] } else { &value_scales },
            };
            if let Some(bound) = bound {
                cap(task, &mut scores, bound);
            }
            if !proven {
                raise_references(task, &scores, states, &mut sums, output);
            }
            let mut references = [0.0; STRIP];
            for (reference, state) in references.iter_mut().zip(&*states) {
                *reference = if state.max == f32::NEG_INFINITY { 0.0 } else { state.max };
            }
            let weights = &mut Weights {
                references: &references,
                weights: self.weights.used_mut(),
                remainders: self.remainders.used_mut(),
                sums: &mut sums,
            };
            vectors!(task, weigh(&scores, weights));
        }
        if let Some((chunk, blocks)) = waiting {
            self.add_values::<T, PRECISE>(tiles, task.value_width, chunk, blocks, output);
        }
        states.iter_mut().zip(sums).for_each(|(state, sum)| state.sum = sum);
    }

    /// Whether no score of these rows and the tile's keys needs a reference, and no row has one that is not 0.
    fn is_proven(&self, task: &Task, keys: &KeyTile, rows: Range<usize>, states: &[RowState]) -> bool {
        let largest = match task.bound(rows.clone()) {
            Some(Bound { softcap, .. }) => softcap.largest(),
            None => self.query_bounds[rows].iter().copied().fold(0.0, f32::max) * self.key_norm,
        };
        let mut scales = keys.value_scales.iter().take(keys.range.len()).chain([&task.value_scale]);
        largest <= PROVEN
            && scales.all(|scale| ORDINARY_SCALES.contains(scale))
            && states.iter().all(|state| state.max == 0.0 || state.max == f32::NEG_INFINITY)
    }

    /// The scores of a strip, of which `first` is the first row, and of some blocks of keys.
    fn compute_scores<T: Tiles>(&mut self, tiles: &mut T, first: usize, blocks: Range<usize>, steps: usize) {
        let queries = &self.queries.used()[first * steps * BLOCK..][..STRIP * steps * BLOCK];
        let scores = self.scores.get(BLOCKS * BLOCK_SCORES);
        let keys = &self.keys.used()[blocks.start * 2 * steps * TILE..blocks.end * 2 * steps * TILE];
        for (keys, scores) in keys.chunks_exact(2 * steps * TILE).zip(scores.chunks_exact_mut(BLOCK_SCORES)) {
            // SAFETY: the slices hold the tiles of a strip and a block, and room for their scores. Registers are configured:
            // `attend` sees to that, or the twin to itself.
            unsafe {
                products::scores(
                    tiles,
                    queries.as_ptr().cast(),
                    keys.as_ptr().cast(),
                    steps,
                    scores.as_mut_ptr().cast(),
                );
            }
        }
    }

    /// O += P·V for some blocks of a chunk.
    fn add_values<T: Tiles, const PRECISE: bool>(
        &self,
        tiles: &mut T,
        width: usize,
        chunk: usize,
        blocks: usize,
        output: &mut [f32],
    ) {
        let (weights, remainders) = (self.weights.used(), self.remainders.used());
        let values = &self.values.used()[chunk * CHUNK * width..][..CHUNK * width];
        assert!(output.len() >= STRIP * width && weights.len() >= 2 * BLOCKS * TILE && blocks <= BLOCKS);
        assert!(!PRECISE || remainders.len() >= weights.len(), "every weight has its remainder");
        let operands = Values {
            weights: weights.as_ptr().cast(),
            remainders: remainders.as_ptr().cast(),
            values: values.as_ptr().cast(),
            blocks,
            output: output.as_mut_ptr().cast(),
            width,
        };
        // SAFETY: asserted above; registers are configured, as for the scores.
        unsafe { products::add_values::<T, PRECISE>(tiles, operands) }
    }

    /// The bytes that the buffers hold on to.
    #[cfg(test)]
    pub(in crate::cpu) fn bytes(&self) -> usize {
        let halves = [&self.queries, &self.keys, &self.values, &self.weights, &self.remainders];
        let floats = [&self.scores, &self.strip];
        halves.iter().map(|buffer| buffer.bytes()).sum::<usize>()
            + floats.iter().map(|buffer| buffer.bytes()).sum::<usize>()
            + self.query_bounds.capacity() * size_of::<f32>()
    }
}

/// Bounds the scores of a chunk, which from then on are in units of log₂.
fn cap(task: &Task, chunk: &mut Chunk, bound: Bound) {
    vectors!(task, scale(chunk));
    let rows = chunk.visible.len();
    let blocks = chunk.scores.chunks_exact_mut(BLOCK_SCORES).take(chunk.blocks);
    for (block, scores) in blocks.enumerate() {
        let in_block = |key: usize| key.saturating_sub(block * BLOCK).min(BLOCK);
        let mut seen: [Range<usize>; STRIP] = std::array::from_fn(|_| 0..0);
        for (seen, keys) in seen.iter_mut().zip(chunk.visible) {
            *seen = in_block(keys.start)..in_block(keys.end);
        }
        let visible = Visible::new(&seen[..rows]);
        task.job.instructions.run(CapScores { scores, stride: BLOCK, visible, bound, exact: false });
    }
    (chunk.scales, chunk.key_scales) = (&[1.0; STRIP][..rows], &[]);
}

/// Raises the references of rows that need it, and brings their sums to it.
fn raise_references(task: &Task, chunk: &Chunk, states: &mut [RowState], sums: &mut [f32; STRIP], output: &mut [f32]) {
    let mut maxima = [f32::NEG_INFINITY; STRIP];
    vectors!(task, raise_maxima(chunk, &mut maxima));
    let mut factors = [1.0; STRIP];
    for (row, (state, max)) in states.iter_mut().zip(maxima).enumerate() {
        if max > state.max + HEADROOM {
            // A row that has seen nothing has sums of zero, which stay that.
            factors[row] = if state.max == f32::NEG_INFINITY { 1.0 } else { (state.max - max).exp2() };
            sums[row] *= factors[row];
            state.max = max;
        }
    }
    if factors.iter().any(|factor| *factor != 1.0) {
        vectors!(task, rescale(output, task.value_width, &factors));
    }
}

/// The scales of a chunk's keys, zero behind the last.
fn of_chunk(scales: &[f32], first: usize) -> [f32; CHUNK] {
    let mut of_chunk = [0.0; CHUNK];
    let scales = scales.get(first..).unwrap_or(&[]);
    of_chunk.iter_mut().zip(scales).for_each(|(to, scale)| *to = *scale);
    of_chunk
}

impl KeyTile<'_> {
    /// Some rows of a head of so many channels that belong to these keys, as far as there are any: where they lie if a row's
    /// codes are neighbours, else gathered.
    fn rows<'r>(&self, head: Head<'r>, channels: usize, rows: Range<usize>, staging: &'r mut Staging) -> Rows<'r> {
        let in_tensor = |row: usize| self.range.end.min(self.range.start + row);
        let rows = in_tensor(rows.start)..in_tensor(rows.end);
        if rows.is_empty() {
            let format = head.format();
            return Rows {
                codes: Codes { bytes: &[], stride: 0, rows: 0, format, factors: &[], apart: Apart::default() },
                channels,
            };
        }
        let count = rows.len();
        let nothing = Ahead::of_a_head(0);
        let codes = if head.has_rows() {
            head.rows(rows)
        } else {
            head.gather(rows, nothing, channels.next_multiple_of(LANES), staging)
        };
        Rows { codes: Codes { rows: count, ..codes }, channels }
    }
}
