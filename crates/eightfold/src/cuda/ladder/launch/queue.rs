//! The counters from which persistent blocks take their work.

use crate::cuda::driver::{Buffer, Device, Stream};
use crate::error::{Error, Result};

/// Streams that can use one prepared kernel at a time.
const STREAMS: usize = 32;

/// From one stream's counters to the next: another cache line, since blocks of both may be busy with them.
const BYTES_PER_STREAM: usize = 128;

/// Zeroed counters, a pair for each stream: launches in one stream follow each other, and each leaves its pair zero for
/// the next, but launches in two streams may overlap.
#[derive(Debug)]
pub(super) struct Queue {
    counters: Buffer,
    streams: Vec<usize>,
}

impl Queue {
    /// Waits until the counters are zero.
    pub(super) fn new(device: &Device) -> Result<Queue> {
        let counters = device.allocate(STREAMS * BYTES_PER_STREAM)?;
        let stream = device.stream()?;
        counters.fill(&stream, 0)?;
        stream.synchronize()?;
        Ok(Queue { counters, streams: Vec::new() })
    }

    /// The address of the stream's counters.
    pub(super) fn of(&mut self, stream: &Stream) -> Result<u64> {
        let place = place(&mut self.streams, stream.as_raw() as usize)?;
        Ok(self.counters.pointer() + (place * BYTES_PER_STREAM) as u64)
    }
}

fn place(streams: &mut Vec<usize>, stream: usize) -> Result<usize> {
    if let Some(place) = streams.iter().position(|known| *known == stream) {
        return Ok(place);
    }
    if streams.len() == STREAMS {
        return Err(Error::invalid(
            "stream",
            format!("one prepared kernel was launched in {STREAMS} streams already"),
            "prepare the kernel again, which is cheap, or use fewer streams",
        ));
    }
    streams.push(stream);
    Ok(streams.len() - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stream_has_counters_of_its_own() {
        let mut streams = Vec::new();
        for stream in 0..STREAMS {
            assert_eq!(place(&mut streams, stream), Ok(stream));
        }
        assert_eq!(place(&mut streams, 3), Ok(3));
        assert!(place(&mut streams, STREAMS).unwrap_err().to_string().starts_with("stream: "));
    }
}
