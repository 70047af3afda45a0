//! Which rows and which pages belong to which sequence: lengths are data.

use super::layout::PageLayout;
use crate::error::{Error, Result};
use std::ops::Range;

/// The pages of each sequence, in the order of its tokens, and how many tokens it has.
///
/// ```
/// use eightfold::serving::BlockTable;
///
/// // Two sequences of at most three pages; the first page is shared. Entries behind a sequence's last token are not read.
/// let table = BlockTable::new(&[7, 2, 5, 7, 0, -1], 3, &[40, 17])?;
/// assert_eq!(table.sequences(), 2);
/// # Ok::<(), eightfold::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct BlockTable<'a> {
    pages: &'a [i32],
    max_pages: usize,
    lengths: &'a [i32],
}

impl<'a> BlockTable<'a> {
    /// A table of `[sequence, page]`, `max_pages` wide, and the tokens of each sequence.
    pub fn new(pages: &'a [i32], max_pages: usize, lengths: &'a [i32]) -> Result<Self> {
        let needed = max_pages.saturating_mul(lengths.len());
        if lengths.is_empty() || pages.len() < needed {
            return Err(Error::invalid(
                "block_table",
                format!("has {} entries for {} sequences of {max_pages} pages", pages.len(), lengths.len()),
                "give [sequence, page] entries, and a length for each of at least one sequence",
            ));
        }
        if let Some((sequence, length)) = lengths.iter().enumerate().find(|(_, length)| **length < 0) {
            return Err(Error::invalid(
                "lengths",
                format!("sequence {sequence} has {length} tokens"),
                "count its tokens; 0 is allowed",
            ));
        }
        Ok(BlockTable { pages, max_pages, lengths })
    }

    /// How many sequences there are.
    pub fn sequences(&self) -> usize {
        self.lengths.len()
    }

    /// The tokens of a sequence.
    pub(crate) fn length(&self, sequence: usize) -> usize {
        self.lengths[sequence] as usize
    }

    /// The row of a sequence.
    pub(crate) fn pages_of(&self, sequence: usize) -> &'a [i32] {
        &self.pages[sequence * self.max_pages..][..self.max_pages]
    }

    /// Whether every token lies in a cache of this layout.
    pub(super) fn check(&self, layout: &PageLayout) -> Result<()> {
        for sequence in 0..self.sequences() {
            let (row, length) = (self.pages_of(sequence), self.length(sequence));
            let used = length.div_ceil(layout.page_size);
            if used > row.len() {
                return Err(Error::invalid(
                    "lengths",
                    format!(
                        "sequence {sequence} has {length} tokens, but its {} pages of {} tokens hold {}",
                        row.len(),
                        layout.page_size,
                        row.len() * layout.page_size
                    ),
                    "give the block table a page for every token",
                ));
            }
            let outside = |page: &i32| usize::try_from(*page).map_or(true, |page| page >= layout.pages);
            if let Some(entry) = row[..used].iter().position(outside) {
                return Err(Error::invalid(
                    "block_table",
                    format!(
                        "entry {entry} of sequence {sequence} is page {}, but the cache has pages 0 to {}",
                        row[entry],
                        layout.pages - 1
                    ),
                    format!("its {length} tokens need {used} pages of the cache"),
                ));
            }
        }
        Ok(())
    }
}

/// Which rows of a packed tensor belong to each sequence: one sequence behind the other, as `cu_seqlens` says.
///
/// ```
/// use eightfold::serving::Packed;
///
/// // Three sequences of 1, 5 and 0 rows.
/// let queries = Packed::new(&[0, 1, 6, 6])?;
/// assert_eq!((queries.sequences(), queries.rows(1)), (3, 1..6));
/// // Of the second only the first two are used.
/// assert_eq!(queries.with_used(&[1, 2, 0])?.rows(1), 1..3);
/// # Ok::<(), eightfold::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Packed<'a> {
    offsets: &'a [i32],
    used: Option<&'a [i32]>,
}

impl<'a> Packed<'a> {
    /// Where each sequence starts, and behind that where the last one ends (`cu_seqlens`).
    pub fn new(offsets: &'a [i32]) -> Result<Self> {
        let fix = "start with 0, and add each sequence's rows";
        if offsets.len() < 2 || offsets[0] < 0 {
            let rule = format!("{} entries, the first {:?}, for at least one sequence", offsets.len(), offsets.first());
            return Err(Error::invalid("cu_seqlens", rule, fix));
        }
        if let Some(sequence) = offsets.windows(2).position(|pair| pair[1] < pair[0]) {
            let [start, end] = [offsets[sequence], offsets[sequence + 1]];
            let rule = format!("sequence {sequence} starts at row {start} and ends at row {end}");
            return Err(Error::invalid("cu_seqlens", rule, fix));
        }
        Ok(Packed { offsets, used: None })
    }

    /// The same where only so many rows of each sequence are used (`seqused`).
    pub fn with_used(self, used: &'a [i32]) -> Result<Self> {
        if used.len() != self.sequences() {
            return Err(Error::invalid(
                "seqused",
                format!("{} entries for {} sequences", used.len(), self.sequences()),
                "give one for each sequence",
            ));
        }
        let fits = |(used, pair): (&i32, &[i32])| (0..=pair[1] - pair[0]).contains(used);
        if let Some(sequence) = used.iter().zip(self.offsets.windows(2)).position(|pair| !fits(pair)) {
            let room = self.offsets[sequence + 1] - self.offsets[sequence];
            return Err(Error::invalid(
                "seqused",
                format!("sequence {sequence} uses {} of its {room} rows", used[sequence]),
                "give a number of rows that it has",
            ));
        }
        Ok(Packed { used: Some(used), ..self })
    }

    /// How many sequences there are.
    pub fn sequences(&self) -> usize {
        self.offsets.len() - 1
    }

    /// The rows of a sequence.
    pub fn rows(&self, sequence: usize) -> Range<usize> {
        let [start, end] = [self.offsets[sequence], self.offsets[sequence + 1]].map(|offset| offset as usize);
        start..self.used.map_or(end, |used| start + used[sequence] as usize)
    }

    /// Whether a tensor of so many rows holds them; `name` is the tensor's.
    pub(super) fn check(&self, name: &str, rows: usize) -> Result<()> {
        let end = self.offsets[self.sequences()] as usize;
        if end > rows {
            return Err(Error::invalid(
                name,
                format!("has {rows} rows, but its cu_seqlens end at {end}"),
                "give the offsets of this tensor's rows",
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn assert_refused<T: std::fmt::Debug>(result: Result<T>, expected: &str) {
        let error = result.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }

    #[test]
    fn an_entry_outside_the_cache_is_named() {
        let layout = PageLayout::nhd(10, 16, 1, 64);
        let check = |pages: &[i32], lengths: &[i32]| BlockTable::new(pages, 2, lengths)?.check(&layout);
        assert_eq!(check(&[0, 9, 3, -1], &[32, 16]), Ok(()));
        assert_eq!(check(&[-1, 77, 3, -1], &[0, 16]), Ok(()), "what is not used is not looked at");
        assert_refused(check(&[0, 9, 3, -1], &[32, 17]), "block_table: entry 1 of sequence 1 is page -1");
        assert_refused(check(&[10, 9, 3, 4], &[1, 17]), "block_table: entry 0 of sequence 0 is page 10");
        assert_refused(check(&[0, 9, 3, 4], &[1, 33]), "lengths: sequence 1 has 33 tokens, but its 2 pages");
        assert_refused(check(&[0, 9, 3, 4], &[-1, 3]), "lengths: sequence 0 has -1 tokens");
        assert_refused(check(&[0, 9, 3], &[1, 3]), "block_table: has 3 entries");
        assert_refused(check(&[], &[]), "block_table: has 0 entries");
        assert_refused(BlockTable::new(&[], usize::MAX, &[1, 1]), "block_table: ");
        let none: [i32; 0] = [];
        assert_eq!(BlockTable::new(&none, 0, &[0, 0]).unwrap().check(&layout), Ok(()));
    }

    #[test]
    fn offsets_that_fall_or_end_too_late_are_named() {
        assert_refused(Packed::new(&[]), "cu_seqlens: 0 entries");
        assert_refused(Packed::new(&[0]), "cu_seqlens: 1 entries");
        assert_refused(Packed::new(&[-1, 3]), "cu_seqlens: ");
        assert_refused(Packed::new(&[0, 4, 3]), "cu_seqlens: sequence 1 starts at row 4 and ends at row 3");
        let packed = Packed::new(&[0, 4, 6]).unwrap();
        assert_refused(packed.check("q", 5), "q: has 5 rows, but its cu_seqlens end at 6");
        assert_refused(packed.with_used(&[1]), "seqused: 1 entries");
        assert_refused(packed.with_used(&[1, 3]), "seqused: sequence 1 uses 3 of its 2 rows");
        assert_refused(packed.with_used(&[-1, 0]), "seqused: sequence 0 uses -1");
    }
}
