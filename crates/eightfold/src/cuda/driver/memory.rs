//! Device memory, and copies into and out of it.

use super::context::Context;
use super::stream::Stream;
use crate::error::{Error, Result};
use cudarc::driver::sys::{self, CUdeviceptr};
use half::{bf16, f16};
use std::sync::Arc;

/// The smallest allocation: an empty buffer, too, has an address of its own.
const SMALLEST_BYTES: usize = 16;

/// Bytes in device memory, freed when dropped; the driver first waits for work that may still use them.
#[derive(Debug)]
pub struct Buffer {
    context: Arc<Context>,
    pointer: CUdeviceptr,
    bytes: usize,
}

/// Types without padding for which every pattern of bits is a value.
///
/// # Safety
/// Implementers must be such types.
pub unsafe trait Plain: Copy {}
// SAFETY: a byte has no padding, and every pattern is a value.
unsafe impl Plain for u8 {}
// SAFETY: an integer has no padding, and every pattern is a value.
unsafe impl Plain for u32 {}
// SAFETY: an integer has no padding, and every pattern is a value.
unsafe impl Plain for i32 {}
// SAFETY: an integer has no padding, and every pattern is a value.
unsafe impl Plain for i64 {}
// SAFETY: a float has no padding, and every pattern is a value.
unsafe impl Plain for f32 {}
// SAFETY: a transparent wrapper of `u16`.
unsafe impl Plain for f16 {}
// SAFETY: a transparent wrapper of `u16`.
unsafe impl Plain for bf16 {}

/// Free and total bytes of device memory.
pub(super) fn free_and_total_bytes(context: &Context) -> Result<(usize, usize)> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: both numbers outlive the call.
    context.call("cuMemGetInfo", || unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) })?;
    Ok((free, total))
}

impl Buffer {
    pub(super) fn new(context: Arc<Context>, bytes: usize) -> Result<Buffer> {
        let (free_bytes, total_bytes) = free_and_total_bytes(&context)?;
        if bytes > free_bytes {
            return Err(too_little(bytes, free_bytes, total_bytes));
        }
        let mut pointer = 0;
        // SAFETY: `pointer` outlives the call.
        let allocation = || unsafe { sys::cuMemAlloc_v2(&mut pointer, bytes.max(SMALLEST_BYTES)) };
        match context.call("cuMemAlloc", allocation) {
            Ok(()) => Ok(Buffer { context, pointer, bytes }),
            // Enough was free, but not in one piece, or someone was faster.
            Err(Error::Unavailable { .. }) if context.loss().is_none() => {
                Err(too_little(bytes, free_bytes, total_bytes))
            }
            Err(error) => Err(error),
        }
    }

    /// Its size.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Its address on the device, a multiple of 256.
    pub fn pointer(&self) -> u64 {
        self.pointer
    }

    /// Copies values to the front of the buffer, in the stream's order, and waits until they are there, so that the
    /// source may be dropped. Not while the stream is captured.
    pub(crate) fn upload<T: Plain>(&self, stream: &Stream, values: &[T]) -> Result<()> {
        let bytes = size_of_val(values);
        self.check_room(bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        self.context.call("cuMemcpyHtoDAsync", || {
            // SAFETY: the buffer is large enough, and the source outlives the copy because of the wait below; if the
            // wait fails the source has been read all the same, since it is pageable.
            unsafe { sys::cuMemcpyHtoDAsync_v2(self.pointer, values.as_ptr().cast(), bytes, stream.raw()) }
        })?;
        stream.synchronize()
    }

    /// Copies the front of the buffer to the host, in the stream's order, and waits for it. Not while the stream is
    /// captured.
    pub(crate) fn download<T: Plain>(&self, stream: &Stream, values: &mut [T]) -> Result<()> {
        self.check_room(size_of_val(values))?;
        // SAFETY: the buffer is large enough.
        unsafe { download(&self.context, self.pointer, stream, values) }
    }

    /// Sets every byte, in the stream's order.
    pub fn fill(&self, stream: &Stream, byte: u8) -> Result<()> {
        // SAFETY: exactly the buffer is written.
        unsafe { fill(&self.context, self.pointer, self.bytes, stream, byte) }
    }

    /// Copies another buffer of the same device to the front of this one, in the stream's order.
    pub fn copy_from(&self, stream: &Stream, source: &Buffer) -> Result<()> {
        self.check_room(source.bytes)?;
        if !Arc::ptr_eq(&self.context, &source.context) {
            return Err(Error::invalid("buffer", "the two are on different devices", "use one device for both"));
        }
        if source.bytes == 0 {
            return Ok(());
        }
        self.context.call("cuMemcpyDtoDAsync", || {
            // SAFETY: both buffers are of this device, and large enough.
            unsafe { sys::cuMemcpyDtoDAsync_v2(self.pointer, source.pointer, source.bytes, stream.raw()) }
        })
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    fn check_room(&self, bytes: usize) -> Result<()> {
        if bytes > self.bytes {
            return Err(Error::invalid(
                "buffer",
                format!("{bytes} bytes are to be copied, but it has {}", self.bytes),
                "allocate as much as is copied",
            ));
        }
        Ok(())
    }
}

/// Copies device memory to the host and waits for it.
///
/// # Safety
/// As many bytes as `values` has must be readable at `pointer`.
pub(crate) unsafe fn download<T: Plain>(
    context: &Context,
    pointer: u64,
    stream: &Stream,
    values: &mut [T],
) -> Result<()> {
    let bytes = size_of_val(values);
    if bytes == 0 {
        return Ok(());
    }
    context.call("cuMemcpyDtoHAsync", || {
        // SAFETY: the caller vouches for the source; the destination is borrowed until the wait below is over.
        unsafe { sys::cuMemcpyDtoHAsync_v2(values.as_mut_ptr().cast(), pointer, bytes, stream.raw()) }
    })?;
    stream.synchronize()
}

/// Sets bytes of device memory, in the stream's order.
///
/// # Safety
/// That many bytes must be writable at `pointer`.
pub(crate) unsafe fn fill(context: &Context, pointer: u64, bytes: usize, stream: &Stream, byte: u8) -> Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    // SAFETY: the caller vouches for the destination.
    context.call("cuMemsetD8Async", || unsafe { sys::cuMemsetD8Async(pointer, byte, bytes, stream.raw()) })
}

fn too_little(asked_bytes: usize, free_bytes: usize, total_bytes: usize) -> Error {
    Error::unavailable(
        format!("device memory for {asked_bytes} bytes"),
        format!("{free_bytes} of {total_bytes} bytes are free"),
        "make the problem smaller, or end what else uses the device",
    )
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the memory was allocated by `new` and is freed once.
        self.context.release(|| unsafe { sys::cuMemFree_v2(self.pointer) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_little_memory_says_how_much_was_asked_and_is_left() {
        let error = too_little(300, 100, 200);
        assert!(matches!(error, Error::Unavailable { .. }));
        assert!(error.to_string().contains("for 300 bytes is not available: 100 of 200 bytes are free"), "{error}");
    }
}
