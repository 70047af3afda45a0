//! What launches cost the host, beside the driver's own call.

use super::{table, text};
use eightfold_lab::measure::HostGroup;

/// The table of one shape.
pub fn render(group: &HostGroup) -> String {
    let us = |ns: f64| format!("{:.2} µs", ns / 1e3);
    let mut table = table(&["variant", "V", "launches", "p50", "p95", "driver p50", "driver p95", "beside"], false);
    for entry in &group.entries {
        table.add_row([
            entry.name.clone(),
            entry.value_layout.clone(),
            entry.launches.to_string(),
            us(entry.launch_p50_ns),
            us(entry.launch_p95_ns),
            us(entry.driver_p50_ns),
            us(entry.driver_p95_ns),
            us(entry.beside_ns()),
        ]);
    }
    format!(
        "host time per launch, {}: {}\n{}  driver: its own call for empty kernels, as many, with arguments as large, in the same \
         run\n",
        group.shape,
        group.problem,
        text(&table)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use eightfold_lab::measure::HostEntry;

    #[test]
    fn what_is_beside_the_driver_comes_last() {
        let entry = HostEntry {
            name: "hopper:fast".into(),
            implementation: "hopper:fast".into(),
            value_layout: "bhsd".into(),
            argument_bytes: vec![80, 704],
            launches: 2048,
            launch_p50_ns: 5250.0,
            launch_p95_ns: 6000.0,
            driver_p50_ns: 5000.0,
            driver_p95_ns: 5500.0,
        };
        let group = HostGroup { shape: "mission".into(), problem: "1,8,512,64".into(), entries: vec![entry] };
        let text = render(&group);
        let row = text.lines().find(|line| line.contains("hopper:fast")).unwrap();
        assert!(row.contains("5.25 µs") && row.contains("0.25 µs"), "{text}");
    }
}
