//! The best few.

use super::{Member, Population, insert};

/// Keeps the fastest, up to a number.
pub struct Elite {
    members: Vec<Member>,
    keep: usize,
}

impl Elite {
    /// An empty one that keeps this many.
    pub fn new(keep: usize) -> Self {
        Elite { members: Vec::new(), keep: keep.max(1) }
    }
}

impl Population for Elite {
    fn add(&mut self, member: Member) {
        insert(&mut self.members, member);
        self.members.truncate(self.keep);
    }

    fn parents(&self, _trial: usize) -> Vec<Member> {
        self.members.clone()
    }

    fn kept(&self) -> Vec<Member> {
        self.members.clone()
    }
}
