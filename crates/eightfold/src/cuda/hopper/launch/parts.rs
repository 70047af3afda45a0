//! Memory for the parts of the keys that different blocks sum up.

use super::work::Cut;
use crate::cuda::driver::{Buffer, Device};
use crate::cuda::hopper::config::Config;
use crate::error::Result;

/// Sums of every part, and how many parts of every unit are done: zero before and after every launch.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) sums: Buffer,
    pub(super) tickets: Buffer,
}

impl Parts {
    /// Waits until the tickets are zero.
    pub(super) fn new(device: &Device, config: &Config, cut: &Cut, head_dim: usize) -> Result<Parts> {
        let sums = device.allocate(sums_bytes(config, cut, head_dim))?;
        let tickets = device.allocate(4 * cut.units)?;
        let stream = device.stream()?;
        tickets.fill(&stream, 0)?;
        stream.synchronize()?;
        Ok(Parts { sums, tickets })
    }
}

/// Of every part of every unit, and every row of it: the sums of the channels, the maximum and the sum of the weights,
/// padded so that rows start at a multiple of 16 bytes.
fn sums_bytes(config: &Config, cut: &Cut, head_dim: usize) -> usize {
    4 * cut.units * cut.splits * config.tile_queries() * (head_dim + 4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::{Problem, Shape};

    #[test]
    fn every_row_of_every_part_has_room() {
        let shape = Shape { kv_heads: 4, query_len: 1, key_len: 8192, ..Shape::new(1, 32, 1, 128) };
        let config = "fast,warpgroups=1,split_keys=on".parse().unwrap();
        let cut = Cut::new(&Problem::new(shape).unwrap(), &config, 132).unwrap();
        assert_eq!(sums_bytes(&config, &cut, 128), 4 * 4 * 32 * 64 * 132);
    }
}
