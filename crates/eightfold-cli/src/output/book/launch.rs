//! The page of what launches cost the host.

use super::{of, source, table};
use eightfold_lab::archive::Filed;
use eightfold_lab::measure::{HostEntry, HostGroup};
use eightfold_lab::record::Kind;

pub(super) fn page(filed: &[Filed]) -> String {
    let mut text = String::from(
        "# Launches\n\nWhat a launch costs the host: from the call until it returns, with the kernel compiled and its arguments checked before. The driver's own call launches empty kernels, as many, with arguments as large. Both took turns in one run. The difference is below zero where the launch took less.\n\n",
    );
    for filed in of(filed, "launch", Kind::Host) {
        text.push_str(&source(filed));
        let rows = filed.record.hosts.iter().flat_map(|group| group.entries.iter().map(move |entry| row(group, entry)));
        let head = [
            "shape",
            "kernel",
            "V",
            "kernels a launch",
            "launch, median",
            "driver, median",
            "difference",
            "launch, 95 %",
        ];
        text.push_str(&table(&head, rows));
    }
    text
}

fn row(group: &HostGroup, entry: &HostEntry) -> String {
    let us = |ns: f64| format!("{:.2} µs", ns / 1e3);
    let HostEntry { name, value_layout, launch_p50_ns, launch_p95_ns, driver_p50_ns, .. } = entry;
    format!(
        "| {} | `{name}` | {value_layout} | {} | {} | {} | {} | {} |",
        group.shape,
        entry.argument_bytes.len(),
        us(*launch_p50_ns),
        us(*driver_p50_ns),
        us(entry.beside_ns()),
        us(*launch_p95_ns)
    )
}
