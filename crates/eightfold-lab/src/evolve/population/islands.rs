//! The best few on each of several islands, so that one early success does not become everybody's parent.

use super::elite::Elite;
use super::{Member, Population, insert};

/// Islands of a population.
const ISLANDS: usize = 4;

/// Every so many turns of an island its neighbour's best are parents as well.
const MEET_EVERY: usize = 5;

/// An elite on each island; trials go to the islands in turn.
pub struct Islands {
    islands: Vec<Elite>,
}

impl Islands {
    /// Empty islands that keep this many each.
    pub fn new(keep: usize) -> Self {
        Islands { islands: (0..ISLANDS).map(|_| Elite::new(keep)).collect() }
    }
}

impl Population for Islands {
    fn add(&mut self, member: Member) {
        self.islands[member.trial % ISLANDS].add(member);
    }

    fn parents(&self, trial: usize) -> Vec<Member> {
        let home = trial % ISLANDS;
        let mut parents = self.islands[home].kept();
        if (trial / ISLANDS).is_multiple_of(MEET_EVERY) {
            for guest in self.islands[(home + 1) % ISLANDS].kept() {
                insert(&mut parents, guest);
            }
        }
        parents
    }

    fn kept(&self) -> Vec<Member> {
        let mut all = Vec::new();
        for member in self.islands.iter().flat_map(|island| island.kept()) {
            insert(&mut all, member);
        }
        all
    }
}
