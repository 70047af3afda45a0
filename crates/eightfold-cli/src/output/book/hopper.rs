//! The page of the hopper kernel: times by replay, without overlap and singly, errors, and what bounds each row.

use super::{
    NONE, best_peer, described, error, of, older_with_more_peers, over, p50, peer_title, peers_missing, peers_of,
    peers_that_ran, ratio, separate_us, shape, source, table, time,
};
use eightfold_lab::archive::Filed;
use eightfold_lab::profile::Account;
use eightfold_lab::record::{Entry, Group, Kind, Record};
use std::fmt::Write;

pub(super) fn page(filed_all: &[Filed]) -> String {
    let mut text = String::from(
        "# Hopper\n\nAll contestants of a table took turns in one run. Inputs were prepared before the clock started: FP8 for the \
         kernels named FP8 and for ours, bf16 for the others. A dash is a kernel that cannot compute the problem, takes more \
         than 15 ms, or failed the correctness gate.\n\nThree times are shown:\n\n\
         - *Graph replay*: a graph of 20 launches, divided by 20. Small launches of ours overlap there (programmatic dependent \
         launch): the next one starts while the last one ends. No peer's launches overlap.\n\
         - *Without overlap*: the same graph and kernel, but each launch begins when the last one is done.\n\
         - *Single launch*: one launch on an idle device, between two events. Peers are launched through PyTorch.\n\n",
    );
    for filed in of(filed_all, "hopper", Kind::Bench).filter(|bench| !is_outdone(filed_all, bench)) {
        let record = &filed.record;
        let flagship: Vec<&Group> = record.groups.iter().filter(|group| peers_of(group)).collect();
        if let Some(first) = flagship.first() {
            let mask = if first.problem.causal { ", causal" } else { "" };
            let peers = peers_that_ran(&flagship);
            let titles = peers.iter().map(|(_, title)| *title);
            let columns: Vec<&str> = ["shape", "Eightfold `fast`"].into_iter().chain(titles).collect();
            let mut section = |from: &Filed, title: &str, about: &str, table: &str| {
                let _ = write!(text, "## {title}{mask}\n\n{}{about}\n\n{table}", source(from));
            };
            let about = format!(
                "Formats: {}. Errors are the largest relative L2 errors against float64 attention on the same inputs.{}",
                first.outputs(),
                peers_missing(&flagship)
            );
            section(
                filed,
                "Against the fastest peer",
                &about,
                &table(&GLANCE, flagship.iter().map(|group| glance_row(group))),
            );
            let about = "In brackets: how many times faster than the fastest peer.";
            section(
                filed,
                "Graph replay",
                about,
                &table(&columns, flagship.iter().map(|group| flagship_row(group, &peers))),
            );
            let single = |entry: &Entry| time(entry.launch_p50_us());
            let rows = flagship.iter().map(|group| across(group, &peers, single));
            section(filed, "Single launch", "Nothing overlaps.", &table(&columns, rows));
            let rows = flagship.iter().map(|group| across(group, &peers, |entry| error(entry.worst_relative_l2())));
            section(filed, "Error", "Largest relative L2 error.", &table(&columns, rows));
            if let Some((old, more)) = older_with_more_peers(filed_all, filed) {
                let titles: Vec<&str> = more.iter().map(|(_, title)| *title).collect();
                let title = format!("An older run with {}", titles.join(", "));
                let about = "Times without overlap were not measured then where launches overlap.";
                section(old, &title, about, &table(&GLANCE, old.record.groups.iter().map(glance_row)));
            }
            let profiles = of(filed_all, "hopper", Kind::Profile);
            let profiles: Vec<&Filed> = profiles.filter(|profile| has_mask_of(first, &profile.record)).collect();
            if let Some((about, table)) = bounds(record, &flagship, &profiles) {
                section(filed, "What bounds each row", &about, &table);
            }
        }
        let modes: Vec<&Group> = record.groups.iter().filter(|group| modes(group).len() == 4).collect();
        if let Some(first) = modes.first() {
            let mask = if first.problem.causal { ", causal" } else { "" };
            let _ = write!(text, "## Accuracy modes{mask}\n\n{}", source(filed));
            text.push_str("Time by graph replay, how many times that of `fast`, and the largest relative L2 error. ");
            let _ = write!(text, "Formats: {}.\n\n", first.outputs());
            text.push_str(&table(&ACCURACIES, modes.into_iter().map(accuracy_row)));
        }
    }
    text
}

const GLANCE: [&str; 10] = [
    "shape",
    "Eightfold `fast`",
    "fastest peer",
    "times faster",
    "without overlap",
    "times faster",
    "single launch",
    "its single launch",
    "error",
    "its error",
];

/// Ours beside the fastest peer: every kind of time, and the errors.
fn glance_row(group: &Group) -> String {
    let ours = &group.entries[0];
    let peer = best_peer(group);
    let faster = |us: Option<f64>| ratio(peer.zip(us).map(|((_, peer_us), us)| peer_us / us));
    let cells = [
        shape(group),
        format!("**{}**", time(ours.p50_us())),
        peer.map_or(NONE.into(), |(peer, us)| format!("{}, {}", peer_title(&peer.name), time(Some(us)))),
        faster(ours.p50_us()),
        time(separate_us(ours)),
        faster(separate_us(ours)),
        time(ours.launch_p50_us()),
        time(peer.and_then(|(peer, _)| peer.launch_p50_us())),
        error(ours.worst_relative_l2()),
        error(peer.and_then(|(peer, _)| peer.worst_relative_l2())),
    ];
    format!("| {} |", cells.join(" | "))
}

/// The entries of ours for each accuracy mode, in order.
pub(super) fn modes(group: &Group) -> Vec<&Entry> {
    let named = |mode: &str| group.entries.iter().find(|entry| !entry.peer && entry.name == format!("hopper {mode}"));
    ["fast", "balanced", "exact-exp", "precise"].into_iter().filter_map(named).collect()
}

pub(super) const ACCURACIES: [&str; 5] = ["shape", "`fast`", "`balanced`", "`exact-exp`", "`precise`"];

/// A row with one cell for ours and one for each peer.
fn across(group: &Group, peers: &[(&str, &str)], cell: impl Fn(&Entry) -> String) -> String {
    let named = |name: &str| group.entries.iter().find(|entry| entry.name == name).map_or(NONE.into(), &cell);
    let others: Vec<String> = peers.iter().map(|(name, _)| named(name)).collect();
    format!("| {} | {} | {} |", shape(group), cell(&group.entries[0]), others.join(" | "))
}

/// A row of the table of FP8 kernels: ours, how many times faster it is than the fastest other one, and the others.
fn flagship_row(group: &Group, peers: &[(&str, &str)]) -> String {
    let name = &group.entries[0].name;
    let gain = best_peer(group).map_or(NONE.into(), |(other, _)| over(group, name, &other.name));
    let others: Vec<String> = peers.iter().map(|(name, _)| time(p50(group, name))).collect();
    format!("| {} | **{}** ({gain}) | {} |", shape(group), time(p50(group, name)), others.join(" | "))
}

/// Whether a newer record shows the same problems beside peers.
fn is_outdone(filed: &[Filed], bench: &Filed) -> bool {
    let has_peers = |record: &Record| record.groups.iter().any(peers_of);
    let newer = of(filed, "hopper", Kind::Bench).filter(|new| new.name > bench.name && has_peers(&new.record));
    let first = bench.record.groups.first().filter(|_| has_peers(&bench.record));
    first.is_some_and(|first| newer.into_iter().any(|new| has_mask_of(first, &new.record)))
}

/// Whether a record's problems have the same mask as this group's.
fn has_mask_of(group: &Group, record: &Record) -> bool {
    record.groups.iter().all(|other| other.problem.causal == group.problem.causal)
}

/// What bounds FP8 kernels: the rate that floors are computed with and where counters come from, and the table: for each
/// group the time of ours, its floor, and what a profile of the same kernel says; without counters where none was profiled.
fn bounds(record: &Record, groups: &[&Group], profiles: &[&Filed]) -> Option<(String, String)> {
    let accounts: Vec<Account> = groups
        .iter()
        .filter_map(|group| Account::of(record, group, profiles.iter().map(|filed| &filed.record)))
        .collect();
    let rate = groups.iter().find_map(|group| Some(group.bound.as_ref()?.by.split_once(" GFLOP at ")?.1))?;
    let mut about = format!("The floor is the arithmetic at {rate}.");
    let profiled = accounts.iter().any(Account::is_profiled);
    let shown = if profiled { Account::HEADINGS.len() } else { Account::COUNTED_FROM };
    if profiled {
        let from: Vec<String> = profiles.iter().map(|filed| described(filed)).collect();
        let _ = write!(
            about,
            "\n\nTimes, floors and clocks of a tile are of this record. The other columns were counted by Nsight Compute: \
             record {}",
            from.join(" Record ")
        );
    }
    let rows = accounts.iter().map(|account| format!("| {} |", account.cells()[..shown].join(" | ")));
    Some((about, table(&Account::HEADINGS[..shown], rows)))
}

/// A row of the table of accuracies: time, how many times the first one's that is, and the largest error.
fn accuracy_row(group: &Group) -> String {
    let modes = modes(group);
    let first = modes[0].p50_us();
    let cells = modes.iter().map(|entry| {
        let times = ratio(entry.p50_us().zip(first).map(|(own, first)| own / first));
        format!("{} ({times}, {})", time(entry.p50_us()), error(entry.worst_relative_l2()))
    });
    format!("| {} | {} |", shape(group), cells.collect::<Vec<_>>().join(" | "))
}
