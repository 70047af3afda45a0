//! A kernel that was timed, and the same one profiled, with numbers that can be followed by hand.

use super::{Bottleneck, Metric, Profile, Profiled, Stall};
use crate::bound::{Bound, Peaks};
use crate::measure::{Cache, Conditions, GpuConditions, Samples, Timer};
use crate::provenance::{Gpu, Provenance};
use crate::record::{Entry, Group, Kind, Record, Timing};
use eightfold::{Problem, Variant};

fn record(kind: Kind, group: Group) -> Record {
    let mut record = Record::new(kind, Provenance::capture(1));
    record.provenance.gpu = Some(Gpu {
        name: "NVIDIA H200".into(),
        arch: "sm_90".into(),
        multiprocessors: 132,
        clock_khz: 1_980_000,
        memory_clock_khz: 3_201_000,
        memory_bus_bits: 6016,
        ..Gpu::default()
    });
    record.groups.push(group);
    record
}

fn group(variant: &str, shape: &str, entry: Entry) -> Group {
    let implementation = variant.parse::<Variant>().unwrap().to_string();
    let problem = Problem::new(shape.parse().unwrap()).unwrap();
    Group { entries: vec![Entry { implementation, ..entry }], ..Group::new(shape, &problem) }
}

/// A bench in which the first contestant took so long, at this clock.
pub fn timed(variant: &str, shape: &str, us: u64, mhz: f64, held_down_by: &[&str]) -> Record {
    let timing = Timing::new(Timer::GraphReplay, Samples { ns: vec![us * 1000; 5], rounds: vec![5] });
    let group = group(variant, shape, Entry { timing, ..Entry::new("hopper fast", "") });
    let gpu = GpuConditions {
        sm_clock_mhz: vec![Some(mhz), Some(1000.0)],
        held_down_by: held_down_by.iter().map(|reason| reason.to_string()).collect(),
        ..GpuConditions::default()
    };
    let mut record = record(Kind::Bench, group);
    let peaks = Peaks::of_gpu(record.provenance.gpu.as_ref().unwrap()).unwrap();
    let group = &mut record.groups[0];
    group.bound = Bound::of(&group.problem, &peaks, Cache::Hot);
    group.conditions = Some(Conditions { gpu: Some(gpu), ..Conditions::default() });
    record
}

/// A profile in which the tensor cores were busy for so many percent.
pub fn profiled(variant: &str, shape: &str, percent: f64) -> Record {
    let stall = |reason: &str, warps| Stall { reason: reason.into(), warps };
    let value = |metric| match metric {
        Metric::TensorPipe => percent,
        Metric::Blocks | Metric::Multiprocessors => 132.0,
        Metric::AtWork | Metric::LongestAtWork => 97.0,
        _ => 20.0,
    };
    let profile = Profile {
        launch: "0".into(),
        kernel: "k".into(),
        metrics: Metric::ALL.into_iter().map(|metric| (metric, value(metric))).collect(),
        stalls: vec![stall("gmma", 1.5), stall("wait", 0.5)],
    };
    let bottleneck = Bottleneck::of(&profile, None).unwrap();
    let profile = Some(Profiled { profile, bottleneck, position: None, profiler: "ncu".into() });
    record(Kind::Profile, group(variant, shape, Entry { profile, ..Entry::new("hopper", "") }))
}
