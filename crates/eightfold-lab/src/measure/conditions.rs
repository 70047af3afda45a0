//! What else went on on the machine while contestants took their turns: load, and time that the hypervisor took.

use serde::{Deserialize, Serialize};

/// The conditions of a run, as far as the system tells them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Conditions {
    /// The load average over a minute when the run began.
    pub load_before: Option<f64>,
    /// And when it ended.
    pub load_after: Option<f64>,
    /// The share of the machine's time that was stolen by the hypervisor during each contestant's turns.
    pub steal: Vec<Option<f64>>,
    /// Threads that the contestants ran on: what they themselves add to the load.
    pub threads: usize,
    /// Cores of the machine.
    pub cores: usize,
}

/// Contestants whose turns lost shares of the machine that differ by more than this did not meet the same machine.
const STEAL_APART: f64 = 0.2;

impl Conditions {
    /// Why the contestants did not meet the same conditions; none where nothing says so.
    pub fn differed(&self) -> Option<String> {
        let stolen = || self.steal.iter().flatten().copied();
        if let (Some(least), Some(most)) = (stolen().reduce(f64::min), stolen().reduce(f64::max))
            && most - least > STEAL_APART
        {
            let (least, most) = (100.0 * least, 100.0 * most);
            return Some(format!(
                "the hypervisor took {most:.0} % of one contestant's time and {least:.0} % of another's"
            ));
        }
        let (before, after) = (self.load_before?, self.load_after?);
        let own = self.threads as f64;
        (after - before > own + self.cores as f64).then(|| {
            format!("the load rose from {before:.1} to {after:.1} during the run, which accounts for {own:.0}")
        })
    }
}

/// The load average over the last minute.
pub(super) fn load() -> Option<f64> {
    std::fs::read_to_string("/proc/loadavg").ok()?.split_whitespace().next()?.parse().ok()
}

/// Time of all cores since the machine started, in the kernel's ticks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Ticks {
    total: u64,
    stolen: u64,
}

impl Ticks {
    /// As of now.
    pub fn now() -> Option<Ticks> {
        Self::parse(&std::fs::read_to_string("/proc/stat").ok()?)
    }

    /// The first line of `/proc/stat`: user, nice, system, idle, iowait, irq, softirq, steal; guest time is in user.
    fn parse(text: &str) -> Option<Ticks> {
        let fields = text.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
        let ticks: Vec<u64> = fields.take(8).map(str::parse).collect::<Result<_, _>>().ok()?;
        (ticks.len() == 8).then(|| Ticks { total: ticks.iter().sum(), stolen: ticks[7] })
    }

    /// Adds what passed between two moments.
    pub fn add(&mut self, from: Ticks, to: Ticks) {
        self.total += to.total.saturating_sub(from.total);
        self.stolen += to.stolen.saturating_sub(from.stolen);
    }

    /// The share that was stolen; none of too little time to tell.
    pub fn steal(&self) -> Option<f64> {
        const LEAST: u64 = 50;
        (self.total >= LEAST).then(|| self.stolen as f64 / self.total as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_stolen_between_two_moments() {
        let parse = |text| Ticks::parse(text).unwrap();
        let from = parse("cpu  100 0 50 800 0 0 0 50 7 7\ncpu0 1 2");
        let to = parse("cpu  160 0 50 820 0 0 0 70 7 7\n");
        let mut sum = Ticks::default();
        sum.add(from, to);
        assert_eq!(sum.steal(), Some(0.2));
        assert_eq!(Ticks { total: 3, stolen: 3 }.steal(), None);
        for text in ["", "cpu 1 2 3", "cpu 1 2 3 4 5 6 7 x", "intr 5"] {
            assert_eq!(Ticks::parse(text), None, "{text}");
        }
    }

    #[test]
    fn gross_differences_are_told_and_small_ones_are_not() {
        let calm = Conditions {
            load_before: Some(0.5),
            load_after: Some(3.0),
            steal: vec![Some(0.05), Some(0.12), None],
            threads: 2,
            cores: 2,
        };
        assert_eq!(calm.differed(), None);
        let stolen = Conditions { steal: vec![Some(0.02), Some(0.4)], ..calm.clone() };
        assert!(stolen.differed().unwrap().contains("40 % of one contestant's time and 2 %"));
        let loaded = Conditions { load_after: Some(8.0), ..calm };
        assert!(loaded.differed().unwrap().contains("rose from 0.5 to 8.0"));
        assert_eq!(Conditions::default().differed(), None);
    }
}
