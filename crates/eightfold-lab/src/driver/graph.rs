//! Graphs: work that was recorded once and can be launched as a whole.

use cudarc::driver::sys::{self, CUgraph, CUgraphExec, CUstreamCaptureMode};
use eightfold::cuda::driver::{Device, Stream};
use eightfold::lab::driver::call;
use eightfold::{Error, Result};
use std::ptr;

/// Work that was recorded once and can be launched as a whole.
///
/// The driver lets one thread at a time use it: it can be sent to another, not shared.
#[derive(Debug)]
pub struct Graph {
    device: Device,
    raw: CUgraphExec,
}

// SAFETY: the driver's functions may be called from any thread; the handle is a name, never dereferenced here.
unsafe impl Send for Graph {}

/// A capture under way, ended even if the captured work panics.
struct Capture<'a> {
    stream: &'a Stream,
    ended: bool,
}

/// A recorded graph, not yet made launchable.
struct Recorded<'a> {
    device: &'a Device,
    raw: CUgraph,
}

impl Graph {
    pub(super) fn capture(stream: &Stream, work: &mut dyn FnMut() -> Result<()>) -> Result<Graph> {
        let device = stream.device();
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        call(device, "cuStreamBeginCapture", || {
            // SAFETY: the stream is alive.
            unsafe { sys::cuStreamBeginCapture_v2(stream.as_raw().cast(), mode) }
        })?;
        let capture = Capture { stream, ended: false };
        let done = work();
        let recorded = capture.end();
        done?;
        let recorded = recorded?;
        let mut raw = ptr::null_mut();
        call(device, "cuGraphInstantiate", || {
            // SAFETY: the graph is alive, and `raw` outlives the call.
            unsafe { sys::cuGraphInstantiateWithFlags(&mut raw, recorded.raw, 0) }
        })?;
        Ok(Graph { device: device.clone(), raw })
    }

    /// Puts the whole graph into the stream.
    ///
    /// # Safety
    /// The graph remembers addresses, not owners. Kernels, tensors, outputs and workspaces that the recorded launches use
    /// must be alive until this launch is done, and no other work may write to them meanwhile.
    pub unsafe fn launch(&mut self, stream: &Stream) -> Result<()> {
        // SAFETY: graph and stream are alive; what the graph uses is the caller's word.
        call(&self.device, "cuGraphLaunch", || unsafe { sys::cuGraphLaunch(self.raw, stream.as_raw().cast()) })
    }
}

impl<'a> Capture<'a> {
    fn end(mut self) -> Result<Recorded<'a>> {
        self.ended = true;
        let device = self.stream.device();
        let mut raw = ptr::null_mut();
        call(device, "cuStreamEndCapture", || {
            // SAFETY: the stream is alive and captures; `raw` outlives the call.
            unsafe { sys::cuStreamEndCapture(self.stream.as_raw().cast(), &mut raw) }
        })?;
        if raw.is_null() {
            return Err(Error::Device {
                call: "cuStreamEndCapture".into(),
                name: "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED".into(),
                fix: "while a stream is captured only launches may be put into it".into(),
            });
        }
        Ok(Recorded { device, raw })
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        if !self.ended {
            let abandoned = Capture { stream: self.stream, ended: true };
            drop(abandoned.end());
        }
    }
}

impl Drop for Recorded<'_> {
    fn drop(&mut self) {
        // SAFETY: the graph came from a capture and is destroyed once.
        let _ = call(self.device, "cuGraphDestroy", || unsafe { sys::cuGraphDestroy(self.raw) });
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: the graph was made by `capture` and is destroyed once.
        let _ = call(&self.device, "cuGraphExecDestroy", || unsafe { sys::cuGraphExecDestroy(self.raw) });
    }
}
