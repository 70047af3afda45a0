//! Times side by side, the verdict last: how many times faster than the yardstick.

use super::ladder_table::{remarks, title};
use super::numbers::{NONE, error, ratio, time};
use super::{table, text};
use eightfold_lab::record::{Entry, Group};

/// The table of one shape, with what needs more words below it. The yardstick is the peer, or else the first variant.
pub fn render(group: &Group) -> String {
    let yardstick = group.entries.iter().find(|entry| entry.peer).or(group.entries.first());
    let last = format!("× {}", yardstick.map_or("", |entry| &entry.name));
    let header = ["contestant", "runs", "p50", "p90", "p99", "mean", "std", "min", "rel. L2", &last];
    let mut table = table(&header, false);
    let yardstick = yardstick.and_then(Entry::p50_us);
    for entry in &group.entries {
        let summary = entry.timing.as_ref().map(|timing| timing.summary);
        table.add_row([
            entry.name.clone(),
            summary.map_or(NONE.into(), |summary| summary.iterations.to_string()),
            time(summary.map(|summary| summary.p50_us)),
            time(summary.map(|summary| summary.p90_us)),
            time(summary.map(|summary| summary.p99_us)),
            time(summary.map(|summary| summary.mean_us)),
            time(summary.map(|summary| summary.std_us)),
            time(summary.map(|summary| summary.min_us)),
            error(entry.worst_relative_l2()),
            ratio(yardstick.zip(entry.p50_us()).map(|(yardstick, p50)| yardstick / p50)),
        ]);
    }
    format!("{}\n{}{}", title(group), text(&table), remarks(group))
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
    fn without_a_peer_the_first_variant_is_the_yardstick() {
        insta::assert_snapshot!(render(&fixed_data::group(false)));
    }
}
