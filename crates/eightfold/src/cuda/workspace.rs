//! Memory that kernels need beside tensors and outputs: partial sums, V in another order, counters.

use super::driver::{Context, Device, Growing, Stream, check_pointer, fill};
use super::tensor::Memory;
use crate::error::{Error, Result};
use std::sync::Arc;

/// The front of every workspace: counters by which blocks find out who is last. They are zero between launches; every kernel
/// leaves them so. Nothing else is ever stored there.
pub(crate) const COUNTER_BYTES: usize = 64 << 10;

/// What parts of a workspace start at a multiple of.
const ALIGNMENT: usize = 256;

/// Memory that a kernel may use while it runs: one launch at a time.
///
/// How much a kernel needs says [`super::Kernel::workspace_bytes`]; one that needs nothing takes [`Workspace::none`]. A
/// workspace serves any kernel, one after the other, in any stream in which their launches follow each other.
#[derive(Debug)]
pub struct Workspace {
    memory: Option<Memory>,
    bytes: usize,
}

impl Workspace {
    /// No memory at all.
    pub fn none() -> Workspace {
        Workspace { memory: None, bytes: 0 }
    }

    /// Allocates memory; the stream clears its counters before any later launch in it.
    pub fn new(stream: &Stream, bytes: usize) -> Result<Workspace> {
        if bytes == 0 {
            return Ok(Workspace::none());
        }
        let buffer = stream.device().allocate(bytes)?;
        // SAFETY: the buffer has as many bytes.
        unsafe { fill(buffer.context(), buffer.pointer(), bytes.min(COUNTER_BYTES), stream, 0)? };
        Ok(Workspace { memory: Some(Memory::Owned(buffer)), bytes })
    }

    /// The memory of a stream, for one launch in it.
    pub(crate) fn of_stream(stream: &Stream, memory: &mut Growing, bytes: usize) -> Result<Workspace> {
        if bytes == 0 {
            return Ok(Workspace::none());
        }
        let buffer = memory.at_least(stream, bytes, COUNTER_BYTES)?;
        let (context, pointer) = (buffer.context().clone(), buffer.pointer());
        Ok(Workspace { memory: Some(Memory::Borrowed { context, pointer }), bytes: buffer.bytes() })
    }

    /// A caller's memory: nothing is allocated, and nothing is freed.
    ///
    /// # Safety
    /// That many bytes must lie at the address, a multiple of 256, and stay alive until every launch with them is done. The
    /// first 64 KiB must be zero before the first launch. No one else may write to them.
    pub unsafe fn from_raw(device: &Device, pointer: u64, bytes: usize) -> Result<Workspace> {
        if bytes == 0 {
            return Ok(Workspace::none());
        }
        let context = device.context();
        check_pointer(context, "workspace", pointer, bytes, true)?;
        if !pointer.is_multiple_of(ALIGNMENT as u64) {
            return Err(Error::invalid(
                "workspace",
                format!("address {pointer:#x} is not a multiple of {ALIGNMENT} bytes"),
                "allocate it anew",
            ));
        }
        Ok(Workspace { memory: Some(Memory::Borrowed { context: context.clone(), pointer }), bytes })
    }

    /// The same without asking the driver about the address, which takes longer than a launch.
    ///
    /// # Safety
    /// As for [`Workspace::from_raw`], and the memory must be on this device.
    pub unsafe fn from_trusted(device: &Device, pointer: u64, bytes: usize) -> Workspace {
        let memory = (bytes > 0).then(|| Memory::Borrowed { context: device.context().clone(), pointer });
        Workspace { memory, bytes }
    }

    /// Its size.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Where it lies; 0 where there is none.
    pub(crate) fn pointer(&self) -> u64 {
        self.memory.as_ref().map_or(0, Memory::pointer)
    }

    /// Whether a kernel of this device finds as much as it needs.
    pub(super) fn check(&self, context: &Arc<Context>, needed: usize) -> Result<()> {
        if needed > self.bytes {
            return Err(Error::invalid(
                "workspace",
                format!("{needed} bytes are needed, and it has {}", self.bytes),
                "make it as large as Kernel::workspace_bytes says",
            ));
        }
        match &self.memory {
            Some(memory) if !Arc::ptr_eq(memory.context(), context) => Err(Error::invalid(
                "workspace",
                format!(
                    "is on device {}, but the kernel is on device {}",
                    memory.context().ordinal(),
                    context.ordinal()
                ),
                "use one device for all",
            )),
            _ => Ok(()),
        }
    }
}

/// How a kernel divides a workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Division {
    bytes: usize,
    counts: bool,
}

impl Division {
    /// Places behind these bytes, which someone else divides.
    pub(crate) fn behind(bytes: usize) -> Division {
        Division { bytes, ..Division::default() }
    }

    /// The place of the counters, all zero; an error if there are more of them than every workspace has.
    pub(crate) fn counters(&mut self, count: usize) -> Result<usize> {
        if count.saturating_mul(4) > COUNTER_BYTES {
            return Err(Error::invalid(
                "shape",
                format!("{count} tiles share their keys among blocks, and {} can", COUNTER_BYTES / 4),
                "do not split keys where there are that many tiles",
            ));
        }
        self.bytes = self.bytes.max(COUNTER_BYTES);
        self.counts = true;
        Ok(0)
    }

    /// A place for this many bytes.
    pub(crate) fn take(&mut self, bytes: usize) -> usize {
        let place = self.bytes.max(COUNTER_BYTES).next_multiple_of(ALIGNMENT);
        self.bytes = place.saturating_add(bytes);
        place
    }

    /// How many bytes at the front must be zero before the first launch.
    pub(crate) fn zeroed_bytes(&self) -> usize {
        if self.counts { COUNTER_BYTES } else { 0 }
    }

    /// All bytes together.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_lie_behind_the_counters_and_apart() {
        let mut division = Division::default();
        assert_eq!(division.bytes(), 0);
        assert_eq!(division.zeroed_bytes(), 0);
        assert_eq!(division.counters(5), Ok(0));
        assert_eq!(division.zeroed_bytes(), COUNTER_BYTES);
        assert_eq!(division.bytes(), COUNTER_BYTES);
        assert_eq!(division.take(10), COUNTER_BYTES);
        assert_eq!(division.take(1), COUNTER_BYTES + ALIGNMENT);
        assert_eq!(division.bytes(), COUNTER_BYTES + ALIGNMENT + 1);
        let error = division.counters(COUNTER_BYTES / 4 + 1).unwrap_err().to_string();
        assert!(error.starts_with("shape: 16385 tiles share their keys"), "{error}");
        assert_eq!(Division::default().take(0), COUNTER_BYTES);
        assert_eq!(Division::behind(0).take(8), COUNTER_BYTES);
        assert_eq!(Division::behind(COUNTER_BYTES + 1).take(8), COUNTER_BYTES + ALIGNMENT);
    }
}
