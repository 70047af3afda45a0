//! Raw times, and statistics over them.

use serde::{Deserialize, Serialize};

/// The time of every counted run, in the order in which they ran.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Samples {
    /// Nanoseconds per run.
    pub ns: Vec<u64>,
    /// How many of them were counted in each round; those that were counted before the first round come first. Records
    /// from before this was kept have none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rounds: Vec<usize>,
}

/// What a time was taken with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Timer {
    /// The host's clock around a call that returns when the work is done.
    HostClock,
    /// Two events around the replay of a graph of launches, divided by their number: device time.
    GraphReplay,
    /// The same for launches that may overlap in a [`Timer::GraphReplay`], here without: each begins when the one before is
    /// done.
    SeparateReplay,
    /// Two events around one launch on an idle device: device time, and what it takes to launch.
    Event,
}

/// Where the inputs are when a run begins.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cache {
    /// In the caches, as far as they fit there: the run before read them.
    #[default]
    Hot,
    /// In memory: before every run, outside of the timed region, something larger than the caches was written.
    Cold,
}

/// What samples look like from afar.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Runs counted.
    pub iterations: usize,
    /// The median.
    pub p50_us: f64,
    /// Nine in ten runs are faster.
    pub p90_us: f64,
    /// Ninety-nine in a hundred runs are faster.
    pub p99_us: f64,
    /// The arithmetic mean.
    pub mean_us: f64,
    /// The standard deviation (of a sample: divided by n − 1); zero for one run.
    pub std_us: f64,
    /// The fastest run.
    pub min_us: f64,
}

const NS_PER_US: f64 = 1000.0;

impl Samples {
    /// The median of each round in microseconds; none for rounds that counted no run.
    pub fn round_p50_us(&self) -> Vec<Option<f64>> {
        let mut start = self.ns.len().saturating_sub(self.rounds.iter().sum());
        let mut medians = Vec::new();
        for count in &self.rounds {
            let end = (start + count).min(self.ns.len());
            let mut sorted = self.ns[start..end].to_vec();
            sorted.sort_unstable();
            medians.push((!sorted.is_empty()).then(|| quantile(&sorted, 0.5)));
            start = end;
        }
        medians
    }

    /// Runs of the warm-up that count, because they were so long.
    pub fn warm_up_us(&self) -> Vec<f64> {
        let count = match self.rounds.is_empty() {
            true => 0,
            false => self.ns.len().saturating_sub(self.rounds.iter().sum()),
        };
        self.ns[..count].iter().map(|ns| *ns as f64 / NS_PER_US).collect()
    }

    /// The summary; none without samples.
    pub fn summary(&self) -> Option<Summary> {
        let mut sorted = self.ns.clone();
        sorted.sort_unstable();
        let min_us = *sorted.first()? as f64 / NS_PER_US;
        let count = sorted.len() as f64;
        let mean_us = sorted.iter().map(|&ns| ns as f64).sum::<f64>() / count / NS_PER_US;
        let squares: f64 = sorted.iter().map(|&ns| (ns as f64 / NS_PER_US - mean_us).powi(2)).sum();
        Some(Summary {
            iterations: sorted.len(),
            min_us,
            p50_us: quantile(&sorted, 0.5),
            p90_us: quantile(&sorted, 0.9),
            p99_us: quantile(&sorted, 0.99),
            mean_us,
            std_us: if sorted.len() > 1 { (squares / (count - 1.0)).sqrt() } else { 0.0 },
        })
    }
}

/// The value below which this share of the runs lies, interpolated between neighbours.
fn quantile(sorted: &[u64], share: f64) -> f64 {
    let last = sorted.len() - 1;
    let position = share * last as f64;
    let (below, fraction) = (position.floor() as usize, position.fract());
    let above = (below + 1).min(last);
    (sorted[below] as f64 * (1.0 - fraction) + sorted[above] as f64 * fraction) / NS_PER_US
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_of_known_numbers() {
        let samples = Samples { ns: vec![5000, 1000, 3000, 2000, 4000], rounds: Vec::new() };
        let summary = samples.summary().unwrap();
        assert_eq!((summary.iterations, summary.min_us, summary.p50_us), (5, 1.0, 3.0));
        assert_eq!(summary.mean_us, 3.0);
        assert!((summary.std_us - 2.5f64.sqrt()).abs() < 1e-12);
        assert!((summary.p90_us - 4.6).abs() < 1e-12);
        assert!((summary.p99_us - 4.96).abs() < 1e-12);
    }

    #[test]
    fn rounds_keep_their_own_medians() {
        let samples = Samples { ns: vec![9000, 1000, 3000, 2000, 4000, 6000], rounds: vec![3, 0, 2] };
        assert_eq!(samples.round_p50_us(), [Some(2.0), None, Some(5.0)]);
        assert!(Samples { rounds: Vec::new(), ..samples }.round_p50_us().is_empty());
    }

    #[test]
    fn samples_of_old_records_have_no_rounds() {
        let samples: Samples = serde_json::from_str(r#"{"ns": [1, 2]}"#).unwrap();
        assert_eq!(samples, Samples { ns: vec![1, 2], rounds: Vec::new() });
        assert_eq!(serde_json::to_string(&samples).unwrap(), r#"{"ns":[1,2]}"#);
    }

    #[test]
    fn one_run_has_no_spread_and_none_has_no_summary() {
        assert_eq!(Samples { ns: vec![7000], rounds: Vec::new() }.summary().unwrap().std_us, 0.0);
        assert_eq!(Samples::default().summary(), None);
    }
}
