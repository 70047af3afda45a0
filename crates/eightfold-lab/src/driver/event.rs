//! Events: points in a stream's order, with a time.

use cudarc::driver::sys::{self, CUevent, CUevent_flags, CUresult};
use eightfold::Result;
use eightfold::cuda::driver::{Device, Stream};
use eightfold::lab::driver::call;
use std::ptr;
use std::sync::OnceLock;

/// A point in a stream's order, with a time.
#[derive(Debug)]
pub struct Event {
    device: Device,
    raw: CUevent,
}

// SAFETY: the driver's functions may be called from any thread; the handle is a name, never dereferenced here.
unsafe impl Send for Event {}
// SAFETY: as above; recording is the driver's business, which locks.
unsafe impl Sync for Event {}

type ElapsedTime = unsafe extern "C" fn(*mut f32, CUevent, CUevent) -> CUresult;

impl Event {
    pub(super) fn new(device: &Device) -> Result<Event> {
        let mut raw = ptr::null_mut();
        let flags = CUevent_flags::CU_EVENT_DEFAULT as u32;
        // SAFETY: `raw` outlives the call.
        call(device, "cuEventCreate", || unsafe { sys::cuEventCreate(&mut raw, flags) })?;
        Ok(Event { device: device.clone(), raw })
    }

    /// Moves the event to where the stream is now: cheaper than a new one in a loop that measures.
    pub fn record(&self, stream: &Stream) -> Result<()> {
        // SAFETY: event and stream are alive.
        call(&self.device, "cuEventRecord", || unsafe { sys::cuEventRecord(self.raw, stream.as_raw().cast()) })
    }

    /// Waits until the event has happened.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: the event is alive.
        call(&self.device, "cuEventSynchronize", || unsafe { sys::cuEventSynchronize(self.raw) })
    }

    /// Nanoseconds of device time from an earlier event to this one; both must have happened.
    pub fn elapsed_ns(&self, earlier: &Event) -> Result<f64> {
        let mut milliseconds = 0.0;
        call(&self.device, "cuEventElapsedTime", || {
            // SAFETY: both events are alive, and `milliseconds` outlives the call.
            unsafe { elapsed_time()(&mut milliseconds, earlier.raw, self.raw) }
        })?;
        Ok(f64::from(milliseconds) * 1e6)
    }
}

/// The driver's function, in its second version where the driver has it (12.8 and later) and else in its first:
/// the bindings know the second alone, and panic without it.
fn elapsed_time() -> ElapsedTime {
    static FUNCTION: OnceLock<ElapsedTime> = OnceLock::new();
    *FUNCTION.get_or_init(|| {
        // SAFETY: an event exists, so the library is loaded; both versions have this signature.
        unsafe {
            let library = sys::culib();
            match library.get::<ElapsedTime>(b"cuEventElapsedTime_v2\0") {
                Ok(function) => *function,
                Err(_) => library.get::<ElapsedTime>(b"cuEventElapsedTime\0").map_or(not_found, |function| *function),
            }
        }
    })
}

unsafe extern "C" fn not_found(_: *mut f32, _: CUevent, _: CUevent) -> CUresult {
    CUresult::CUDA_ERROR_NOT_SUPPORTED
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the event was made by `new` and is destroyed once. There is nobody to tell of a failure to.
        let _ = call(&self.device, "cuEventDestroy", || unsafe { sys::cuEventDestroy_v2(self.raw) });
    }
}
