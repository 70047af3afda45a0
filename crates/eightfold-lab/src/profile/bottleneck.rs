//! What bounds a kernel, named from what was counted, with the numbers that say so.

use super::gate::stage_of;
use super::{Metric, Profile, Stall};
use crate::ledger::Ledger;
use crate::numbers;
use crate::provenance::Provenance;
use eightfold::{Result, Variant};
use serde::{Deserialize, Serialize};

/// What bounds a kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bottleneck {
    /// A part of the machine, the launch itself, too few blocks, uneven work, or what warps wait for.
    pub by: String,
    /// The numbers that say so.
    pub evidence: String,
}

/// A part that is busy for this share of the time, in percent, is what the kernel waits for: Nsight Compute's own rule
/// draws the line between latency and throughput there.
const BUSY_PERCENT: f64 = 60.0;

/// A launch during most of which not even the multiprocessor that is longest at work has a warp is start and end.
const LAUNCH_SHARE: f64 = 0.5;

/// Multiprocessors that have nothing to do for this share of the time that the longest is at work cost more than most of
/// what can be tuned within a block.
const IDLE_SHARE: f64 = 0.25;

/// The parts of the machine that can be full.
const PARTS: [Metric; 9] = [
    Metric::TensorPipe,
    Metric::XuPipe,
    Metric::FmaPipe,
    Metric::AluPipe,
    Metric::LsuPipe,
    Metric::SharedMemory,
    Metric::IssueSlots,
    Metric::L2,
    Metric::Dram,
];

impl Bottleneck {
    /// Names what bounds the kernel: a part of the machine that is full; else starting and ending the launch; else too few
    /// blocks for the multiprocessors, or work that is not even among them; else the latency that warps wait for most.
    /// `floor` is what its arithmetic needs at least.
    pub fn of(profile: &Profile, floor: Option<&str>) -> Result<Bottleneck> {
        let mut parts = Vec::new();
        for part in PARTS {
            parts.push((part, profile.get(part)?));
        }
        parts.sort_by(|a, b| b.1.total_cmp(&a.1));
        let busy: Vec<String> =
            parts[..3].iter().map(|(part, percent)| format!("{} {percent:.0} %", part.words())).collect();
        let (fullest, percent) = parts[0];
        let stalls: Vec<String> = profile.top_stalls(3).iter().map(|stall| in_words(profile, stall)).collect();
        let resident = profile.get(Metric::WarpsActive)?;
        let (blocks, multiprocessors) = (profile.get(Metric::Blocks)?, profile.get(Metric::Multiprocessors)?);
        let (at_work, longest) = (profile.get(Metric::AtWork)?, profile.get(Metric::LongestAtWork)?);
        let launch = 1.0 - longest / 100.0;
        let idle = 1.0 - at_work / longest;
        // Blocks that come back for more are as many as there is room for, so that fewer are all the work there is.
        let single_wave = blocks < multiprocessors;
        let too_few = 1.0 - blocks / multiprocessors >= IDLE_SHARE;
        let by = if percent >= BUSY_PERCENT {
            fullest.words().to_string()
        } else if launch >= LAUNCH_SHARE {
            format!("starting and ending: no multiprocessor is at work for {:.0} % of the launch", 100.0 * launch)
        } else if idle >= IDLE_SHARE && too_few {
            format!("too few blocks: {blocks:.0} for {multiprocessors:.0} multiprocessors")
        } else if idle >= IDLE_SHARE {
            format!("uneven work: a multiprocessor has none for {:.0} % of the longest's time", 100.0 * idle)
        } else {
            let latency = if single_wave { "latency of a single wave" } else { "latency" };
            let first = profile.top_stalls(1).first();
            format!("{latency}: {}", first.map_or("nothing was counted", |stall| stall_words(&stall.reason)))
        };
        let floor = floor.map(|floor| format!("; {floor}")).unwrap_or_default();
        let evidence = format!(
            "busiest: {}; {resident:.0} % of the warps resident; multiprocessors are at work for {at_work:.0} % of the \
             launch, the longest for {longest:.0} %; of its time a warp waits {}{floor}",
            busy.join(", "),
            stalls.join(", ")
        );
        Ok(Bottleneck { by, evidence })
    }
}

fn in_words(profile: &Profile, stall: &Stall) -> String {
    format!("{:.0} % for {} ({})", 100.0 * profile.share(stall), stall_words(&stall.reason), stall.reason)
}

/// What a stall reason means.
pub fn stall_words(reason: &str) -> &str {
    match reason {
        "long_scoreboard" => "loads from device memory or its caches",
        "short_scoreboard" => "shared memory or special functions",
        "wait" => "the fixed latency of its own last instruction",
        "math_pipe_throttle" => "a busy arithmetic unit",
        "mio_throttle" => "the queue to shared memory and special functions",
        "lg_throttle" => "the queue to global memory",
        "tex_throttle" => "the queue to the texture units",
        "barrier" => "the block's other warps at a barrier",
        "not_selected" => "other warps that issue",
        "no_instruction" => "instructions to be fetched",
        "branch_resolving" => "a branch to be resolved",
        "dispatch_stall" => "the dispatcher",
        "imc_miss" => "constants to be fetched",
        "drain" => "its stores to drain",
        "membar" => "a memory fence",
        "sleeping" => "a sleep to end",
        "gmma" => "warpgroup products",
        "misc" => "other things",
        reason => reason,
    }
}

/// What the ledger's arithmetic needs at least of a launch that took this long; none of another machine, problem or
/// variant than the ledger counts.
pub(crate) fn floor_words(
    variant: &Variant,
    shape: &str,
    head_dim: usize,
    time_us: f64,
    provenance: &Provenance,
) -> Option<String> {
    let stage = stage_of(variant, head_dim)?;
    let kernel = variant.kernel().parse().ok()?;
    let ledger = Ledger::of(kernel);
    if stage.floor_shape.as_deref() != Some(shape) || !ledger.applies_to(kernel, provenance) {
        return None;
    }
    let terms = ledger.floor_terms(&stage);
    let longest: Vec<String> =
        terms.iter().take(2).map(|term| format!("{} {}", term.uses, numbers::time(term.time_us))).collect();
    Some(format!("its arithmetic needs {} of {}", longest.join(" and "), numbers::time(time_us)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parts in percent, in their order; then blocks, and for how much of the launch multiprocessors are at work, on
    /// average and at most.
    fn profile(parts: [f64; 9], blocks: f64, [at_work, longest]: [f64; 2]) -> Profile {
        let stall = |reason: &str, warps| Stall { reason: reason.into(), warps };
        let rest = [
            (Metric::WarpsActive, 12.0),
            (Metric::Blocks, blocks),
            (Metric::Multiprocessors, 132.0),
            (Metric::AtWork, at_work),
            (Metric::LongestAtWork, longest),
        ];
        Profile {
            launch: "0".into(),
            kernel: "k".into(),
            metrics: PARTS.into_iter().zip(parts).chain(rest).collect(),
            stalls: vec![stall("wait", 1.5), stall("math_pipe_throttle", 0.5)],
        }
    }

    fn by(parts: [f64; 9], blocks: f64, at_work: [f64; 2]) -> String {
        Bottleneck::of(&profile(parts, blocks, at_work), None).unwrap().by
    }

    #[test]
    fn a_full_part_goes_first_then_the_launch_then_idle_multiprocessors_then_latency() {
        let full = [10.0, 75.0, 3.0, 4.0, 5.0, 6.0, 61.0, 1.0, 1.0];
        assert_eq!(by(full, 64.0, [15.0, 30.0]), "special-function units");
        let launch = "starting and ending: no multiprocessor is at work for 70 % of the launch";
        assert_eq!(by([10.0; 9], 64.0, [15.0, 30.0]), launch);
        assert_eq!(by([10.0; 9], 64.0, [45.0, 90.0]), "too few blocks: 64 for 132 multiprocessors");
        let uneven = "uneven work: a multiprocessor has none for 50 % of the longest's time";
        assert_eq!(by([10.0; 9], 132.0, [45.0, 90.0]), uneven);
        // Nearly every multiprocessor had a block, and one of them more to do than the others.
        assert_eq!(by([10.0; 9], 128.0, [45.0, 90.0]), uneven);
        let wait = "the fixed latency of its own last instruction";
        assert_eq!(by([10.0; 9], 256.0, [88.0, 90.0]), format!("latency: {wait}"));
        // Nearly every multiprocessor has its block: more of them would be a second wave.
        assert_eq!(by([10.0; 9], 128.0, [87.0, 90.0]), format!("latency of a single wave: {wait}"));
    }

    #[test]
    fn the_limits_themselves_count() {
        assert_eq!(by([60.0; 9], 132.0, [90.0, 90.0]), "tensor cores");
        assert!(by([10.0; 9], 132.0, [50.0, 50.0]).starts_with("starting and ending"));
        assert!(by([10.0; 9], 132.0, [60.0, 80.0]).starts_with("uneven work"));
        assert!(by([59.9; 9], 132.0, [60.1, 80.0]).starts_with("latency: "));
    }

    #[test]
    fn the_evidence_is_in_numbers() {
        let parts = [45.0, 30.0, 3.0, 40.0, 5.0, 6.0, 20.0, 1.0, 1.0];
        let found =
            Bottleneck::of(&profile(parts, 256.0, [88.0, 90.0]), Some("its arithmetic needs 16.0 µs of 62.0 µs"))
                .unwrap();
        let expected = "busiest: tensor cores 45 %, integer and logic units 40 %, special-function units 30 %; 12 % of \
                        the warps resident; multiprocessors are at work for 88 % of the launch, the longest for 90 %; \
                        of its time a warp waits 50 % for the fixed latency of its own last instruction (wait), 17 % \
                        for a busy arithmetic unit (math_pipe_throttle); its arithmetic needs 16.0 µs of 62.0 µs";
        assert_eq!(found.evidence, expected);
    }

    #[test]
    fn what_was_not_counted_names_nothing() {
        for metric in [Metric::XuPipe, Metric::AtWork] {
            let mut profile = profile([1.0; 9], 1.0, [80.0, 90.0]);
            profile.metrics.remove(&metric);
            assert!(Bottleneck::of(&profile, None).is_err());
        }
    }

    #[test]
    fn the_ledger_is_held_against_its_own_machine_and_shape_alone() {
        let variant = crate::kernel::Kernel::LADDER.stages(64, eightfold::Mask::None).pop().unwrap().variant;
        let words = |shape, gpu: &str| {
            let mut provenance = Provenance::capture(1);
            provenance.gpu = Some(crate::provenance::Gpu { name: gpu.into(), ..Default::default() });
            floor_words(&variant, shape, 64, 62.0, &provenance)
        };
        let long = words("long", "NVIDIA H200").unwrap();
        assert!(long.starts_with("its arithmetic needs ") && long.ends_with(" of 62.0 µs"), "{long}");
        assert_eq!((words("mission", "NVIDIA H200"), words("long", "NVIDIA L4")), (None, None));
    }
}
