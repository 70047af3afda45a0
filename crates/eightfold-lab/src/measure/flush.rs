//! Emptying the caches of the host, outside of every timed region.

use std::hint::black_box;

/// A block of memory that is larger than the caches, written whole to put everything else out of them.
pub(super) struct HostFlush {
    parts: Vec<Vec<u8>>,
}

/// Where the last cache of the first core is described.
const LAST_CACHE: &str = "/sys/devices/system/cpu/cpu0/cache/index3/size";

/// Where the system does not tell: more than the caches of most machines.
const UNKNOWN_BYTES: usize = 64 << 20;

const LINE_BYTES: usize = 64;

impl HostFlush {
    /// Twice the last cache, a part of it for each thread, since inner caches belong to cores.
    pub fn new() -> Self {
        let threads = rayon::current_num_threads();
        HostFlush { parts: vec![vec![0; flush_bytes() / threads]; threads] }
    }

    /// Writes to every line.
    pub fn empty_caches(&mut self) {
        use rayon::prelude::*;
        self.parts.par_iter_mut().for_each(|part| {
            for line in part.chunks_mut(LINE_BYTES) {
                line[0] = line[0].wrapping_add(1);
            }
            black_box(part);
        });
    }
}

/// Twice the last cache.
pub fn flush_bytes() -> usize {
    2 * last_cache_bytes().unwrap_or(0).max(UNKNOWN_BYTES / 2)
}

fn last_cache_bytes() -> Option<usize> {
    kibibytes(&std::fs::read_to_string(LAST_CACHE).ok()?)
}

/// `32768K` in bytes.
fn kibibytes(text: &str) -> Option<usize> {
    text.trim().strip_suffix('K')?.parse::<usize>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_as_the_system_writes_them() {
        assert_eq!(kibibytes("32768K\n"), Some(32 << 20));
        assert_eq!((kibibytes("32M"), kibibytes("")), (None, None));
    }

    #[test]
    fn every_line_is_written() {
        let mut flush = HostFlush { parts: vec![vec![7; 3 * LINE_BYTES]; 2] };
        flush.empty_caches();
        assert!(flush.parts.iter().all(|part| part.iter().step_by(LINE_BYTES).all(|byte| *byte == 8)));
    }
}
