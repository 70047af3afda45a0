//! The single best.

use super::{Member, Population};

/// Keeps whoever is fastest.
#[derive(Default)]
pub struct Best {
    best: Option<Member>,
}

impl Population for Best {
    fn add(&mut self, member: Member) {
        if self.best.as_ref().is_none_or(|best| member.speed_up > best.speed_up) {
            self.best = Some(member);
        }
    }

    fn parents(&self, _trial: usize) -> Vec<Member> {
        self.kept()
    }

    fn kept(&self) -> Vec<Member> {
        self.best.iter().cloned().collect()
    }
}
