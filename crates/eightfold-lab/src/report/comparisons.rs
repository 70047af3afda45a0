//! Verdicts between a baseline and a candidate, with the intervals that they rest on.

use super::table;
use super::words;
use crate::compare::Comparison;
use crate::numbers;
use crate::verdict::SpeedUp;
use maud::{Markup, html};

/// The verdicts of a record; nothing where it holds none.
pub fn render(comparisons: &[Comparison]) -> Option<Markup> {
    if comparisons.is_empty() {
        return None;
    }
    let mut columns = vec![table::words("candidate"), table::words("verdict"), table::words("baseline")];
    columns.extend([table::words("problem"), table::numbers("speed-up"), table::numbers("95 % interval")]);
    columns.extend([table::numbers("required"), table::numbers("against itself"), table::numbers("rounds")]);
    columns.push(table::numbers("planted"));
    let rows = comparisons.iter().map(|comparison| {
        let Comparison { speed_up, itself, planted, required_gain, .. } = comparison;
        vec![
            table::text(&comparison.candidate.name),
            words::badge(comparison.outcome),
            table::text(&comparison.baseline.name),
            table::text(comparison.problem.title(&comparison.shape)),
            table::optional(*speed_up, |found| numbers::ratio(found.ratio)),
            table::optional(*speed_up, |SpeedUp { lower, upper, .. }| format!("{lower:.3} to {upper:.3}")),
            table::text(format!("{:.2}×", 1.0 + required_gain)),
            table::optional(*itself, |found| numbers::ratio(found.ratio)),
            table::optional(*speed_up, |found| numbers::whole(found.rounds)),
            table::optional(*planted, numbers::signed_percent),
        ]
    });
    let rows: Vec<_> = rows.collect();
    Some(html! {
        (table::render("Verdicts", &columns, rows))
        ul .remarks { @for comparison in comparisons {
            li { strong { (comparison.candidate.name) } " " (words::badge(comparison.outcome)) " " (comparison.summary) }
        } }
    })
}
