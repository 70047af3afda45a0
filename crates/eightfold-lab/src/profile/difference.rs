//! How two profiles differ.

use super::{Metric, Profile};
use crate::record::{Entry, Group, Record};
use eightfold::{Error, Result};

/// A metric of two profiles.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Change {
    /// The metric.
    pub metric: Metric,
    /// Its value in the first.
    pub before: f64,
    /// Its value in the second.
    pub after: f64,
}

/// Every metric that both have, in the order of [`Metric::ALL`]; what one lacks is left out, not taken for zero.
pub fn difference(before: &Profile, after: &Profile) -> Vec<Change> {
    let both = Metric::ALL.into_iter().filter_map(|metric| {
        Some(Change { metric, before: *before.metrics.get(&metric)?, after: *after.metrics.get(&metric)? })
    });
    both.collect()
}

/// A problem that two records profiled, and an entry of each.
pub type Pair<'a> = (&'a Group, &'a Entry, &'a Entry);

/// What can be told apart: the same problem in both records; of those, the variants of these names, or the same ones. An
/// error where there is nothing.
pub fn pairs<'a>(
    (before, before_name): (&'a Record, Option<&str>),
    (after, after_name): (&'a Record, Option<&str>),
) -> Result<Vec<Pair<'a>>> {
    fn profiled(group: &Group) -> impl Iterator<Item = &Entry> {
        group.entries.iter().filter(|entry| entry.profile.is_some())
    }
    let mut found = Vec::new();
    for old in &before.groups {
        for new in after.groups.iter().filter(|new| new.problem == old.problem) {
            for entry in profiled(old).filter(|entry| before_name.is_none_or(|name| entry.name == name)) {
                let wanted = after_name.unwrap_or(&entry.name);
                found.extend(profiled(new).find(|entry| entry.name == wanted).map(|other| (old, entry, other)));
            }
        }
    }
    if found.is_empty() {
        return Err(Error::invalid(
            "diff",
            "the two hold no profile of the same problem and variant",
            "give two records of profile, or RECORD#STAGE twice to choose what is compared",
        ));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{Bottleneck, Profiled};
    use crate::provenance::Provenance;
    use crate::record::Kind;
    use eightfold::{Problem, Shape};

    fn profile(metrics: &[(Metric, f64)]) -> Profile {
        Profile {
            launch: "0".into(),
            kernel: "k".into(),
            metrics: metrics.iter().copied().collect(),
            stalls: Vec::new(),
        }
    }

    #[test]
    fn only_what_both_have_is_compared() {
        let before = profile(&[(Metric::DramBytes, 10.0), (Metric::TensorPipe, 20.0), (Metric::Dram, 1.0)]);
        let after = profile(&[(Metric::TensorPipe, 30.0), (Metric::DramBytes, 10.0), (Metric::BankConflicts, 0.0)]);
        let changes = difference(&before, &after);
        assert_eq!(
            changes,
            [
                Change { metric: Metric::TensorPipe, before: 20.0, after: 30.0 },
                Change { metric: Metric::DramBytes, before: 10.0, after: 10.0 }
            ]
        );
    }

    fn record(length: usize, names: &[&str]) -> Record {
        let problem = Problem::new(Shape::new(1, 1, length, 64)).unwrap();
        let profiled = Profiled {
            profile: profile(&[]),
            bottleneck: Bottleneck { by: "x".into(), evidence: "y".into() },
            position: None,
            profiler: "ncu".into(),
        };
        let entries = names.iter().map(|name| Entry { profile: Some(profiled.clone()), ..Entry::new(*name, *name) });
        let mut record = Record::new(Kind::Profile, Provenance::capture(1));
        record.groups.push(Group { entries: entries.collect(), ..Group::new("x", &problem) });
        record
    }

    #[test]
    fn the_same_variants_meet_or_those_that_were_named() {
        let (a, b) = (record(64, &["p", "q"]), record(64, &["q", "r"]));
        let names = |found: Result<Vec<Pair>>| -> Vec<(String, String)> {
            found.unwrap().iter().map(|(_, a, b)| (a.name.clone(), b.name.clone())).collect()
        };
        assert_eq!(names(pairs((&a, None), (&b, None))), [("q".to_string(), "q".to_string())]);
        assert_eq!(names(pairs((&a, Some("p")), (&b, Some("r")))), [("p".to_string(), "r".to_string())]);
        assert_eq!(names(pairs((&a, Some("p")), (&a, Some("q")))), [("p".to_string(), "q".to_string())]);
        assert!(pairs((&a, Some("p")), (&b, None)).is_err());
        assert!(pairs((&a, None), (&record(65, &["q"]), None)).unwrap_err().to_string().contains("same problem"));
    }
}
