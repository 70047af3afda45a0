//! Who is kept: the parents of what comes next. One file for each policy.

mod best;
mod elite;
mod islands;

use super::genome::Genome;
use eightfold::lab::suggest;
use eightfold::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A candidate that was timed.
#[derive(Debug, Clone, PartialEq)]
pub struct Member {
    /// Its trial.
    pub trial: usize,
    /// What it is.
    pub genome: Genome,
    /// Its speed-up over the baseline.
    pub speed_up: f64,
}

/// Those who are kept.
pub trait Population {
    /// Takes in a candidate, or not.
    fn add(&mut self, member: Member);

    /// Whom the candidate of this trial may be made from, the best first.
    fn parents(&self, trial: usize) -> Vec<Member>;

    /// All that are kept, the best first.
    fn kept(&self) -> Vec<Member>;
}

/// How a search chooses whom to keep, and whether it looks at them at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// The single best.
    Best,
    /// The best few.
    Elite,
    /// The best few on each of several islands, which exchange them now and then.
    Islands,
    /// Nobody: every candidate is drawn at random. What the others must beat.
    Random,
}

impl Policy {
    /// Their names.
    pub const NAMES: &'static [&'static str] = &["best", "elite", "islands", "random"];
    const ALL: &'static [Policy] = &[Policy::Best, Policy::Elite, Policy::Islands, Policy::Random];

    /// An empty population that keeps this many (of each island).
    pub fn population(self, keep: usize) -> Box<dyn Population> {
        match self {
            Policy::Best => Box::new(best::Best::default()),
            // A random search ignores whom it keeps, but knows who was best.
            Policy::Elite | Policy::Random => Box::new(elite::Elite::new(keep)),
            Policy::Islands => Box::new(islands::Islands::new(keep)),
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(Self::NAMES[*self as usize])
    }
}

impl FromStr for Policy {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let place = Self::NAMES.iter().position(|name| *name == text);
        place.map(|place| Self::ALL[place]).ok_or_else(|| suggest::unknown("policy", text, Self::NAMES))
    }
}

/// Puts a member where it belongs, the best first; of equals the earlier.
pub fn insert(members: &mut Vec<Member>, member: Member) {
    let before = |kept: &Member| (kept.speed_up, member.trial) >= (member.speed_up, kept.trial);
    let place = members.partition_point(before);
    members.insert(place, member);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evolve::space::Point;

    fn member(trial: usize, speed_up: f64) -> Member {
        Member { trial, genome: Genome::shipped(Point(vec![trial as u8])), speed_up }
    }

    fn trials(members: &[Member]) -> Vec<usize> {
        members.iter().map(|member| member.trial).collect()
    }

    fn filled(policy: Policy, keep: usize) -> Box<dyn Population> {
        let mut population = policy.population(keep);
        for (trial, speed_up) in [1.0, 0.5, 1.2, 1.1, 0.9, 1.2, 0.8, 1.3].into_iter().enumerate() {
            population.add(member(trial, speed_up));
        }
        population
    }

    #[test]
    fn each_policy_keeps_whom_it_says() {
        assert_eq!(trials(&filled(Policy::Best, 3).kept()), [7]);
        for policy in [Policy::Elite, Policy::Random] {
            let population = filled(policy, 3);
            // Of two equals the earlier goes first.
            assert_eq!(trials(&population.kept()), [7, 2, 5]);
            assert_eq!(trials(&population.parents(0)), [7, 2, 5]);
        }
    }

    #[test]
    fn islands_keep_their_own_and_meet_their_neighbours_now_and_then() {
        let islands = filled(Policy::Islands, 1);
        assert_eq!(trials(&islands.kept()), [7, 2, 5, 0]);
        // Island 1 had trials 1 and 5.
        assert_eq!(trials(&islands.parents(9)), [5]);
        let visited: Vec<_> = (0..80).step_by(4).map(|trial| trials(&islands.parents(trial))).collect();
        assert!(visited.contains(&vec![0]) && visited.iter().any(|parents| parents.len() == 2), "{visited:?}");
    }

    #[test]
    fn before_anyone_is_kept_there_are_no_parents() {
        for policy in Policy::ALL {
            assert!(policy.population(3).parents(5).is_empty());
            assert_eq!(policy.to_string().parse(), Ok(*policy));
        }
        assert!("elit".parse::<Policy>().unwrap_err().to_string().contains("did you mean `elite`"));
    }
}
