//! What Nsight Compute counted, as typed metrics: the profile gate, what warps wait for, and how two profiles differ.
//!
//! A metric that the profiler does not know or could not count is printed as `n/a`. That is an error here, never a zero.

mod csv;
mod difference;
mod gate;
mod metric;

pub use csv::parse;
pub use difference::{Change, difference};
pub use gate::{GATE_DRAM_BELOW_PERCENT, GATE_TENSOR_LEAST_PERCENT, check};
pub use metric::{Metric, Unit};

use eightfold::{Error, Result};
use std::collections::BTreeMap;

/// What was counted during one launch of one kernel.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    /// The profiler's number of the launch.
    pub launch: String,
    /// The kernel's name.
    pub kernel: String,
    /// The metrics that were asked for.
    pub metrics: BTreeMap<Metric, f64>,
    /// What warps waited for, most first.
    pub stalls: Vec<Stall>,
}

/// A reason for warps to wait.
#[derive(Debug, Clone, PartialEq)]
pub struct Stall {
    /// The profiler's name for it, such as `long_scoreboard`.
    pub reason: String,
    /// Warps that wait for it, on average, whenever an instruction is issued.
    pub warps: f64,
}

impl Profile {
    /// The value of a metric; an error if it was not collected, so that nobody takes its absence for a zero.
    pub fn get(&self, metric: Metric) -> Result<f64> {
        self.metrics.get(&metric).copied().ok_or_else(|| {
            Error::invalid(
                "profile",
                format!("{} of {} was not collected", metric.name(), self.kernel),
                "profile again with that metric among --metrics",
            )
        })
    }

    /// The reasons that most warps waited for.
    pub fn top_stalls(&self, count: usize) -> &[Stall] {
        &self.stalls[..count.min(self.stalls.len())]
    }
}
