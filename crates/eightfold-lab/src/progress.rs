//! How far a job is, for whoever watches.

use crate::record::Group;

/// Told how far a job is.
pub trait Progress {
    /// The share that is done, from 0 to 1, and what comes next.
    fn at(&mut self, share: f64, what: &str);

    /// What a problem that is not finished has come to, after every round of its timing: to be kept, in case that the job
    /// is killed.
    fn unfinished(&mut self, _group: &Group) {}
}

/// Nobody watches.
impl Progress for () {
    fn at(&mut self, _share: f64, _what: &str) {}
}

/// The progress of one problem as a part of the whole job's.
pub struct Part<'a> {
    /// Whoever watches the whole job.
    pub whole: &'a mut dyn Progress,
    /// The share of the whole that was done before.
    pub start: f64,
    /// This part's share of the whole.
    pub share: f64,
}

impl Progress for Part<'_> {
    fn at(&mut self, share: f64, what: &str) {
        self.whole.at(self.start + self.share * share, what);
    }

    fn unfinished(&mut self, group: &Group) {
        self.whole.unfinished(group);
    }
}
