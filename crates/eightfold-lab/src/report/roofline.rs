//! How much arithmetic each contestant did per second, over how much each problem offers per byte.

use super::chart;
use super::scale::Scale;
use super::table;
use super::words;
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
    let bytes = least_bytes(&group.problem);
    group.entries.iter().filter_map(move |entry| {
        let gflop_per_second = rate(group, entry)?;
        Some(Point { group, entry, flop_per_byte: group.problem.gflop * 1e9 / bytes? as f64, gflop_per_second })
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

/// What any implementation has to move at least; none for an output format that is not known here.
fn least_bytes(problem: &ProblemRecord) -> Option<usize> {
    let output_bytes = match problem.output_format.as_str() {
        "f32" => 4,
        "f16" | "bf16" => 2,
        _ => return None,
    };
    let rows = problem.batch.checked_mul(problem.query_heads)?.checked_mul(problem.query_len)?;
    let queries = rows.checked_mul(problem.head_dim)?;
    let keys = problem.batch.checked_mul(problem.kv_heads)?.checked_mul(problem.key_len)?;
    let keys = keys.checked_mul(problem.head_dim)?;
    let lse = if problem.lse { rows.checked_mul(4)? } else { 0 };
    queries.checked_mul(1 + output_bytes)?.checked_add(keys.checked_mul(2)?)?.checked_add(lse)
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
        let intensity = least_bytes(&group.problem).map(|bytes| group.problem.gflop * 1e9 / bytes as f64);
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

#[cfg(test)]
mod tests {
    use super::*;
    use eightfold::{Problem, Shape};

    #[test]
    fn the_least_bytes_of_a_small_problem_by_hand() {
        let problem = Problem::new(Shape::new(1, 8, 32, 64)).unwrap();
        let mut record = ProblemRecord::from(&problem);
        record.output_format = "f16".into();
        record.lse = false;
        let elements = 8 * 32 * 64;
        assert_eq!(least_bytes(&record), Some(3 * elements + 2 * elements));
        record.lse = true;
        assert_eq!(least_bytes(&record), Some(5 * elements + 4 * 8 * 32));
        record.output_format = "unheard-of".into();
        assert_eq!(least_bytes(&record), None);
        record.output_format = "f32".into();
        record.query_len = usize::MAX;
        assert_eq!(least_bytes(&record), None);
    }
}
