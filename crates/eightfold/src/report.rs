//! What a run did.

use crate::variant::Variant;

/// What a run did: which variant it was, and the evidence that its precautions were, or were not, needed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunReport {
    /// The kernel with its knobs; none where it is not one of this library's.
    pub variant: Option<Variant>,
    /// Blocks of (query rows × key tile) that were computed.
    pub tiles: u64,
    /// Of those, blocks that the integer path handed to f32 because rounding would have shown.
    pub tiles_in_f32: u64,
    /// Rows of a tile whose weights needed a second product, with what rounding left of them.
    pub rows_refined: u64,
}

impl RunReport {
    /// The same, of this variant.
    pub(crate) fn of(self, variant: impl Into<Variant>) -> Self {
        RunReport { variant: Some(variant.into()), ..self }
    }
}

impl std::ops::AddAssign for RunReport {
    fn add_assign(&mut self, other: RunReport) {
        self.tiles += other.tiles;
        self.tiles_in_f32 += other.tiles_in_f32;
        self.rows_refined += other.rows_refined;
    }
}

impl std::iter::Sum for RunReport {
    fn sum<I: Iterator<Item = RunReport>>(reports: I) -> RunReport {
        reports.fold(RunReport::default(), |mut total, report| {
            total += report;
            total
        })
    }
}
