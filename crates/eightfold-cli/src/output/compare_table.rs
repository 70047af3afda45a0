//! A comparison on the terminal: times, intervals, and the verdict last.

use super::ladder_table::problem_title;
use super::numbers::{NONE, ratio, time};
use super::{table, text};
use eightfold_lab::compare::Comparison;
use eightfold_lab::gates::Outcome;
use eightfold_lab::measure::{Cache, GpuConditions};
use eightfold_lab::record::Record;
use eightfold_lab::verdict::SpeedUp;

/// The tables, where more is written, and one line for each verdict.
pub fn render(record: &Record, written: &str) -> String {
    let mut shown = String::new();
    for comparison in &record.comparisons {
        shown.push_str(&one(comparison));
        shown.push('\n');
    }
    let verdicts: String = record.comparisons.iter().map(|one| format!("{}\n", verdict(one))).collect();
    format!("{shown}{written}\n\n{verdicts}")
}

fn one(comparison: &Comparison) -> String {
    let Comparison { baseline, candidate, speed_up, itself, planted, .. } = comparison;
    let mut table = table(&["contestant", "p50", "speed-up", "95 % interval", "rounds"], false);
    let mut row = |name: String, p50_us, found: &Option<SpeedUp>| {
        table.add_row([
            name,
            time(p50_us),
            ratio(found.map(|found| found.ratio)),
            found.map_or(NONE.into(), |found| interval(&found)),
            found.map_or(NONE.into(), |found| found.rounds.to_string()),
        ]);
    };
    row(baseline.name.clone(), baseline.p50_us, &None);
    row(against_itself(comparison).into(), None, itself);
    row(candidate.name.clone(), candidate.p50_us, speed_up);
    let mut shown = format!("{}\n{}", problem_title(&comparison.shape, &comparison.problem), text(&table));
    if let Some(found) = speed_up {
        shown.push_str(&format!("  {}\n", detectable(found)));
    }
    if let Some(conditions) = conditions(comparison) {
        shown.push_str(&format!("  {conditions}\n"));
    }
    if comparison.cache == Cache::Cold {
        shown.push_str("  caches were emptied before every run\n");
    }
    if let Some(planted) = planted {
        shown.push_str(&format!("  {}\n", planted_words(*planted)));
    }
    shown
}

/// What stands for the baseline against itself.
pub fn against_itself(comparison: &Comparison) -> &'static str {
    if comparison.seed.is_some() { "  against itself" } else { "  a peer in both" }
}

/// The two ends.
pub fn interval(found: &SpeedUp) -> String {
    format!("{:.3} to {:.3}", found.lower, found.upper)
}

/// What the run could have seen.
pub fn detectable(found: &SpeedUp) -> String {
    format!(
        "smallest difference that this run sees in four of five tries: {:.1} %",
        100.0 * found.smallest_detectable()
    )
}

/// Load and steal, where the system tells them.
pub fn conditions(comparison: &Comparison) -> Option<String> {
    let Some(conditions) = &comparison.conditions else {
        return comparison.seed.is_none().then(|| {
            "separate runs: whatever changed between them is in the ratio; two variants live take turns".into()
        });
    };
    let (before, after) = (conditions.load_before?, conditions.load_after?);
    let stolen = conditions.steal.iter().flatten().copied().reduce(f64::max);
    let stolen = stolen.map(|share| format!(", up to {:.1} % stolen", 100.0 * share)).unwrap_or_default();
    let gpu = conditions.gpu.as_ref().map(|gpu| format!("; {}", gpu_words(gpu))).unwrap_or_default();
    Some(format!("load {before:.1} before and {after:.1} after on {} cores{stolen}{gpu}", conditions.cores))
}

/// What the GPU said about itself.
pub fn gpu_words(gpu: &GpuConditions) -> String {
    let clocks: Vec<f64> = gpu.sm_clock_mhz.iter().flatten().copied().collect();
    let ends = clocks.iter().copied().reduce(f64::min).zip(clocks.iter().copied().reduce(f64::max));
    let Some((least, most)) = ends else { return format!("the GPU was not watched ({})", gpu.source) };
    let number = |value: Option<f64>, unit: &str| value.map_or(NONE.into(), |value| format!("{value:.0} {unit}"));
    let held = if gpu.held_down_by.is_empty() { "nothing".into() } else { gpu.held_down_by.join(", ") };
    format!(
        "GPU at {least:.0} to {most:.0} MHz, at most {} and {}, held down by {held} ({})",
        number(gpu.most_power_w, "W"),
        number(gpu.most_temperature_c, "°C"),
        gpu.source
    )
}

/// The verdict of one comparison, in one line.
pub fn verdict(comparison: &Comparison) -> String {
    let Comparison { outcome, summary, candidate, planted, .. } = comparison;
    let planted = planted.map(|_| " (the difference was PLANTED)").unwrap_or_default();
    format!("{} for {}: {summary}{planted}", outcome_word(*outcome), candidate.name)
}

/// The outcome as people say it of a run.
pub fn outcome_word(outcome: Outcome) -> String {
    if outcome == Outcome::Invalid { "INVALID RUN".into() } else { outcome.to_string() }
}

/// That the difference is not the kernels'.
pub fn planted_words(planted: f64) -> String {
    let who = if planted > 0.0 { "baseline" } else { "candidate" };
    let percent = |share: f64| (1e4 * share).round() / 1e2;
    format!("PLANTED: the {who} made {} % more runs than were counted, to test the comparison", percent(planted.abs()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::compare_data;

    #[test]
    fn layout() {
        insta::assert_snapshot!(render(&compare_data::record(), "written: runs/x/COMPARE.md"));
    }
}
