//! Memory that is owned, or a caller's.

use crate::cuda::driver::{self, Buffer, Context, Plain, Stream};
use crate::error::Result;
use std::sync::Arc;

/// Device memory and who frees it.
#[derive(Debug)]
pub(crate) enum Memory {
    /// Freed with the value.
    Owned(Buffer),
    /// A caller's, checked when it was taken.
    Borrowed {
        /// The device.
        context: Arc<Context>,
        /// The address.
        pointer: u64,
    },
}

impl Memory {
    pub(crate) fn pointer(&self) -> u64 {
        match self {
            Memory::Owned(buffer) => buffer.pointer(),
            Memory::Borrowed { pointer, .. } => *pointer,
        }
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        match self {
            Memory::Owned(buffer) => buffer.context(),
            Memory::Borrowed { context, .. } => context,
        }
    }

    /// Copies its front to the host and waits for it.
    pub(crate) fn download<T: Plain>(&self, stream: &Stream, values: &mut [T]) -> Result<()> {
        match self {
            Memory::Owned(buffer) => buffer.download(stream, values),
            // SAFETY: whoever lent the memory vouched for its size, of which no one asks for more.
            Memory::Borrowed { context, pointer } => unsafe { driver::download(context, *pointer, stream, values) },
        }
    }

    /// Sets its first bytes, in the stream's order.
    pub(crate) fn fill(&self, stream: &Stream, bytes: usize, byte: u8) -> Result<()> {
        // SAFETY: the memory was allocated with, or lent as, at least as many bytes.
        unsafe { driver::fill(self.context(), self.pointer(), bytes, stream, byte) }
    }
}
