//! K, or V, in pages of host memory.

use super::layout::{PageLayout, PageScales, SCALE_FIX, is_scale};
use super::table::BlockTable;
use crate::error::{Error, Result};
use crate::fp8;
use crate::tensor::Fp8Format;
use rayon::prelude::*;
use std::ops::Range;

/// FP8 codes in pages, with their scales: value = code · scale. The codes are used where they lie.
///
/// In a cache whose memory holds both K and V, each is a tensor of its own, whose codes start where its first one is.
#[derive(Debug, Clone, Copy)]
pub struct PagedTensor<'a> {
    layout: PageLayout,
    format: Fp8Format,
    codes: &'a [u8],
    granularity: PageScales,
    scales: &'a [f32],
}

impl<'a> PagedTensor<'a> {
    /// Wraps a cache's memory. Codes of tokens that a sequence has must be finite.
    pub fn new(
        layout: PageLayout,
        format: Fp8Format,
        codes: &'a [u8],
        granularity: PageScales,
        scales: &'a [f32],
    ) -> Result<Self> {
        format.check_fp8("a cache in pages")?;
        layout.check_codes(codes.len())?;
        // How many sequences there are is known when there is a block table.
        let needed = granularity.count(&layout, 0)?;
        if scales.len() < needed {
            return Err(Error::invalid(
                "scales",
                format!("{} do not suffice where {needed} are needed", scales.len()),
                "give one scale for each unit of the granularity",
            ));
        }
        let tensor = PagedTensor { layout, format, codes, granularity, scales };
        // Those of tokens are looked at when it is known which of them are some sequence's.
        if !matches!(granularity, PageScales::Token(_))
            && let Some((index, scale)) = scales.iter().enumerate().find(|(_, scale)| !is_scale(**scale))
        {
            return Err(Error::invalid(
                "scales",
                format!("scale {index} is {scale}, not a finite positive number"),
                SCALE_FIX,
            ));
        }
        Ok(tensor)
    }

    /// Where the rows lie.
    pub fn layout(&self) -> &PageLayout {
        &self.layout
    }

    /// The number format of the codes.
    pub fn format(&self) -> Fp8Format {
        self.format
    }

    /// The memory, from the first code of the first page on.
    pub(crate) fn codes(&self) -> &'a [u8] {
        self.codes
    }

    /// How much shares a scale, and the scales.
    pub(crate) fn scales(&self) -> (PageScales, &'a [f32]) {
        (self.granularity, self.scales)
    }

    /// The values that tokens of a sequence stand for, exact in float64.
    pub(crate) fn dequantize_rows(
        &self,
        table: &BlockTable,
        sequence: usize,
        head: usize,
        tokens: Range<usize>,
    ) -> Vec<f64> {
        let PageLayout { page_size, heads, head_dim, strides, .. } = self.layout;
        let pages = table.pages_of(sequence);
        let row = |token: usize| {
            let (page, token) = (pages[token / page_size] as usize, token % page_size);
            let scale = match self.granularity {
                PageScales::Tensor => self.scales[0],
                PageScales::Head => self.scales[head],
                PageScales::Sequence => self.scales[sequence * heads + head],
                PageScales::Token(strides) => self.scales[strides.offset(page, token, head)],
            };
            let codes = &self.codes[strides.offset(page, token, head)..][..head_dim];
            codes.iter().map(move |code| f64::from(fp8::decode(self.format, *code)) * f64::from(scale))
        };
        tokens.flat_map(row).collect()
    }

    /// Whether every token that the table gives to a sequence lies in the cache and has a scale; `name` is the tensor's.
    pub(super) fn check(&self, name: &str, table: &BlockTable) -> Result<()> {
        let needed = self.granularity.count(&self.layout, table.sequences())?;
        if self.scales.len() < needed {
            return Err(Error::invalid(
                name,
                format!("has {} scales, but {} sequences need {needed}", self.scales.len(), table.sequences()),
                "give one scale per sequence and head",
            ));
        }
        table.check(&self.layout)?;
        let PageScales::Token(strides) = self.granularity else { return Ok(()) };
        (0..table.sequences()).into_par_iter().try_for_each(|sequence| {
            let (length, size) = (table.length(sequence), self.layout.page_size);
            for (index, page) in table.pages_of(sequence)[..length.div_ceil(size)].iter().enumerate() {
                let used = size.min(length - index * size);
                for head in 0..self.layout.heads {
                    let scales = &self.scales[strides.offset(*page as usize, 0, head)..];
                    // All of them are looked at before any is named, since that can be vectorised.
                    let all = |all: bool, scale: &f32| all & is_scale(*scale);
                    let sound = match strides.token {
                        1 => scales[..used].iter().fold(true, all),
                        step => scales.iter().step_by(step.max(1)).take(used).fold(true, all),
                    };
                    if sound {
                        continue;
                    }
                    let slot = scales.iter().step_by(strides.token.max(1)).position(|scale| !is_scale(*scale)).unwrap_or(0);
                    let scale = scales[slot * strides.token];
                    return Err(Error::invalid(
                        name,
                        format!(
                            "token {} of sequence {sequence}, slot {slot} of page {page}, has the scale {scale} for head \
                             {head}, not a finite positive number",
                            index * size + slot
                        ),
                        SCALE_FIX,
                    ));
                }
            }
            Ok(())
        })
    }
}
