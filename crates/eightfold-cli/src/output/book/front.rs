//! The README with its generated parts.

use super::hopper::{ACCURACIES, modes};
use super::{
    NONE, best_peer, chart, error, of, older_with_more_peers, peer_title, ratio, separate_us, shape, source, staleness,
    table,
};
use crate::output::ladder_table;
use eightfold_lab::archive::Filed;
use eightfold_lab::gates::Thresholds;
use eightfold_lab::record::{Entry, Group, Kind};
use std::collections::BTreeSet;

/// How many peers ran, and which of those that were asked for did not.
fn peers(groups: &[&Group]) -> String {
    let entries = || groups.iter().flat_map(|group| &group.entries).filter(|entry| entry.peer);
    let ran = |name: &str| entries().any(|entry| entry.name == name && entry.p50_us().is_some());
    let names: BTreeSet<&str> = entries().map(|entry| &*entry.name).collect();
    let (timed, missing): (Vec<&str>, Vec<&str>) = names.into_iter().partition(|name| ran(name));
    let count = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight"]
        .get(timed.len())
        .copied()
        .unwrap_or("many");
    let missing: Vec<&str> = missing.into_iter().map(peer_title).collect();
    match missing.as_slice() {
        [] => format!("{count} peer kernels"),
        missing => format!("{count} peer kernels ({} was not installed)", missing.join(", ")),
    }
}

/// What an older run says that had peers which this one could not measure, on the shapes of the chart.
fn older(filed: &[Filed], newest: &Filed) -> String {
    let Some((old, more)) = older_with_more_peers(filed, newest) else { return String::new() };
    let charted: Vec<&Group> =
        old.record.groups.iter().filter(|group| chart::CHARTED.contains(&&*group.shape)).collect();
    let Some([least, most]) = gains(&charted, |ours| ours.p50_us()) else { return String::new() };
    let titles: Vec<&str> = more.iter().map(|(_, title)| *title).collect();
    format!(
        "\nIn an older run with {} (commit {}, {}) it was {least} to {most} as fast as the fastest of {}.",
        titles.join(", "),
        old.short_commit(),
        old.date(),
        peers(&charted)
    )
}

/// The least and the largest gain over the fastest peer; none where something was not timed.
fn gains(groups: &[&Group], us: fn(&Entry) -> Option<f64>) -> Option<[String; 2]> {
    let gain = |group: &&Group| Some(best_peer(group)?.1 / us(&group.entries[0])?);
    let gains: Vec<f64> = groups.iter().map(gain).collect::<Option<_>>()?;
    let ends = [gains.iter().copied().reduce(f64::min)?, gains.iter().copied().reduce(f64::max)?];
    Some(ends.map(|gain| ratio(Some(gain))))
}

/// The kinds of inputs on which a mode's figure, that of Gaussian inputs, is exceeded.
fn beyond(mode: &str) -> String {
    let Ok(accuracy) = mode.trim_matches('`').parse() else { return NONE.into() };
    let families = Thresholds::embedded().beyond(accuracy);
    let named: Vec<String> =
        families.iter().map(|(family, measured)| format!("{family} {}", error(Some(*measured)))).collect();
    if named.is_empty() { NONE.into() } else { named.join(", ") }
}

/// The README with its generated parts, which stand between two comments, written anew.
pub(super) fn fill(readme: &str, filed: &[Filed]) -> String {
    let mut text = readme.to_string();
    let mut put = |name: &str, new: String| {
        let (start, end) = (format!("<!-- generated: {name} -->\n"), "<!-- end -->");
        let Some(from) = text.find(&start).map(|at| at + start.len()) else { return };
        let Some(length) = text[from..].find(end) else { return };
        text.replace_range(from..from + length, &new);
    };
    if let Some((from, groups)) = chart::flagship(filed) {
        let [least, most] = gains(&groups, |ours| ours.p50_us()).unwrap_or_default();
        let separate = match gains(&groups, separate_us) {
            Some([least, most]) => format!("Without overlap of launches it is {least} to {most}."),
            None => "Small launches of ours overlap in this measurement; those of the peers do not.".into(),
        };
        let (device, commit, date) = (from.device(), from.short_commit(), from.date());
        put(
            "headline",
            format!(
                "On an {device} the default mode is {least} to {most} as fast as the fastest of {}\n\
                 on these shapes (commit {commit}, {date}).{} {separate}{}\n",
                peers(&groups),
                staleness(from),
                older(filed, from)
            ),
        );
    }
    if let Some(one) = of(filed, "cpu", Kind::Ladder).last()
        && let Some(group) = one.record.groups.iter().find(|group| group.shape == "mission")
    {
        put("ladder", format!("{}```text\n{}```\n", source(one), ladder_table::render(group)));
    }
    let found = of(filed, "hopper", Kind::Bench).filter_map(|one| {
        let group = one.record.groups.iter().find(|group| modes(group).len() == 4)?;
        Some((one, group))
    });
    if let Some((one, group)) = found.last() {
        let entries = modes(group);
        let first = entries[0].p50_us();
        let how = [
            "exponentials linear between powers of two",
            "five of eight exponentials exact",
            "all exponentials exact, weights in FP8",
            "each weight the sum of two FP8 numbers",
        ];
        let rows = entries.iter().zip(how).zip(&ACCURACIES[1..]).map(|((entry, how), mode)| {
            let times = ratio(entry.p50_us().zip(first).map(|(own, first)| own / first));
            format!("| {mode} | {how} | {} | {} | {times} |", error(entry.worst_relative_l2()), beyond(mode))
        });
        put(
            "accuracy",
            format!(
                "{}{}",
                table(&["mode", "how", "relative L2 error", "a larger one was measured on", "time"], rows),
                source(one).replace("Record", &format!("At {}: record", shape(group)))
            ),
        );
    }
    text
}
