//! What Nsight Compute counted, as typed metrics: the profile gate, what bounds a kernel, where it stands under the roof,
//! what it accounts for of a time, and how two profiles differ.
//!
//! A metric that the profiler does not know or could not count is printed as `n/a` or left out. That is an error here,
//! never a zero.

mod account;
mod bottleneck;
mod csv;
mod difference;
#[cfg(test)]
pub(crate) mod fixed_data;
mod gate;
mod metric;
mod ncu;
mod position;

pub use account::Account;
pub use bottleneck::{Bottleneck, stall_words};
pub use csv::parse;
pub use difference::{Change, difference, pairs};
pub use gate::{Claims, check, claims_compute_bound};
pub use metric::{Metric, Unit};
pub use ncu::{Ncu, Target};
pub use position::Position;

use eightfold::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What was counted during one launch of one kernel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Stall {
    /// The profiler's name for it, such as `long_scoreboard`.
    pub reason: String,
    /// Warps that wait for it, on average, whenever an instruction is issued.
    pub warps: f64,
}

/// A profile and what it says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Profiled {
    /// What was counted.
    pub profile: Profile,
    /// What bounds the kernel, with the evidence.
    pub bottleneck: Bottleneck,
    /// Where it stands under the roof; none where the peaks of the device are not known.
    pub position: Option<Position>,
    /// The profiler, and what it did to the device.
    pub profiler: String,
}

impl Profile {
    /// The value of a metric; an error if it was not collected, so that nobody takes its absence for a zero.
    pub fn get(&self, metric: Metric) -> Result<f64> {
        self.metrics.get(&metric).copied().ok_or_else(|| {
            Error::invalid(
                "profile",
                format!("{} of {} was not collected", metric.name(), self.kernel),
                "this ncu or GPU does not have that metric: see ncu --query-metrics",
            )
        })
    }

    /// An error unless everything was counted that is asked for.
    pub fn check_complete(&self) -> Result<()> {
        Metric::ALL
            .into_iter()
            .filter(|metric| metric.asked_for())
            .try_for_each(|metric| self.get(metric).map(drop))?;
        if self.stalls.is_empty() {
            return Err(Error::invalid("profile", "no stall reason was counted", "see ncu --query-metrics"));
        }
        Ok(())
    }

    /// The time of the launch.
    pub fn time_us(&self) -> Result<f64> {
        Ok(self.get(Metric::Duration)? / 1e3)
    }

    /// The reasons that most warps waited for.
    pub fn top_stalls(&self, count: usize) -> &[Stall] {
        &self.stalls[..count.min(self.stalls.len())]
    }

    /// The share of a warp's time that it waits for this reason. Between two instructions of its own a warp waits as many
    /// slots as there are warps that wait, and issues in one.
    pub fn share(&self, stall: &Stall) -> f64 {
        stall.warps / (1.0 + self.stalls.iter().map(|stall| stall.warps).sum::<f64>())
    }
}
