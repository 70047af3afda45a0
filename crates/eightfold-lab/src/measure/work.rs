//! Whatever a GPU does as a contestant, timed on the device.

use super::stopwatch::Stopwatch;
use super::{Cache, Contestant, GRAPH_LAUNCHES, Timer};
use crate::driver::Graph;
use crate::driver::Record as _;
use eightfold::Result;
use eightfold::cuda::driver::{Device, Stream};
use eightfold::lab::driver::Buffer;

/// Work for a GPU.
pub trait Work {
    /// Puts the work into the stream. Nothing may be allocated, and nothing may wait.
    fn launch(&mut self, stream: &Stream) -> Result<()>;

    /// Spoils what earlier launches left.
    fn poison(&mut self, stream: &Stream) -> Result<()>;

    /// An error unless the launches since the last poisoning did what they should.
    fn verify(&mut self, stream: &Stream) -> Result<()>;
}

/// Work under one timer: by the replay of a graph of launches, or, on caches that are emptied before, by events around
/// one.
pub struct WorkContestant {
    /// Released before what its launches read and write.
    graph: Option<Graph>,
    work: Box<dyn Work>,
    stopwatch: Stopwatch,
    /// Larger than the second-level cache: written to empty it.
    flush: Option<Buffer>,
    stream: Stream,
    /// Launches of a graph.
    graph_launches: usize,
}

impl WorkContestant {
    /// A contestant that meets caches in this state.
    pub fn new(device: &Device, work: Box<dyn Work>, cache: Cache) -> Result<Self> {
        let stream = device.stream()?;
        let flush = match cache {
            Cache::Hot => None,
            Cache::Cold => Some(device.allocate(2 * device.info().l2_bytes)?),
        };
        let stopwatch = Stopwatch::new(&stream)?;
        Ok(WorkContestant { graph: None, work, stopwatch, flush, stream, graph_launches: GRAPH_LAUNCHES })
    }

    /// The same with graphs of this many launches.
    pub fn with_graph_launches(self, graph_launches: usize) -> Self {
        WorkContestant { graph_launches, ..self }
    }

    /// What times are taken with where caches are in this state.
    pub fn timer(cache: Cache) -> Timer {
        match cache {
            Cache::Hot => Timer::GraphReplay,
            Cache::Cold => Timer::Event,
        }
    }
}

impl Contestant for WorkContestant {
    fn prepare(&mut self) -> Result<()> {
        let WorkContestant { graph, work, stream, flush, graph_launches, .. } = self;
        // A first launch outside the capture: modules may load lazily, which a capture does not allow.
        work.launch(stream)?;
        stream.synchronize()?;
        if flush.is_none() {
            *graph = Some(stream.capture(&mut || (0..*graph_launches).try_for_each(|_| work.launch(stream)))?);
        }
        Ok(())
    }

    fn run_block(&mut self, iterations: usize) -> Result<Vec<u64>> {
        let launches = self.launches_per_run() as f64;
        let WorkContestant { graph, work, stopwatch, flush, stream, .. } = self;
        work.poison(stream)?;
        stream.synchronize()?;
        (0..iterations)
            .map(|_| {
                if let Some(flush) = flush {
                    flush.fill(stream, 0)?;
                    stream.synchronize()?;
                }
                let ns = stopwatch.time_ns(stream, &mut || match graph {
                    // SAFETY: what the work uses is this value's, which outlives the wait for the time.
                    Some(graph) => unsafe { graph.launch(stream) },
                    None => work.launch(stream),
                })?;
                Ok((ns / launches).round() as u64)
            })
            .collect()
    }

    fn launches_per_run(&self) -> usize {
        if self.flush.is_none() { self.graph_launches } else { 1 }
    }

    fn verify(&mut self) -> Result<()> {
        self.work.verify(&self.stream)
    }
}
