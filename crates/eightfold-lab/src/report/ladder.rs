//! The ladder: each contestant's time as a bar, with how far its slow runs reach.

use super::chart::{self, Row};
use super::rates;
use super::scale::Scale;
use super::table;
use super::words;
use crate::gates::Gate;
use crate::numbers;
use crate::record::{Entry, Group, Kind};
use maud::{Markup, html};

/// Half of a bar's height, and of the mark at the end of its whisker.
const HALF_BAR: f64 = 6.5;
const HALF_MARK: f64 = 4.0;

/// Bars of peers this many times longer than the fastest peer's are cut, so that one slow peer does not set the scale.
const LONGEST_PEER: f64 = 4.0;

/// The chart and the table of a group's times; nothing where nobody was timed.
pub fn render(group: &Group, kind: Kind) -> Option<Markup> {
    let timed: Vec<&Entry> = group.entries.iter().filter(|entry| entry.timing.is_some()).collect();
    let most = longest(&timed);
    let shown = timed.iter().filter(|entry| entry.p50_us().is_some_and(|us| us <= most));
    let summaries = shown.clone().filter_map(|entry| entry.timing.as_ref()).map(|timing| timing.summary);
    let scale = Scale::of_bars(summaries.flat_map(|summary| [summary.p50_us, summary.p99_us.min(most)]))?;
    let any_peer = timed.iter().any(|entry| entry.peer);
    let any_cut = shown.count() < timed.len();
    let timer = timed.iter().find_map(|entry| entry.timing.as_ref()).map_or("", |timing| words::timer(timing.timer));
    let caption = html! {
        (chart::legend(any_peer))
        "Bar: median (p50) of a run, by " (timer) ". Line: from p50 to p99. Bold: the fastest of Eightfold."
        @if any_cut { " A bar with a gap is longer than it is drawn: its time is at the right." }
        @if scale.is_log() { " Logarithmic axis: equal distances are equal ratios." }
    };
    Some(chart::figure(caption, draw(group, &timed, &scale, most), times(group, kind)))
}

/// The longest time that is drawn in full.
fn longest(timed: &[&Entry]) -> f64 {
    let of = |peer: bool| timed.iter().filter(move |entry| entry.peer == peer).filter_map(|entry| entry.p50_us());
    let fastest_peer = of(true).fold(f64::INFINITY, f64::min);
    let slowest_of_ours = of(false).fold(0.0, f64::max);
    match fastest_peer.is_finite() {
        true => slowest_of_ours.max(LONGEST_PEER * fastest_peer),
        false => f64::INFINITY,
    }
}

fn draw(group: &Group, timed: &[&Entry], scale: &Scale, most: f64) -> Markup {
    let (unit, unit_us) = unit(scale);
    let label = format!("Bar chart of the time per run on {}: {}", words::title(group), in_words(timed));
    let ours = timed.iter().filter(|entry| !entry.peer);
    let best = ours.filter_map(|entry| entry.p50_us()).fold(f64::INFINITY, f64::min);
    let number = chart::number;
    let body = html! {
        @for (index, entry) in timed.iter().enumerate() {
            @if let Some(timing) = &entry.timing {
                @let row = Row { name: &entry.name, peer: entry.peer };
                @let us = timing.summary.p50_us;
                @let cut = us > most;
                @let (start, end) = (chart::LEFT, if cut { chart::RIGHT } else { chart::along(scale, us) });
                @let far = number(chart::along(scale, timing.summary.p99_us));
                @let middle = chart::middle(index);
                @let is_best = !entry.peer && us <= best;
                (row.label(index))
                rect class={ "bar " (row.class()) @if is_best { " best-bar" } } x=(number(start)) y=(number(middle - HALF_BAR))
                    width=(number((end - start).max(0.5))) height=(number(2.0 * HALF_BAR)) {}
                @if cut {
                    rect .gap x=(number(end - 22.0)) y=(number(middle - HALF_BAR)) width="6" height=(number(2.0 * HALF_BAR)) {}
                } @else {
                    line .whisker x1=(number(end)) x2=(far) y1=(number(middle)) y2=(number(middle)) {}
                    line .whisker x1=(far) x2=(far) y1=(number(middle - HALF_MARK)) y2=(number(middle + HALF_MARK)) {}
                }
                text class={ "value" @if is_best { " strong" } } x=(number(chart::WIDTH)) y=(number(middle + 4.5)) {
                    (numbers::time(us))
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

fn times(group: &Group, kind: Kind) -> Markup {
    let entries = &group.entries;
    let any = |has: fn(&Entry) -> bool| entries.iter().any(has);
    let judged = any(|entry| entry.gate(Gate::Performance).is_some());
    let singly = any(|entry| entry.launch_timing.is_some());
    let separately = any(|entry| entry.separate_timing.is_some());
    let rates = entries.iter().filter_map(|entry| rates::rate(group, entry));
    let (rate_unit, rate_size) = rates::unit(rates.fold(0.0, f64::max));
    let ladder = kind == Kind::Ladder;
    let first = entries.iter().find(|entry| !entry.peer);
    let first_us = first.and_then(Entry::p50_us);
    let first_name = first.map_or("", |entry| &entry.name);
    let mut columns = vec![table::words("contestant"), table::numbers("p50"), table::numbers("p99")];
    columns.extend(separately.then(|| table::numbers("without overlap")));
    columns.extend(singly.then(|| table::numbers("single launch")));
    columns.extend([table::numbers(rate_unit), table::numbers("relative L2 error")]);
    columns.extend(ladder.then(|| table::numbers("times as fast as the stage before")));
    columns.push(match ladder {
        true => table::numbers(format!("times as fast as {first_name}")),
        false => table::numbers(format!("{first_name} is faster by")),
    });
    columns.push(table::words("correct"));
    columns.extend(judged.then(|| table::words("gain")));
    let mut before = None;
    let mut rows = Vec::new();
    for entry in entries {
        let summary = entry.timing.as_ref().map(|timing| timing.summary);
        let time = |us: Option<f64>| table::optional(us, numbers::time);
        let own = entry.p50_us();
        let times = |over: Option<f64>, under: Option<f64>| {
            table::optional(over.zip(under), |(over, under)| numbers::ratio(over / under))
        };
        let mut row = vec![
            html! { span class=[entry.peer.then_some("peer")] { (entry.name) } },
            time(summary.map(|summary| summary.p50_us)),
            time(summary.map(|summary| summary.p99_us)),
        ];
        row.extend(separately.then(|| time(entry.separate_p50_us())));
        row.extend(singly.then(|| time(entry.launch_p50_us())));
        row.push(table::optional(rates::rate(group, entry), |rate| numbers::three_digits(rate / rate_size)));
        row.push(table::optional(entry.worst_relative_l2(), numbers::error));
        row.extend(ladder.then(|| times(before.filter(|_| !entry.peer), own)));
        row.push(if ladder { times(first_us, own) } else { times(own, first_us) });
        row.push(words::cell(&entry.gates, Gate::Correctness));
        row.extend(judged.then(|| words::cell(&entry.gates, Gate::Performance)));
        rows.push(row);
        if !entry.peer {
            before = own.or(before);
        }
    }
    table::render("Times", &columns, rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::fixed_data::entry;

    #[test]
    fn one_slow_peer_does_not_set_the_scale_and_ours_always_fit() {
        let peer = |name: &str, us| Entry { peer: true, ..entry(name, us) };
        let all = [entry("ours", 10), peer("fast", 20), peer("slow", 2000)];
        let timed: Vec<&Entry> = all.iter().collect();
        let most = longest(&timed);
        assert!(most > 79.0 && most < 90.0, "{most}");
        assert_eq!(longest(&timed[..1]), f64::INFINITY);
        let slow = [entry("baseline", 5000), peer("fast", 20)];
        assert!(longest(&slow.iter().collect::<Vec<_>>()) >= 5000.0);
    }
}
