//! Is the candidate faster than the baseline, and by how much: yes, no, not to be told, or an unsound run.

mod binaries;
mod contest;
mod decision;
mod live;
mod records;
mod serve;
#[cfg(test)]
mod simulation;

pub use binaries::{Binaries, BinariesCompared};
pub(crate) use contest::impossible;
pub use decision::{Judged, judge};
pub use live::{Compared, Live};
pub use records::{RecordSide, compare_records};
pub use serve::{Hello, Serving};

use crate::gates::Outcome;
use crate::measure::{Cache, Conditions, Timer};
use crate::record::ProblemRecord;
use crate::verdict::SpeedUp;
use eightfold::{Error, Result};
use serde::{Deserialize, Serialize};

/// One verdict on one candidate, with everything it rests on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// The shape's name, or the list of its sizes.
    pub shape: String,
    /// What both computed.
    pub problem: ProblemRecord,
    /// Who was there before.
    pub baseline: Side,
    /// Who may be faster.
    pub candidate: Side,
    /// What the times were taken with; none where nothing was timed.
    pub timer: Option<Timer>,
    /// What the candidate had to gain: 0.1 asks for a speed-up of 1.1.
    pub required_gain: f64,
    /// The verdict.
    pub outcome: Outcome,
    /// The verdict in words.
    pub summary: String,
    /// p50(baseline) / p50(candidate).
    pub speed_up: Option<SpeedUp>,
    /// The baseline against itself, which took part twice; between two records, a peer that is in both.
    pub itself: Option<SpeedUp>,
    /// The seed of the order of the turns; none for records, which were not run against each other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// A difference that was put there to test the comparison: 0.05 for a candidate made 5 % faster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planted: Option<f64>,
    /// What else went on on the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Conditions>,
    /// Where the inputs were when a run began.
    #[serde(default)]
    pub cache: Cache,
    /// How many different inputs the rounds went around.
    #[serde(default = "one")]
    pub inputs: usize,
}

fn one() -> usize {
    1
}

/// One of the two.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Side {
    /// What a person calls it; for one from a record, with the run's name.
    pub name: String,
    /// The variant with every knob.
    pub implementation: String,
    /// Its median time over all rounds.
    pub p50_us: Option<f64>,
}

/// What stands between the variant that a build ran and the build's own version and commit.
const BUILD: &str = " of eightfold ";

impl Side {
    /// The version and commit, where the two are builds and not variants of one.
    pub fn build(&self) -> Option<&str> {
        self.implementation.split_once(BUILD).map(|(_, build)| build)
    }
}

/// Speed-up ratios differ by a share: `+10%`, `-5%` or `2.5%` as 0.1, −0.05 or 0.025.
pub fn parse_percentage(argument: &str, text: &str) -> Result<f64> {
    let invalid =
        |rule: &str| Error::invalid(argument, format!("{rule}, got `{text}`"), "give a percentage such as +10% or -5%");
    let number = text.trim().strip_suffix('%').ok_or_else(|| invalid("must end in %"))?;
    let percent: f64 = number.trim().replace('−', "-").parse().map_err(|_| invalid("must be a number and %"))?;
    if !(-90.0..=10_000.0).contains(&percent) {
        return Err(invalid("must lie between -90% and +10000%"));
    }
    Ok(percent / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_as_people_write_them() {
        for (text, share) in [("+10%", 0.1), ("-5%", -0.05), ("−5 %", -0.05), ("2.5%", 0.025), (" 0% ", 0.0)] {
            assert!((parse_percentage("require", text).unwrap() - share).abs() < 1e-12, "{text}");
        }
        for text in ["", "%", "10", "0.1", "ten%", "NaN%", "inf%", "-100%", "+-5%", "1e9%"] {
            let error = parse_percentage("require", text).unwrap_err().to_string();
            assert!(error.starts_with("require: ") && error.contains("+10%"), "{text}: {error}");
        }
    }
}
