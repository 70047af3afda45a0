//! How much arithmetic a contestant did per second.

use crate::record::{Entry, Group};

/// Achieved GFLOP/s at the median.
pub fn rate(group: &Group, entry: &Entry) -> Option<f64> {
    let p50_us = entry.p50_us().filter(|p50_us| *p50_us > 0.0)?;
    Some(group.problem.gflop / (p50_us * 1e-6))
}

/// The unit for rates up to this one, and how many GFLOP/s it is.
pub fn unit(most_gflop_per_second: f64) -> (&'static str, f64) {
    if most_gflop_per_second >= 1e3 { ("TFLOP/s", 1e3) } else { ("GFLOP/s", 1.0) }
}
