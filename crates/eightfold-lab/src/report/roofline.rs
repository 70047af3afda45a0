//! How much arithmetic each contestant did per second, over how much each problem offers per byte.

use super::chart;
use super::scale::Scale;
use super::table;
use super::words;
use crate::bound::Bytes;
use crate::numbers;
use crate::record::{Entry, Group, ProblemRecord, Record};
use maud::{Markup, html};

/// Height of the chart.
const HEIGHT: f64 = 300.0;
/// Where the plot begins and ends; it has no names of rows, so it is wider than the others.
const LEFT: f64 = 56.0;
const RIGHT: f64 = 464.0;
const BOTTOM: f64 = 250.0;
const TOP: f64 = 10.0;

struct Point<'a> {
    group: &'a Group,
    entry: &'a Entry,
    flop_per_byte: f64,
    gflop_per_second: f64,
}

/// The positions of a record's contestants; nothing where nobody was timed.
pub fn render(record: &Record) -> Option<Markup> {
    let points: Vec<Point> = record.groups.iter().filter(|group| !group.sweep).flat_map(points).collect();
    let across = Scale::of_points(points.iter().map(|point| point.flop_per_byte))?;
    let up = Scale::of_points(points.iter().map(|point| point.gflop_per_second))?;
    let caption = html! {
        (chart::legend(points.iter().any(|point| point.entry.peer)))
        "Both axes are logarithmic. The record holds no measured peak of this device, so the achieved rates stand alone "
        "and no roof is drawn. FLOP per byte: the problem's arithmetic over FP8 inputs and the output moved once; "
        "peers read wider inputs and are drawn at the same place."
    };
    Some(chart::figure(caption, draw(&points, &across, &up), rates(record)))
}

fn points(group: &Group) -> impl Iterator<Item = Point<'_>> {
    let flop_per_byte = flop_per_byte(&group.problem);
    group.entries.iter().filter_map(move |entry| {
        let gflop_per_second = rate(group, entry)?;
        Some(Point { group, entry, flop_per_byte: flop_per_byte?, gflop_per_second })
    })
}

/// Achieved GFLOP/s at the median.
pub fn rate(group: &Group, entry: &Entry) -> Option<f64> {
    let p50_us = entry.p50_us().filter(|p50_us| *p50_us > 0.0)?;
    Some(group.problem.gflop / (p50_us * 1e-6))
}

/// The unit for rates up to this one, and how many GFLOP/s it is.
pub fn unit(most_gflop_per_second: f64) -> (&'static str, f64) {
    if most_gflop_per_second >= 1e3 { ("TFLOP/s", 1e3) } else { ("GFLOP/s", 1.0) }
}

/// The problem's arithmetic for each byte that any implementation has to move.
fn flop_per_byte(problem: &ProblemRecord) -> Option<f64> {
    let Bytes { inputs, outputs } = problem.least_bytes()?;
    Some(problem.gflop * 1e9 / inputs.checked_add(outputs)? as f64)
}

fn draw(points: &[Point], across: &Scale, up: &Scale) -> Markup {
    let x = |value: f64| LEFT + (RIGHT - LEFT) * across.position(value);
    let y = |value: f64| BOTTOM - (BOTTOM - TOP) * up.position(value);
    let (Scale::Linear { to, .. } | Scale::Log { to, .. }) = *up;
    let (unit, unit_size) = unit(to);
    let content = html! {
        @for value in across.ticks() {
            @let at = chart::number(x(value));
            line .grid x1=(at) x2=(at) y1=(chart::number(TOP)) y2=(chart::number(BOTTOM)) {}
            text .tick x=(at) y=(chart::number(BOTTOM + 16.0)) { (chart::plain(value)) }
        }
        @for value in up.ticks() {
            @let at = chart::number(y(value));
            line .grid x1=(chart::number(LEFT)) x2=(chart::number(RIGHT)) y1=(at) y2=(at) {}
            text .value x=(chart::number(LEFT - 6.0)) y=(chart::number(y(value) + 4.5)) {
                (chart::plain(value / unit_size))
            }
        }
        @for point in points {
            @let class = if point.entry.peer { "point peer" } else { "point ours" };
            circle class=(class) r="4" cx=(chart::number(x(point.flop_per_byte)))
                cy=(chart::number(y(point.gflop_per_second))) {
                title {
                    (point.entry.name) " on " (words::title(point.group)) ": " (numbers::rate(point.gflop_per_second))
                }
            }
        }
        line .axis x1=(chart::number(LEFT)) x2=(chart::number(RIGHT)) y1=(chart::number(BOTTOM))
            y2=(chart::number(BOTTOM)) {}
        text .axis-title x=(chart::number((LEFT + RIGHT) / 2.0)) y=(chart::number(BOTTOM + 36.0)) {
            "FLOP per byte; upwards: " (unit)
        }
    };
    let label = "Achieved arithmetic rate of every contestant over the arithmetic intensity of its problem";
    chart::svg(label, HEIGHT, content)
}

fn rates(record: &Record) -> Markup {
    let mut columns = vec![table::words("problem"), table::numbers("FLOP per byte")];
    columns.extend([table::words("fastest of ours"), table::numbers("rate")]);
    columns.extend([table::words("fastest peer"), table::numbers("rate")]);
    let rows = record.groups.iter().filter(|group| !group.sweep).map(|group| {
        let fastest = |peer: bool| {
            let timed = group.entries.iter().filter(|entry| entry.peer == peer);
            let timed = timed.filter_map(|entry| Some((entry.name.as_str(), rate(group, entry)?)));
            timed.max_by(|first, second| first.1.total_cmp(&second.1))
        };
        let intensity = flop_per_byte(&group.problem);
        let mut row = vec![
            html! { (group.shape) @if group.problem.causal { ", causal" } },
            table::optional(intensity, numbers::three_digits),
        ];
        for peer in [false, true] {
            row.push(table::optional(fastest(peer), |(name, _)| name.to_string()));
            row.push(table::optional(fastest(peer), |(_, rate)| numbers::rate(rate)));
        }
        row
    });
    table::render("Fastest; the rest is beside each ladder", &columns, rows.collect())
}
