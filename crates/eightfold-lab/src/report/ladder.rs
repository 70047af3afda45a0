//! The ladder: each contestant's time as a bar, with how far its slow runs reach.

use super::chart::{self, Row};
use super::roofline;
use super::scale::Scale;
use super::table;
use super::words;
use crate::gates::Gate;
use crate::numbers;
use crate::record::{Entry, Group};
use maud::{Markup, html};

/// Half of a bar's height, and of the mark at the end of its whisker.
const HALF_BAR: f64 = 6.5;
const HALF_MARK: f64 = 4.0;

/// The chart and the table of a group's times; nothing where nobody was timed.
pub fn render(group: &Group) -> Option<Markup> {
    let timed: Vec<&Entry> = group.entries.iter().filter(|entry| entry.timing.is_some()).collect();
    let summaries = timed.iter().filter_map(|entry| entry.timing.as_ref()).map(|timing| timing.summary);
    let scale = Scale::of_bars(summaries.flat_map(|summary| [summary.p50_us, summary.p99_us]))?;
    let any_peer = timed.iter().any(|entry| entry.peer);
    let timer = timed.iter().find_map(|entry| entry.timing.as_ref()).map_or("", |timing| words::timer(timing.timer));
    let caption = html! {
        (chart::legend(any_peer))
        "Bar: median (p50) of a run, by " (timer) ". Line: from p50 to p99."
        @if scale.is_log() { " Logarithmic axis: equal distances are equal ratios." }
    };
    Some(chart::figure(caption, draw(group, &timed, &scale), times(group)))
}

fn draw(group: &Group, timed: &[&Entry], scale: &Scale) -> Markup {
    let (unit, unit_us) = unit(scale);
    let label = format!("Bar chart of the time per run on {}: {}", words::title(group), in_words(timed));
    let body = html! {
        @for (index, entry) in timed.iter().enumerate() {
            @if let Some(timing) = &entry.timing {
                @let row = Row { name: &entry.name, peer: entry.peer };
                @let (start, end) = (chart::LEFT, chart::along(scale, timing.summary.p50_us));
                @let far = chart::number(chart::along(scale, timing.summary.p99_us));
                @let middle = chart::middle(index);
                (row.label(index))
                rect class={ "bar " (row.class()) } x=(chart::number(start)) y=(chart::number(middle - HALF_BAR))
                    width=(chart::number((end - start).max(0.5))) height=(chart::number(2.0 * HALF_BAR)) {}
                line .whisker x1=(chart::number(end)) x2=(far) y1=(chart::number(middle)) y2=(chart::number(middle)) {}
                line .whisker x1=(far) x2=(far) y1=(chart::number(middle - HALF_MARK))
                    y2=(chart::number(middle + HALF_MARK)) {}
                text .value x=(chart::number(chart::WIDTH)) y=(chart::number(middle + 4.5)) {
                    (numbers::time(timing.summary.p50_us))
                }
            }
        }
    };
    let tick = |value: f64| chart::plain(value / unit_us);
    chart::rows(&label, timed.len(), scale, tick, &format!("time per run, {unit}"), body)
}

/// The unit of the axis: that of its end.
fn unit(scale: &Scale) -> (&'static str, f64) {
    let (Scale::Linear { to, .. } | Scale::Log { to, .. }) = *scale;
    match to {
        to if to < 1e3 => ("µs", 1.0),
        to if to < 1e6 => ("ms", 1e3),
        _ => ("s", 1e6),
    }
}

/// The chart for those who do not see it; the table has the rest.
fn in_words(timed: &[&Entry]) -> String {
    let by_time = |first: &&&Entry, second: &&&Entry| {
        let time = |entry: &Entry| entry.p50_us().unwrap_or(f64::INFINITY);
        time(first).total_cmp(&time(second))
    };
    let of = |entry: &Entry| format!("{} with {}", entry.name, numbers::time(entry.p50_us().unwrap_or(f64::NAN)));
    let fastest = timed.iter().min_by(by_time).map(|entry| format!("fastest is {}", of(entry)));
    let slowest = timed.iter().max_by(by_time).map(|entry| format!("slowest is {}", of(entry)));
    fastest.into_iter().chain(slowest).collect::<Vec<_>>().join(", ")
}

fn times(group: &Group) -> Markup {
    let reached = |gate: Gate| group.entries.iter().any(|entry| entry.gate(gate).is_some());
    let judged = reached(Gate::Performance);
    let rates = group.entries.iter().filter_map(|entry| roofline::rate(group, entry));
    let (rate_unit, rate_size) = roofline::unit(rates.fold(0.0, f64::max));
    let mut columns = vec![table::words("contestant"), table::numbers("p50"), table::numbers("p99")];
    columns.push(table::numbers(rate_unit));
    columns.extend([table::numbers("× before"), table::numbers("× first"), table::words("correct")]);
    columns.extend(judged.then(|| table::words("gain")));
    let first = group.entries.iter().find(|entry| !entry.peer).and_then(Entry::p50_us);
    let mut before = None;
    let mut rows = Vec::new();
    for entry in &group.entries {
        let summary = entry.timing.as_ref().map(|timing| timing.summary);
        let time = |us: Option<f64>| table::optional(us, numbers::time);
        let over =
            |other: Option<f64>| table::optional(other.zip(entry.p50_us()), |(other, own)| numbers::ratio(other / own));
        let mut row = vec![
            html! { span class=[entry.peer.then_some("peer")] { (entry.name) } },
            time(summary.map(|summary| summary.p50_us)),
            time(summary.map(|summary| summary.p99_us)),
            table::optional(roofline::rate(group, entry), |rate| numbers::three_digits(rate / rate_size)),
        ];
        row.extend([over(before.filter(|_| !entry.peer)), over(first), words::cell(&entry.gates, Gate::Correctness)]);
        row.extend(judged.then(|| words::cell(&entry.gates, Gate::Performance)));
        rows.push(row);
        if !entry.peer {
            before = entry.p50_us().or(before);
        }
    }
    table::render("Times", &columns, rows)
}
