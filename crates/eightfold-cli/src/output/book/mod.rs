//! The pages of the book that hold numbers, the generated parts of the README, and its chart: all from records.

mod chart;
mod comparisons;
mod correctness;
mod cpu;
mod front;
mod hopper;
mod ladder;
mod launch;
mod ledger;
mod python;
mod serving;

use super::numbers::{NONE, error, ratio, time};
use crate::arguments::{CommandLine, HELP_WIDTH};
use clap::CommandFactory;
use eightfold::{Error, Result};
use eightfold_lab::archive::Age;
use eightfold_lab::archive::{self, Filed};
use eightfold_lab::record::{Entry, Group, Kind};
use eightfold_lab::withdrawn::Withdrawn;
use std::fmt::Write;
use std::path::Path;

#[cfg(test)]
pub use comparisons::is_right;

/// A file that the program writes.
pub struct Page {
    /// Where it is, from the root of the repository.
    pub path: &'static str,
    /// All of it.
    pub text: String,
}

const GENERATED: &str = "<!-- Written by `eightfold book` from the records in results/. Do not edit. -->\n\n";

/// A peer as records and as people call it.
type Peer = (&'static str, &'static str);

/// The columns of the tables of FP8 kernels: the peers.
const PEERS: [Peer; 8] = [
    ("fa3-fp8", "FlashAttention-3 FP8"),
    ("sageattention", "SageAttention"),
    ("triton-fp8", "Triton FP8"),
    ("cudnn-fp8", "cuDNN FP8"),
    ("torch-cudnn", "cuDNN bf16"),
    ("torch-flash", "FlashAttention-2 bf16"),
    ("torch-efficient", "efficient bf16"),
    ("torch-math", "math bf16"),
];

/// Every generated page of the repository at this root.
pub fn pages(root: &Path) -> Result<Vec<Page>> {
    let results = root.join("results");
    let (filed, withdrawn) = (archive::read(&results)?, Withdrawn::read(&results)?);
    let page = |path, text: String| Page { path, text: format!("{GENERATED}{text}") };
    let readme = std::fs::read_to_string(root.join("README.md")).map_err(|error| {
        Error::invalid("book", format!("README.md cannot be read: {error}"), "run it in the repository")
    })?;
    Ok(vec![
        page("docs/src/performance/hopper.md", hopper::page(&filed)),
        page("docs/src/performance/ladder.md", ladder::page(&filed)),
        page("docs/src/performance/cpu.md", cpu::page(&filed)),
        page("docs/src/performance/quantizer.md", cpu::quantizer(&filed)),
        page("docs/src/performance/serving.md", serving::page(&filed)),
        page("docs/src/performance/launch.md", launch::page(&filed)),
        page("docs/src/performance/python.md", python::page(&filed)),
        page("docs/src/performance/comparisons.md", comparisons::page(&filed)),
        page("docs/src/performance/planted.md", comparisons::planted(&filed)),
        page("docs/src/performance/searches.md", comparisons::searches(&filed)),
        page("docs/src/performance/correctness.md", correctness::page(&filed, &withdrawn)),
        page("docs/src/commands.md", commands()),
        page("docs/src/ledger.md", ledger::page(root)),
        page("results/README.md", index(&filed)),
        Page { path: "docs/src/images/h200.svg", text: chart::draw(&filed) },
        Page { path: "README.md", text: front::fill(&readme, &filed) },
    ])
}

fn of<'a>(filed: &'a [Filed], topic: &str, kind: Kind) -> impl Iterator<Item = &'a Filed> {
    filed.iter().filter(move |filed| filed.topic == topic && filed.record.kind == kind)
}

/// Where numbers come from, and whether what was measured has changed since.
fn source(filed: &Filed) -> String {
    format!("Record {}\n\n", described(filed))
}

/// The record's folder, commit, date and device.
fn described(filed: &Filed) -> String {
    let (topic, name, commit, date) = (&filed.topic, &filed.name, filed.short_commit(), filed.date());
    format!("`results/{topic}/{name}`, commit {commit}, {date}, {}.{}", filed.device(), staleness(filed))
}

/// That a record is stale and why, as a sentence; nothing of one that is not.
fn staleness(filed: &Filed) -> String {
    match archive::age(filed) {
        Age::Changed(kernels) => {
            format!(" **Stale**: the sources of {} have changed since.", kernels.join(" and "))
        }
        Age::NoFingerprints => " **Stale**: made before records kept fingerprints of sources.".into(),
        Age::Current | Age::Unknown => String::new(),
    }
}

fn table(head: &[&str], rows: impl IntoIterator<Item = String>) -> String {
    let rule = head.iter().map(|_| "---").collect::<Vec<_>>().join(" | ");
    // A number stays beside its unit.
    let rows: Vec<String> =
        rows.into_iter().map(|row| row.replace(" µs", "\u{a0}µs").replace(" ms", "\u{a0}ms")).collect();
    format!("| {} |\n| {rule} |\n{}\n\n", head.join(" | "), rows.join("\n"))
}

/// The peers that computed at least one of these, with what people call them.
fn peers_that_ran(groups: &[&Group]) -> Vec<Peer> {
    let ran = |name: &str| groups.iter().any(|group| p50(group, name).is_some());
    PEERS.into_iter().filter(|(name, _)| ran(name)).collect()
}

/// The peers that were asked for and could not be measured, as a sentence.
fn peers_missing(groups: &[&Group]) -> String {
    let asked = |name: &str| groups.iter().flat_map(|group| &group.entries).any(|entry| entry.name == name);
    let ran = peers_that_ran(groups);
    let missing = PEERS.into_iter().filter(|peer| asked(peer.0) && !ran.contains(peer)).map(|(_, title)| title);
    match missing.collect::<Vec<_>>().as_slice() {
        [] => String::new(),
        missing => format!(" Not installed on that machine: {}.", missing.join(", ")),
    }
}

/// The newest older record of the same problems with peers that this one could not measure, and these peers.
fn older_with_more_peers<'a>(filed: &'a [Filed], newest: &Filed) -> Option<(&'a Filed, Vec<Peer>)> {
    let groups = |filed: &'a Filed| filed.record.groups.iter().collect::<Vec<_>>();
    let ran = peers_that_ran(&newest.record.groups.iter().collect::<Vec<_>>());
    let causal = |filed: &Filed| filed.record.groups.first().map(|group| group.problem.causal);
    let older = of(filed, &newest.topic, newest.record.kind).filter(|old| {
        causal(old) == causal(newest) && old.record.provenance.time_utc < newest.record.provenance.time_utc
    });
    let with_more = older.map(|old| {
        let more = peers_that_ran(&groups(old)).into_iter().filter(|peer| !ran.contains(peer));
        (old, more.collect::<Vec<_>>())
    });
    with_more.filter(|(_, more)| !more.is_empty()).last()
}

fn peers_of(group: &Group) -> bool {
    group.entries.iter().any(|entry| entry.peer)
}

fn commands() -> String {
    let mut command = CommandLine::command().term_width(HELP_WIDTH);
    command.build();
    let mut text = format!("# Command reference\n\n```text\n{}```\n", command.clone().render_long_help());
    for subcommand in command.get_subcommands_mut().filter(|one| !one.is_hide_set() && one.get_name() != "help") {
        let help = subcommand.render_long_help();
        let _ = write!(text, "\n## {}\n\n```text\n{help}```\n", subcommand.get_name());
    }
    text.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

fn index(filed: &[Filed]) -> String {
    let rows = filed.iter().map(|filed| {
        let (topic, name, commit, ran) = (&filed.topic, &filed.name, filed.short_commit(), filed.ran());
        let state = archive::age(filed);
        format!("| {topic} | `{name}` | {commit} | {ran} | {} | {} | {state} |", filed.device(), filed.date())
    });
    let text = "# Records\n\nOne folder per topic. *Sources* are the fingerprints of the sources of the kernels that ran. A record from before they were kept has a dash, and is stale. `simulator/` has [an index of its own](simulator/README.md).\n\n";
    format!("{text}{}", table(&["topic", "record", "commit", "sources", "device", "date", "state"], rows))
}

fn p50(group: &Group, name: &str) -> Option<f64> {
    group.entries.iter().find(|entry| entry.name == name).and_then(|entry| entry.p50_us())
}

fn over(group: &Group, name: &str, other: &str) -> String {
    ratio(p50(group, other).zip(p50(group, name)).map(|(other, own)| other / own))
}

/// The shape's name and sizes, and the mask.
fn shape(group: &Group) -> String {
    group.problem.title(&group.shape)
}

/// The fastest of the peers, with its time.
fn best_peer(group: &Group) -> Option<(&Entry, f64)> {
    let timed = group.entries.iter().filter(|entry| entry.peer).filter_map(|entry| Some((entry, entry.p50_us()?)));
    timed.min_by(|a, b| a.1.total_cmp(&b.1))
}

/// The fastest of ours, with its time.
fn best_of_ours(group: &Group) -> Option<(&Entry, f64)> {
    let timed = group.entries.iter().filter(|entry| !entry.peer).filter_map(|entry| Some((entry, entry.p50_us()?)));
    timed.min_by(|a, b| a.1.total_cmp(&b.1))
}

/// What people call a peer.
fn peer_title(name: &str) -> &str {
    PEERS.iter().find(|(peer, _)| *peer == name).map_or(name, |(_, title)| title)
}

/// A kernel of ours without overlap: the time by replay where its launches never overlap.
fn separate_us(entry: &Entry) -> Option<f64> {
    let overlaps = entry.implementation.contains("launch=dependent");
    entry.separate_p50_us().or_else(|| entry.p50_us().filter(|_| !overlaps))
}
