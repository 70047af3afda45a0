//! Device time between two events.

use crate::driver::Event;
use crate::driver::Record as _;
use eightfold::Result;
use eightfold::cuda::driver::Stream;

/// Two events of a stream, used again and again.
pub(super) struct Stopwatch {
    start: Event,
    end: Event,
}

impl Stopwatch {
    pub(super) fn new(stream: &Stream) -> Result<Self> {
        Ok(Stopwatch { start: stream.record()?, end: stream.record()? })
    }

    /// The device time of what the closure puts into the stream, with nothing else under way.
    pub(super) fn time_ns(&self, stream: &Stream, work: &mut dyn FnMut() -> Result<()>) -> Result<f64> {
        self.start.record(stream)?;
        work()?;
        self.end.record(stream)?;
        self.end.synchronize()?;
        self.end.elapsed_ns(&self.start)
    }
}
