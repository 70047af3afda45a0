//! How far what the plan picks is from the best that is near it, on a grid of problems. What is found on two thirds of the grid may
//! become a rule of the plan; the last third is kept aside, to show whether such a rule holds where nobody looked.

use crate::choice;
use crate::examine::{Candidate, Examination, Examined};
use crate::gates::{StandardCase, Thresholds, TimingPolicy, prepare_all, quantizer};
use crate::inputs::Family;
use crate::kernel::Kernel;
use crate::measure::Manner;
use crate::progress::Part;
use crate::record::Group;
use crate::shapes::NamedShape;
use crate::verdict::SpeedUp;
use eightfold::{Error, Mask, Problem, Result, Shape, Variant};

/// Heads of the grid: from a part of an H200's multiprocessors to several blocks for each.
const HEADS: [usize; 10] = [16, 24, 32, 48, 64, 96, 128, 160, 192, 256];

/// Its queries, and as many keys: where the plan was found to be weakest, and around that.
const KEYS: [usize; 6] = [128, 256, 384, 512, 1024, 2048];

const HEAD_DIMS: [usize; 2] = [64, 128];

/// A problem of the grid.
#[derive(Debug, Clone, PartialEq)]
pub struct Spot {
    /// The sizes.
    pub shape: NamedShape,
    /// The mask.
    pub mask: Mask,
    /// Whether it belongs to the third that no rule is made from.
    pub aside: bool,
}

/// The grid, in an order in which every part of it has come up early: a survey that ends early has seen a bit of all.
pub fn grid() -> Vec<Spot> {
    let mut spots = Vec::new();
    for (h, heads) in HEADS.into_iter().enumerate() {
        for (k, len) in KEYS.into_iter().enumerate() {
            for (d, head_dim) in HEAD_DIMS.into_iter().enumerate() {
                for (m, mask) in [Mask::None, Mask::Causal].into_iter().enumerate() {
                    let shape = Shape::new(1, heads, len, head_dim);
                    let shape = NamedShape { name: shape.to_string(), shape };
                    // So every number of heads, of keys and of channels and each mask is on both sides.
                    spots.push(Spot { shape, mask, aside: (h + k + d + m) % 3 == 0 });
                }
            }
        }
    }
    // A step that shares no factor with their number visits each once.
    let count = spots.len();
    (0..count).map(|index| spots[index * STEP % count].clone()).collect()
}

const STEP: usize = 101;

/// What the plan picks, and what differs from that in one knob and is as exact: the first is the plan's.
pub fn candidates(problem: &Problem) -> Result<Vec<Candidate>> {
    let plan = Candidate { name: PLAN.into(), ..Candidate::planned(problem)? };
    let kernel: Kernel = plan.variant.kernel().parse()?;
    let text = plan.variant.to_string();
    let (_, own) = text.split_once(':').unwrap_or_default();
    let mut all = vec![plan.clone()];
    for knob in kernel.family().knobs {
        for value in knob.values {
            let setting = format!("{}={value}", knob.name);
            let others = own.split(',').filter(|one| one.split('=').next() != Some(knob.name));
            let knobs: Vec<&str> = others.chain([setting.as_str()]).collect();
            let variant: Result<Variant> = format!("{kernel}:{}", knobs.join(",")).parse();
            let Ok(variant) = variant else { continue };
            let as_exact = variant.accuracy() == plan.variant.accuracy() && same_numbers(&variant, &plan.variant);
            if as_exact && choice::check(problem, &variant).is_ok() && all.iter().all(|one| one.variant != variant) {
                all.push(Candidate { name: setting, variant, ..plan.clone() });
            }
        }
    }
    Ok(all)
}

/// Whether two variants declare the same tolerance: what is less exact may well be faster.
fn same_numbers(one: &Variant, other: &Variant) -> bool {
    let thresholds = Thresholds::embedded();
    std::ptr::eq(thresholds.tolerance(one), thresholds.tolerance(other))
}

/// What a record calls the plan's pick.
pub const PLAN: &str = "plan";

/// How those near the plan's pick are raced: briefly, since the best of many is looked at again.
fn brief(policy: TimingPolicy) -> TimingPolicy {
    TimingPolicy {
        warmup_iterations: policy.warmup_iterations.min(5),
        warmup_max_seconds: policy.warmup_max_seconds.min(0.02),
        iterations: policy.iterations.min(50),
        min_iterations: policy.min_iterations.min(10),
        max_seconds_per_cell: policy.max_seconds_per_cell.min(0.05),
    }
}

/// What was found at one spot.
#[derive(Debug, Clone)]
pub struct Found {
    /// The plan's pick, alone if nothing near it was faster, and beside it the fastest, both timed once more: the best of many is
    /// partly luck.
    pub group: Group,
    /// Variants that were raced.
    pub raced: usize,
    /// Why nothing more can be done in this process.
    pub lost: Option<Error>,
}

/// Races everything near the plan's pick, and then the best of that against it.
pub fn look(spot: &Spot, problem: &Problem, thresholds: &Thresholds, part: &mut Part) -> Result<Found> {
    let candidates = candidates(problem)?;
    let case = StandardCase { problem: *problem, family: Family::Gaussian, seed: 1 };
    let cases = prepare_all(&[case], &quantizer(problem, &candidates), &thresholds.correctness.reference)?;
    let hurried = Thresholds {
        timing: brief(thresholds.timing),
        cuda_timing: brief(thresholds.cuda_timing),
        ..thresholds.clone()
    };
    let mut race = |candidates: &[Candidate], thresholds: &Thresholds, start: f64| {
        let examination = Examination {
            shape: &spot.shape.name,
            cases: &cases,
            candidates,
            thresholds,
            timed: Some(Manner::default()),
            ladder: false,
            sweep: false,
            max_gate_seconds: f64::INFINITY,
        };
        examination.run(problem, None, &mut Part { whole: &mut *part, start, share: 0.5 })
    };
    let raced = candidates.len();
    let Examined { group, lost } = race(&candidates, &hurried, 0.0);
    let timed = group.entries.iter().zip(&candidates).filter_map(|(entry, one)| Some((entry.p50_us()?, one)));
    let best = timed.min_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, one)| one.clone());
    match best.filter(|best| best.name != PLAN && lost.is_none()) {
        Some(best) => {
            let Examined { group, lost } = race(&[candidates[0].clone(), best], thresholds, 0.5);
            Ok(Found { group, raced, lost })
        }
        None => {
            let entries = group.entries.into_iter().take(1).collect();
            Ok(Found { group: Group { entries, ..group }, raced, lost })
        }
    }
}

/// The gain of the better one over the plan's pick, in the second look; none where nothing better was found.
pub fn gain(group: &Group) -> Option<SpeedUp> {
    let [plan, best] = group.entries.first_chunk()?;
    SpeedUp::between(&plan.timing.as_ref()?.samples, &best.timing.as_ref()?.samples)
}

/// Whether a group is of the third that was kept aside; none where it is not of the grid.
pub fn is_aside(group: &Group) -> Option<bool> {
    let mask = Mask::causal_if(group.problem.causal);
    grid().into_iter().find(|spot| spot.shape.name == group.shape && spot.mask == mask).map(|spot| spot.aside)
}

/// What better picks would bring over these groups: the geometric mean, where a group in which nothing surely better was found
/// counts as 1; and in how many something was.
pub fn worth<'a>(groups: impl Iterator<Item = &'a Group>) -> (f64, usize, usize) {
    let sure = |group: &Group| gain(group).filter(|gain| gain.lower > 1.0).map_or(1.0, |gain| gain.ratio);
    let gains: Vec<f64> = groups.map(sure).collect();
    let mean = gains.iter().map(|gain| gain.ln()).sum::<f64>() / gains.len().max(1) as f64;
    (mean.exp(), gains.iter().filter(|gain| **gain > 1.0).count(), gains.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::{Samples, Timer};
    use crate::record::{Entry, Timing};
    use std::collections::BTreeSet;

    #[test]
    fn a_third_of_the_grid_is_kept_aside_and_both_parts_have_everything() {
        let grid = grid();
        let names: BTreeSet<String> = grid.iter().map(|spot| format!("{} {:?}", spot.shape.name, spot.mask)).collect();
        assert_eq!((grid.len(), names.len()), (240, 240));
        let aside = grid.iter().filter(|spot| spot.aside).count();
        assert!((grid.len() * 3 / 10..=grid.len() * 2 / 5).contains(&aside), "{aside}");
        for side in [true, false] {
            // Of the first half alone, too.
            let of_side: Vec<_> = grid[..120].iter().filter(|spot| spot.aside == side).collect();
            let has = |what: &dyn Fn(&Spot) -> bool| of_side.iter().any(|spot| what(spot));
            assert!(HEADS.iter().all(|heads| has(&|spot| spot.shape.shape.query_heads == *heads)), "{side}");
            assert!(KEYS.iter().all(|len| has(&|spot| spot.shape.shape.key_len == *len)), "{side}");
            assert!(HEAD_DIMS.iter().all(|dim| has(&|spot| spot.shape.shape.head_dim == *dim)), "{side}");
            assert!([Mask::None, Mask::Causal].iter().all(|mask| has(&|spot| spot.mask == *mask)), "{side}");
        }
    }

    #[test]
    fn what_is_near_the_plan_is_as_exact_and_differs_in_one_knob() {
        let problem = Problem::new(Shape::new(1, 2, 64, 16)).unwrap();
        let candidates = candidates(&problem).unwrap();
        assert!(candidates[0].name == PLAN && candidates.len() > 3, "{} candidates", candidates.len());
        let knobs = |candidate: &Candidate| -> Vec<String> {
            let text = candidate.variant.to_string();
            text.split([':', ',']).map(String::from).collect()
        };
        let own = knobs(&candidates[0]);
        for other in &candidates[1..] {
            let differing = knobs(other).iter().filter(|knob| !own.contains(knob)).count();
            assert_eq!(differing, 1, "{}", other.variant);
            assert!(same_numbers(&other.variant, &candidates[0].variant), "{}", other.variant);
        }
    }

    fn group(shape: &str, plan: u64, best: Option<u64>) -> Group {
        let timed = |name: &str, us: u64| {
            let samples = Samples { ns: vec![us * 1000; 100], rounds: vec![10; 10] };
            Entry { timing: Timing::new(Timer::GraphReplay, samples), ..Entry::new(name, name) }
        };
        let problem = Problem::new(shape.parse().unwrap()).unwrap();
        let entries = [timed(PLAN, plan)].into_iter().chain(best.map(|us| timed("stages=2", us))).collect();
        Group { entries, ..Group::new(shape, &problem) }
    }

    #[test]
    fn only_what_is_surely_faster_counts() {
        let groups = [
            group("1,16,128,64", 100, None),
            group("1,24,128,64", 100, Some(80)),
            group("1,32,128,64", 100, Some(110)),
        ];
        let (mean, better, all) = worth(groups.iter());
        assert_eq!((better, all), (1, 3));
        assert!((mean - 1.25f64.powf(1.0 / 3.0)).abs() < 1e-9, "{mean}");
        assert_eq!(groups.each_ref().map(is_aside), [Some(true), Some(false), Some(false)]);
        assert_eq!(is_aside(&group("1,1,16,16", 1, None)), None);
    }

    #[test]
    fn a_spot_is_looked_at_on_this_machine() {
        let shape = NamedShape { name: "1,1,16,16".into(), shape: Shape::new(1, 1, 16, 16) };
        let spot = Spot { shape, mask: Mask::None, aside: false };
        let problem = Problem::new(spot.shape.shape).unwrap();
        let part = &mut Part { whole: &mut (), start: 0.0, share: 1.0 };
        let Found { group, raced, lost } = look(&spot, &problem, &Thresholds::embedded(), part).unwrap();
        assert!(lost.is_none() && raced > 3);
        assert!(group.entries[0].name == PLAN && group.entries.iter().all(|entry| entry.timing.is_some()));
        assert_eq!(gain(&group).is_some(), group.entries.len() == 2);
    }
}
