//! The CUDA driver behind a thin, safe layer: device, memory, streams, events, graphs, modules.

use super::arch::Arch;
use crate::error::{Error, Result};
use std::sync::Arc;

/// What a device says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its place in the driver's list.
    pub ordinal: usize,
    /// Its name, such as `NVIDIA H200`.
    pub name: String,
    /// Compute capability, major and minor.
    pub capability: (i32, i32),
    /// Streaming multiprocessors.
    pub multiprocessors: usize,
    /// Device memory.
    pub memory_bytes: usize,
    /// The second-level cache.
    pub l2_bytes: usize,
    /// The most shared memory that one block can have.
    pub max_shared_bytes: usize,
    /// The highest clock of the multiprocessors.
    pub clock_khz: usize,
    /// The version of the driver, such as `13.0`.
    pub driver: String,
}

/// A device with its primary context. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Device {
    info: Arc<DeviceInfo>,
}

/// An order of work on a device.
#[derive(Debug)]
pub struct Stream;

/// A point in a stream's order, with a time.
#[derive(Debug)]
pub struct Event;

/// Work that was recorded once and can be launched as a whole.
#[derive(Debug)]
pub struct Graph;

/// Bytes in device memory, freed when dropped.
#[derive(Debug)]
pub struct Buffer;

fn missing<T>() -> Result<T> {
    Err(Error::unavailable("CUDA", "not written yet", "wait"))
}

impl Device {
    /// The device of this ordinal; its own clear error for: no driver library, driver too old, no device, an
    /// architecture that no kernel is compiled for.
    pub fn open(ordinal: usize) -> Result<Device> {
        let _ = ordinal;
        missing()
    }

    /// Device 0, opened once per process.
    pub fn default() -> Result<Device> {
        missing()
    }

    /// What it says about itself.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// The architecture that kernels are compiled for on this device.
    pub fn arch(&self) -> Arch {
        Arch::Sm90
    }

    /// A new stream.
    pub fn stream(&self) -> Result<Stream> {
        missing()
    }

    /// Uninitialised device memory; too little left is [`Error::Unavailable`] with how much was asked and is left.
    pub fn allocate(&self, bytes: usize) -> Result<Buffer> {
        let _ = bytes;
        missing()
    }
}

impl Stream {
    /// Waits until everything in the stream is done; an error of a kernel shows here.
    pub fn synchronize(&self) -> Result<()> {
        missing()
    }

    /// A new event, recorded in this stream now.
    pub fn record(&self) -> Result<Event> {
        missing()
    }

    /// Records what the closure puts into this stream, without running it, as a graph.
    pub fn capture(&self, work: &mut dyn FnMut() -> Result<()>) -> Result<Graph> {
        let _ = work;
        missing()
    }
}

impl Event {
    /// Waits until the event has happened.
    pub fn synchronize(&self) -> Result<()> {
        missing()
    }

    /// Nanoseconds of device time from an earlier event to this one; both must have happened.
    pub fn elapsed_ns(&self, earlier: &Event) -> Result<f64> {
        let _ = earlier;
        missing()
    }
}

impl Graph {
    /// Puts the whole graph into the stream.
    pub fn launch(&self, stream: &Stream) -> Result<()> {
        let _ = stream;
        missing()
    }
}

impl Buffer {
    /// Its size.
    pub fn bytes(&self) -> usize {
        0
    }
}
