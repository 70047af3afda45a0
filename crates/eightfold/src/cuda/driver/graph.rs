//! Graphs: work that was recorded once and can be launched as a whole.

use super::context::Context;
use super::stream::Stream;
use crate::error::{Error, Result};
use cudarc::driver::sys::{self, CUgraph, CUgraphExec, CUstreamCaptureMode};
use std::ptr;
use std::sync::Arc;

/// Work that was recorded once and can be launched as a whole.
///
/// The driver lets one thread at a time use it: it can be sent to another, not shared.
#[derive(Debug)]
pub struct Graph {
    context: Arc<Context>,
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
    context: &'a Context,
    raw: CUgraph,
}

impl Graph {
    pub(super) fn capture(stream: &Stream, work: &mut dyn FnMut() -> Result<()>) -> Result<Graph> {
        let context = stream.context();
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        context.call("cuStreamBeginCapture", || {
            // SAFETY: the stream is alive.
            unsafe { sys::cuStreamBeginCapture_v2(stream.raw(), mode) }
        })?;
        let capture = Capture { stream, ended: false };
        let done = work();
        let recorded = capture.end();
        done?;
        let recorded = recorded?;
        let mut raw = ptr::null_mut();
        context.call("cuGraphInstantiate", || {
            // SAFETY: the graph is alive, and `raw` outlives the call.
            unsafe { sys::cuGraphInstantiateWithFlags(&mut raw, recorded.raw, 0) }
        })?;
        Ok(Graph { context: context.clone(), raw })
    }

    /// Puts the whole graph into the stream.
    ///
    /// # Safety
    /// The graph remembers addresses, not owners. Kernels, tensors, outputs and workspaces that the recorded launches use
    /// must be alive until this launch is done, and no other work may write to them meanwhile.
    pub unsafe fn launch(&mut self, stream: &Stream) -> Result<()> {
        // SAFETY: graph and stream are alive; what the graph uses is the caller's word.
        self.context.call("cuGraphLaunch", || unsafe { sys::cuGraphLaunch(self.raw, stream.raw()) })
    }
}

impl<'a> Capture<'a> {
    fn end(mut self) -> Result<Recorded<'a>> {
        self.ended = true;
        let context = self.stream.context();
        let mut raw = ptr::null_mut();
        context.call("cuStreamEndCapture", || {
            // SAFETY: the stream is alive and captures; `raw` outlives the call.
            unsafe { sys::cuStreamEndCapture(self.stream.raw(), &mut raw) }
        })?;
        if raw.is_null() {
            return Err(Error::Device {
                call: "cuStreamEndCapture".into(),
                name: "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED".into(),
                fix: "while a stream is captured only launches may be put into it".into(),
            });
        }
        Ok(Recorded { context, raw })
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
        self.context.release(|| unsafe { sys::cuGraphDestroy(self.raw) });
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: the graph was made by `capture` and is destroyed once.
        self.context.release(|| unsafe { sys::cuGraphExecDestroy(self.raw) });
    }
}
