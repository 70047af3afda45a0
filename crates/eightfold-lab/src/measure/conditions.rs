//! What else went on on the machine while contestants took their turns: load, time that the hypervisor took, and what the
//! GPU's clocks did.

use super::watch::{Reading, Watch};
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
    /// The GPU, for contestants that ran on it, where the system tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuConditions>,
}

/// What a GPU said about itself right after the contestants' turns.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuConditions {
    /// Who was asked: NVML or nvidia-smi; or why nobody could be.
    pub source: String,
    /// How often it was asked.
    pub readings: usize,
    /// The median clock of the multiprocessors after each contestant's turns, in MHz.
    pub sm_clock_mhz: Vec<Option<f64>>,
    /// The hottest that it was, in degrees Celsius.
    pub most_temperature_c: Option<f64>,
    /// The most power that it drew, in watts.
    pub most_power_w: Option<f64>,
    /// Everything that held its clocks down at any time.
    pub held_down_by: Vec<String>,
    /// Of those, what means that it protected itself, so that times are of no use.
    pub slowdowns: Vec<String>,
}

/// Contestants whose turns lost shares of the machine that differ by more than this did not meet the same machine.
const STEAL_APART: f64 = 0.2;

/// Contestants whose GPU clocks differ by a larger share did not meet the same machine.
const CLOCKS_APART: f64 = 0.05;

impl Conditions {
    /// Why the contestants did not meet the same conditions, or none that are worth measuring in; none where nothing says
    /// so. A power cap by software is the normal state of a large GPU under load, and no reason by itself.
    pub fn differed(&self) -> Option<String> {
        if let Some(reason) = self.slowed_down().or_else(|| self.gpu.as_ref()?.clocks_apart()) {
            return Some(reason);
        }
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

    /// Why no time of this run is of use: the GPU protected itself.
    pub fn slowed_down(&self) -> Option<String> {
        let slowdowns = self.gpu.as_ref().map(|gpu| &gpu.slowdowns).filter(|slowdowns| !slowdowns.is_empty())?;
        Some(format!("the GPU slowed down to protect itself: {}", slowdowns.join(", ")))
    }
}

impl GpuConditions {
    fn clocks_apart(&self) -> Option<String> {
        let clocks = || self.sm_clock_mhz.iter().flatten().copied();
        let (least, most) = (clocks().reduce(f64::min)?, clocks().reduce(f64::max)?);
        (most > least * (1.0 + CLOCKS_APART)).then(|| {
            format!("contestants met different clocks of the GPU: {least:.0} MHz after one's turns, {most:.0} after another's")
        })
    }
}

/// Notes the conditions while contestants take their turns.
pub(super) struct Observer {
    load_before: Option<f64>,
    ticks: Vec<Ticks>,
    watch: Option<Watch>,
    readings: Vec<Vec<Reading>>,
}

impl Observer {
    /// For so many contestants, on a GPU or not.
    pub fn new(contestants: usize, on_gpu: bool) -> Self {
        Observer {
            load_before: load(),
            ticks: vec![Ticks::default(); contestants],
            watch: on_gpu.then(Watch::start),
            readings: vec![Vec::new(); contestants],
        }
    }

    /// Watches one contestant's turn.
    pub fn turn<T>(&mut self, index: usize, turn: impl FnOnce() -> T) -> T {
        let before = Ticks::now();
        let result = turn();
        // At once, while the clocks are still those of the turn.
        let reading = self.watch.as_mut().and_then(Watch::read);
        self.readings[index].extend(reading);
        if let Some((before, after)) = before.zip(Ticks::now()) {
            self.ticks[index].add(before, after);
        }
        result
    }

    /// What was noted.
    pub fn conditions(self) -> Conditions {
        let Observer { load_before, ticks, watch, readings } = self;
        Conditions {
            load_before,
            load_after: load(),
            steal: ticks.iter().map(Ticks::steal).collect(),
            threads: rayon::current_num_threads(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            gpu: watch.map(|watch| watch.conditions(&readings)),
        }
    }
}

/// The load average over the last minute.
fn load() -> Option<f64> {
    std::fs::read_to_string("/proc/loadavg").ok()?.split_whitespace().next()?.parse().ok()
}

/// Time of all cores since the machine started, in the kernel's ticks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Ticks {
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
            gpu: None,
        };
        assert_eq!(calm.differed(), None);
        let stolen = Conditions { steal: vec![Some(0.02), Some(0.4)], ..calm.clone() };
        assert!(stolen.differed().unwrap().contains("40 % of one contestant's time and 2 %"));
        let loaded = Conditions { load_after: Some(8.0), ..calm };
        assert!(loaded.differed().unwrap().contains("rose from 0.5 to 8.0"));
        assert_eq!(Conditions::default().differed(), None);
    }

    #[test]
    fn a_gpu_that_protects_itself_and_clocks_that_differ_are_told_and_a_power_cap_is_not() {
        let with = |gpu: GpuConditions| Conditions { gpu: Some(gpu), ..Conditions::default() }.differed();
        let clocks = |a, b| GpuConditions {
            sm_clock_mhz: vec![Some(a), Some(b), None],
            held_down_by: vec!["software power cap".into()],
            ..GpuConditions::default()
        };
        assert_eq!(with(clocks(1980.0, 1900.0)), None);
        assert!(with(clocks(1980.0, 1600.0)).unwrap().contains("1600 MHz after one's turns, 1980"));
        let hot = GpuConditions { slowdowns: vec!["hardware thermal slowdown".into()], ..clocks(1980.0, 1980.0) };
        assert!(with(hot).unwrap().contains("protect itself: hardware thermal slowdown"));
    }
}
