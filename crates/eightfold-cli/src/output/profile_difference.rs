//! How two profiles differ: every metric that both have, then what warps wait for.

use super::ladder_table::title;
use super::numbers::NONE;
use super::{table, text};
use eightfold_lab::numbers;
use eightfold_lab::profile::{Change, Metric, Profiled, Unit, difference};
use eightfold_lab::record::{Entry, Group};
use serde::Serialize;

/// A problem and two entries that profiled it.
type Pair<'a> = (&'a Group, &'a Entry, &'a Entry);

/// One pair for programs.
#[derive(Serialize)]
pub struct Difference<'a> {
    shape: &'a str,
    before: &'a str,
    after: &'a str,
    metrics: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    metric: Metric,
    before: f64,
    after: f64,
}

/// The differences as data.
pub fn data<'a>(pairs: &[Pair<'a>]) -> Vec<Difference<'a>> {
    let profiled = pairs.iter().filter_map(|(group, before, after)| {
        let changes = difference(&before.profile.as_ref()?.profile, &after.profile.as_ref()?.profile);
        let row = |Change { metric, before, after }| Row { metric, before, after };
        let metrics = changes.into_iter().map(row).collect();
        Some(Difference { shape: &group.shape, before: &before.name, after: &after.name, metrics })
    });
    profiled.collect()
}

/// The differences as tables.
pub fn render(pairs: &[Pair]) -> String {
    pairs.iter().map(|(group, before, after)| one(group, before, after)).collect::<Vec<_>>().join("\n")
}

fn one(group: &Group, before: &Entry, after: &Entry) -> String {
    let (Some(old), Some(new)) = (&before.profile, &after.profile) else { return String::new() };
    let mut table = table(&["counted", &before.name, &after.name, "change"], false);
    for Change { metric, before, after } in difference(&old.profile, &new.profile) {
        table.add_row([
            metric.words().to_string(),
            metric.unit().words(before),
            metric.unit().words(after),
            change(metric, before, after),
        ]);
    }
    let mut reasons: Vec<&str> =
        [old, new].iter().flat_map(|one| one.profile.top_stalls(4)).map(|stall| stall.reason.as_str()).collect();
    reasons.sort_unstable();
    reasons.dedup();
    for reason in reasons {
        let [was, is] = [old, new].map(|one| waits(one, reason));
        table.add_row([
            format!("waits: {reason}"),
            format!("{:.0} %", 100.0 * was),
            format!("{:.0} %", 100.0 * is),
            points(100.0 * (is - was)),
        ]);
    }
    let bounds = [(before, old), (after, new)]
        .map(|(entry, one)| format!("  {} is bound by {}\n", entry.name, one.bottleneck.by));
    format!("{}\n{}{}", title(group), text(&table), bounds.concat())
}

/// The share of a warp's time that it waits for this reason.
fn waits(profiled: &Profiled, reason: &str) -> f64 {
    let profile = &profiled.profile;
    profile.stalls.iter().find(|stall| stall.reason == reason).map_or(0.0, |stall| profile.share(stall))
}

/// Points for percentages, a ratio for the rest.
fn change(metric: Metric, before: f64, after: f64) -> String {
    match metric.unit() {
        Unit::Percent => points(after - before),
        _ if before == after => "=".into(),
        _ if before == 0.0 => NONE.into(),
        _ => numbers::ratio(after / before),
    }
}

fn points(points: f64) -> String {
    format!("{points:+.1}").replace('-', "−")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::fixed_data;

    #[test]
    fn layout() {
        let group = fixed_data::profiled_group();
        insta::assert_snapshot!(render(&[(&group, &group.entries[0], &group.entries[1])]));
    }
}
