//! What became of a candidate: a time, or a typed failure, each with its evidence.

use serde::{Deserialize, Serialize};
use std::fmt;

/// What became of a candidate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Fate {
    /// It passed every gate and was timed against the baseline.
    Measured {
        /// p50(baseline) / p50(candidate), from interleaved rounds.
        speed_up: f64,
        /// Its median time.
        p50_us: f64,
        /// How far timing went.
        timing: Depth,
    },
    /// A rule forbids it; such points are never drawn, so it came from a mutator or the machine differs.
    Restricted {
        /// The rule.
        reason: String,
    },
    /// It does not compile.
    NotCompiled {
        /// The compiler's first errors.
        reason: String,
    },
    /// It takes more than the resource gate allows.
    OverResources {
        /// Which, and by how much.
        reason: String,
    },
    /// The correctness gate refused it.
    Wrong {
        /// Why.
        reason: String,
    },
    /// It passed the gates and then gave other bits under the clock.
    Unsound {
        /// What was seen.
        reason: String,
    },
    /// It is an earlier candidate again: the same config, or the same machine code.
    Duplicate {
        /// Of what.
        of: String,
    },
    /// The worker process ended.
    Crashed {
        /// How.
        reason: String,
    },
    /// The worker process did not answer in time, and was killed.
    Hung {
        /// The time limit.
        seconds: f64,
    },
    /// The device reported a fault, after which its context is gone.
    DeviceFault {
        /// The driver's words.
        reason: String,
    },
    /// Memory ran out.
    OutOfMemory {
        /// Whose.
        reason: String,
    },
    /// The mutator gave nothing that can be tried.
    NoAnswer {
        /// Why.
        reason: String,
    },
}

/// How far the timing of a candidate went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Depth {
    /// A few runs showed that it is far from the best.
    Pilot,
    /// A few rounds.
    Quick,
    /// It may be the best, and was given more rounds.
    Full,
}

impl Fate {
    /// The speed-up over the baseline; none for what was not timed.
    pub fn speed_up(&self) -> Option<f64> {
        match self {
            Fate::Measured { speed_up, .. } => Some(*speed_up),
            _ => None,
        }
    }

    /// The failure's name; none for what was timed.
    pub fn failure(&self) -> Option<&'static str> {
        Some(match self {
            Fate::Measured { .. } => return None,
            Fate::Restricted { .. } => "restricted",
            Fate::NotCompiled { .. } => "not compiled",
            Fate::OverResources { .. } => "over resources",
            Fate::Wrong { .. } => "wrong",
            Fate::Unsound { .. } => "unsound",
            Fate::Duplicate { .. } => "duplicate",
            Fate::Crashed { .. } => "crashed",
            Fate::Hung { .. } => "hung",
            Fate::DeviceFault { .. } => "device fault",
            Fate::OutOfMemory { .. } => "out of memory",
            Fate::NoAnswer { .. } => "no answer",
        })
    }
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.failure().unwrap_or("measured");
        match self {
            Fate::Measured { speed_up, .. } => write!(f, "{speed_up:.3}×"),
            Fate::Hung { seconds } => write!(f, "{name}: no answer within {seconds} s"),
            Fate::Duplicate { of } => write!(f, "{name} of {of}"),
            Fate::Restricted { reason }
            | Fate::NotCompiled { reason }
            | Fate::OverResources { reason }
            | Fate::Wrong { reason }
            | Fate::Unsound { reason }
            | Fate::Crashed { reason }
            | Fate::DeviceFault { reason }
            | Fate::OutOfMemory { reason }
            | Fate::NoAnswer { reason } => write!(f, "{name}: {reason}"),
        }
    }
}

/// What was seen of a candidate on the way, as far as it came.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// Registers per thread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registers: Option<u32>,
    /// Bytes that were spilled because registers ran out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spill_bytes: Option<usize>,
    /// Shared memory of a block.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_bytes: Option<usize>,
    /// Blocks that a multiprocessor holds at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocks_per_multiprocessor: Option<usize>,
    /// The hash of the machine code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code_hash: Option<String>,
    /// The largest relative L2 error over the cases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worst_l2: Option<f64>,
    /// The share of tiles that the fixed-point path handed to f32.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub f32_tiles: Option<f64>,
    /// The share of the time that the exponentials alone take at the peak rate of the unit that computes them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exp_share: Option<f64>,
}
