//! A recorded journal in place of a device: the space is what was recorded, and every outcome is what it was then.

use super::fate::{Evidence, Fate};
use super::journal::{Contents, Header, checksum};
use super::protocol::Examined;
use super::space::{Point, Space, point};
use crate::kernel::recorded;
use eightfold::lab::Family;
use eightfold::{Error, Result};
use std::collections::HashMap;

/// What was recorded of every point.
#[derive(Debug, Clone)]
pub struct Recording {
    header: Header,
    space: Space,
    /// By variant and source.
    outcomes: HashMap<(String, Option<String>), (Fate, Evidence, f64)>,
    fingerprint: String,
}

impl Recording {
    /// The outcomes of one journal, or of several of the same task: of a point that was timed more than once, the last.
    pub fn new(journals: Vec<Contents>) -> Result<Recording> {
        let invalid = |rule: &str| Error::invalid("replay", rule, "give the journals of searches of one task");
        let Some(header) = journals.first().map(|journal| journal.header.clone()) else {
            return Err(invalid("there is no journal"));
        };
        let family = Family::find(&header.kernel)?;
        let mut outcomes = HashMap::new();
        let mut points: Vec<Point> = Vec::new();
        let mut text = String::new();
        for journal in journals {
            let task = |header: &Header| (header.kernel.clone(), header.problem.clone(), header.baseline.clone());
            if task(&journal.header) != task(&header) {
                return Err(invalid("the journals are of different tasks"));
            }
            for trial in journal.trials {
                // A value that is gone since makes a point that cannot be proposed.
                let Ok(variant) = recorded(&trial.variant) else { continue };
                let Some(point) = point(family, &variant) else { continue };
                let source = trial.origin.source;
                match &source {
                    None => {
                        points.push(point);
                        text.push_str(&format!("{variant} {}\n", trial.fate));
                    }
                    // What a mutator made is no point of the space, but an outcome if it is made again.
                    Some(source) => text.push_str(&format!("{variant} {source} {}\n", trial.fate)),
                }
                outcomes.insert((variant.to_string(), source), (trial.fate, trial.evidence, trial.device_s));
            }
        }
        if points.is_empty() {
            return Err(invalid("nothing is recorded that could be proposed"));
        }
        let fingerprint = format!("{:016x}", checksum(text.as_bytes()));
        Ok(Recording { header, space: Space::of_points(family, points), outcomes, fingerprint })
    }

    /// What the recorded search was.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Every point that was recorded.
    pub fn space(&self) -> &Space {
        &self.space
    }

    /// Tells it from other recordings.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// The best speed-up in it.
    pub fn best(&self) -> f64 {
        self.outcomes.values().filter_map(|(fate, ..)| fate.speed_up()).fold(0.0, f64::max)
    }

    /// What became of a variant with a source.
    pub fn examine(&self, trial: usize, variant: &str, source: Option<&str>) -> Examined {
        let key = (variant.to_string(), source.map(str::to_string));
        let (fate, evidence, device_s) = self.outcomes.get(&key).cloned().unwrap_or_else(|| {
            let reason = "it is not in the recording".to_string();
            (Fate::Restricted { reason }, Evidence::default(), 0.0)
        });
        Examined { trial, fate, evidence, device_s }
    }
}
