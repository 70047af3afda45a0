//! What the gates saw of each variant: the worst case of every statistic, over all inputs and for each kind of them.

use super::csv::{self, number};
use super::ladder_table::{gates, remarks, title};
use super::numbers::{NONE, error, percent};
use super::table::Table;
use super::{table, text};
use eightfold_lab::gates::CaseReport;
use eightfold_lab::record::{Entry, Group, Record};

/// The table of one shape, with what needs more words below it.
pub fn render(group: &Group) -> String {
    format!("{}\n{}{}", title(group), text(&rows(group)), remarks(group))
}

/// The same for documents, with every column.
pub fn markdown(group: &Group) -> String {
    let below: String = remarks(group).lines().map(|line| format!("- {}\n", line.trim())).collect();
    let gap = if below.is_empty() { "" } else { "\n" };
    format!("### {}\n\n{}{gap}{below}", title(group), rows(group).markdown())
}

const HEADER: [&str; 10] =
    ["variant", "cases", "rel. L2", "bias", "deviation", "max", "quantiser L2", "end-to-end L2", "in f32", "gates"];

fn rows(group: &Group) -> Table {
    let mut table = table(&HEADER, true).with_extras(&[
        "cases",
        "max",
        "end-to-end L2",
        "quantiser L2",
        "bias",
        "deviation",
        "in f32",
    ]);
    for entry in &group.entries {
        let all: Vec<&CaseReport> = entry.cases.iter().collect();
        table.add_row(row(&entry.name, &all, &gates(entry)));
        // Of a sweep every case is a kind of its own; those that fail are named below.
        for inputs in kinds(&entry.cases).into_iter().filter(|_| !group.sweep) {
            let of_kind: Vec<&CaseReport> = all.iter().copied().filter(|case| kind(case) == inputs).collect();
            table.add_row(row(&format!("  {inputs}"), &of_kind, ""));
        }
    }
    table
}

const CSV_HEADER: [&str; 13] = [
    "shape",
    "problem",
    "variant",
    "implementation",
    "inputs",
    "relative_l2",
    "bias",
    "deviation",
    "max_abs",
    "quantiser_relative_l2",
    "end_to_end_relative_l2",
    "tiles",
    "tiles_in_f32",
];

/// Every case of every variant, for programs; a variant without cases has a row, too.
pub fn csv(record: &Record) -> String {
    let of_entry = |group: &Group, entry: &Entry| -> Vec<Vec<String>> {
        let of = |cells: [String; 9]| {
            let (shape, problem) = (group.shape.clone(), group.problem.title(&group.shape));
            [vec![shape, problem, entry.name.clone(), entry.implementation.clone()], cells.to_vec()].concat()
        };
        if entry.cases.is_empty() {
            return vec![of(Default::default())];
        }
        let row = |case: &CaseReport| {
            let values = [case.kernel.relative_l2, case.kernel.bias, case.kernel.deviation, case.kernel.max_abs];
            let [l2, bias, deviation, max] = values.map(|value| number(Some(value)));
            let [quantiser, whole] = [case.quantizer, case.end_to_end].map(|errors| number(Some(errors.relative_l2)));
            let (tiles, in_f32) = (case.run.tiles.to_string(), case.run.tiles_in_f32.to_string());
            of([case.origin.clone(), l2, bias, deviation, max, quantiser, whole, tiles, in_f32])
        };
        entry.cases.iter().map(row).collect()
    };
    let of_group = |group: &Group| group.entries.iter().flat_map(|entry| of_entry(group, entry)).collect::<Vec<_>>();
    csv::csv(&CSV_HEADER, record.groups.iter().flat_map(of_group))
}

/// The worst of each statistic; the gates' outcomes last.
fn row(name: &str, cases: &[&CaseReport], gates: &str) -> [String; 10] {
    let worst = |value: fn(&CaseReport) -> f64| error(cases.iter().map(|case| value(case)).reduce(f64::max));
    let tiles: u64 = cases.iter().map(|case| case.run.tiles).sum();
    let in_f32: u64 = cases.iter().map(|case| case.run.tiles_in_f32).sum();
    [
        name.into(),
        cases.len().to_string(),
        worst(|case| case.kernel.relative_l2),
        worst(|case| case.kernel.bias.abs()),
        worst(|case| case.kernel.deviation),
        worst(|case| case.kernel.max_abs),
        worst(|case| case.quantizer.relative_l2),
        worst(|case| case.end_to_end.relative_l2),
        if tiles == 0 { NONE.into() } else { percent(in_f32 as f64 / tiles as f64) },
        gates.into(),
    ]
}

/// The kind of inputs of a case: its origin without the seed.
fn kind(case: &CaseReport) -> &str {
    case.origin.split(" seed ").next().unwrap_or(&case.origin)
}

/// Every kind of inputs, in the order of their first case.
fn kinds(cases: &[CaseReport]) -> Vec<&str> {
    let mut kinds = Vec::new();
    for case in cases {
        if !kinds.contains(&kind(case)) {
            kinds.push(kind(case));
        }
    }
    kinds
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::fixed_data;

    #[test]
    fn layout() {
        insta::assert_snapshot!(render(&fixed_data::group(false)));
    }

    #[test]
    fn as_csv_and_as_markdown() {
        let record = Record { groups: vec![fixed_data::group(false)], ..fixed_data::builds() };
        let rows = csv(&record);
        assert!(rows.starts_with("shape,problem,variant,implementation,inputs,relative_l2,"), "{rows}");
        let columns = |line: &str| line.split('"').step_by(2).map(|part| part.matches(',').count()).sum::<usize>() + 1;
        assert!(rows.lines().all(|line| columns(line) == CSV_HEADER.len()), "{rows}");
        assert_eq!(rows.lines().count(), 1 + record.groups[0].entries.len());
        let markdown = markdown(&record.groups[0]);
        assert!(
            markdown.contains("| variant | cases | rel. L2 |") && markdown.contains("| gaussian | 1 |"),
            "{markdown}"
        );
    }

    #[test]
    fn a_sweep_has_one_row_for_each_variant() {
        let group = Group { sweep: true, shape: "150 odd problems".into(), ..fixed_data::group(false) };
        insta::assert_snapshot!(render(&group));
    }
}
