//! The page of the ledger: what was expected of each stage, and what it brought.

use super::table;
use crate::output::ledger_table;
use eightfold_lab::kernel::Kernel;
use eightfold_lab::ledger::{self, Ledger};
use eightfold_lab::record::Kind;
use std::path::Path;

/// The numbers of the plan that this project began with, and of the reports on it: they count differently.
const STAGES: [(&str, &str, &str, &str); 10] = [
    ("K and V double-buffered with cp.async", "1", "1", "async-copy"),
    ("SIMD P·V", "2", "–", "simd-pv"),
    ("tensor-core P·V", "3", "2", "mma-pv"),
    ("scores' shared memory reused", "–", "3A", "reuse-scores"),
    ("softmax fused, scores in registers", "–", "3B", "fused-softmax"),
    ("three-stage cp.async", "–", "4", "three-stage"),
    ("warp specialisation", "4", "5", "warp-specialised"),
    ("persistent blocks", "–", "5", "persistent"),
    ("fast exponential", "–", "4, option C", "fast-exp"),
    ("XOR swizzle", "5", "–", "swizzle"),
];

pub(super) fn page(root: &Path) -> String {
    let rows = STAGES.map(|(what, plan, report, name)| format!("| {what} | {plan} | {report} | `{name}` |"));
    let mut text = String::from(
        "# Ledger\n\nWhat each stage and each optimisation was expected to bring, and what it brought.\n\n",
    );
    text.push_str("The original plan and the reports on it number stages in two ways. Here stages have names:\n\n");
    text.push_str(&table(&["stage", "number in the plan", "number in the reports", "name"], rows));
    let results = root.join("results");
    let short = |path: &Path| path.strip_prefix(root).unwrap_or(path).to_path_buf();
    for kernel in Kernel::all() {
        let found = ledger::newest(&[&results], kernel).record.map(|(path, record)| (short(&path), record));
        let mut records = ledger::comparisons(ledger::runs(&[&results], Kind::Compare)).records;
        let ledger = Ledger::of(kernel);
        records.retain(|(_, record)| ledger.applies_to(kernel, &record.provenance));
        records.iter_mut().for_each(|(path, _)| *path = short(path));
        let evolution = ledger::Evolution::new(kernel, found.as_ref().map(|(path, record)| (path.as_path(), record)));
        text.push_str(&ledger_table::markdown(&evolution.with_comparisons(&records), true));
        text.push('\n');
    }
    text
}
