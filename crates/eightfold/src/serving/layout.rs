//! Where the tokens of a paged cache lie, in host memory as in a device's.

use crate::error::{Error, Result};
use crate::problem::MAX_HEAD_DIM;
use crate::tensor::Fp8Format;

/// Distances, in elements, from one page, one token of a page and one head to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct PageStrides {
    /// From one page to the next.
    pub page: usize,
    /// From one token of a page to the next.
    pub token: usize,
    /// From one head of a token to the next.
    pub head: usize,
}

impl PageStrides {
    /// These distances.
    pub const fn new(page: usize, token: usize, head: usize) -> Self {
        PageStrides { page, token, head }
    }

    /// Where a head of a token lies.
    pub(crate) fn offset(&self, page: usize, token: usize, head: usize) -> usize {
        page * self.page + token * self.token + head * self.head
    }

    /// The elements from the first to behind the last, of rows this wide, if no two rows overlap; the sizes are those of
    /// [`PageLayout`].
    fn span(&self, layout: &PageLayout, width: usize) -> Result<usize> {
        // The stride of a single page, token or head means nothing.
        let mut steps = [
            ("page", self.page, layout.pages),
            ("token", self.token, layout.page_size),
            ("head", self.head, layout.heads),
        ];
        steps.sort_by_key(|(_, stride, _)| *stride);
        let mut span = width;
        for (name, stride, count) in steps.into_iter().filter(|(_, _, count)| *count > 1) {
            if stride < span {
                return Err(Error::invalid(
                    "strides",
                    format!("a {name} every {stride} elements overlaps the {span} elements of what lies between"),
                    "give the distances in elements, as they are in the cache's memory",
                ));
            }
            let last = stride.checked_mul(count - 1).and_then(|last| last.checked_add(span));
            span = last.filter(|span| *span <= isize::MAX as usize).ok_or_else(|| {
                Error::invalid("strides", format!("{self:?} reach beyond what can be addressed"), "make them smaller")
            })?;
        }
        Ok(span)
    }
}

/// Where the rows of K, or those of V, lie in pages: channels side by side, everything else by strides.
///
/// ```
/// use eightfold::serving::{PageLayout, PageStrides};
///
/// // 1024 pages of 16 tokens of 8 heads of 128 channels, as vLLM has them: [pages, heads, tokens, K and V].
/// let (pages, page_size, heads, head_dim) = (1024, 16, 8, 128);
/// let row = 2 * head_dim;
/// let vllm = PageLayout::hnd(pages, page_size, heads, head_dim)
///     .with_strides(PageStrides::new(heads * page_size * row, row, page_size * row));
/// assert_eq!(vllm.strides, PageLayout::hnd(pages, page_size, heads, row).strides);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct PageLayout {
    /// Pages of the cache.
    pub pages: usize,
    /// Tokens of a page.
    pub page_size: usize,
    /// Heads of K and V.
    pub heads: usize,
    /// Channels of a head.
    pub head_dim: usize,
    /// Where they lie.
    pub strides: PageStrides,
}

impl PageLayout {
    /// `[page, token, head, channel]`.
    pub const fn nhd(pages: usize, page_size: usize, heads: usize, head_dim: usize) -> Self {
        let token = heads.saturating_mul(head_dim);
        let strides = PageStrides::new(page_size.saturating_mul(token), token, head_dim);
        PageLayout { pages, page_size, heads, head_dim, strides }
    }

    /// `[page, head, token, channel]`.
    pub const fn hnd(pages: usize, page_size: usize, heads: usize, head_dim: usize) -> Self {
        let head = page_size.saturating_mul(head_dim);
        let strides = PageStrides::new(heads.saturating_mul(head), head_dim, head);
        PageLayout { pages, page_size, heads, head_dim, strides }
    }

    /// The same with other strides.
    pub const fn with_strides(self, strides: PageStrides) -> Self {
        PageLayout { strides, ..self }
    }

    /// Whether the heads of a token lie side by side, and the tokens of a page, so that it can be read from front to back.
    pub(crate) fn heads_are_neighbours(&self) -> bool {
        self.strides.head == self.head_dim && self.strides.token == self.heads * self.head_dim
    }

    /// Slots for tokens.
    pub(super) fn slots(&self) -> usize {
        self.pages * self.page_size
    }

    /// The elements that the cache takes, from the first to behind the last.
    pub(crate) fn check(&self) -> Result<usize> {
        let sizes = [("pages", self.pages), ("page_size", self.page_size), ("heads", self.heads)];
        if let Some((name, _)) = sizes.iter().find(|(_, size)| *size == 0) {
            return Err(Error::invalid(*name, "must be at least 1, got 0", "give a positive size"));
        }
        if self.head_dim == 0 || !self.head_dim.is_multiple_of(8) || self.head_dim > MAX_HEAD_DIM {
            return Err(Error::invalid(
                "head_dim",
                format!("{} is not a multiple of 8 up to {MAX_HEAD_DIM}", self.head_dim),
                "give the channels of one head",
            ));
        }
        if self.pages.checked_mul(self.page_size).is_none_or(|slots| slots > i32::MAX as usize) {
            return Err(Error::invalid(
                "pages",
                format!("{} of {} tokens are more than 2147483647 tokens", self.pages, self.page_size),
                "give the cache fewer pages",
            ));
        }
        self.strides.span(self, self.head_dim)
    }

    /// Whether so many codes hold the cache.
    pub(super) fn check_codes(&self, codes: usize) -> Result<()> {
        let needed = self.check()?;
        if codes < needed {
            return Err(Error::invalid(
                "codes",
                format!("{codes} codes do not hold the {needed} that pages and strides reach"),
                "start at the first code of the first page, and give all memory behind it",
            ));
        }
        Ok(())
    }
}

/// How much of K, or of V, in a paged cache shares a scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PageScales {
    /// One scale for all.
    Tensor,
    /// One per head of K and V.
    Head,
    /// One per sequence of the batch and head, in `[sequence, head]` order.
    Sequence,
    /// One per token and head, beside the tokens.
    Token(PageStrides),
}

impl PageScales {
    /// The scales that a cache of this layout needs for so many sequences.
    pub(super) fn count(&self, layout: &PageLayout, sequences: usize) -> Result<usize> {
        match self {
            PageScales::Tensor => Ok(1),
            PageScales::Head => Ok(layout.heads),
            PageScales::Sequence => Ok(layout.heads.saturating_mul(sequences)),
            PageScales::Token(strides) => strides.span(layout, 1),
        }
    }
}

/// A scale that can be one.
pub(super) fn is_scale(scale: f32) -> bool {
    (scale > 0.0) & (scale <= f32::MAX)
}

/// What a scale that cannot be one is to be replaced by.
pub(super) const SCALE_FIX: &str = "divide the largest magnitude by the format's largest value to get a scale";

/// The error of tensors in other formats than the problem's.
pub(super) fn check_format(name: &str, format: Fp8Format, expected: Fp8Format) -> Result<()> {
    if format == expected {
        return Ok(());
    }
    Err(Error::invalid(
        name,
        format!("is in {format}, but the problem says {expected}"),
        "quantise it to the same format, or set Problem::with_input_format",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn assert_refused(layout: PageLayout, expected: &str) {
        let error = layout.check().unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }

    #[test]
    fn caches_of_every_server_fit_their_memory() {
        let (pages, size, heads, channels) = (5, 16, 3, 64);
        let plain = pages * size * heads * channels;
        assert_eq!(PageLayout::nhd(pages, size, heads, channels).check(), Ok(plain));
        assert_eq!(PageLayout::hnd(pages, size, heads, channels).check(), Ok(plain));
        // K of a cache in which V follows K token by token, and page by page.
        let row = 2 * channels;
        let beside = PageLayout::hnd(pages, size, heads, channels);
        let beside = beside.with_strides(PageStrides::new(heads * size * row, row, size * row));
        assert_eq!(beside.check(), Ok(2 * plain - channels));
        let page = size * heads * channels;
        let pairs = PageLayout::nhd(pages, size, heads, channels);
        let pairs = pairs.with_strides(PageStrides { page: 2 * page, ..pairs.strides });
        assert_eq!(pairs.check(), Ok(2 * plain - page));
        assert!(pairs.check_codes(2 * plain - page).is_ok());
        let error = pairs.check_codes(2 * plain - page - 1).unwrap_err().to_string();
        assert!(error.starts_with("codes: "), "{error}");
    }

    #[test]
    fn strides_that_overlap_are_refused_and_those_of_one_thing_are_not() {
        let sound = PageLayout::nhd(4, 16, 2, 64);
        for strides in [
            PageStrides { page: 0, ..sound.strides },
            PageStrides { head: 63, ..sound.strides },
            PageStrides { token: 64, ..sound.strides },
            PageStrides { page: 15 * 128, ..sound.strides },
        ] {
            assert_refused(sound.with_strides(strides), "strides: ");
        }
        let huge = PageStrides { page: usize::MAX / 2, ..sound.strides };
        assert_refused(sound.with_strides(huge), "strides: ");
        let one = PageLayout::nhd(1, 1, 1, 64).with_strides(PageStrides::new(0, 1, usize::MAX));
        assert_eq!(one.check(), Ok(64));
    }

    #[test]
    fn a_cache_of_nothing_is_refused_by_name() {
        assert_refused(PageLayout::nhd(0, 16, 2, 64), "pages: ");
        assert_refused(PageLayout::nhd(4, 0, 2, 64), "page_size: ");
        assert_refused(PageLayout::hnd(4, 16, 0, 64), "heads: ");
        assert_refused(PageLayout::nhd(4, 16, 2, 0), "head_dim: ");
        assert_refused(PageLayout::nhd(4, 16, 2, 12), "head_dim: ");
        assert_refused(PageLayout::nhd(1 << 20, 1 << 20, 2, 64), "pages: ");
        assert_refused(PageLayout::nhd(usize::MAX, usize::MAX, usize::MAX, 64), "pages: ");
    }
}
