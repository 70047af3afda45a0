//! Times side by side, the verdict last: how many times faster than the yardstick.

use super::compare_table::gpu_words;
use super::ladder_table::{remarks, title};
use super::numbers::{NONE, error, ratio, time};
use super::{table, text};
use eightfold_lab::bound::Bound;
use eightfold_lab::measure::Cache;
use eightfold_lab::numbers;
use eightfold_lab::peers::Backend;
use eightfold_lab::record::{Entry, Group};

/// The table of one shape, with what needs more words below it. The yardstick is the peer, or else the first variant;
/// of several peers, the one that people would use.
pub fn render(group: &Group) -> String {
    let yardstick = yardstick(group);
    let last = format!("× {}", yardstick.map_or("", |entry| &entry.name));
    let launched = group.entries.iter().any(|entry| entry.launch_timing.is_some());
    let mut header = vec!["contestant", "runs", "p50", "±", "p90", "p99"];
    header.extend(launched.then_some("event p50"));
    header.push("rate");
    header.extend(group.bound.is_some().then_some("of bound"));
    header.extend(["rel. L2", &last]);
    let mut table = table(&header, false);
    let yardstick = yardstick.and_then(Entry::p50_us);
    for entry in &group.entries {
        let summary = entry.timing.as_ref().map(|timing| timing.summary);
        let mut row = vec![
            entry.name.clone(),
            summary.map_or(NONE.into(), |summary| summary.iterations.to_string()),
            time(summary.map(|summary| summary.p50_us)),
            time(summary.map(|summary| summary.std_us)),
            time(summary.map(|summary| summary.p90_us)),
            time(summary.map(|summary| summary.p99_us)),
        ];
        row.extend(launched.then(|| time(entry.launch_timing.as_ref().map(|timing| timing.summary.p50_us))));
        let gflop_per_second = entry.p50_us().map(|p50_us| group.problem.gflop / (p50_us * 1e-6));
        row.push(gflop_per_second.map_or(NONE.into(), numbers::rate));
        row.extend(
            group.bound.as_ref().map(|bound| {
                entry.p50_us().map_or(NONE.into(), |p50_us| format!("{:.1} %", 100.0 * bound.share(p50_us)))
            }),
        );
        row.extend([
            error(entry.worst_relative_l2()),
            ratio(yardstick.zip(entry.p50_us()).map(|(yardstick, p50)| yardstick / p50)),
        ]);
        table.add_row(row);
    }
    format!("{}\n{}{}{}", title(group), text(&table), circumstances(group), remarks(group))
}

/// What the bound is, the state of the caches, and what the GPU's clocks did, where they are known.
fn circumstances(group: &Group) -> String {
    let mut lines = String::new();
    if let Some(Bound { floor_us, by }) = &group.bound {
        lines.push_str(&format!("  bound: {}, {by}\n", time(Some(*floor_us))));
    }
    if group.entries.iter().filter_map(|entry| entry.timing.as_ref()).any(|timing| timing.cache == Cache::Cold) {
        lines.push_str("  caches were emptied before every run\n");
    }
    if let Some(gpu) = group.conditions.as_ref().and_then(|conditions| conditions.gpu.as_ref()) {
        lines.push_str(&format!("  {}\n", gpu_words(gpu)));
    }
    lines
}

fn yardstick(group: &Group) -> Option<&Entry> {
    let flash = Backend::Flash.name();
    let entries = &group.entries;
    let usual = entries.iter().find(|entry| entry.peer && entry.name == flash && entry.timing.is_some());
    usual.or(entries.iter().find(|entry| entry.peer)).or(entries.first())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::fixed_data;
    use eightfold_lab::measure::{Conditions, GpuConditions};

    #[test]
    fn layout() {
        insta::assert_snapshot!(render(&fixed_data::group(true)));
    }

    #[test]
    fn on_a_gpu_single_launches_are_shown_and_flash_is_the_yardstick() {
        let bound = Some(Bound { floor_us: 8.0, by: "so much work at such a rate".into() });
        let gpu = GpuConditions {
            source: "NVML".into(),
            sm_clock_mhz: vec![Some(1980.0), Some(1965.0)],
            most_power_w: Some(412.3),
            most_temperature_c: Some(47.0),
            held_down_by: vec!["software power cap".into()],
            ..GpuConditions::default()
        };
        let conditions = Some(Conditions { gpu: Some(gpu), ..Conditions::default() });
        insta::assert_snapshot!(render(&Group { bound, conditions, ..fixed_data::gpu_group(true) }));
    }

    #[test]
    fn without_a_peer_the_first_variant_is_the_yardstick() {
        insta::assert_snapshot!(render(&fixed_data::group(false)));
    }
}
