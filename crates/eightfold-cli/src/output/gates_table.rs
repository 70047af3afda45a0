//! What the gates saw of each variant: the worst case of every statistic, over all inputs and for each kind of them.

use super::ladder_table::{gates, remarks, title};
use super::numbers::{NONE, error, percent};
use super::{table, text};
use eightfold_lab::gates::CaseReport;
use eightfold_lab::record::Group;

/// The table of one shape, with what needs more words below it.
pub fn render(group: &Group) -> String {
    let header =
        ["variant", "cases", "rel. L2", "bias", "deviation", "max", "quantiser L2", "end-to-end L2", "in f32", "gates"];
    let mut table = table(&header, true);
    for entry in &group.entries {
        let all: Vec<&CaseReport> = entry.cases.iter().collect();
        table.add_row(row(&entry.name, &all, &gates(entry)));
        // Of a sweep every case is a kind of its own; those that fail are named below.
        for inputs in kinds(&entry.cases).into_iter().filter(|_| !group.sweep) {
            let of_kind: Vec<&CaseReport> = all.iter().copied().filter(|case| kind(case) == inputs).collect();
            table.add_row(row(&format!("  {inputs}"), &of_kind, ""));
        }
    }
    format!("{}\n{}{}", title(group), text(&table), remarks(group))
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
    fn a_sweep_has_one_row_for_each_variant() {
        let group = Group { sweep: true, shape: "150 odd problems".into(), ..fixed_data::group(false) };
        insta::assert_snapshot!(render(&group));
    }
}
