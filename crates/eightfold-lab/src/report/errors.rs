//! Where the error comes from: the quantiser or the kernel, an offset or noise, and on which inputs it is largest.

use super::chart::{self, Row};
use super::scale::Scale;
use super::table;
use super::words;
use crate::errors::ErrorStats;
use crate::gates::CaseReport;
use crate::numbers;
use crate::record::{Entry, Group};
use maud::{Markup, html};

/// What the checks call the kernel's own error.
const KERNEL_CHECK: &str = "kernel relative_l2";

/// Of one contestant, the case with its largest error.
struct Worst<'a> {
    entry: &'a Entry,
    case: &'a CaseReport,
    tolerance: Option<f64>,
}

impl<'a> Worst<'a> {
    fn of(entry: &'a Entry) -> Option<Worst<'a>> {
        let larger =
            |first: &&CaseReport, second: &&CaseReport| first.kernel.relative_l2.total_cmp(&second.kernel.relative_l2);
        let case = entry.cases.iter().max_by(larger)?;
        let check = case.checks.iter().find(|check| check.name == KERNEL_CHECK);
        Some(Worst { entry, case, tolerance: check.map(|check| check.limit) })
    }
}

/// The size of the bias, and the deviation around it, both relative to the reference like the L2 error that they make up:
/// inputs of other sizes would otherwise not compare.
fn parts(stats: &ErrorStats) -> (f64, f64) {
    let whole = stats.bias.hypot(stats.deviation);
    if whole > 0.0 {
        (stats.relative_l2 * stats.bias.abs() / whole, stats.relative_l2 * stats.deviation / whole)
    } else {
        (0.0, 0.0)
    }
}

/// The charts and the table of a group's errors; nothing where nothing was checked.
pub fn render(group: &Group) -> Option<Markup> {
    let worst: Vec<Worst> = group.entries.iter().filter_map(Worst::of).collect();
    if worst.is_empty() {
        return None;
    }
    Some(html! {
        @if let Some(chart) = sources(group, &worst) { (chart) }
        details .numbers { summary { "Bias, and numbers" }
            @if let Some(chart) = bias(group, &worst) { (chart) }
            (table(&worst))
        }
    })
}

/// Something about a contestant's error that has a place on the axis.
struct Mark {
    class: &'static str,
    error: f64,
}

/// The kernel's error beside the quantiser's; nothing where every error is zero or not a number.
fn sources(group: &Group, worst: &[Worst]) -> Option<Markup> {
    let label = format!("Kernel error and quantiser error of each contestant on {}", words::title(group));
    let caption = html! {
        "Relative L2 error in the case where each contestant's own error is largest. "
        span .key.ours { "kernel" } " (against attention on the dequantised inputs; the number at the right), "
        span .key.hollow { "quantiser" } " (what FP8 inputs alone cost), "
        span .key.limit { "declared tolerance" } " of the kernel."
    };
    let marks = |worst: &Worst| {
        vec![
            Mark { class: "hollow", error: worst.case.quantizer.relative_l2 },
            Mark { class: colour(worst), error: worst.case.kernel.relative_l2 },
            Mark { class: "limit", error: worst.tolerance.unwrap_or(0.0) },
        ]
    };
    draw(&label, caption, "relative L2 error", worst, marks)
}

/// What of the kernel's error is an offset and what is noise; nothing where both are always zero.
fn bias(group: &Group, worst: &[Worst]) -> Option<Markup> {
    let label = format!("Bias and deviation of each contestant's own error on {}", words::title(group));
    let caption = html! {
        "The same kernel error taken apart; the squares of both parts add up to its square. "
        span .key.ours { "bias" } " (size of the mean error, which averaging does not remove; the number at the right), "
        span .key.hollow { "deviation" } " around it."
    };
    let marks = |worst: &Worst| {
        let (bias, deviation) = parts(&worst.case.kernel);
        vec![Mark { class: "hollow", error: deviation }, Mark { class: colour(worst), error: bias }]
    };
    draw(&label, caption, "part of the relative L2 error", worst, marks)
}

fn colour(worst: &Worst) -> &'static str {
    if worst.entry.peer { "peer" } else { "ours" }
}

/// A row of marks for each contestant, with the value of the filled one at the end.
fn draw(
    label: &str,
    caption: Markup,
    axis: &str,
    worst: &[Worst],
    marks: impl Fn(&Worst) -> Vec<Mark>,
) -> Option<Markup> {
    let scale = Scale::of_points(worst.iter().flat_map(|worst| marks(worst).into_iter().map(|mark| mark.error)))?;
    let body = html! {
        @for (index, worst) in worst.iter().enumerate() {
            @let row = Row { name: &worst.entry.name, peer: worst.entry.peer };
            @let y = chart::middle(index);
            (row.label(index))
            @for mark in marks(worst).iter().filter(|mark| mark.error > 0.0) {
                @let x = chart::number(chart::along(&scale, mark.error));
                @if mark.class == "limit" {
                    line .limit x1=(x) x2=(x) y1=(chart::number(y - 7.0)) y2=(chart::number(y + 7.0)) {}
                } @else {
                    circle class={ "point " (mark.class) } r="4" cx=(x) cy=(chart::number(y)) {}
                }
            }
            @if let Some(filled) = marks(worst).iter().find(|mark| mark.class == colour(worst)) {
                text .value x=(chart::number(chart::WIDTH)) y=(chart::number(y + 4.5)) { (numbers::error(filled.error)) }
            }
        }
    };
    let drawing = chart::rows(label, worst.len(), &scale, tick, axis, body);
    Some(html! { figure { (drawing) figcaption { (caption) } } })
}

/// Powers of ten alike, since that is how errors are written everywhere else.
fn tick(error: f64) -> String {
    format!("{error:e}").replace('-', "−")
}

fn table(worst: &[Worst]) -> Markup {
    let mut columns = vec![table::words("contestant"), table::numbers("cases"), table::words("worst on")];
    columns.extend(["kernel L2", "tolerance", "quantiser L2", "end-to-end L2"].map(table::numbers));
    let titles = ["kernel bias", "kernel deviation", "quantiser bias", "quantiser deviation"];
    columns.extend(titles.map(table::numbers));
    let rows = worst.iter().map(|Worst { entry, case, tolerance }| {
        let error = |value: f64| table::text(numbers::error(value));
        let [kernel, quantizer] = [&case.kernel, &case.quantizer].map(parts);
        vec![
            html! { span class=[entry.peer.then_some("peer")] { (entry.name) } },
            table::text(numbers::whole(entry.cases.len())),
            table::text(&case.origin),
            error(case.kernel.relative_l2),
            table::optional(*tolerance, numbers::error),
            error(case.quantizer.relative_l2),
            error(case.end_to_end.relative_l2),
            error(kernel.0),
            error(kernel.1),
            error(quantizer.0),
            error(quantizer.1),
        ]
    });
    table::render("Errors, relative to the reference", &columns, rows.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_make_up_the_whole() {
        let stats = ErrorStats { relative_l2: 0.05, bias: -3e-4, deviation: 4e-4, ..ErrorStats::default() };
        let (bias, deviation) = parts(&stats);
        assert!((bias - 0.03).abs() < 1e-15 && (deviation - 0.04).abs() < 1e-15);
        assert_eq!(parts(&ErrorStats::default()), (0.0, 0.0));
    }

    #[test]
    fn the_worst_case_is_the_one_with_the_largest_error_of_the_kernel() {
        let entry = crate::report::fixed_data::entry("x", 1);
        assert_eq!(Worst::of(&entry).unwrap().case.origin, "biased-v seed 1");
        assert!(Worst::of(&Entry::new("x", "x")).is_none());
    }
}
