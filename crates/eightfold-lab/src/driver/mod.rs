//! What measuring needs of the driver beyond devices and streams: events and graphs.

mod event;
mod graph;
mod ranges;

use eightfold::Result;
use eightfold::cuda::driver::Stream;
pub use event::Event;
pub use graph::Graph;
pub use ranges::{Range, range};

/// What a stream can note of its own work.
pub trait Record {
    /// A new event, recorded in this stream now.
    fn record(&self) -> Result<Event>;

    /// Records what the closure puts into this stream, without running it, as a graph.
    ///
    /// Only launches may be captured: what allocates, uploads or waits must come before. The graph keeps none of what the
    /// launches use: see [`Graph::launch`].
    fn capture(&self, work: &mut dyn FnMut() -> Result<()>) -> Result<Graph>;
}

impl Record for Stream {
    fn record(&self) -> Result<Event> {
        let event = Event::new(self.device())?;
        event.record(self)?;
        Ok(event)
    }

    fn capture(&self, work: &mut dyn FnMut() -> Result<()>) -> Result<Graph> {
        Graph::capture(self, work)
    }
}
