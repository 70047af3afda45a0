//! Attention for a block of query rows that share one head of K and V: the online softmax, tile by tile.
//!
//! For every tile of keys: decode and pack K and V, then for every tile of queries S = Q·Kᵀ, softmax, O += P·V.
//! The integer path decides anew for every tile of keys whether fixed point is precise enough for it.

use super::config::{Config, Exp, Numbers};
use super::kernels::{FloatTile, IntTile, Kernels, Rounding, RowState, Weights};
use super::lanes::LANES;
use super::schedule::MAX_ROWS;
use super::scratch::{Buffer, LINE_BYTES};
use super::source::{Codes, Head, Room};
use super::units::{self, ScoreUnits};
use crate::problem::Problem;
use crate::report::RunReport;
use crate::tensor::Fp8Tensor;
use std::f32::consts::{LN_2, LOG2_E};
use std::ops::Range;

/// The rows and keys that one task covers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Block {
    pub batch: usize,
    pub kv_head: usize,
    /// Queries; each stands for one row per query head of the group, side by side.
    pub queries: Range<usize>,
    pub keys: Range<usize>,
}

impl Block {
    /// The query and the query head of a row, with `group` query heads on one head of K and V.
    pub(super) fn place(&self, row: usize, group: usize) -> (usize, usize) {
        (self.queries.start + row / group, self.kv_head * group + row % group)
    }
}

/// What every task shares.
#[derive(Clone, Copy)]
pub(super) struct Job<'a> {
    pub problem: &'a Problem,
    pub config: &'a Config,
    pub kernels: &'a Kernels,
    pub q: &'a Fp8Tensor<'a>,
    pub k: &'a Fp8Tensor<'a>,
    pub v: &'a Fp8Tensor<'a>,
}

/// The working memory of a task.
#[derive(Default)]
pub(super) struct Scratch {
    room: Room,
    float_queries: Buffer<f32>,
    float_keys: Buffer<f32>,
    float_values: Buffer<f32>,
    float_scores: Buffer<f32>,
    int_queries: Buffer<i32>,
    int_keys: Buffer<i32>,
    int_values: Buffer<i32>,
    int_scores: Buffer<i32>,
    int_weights: Buffer<i32>,
    output: Buffer<f32>,
    states: Vec<RowState>,
    row_scales: Vec<f32>,
    row_units: Vec<f32>,
    visible: Vec<usize>,
    alpha: Vec<f32>,
    beta: Vec<f32>,
    coarse: Vec<usize>,
    query_max: Vec<f32>,
    key_max: Vec<f32>,
    key_scales: Vec<f32>,
    value_scales: Vec<f32>,
    value_max: Vec<f32>,
    value_factors: Vec<f32>,
    value_units: Vec<f32>,
    score_units: ScoreUnits,
    query_rounding: Rounding,
    key_rounding: Rounding,
    value_rounding: Rounding,
}

impl Scratch {
    /// The bytes that the large buffers hold on to.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        let floats = [&self.float_queries, &self.float_keys, &self.float_values, &self.float_scores, &self.output];
        let ints = [&self.int_queries, &self.int_keys, &self.int_values, &self.int_scores, &self.int_weights];
        floats.iter().map(|buffer| buffer.bytes()).sum::<usize>()
            + ints.iter().map(|buffer| buffer.bytes()).sum::<usize>()
            + self.room.bytes()
    }
}

/// A bound on what a thread's [`Scratch`] holds after any block of this problem.
pub(super) fn working_bytes(config: &Config, problem: &Problem) -> usize {
    let shape = problem.shape();
    let width = shape.head_dim.next_multiple_of(LANES);
    let rows = (shape.query_len * shape.group()).min(MAX_ROWS.max(shape.group()));
    let keys = shape.key_len.next_multiple_of(LANES).min(config.tile_keys);
    let score_rows = rows.min(config.tile_queries);
    let (float, pair) = (size_of::<f32>(), size_of::<i16>());
    let queries = rows * width * (float + float + pair + 1) + rows * float;
    let tile = keys * width * 2 * (float + pair);
    let scores = score_rows * config.tile_keys * (float + float + pair);
    let small = (16 * config.tile_queries + 32 * width + 16 * rows) * float;
    queries + tile + scores + small + 11 * LINE_BYTES
}

/// The unnormalised output of a block and the softmax of its rows.
pub(super) struct Attended<'a> {
    /// One row of `width` channels per (query, query head of the group).
    pub output: &'a [f32],
    /// Channels per row, padded to a multiple of 16.
    pub width: usize,
    /// What the output is in units of.
    pub value_scale: f32,
    pub states: &'a [RowState],
    pub report: RunReport,
}

/// Scores are multiplied by at most this (times log₂e): far beyond it every softmax is one-hot, and beyond f32
/// sums of products would be infinite.
const STEEPEST: f32 = 1e25;

/// Attends a block of rows to a range of keys.
pub(super) fn attend<'a>(job: &Job, block: &Block, scratch: &'a mut Scratch) -> Attended<'a> {
    let shape = job.problem.shape();
    let (width, rows) = (shape.head_dim.next_multiple_of(LANES), block.queries.len() * shape.group());
    let key_head = Head::new(job.k, block.batch, block.kv_head);
    let value_head = Head::new(job.v, block.batch, block.kv_head);
    let (key_scale, value_scale) = (key_head.largest_scale(), value_head.largest_scale());
    let mut pass = Pass {
        job,
        block,
        width,
        rows,
        key_head,
        key_scale,
        value_head,
        value_scale,
        float_queries_packed: false,
        scratch,
        report: RunReport::default(),
    };

    pass.begin();
    let visible = job.problem.visible_to(&block.queries);
    // Tiles start where they do for every block of these keys, whatever its queries see.
    let unseen_tiles = visible.start.saturating_sub(block.keys.start) / job.config.tile_keys;
    let first = block.keys.start + unseen_tiles * job.config.tile_keys;
    for start in (first..visible.end.min(block.keys.end)).step_by(job.config.tile_keys) {
        let keys = start..block.keys.end.min(start + job.config.tile_keys);
        let in_int = job.config.numbers == Numbers::Int16 && pass.pack_int(&keys);
        if !in_int {
            pass.pack_float(&keys);
        }
        for start in (0..rows).step_by(job.config.tile_queries) {
            let rows = start..rows.min(start + job.config.tile_queries);
            if pass.look(&rows, &keys) {
                pass.report.tiles += 1;
                if in_int {
                    pass.tile_int(rows);
                } else {
                    pass.tile_float(rows);
                }
            }
        }
    }

    let Pass { report, scratch, .. } = pass;
    Attended { output: scratch.output.used(), width, value_scale, states: &scratch.states, report }
}

/// One walk over the keys.
struct Pass<'a, 'b> {
    job: &'b Job<'b>,
    block: &'b Block,
    width: usize,
    rows: usize,
    key_head: Head<'b>,
    key_scale: f32,
    value_head: Head<'b>,
    value_scale: f32,
    float_queries_packed: bool,
    scratch: &'a mut Scratch,
    report: RunReport,
}

impl Pass<'_, '_> {
    fn words(&self) -> usize {
        self.width / 2
    }

    /// Empties the state, finds each row's scale, and packs Q for the integer path.
    fn begin(&mut self) {
        let (rows, width) = (self.rows, self.width);
        let scratch = &mut *self.scratch;
        scratch.output.get(rows * width).fill(0.0);
        scratch.states.clear();
        scratch.states.resize(rows, RowState::EMPTY);
        scratch.value_units.clear();
        scratch.value_units.resize(width, 1.0);
        scratch.alpha.resize(self.job.config.tile_queries, 0.0);
        scratch.beta.resize(self.job.config.tile_queries, 0.0);
        self.scale_rows();
        if self.job.config.numbers == Numbers::Int16 {
            self.pack_queries_int();
        }
    }

    /// What a product of codes is multiplied by to be a score in units of log₂, row by row.
    fn scale_rows(&mut self) {
        let (job, block) = (self.job, self.block);
        let key_scale = f64::from(self.key_scale) * f64::from(job.problem.softmax_scale()) * f64::from(LOG2_E);
        let scale = |query_scale: f32| (f64::from(query_scale) * key_scale).min(f64::from(STEEPEST)) as f32;
        let mut heads = Head::group(job.q, block.batch, block.kv_head, job.problem.shape().group());
        let scales = &mut self.scratch.row_scales;
        scales.clear();
        match heads.next() {
            Some(head) if heads.len() == 0 && !head.scales_vary() => scales.resize(self.rows, scale(head.row_scale(0))),
            first => {
                let heads = first.into_iter().chain(heads);
                for query in block.queries.clone() {
                    scales.extend(heads.clone().map(|head| scale(head.row_scale(query))));
                }
            }
        }
    }

    /// Hands on all rows of Q as codes: where they lie if they do so row by row, else gathered.
    fn with_query_codes(&mut self, consume: impl FnOnce(&mut Scratch, &Codes)) {
        let (job, block, width) = (self.job, self.block, self.width);
        let shape = job.problem.shape();
        let mut room = std::mem::take(&mut self.scratch.room);
        if shape.group() == 1 && shape.head_dim == width {
            let codes = Head::new(job.q, block.batch, block.kv_head).rows(block.queries.clone());
            consume(self.scratch, &codes);
        } else {
            room.clear(self.rows, width);
            for row in 0..self.rows {
                let (query, head) = block.place(row, shape.group());
                room.put(row, width, Head::new(job.q, block.batch, head).row(query));
            }
            consume(self.scratch, &room.codes(width, job.q.format()));
        }
        self.scratch.room = room;
    }

    /// Q in f32, each row with its scale; the integer path comes to it with the first tile that needs f32.
    fn pack_queries_float(&mut self) {
        self.float_queries_packed = true;
        let (job, rows, width) = (self.job, self.rows, self.width);
        self.with_query_codes(|scratch, codes| {
            let scaled = Codes { factors: &scratch.row_scales, ..*codes };
            job.kernels.pack_queries_float(&scaled, width, scratch.float_queries.get(rows * width));
        });
    }

    /// Q in fixed point, whose units depend on the largest magnitudes of both Q and K.
    fn pack_queries_int(&mut self) {
        let (job, block, rows, width, words) = (self.job, self.block, self.rows, self.width, self.words());
        let key_head = self.key_head;
        let scratch = &mut *self.scratch;
        for largest in [&mut scratch.query_max, &mut scratch.key_max] {
            largest.clear();
            largest.resize(width, 0.0);
        }
        for head in Head::group(job.q, block.batch, block.kv_head, job.problem.shape().group()) {
            head.raise_channel_max(block.queries.clone(), &mut scratch.query_max);
        }
        key_head.raise_channel_max(block.keys.clone(), &mut scratch.key_max);
        scratch.score_units.choose(&scratch.query_max, &scratch.key_max);
        let unit = scratch.score_units.unit;
        scratch.row_units.clear();
        scratch.row_units.extend(scratch.row_scales.iter().map(|scale| scale * unit));
        scratch.query_rounding.reset(width);
        self.with_query_codes(|scratch, codes| {
            let packed = scratch.int_queries.get(rows * words);
            let factors = &scratch.score_units.query_factors;
            job.kernels.pack_queries_int(codes, width, factors, &mut scratch.query_rounding, packed);
        });
    }

    /// Packs a tile of K and V in f32.
    fn pack_float(&mut self, keys: &Range<usize>) {
        let (job, width) = (self.job, self.width);
        if !self.float_queries_packed {
            self.pack_queries_float();
        }
        let Pass { key_head, key_scale, value_head, value_scale, .. } = *self;
        let panels = keys.len().div_ceil(LANES);
        let scratch = &mut *self.scratch;
        let packed_keys = scratch.float_keys.get(panels * LANES * width);
        let packed_values = scratch.float_values.get(panels * LANES * width);
        for (panel, packed_keys) in packed_keys.chunks_exact_mut(LANES * width).enumerate() {
            let rows = panel_rows(keys, panel);
            key_head.relative_scales(rows.clone(), LANES, key_scale, &mut scratch.key_scales);
            let codes = key_head.padded_rows(rows.clone(), LANES, width, &mut scratch.room);
            let scaled = Codes { factors: &scratch.key_scales, ..codes };
            job.kernels.pack_keys_float(&scaled, width, packed_keys);
            value_head.relative_scales(rows.clone(), LANES, value_scale, &mut scratch.value_scales);
            let codes = value_head.padded_rows(rows, LANES, width, &mut scratch.room);
            let scaled = Codes { factors: &scratch.value_scales, ..codes };
            let values = &mut packed_values[panel * LANES * LANES..];
            job.kernels.pack_values_float(&scaled, width, values, panels * LANES * LANES);
        }
    }

    /// Packs a tile of K and V in fixed point; false if that would be too coarse for it.
    fn pack_int(&mut self, keys: &Range<usize>) -> bool {
        let (job, width, words) = (self.job, self.width, self.words());
        let Pass { key_head, key_scale, value_head, value_scale, .. } = *self;
        let panels = keys.len().div_ceil(LANES);
        let scratch = &mut *self.scratch;
        // The integers leave the rows' own scales out: those enter with the scores and the weights, unrounded.
        key_head.relative_scales(keys.clone(), panels * LANES, key_scale, &mut scratch.key_scales);
        value_head.relative_scales(keys.clone(), panels * LANES, value_scale, &mut scratch.value_scales);
        scratch.key_rounding.reset(width);
        scratch.value_rounding.reset(width);
        scratch.value_max.clear();
        scratch.value_max.resize(width, 0.0);
        value_head.raise_channel_max(keys.clone(), &mut scratch.value_max);
        units::choose_value_units(&scratch.value_max, &mut scratch.value_factors, &mut scratch.value_units);

        let packed_keys = scratch.int_keys.get(panels * LANES * words);
        let packed_values = scratch.int_values.get(panels * LANES * words);
        for (panel, packed_keys) in packed_keys.chunks_exact_mut(LANES * words).enumerate() {
            let rows = panel_rows(keys, panel);
            let codes = key_head.padded_rows(rows.clone(), LANES, width, &mut scratch.room);
            let factors = &scratch.score_units.key_factors;
            job.kernels.pack_keys_int(&codes, width, factors, &mut scratch.key_rounding, packed_keys);
            let codes = value_head.padded_rows(rows, LANES, width, &mut scratch.room);
            let values = &mut packed_values[panel * LANES * LANES / 2..];
            let (factors, rounding) = (&scratch.value_factors, &mut scratch.value_rounding);
            job.kernels.pack_values_int(&codes, width, factors, rounding, values, panels * LANES * LANES / 2);
        }

        let steepest = scratch.row_scales.iter().copied().fold(0.0, f32::max) * LN_2;
        let queries = &scratch.query_rounding;
        scratch.score_units.precise_enough(queries, self.rows, &scratch.key_rounding, keys.len(), steepest)
            && units::values_precise_enough(&scratch.value_rounding, &scratch.value_units, keys.len())
    }

    /// Finds how many keys of the tile each row sees; false if none sees any.
    fn look(&mut self, rows: &Range<usize>, keys: &Range<usize>) -> bool {
        let problem = self.job.problem;
        let group = problem.shape().group();
        let visible = &mut self.scratch.visible;
        visible.clear();
        let mut query = self.block.queries.start + rows.start / group;
        let mut head = rows.start % group;
        for _ in rows.clone() {
            let seen = problem.visible(query);
            debug_assert_eq!(seen.start, 0, "kernels hide keys behind a row's last one alone");
            visible.push(seen.end.saturating_sub(keys.start).min(keys.len()));
            head += 1;
            if head == group {
                (query, head) = (query + 1, 0);
            }
        }
        visible.last().is_some_and(|keys| *keys > 0)
    }

    /// S, softmax, O for a tile of rows, in f32.
    fn tile_float(&mut self, rows: Range<usize>) {
        let (job, width) = (self.job, self.width);
        let (queries, count) = (rows.start * width, rows.len());
        if job.config.numbers == Numbers::Int16 {
            self.report.tiles_in_f32 += 1;
        }
        let scratch = &mut *self.scratch;
        let stride = job.config.tile_keys;
        let keys = scratch.float_keys.used();
        let values = scratch.float_values.used();
        let chunk_words = values.len() / (width / LANES);

        let queries = &scratch.float_queries.used()[queries..][..count * width];
        let scores = scratch.float_scores.get(count * stride);
        job.kernels.scores_float(queries, keys, width, &scratch.visible, scores, stride);
        job.kernels.softmax_float(&mut FloatTile {
            scores,
            stride,
            visible: &scratch.visible,
            states: &mut scratch.states[rows.clone()],
            alpha: &mut scratch.alpha,
            exact: job.config.exp == Exp::Exact,
        });
        let weights = Weights { words: scores, stride, alpha: &scratch.alpha, beta: &scratch.alpha };
        let output = &mut scratch.output.used_mut()[rows.start * width..rows.end * width];
        job.kernels.values_float(&weights, values, chunk_words, &scratch.value_units, &scratch.visible, output);
    }

    /// S, softmax, O for a tile of rows, in fixed point.
    fn tile_int(&mut self, rows: Range<usize>) {
        let (job, width, words) = (self.job, self.width, self.words());
        let count = rows.len();
        let scratch = &mut *self.scratch;
        let stride = job.config.tile_keys;
        let keys = scratch.int_keys.used();
        let values = scratch.int_values.used();
        let chunk_words = values.len() / (width / LANES);

        let queries = &scratch.int_queries.used()[rows.start * words..][..count * words];
        let scores = scratch.int_scores.get(count * stride);
        job.kernels.scores_int(queries, keys, words, &scratch.visible, scores, stride);
        let mut tile = IntTile {
            scores,
            stride,
            units: &scratch.row_units[rows.clone()],
            key_scales: &scratch.key_scales,
            value_scales: &scratch.value_scales,
            visible: &scratch.visible,
            states: &mut scratch.states[rows.clone()],
            weights: scratch.int_weights.get(count * stride / 2),
            alpha: &mut scratch.alpha,
            beta: &mut scratch.beta,
            coarse: &mut scratch.coarse,
            exact: job.config.exp == Exp::Exact,
        };
        let output = &mut scratch.output.used_mut()[rows.start * width..rows.end * width];
        let mut add_values = |tile: &IntTile| {
            let weights = Weights { words: tile.weights, stride: stride / 2, alpha: tile.alpha, beta: tile.beta };
            job.kernels.values_int(&weights, values, chunk_words, &scratch.value_units, tile.visible, output);
        };
        job.kernels.softmax_int(&mut tile);
        add_values(&tile);
        if !tile.coarse.is_empty() {
            self.report.rows_refined += tile.coarse.len() as u64;
            job.kernels.refine_int(&mut tile);
            add_values(&tile);
        }
    }
}

/// The rows of a panel of a tile.
fn panel_rows(keys: &Range<usize>, panel: usize) -> Range<usize> {
    let start = keys.start + panel * LANES;
    start..keys.end.min(start + LANES)
}
