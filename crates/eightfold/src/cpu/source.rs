//! Rows of one head of an FP8 tensor, as codes that the kernels can read.

use super::kernels::fetch_row;
use super::lanes::LANES;
use super::scratch::Staging;
use crate::fp8;
use crate::problem::MAX_HEAD_DIM;
use crate::serving::{PageLayout, PageScales, PageStrides, PagedTensor};
use crate::tensor::{Fp8Format, Fp8Tensor, Granularity};
use std::ops::Range;

/// Rows of codes, channels side by side, with what each row is to be multiplied by.
#[derive(Clone, Copy)]
pub(super) struct Codes<'a> {
    /// The codes: row r starts at r · `stride`.
    pub bytes: &'a [u8],
    pub stride: usize,
    pub rows: usize,
    pub format: Fp8Format,
    /// A factor for every row; empty where all are 1.
    pub factors: &'a [f32],
    /// Where panels are, if they lie apart.
    pub apart: Apart<'a>,
}

/// Panels of 16 rows that lie apart.
#[derive(Clone, Copy, Default)]
pub(super) struct Apart<'a> {
    /// Where each starts; empty where row follows row.
    pub starts: &'a [usize],
    /// Where 16 rows start that are fetched while a panel is used, for each or for none.
    pub beside: &'a [usize],
}

/// What is read after the rows at hand.
#[derive(Clone, Copy)]
pub(super) struct Ahead {
    /// How many rows after those at hand rows are fetched: far enough for a read of memory to end in time, near enough for the
    /// nearest cache.
    pub by: usize,
    /// Where the rows end for now.
    pub end: usize,
}

impl Ahead {
    /// For one head at a time.
    pub(super) fn of_a_head(end: usize) -> Self {
        Ahead { by: 4 * LANES, end }
    }

    /// For heads whose rows take so many bytes together.
    pub(super) fn of_all_heads(row_bytes: usize, end: usize) -> Self {
        const BYTES: usize = 32 << 10;
        Ahead { by: (BYTES / row_bytes).next_multiple_of(LANES), end }
    }

    /// The rows that are fetched while these are used.
    fn rows(&self, rows: &Range<usize>) -> Range<usize> {
        (rows.start + self.by).min(self.end)..(rows.end + self.by).min(self.end)
    }
}

impl Codes<'_> {
    /// Sixteen of the rows.
    #[inline(always)]
    pub(super) fn panel(&self, panel: usize) -> Self {
        let row = panel * LANES;
        let factors = self.factors.get(row..).unwrap_or(&[]);
        let start = if self.apart.starts.is_empty() { row * self.stride } else { self.apart.starts[panel] };
        Codes { bytes: &self.bytes[start..], rows: LANES, factors, apart: Apart::default(), ..*self }
    }
}

/// The rows of Q, K or V that belong to a batch of equal sequences, or to one sequence.
#[derive(Clone, Copy)]
pub(super) enum Source<'a> {
    /// Those of a tensor, from the first one on.
    Tensor { tensor: &'a Fp8Tensor<'a>, first: usize },
    /// Those in the pages of a sequence.
    Pages { tensor: &'a PagedTensor<'a>, pages: &'a [i32], sequence: usize },
}

impl<'a> Source<'a> {
    /// The attention sinks that come with Q.
    pub(super) fn sinks(self) -> Option<&'a [f32]> {
        match self {
            Source::Tensor { tensor, .. } => tensor.sinks(),
            Source::Pages { .. } => None,
        }
    }
}

impl<'a> From<&'a Fp8Tensor<'a>> for Source<'a> {
    fn from(tensor: &'a Fp8Tensor<'a>) -> Self {
        Source::Tensor { tensor, first: 0 }
    }
}

/// One head of Q, K or V.
#[derive(Clone, Copy)]
pub(super) struct Head<'a> {
    /// From the head's first row on, or from where the first page has that.
    codes: &'a [u8],
    format: Fp8Format,
    head_dim: usize,
    row_stride: usize,
    channel_stride: usize,
    pages: Option<Pages<'a>>,
    scales: RowScales<'a>,
    means: Option<&'a [f32]>,
}

/// Which rows are in which page.
#[derive(Clone, Copy)]
struct Pages<'a> {
    pages: &'a [i32],
    /// Rows of a page.
    size: usize,
    stride: usize,
}

/// The scales of a head's rows.
#[derive(Clone, Copy)]
enum RowScales<'a> {
    /// The same for all.
    One(f32),
    /// One for every block of rows, whose first may have begun before the head's first row.
    Blocks { scales: &'a [f32], rows: usize, first: usize },
    /// One for every row, beside it in the pages.
    Rows { scales: &'a [f32], page_stride: usize, row_stride: usize },
}

impl<'a> Head<'a> {
    pub(super) fn new(source: Source<'a>, batch: usize, head: usize) -> Self {
        match source {
            Source::Tensor { tensor, first } => {
                let (dims, strides, scales) = (tensor.dims(), tensor.strides(), tensor.scales());
                Head {
                    // A sequence without rows may begin where the tensor ends.
                    codes: tensor.codes().get(strides.row_offset(batch, head, first)..).unwrap_or(&[]),
                    format: tensor.format(),
                    head_dim: dims.head_dim,
                    row_stride: strides.row,
                    channel_stride: strides.channel,
                    pages: None,
                    scales: match scales.granularity() {
                        Granularity::Block { rows } => {
                            let blocks = dims.len.div_ceil(rows);
                            let scales = &scales.values()[(batch * dims.heads + head) * blocks..][..blocks];
                            RowScales::Blocks { scales, rows, first }
                        }
                        Granularity::Tensor | Granularity::Head => {
                            RowScales::One(scales.of_row(dims, batch, head, first))
                        }
                    },
                    means: tensor.head_means(batch, head),
                }
            }
            Source::Pages { tensor, pages, sequence } => {
                let PageLayout { page_size: size, heads, head_dim, strides, .. } = *tensor.layout();
                let (granularity, scales) = tensor.scales();
                Head {
                    codes: &tensor.codes()[head * strides.head..],
                    format: tensor.format(),
                    head_dim,
                    row_stride: strides.token,
                    channel_stride: 1,
                    pages: Some(Pages { pages, size, stride: strides.page }),
                    scales: match granularity {
                        PageScales::Tensor => RowScales::One(scales[0]),
                        PageScales::Head => RowScales::One(scales[head]),
                        PageScales::Sequence => RowScales::One(scales[sequence * heads + head]),
                        PageScales::Token(PageStrides { page, token, head: stride }) => {
                            RowScales::Rows { scales: &scales[head * stride..], page_stride: page, row_stride: token }
                        }
                    },
                    means: None,
                }
            }
        }
    }

    /// The query heads that share one head of K and V.
    pub(super) fn group(
        source: Source<'a>,
        batch: usize,
        kv_head: usize,
        size: usize,
    ) -> impl ExactSizeIterator<Item = Self> + Clone {
        (kv_head * size..(kv_head + 1) * size).map(move |head| Head::new(source, batch, head))
    }

    /// The number format of the codes.
    pub(super) fn format(&self) -> Fp8Format {
        self.format
    }

    /// Whether rows may have different scales.
    pub(super) fn scales_vary(&self) -> bool {
        !matches!(self.scales, RowScales::One(_))
    }

    /// The scale of one row.
    pub(super) fn row_scale(&self, row: usize) -> f32 {
        match (self.scales, self.pages) {
            (RowScales::One(scale), _) => scale,
            (RowScales::Blocks { scales, rows, first }, _) => scales[(first + row) / rows],
            (RowScales::Rows { scales, page_stride, row_stride }, Some(pages)) => {
                scales[pages.start(row, page_stride, row_stride)]
            }
            (RowScales::Rows { scales, row_stride, .. }, None) => scales[row * row_stride],
        }
    }

    /// The largest scale of some rows: the unit of relative scales.
    pub(super) fn largest_scale(&self, rows: &Range<usize>) -> f32 {
        match self.scales {
            RowScales::One(scale) => scale,
            RowScales::Blocks { scales, rows: block, first } => {
                let blocks = (first + rows.start) / block..(first + rows.end).div_ceil(block);
                scales[blocks].iter().copied().fold(0.0, f32::max)
            }
            RowScales::Rows { .. } => {
                // Positive numbers order as their bits do, of which the compiler can take the largest of many.
                let mut largest = 0;
                let larger = |largest: u32, scale: &f32| largest.max(scale.to_bits());
                self.for_page_scales(rows.clone(), |scales, step| {
                    largest = match step {
                        1 => scales.iter().fold(largest, larger),
                        _ => scales.iter().step_by(step).fold(largest, larger),
                    };
                });
                f32::from_bits(largest)
            }
        }
    }

    /// The mean of every channel, if the tensor was centred.
    pub(super) fn means(&self) -> Option<&'a [f32]> {
        self.means
    }

    /// Where a row starts.
    fn start(&self, row: usize) -> usize {
        match self.pages {
            None => row * self.row_stride,
            Some(pages) => pages.start(row, pages.stride, self.row_stride),
        }
    }

    /// The codes of one row, whose channels are neighbours.
    pub(super) fn row(&self, row: usize) -> &'a [u8] {
        &self.codes[self.start(row)..][..self.head_dim]
    }

    /// Rows where they lie, whose channels are neighbours and which are not in pages.
    pub(super) fn rows(&self, rows: Range<usize>) -> Codes<'a> {
        let bytes = &self.codes[rows.start * self.row_stride..];
        Codes {
            bytes,
            stride: self.row_stride,
            rows: rows.len(),
            format: self.format,
            factors: &[],
            apart: Apart::default(),
        }
    }

    /// The codes of one channel, rows side by side: V transposed.
    fn channel(&self, channel: usize, rows: &Range<usize>) -> &'a [u8] {
        &self.codes[channel * self.channel_stride..][rows.clone()]
    }

    /// The scales of rows in units of `largest`, then zeros up to `count`; nothing where all are 1.
    pub(super) fn relative_scales(&self, rows: Range<usize>, count: usize, largest: f32, scales: &mut Vec<f32>) {
        scales.clear();
        if self.scales_vary() {
            match self.scales {
                RowScales::Rows { .. } => self.for_page_scales(rows, |of_page, step| match step {
                    1 => scales.extend_from_slice(of_page),
                    _ => scales.extend(of_page.iter().step_by(step)),
                }),
                _ => scales.extend(rows.map(|row| self.row_scale(row))),
            }
            scales.iter_mut().for_each(|scale| *scale /= largest);
            scales.resize(count, 0.0);
        }
    }

    /// Hands on, page by page, where the scales of rows are that have their own, and how far apart.
    fn for_page_scales(&self, rows: Range<usize>, mut take: impl FnMut(&[f32], usize)) {
        let (RowScales::Rows { scales, page_stride, row_stride }, Some(pages)) = (self.scales, self.pages) else {
            return;
        };
        for (first, count) in pages.runs(rows, page_stride, row_stride) {
            take(&scales[first..=first + (count - 1) * row_stride], row_stride.max(1));
        }
    }

    /// Whether rows are `width` neighbouring codes, as [`Head::rows`] promises.
    pub(super) fn lies_in_rows(&self, width: usize) -> bool {
        self.pages.is_none() && self.head_dim == width && self.channel_stride == 1
    }

    /// Whether a row's codes are neighbours, as [`Head::rows`] promises.
    pub(super) fn has_rows(&self) -> bool {
        self.pages.is_none() && self.channel_stride == 1
    }

    /// Whether 16 rows from `first` on, and every 16 after them, lie side by side, as [`Head::full_panels`] promises.
    pub(super) fn lies_in_panels(&self, first: usize, width: usize) -> bool {
        let whole = |pages: Pages| pages.size.is_multiple_of(LANES) && first.is_multiple_of(LANES);
        self.lies_in_rows(width) || self.head_dim == width && self.pages.is_some_and(whole)
    }

    /// Full panels of 16 rows where they lie; `staging` is room for where that is.
    pub(super) fn full_panels<'r>(&self, rows: Range<usize>, ahead: Ahead, staging: &'r mut Staging) -> Codes<'r>
    where
        'a: 'r,
    {
        self.note_panels(rows.clone(), ahead, staging);
        self.noted_panels(rows, staging)
    }

    /// Notes where panels of 16 rows are, and what is fetched while they are used.
    fn note_panels(&self, rows: Range<usize>, ahead: Ahead, staging: &mut Staging) {
        let Some(pages) = self.pages else { return };
        let stride = self.row_stride;
        // Pages hold whole panels.
        let panels = |to: &mut Vec<usize>, rows: Range<usize>| {
            to.clear();
            for (first, count) in pages.runs(rows, pages.stride, stride) {
                to.extend((0..count).step_by(LANES).map(|row| first + row * stride));
            }
        };
        panels(&mut staging.beside, ahead.rows(&rows));
        panels(&mut staging.starts, rows);
    }

    /// Panels that [`Head::note_panels`] noted.
    fn noted_panels<'r>(&self, rows: Range<usize>, staging: &'r Staging) -> Codes<'r>
    where
        'a: 'r,
    {
        if self.pages.is_none() {
            return self.rows(rows);
        }
        let apart = Apart { starts: &staging.starts, beside: &staging.beside };
        Codes { bytes: self.codes, stride: self.row_stride, rows: rows.len(), format: self.format, factors: &[], apart }
    }

    /// Prepares `staging` for [`Head::placed`]: it notes where panels start that lie apart, and copies rows whose codes do.
    pub(super) fn place(&self, rows: Range<usize>, ahead: Ahead, width: usize, staging: &mut Staging) {
        if self.lies_in_rows(width) {
            return;
        }
        if self.lies_in_panels(rows.start, width) {
            self.note_panels(rows, ahead, staging);
        } else {
            self.gather(rows, ahead, width, staging);
        }
    }

    /// Rows as products with codes read them, which [`Head::place`] was told of: where they lie, if 16 do so side by side.
    pub(super) fn placed<'r>(&self, rows: Range<usize>, width: usize, staging: &'r Staging) -> Codes<'r>
    where
        'a: 'r,
    {
        if self.lies_in_rows(width) {
            return self.rows(rows);
        }
        if self.lies_in_panels(rows.start, width) {
            return self.noted_panels(rows, staging);
        }
        Codes { rows: rows.len(), ..staging.codes(width, self.format) }
    }

    /// Rows without their scales, copied to `staging` as panels of 16 rows of `width` codes, with zeros where the tensor has
    /// nothing; it fetches some of what is `ahead`.
    pub(super) fn gather<'r>(
        &self,
        rows: Range<usize>,
        ahead: Ahead,
        width: usize,
        staging: &'r mut Staging,
    ) -> Codes<'r> {
        let bytes = staging.clear(rows.len().next_multiple_of(LANES), width);
        let to = bytes.chunks_exact_mut(width);
        if let Some(pages) = self.pages {
            let mut ahead = pages.starts(ahead.rows(&rows), self.row_stride);
            for (to, start) in to.zip(pages.starts(rows, self.row_stride)) {
                copy_row(&mut to[..self.head_dim], &self.codes[start..]);
                if let Some(start) = ahead.next() {
                    fetch_row(self.codes.as_ptr().wrapping_add(start), self.head_dim);
                }
            }
        } else if self.channel_stride == 1 {
            for (to, row) in to.zip(rows) {
                copy_row(&mut to[..self.head_dim], self.row(row));
            }
        } else {
            for channel in 0..self.head_dim {
                for (bytes, code) in bytes.chunks_exact_mut(width).zip(self.channel(channel, &rows)) {
                    bytes[channel] = *code;
                }
            }
        }
        staging.codes(width, self.format)
    }

    /// Raises `largest` to the largest magnitude of each channel over the rows, without their scales, or above. Codes without
    /// their sign order as their magnitudes do, so the largest is found without decoding the others.
    pub(super) fn raise_channel_max(&self, rows: Range<usize>, largest: &mut [f32]) {
        const GROUP: usize = 64;
        let head_dim = self.head_dim;
        if self.format == Fp8Format::Int8 {
            // The bound of all is close enough: fixed point holds integers exactly.
            let bound = self.format.max();
            return largest[..head_dim].iter_mut().for_each(|largest| *largest = largest.max(bound));
        }
        let mut codes = [0u8; MAX_HEAD_DIM];
        let codes = &mut codes[..head_dim];
        if self.channel_stride == 1 {
            // 64 channels at a time stay in registers over all rows; shorter heads end in a shorter group.
            for (group, largest) in codes.chunks_mut(GROUP).enumerate() {
                let mut group_max = [0u8; GROUP];
                for row in rows.clone() {
                    let codes = &self.row(row)[group * GROUP..][..largest.len()];
                    // Of a whole group the compiler knows the length, and makes it a few vector instructions.
                    match codes.first_chunk::<GROUP>() {
                        Some(codes) => raise_codes(&mut group_max, codes),
                        None => raise_codes(&mut group_max, codes),
                    }
                }
                largest.copy_from_slice(&group_max[..largest.len()]);
            }
        } else {
            for (channel, largest) in codes.iter_mut().enumerate() {
                *largest = self.channel(channel, &rows).iter().fold(0, |largest, code| largest.max(code & 0x7f));
            }
        }
        let mut values = [0.0; MAX_HEAD_DIM];
        fp8::decode_f32(self.format, codes, &mut values[..head_dim]);
        for (largest, value) in largest.iter_mut().zip(&values[..head_dim]) {
            *largest = largest.max(*value);
        }
    }
}

impl<'a> Pages<'a> {
    /// Where something of a row starts that pages have every `page_stride` and rows of a page every `row_stride`.
    fn start(&self, row: usize, page_stride: usize, row_stride: usize) -> usize {
        self.pages[row / self.size] as usize * page_stride + row % self.size * row_stride
    }

    /// The same for the rows of a page at a time: where they start, and how many they are.
    fn runs(
        self,
        rows: Range<usize>,
        page_stride: usize,
        row_stride: usize,
    ) -> impl Iterator<Item = (usize, usize)> + use<'a> {
        let pages = if rows.is_empty() { 0..0 } else { rows.start / self.size..rows.end.div_ceil(self.size) };
        let first_page = pages.start;
        self.pages[pages].iter().zip(first_page..).map(move |(page, index)| {
            let [first, end] = [rows.start.max(index * self.size), rows.end.min((index + 1) * self.size)];
            (*page as usize * page_stride + (first - index * self.size) * row_stride, end - first)
        })
    }

    /// Where each row starts.
    fn starts(self, rows: Range<usize>, row_stride: usize) -> impl Iterator<Item = usize> + use<'a> {
        let runs = self.runs(rows, self.stride, row_stride);
        runs.flat_map(move |(first, count)| (0..count).map(move |row| first + row * row_stride))
    }
}

/// Copies the codes of a row; in chunks, because a call for a few cache lines costs more than they do.
#[inline(always)]
fn copy_row(to: &mut [u8], from: &[u8]) {
    let (to, rest) = to.as_chunks_mut::<64>();
    let (from, from_rest) = from.as_chunks::<64>();
    to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
    let from = from.get(to.len()).map_or(from_rest, |from| from);
    rest.copy_from_slice(&from[..rest.len()]);
}

/// Raises each code to the other's magnitude.
#[inline(always)]
fn raise_codes(largest: &mut [u8], codes: &[u8]) {
    for (largest, code) in largest.iter_mut().zip(codes) {
        *largest = (*largest).max(code & 0x7f);
    }
}
