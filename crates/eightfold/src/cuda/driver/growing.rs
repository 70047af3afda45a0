//! Memory that belongs to a stream.

use super::memory::{Buffer, fill};
use super::stream::Stream;
use crate::error::Result;

/// Memory of a stream, which grows as launches in it ask for more.
///
/// What it outgrew is kept until the stream goes: launches may still use it, and to free it would be to wait for them. Each
/// is at least twice as large as the one before, so that all together are at most twice the last.
#[derive(Debug, Default)]
pub(crate) struct Growing(Vec<Buffer>);

impl Growing {
    /// At least so many bytes, of which the first few were zero when they were new.
    pub(crate) fn at_least(&mut self, stream: &Stream, bytes: usize, zeros: usize) -> Result<&Buffer> {
        let large = self.0.len().checked_sub(1).filter(|last| self.0[*last].bytes() >= bytes);
        let place = match large {
            Some(place) => place,
            None => {
                let grown = stream.device().allocate(bytes.max(2 * self.0.last().map_or(0, Buffer::bytes)))?;
                // SAFETY: the buffer has as many bytes.
                unsafe { fill(grown.context(), grown.pointer(), bytes.min(zeros), stream, 0)? };
                self.0.push(grown);
                self.0.len() - 1
            }
        };
        Ok(&self.0[place])
    }
}
