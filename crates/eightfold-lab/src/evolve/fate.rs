//! What became of a candidate: a time, or a typed failure, each with its evidence.

use crate::gates::Check;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
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
    /// It passed every gate on the simulated device, and what it did there was counted. That is no time.
    Counted {
        /// steps(baseline) / steps(candidate), the geometric mean over shapes.
        speed_up: f64,
        /// Its steps on the first shape.
        steps: u64,
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
    /// The compiler did not end in time, and was killed with its worker.
    CompilerHung {
        /// The time limit.
        seconds: f64,
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
    /// The mutator gave no answer.
    NoAnswer {
        /// Why.
        reason: String,
    },
    /// The mutator gave an answer that cannot be tried.
    BadAnswer {
        /// What is wrong with it.
        flaw: Flaw,
        /// Where and why.
        reason: String,
    },
}

/// What is wrong with an answer of a mutator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Flaw {
    /// It is longer than an answer may be.
    TooLarge,
    /// It is not UTF-8.
    NotText,
    /// It is not a JSON object of the documented form.
    NotUnderstood,
    /// A file is none that the kernel is compiled from.
    PathOutside,
    /// What an edit is to replace does not stand there once.
    PatchDoesNotApply,
    /// The files cannot be put together: too much, nothing changed, or an include that leads nowhere.
    BadSource,
}

impl Flaw {
    fn name(self) -> &'static str {
        match self {
            Flaw::TooLarge => "answer too large",
            Flaw::NotText => "answer not text",
            Flaw::NotUnderstood => "answer not understood",
            Flaw::PathOutside => "path outside",
            Flaw::PatchDoesNotApply => "patch does not apply",
            Flaw::BadSource => "bad source",
        }
    }
}

/// An answer that cannot be tried, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused(pub Flaw, pub String);

impl From<Refused> for Fate {
    fn from(Refused(flaw, reason): Refused) -> Fate {
        Fate::BadAnswer { flaw, reason }
    }
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
            Fate::Measured { speed_up, .. } | Fate::Counted { speed_up, .. } => Some(*speed_up),
            _ => None,
        }
    }

    /// The failure's name; none for what was timed.
    pub fn failure(&self) -> Option<&'static str> {
        Some(match self {
            Fate::Measured { .. } | Fate::Counted { .. } => return None,
            Fate::Restricted { .. } => "restricted",
            Fate::NotCompiled { .. } => "not compiled",
            Fate::CompilerHung { .. } => "compiler hung",
            Fate::OverResources { .. } => "over resources",
            Fate::Wrong { .. } => "wrong",
            Fate::Unsound { .. } => "unsound",
            Fate::Duplicate { .. } => "duplicate",
            Fate::Crashed { .. } => "crashed",
            Fate::Hung { .. } => "hung",
            Fate::DeviceFault { .. } => "device fault",
            Fate::OutOfMemory { .. } => "out of memory",
            Fate::NoAnswer { .. } => "no answer",
            Fate::BadAnswer { flaw, .. } => flaw.name(),
        })
    }
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.failure().unwrap_or("measured");
        match self {
            Fate::Measured { speed_up, .. } => write!(f, "{speed_up:.3}×"),
            Fate::Counted { speed_up, steps } => write!(f, "{speed_up:.3}× in {steps} steps"),
            Fate::CompilerHung { seconds } => write!(f, "{name}: it did not end within {seconds} s"),
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
            | Fate::NoAnswer { reason }
            | Fate::BadAnswer { reason, .. } => write!(f, "{name}: {reason}"),
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
    /// The speed-up on each shape, where there are several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub speed_ups: Vec<f64>,
    /// The first errors of the compiler, of a candidate with a source of its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub log: Vec<String>,
    /// The checks that failed, with their numbers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<Check>,
    /// What was counted by a profiler, or by the simulated device.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub counters: BTreeMap<String, f64>,
}
