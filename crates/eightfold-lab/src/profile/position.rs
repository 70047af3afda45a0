//! Where a kernel stands under the roof of the device: what it computes for each byte that it really moved, and how fast.

use super::{Metric, Profile};
use crate::bound::Peaks;
use eightfold::Result;
use serde::{Deserialize, Serialize};

/// A place in the roofline picture.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Position {
    /// Arithmetic of the problem for each byte to and from device memory.
    pub flop_per_byte: f64,
    /// Arithmetic per second.
    pub flop_per_second: f64,
    /// The least arithmetic per byte at which computing, and not memory, is the roof.
    pub ridge_flop_per_byte: f64,
    /// The roof at that place.
    pub roof_flop_per_second: f64,
}

impl Position {
    /// From what was counted; none where memory's rate is not known. An error where time or traffic were not counted.
    pub fn of(profile: &Profile, flop: f64, peaks: &Peaks) -> Result<Option<Position>> {
        let (time_us, bytes) = (profile.time_us()?, profile.get(Metric::DramBytes)?);
        let Some(bytes_per_second) = peaks.bytes_per_second else { return Ok(None) };
        let flop_per_byte = flop / bytes;
        let peak = peaks.flop_per_second;
        Ok(Some(Position {
            flop_per_byte,
            flop_per_second: flop / (time_us * 1e-6),
            ridge_flop_per_byte: peak / bytes_per_second,
            roof_flop_per_second: peak.min(flop_per_byte * bytes_per_second),
        }))
    }

    /// The share of the roof that is reached.
    pub fn share(&self) -> f64 {
        self.flop_per_second / self.roof_flop_per_second
    }

    /// Which roof is above it.
    pub fn roof(&self) -> &'static str {
        if self.flop_per_byte >= self.ridge_flop_per_byte { "computing" } else { "memory" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(ns: f64, bytes: f64) -> Profile {
        Profile {
            launch: "0".into(),
            kernel: "k".into(),
            metrics: [(Metric::Duration, ns), (Metric::DramBytes, bytes)].into(),
            stalls: Vec::new(),
        }
    }

    #[test]
    fn the_roof_is_the_lower_of_the_two() {
        let peaks = Peaks { flop_per_second: 1e15, bytes_per_second: Some(5e12), ..Peaks::default() };
        let at = |bytes| Position::of(&profile(1e5, bytes), 1e10, &peaks).unwrap().unwrap();
        let above = at(1e7);
        assert_eq!((above.roof(), above.flop_per_byte, above.ridge_flop_per_byte), ("computing", 1000.0, 200.0));
        assert!((above.share() - 0.1).abs() < 1e-12);
        let below = at(1e8);
        assert_eq!((below.roof(), below.roof_flop_per_second), ("memory", 5e14));
        assert!((below.share() - 0.2).abs() < 1e-12);
        let unknown = Peaks { bytes_per_second: None, ..peaks };
        assert_eq!(Position::of(&profile(1.0, 1.0), 1.0, &unknown), Ok(None));
    }
}
