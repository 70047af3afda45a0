//! What bounds each problem: times beside their floors, where some record of the page has a profile of the same kernel.

use super::{Source, table};
use crate::profile::Account;
use maud::{Markup, html};

/// The section of all records; nothing where nothing was both timed and profiled.
pub fn render(sources: &[Source]) -> Option<Markup> {
    let records = || sources.iter().map(|source| &source.record);
    let accounts = records()
        .flat_map(|record| record.groups.iter().filter_map(move |group| Account::of(record, group, records())));
    let rows: Vec<Vec<Markup>> =
        accounts.filter(Account::is_profiled).map(|account| account.cells().map(table::text).into()).collect();
    let last = Account::HEADINGS.len() - 2;
    let columns = Account::HEADINGS.iter().enumerate().map(|(index, heading)| match index {
        0 => table::words(*heading),
        index if index >= last => table::words(*heading),
        _ => table::numbers(*heading),
    });
    (!rows.is_empty()).then(|| {
        html! {
            section .group {
                h3 { "What bounds each problem" }
                (table::render("Times beside their floors", &columns.collect::<Vec<_>>(), rows))
                p .aside {
                    "Of each problem's first contestant. Floor: its arithmetic, or its bytes, at the device's highest rate. "
                    "Percentages are of what the part can do, counted during one launch under the profiler."
                }
            }
        }
    })
}
