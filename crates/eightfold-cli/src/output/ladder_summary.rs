//! What a ladder comes to: on each shape the best variant against the baseline and the best peer.

use super::numbers::{NONE, ratio, time};
use super::table::Table;
use eightfold_lab::record::{Entry, Group, Record};

/// One row for each shape. A shape where nothing of ours was timed has dashes.
pub fn render(record: &Record) -> String {
    let peers = record.groups.iter().any(|group| fastest(group, true).is_some());
    let mut header = vec!["shape", "best", "p50", "× baseline"];
    header.extend(if peers { vec!["best peer", "its p50", "× best peer"] } else { Vec::new() });
    let mut table = Table::new(&header, false).with_words(1);
    if peers {
        table = table.with_words(4);
    }
    for group in &record.groups {
        let (ours, peer) = (fastest(group, false), fastest(group, true));
        let p50 = |entry: Option<&Entry>| entry.and_then(Entry::p50_us);
        let over = |other: Option<&Entry>| ratio(p50(other).zip(p50(ours)).map(|(other, ours)| other / ours));
        let name = |entry: Option<&Entry>| entry.map_or(NONE.into(), |entry| entry.name.clone());
        let mut row = vec![group.shape.clone(), name(ours), time(p50(ours)), over(group.entries.first())];
        row.extend(if peers { vec![name(peer), time(p50(peer)), over(peer)] } else { Vec::new() });
        table.add_row(row);
    }
    format!("the best on each shape\n{}", table.text())
}

/// The fastest of ours, or of the peers, that has a time.
fn fastest(group: &Group, peer: bool) -> Option<&Entry> {
    let timed = group.entries.iter().filter(|entry| entry.peer == peer && entry.p50_us().is_some());
    timed.min_by(|one, other| one.p50_us().unwrap_or(f64::MAX).total_cmp(&other.p50_us().unwrap_or(f64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::fixed_data;

    fn record(group: Group) -> Record {
        Record { groups: vec![group], ..fixed_data::builds() }
    }

    #[test]
    fn the_best_stands_beside_the_baseline_and_the_best_peer() {
        let text = render(&record(fixed_data::gpu_group(true)));
        let cells: Vec<&str> = text.lines().last().unwrap().split("  ").filter(|cell| !cell.is_empty()).collect();
        let cells: Vec<&str> = cells.iter().map(|cell| cell.trim()).collect();
        assert_eq!(cells, ["mission", "tuned", "20.2 µs", "20.0×", "torch-flash", "10.0 µs", "0.495×"]);
    }

    #[test]
    fn without_a_peer_there_is_no_column_for_it_and_without_a_time_there_are_dashes() {
        let text = render(&record(fixed_data::group(false)));
        assert!(!text.contains("peer") && text.lines().last().unwrap().contains("int16-avx2"), "{text}");
        let mut group = fixed_data::group(false);
        group.entries.iter_mut().for_each(|entry| entry.timing = None);
        assert!(render(&record(group)).lines().last().unwrap().ends_with('–'));
    }
}
