//! The two products for few query rows, on codes where they lie: S = Q·Kᵀ and O = r·O + P·V.
//!
//! What is packed is written and read again, four bytes for each code: that pays when many rows meet it. Here a code is decoded
//! in registers, meets up to eight rows, and is gone. Channels stay side by side, so a score is the sum of the lanes of
//! a register; those of 16 keys are summed together.

use super::prefetch::Beside;
use super::{Kernel, LANES, Lanes, Visible, panels};
use crate::cpu::lanes::{by_16, inlined};
use crate::cpu::source::{Apart, Codes};
use crate::tensor::Fp8Format;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Rows whose products are computed together at most.
pub(in crate::cpu) const DIRECT_ROWS: usize = 8;

/// S = Q·Kᵀ for as many rows as there are in `visible`.
pub(in crate::cpu) struct DirectScores<'a> {
    /// Rows of `width` channels, of which there are whole groups of [`DIRECT_ROWS`], whatever the last of them hold.
    pub queries: &'a [f32],
    /// Rows of K; their factors, which fill up panels of 16, are of their scores.
    pub keys: Codes<'a>,
    pub width: usize,
    pub visible: Visible<'a>,
    /// Receives one row of `stride` scores per query.
    pub scores: &'a mut [f32],
    pub stride: usize,
}

/// O = r·O + P·V.
pub(in crate::cpu) struct DirectValues<'a> {
    /// P: one row of `stride` weights per query, of which there are whole groups of [`DIRECT_ROWS`], whatever the last of them
    /// hold. The factors of V go into them.
    pub weights: &'a mut [f32],
    pub stride: usize,
    /// r: what each row of O is multiplied by first.
    pub rescale: &'a [f32],
    /// Rows of V; their factors, which fill up panels of 16, are of their weights.
    pub values: Codes<'a>,
    pub width: usize,
    pub visible: Visible<'a>,
    /// O.
    pub output: &'a mut [f32],
}

impl Codes<'_> {
    /// Where a panel of 16 rows starts.
    ///
    /// # Safety
    ///
    /// The panel must be one of those that [`check_codes`] found.
    #[inline(always)]
    unsafe fn panel_start(&self, panel: usize) -> *const u8 {
        // SAFETY: the caller promises the panel.
        unsafe {
            let start = if self.apart.starts.is_empty() {
                panel * LANES * self.stride
            } else {
                *self.apart.starts.get_unchecked(panel)
            };
            self.bytes.as_ptr().add(start)
        }
    }
}

/// A format of codes: how 16 codes are decoded, and what is left to multiply by.
///
/// # Safety
///
/// As for [`Lanes`].
trait Decode {
    const UNIT: f32;
    unsafe fn decode<L: Lanes>(codes: *const u8) -> L::F;
    /// The same of 64 codes.
    #[inline(always)]
    unsafe fn decode_64<L: Lanes>(codes: *const u8) -> [L::F; 4] {
        // SAFETY: they are four times 16.
        unsafe { by_16!(codes, Self::decode::<L>) }
    }
}

struct E4m3;
struct E5m2;
struct Int8;

impl Decode for E4m3 {
    const UNIT: f32 = 256.0;
    inlined! {
        fn decode<L: Lanes>(codes: *const u8) -> L::F { L::decode_e4m3(codes) }
        fn decode_64<L: Lanes>(codes: *const u8) -> [L::F; 4] { L::decode_64_e4m3(codes) }
    }
}

impl Decode for E5m2 {
    const UNIT: f32 = 1.0;
    inlined! {
        fn decode<L: Lanes>(codes: *const u8) -> L::F { L::decode_e5m2(codes) }
        fn decode_64<L: Lanes>(codes: *const u8) -> [L::F; 4] { L::decode_64_e5m2(codes) }
    }
}

impl Decode for Int8 {
    const UNIT: f32 = 1.0;
    inlined! { fn decode<L: Lanes>(codes: *const u8) -> L::F { L::decode_int8(codes) } }
}

/// How many sums of 16 lanes are kept in registers at a time: in all of AVX-512's, and in half of the others'.
const fn sums(rows: usize, panels: usize) -> usize {
    if rows * panels >= 16 { 16 } else { 4 }
}

/// Of so many rows, how many are computed together where so many sums fit: a power of two, which may be more than are left.
fn group_of(rows: usize, sums: usize) -> usize {
    rows.next_power_of_two().min(if sums == 16 { DIRECT_ROWS } else { 4 })
}

fn check_codes(codes: &Codes, width: usize) {
    let Codes { bytes, stride, rows, factors, apart: Apart { starts, .. }, .. } = *codes;
    assert!(width.is_multiple_of(LANES) && width > 0 && rows > 0, "{rows} rows of {width} channels");
    let holds = |start: usize, rows: usize| bytes.len() >= start + (rows - 1) * stride + width;
    if starts.is_empty() {
        assert!(holds(0, rows), "{} codes are too few", bytes.len());
    } else {
        let panels = rows.div_ceil(LANES);
        assert!(starts.len() >= panels, "{} starts of panels are too few", starts.len());
        for (panel, start) in starts[..panels].iter().enumerate() {
            let rows = (rows - panel * LANES).min(LANES);
            assert!(holds(*start, rows), "{} codes are too few from {start} on", bytes.len());
        }
    }
    assert!(factors.is_empty() || factors.len() >= rows.next_multiple_of(LANES), "a factor per row is needed");
}

/// The same product for each of several heads whose codes are neighbours in memory: all heads meet 16 keys before they go on, so that
/// it is read in the order of its addresses. What rows see is the same for every head.
pub(in crate::cpu) struct OfHeads<'a, T>(pub &'a mut [T]);

impl<T> OfHeads<'_, T> {
    /// The panels of keys, and how many of them a head meets before the next head does: one, or all if there is one head.
    fn order<'v>(&self, visible: impl Fn(&T) -> Visible<'v>) -> (Range<usize>, usize) {
        let panels = self.0.first().map_or(0..0, |head| panels(visible(head).all()));
        let step = if self.0.len() > 1 { 1 } else { panels.len().max(1) };
        (panels, step)
    }
}

impl Kernel for DirectScores<'_> {
    const DECODES: bool = true;

    #[inline(always)]
    unsafe fn run<L: Lanes, const ROWS: usize, const PANELS: usize>(mut self) {
        // SAFETY: the caller upholds the contract of `Lanes`.
        unsafe { OfHeads(std::slice::from_mut(&mut self)).run::<L, ROWS, PANELS>() }
    }
}

impl Kernel for OfHeads<'_, DirectScores<'_>> {
    const DECODES: bool = true;

    #[inline(always)]
    unsafe fn run<L: Lanes, const ROWS: usize, const PANELS: usize>(self) {
        let Some(first) = self.0.first() else { return };
        let format = first.keys.format;
        self.0.iter().for_each(|head| head.check(format));
        // SAFETY: the caller upholds the contract of `Lanes`; the operands are as long as was asserted.
        unsafe {
            match format {
                Fp8Format::E4m3 => self.multiply::<L, E4m3, ROWS, PANELS>(),
                Fp8Format::E5m2 => self.multiply::<L, E5m2, ROWS, PANELS>(),
                Fp8Format::Int8 => self.multiply::<L, Int8, ROWS, PANELS>(),
            }
        }
    }
}

/// # Safety
///
/// As for [`Lanes`], after the assertions of `run`.
impl OfHeads<'_, DirectScores<'_>> {
    #[inline(always)]
    unsafe fn multiply<L: Lanes, D: Decode, const ROWS: usize, const PANELS: usize>(self) {
        let (panels, step) = self.order(|head| head.visible);
        for panel in panels.step_by(step) {
            for head in &mut *self.0 {
                // SAFETY: as for this.
                unsafe { head.multiply::<L, D, ROWS, PANELS>(panel..panel + step) }
            }
        }
    }
}

impl DirectScores<'_> {
    fn check(&self, format: Fp8Format) {
        let rows = self.visible.rows();
        check_codes(&self.keys, self.width);
        assert!(self.keys.format == format, "heads have one format");
        assert!(self.visible.last() <= self.keys.rows, "{} keys are too few", self.keys.rows);
        assert!(self.queries.len() >= rows.next_multiple_of(DIRECT_ROWS) * self.width, "the queries are too few");
        assert!(self.stride >= self.visible.last().next_multiple_of(LANES), "the stride is too small");
        assert!(self.scores.len() >= rows * self.stride, "the scores are too few");
    }
}

/// # Safety
///
/// As for [`Lanes`], after the assertions of `check`.
impl DirectScores<'_> {
    /// The scores of some panels, as far as there are any.
    #[inline(always)]
    unsafe fn multiply<L: Lanes, D: Decode, const ROWS: usize, const PANELS: usize>(&mut self, only: Range<usize>) {
        let (rows, sums) = (self.visible.rows(), sums(ROWS, PANELS));
        let mut row = 0;
        while row < rows {
            let group = group_of(rows - row, sums);
            // SAFETY: the queries have whole groups of rows.
            unsafe {
                match (sums, group) {
                    // What decodes 64 codes together has registers to spare for fewer keys.
                    (16, 4) if L::DECODES_64 => self.multiply_rows::<L, D, 4, 2>(row, &only),
                    (16, 2) if L::DECODES_64 => self.multiply_rows::<L, D, 2, 4>(row, &only),
                    (16, 1) if L::DECODES_64 => self.multiply_rows::<L, D, 1, 4>(row, &only),
                    (16, 8) => self.multiply_rows::<L, D, 8, 2>(row, &only),
                    (16, 4) => self.multiply_rows::<L, D, 4, 4>(row, &only),
                    (16, 2) => self.multiply_rows::<L, D, 2, 8>(row, &only),
                    (16, _) => self.multiply_rows::<L, D, 1, 16>(row, &only),
                    (_, 4) => self.multiply_rows::<L, D, 4, 1>(row, &only),
                    (_, 2) => self.multiply_rows::<L, D, 2, 2>(row, &only),
                    _ => self.multiply_rows::<L, D, 1, 4>(row, &only),
                }
            }
            row += group;
        }
    }

    /// `ROWS` rows, or as many of them as there are, with all keys of some panels, `KEYS` at a time.
    #[inline(always)]
    unsafe fn multiply_rows<L: Lanes, D: Decode, const ROWS: usize, const KEYS: usize>(
        &mut self,
        row: usize,
        only: &Range<usize>,
    ) {
        let rows = ROWS.min(self.visible.rows() - row);
        let keys = self.visible.of_rows(row..row + rows);
        let panels = panels(keys.clone());
        for panel in panels.start.max(only.start)..panels.end.min(only.end) {
            let (first, end) = (panel * LANES, keys.end);
            let beside = if row == 0 { self.keys.beside(panel) } else { Beside::NOTHING };
            // SAFETY: keys below `end` have codes, factors and room for their scores in whole panels.
            unsafe {
                let codes = self.keys.panel_start(panel);
                // Not zeros: they would take as long as the reads that follow.
                let mut sums = MaybeUninit::<[[L::F; LANES]; ROWS]>::uninit();
                if first + LANES <= end {
                    for key in (0..LANES).step_by(KEYS) {
                        (key..key + KEYS).for_each(|key| beside.fetch_row(key, self.width));
                        self.multiply_keys::<L, D, ROWS, KEYS>(row, codes, sums.as_mut_ptr(), key);
                    }
                } else {
                    sums.write([[L::splat(0.0); LANES]; ROWS]);
                    for key in 0..end - first {
                        self.multiply_keys::<L, D, ROWS, 1>(row, codes, sums.as_mut_ptr(), key);
                    }
                }
                let sums = sums.assume_init_ref();
                let mut unit = L::splat(D::UNIT);
                if !self.keys.factors.is_empty() {
                    unit = L::mul(unit, L::load(self.keys.factors.as_ptr().add(first)));
                }
                for (offset, sums) in sums.iter().enumerate().take(rows) {
                    let scores = self.scores.as_mut_ptr().add((row + offset) * self.stride + first);
                    L::store(scores, L::mul(L::sum_each(sums), unit));
                }
            }
        }
    }

    /// The products of `ROWS` rows with `KEYS` keys of a panel, added over channels a multiple of 16 apart, go to `sums` from
    /// the first key's place on.
    #[inline(always)]
    #[allow(
        clippy::needless_range_loop,
        reason = "by iterators over arrays the sums went through memory, at a quarter of the speed"
    )]
    unsafe fn multiply_keys<L: Lanes, D: Decode, const ROWS: usize, const KEYS: usize>(
        &self,
        row: usize,
        panel: *const u8,
        sums: *mut [[L::F; LANES]; ROWS],
        first: usize,
    ) {
        let stride = self.keys.stride;
        // SAFETY: as for `multiply_rows`.
        unsafe {
            let queries = self.queries.as_ptr().add(row * self.width);
            let codes = panel.add(first * stride);
            let mut products = [[L::splat(0.0); KEYS]; ROWS];
            let in_64s = if L::DECODES_64 { self.width / (4 * LANES) * (4 * LANES) } else { 0 };
            for channel in (0..in_64s).step_by(4 * LANES) {
                for key in 0..KEYS {
                    let values = D::decode_64::<L>(codes.add(key * stride + channel));
                    for part in 0..4 {
                        for row in 0..ROWS {
                            let queries = L::load(queries.add(row * self.width + channel + part * LANES));
                            products[row][key] = L::mul_add(queries, values[part], products[row][key]);
                        }
                    }
                }
            }
            for channel in (in_64s..self.width).step_by(LANES) {
                let queries: [L::F; ROWS] = std::array::from_fn(|row| L::load(queries.add(row * self.width + channel)));
                for key in 0..KEYS {
                    let values = D::decode::<L>(codes.add(key * stride + channel));
                    for row in 0..ROWS {
                        products[row][key] = L::mul_add(queries[row], values, products[row][key]);
                    }
                }
            }
            for row in 0..ROWS {
                for offset in 0..KEYS {
                    (&raw mut (*sums)[row][first + offset]).write(products[row][offset]);
                }
            }
        }
    }
}

impl Kernel for DirectValues<'_> {
    const DECODES: bool = true;

    #[inline(always)]
    unsafe fn run<L: Lanes, const ROWS: usize, const PANELS: usize>(mut self) {
        // SAFETY: the caller upholds the contract of `Lanes`.
        unsafe { OfHeads(std::slice::from_mut(&mut self)).run::<L, ROWS, PANELS>() }
    }
}

impl Kernel for OfHeads<'_, DirectValues<'_>> {
    const DECODES: bool = true;

    #[inline(always)]
    unsafe fn run<L: Lanes, const ROWS: usize, const PANELS: usize>(self) {
        let Some(first) = self.0.first() else { return };
        let format = first.values.format;
        self.0.iter().for_each(|head| head.check(format));
        // SAFETY: the caller upholds the contract of `Lanes`; the operands are as long as was asserted.
        unsafe {
            for head in &mut *self.0 {
                head.scale_weights::<L>();
            }
            match format {
                Fp8Format::E4m3 => self.multiply::<L, E4m3, ROWS, PANELS>(),
                Fp8Format::E5m2 => self.multiply::<L, E5m2, ROWS, PANELS>(),
                Fp8Format::Int8 => self.multiply::<L, Int8, ROWS, PANELS>(),
            }
        }
    }
}

/// # Safety
///
/// As for [`Lanes`], after the assertions of `run`.
impl OfHeads<'_, DirectValues<'_>> {
    #[inline(always)]
    unsafe fn multiply<L: Lanes, D: Decode, const ROWS: usize, const PANELS: usize>(self) {
        let (panels, step) = self.order(|head| head.visible);
        for panel in panels.step_by(step) {
            for head in &mut *self.0 {
                // SAFETY: as for this.
                unsafe { head.multiply::<L, D, ROWS, PANELS>(panel * LANES..(panel + step) * LANES) }
            }
        }
    }
}

impl DirectValues<'_> {
    fn check(&self, format: Fp8Format) {
        let (rows, end) = (self.visible.rows(), self.visible.last());
        check_codes(&self.values, self.width);
        assert!(self.values.format == format, "heads have one format");
        assert!(end <= self.values.rows, "{} values are too few", self.values.rows);
        assert!(self.stride >= end.next_multiple_of(LANES), "the stride is too small");
        assert!(self.weights.len() >= rows.next_multiple_of(DIRECT_ROWS) * self.stride, "the weights are too few");
        assert!(self.rescale.len() >= rows && self.output.len() >= rows * self.width, "the output is too small");
    }
}

/// # Safety
///
/// As for [`Lanes`], after the assertions of `check`.
impl DirectValues<'_> {
    #[inline(always)]
    unsafe fn scale_weights<L: Lanes>(&mut self) {
        if self.values.factors.is_empty() {
            return;
        }
        for row in 0..self.visible.rows() {
            for panel in panels(self.visible.row(row)) {
                let first = panel * LANES;
                // SAFETY: factors and weights fill up whole panels.
                unsafe {
                    let weights = self.weights.as_mut_ptr().add(row * self.stride + first);
                    L::store(weights, L::mul(L::load(weights), L::load(self.values.factors.as_ptr().add(first))));
                }
            }
        }
    }

    /// The softmax left zeros from where the first row of a group of `ROWS` begins to see to where the last one ends, so all rows
    /// of such a group go as far. Of these keys `only` some are meant; those from the first on rescale the output.
    #[inline(always)]
    unsafe fn multiply<L: Lanes, D: Decode, const ROWS: usize, const PANELS: usize>(&mut self, only: Range<usize>) {
        let rows = self.visible.rows();
        let first = only.start / LANES <= self.visible.all().start / LANES;
        for start in (0..rows).step_by(ROWS) {
            let end = rows.min(start + ROWS);
            let keys = self.visible.of_rows(start..end);
            let keys = keys.start.max(only.start)..keys.end.min(only.end);
            if keys.is_empty() && !first {
                continue;
            }
            let mut row = start;
            while row < end {
                let group = group_of(end - row, sums(ROWS, PANELS));
                // SAFETY: the weights have whole groups of rows.
                unsafe { self.multiply_rows::<L, D, ROWS, PANELS>(row, group.min(end - row), group, &keys, first) }
                row += group;
            }
        }
    }

    /// As many rows, computed as `group`, with as many channels at a time as leaves their sums in registers.
    #[inline(always)]
    unsafe fn multiply_rows<L: Lanes, D: Decode, const ROWS: usize, const PANELS: usize>(
        &mut self,
        row: usize,
        rows: usize,
        group: usize,
        keys: &Range<usize>,
        first: bool,
    ) {
        let mut chunk = 0;
        macro_rules! multiply {
            ($group:literal: $($chunks:literal)+) => {{
                $(while self.width / LANES - chunk >= $chunks {
                    self.multiply_chunks::<L, D, $group, $chunks>(row, rows, chunk, keys, first);
                    chunk += $chunks;
                })+
            }};
        }
        // SAFETY: chunks lie within the width.
        unsafe {
            match (sums(ROWS, PANELS), group) {
                (16, 8) => multiply!(8: 2 1),
                (16, 4) => multiply!(4: 4 2 1),
                (16, 2) => multiply!(2: 8 4 2 1),
                (16, _) => multiply!(1: 8 4 2 1),
                (_, 4) => multiply!(4: 1),
                (_, 2) => multiply!(2: 2 1),
                _ => multiply!(1: 4 2 1),
            }
        }
    }

    #[inline(always)]
    unsafe fn multiply_chunks<L: Lanes, D: Decode, const ROWS: usize, const CHUNKS: usize>(
        &mut self,
        row: usize,
        rows: usize,
        chunk: usize,
        keys: &Range<usize>,
        first: bool,
    ) {
        let stride = self.values.stride;
        // SAFETY: keys below the end have codes, and weights in every row of the group; `rows` of them have output.
        unsafe {
            let weights = self.weights.as_ptr().add(row * self.stride);
            let mut sums = [[L::splat(0.0); CHUNKS]; ROWS];
            for panel in panels(keys.clone()) {
                let beside = if row == 0 && chunk == 0 { self.values.beside(panel) } else { Beside::NOTHING };
                let (first, codes) = (panel * LANES, self.values.panel_start(panel).add(chunk * LANES));
                for key in first.max(keys.start)..(first + LANES).min(keys.end) {
                    beside.fetch_row(key - first, self.width);
                    let codes = codes.add((key - first) * stride);
                    let values: [L::F; CHUNKS] = if L::DECODES_64 && CHUNKS.is_multiple_of(4) {
                        let mut values = [L::splat(0.0); CHUNKS];
                        for chunk in (0..CHUNKS).step_by(4) {
                            let four = D::decode_64::<L>(codes.add(chunk * LANES));
                            values[chunk..chunk + 4].copy_from_slice(&four);
                        }
                        values
                    } else {
                        std::array::from_fn(|chunk| D::decode::<L>(codes.add(chunk * LANES)))
                    };
                    for (row, sums) in sums.iter_mut().enumerate() {
                        let weight = L::splat(*weights.add(row * self.stride + key));
                        for (sum, values) in sums.iter_mut().zip(values) {
                            *sum = L::mul_add(weight, values, *sum);
                        }
                    }
                }
            }
            for (offset, sums) in sums.into_iter().enumerate().take(rows) {
                let rescale = L::splat(if first { *self.rescale.get_unchecked(row + offset) } else { 1.0 });
                let output = self.output.as_mut_ptr().add((row + offset) * self.width + chunk * LANES);
                for (chunk, sum) in sums.into_iter().enumerate() {
                    let output = output.add(chunk * LANES);
                    let sum = L::mul(sum, L::splat(D::UNIT));
                    L::store(output, L::mul_add(rescale, L::load(output), sum));
                }
            }
        }
    }
}
