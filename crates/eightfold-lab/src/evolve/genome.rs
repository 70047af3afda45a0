//! What is searched for: a setting of the knobs, and the source that it is compiled from.

use super::space::Point;
use std::sync::Arc;

/// One that can be made, tried and inherited from.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Genome {
    /// The knobs.
    pub point: Point,
    /// The fingerprint of the files that stand for the kernel's own; none where nothing does.
    pub source: Option<Arc<str>>,
}

impl Genome {
    /// These knobs with the kernel's own source.
    pub fn shipped(point: Point) -> Genome {
        Genome { point, source: None }
    }

    /// These knobs with this one's source.
    pub fn with(&self, point: Point) -> Genome {
        Genome { point, source: self.source.clone() }
    }
}
