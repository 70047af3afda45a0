//! The frame of the page: head, style, the order of the sections.

use super::{
    Source, accounts, comparisons, environment, evolution, fastest, group, quantizer, resources, summary, words,
};
use maud::{DOCTYPE, Markup, PreEscaped, html};

/// Part of the page, so that it needs nothing beside it.
const STYLE: &str = include_str!("style.css");

/// The whole document.
pub fn render(sources: &[Source]) -> Markup {
    let title = match sources {
        [source] => format!("Eightfold report: {}", source.name),
        _ => format!("Eightfold report: {} records", sources.len()),
    };
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                header {
                    h1 { "Eightfold report" }
                    @for source in sources.iter().take(MOST_IN_HEADER) { p .origin { (origin(source, sources.len() > 1)) } }
                    @if sources.len() > MOST_IN_HEADER { p .origin { "and " (sources.len() - MOST_IN_HEADER) " more" } }
                }
                (contents(sources))
                main {
                    @if let Some(fastest) = fastest::render(sources) { (fastest) }
                    (summary::render(sources))
                    @if let Some(accounts) = accounts::render(sources) { (accounts) }
                    @for (index, source) in sources.iter().enumerate() { (record(index, source)) }
                }
                footer { p { "Written by Eightfold " (env!("CARGO_PKG_VERSION")) "." } }
            }
        }
    }
}

/// Records whose origin is told at the top of the page.
const MOST_IN_HEADER: usize = 4;

/// What a reader must know to trust a record: commit, device, date, job.
fn origin(source: &Source, named: bool) -> String {
    let provenance = &source.record.provenance;
    let commit = provenance.commit();
    let changed = commit.is_some() && !provenance.is_of_its_commit();
    let changed = if changed { ", with uncommitted changes" } else { "" };
    let short: String = commit.unwrap_or("unknown").chars().take(10).collect();
    let build = if provenance.release { "" } else { ", not a release build" };
    let date = provenance.time_utc.to_string().replace('T', " ").replace('Z', " UTC");
    let clock = provenance.gpu.as_ref().map(|gpu| format!(", up to {:.2} GHz", gpu.clock_khz as f64 / 1e6));
    let device = words::device(&source.record);
    let name = if named { format!("{}: ", source.name) } else { String::new() };
    format!(
        "{name}{device}{}, commit {short}{changed}{build}, {date}, {}",
        clock.unwrap_or_default(),
        source.record.kind
    )
}

/// The way to each section.
fn contents(sources: &[Source]) -> Markup {
    html! {
        nav aria-label="Contents" {
            @if fastest::render(sources).is_some() { a href="#fastest" { "Who is fastest" } }
            a href="#verdict" { "Verdict" }
            @for (index, source) in sources.iter().enumerate() {
                a href={ "#" (anchor(index)) } { (source.name) }
            }
        }
    }
}

/// Where the section of a record is found.
pub fn anchor(index: usize) -> String {
    format!("record-{}", index + 1)
}

fn record(index: usize, source: &Source) -> Markup {
    let record = &source.record;
    let id = anchor(index);
    html! {
        section .record aria-labelledby=(id) {
            h2 id=(id) { (source.name) }
            p .aside { (origin(source, false)) }
            @let nothing = record.groups.is_empty() && record.builds.is_empty() && record.toggles.is_empty();
            @let nothing = nothing && record.quantizers.is_empty() && record.verification.is_none();
            @if nothing && record.comparisons.is_empty() && record.evolution.is_none() {
                p { "This record holds no results." }
            }
            @if let Some(search) = &record.evolution {
                (evolution::render(search))
            } @else if let Some(verdicts) = comparisons::render(&record.comparisons) {
                section .group { h3 { "Comparison" } (verdicts) }
            }
            @for (place, each) in record.groups.iter().enumerate() {
                // The first is open: a page that is all folded says nothing.
                (group::render(each, record.kind, index == 0 && place == 0))
            }
            @if let Some(resources) = resources::of_groups(&record.groups) {
                details .group { summary { h3 { "Resources" } } (resources) }
            }
            @for each in &record.quantizers { (quantizer::render(each)) }
            @for each in &record.builds {
                details .group {
                    summary { h3 { "Compiled for " (each.kind()) } }
                    (resources::of_builds(each))
                }
            }
            @if !record.toggles.is_empty() {
                section .group {
                    h3 { "Every knob reaches the machine code" }
                    @for each in &record.toggles { (resources::of_toggles(each)) }
                }
            }
            @if let Some(verification) = &record.verification {
                section .group { h3 { (verification.by) } (summary::verification(verification)) }
            }
            details .group { summary { h3 { "Environment" } } (environment::render(record)) }
        }
    }
}
