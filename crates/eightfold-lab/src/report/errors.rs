//! Where the error comes from: the quantiser or the kernel, an offset or noise, and on which inputs it is largest.

use super::chart::{self, Row};
use super::numbers;
use super::scale::Scale;
use super::table;
use super::words;
use crate::gates::CaseReport;
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

/// The chart and the table of a group's errors; nothing where nothing was checked.
pub fn render(group: &Group) -> Option<Markup> {
    let worst: Vec<Worst> = group.entries.iter().filter_map(Worst::of).collect();
    if worst.is_empty() {
        return None;
    }
    let errors = worst.iter().flat_map(|worst| [worst.case.kernel.relative_l2, worst.case.quantizer.relative_l2]);
    let Some(scale) = Scale::of_points(errors.chain(worst.iter().filter_map(|worst| worst.tolerance))) else {
        // Every error is zero, or not a number: there is no axis for that.
        return Some(table(&worst));
    };
    let caption = html! {
        "Relative L2 error in the case where each contestant's own error is largest. "
        span .key.ours { "kernel" } " (against attention on the dequantised inputs), "
        span .key.quantizer { "quantiser" } " (what FP8 inputs alone cost), "
        span .key.limit { "declared tolerance" } " of the kernel."
    };
    let label = format!("Kernel error and quantiser error of each contestant on {}", words::title(group));
    let body = html! {
        @for (index, worst) in worst.iter().enumerate() {
            @let row = Row { name: &worst.entry.name, peer: worst.entry.peer };
            @let y = chart::middle(index);
            (row.label(index))
            @if let Some(tolerance) = worst.tolerance {
                @let x = chart::number(chart::along(&scale, tolerance));
                line .limit x1=(x) x2=(x) y1=(chart::number(y - 7.0)) y2=(chart::number(y + 7.0)) {}
            }
            @if worst.case.quantizer.relative_l2 > 0.0 {
                circle .point.quantizer r="4" cy=(chart::number(y))
                    cx=(chart::number(chart::along(&scale, worst.case.quantizer.relative_l2))) {}
            }
            @if worst.case.kernel.relative_l2 > 0.0 {
                circle class={ "point " (row.class()) } r="4" cy=(chart::number(y))
                    cx=(chart::number(chart::along(&scale, worst.case.kernel.relative_l2))) {}
            }
            text .value x=(chart::number(chart::WIDTH)) y=(chart::number(y + 4.5)) {
                (numbers::error(worst.case.kernel.relative_l2))
            }
        }
    };
    let drawing = chart::rows(&label, worst.len(), &scale, tick, "relative L2 error", body);
    Some(chart::figure(caption, drawing, table(&worst)))
}

/// Powers of ten alike, since that is how errors are written everywhere else.
fn tick(error: f64) -> String {
    format!("{error:e}").replace('-', "−")
}

fn table(worst: &[Worst]) -> Markup {
    let mut columns = vec![table::words("contestant"), table::numbers("cases"), table::words("worst on")];
    columns.extend(["kernel L2", "tolerance", "quantiser L2", "end-to-end L2"].map(table::numbers));
    columns.extend(["kernel bias", "deviation", "quantiser bias", "deviation"].map(table::numbers));
    let rows = worst.iter().map(|Worst { entry, case, tolerance }| {
        let error = |value: f64| table::text(numbers::error(value));
        vec![
            html! { span class=[entry.peer.then_some("peer")] { (entry.name) } },
            table::text(numbers::whole(entry.cases.len())),
            table::text(&case.origin),
            error(case.kernel.relative_l2),
            table::optional(*tolerance, numbers::error),
            error(case.quantizer.relative_l2),
            error(case.end_to_end.relative_l2),
            error(case.kernel.bias),
            error(case.kernel.deviation),
            error(case.quantizer.bias),
            error(case.quantizer.deviation),
        ]
    });
    table::render("Errors", &columns, rows.collect())
}
