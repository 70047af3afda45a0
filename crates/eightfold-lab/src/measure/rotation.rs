//! The inputs that rounds go around, so that no round finds those of the one before.

use crate::gates::Case;
use crate::record::Entry;

/// Inputs on which a variant passed the correctness gate, each with the bits that it gave, if those were always the same.
#[derive(Debug, Clone)]
pub struct Rotation<'a> {
    cases: Vec<(&'a Case, Option<u64>)>,
}

impl<'a> Rotation<'a> {
    /// One set of inputs alone.
    pub fn one(case: &'a Case, expected_hash: Option<u64>) -> Self {
        Rotation { cases: vec![(case, expected_hash)] }
    }

    /// The inputs among these that the entry passed its gate on and that are of the first such one's kind; one at least.
    pub fn of(cases: &'a [Case], entry: &Entry) -> Option<Self> {
        let seen = |case: &Case| entry.cases.iter().find(|report| report.origin == case.origin);
        let first = cases.iter().find(|case| seen(case).is_some()).or(cases.first())?;
        let hash = |case: &Case| seen(case).filter(|report| report.repeatable).map(|report| report.output_hash);
        let alike = cases.iter().filter(|case| case.family == first.family && case.problem == first.problem);
        let passed: Vec<_> = alike.filter(|case| seen(case).is_some()).map(|case| (case, hash(case))).collect();
        Some(if passed.is_empty() { Rotation::one(first, hash(first)) } else { Rotation { cases: passed } })
    }

    /// How many there are.
    #[expect(clippy::len_without_is_empty, reason = "there is always one")]
    pub fn len(&self) -> usize {
        self.cases.len()
    }

    /// Which of them a round uses.
    pub fn index(&self, round: usize) -> usize {
        round % self.cases.len()
    }

    /// One of them, and the bits that it must give.
    pub fn at(&self, index: usize) -> (&'a Case, Option<u64>) {
        self.cases[index]
    }

    /// All of them.
    pub fn cases(&self) -> impl Iterator<Item = &'a Case> {
        self.cases.iter().map(|(case, _)| *case)
    }
}
