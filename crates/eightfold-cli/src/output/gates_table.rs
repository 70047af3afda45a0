//! What the gates saw of each variant: the worst case of every statistic.

use super::ladder_table::{gates, remarks, title};
use super::numbers::error;
use super::{table, text};
use eightfold_lab::gates::CaseReport;
use eightfold_lab::record::Group;

/// The table of one shape, with what needs more words below it.
pub fn render(group: &Group) -> String {
    let header = ["variant", "cases", "max", "mean", "bad", "rel. L2", "quantiser L2", "end-to-end L2", "gates"];
    let mut table = table(&header, true);
    for entry in &group.entries {
        let worst = |value: fn(&CaseReport) -> f64| entry.cases.iter().map(value).reduce(f64::max);
        table.add_row([
            entry.name.clone(),
            entry.cases.len().to_string(),
            error(worst(|case| case.kernel.max_abs)),
            error(worst(|case| case.kernel.mean_abs)),
            error(worst(|case| case.kernel.bad_fraction)),
            error(worst(|case| case.kernel.relative_l2)),
            error(worst(|case| case.quantizer.relative_l2)),
            error(worst(|case| case.end_to_end.relative_l2)),
            gates(entry),
        ]);
    }
    format!("{}\n{}{}", title(group), text(&table), remarks(group))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::fixed_data;

    #[test]
    fn layout() {
        insta::assert_snapshot!(render(&fixed_data::group(false)));
    }
}
