//! The frame of the page: head, style, the order of the sections.

use super::{
    Source, accounts, comparisons, environment, evolution, group, quantizer, resources, roofline, summary, words,
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
                header { h1 { "Eightfold report" } }
                main {
                    (summary::render(sources))
                    @if let Some(accounts) = accounts::render(sources) { (accounts) }
                    @for (index, source) in sources.iter().enumerate() { (record(index, source)) }
                }
                footer { p { "Written by Eightfold " (env!("CARGO_PKG_VERSION")) "." } }
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
            p .aside {
                (record.kind.to_string()) " on " (words::device(record)) ", " (record.provenance.time_utc.to_string())
            }
            @let nothing = record.groups.is_empty() && record.builds.is_empty() && record.toggles.is_empty();
            @let nothing = nothing && record.quantizers.is_empty();
            @if nothing && record.comparisons.is_empty() && record.evolution.is_none() {
                p { "This record holds no results." }
            }
            @if let Some(search) = &record.evolution {
                (evolution::render(search))
            } @else if let Some(verdicts) = comparisons::render(&record.comparisons) {
                section .group { h3 { "Comparison" } (verdicts) }
            }
            @for each in &record.groups { (group::render(each, record.kind)) }
            @for each in &record.quantizers { (quantizer::render(each)) }
            @for each in &record.builds {
                section .group {
                    h3 { "Compiled for " (each.kind()) }
                    (resources::of_builds(each))
                }
            }
            @if !record.toggles.is_empty() {
                section .group {
                    h3 { "Every knob reaches the machine code" }
                    @for each in &record.toggles { (resources::of_toggles(each)) }
                }
            }
            @if let Some(roofline) = roofline::render(record) {
                section .group { h3 { "Roofline position" } (roofline) }
            }
            section .group { h3 { "Environment" } (environment::render(record)) }
        }
    }
}
