//! Streams: orders of work on a device.

use super::context::Context;
use super::device::Device;
use super::growing::Growing;
use crate::error::Result;
use cudarc::driver::sys::{self, CUstream, CUstream_flags};
use std::ffi::c_void;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An order of work on a device: its own, or a caller's.
#[derive(Debug)]
pub struct Stream {
    device: Device,
    raw: CUstream,
    owned: bool,
    memory: Mutex<Growing>,
}

// SAFETY: the driver's functions may be called from any thread; the handle is a name, never dereferenced here.
unsafe impl Send for Stream {}
// SAFETY: as above; what changes of a stream is behind a lock.
unsafe impl Sync for Stream {}

impl Stream {
    /// A stream that does not wait for the legacy default stream.
    pub(super) fn new(device: &Device) -> Result<Stream> {
        let mut raw = ptr::null_mut();
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: `raw` outlives the call.
        device.context().call("cuStreamCreate", || unsafe { sys::cuStreamCreate(&mut raw, flags) })?;
        Ok(Stream { device: device.clone(), raw, owned: true, memory: Mutex::default() })
    }

    /// A caller's stream, such as `torch.cuda.current_stream().cuda_stream`; null is the default stream.
    ///
    /// # Safety
    /// It must be a stream of this device's primary context and live as long as the value; it is not destroyed.
    pub unsafe fn from_raw(device: &Device, raw: *mut c_void) -> Stream {
        Stream { device: device.clone(), raw: raw.cast(), owned: false, memory: Mutex::default() }
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The driver's handle.
    pub fn as_raw(&self) -> *mut c_void {
        self.raw.cast()
    }

    /// Waits until everything in the stream is done; an error of a kernel shows here.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: the stream is alive.
        self.context().call("cuStreamSynchronize", || unsafe { sys::cuStreamSynchronize(self.raw) })
    }

    /// Memory for launches that bring none: theirs as long as the lock is held, and in the stream's order after.
    pub(crate) fn memory(&self) -> MutexGuard<'_, Growing> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn raw(&self) -> CUstream {
        self.raw
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        self.device.context()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.owned {
            // SAFETY: the stream was made by `new` and is destroyed once; the driver finishes what is in it.
            self.context().release(|| unsafe { sys::cuStreamDestroy_v2(self.raw) });
        }
    }
}
