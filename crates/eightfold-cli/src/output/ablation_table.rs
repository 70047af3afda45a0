//! What each stage brings: alone, and on top of all the others.

use super::ladder_table::title;
use super::{table, text};
use eightfold::Mask;
use eightfold_lab::ablation::{self, Brought};
use eightfold_lab::kernel::Kernel;
use eightfold_lab::record::Group;
use eightfold_lab::verdict::{RESOLUTION, SpeedUp};

/// The columns.
pub const HEADER: [&str; 4] = ["stage", "changes", "only this", "all but this"];

/// The table of one shape.
pub fn render(group: &Group) -> String {
    let mut shown = table(&["stage", "only this", "all but this"], true);
    let mut rules: Vec<String> = Vec::new();
    for Brought { stage, alone, on_top, .. } in brought(group) {
        rules.extend([&alone, &on_top].into_iter().filter_map(|gain| gain.as_ref().err().cloned()));
        let cell = |gain: &Result<SpeedUp, String>| match gain {
            Ok(gain) => format!("{:.3}× {}", gain.ratio, verdict(gain)),
            Err(rule) => format!("– {}", rule.split(':').next().unwrap_or_default()),
        };
        shown.add_row([stage, cell(&alone), cell(&on_top)]);
    }
    rules.sort_unstable();
    rules.dedup();
    let rules: String = rules.iter().map(|rule| format!("  – {rule}\n")).collect();
    let below = "only this: the baseline with this change alone over the baseline; all but this: everything over everything but \
                 this change";
    format!("{}\n{}  {below}\n{rules}", title(group), text(&shown))
}

/// A row for each stage, with intervals.
pub fn rows(group: &Group) -> Vec<[String; 4]> {
    let row = |Brought { stage, change, alone, on_top }: Brought| [stage, change, cell(&alone), cell(&on_top)];
    brought(group).into_iter().map(row).collect()
}

/// What was found of each stage of the kernel that the group is of.
fn brought(group: &Group) -> Vec<Brought> {
    let Some(first) = group.entries.first() else { return Vec::new() };
    let kernel = first.implementation.split(':').next().unwrap_or_default();
    let (Ok(kernel), Ok(baseline)) = (kernel.parse::<Kernel>(), first.implementation.parse()) else {
        return Vec::new();
    };
    let mask = Mask::causal_if(group.problem.causal);
    let Ok(ablations) = ablation::of(kernel, group.problem.head_dim, mask) else { return Vec::new() };
    ablation::brought(&ablations, &baseline, group)
}

/// A speed-up with its interval and what that says, or why there is none.
fn cell(gain: &Result<SpeedUp, String>) -> String {
    match gain {
        Ok(gain) => format!("{:.3}× ({:.3} to {:.3}): {}", gain.ratio, gain.lower, gain.upper, verdict(gain)),
        Err(reason) => format!("– {}", reason.split(';').next().unwrap_or(reason)),
    }
}

/// In words, by all of the interval.
fn verdict(gain: &SpeedUp) -> &'static str {
    let SpeedUp { lower, upper, .. } = *gain;
    match () {
        () if lower > 1.0 + RESOLUTION => "gains",
        () if upper < 1.0 - RESOLUTION => "loses",
        () if lower >= 1.0 - RESOLUTION && upper <= 1.0 + RESOLUTION => "no difference",
        () => "not told",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use eightfold::{Problem, Shape, Variant};
    use eightfold_lab::measure::{Samples, Timer};
    use eightfold_lab::record::{Entry, Timing};

    #[test]
    fn every_stage_has_a_row_with_what_it_brings_or_why_that_is_not_known() {
        let problem = Problem::new(Shape::new(1, 8, 512, 64)).unwrap();
        let ablations = ablation::of(Kernel::LADDER, 64, Mask::None).unwrap();
        let candidates = ablation::candidates(Kernel::LADDER, &ablations, 64, Mask::None);
        let entry = |(index, (name, variant)): (usize, (String, Variant))| {
            let samples = Samples { ns: vec![100_000 - 1000 * index as u64; 50], rounds: vec![5; 10] };
            Entry { timing: Timing::new(Timer::GraphReplay, samples), ..Entry::new(name, variant.to_string()) }
        };
        let named = candidates.into_iter().map(|one| (one.name, one.variant));
        let entries = named.enumerate().map(entry).collect();
        insta::assert_snapshot!(render(&Group { entries, ..Group::new("mission", &problem) }));
    }
}
