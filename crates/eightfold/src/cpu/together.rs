//! All heads together: few queries, and keys whose heads are neighbours, as in the pages of most caches.
//!
//! What one head reads of a token is a line or two, and the next head's follows. Head by head, memory would be read in strides: no
//! CPU fetches those ahead fast enough. All heads together read it in the order of its addresses.

use super::attend::Attended;
use super::kernels::{OfHeads, RowState, Visible};
use super::path::{FloatPath, KeyTile, Path, Tile};
use super::scratch::{Buffer, Scratch, Staging};
use super::source::Ahead;
use super::task::{Block, Job, Task};
use crate::report::RunReport;
use std::ops::Range;

/// A head on its way through the keys.
struct Head<'a> {
    task: Task<'a>,
    output: &'a mut Buffer<f32>,
    states: &'a mut Vec<RowState>,
    visible: &'a mut Vec<Range<usize>>,
    rescale: &'a mut Vec<f32>,
    staging: &'a mut Staging,
    float: &'a mut FloatPath,
}

/// A head and its tile of keys.
struct Step<'t, 'a> {
    task: &'t Task<'a>,
    float: &'t mut FloatPath,
    tile: Tile<'t>,
}

/// Attends blocks of several heads, of the same queries, to the same keys, in f32 on codes where they lie.
pub(super) fn attend<'a>(job: &'a Job, blocks: &'a [Block], scratches: &'a mut [Scratch]) -> Vec<Attended<'a>> {
    let mut heads = Vec::with_capacity(blocks.len());
    let mut scales = Vec::with_capacity(blocks.len());
    for (block, scratch) in blocks.iter().zip(scratches) {
        let Scratch { output, states, visible, rescale, row_scales, row_offsets, staging, float, .. } = scratch;
        let task = Task::new(job, block, row_scales, row_offsets);
        output.get(task.rows * task.value_width).fill(0.0);
        states.clear();
        states.resize(task.rows, RowState::EMPTY);
        rescale.resize(task.rows, 0.0);
        float.pack_queries(&task, staging);
        heads.push(Head { task, output, states, visible, rescale, staging, float });
        scales.push((&mut scratch.key_scales, &mut scratch.value_scales));
    }
    let mut report = RunReport::default();
    let Some(Head { task, .. }) = heads.first() else { return Vec::new() };
    let rows = 0..task.rows;
    let ahead = Ahead::of_all_heads(blocks.len() * job.problem.shape().head_dim, task.block.keys.end);
    for range in task.key_tiles() {
        let keys: Vec<KeyTile> = heads
            .iter()
            .zip(&mut scales)
            .map(|(head, (keys, values))| KeyTile::new(&head.task, range.clone(), ahead, keys, values))
            .collect();
        let steps = heads.iter_mut().zip(&keys).map(|(head, keys)| {
            let Head { task, output, states, visible, rescale, staging, float } = head;
            float.pack_keys(task, keys, staging);
            float.pack_values(task, keys, staging);
            task.visible(rows.clone(), &keys.range, visible);
            let (visible, output) = (Visible::new(visible), output.used_mut());
            let tile = Tile { keys, rows: rows.clone(), visible, states, rescale, output, rows_refined: 0 };
            Step { task, float, tile }
        });
        let mut steps: Vec<Step> = steps.collect();
        if steps[0].tile.visible.ranges().iter().all(|keys| keys.is_empty()) {
            continue;
        }
        let mut scores: Vec<_> =
            steps.iter_mut().map(|Step { task, float, tile }| float.direct_scores(task, tile)).collect();
        job.instructions.run(OfHeads(&mut scores));
        steps.iter_mut().for_each(|Step { task, float, tile }| float.softmax(task, tile));
        let mut values: Vec<_> =
            steps.iter_mut().map(|Step { task, float, tile }| float.direct_values(task, tile)).collect();
        job.instructions.run(OfHeads(&mut values));
        report.tiles += 1;
    }
    let ends = heads.into_iter().map(|Head { task, output, states, .. }| Attended {
        output: output.used(),
        value_scale: task.value_scale,
        states,
        report,
    });
    ends.collect()
}
