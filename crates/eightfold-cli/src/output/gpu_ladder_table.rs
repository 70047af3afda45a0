//! The ladder on a GPU: each stage by both timers, its gains, what it takes, its error, its gates.

use super::ladder_table::{gates, is_step, remarks, title};
use super::numbers::{NONE, error, ratio, time};
use super::{table, text};
use eightfold_lab::peers::Backend;
use eightfold_lab::record::{Entry, Group};

/// The table of one shape, with what needs more words below it. Times are by graph replay, but for the event's.
pub fn render(group: &Group) -> String {
    let peer = group.entries.iter().find(|entry| entry.peer && entry.name == Backend::Flash.name());
    let over_peer = format!("× {}", Backend::Flash.name());
    let mut header = vec!["stage", "p50", "p90", "p99", "event p50", "× before", "× baseline"];
    header.extend(peer.map(|_| over_peer.as_str()));
    header.extend(["registers", "shared bytes", "worst L2", "gates"]);
    let mut table =
        table(&header, true).with_extras(&["worst L2", "event p50", "registers", "shared bytes", "p90", "p99"]);
    let baseline = group.entries.first().and_then(Entry::p50_us);
    let mut before = None;
    for entry in &group.entries {
        let summary = entry.timing.as_ref().map(|timing| timing.summary);
        let p50 = entry.p50_us();
        let over = |other: Option<f64>| ratio(other.zip(p50).map(|(other, p50)| other / p50));
        let number = |value: Option<usize>| value.map_or(NONE.into(), |value| value.to_string());
        let mut row = vec![
            entry.name.clone(),
            time(p50),
            time(summary.map(|summary| summary.p90_us)),
            time(summary.map(|summary| summary.p99_us)),
            time(entry.launch_timing.as_ref().map(|timing| timing.summary.p50_us)),
            if is_step(group, entry) { over(before) } else { NONE.into() },
            over(baseline),
        ];
        row.extend(peer.map(|peer| over(peer.p50_us())));
        row.extend([
            number(entry.build.as_ref().map(|build| build.registers as usize)),
            number(entry.build.as_ref().map(|build| build.shared_bytes())),
            error(entry.worst_relative_l2()),
            gates(entry),
        ]);
        table.add_row(row);
        if is_step(group, entry) {
            before = p50.or(before);
        }
    }
    format!("{}\n{}{}", title(group), text(&table), remarks(group))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::fixed_data;

    #[test]
    fn layout() {
        insta::assert_snapshot!(render(&fixed_data::gpu_group(true)));
    }

    #[test]
    fn without_a_peer_there_is_no_column_for_it() {
        insta::assert_snapshot!(render(&fixed_data::gpu_group(false)));
    }
}
