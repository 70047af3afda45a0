//! A time accounted for: the floor that arithmetic sets, how much of it is reached, and what a profile of the same kernel on
//! the same problem says about the rest.

use super::{Bottleneck, Metric, Profiled};
use crate::bound::{Bound, Peaks};
use crate::kernel::recorded;
use crate::numbers::{self, NONE};
use crate::provenance::Gpu;
use crate::record::{Entry, Group, Record};
use eightfold::lab::Config;
use eightfold::lab::hopper::{Keys, SplitKeys};

/// What the first contestant of a problem took, and what is known about why.
#[derive(Debug, Clone, PartialEq)]
pub struct Account<'a> {
    group: &'a Group,
    entry: &'a Entry,
    gpu: &'a Gpu,
    bound: &'a Bound,
    time_us: f64,
    profiled: Option<&'a Profiled>,
}

/// The counters that have a cell.
const COUNTERS: [Metric; 5] = [Metric::AtWork, Metric::TensorPipe, Metric::IssueSlots, Metric::XuPipe, Metric::Dram];

impl<'a> Account<'a> {
    /// What the cells are called.
    pub const HEADINGS: [&'static str; 12] = [
        "shape",
        "time",
        "floor",
        "reached",
        "clocks of a tile (floor)",
        "at work",
        "tensor cores",
        "issue slots",
        "special functions",
        "device memory",
        "warps wait for",
        "bound by",
    ];

    /// How many cells come before those that a profile fills.
    pub const COUNTED_FROM: usize = 5;

    /// Of a group of this record, with the last of the profiles that is of the same kernel on the same problem and device;
    /// none where nothing was timed on a GPU whose rates are known.
    pub fn of(record: &'a Record, group: &'a Group, profiles: impl IntoIterator<Item = &'a Record>) -> Option<Self> {
        let entry = group.entries.first().filter(|entry| !entry.peer)?;
        let gpu = record.provenance.gpu.as_ref()?;
        let on_it = |other: &&Record| other.provenance.gpu.as_ref().is_some_and(|other| other.name == gpu.name);
        // A profile may be older, and name knobs that are gone.
        let of_it = |other: &&Entry| match (recorded(&other.implementation), recorded(&entry.implementation)) {
            (Ok(other), Ok(own)) => other == own,
            _ => other.implementation == entry.implementation,
        };
        let groups = profiles.into_iter().filter(on_it).flat_map(|profiles| &profiles.groups);
        let entries = groups.filter(|other| other.problem == group.problem).flat_map(|other| &other.entries);
        let profiled = entries.filter(of_it).filter_map(|entry| entry.profile.as_ref()).last();
        Some(Account { group, entry, gpu, bound: group.bound.as_ref()?, time_us: entry.p50_us()?, profiled })
    }

    /// Whether there is a profile.
    pub fn is_profiled(&self) -> bool {
        self.profiled.is_some()
    }

    /// What there is to say, under [`Account::HEADINGS`].
    pub fn cells(&self) -> [String; 12] {
        let Bound { floor_us, by } = self.bound;
        let work = by.split(" at ").next().unwrap_or(by);
        let tile = self.tile_clocks().map(|clocks| clocks.map(|clocks| numbers::whole(clocks.round() as usize)));
        let profile = self.profiled.map(|profiled| &profiled.profile);
        let counter = |metric: Metric| {
            let value = profile.and_then(|profile| profile.get(metric).ok());
            value.map_or(NONE.into(), |value| metric.unit().words(value))
        };
        let [at_work, tensor, issue, special, memory] = COUNTERS.map(counter);
        let stall = profile.and_then(|profile| {
            let stall = profile.top_stalls(1).first()?;
            Some(format!("{}, {:.0} %", stall.reason, 100.0 * profile.share(stall)))
        });
        [
            self.group.problem.title(&self.group.shape),
            numbers::time(self.time_us),
            format!("{} ({work})", numbers::time(*floor_us)),
            format!("{:.1} %", 100.0 * self.bound.share(self.time_us)),
            tile.map_or(NONE.into(), |[took, floor]| format!("{took} ({floor})")),
            at_work,
            tensor,
            issue,
            special,
            memory,
            stall.unwrap_or(NONE.into()),
            self.by(),
        ]
    }

    /// What bounds it, by the profile's counters as they are read now; and what held the clock down while it was timed.
    fn by(&self) -> String {
        let Some(Profiled { profile, bottleneck, .. }) = self.profiled else { return "not profiled".into() };
        let by = Bottleneck::of(profile, None).map_or_else(|_| bottleneck.by.clone(), |bottleneck| bottleneck.by);
        let highest = self.highest_mhz();
        let reasons =
            self.group.conditions.as_ref().and_then(|conditions| Some(&conditions.gpu.as_ref()?.held_down_by));
        let reasons = reasons.map(|reasons| reasons.join(", ")).filter(|reasons| !reasons.is_empty());
        match self.clock_mhz().zip(reasons).filter(|(clock, _)| *clock < highest) {
            Some((clock, reasons)) => {
                format!("{by}; clock at {clock:.0} of {highest:.0} MHz ({reasons})")
            }
            None => by,
        }
    }

    /// The clock right after its turns: the first contestant's come first, and of those the ones that `timing` is of.
    fn clock_mhz(&self) -> Option<f64> {
        *self.group.conditions.as_ref()?.gpu.as_ref()?.sm_clock_mhz.first()?
    }

    fn highest_mhz(&self) -> f64 {
        self.gpu.clock_khz as f64 / 1e3
    }

    /// Clocks of a multiprocessor for the scores of a warpgroup's queries and a tile of keys, and for what they weigh: as
    /// they were on average, and as many as its tensor cores need at least. None where a block does not stream all keys.
    fn tile_clocks(&self) -> Option<[f64; 2]> {
        let Config::Hopper(config) = recorded(&self.entry.implementation).ok()?.on_device()? else {
            return None;
        };
        if config.keys != Keys::Streamed || config.split_keys != SplitKeys::Off {
            return None;
        }
        let multiprocessors = self.gpu.multiprocessors as f64;
        let flop_per_clock = Peaks::of_gpu(self.gpu)?.flop_per_second / multiprocessors / (self.highest_mhz() * 1e6);
        let scores = config.tile_queries() / config.warpgroups * config.tile_keys;
        // Two products, each of which multiplies and adds.
        let flop = 4.0 * (scores * self.group.problem.head_dim) as f64;
        let tiles = self.group.problem.gflop * 1e9 / flop / multiprocessors;
        Some([self.time_us * self.clock_mhz()? / tiles, flop / flop_per_clock])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::fixed_data::{profiled, timed};

    const FAST: &str = "hopper:fast";
    const FEW_KEYS: &str = "hopper:fast,warpgroups=1,tile_keys=512,stages=1,promote=0,sums=registers,keys=at-once";

    fn cells(bench: &Record, profiles: &[Record]) -> [String; 12] {
        Account::of(bench, &bench.groups[0], profiles).unwrap().cells()
    }

    #[test]
    fn the_floor_is_held_against_the_time_and_the_rest_is_counted() {
        let shape = "4,16,4096,128";
        let variant = "hopper:fast,tile_keys=256,warpgroups=2,stages=2,sums=registers";
        let bench = timed(variant, shape, 400, 1881.0, &["software power cap"]);
        let cells = cells(&bench, &[profiled(variant, shape, 72.5)]);
        // 549.8 GFLOP by hand: 4 × 4 × 16 × 4096² × 128, at 132 × 8192 × 1.98 GHz; in 400 µs at 1881 MHz each of the 132
        // has 752 400 clocks for 65 536 / 132 tiles of 64 × 256, which are 1024 clocks each at 8192 a clock.
        let expected = [
            "4,16,4096,128",
            "400 µs",
            "257 µs (549.756 GFLOP)",
            "64.2 %",
            "1\u{202f}515 (1\u{202f}024)",
            "97.0 %",
            "72.5 %",
            "20.0 %",
            "20.0 %",
            "20.0 %",
            "gmma, 50 %",
            "tensor cores; clock at 1881 of 1980 MHz (software power cap)",
        ];
        assert_eq!(cells, expected);
    }

    #[test]
    fn only_a_profile_of_the_same_kernel_problem_and_device_counts_and_the_last_of_them() {
        let shape = "1,8,512,64";
        let bench = timed(FEW_KEYS, shape, 3, 1980.0, &[]);
        let mut elsewhere = profiled(FEW_KEYS, shape, 90.0);
        elsewhere.provenance.gpu.as_mut().unwrap().name = "NVIDIA L4".into();
        let others = [profiled(FAST, shape, 90.0), profiled(FEW_KEYS, "2,8,512,64", 90.0), elsewhere];
        let account = Account::of(&bench, &bench.groups[0], &others).unwrap();
        assert!(!account.is_profiled());
        let unknown = account.cells();
        assert_eq!(unknown[11], "not profiled");
        assert!(unknown[4..11].iter().all(|cell| cell == NONE), "{unknown:?}");
        let [old, new] = [61.0, 62.0].map(|percent| profiled(FEW_KEYS, shape, percent));
        let cells = cells(&bench, &[old, new]);
        // Where all keys come at once there are no tiles of keys.
        assert_eq!((cells[4].as_str(), cells[6].as_str(), cells[11].as_str()), (NONE, "62.0 %", "tensor cores"));
    }

    #[test]
    fn a_clock_is_worth_a_word_where_it_was_held_down() {
        let shape = "2,8,2048,64";
        let by = |mhz, reasons: &[&str]| {
            cells(&timed(FAST, shape, 20, mhz, reasons), &[profiled(FAST, shape, 10.0)])[11].clone()
        };
        let latency = "latency: warpgroup products";
        assert_eq!(by(1980.0, &["software power cap"]), latency);
        assert_eq!(by(1965.0, &[]), latency);
        assert_eq!(by(1965.0, &["a", "b"]), format!("{latency}; clock at 1965 of 1980 MHz (a, b)"));
    }

    #[test]
    fn what_was_not_timed_has_no_account() {
        let mut bench = timed(FAST, "2,8,2048,64", 20, 1980.0, &[]);
        bench.groups[0].entries[0].timing = None;
        assert_eq!(Account::of(&bench, &bench.groups[0], []), None);
    }
}
