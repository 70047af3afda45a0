//! What a task is: a block of query rows, a range of keys, and the codes and scales that belong to them.

use super::config::Config;
use super::kernels::{Bound, InstructionSet, Softcap};
use super::lanes::LANES;
use super::scratch::Staging;
use super::source::{Codes, Head, Source};
use crate::fp8;
use crate::problem::Problem;
use std::f32::consts::LOG2_E;
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
    pub(super) fn query_and_head(&self, row: usize, group: usize) -> (usize, usize) {
        (self.queries.start + row / group, self.kv_head * group + row % group)
    }
}

/// What every task shares.
#[derive(Clone, Copy)]
pub(super) struct Job<'a> {
    pub problem: &'a Problem,
    pub config: &'a Config,
    pub instructions: InstructionSet,
    pub q: Source<'a>,
    pub k: Source<'a>,
    pub v: Source<'a>,
}

/// A block and what is read for it.
pub(super) struct Task<'a> {
    pub job: &'a Job<'a>,
    pub block: &'a Block,
    /// Channels per packed row of Q and K: the head's, padded to whole panels.
    pub width: usize,
    /// The same of V and of the output.
    pub value_width: usize,
    /// Query rows.
    pub rows: usize,
    pub keys: Head<'a>,
    /// What relative scales of keys are relative to.
    pub key_scale: f32,
    pub values: Head<'a>,
    /// What relative scales of values are relative to, and the output is in units of.
    pub value_scale: f32,
    /// What a product of codes is multiplied by to be a score in units of log₂, row by row.
    pub row_scales: &'a [f32],
    /// The bound of the scores, if they have one.
    softcap: Option<Softcap>,
    /// Where scores are bounded, what is added to them first, row by row.
    row_offsets: &'a [f32],
}

/// Scores are multiplied by at most this (times log₂e): far beyond it every softmax is one-hot, and beyond f32
/// sums of products would be infinite.
const STEEPEST: f32 = 1e25;

impl<'a> Task<'a> {
    /// The task of a block; the last two are room for what its rows have of their own.
    pub(super) fn new(
        job: &'a Job,
        block: &'a Block,
        row_scales: &'a mut Vec<f32>,
        row_offsets: &'a mut Vec<f32>,
    ) -> Self {
        let shape = job.problem.shape();
        let rows = block.queries.len() * shape.group();
        let keys = Head::new(job.k, block.batch, block.kv_head);
        let values = Head::new(job.v, block.batch, block.kv_head);
        let key_scale = keys.largest_scale(&block.keys);
        let factor = f64::from(key_scale) * f64::from(job.problem.softmax_scale()) * f64::from(LOG2_E);
        let scale = |query_scale: f32| (f64::from(query_scale) * factor).min(f64::from(STEEPEST)) as f32;
        let mut heads = Head::group(job.q, block.batch, block.kv_head, shape.group());
        row_scales.clear();
        match heads.next() {
            Some(head) if heads.len() == 0 && !head.scales_vary() => row_scales.resize(rows, scale(head.row_scale(0))),
            first => {
                let heads = first.into_iter().chain(heads);
                for query in block.queries.clone() {
                    row_scales.extend(heads.clone().map(|head| scale(head.row_scale(query))));
                }
            }
        }
        row_offsets.clear();
        let softcap = job.problem.softcap().map(|softcap| {
            // Without a bound, softmax does not notice that a centred K lacks the score of its mean.
            let offset = |row: usize, means| mean_score(job, block, row, means) * LOG2_E;
            row_offsets.extend((0..rows).map(|row| keys.means().map_or(0.0, |means| offset(row, means))));
            Softcap::new(softcap)
        });
        let [width, value_width] =
            [shape.head_dim, job.problem.output_dims().head_dim].map(|dim| dim.next_multiple_of(LANES));
        let value_scale = values.largest_scale(&block.keys);
        Task {
            job,
            block,
            width,
            value_width,
            rows,
            keys,
            key_scale,
            values,
            value_scale,
            row_scales,
            softcap,
            row_offsets,
        }
    }

    /// What bounds the scores of these rows, if anything does.
    pub(super) fn bound(&self, rows: Range<usize>) -> Option<Bound<'_>> {
        self.softcap.map(|softcap| Bound { softcap, offsets: &self.row_offsets[rows] })
    }

    /// All rows of Q: where they lie if they do so row by row, else gathered.
    pub(super) fn queries<'s>(&'s self, staging: &'s mut Staging) -> Codes<'s> {
        let Task { job, block, width, rows, .. } = *self;
        let shape = job.problem.shape();
        if shape.group() == 1 && shape.head_dim == width {
            return Head::new(job.q, block.batch, block.kv_head).rows(block.queries.clone());
        }
        for (row, bytes) in staging.clear(rows, width).chunks_exact_mut(width).enumerate() {
            let (query, head) = block.query_and_head(row, shape.group());
            bytes[..shape.head_dim].copy_from_slice(Head::new(job.q, block.batch, head).row(query));
        }
        staging.codes(width, Head::new(job.q, block.batch, block.kv_head).format())
    }

    /// The tiles of keys of which some query of the block sees something. They start where they do for every block of
    /// these keys, whatever its queries see.
    pub(super) fn key_tiles(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let (keys, tile_keys) = (self.tiled_keys(), self.job.config.tile_keys);
        let starts = keys.clone().step_by(tile_keys);
        starts.map(move |start| start..keys.end.min(start + tile_keys))
    }

    /// The keys of those tiles.
    pub(super) fn tiled_keys(&self) -> Range<usize> {
        let (keys, tile_keys) = (&self.block.keys, self.job.config.tile_keys);
        let seen = self.job.problem.visible_to(&self.block.queries);
        let keys_before = |key: usize| key.clamp(keys.start, keys.end) - keys.start;
        let first = keys_before(seen.start) / tile_keys;
        let last = keys_before(seen.end).div_ceil(tile_keys);
        keys.end.min(keys.start + first * tile_keys)..keys.end.min(keys.start + last * tile_keys)
    }

    /// The keys of a tile that each of some rows sees, counted from the tile's first.
    pub(super) fn visible(&self, rows: Range<usize>, keys: &Range<usize>, visible: &mut Vec<Range<usize>>) {
        let group = self.job.problem.shape().group();
        let in_tile = |key: usize| key.saturating_sub(keys.start).min(keys.len());
        visible.clear();
        let mut query = self.block.queries.start + rows.start / group;
        let mut head = rows.start % group;
        for _ in rows {
            let seen = self.job.problem.visible(query);
            visible.push(in_tile(seen.start)..in_tile(seen.end));
            head += 1;
            if head == group {
                (query, head) = (query + 1, 0);
            }
        }
    }
}

/// The score of a row with the mean key, which a centred K leaves out of every score alike.
pub(super) fn mean_score(job: &Job, block: &Block, row: usize, means: &[f32]) -> f32 {
    let (query, head) = block.query_and_head(row, job.problem.shape().group());
    let mut values = vec![0.0; means.len()];
    let head = Head::new(job.q, block.batch, head);
    fp8::decode_f32(head.format(), head.row(query), &mut values);
    let scale = head.row_scale(query) * job.problem.softmax_scale();
    let score: f64 = values.iter().zip(means).map(|(value, mean)| f64::from(*value) * f64::from(*mean)).sum();
    (score * f64::from(scale)) as f32
}
