//! How two profiles differ.

use super::{Metric, Profile};

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_both_have_is_compared() {
        let profile = |metrics: &[(Metric, f64)]| Profile {
            launch: "0".into(),
            kernel: "k".into(),
            metrics: metrics.iter().copied().collect(),
            stalls: Vec::new(),
        };
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
}
