//! The primary context of a device: entered by every call, lost after some errors.

use super::failure::{destroys_context, name, outcome};
use crate::error::{Error, Result};
use cudarc::driver::sys::{self, CUcontext, CUresult};
use std::ptr;
use std::sync::OnceLock;

/// A device's primary context, retained for the rest of the process.
#[derive(Debug)]
pub(crate) struct Context {
    raw: CUcontext,
    ordinal: usize,
    lost: OnceLock<Loss>,
}

/// The error that destroyed a context.
#[derive(Debug)]
struct Loss {
    call: &'static str,
    name: String,
}

// SAFETY: the driver's functions may be called from any thread; the handle is a name, never dereferenced here.
unsafe impl Send for Context {}
// SAFETY: as above; the one field that changes is a `OnceLock`.
unsafe impl Sync for Context {}

/// While it lives the context is the thread's current one; then the one before is again, if there was any.
struct Entered {
    previous: CUcontext,
}

impl Context {
    /// Retains the primary context of the device of this ordinal; the driver must be initialised.
    pub(super) fn retain(ordinal: usize, device: sys::CUdevice) -> Result<Context> {
        let mut raw = ptr::null_mut();
        // SAFETY: `raw` outlives the call, and `device` came from the driver.
        outcome("cuDevicePrimaryCtxRetain", unsafe { sys::cuDevicePrimaryCtxRetain(&mut raw, device) })?;
        Ok(Context { raw, ordinal, lost: OnceLock::new() })
    }

    /// The device's place in the driver's list.
    pub(crate) fn ordinal(&self) -> usize {
        self.ordinal
    }

    /// The error that every call gives after the context was lost; none while it is sound.
    pub(crate) fn loss(&self) -> Option<Error> {
        self.lost.get().map(|Loss { call, name }| {
            Error::unavailable(
                format!("CUDA device {}", self.ordinal),
                format!("its context was lost by an earlier error ({call}: {name})"),
                "start the process again",
            )
        })
    }

    /// Makes a driver call within the context; `name` is the driver's name for it.
    pub(crate) fn call(&self, name: &'static str, call: impl FnOnce() -> CUresult) -> Result<()> {
        let _entered = self.enter()?;
        self.check(name, call())
    }

    /// Frees something within the context. A failure has no one to go to, and a lost context has freed it already.
    pub(super) fn release(&self, call: impl FnOnce() -> CUresult) {
        if let Ok(_entered) = self.enter() {
            let _ = self.check("release", call());
        }
    }

    /// The outcome of a call that was made; remembers it if the context is lost by it.
    pub(super) fn check(&self, call: &'static str, result: CUresult) -> Result<()> {
        if destroys_context(result) {
            self.lost.get_or_init(|| Loss { call, name: name(result) });
        }
        outcome(call, result)
    }

    fn enter(&self) -> Result<Entered> {
        if let Some(loss) = self.loss() {
            return Err(loss);
        }
        let mut previous = ptr::null_mut();
        // SAFETY: the driver is initialised, and `previous` outlives the call.
        self.check("cuCtxGetCurrent", unsafe { sys::cuCtxGetCurrent(&mut previous) })?;
        if previous == self.raw {
            return Ok(Entered { previous: ptr::null_mut() });
        }
        // SAFETY: the context is retained for the rest of the process.
        self.check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(self.raw) })?;
        Ok(Entered { previous })
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        if !self.previous.is_null() {
            // SAFETY: it was this thread's current context when the call began. A failure would show in its next use.
            unsafe { sys::cuCtxSetCurrent(self.previous) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A context without a device, to which no driver call is made.
    fn context() -> Context {
        Context { raw: ptr::null_mut(), ordinal: 3, lost: OnceLock::new() }
    }

    #[test]
    fn a_lost_context_says_so_and_makes_no_more_calls() {
        let context = context();
        assert_eq!(context.loss(), None);
        context.check("cuStreamSynchronize", CUresult::CUDA_ERROR_ILLEGAL_ADDRESS).unwrap_err();
        context.check("cuEventSynchronize", CUresult::CUDA_ERROR_LAUNCH_FAILED).unwrap_err();
        let error = context.call("cuMemAlloc", || panic!("the call was made")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "CUDA device 3 is not available: its context was lost by an earlier error (cuStreamSynchronize: \
             CUDA_ERROR_ILLEGAL_ADDRESS); start the process again"
        );
        context.release(|| panic!("the call was made"));
    }

    #[test]
    fn an_ordinary_failure_leaves_the_context_sound() {
        let context = context();
        context.check("cuMemAlloc", CUresult::CUDA_ERROR_INVALID_VALUE).unwrap_err();
        assert_eq!(context.loss(), None);
    }
}
