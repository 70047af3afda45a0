//! Times side by side, the verdict last: how many times faster than the yardstick.

use super::ladder_table::{remarks, title};
use super::numbers::{NONE, error, ratio, time};
use super::{table, text};
use eightfold_lab::peers::Backend;
use eightfold_lab::record::{Entry, Group};

/// The table of one shape, with what needs more words below it. The yardstick is the peer, or else the first variant;
/// of several peers, the one that people would use.
pub fn render(group: &Group) -> String {
    let yardstick = yardstick(group);
    let last = format!("× {}", yardstick.map_or("", |entry| &entry.name));
    let launched = group.entries.iter().any(|entry| entry.launch_timing.is_some());
    let mut header = vec!["contestant", "runs", "p50", "p90", "p99", "mean", "std", "min"];
    header.extend(launched.then_some("event p50"));
    header.extend(["rel. L2", &last]);
    let mut table = table(&header, false);
    let yardstick = yardstick.and_then(Entry::p50_us);
    for entry in &group.entries {
        let summary = entry.timing.as_ref().map(|timing| timing.summary);
        let mut row = vec![
            entry.name.clone(),
            summary.map_or(NONE.into(), |summary| summary.iterations.to_string()),
            time(summary.map(|summary| summary.p50_us)),
            time(summary.map(|summary| summary.p90_us)),
            time(summary.map(|summary| summary.p99_us)),
            time(summary.map(|summary| summary.mean_us)),
            time(summary.map(|summary| summary.std_us)),
            time(summary.map(|summary| summary.min_us)),
        ];
        row.extend(launched.then(|| time(entry.launch_timing.as_ref().map(|timing| timing.summary.p50_us))));
        row.extend([
            error(entry.worst_relative_l2()),
            ratio(yardstick.zip(entry.p50_us()).map(|(yardstick, p50)| yardstick / p50)),
        ]);
        table.add_row(row);
    }
    format!("{}\n{}{}", title(group), text(&table), remarks(group))
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

    #[test]
    fn layout() {
        insta::assert_snapshot!(render(&fixed_data::group(true)));
    }

    #[test]
    fn on_a_gpu_single_launches_are_shown_and_flash_is_the_yardstick() {
        insta::assert_snapshot!(render(&fixed_data::gpu_group(true)));
    }

    #[test]
    fn without_a_peer_the_first_variant_is_the_yardstick() {
        insta::assert_snapshot!(render(&fixed_data::group(false)));
    }
}
