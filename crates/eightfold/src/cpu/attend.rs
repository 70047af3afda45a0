//! Attention for a block of query rows that share one head of K and V: the online softmax, tile by tile.
//!
//! For every tile of keys: pack K and V, then for every tile of queries S = Q·Kᵀ, softmax, O += P·V. In which numbers is
//! decided anew for every tile of keys: in those of the first path that is precise enough for it.

use super::config::Numbers;
use super::kernels::{RowState, Visible};
use super::path::tiles::TileRegisters;
use super::path::{KeyTile, Path, Tile};
use super::scratch::{Scratch, Staging};
use super::source::Ahead;
use super::task::{Block, Job, Task};
use crate::report::RunReport;

/// The unnormalised output of a block and the softmax of its rows.
pub(super) struct Attended<'a> {
    /// One row per (query, query head of the group), in units of `value_scale`.
    pub output: &'a [f32],
    /// The largest scale of the values.
    pub value_scale: f32,
    pub states: &'a [RowState],
    pub report: RunReport,
}

/// Attends a block of rows to a range of keys.
pub(super) fn attend<'a>(job: &Job, block: &Block, scratch: &'a mut Scratch) -> Attended<'a> {
    let Scratch {
        output,
        states,
        visible,
        rescale,
        row_scales,
        row_offsets,
        key_scales,
        value_scales,
        staging,
        float,
        integer,
        tiles,
    } = scratch;
    let task = &Task::new(job, block, row_scales, row_offsets);
    let Task { value_width: width, rows, value_scale, .. } = *task;
    output.get(rows * width).fill(0.0);
    states.clear();
    states.resize(rows, RowState::EMPTY);
    rescale.resize(job.config.tile_queries, 0.0);
    let paths = &mut [Candidate::new(tiles), Candidate::new(integer), Candidate::new(float)];
    let paths = match job.config.numbers {
        Numbers::Bf16 | Numbers::Bf16x2 => &mut paths[..1],
        Numbers::Int16 => &mut paths[1..],
        Numbers::F32 => &mut paths[2..],
    };
    let _configured = TileRegisters::of(job.config.simd);
    let mut report = RunReport::default();

    for keys in task.key_tiles() {
        let keys = KeyTile::new(task, keys, Ahead::of_a_head(block.keys.end), key_scales, value_scales);
        let Some(choice) = paths.iter_mut().position(|path| path.pack(task, &keys, staging)) else { continue };
        let path = &mut *paths[choice].path;
        for start in (0..rows).step_by(job.config.tile_queries) {
            let rows = start..rows.min(start + job.config.tile_queries);
            task.visible(rows.clone(), &keys.range, visible);
            if visible.iter().all(|keys| keys.is_empty()) {
                continue;
            }
            report.tiles += 1;
            report.tiles_in_f32 += u64::from(choice > 0);
            let tile = &mut Tile {
                keys: &keys,
                visible: Visible::new(visible),
                states: &mut states[rows.clone()],
                rescale,
                output: &mut output.used_mut()[rows.start * width..rows.end * width],
                rows,
                rows_refined: 0,
            };
            path.attend(task, tile);
            report.rows_refined += tile.rows_refined;
        }
    }
    Attended { output: output.used(), value_scale, states, report }
}

/// A path that may take a tile of keys.
struct Candidate<'a> {
    path: &'a mut dyn Path,
    queries_packed: bool,
}

impl<'a> Candidate<'a> {
    fn new(path: &'a mut dyn Path) -> Self {
        Candidate { path, queries_packed: false }
    }

    /// Packs V and K, and Q before the first of them; false if that is not precise enough.
    fn pack(&mut self, task: &Task, keys: &KeyTile, staging: &mut Staging) -> bool {
        if !self.queries_packed {
            self.path.pack_queries(task, staging);
            self.queries_packed = true;
        }
        self.path.pack_values(task, keys, staging);
        // K last: the scores read it next, and find its end still in the nearest cache.
        self.path.pack_keys(task, keys, staging);
        self.path.is_precise(task, keys)
    }
}
