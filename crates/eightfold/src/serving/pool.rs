//! Which pages of a cache of this library's own are whose.

use crate::error::{Error, Result};

/// A sequence of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Sequence(usize);

/// Pages, handed out to sequences as they grow.
#[derive(Debug, Clone)]
pub(crate) struct Pool {
    page_size: usize,
    free: Vec<i32>,
    /// The sequences by their numbers; none where one was closed.
    sequences: Vec<Option<Tokens>>,
}

#[derive(Debug, Clone, Default)]
struct Tokens {
    pages: Vec<i32>,
    len: usize,
}

impl Pool {
    pub(crate) fn new(pages: usize, page_size: usize) -> Pool {
        // The last is handed out first.
        Pool { page_size, free: (0..pages as i32).rev().collect(), sequences: Vec::new() }
    }

    pub(crate) fn open(&mut self) -> Sequence {
        let number = self.sequences.iter().position(Option::is_none).unwrap_or(self.sequences.len());
        self.sequences.resize(self.sequences.len().max(number + 1), None);
        self.sequences[number] = Some(Tokens::default());
        Sequence(number)
    }

    pub(crate) fn close(&mut self, sequence: Sequence) -> Result<()> {
        self.tokens(sequence)?;
        let pages = self.sequences[sequence.0].take().map(|tokens| tokens.pages);
        self.free.extend(pages.into_iter().flatten().rev());
        Ok(())
    }

    pub(crate) fn len_of(&self, sequence: Sequence) -> Result<usize> {
        self.tokens(sequence).map(|tokens| tokens.len)
    }

    pub(crate) fn free_pages(&self) -> usize {
        self.free.len()
    }

    /// The pages of a sequence.
    pub(crate) fn pages_of(&self, sequence: Sequence) -> Result<&[i32]> {
        self.tokens(sequence).map(|tokens| &tokens.pages[..])
    }

    /// The slots of so many more tokens of each sequence, one sequence behind the other. They are the sequences' from
    /// [`Pool::take`] on.
    pub(crate) fn slots(&self, growing: &[(Sequence, usize)]) -> Result<Vec<i64>> {
        let (mut slots, mut taken) = (Vec::new(), 0);
        for (index, (sequence, count)) in growing.iter().enumerate() {
            if growing[..index].iter().any(|(other, _)| other == sequence) {
                return Err(Error::invalid(
                    "sequences",
                    format!("{} is there twice", sequence.0),
                    "give all of a sequence's tokens together",
                ));
            }
            let tokens = self.tokens(*sequence)?;
            let wanted = self.wanted(tokens, *count);
            let room = self.free.len() - taken;
            if wanted > room {
                return Err(Error::unavailable(
                    format!("room for {count} tokens"),
                    format!("it takes {wanted} more pages, and {room} are free"),
                    "close a sequence, or make a larger cache",
                ));
            }
            let new: Vec<i32> = self.free.iter().rev().skip(taken).take(wanted).copied().collect();
            let page = |index: usize| tokens.pages.get(index).unwrap_or_else(|| &new[index - tokens.pages.len()]);
            slots.extend((tokens.len..tokens.len + count).map(|token| {
                i64::from(*page(token / self.page_size)) * self.page_size as i64 + (token % self.page_size) as i64
            }));
            taken += wanted;
        }
        Ok(slots)
    }

    /// Gives each sequence so many more tokens, whose slots were asked for before.
    pub(crate) fn take(&mut self, growing: &[(Sequence, usize)]) -> Result<()> {
        for (sequence, count) in growing {
            let wanted = self.wanted(self.tokens(*sequence)?, *count);
            let new = self.free.split_off(self.free.len() - wanted);
            if let Some(tokens) = &mut self.sequences[sequence.0] {
                tokens.pages.extend(new.into_iter().rev());
                tokens.len += count;
            }
        }
        Ok(())
    }

    fn wanted(&self, tokens: &Tokens, count: usize) -> usize {
        (tokens.len + count).div_ceil(self.page_size) - tokens.pages.len()
    }

    fn tokens(&self, Sequence(number): Sequence) -> Result<&Tokens> {
        self.sequences.get(number).and_then(Option::as_ref).ok_or_else(|| {
            Error::invalid("sequence", format!("{number} is not open in this cache"), "use what KvCache::open gave")
        })
    }
}
