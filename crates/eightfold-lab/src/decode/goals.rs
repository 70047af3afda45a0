//! What was expected of each case before it was timed, and what it must reach: `ledger/paged.toml`.

use serde::Deserialize;
use std::sync::LazyLock;

/// What is expected of a case; times in µs.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Goal {
    /// The case, as [`Case`](super::Case) writes it.
    pub case: String,
    /// What a plain read of the same bytes took; none where memory does not bound it.
    pub floor: Option<f64>,
    /// The least and the most that it is expected to take.
    pub predicted: [f64; 2],
    /// What it may take at most.
    pub goal: f64,
    /// Why.
    pub because: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Ledger {
    machine: String,
    cases: Vec<Goal>,
}

/// The goals, in the order of the ledger, and the machine that they are for.
pub fn goals() -> (&'static str, &'static [Goal]) {
    static LEDGER: LazyLock<Ledger> = LazyLock::new(|| {
        toml::from_str(include_str!("../../ledger/paged.toml")).unwrap_or_else(|error| panic!("{error}"))
    });
    (&LEDGER.machine, &LEDGER.cases)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::{CASES, Case};

    #[test]
    fn goals_are_of_cases_that_are_timed_and_could_be_reached() {
        let (machine, goals) = goals();
        assert_eq!(machine, "NVIDIA H200");
        for goal in goals {
            assert!(CASES.contains(&goal.case.as_str()), "{goal:?}");
            let [least, most] = goal.predicted;
            let floor = goal.floor.unwrap_or(0.0);
            assert!(floor < least && least < most && floor < goal.goal && !goal.because.is_empty(), "{goal:?}");
        }
        let without = CASES.iter().filter(|case| !goals.iter().any(|goal| goal.case == **case));
        assert!(without.clone().all(|case| case.ends_with("append")), "{:?}", without.collect::<Vec<_>>());
        // At no rate that the memory does not have: 4.8 TB/s.
        for goal in goals.iter().filter(|goal| goal.floor.is_some()) {
            let case: Case = goal.case.parse().unwrap();
            assert!(case.bytes() as f64 / goal.predicted[0] < 4.8e6, "{goal:?}");
        }
    }
}
