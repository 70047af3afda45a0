//! What a profiler counted, and what that says bounds each kernel.

use super::table;
use super::words;
use crate::gates::Gate;
use crate::numbers;
use crate::profile::{Metric, Profiled};
use crate::record::Group;
use maud::{Markup, html};

/// The metrics that have a column, with its heading.
const COLUMNS: [(&str, Metric); 12] = [
    ("tensor cores", Metric::TensorPipe),
    ("SM", Metric::SmThroughput),
    ("device memory", Metric::Dram),
    ("resident warps", Metric::WarpsActive),
    ("issue slots", Metric::IssueSlots),
    ("special functions", Metric::XuPipe),
    ("multiply-add", Metric::FmaPipe),
    ("integer, logic", Metric::AluPipe),
    ("shared memory", Metric::SharedMemory),
    ("bank conflicts", Metric::BankConflicts),
    ("local memory", Metric::LocalInstructions),
    ("bytes moved", Metric::DramBytes),
];

/// The profiles of a group; nothing where nobody was profiled.
pub fn render(group: &Group) -> Option<Markup> {
    let profiled: Vec<_> =
        group.entries.iter().filter_map(|entry| entry.profile.as_ref().map(|profiled| (entry, profiled))).collect();
    let (_, first) = profiled.first()?;
    let mut columns = vec![table::words("kernel"), table::words("gate"), table::numbers("time")];
    columns.extend(COLUMNS.map(|(title, _)| table::numbers(title)));
    columns.extend([table::numbers("FLOP per byte"), table::numbers("of the roof")]);
    let rows = profiled.iter().map(|(entry, profiled)| {
        let Profiled { profile, position, .. } = profiled;
        let mut row = vec![
            table::text(&entry.name),
            words::cell(&entry.gates, Gate::Profile),
            table::optional(profile.time_us().ok(), numbers::time),
        ];
        row.extend(
            COLUMNS.map(|(_, metric)| table::optional(profile.get(metric).ok(), |value| metric.unit().words(value))),
        );
        row.push(table::optional(*position, |position| numbers::three_digits(position.flop_per_byte)));
        row.push(table::optional(*position, |position| format!("{:.1} %", 100.0 * position.share())));
        row
    });
    Some(html! {
        (table::render("Profile", &columns, rows.collect()))
        ul .remarks { @for (entry, profiled) in &profiled {
            li {
                strong { (entry.name) } " is bound by " strong { (profiled.bottleneck.by) } ". "
                (profiled.bottleneck.evidence) "."
            }
        } }
        p .aside { (first.profiler) "." }
    })
}
