//! Faults that touch one element, one row, one tile or one head: what a mean over all of them hides.

use super::noise::Noise;
use super::plain::{Plain, row_offset, store_row};
use eightfold::{Mask, Output, Problem, RunReport, Shape};
use eightfold_lab::gates::{Case, Subject, checks};

/// What is wrong in one place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Local {
    ElementLost,
    ElementNegated,
    HalfRowOfTheNext,
    RowOfTheNext,
    TileNotRescaledInOneRow,
    TileShiftedByOneKey,
    LastTileDropped,
    StaleScaleOfOneHead,
    LseInLog2InOneRow,
    DiagonalOneTooMany,
    DiagonalOneTooFew,
}

impl Local {
    /// All of them.
    pub const ALL: [Local; 11] = [
        Local::ElementLost,
        Local::ElementNegated,
        Local::HalfRowOfTheNext,
        Local::RowOfTheNext,
        Local::TileNotRescaledInOneRow,
        Local::TileShiftedByOneKey,
        Local::LastTileDropped,
        Local::StaleScaleOfOneHead,
        Local::LseInLog2InOneRow,
        Local::DiagonalOneTooMany,
        Local::DiagonalOneTooFew,
    ];

    /// The check that must see it.
    pub fn seen_by(self) -> &'static str {
        match self {
            Local::StaleScaleOfOneHead => checks::RELATIVE_L2,
            Local::LseInLog2InOneRow => checks::LSE,
            _ => checks::WORST_ROW,
        }
    }

    /// Whether it can be seen under a mask and a tolerance. Peers that round their inputs anew, with one scale for all heads,
    /// are as far off as a scale that is a tenth too large in one head, and as one channel of a row.
    pub fn shows(self, mask: Mask, noise: &Noise) -> bool {
        match self {
            Local::DiagonalOneTooMany | Local::DiagonalOneTooFew => mask == Mask::Causal,
            Local::StaleScaleOfOneHead | Local::ElementLost => noise.tolerance != "fp8-peer",
            _ => true,
        }
    }

    /// A right output of this case, broken.
    pub fn applied(self, case: &Case, noise: &Noise, right: &Output) -> Output {
        let mut output = right.clone();
        let problem = &case.problem;
        let Shape { query_len, head_dim, query_heads, batch, .. } = problem.shape();
        let rows = batch * query_heads * query_len;
        // In the middle of a head in the middle, so that every mask lets it see keys.
        let middle = rows / 2 + query_len / 2;
        let values = right.values.to_f32();
        let row_of = |row: usize| values[row_offset(problem, row)..][..head_dim].to_vec();
        let last_head = rows - query_len..rows;
        let last_rows = rows - TILE..rows;
        let plain = noise.plain();
        match self {
            Local::ElementLost | Local::ElementNegated => {
                let mut row = row_of(middle);
                let factor = if self == Local::ElementLost { 0.0 } else { -1.0 };
                if let Some(largest) = row.iter_mut().max_by(|a, b| a.abs().total_cmp(&b.abs())) {
                    *largest *= factor;
                }
                store_row(problem, &mut output, middle, &row);
            }
            Local::HalfRowOfTheNext => {
                let mut row = row_of(middle);
                row[..head_dim / 2].copy_from_slice(&row_of(middle + 1)[..head_dim / 2]);
                store_row(problem, &mut output, middle, &row);
            }
            Local::RowOfTheNext => store_row(problem, &mut output, middle, &row_of(middle + 1)),
            Local::TileNotRescaledInOneRow => {
                let factor = |key| if key / 8 % 4 == 0 { 4.0 } else { 1.0 };
                Plain { factor, ..plain }.run_rows(case, middle..middle + 1, &mut output);
            }
            Local::TileShiftedByOneKey => {
                let value_of = |key| if (1..=2 * TILE).contains(&key) { key - 1 } else { key };
                Plain { value_of, ..plain }.run_rows(case, last_rows, &mut output);
            }
            Local::LastTileDropped => {
                let visible = |problem: &Problem, query| 0..problem.visible(query).end - problem.shape().key_len / 8;
                Plain { visible, ..plain }.run_rows(case, last_rows, &mut output);
            }
            Local::StaleScaleOfOneHead => {
                let scales = case.v.scales().values();
                let (own, stale) = most_different(scales);
                let rows_of_head = rows / scales.len() * own..rows / scales.len() * (own + 1);
                for row in rows_of_head {
                    let scaled: Vec<f32> =
                        row_of(row).iter().map(|value| value / scales[own] * scales[stale]).collect();
                    store_row(problem, &mut output, row, &scaled);
                }
            }
            Local::LseInLog2InOneRow => {
                if let Some(lse) = &mut output.lse {
                    lse[middle] *= std::f32::consts::LOG2_E;
                }
            }
            Local::DiagonalOneTooMany => {
                let visible =
                    |problem: &Problem, query| 0..(problem.visible(query).end + 1).min(problem.shape().key_len);
                Plain { visible, ..plain }.run_rows(case, last_head, &mut output);
            }
            Local::DiagonalOneTooFew => {
                let visible = |problem: &Problem, query| 0..problem.visible(query).end.saturating_sub(1);
                Plain { visible, ..plain }.run_rows(case, last_head, &mut output);
            }
        }
        output
    }
}

/// Keys or queries of a small tile.
const TILE: usize = 16;

/// The two scales that differ most.
fn most_different(scales: &[f32]) -> (usize, usize) {
    let order = |index: &usize| scales[*index].to_bits();
    let most = (0..scales.len()).max_by_key(order).unwrap_or(0);
    let least = (0..scales.len()).min_by_key(order).unwrap_or(0);
    (least, most)
}

/// Outputs that were made before, one for each case in turn and each of its runs.
pub struct Replayed {
    pub outputs: Vec<Output>,
    pub launches: usize,
}

impl Subject for Replayed {
    fn name(&self) -> String {
        "replayed".into()
    }

    fn run(
        &mut self,
        _: &Problem,
        _: &eightfold::Fp8Tensor,
        _: &eightfold::Fp8Tensor,
        _: &eightfold::Fp8Tensor,
        output: &mut Output,
    ) -> eightfold::Result<RunReport> {
        const RUNS: usize = 2;
        output.clone_from(&self.outputs[self.launches / RUNS]);
        self.launches += 1;
        Ok(RunReport::default())
    }
}
