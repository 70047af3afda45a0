//! The pages of the CPU kernel and of the device's quantiser.

use super::{NONE, best_peer, error, of, ratio, shape, source, table, time};
use crate::output::{ladder_table, quantizer_table};
use eightfold_lab::archive::Filed;
use eightfold_lab::measure::Reading;
use eightfold_lab::numbers;
use eightfold_lab::record::{Entry, Group, Kind};
use std::collections::BTreeSet;
use std::fmt::Write;

pub(super) fn page(filed: &[Filed]) -> String {
    let mut text = String::from("# CPU\n\n");
    let (decoding, others): (Vec<&Filed>, Vec<&Filed>) = of(filed, "cpu", Kind::Bench)
        .partition(|filed| filed.record.groups.iter().all(|group| group.reading.is_some()));
    for filed in others {
        let groups = &filed.record.groups;
        let mask = if groups[0].problem.causal { ", causal" } else { "" };
        let _ = write!(text, "## Against PyTorch{mask}\n\n{}", source(filed));
        let _ = write!(
            text,
            "PyTorch computes on inputs that were dequantised before the clock started. Eightfold starts from FP8. \
             {} In brackets: how many times faster than the fastest PyTorch.\n\n",
            output_formats(groups)
        );
        let names = contestants(groups);
        let head: Vec<&str> = std::iter::once("shape").chain(names.iter().copied()).collect();
        text.push_str(&table(&head, groups.iter().map(|group| times(group, &names))));
        text.push_str("Largest relative L2 errors against float64 attention on the same inputs:\n\n");
        text.push_str(&table(&head, groups.iter().map(|group| errors(group, &names))));
        for line in crashes(groups) {
            let _ = write!(text, "{line}\n\n");
        }
    }
    for filed in decoding {
        let groups = &filed.record.groups;
        let most = groups.iter().filter_map(|group| group.reading.as_ref()).map(|reading| reading.bytes).max();
        let most = numbers::memory(most.unwrap_or_default());
        let _ = write!(text, "## Decoding, up to {most} of K and V\n\n{}", source(filed));
        text.push_str(
            "One query meets the keys of its sequence, in tensors or in pages in random order. In brackets: the share of that \
             time in which as many threads read K and V and do nothing else.",
        );
        let sizes: BTreeSet<usize> =
            groups.iter().flat_map(|group| &group.page_readings).map(|one| one.page_size).collect();
        if !sizes.is_empty() {
            text.push_str(
                " From pages: first the share for reading those pages in the order of the table, then that for reading \
                 the tensors.",
            );
        }
        text.push_str("\n\n");
        let names = contestants(groups);
        let of_pages: Vec<String> = sizes.iter().map(|size| format!("reading pages of {size}")).collect();
        let head = ["shape", "reading K and V"].into_iter().chain(of_pages.iter().map(String::as_str));
        let head: Vec<&str> = head.chain(names.iter().copied()).collect();
        text.push_str(&table(&head, groups.iter().map(|group| beside_reading(group, &sizes, &names))));
    }
    for filed in of(filed, "cpu", Kind::Ladder) {
        let _ = write!(text, "## Stages\n\n{}", source(filed));
        for group in &filed.record.groups {
            let _ = write!(text, "```text\n{}```\n\n", ladder_table::render(group));
        }
    }
    text
}

pub(super) fn quantizer(filed: &[Filed]) -> String {
    let mut text = String::from("# Quantiser\n\nThe device's quantiser beside a copy of as many bytes.\n\n");
    for filed in of(filed, "quantizer", Kind::Quantizer) {
        text.push_str(&source(filed));
        for group in &filed.record.quantizers {
            let _ = write!(text, "```text\n{}```\n\n", quantizer_table::render(group));
        }
    }
    text
}

/// In which formats the outputs are: that of the problem, and those who have another.
fn output_formats(groups: &[Group]) -> String {
    let Some(own) = groups.first().map(|group| &group.problem.output_format) else { return String::new() };
    let mut text = format!("Outputs are in {own}");
    let entries = || groups.iter().flat_map(|group| &group.entries);
    for name in contestants(groups) {
        let other = entries().filter(|entry| entry.name == name).find_map(|entry| entry.output_format.as_ref());
        if let Some(format) = other.filter(|format| *format != own) {
            let _ = write!(text, ", of {name} in {format}");
        }
    }
    text + "."
}

/// Who was measured, peers first.
fn contestants(groups: &[Group]) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for peers in [true, false] {
        for entry in groups.iter().flat_map(|group| &group.entries).filter(|entry| entry.peer == peers) {
            if !names.contains(&entry.name.as_str()) {
                names.push(&entry.name);
            }
        }
    }
    names
}

fn row(group: &Group, names: &[&str], cell: impl Fn(&Entry) -> String) -> String {
    let of = |name: &&str| group.entries.iter().find(|entry| entry.name == *name).map_or(NONE.into(), &cell);
    format!("| {} | {} |", shape(group), names.iter().map(of).collect::<Vec<_>>().join(" | "))
}

/// The time of each, and how many times faster ours are than the fastest peer.
fn times(group: &Group, names: &[&str]) -> String {
    let peer_us = best_peer(group).map(|(_, us)| us);
    row(group, names, |entry| {
        let faster = ratio(peer_us.zip(entry.p50_us()).map(|(peer, own)| peer / own));
        time(entry.p50_us()) + &if entry.peer { String::new() } else { format!(" ({faster})") }
    })
}

/// The times of reading alone, of the tensors and of pages of these sizes, and of each with the shares that reading takes.
fn beside_reading(group: &Group, sizes: &BTreeSet<usize>, names: &[&str]) -> String {
    let read = |reading: Option<&Reading>| {
        reading.map_or(NONE.into(), |reading| {
            format!("{} ({:.1} GB/s)", time(Some(reading.p50_us())), reading.bytes_per_second() / 1e9)
        })
    };
    let of_pages = |size| group.page_readings.iter().find(|one| one.page_size == size).map(|one| &one.reading);
    let readings = std::iter::once(group.reading.as_ref()).chain(sizes.iter().map(|size| of_pages(*size)));
    let of = |name: &&str| match group.entries.iter().find(|entry| entry.name == *name) {
        None => NONE.into(),
        Some(entry) => {
            let pages = group.reading_of(entry).filter(|_| entry.pages.is_some());
            let share = |reading: &Reading| Some(format!("{:.0} %", 100.0 * reading.p50_us() / entry.p50_us()?));
            let shares: Vec<String> = pages.into_iter().chain(&group.reading).filter_map(share).collect();
            let shares = if shares.is_empty() { String::new() } else { format!(" ({})", shares.join(", ")) };
            time(entry.p50_us()) + &shares
        }
    };
    let cells: Vec<String> = readings.map(read).chain(names.iter().map(of)).collect();
    format!("| {} | {} |", shape(group), cells.join(" | "))
}

fn errors(group: &Group, names: &[&str]) -> String {
    row(group, names, |entry| error(entry.worst_relative_l2()))
}

/// What peers died of before they were measured, each said once.
fn crashes(groups: &[Group]) -> Vec<String> {
    let entries = groups.iter().flat_map(|group| &group.entries);
    let mut lines: Vec<String> =
        entries.filter_map(|entry| Some(format!("`{}`: {}.", entry.name, entry.crash.as_ref()?))).collect();
    lines.sort();
    lines.dedup();
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::fixed_data;

    #[test]
    fn decoding_stands_beside_reading() {
        let mut group = fixed_data::group(false);
        let timing = group.entries[0].timing.clone().unwrap();
        let p50_us = timing.summary.p50_us;
        group.reading = Some(Reading { bytes: 1 << 24, timing });
        let names = contestants(std::slice::from_ref(&group));
        let row = beside_reading(&group, &BTreeSet::new(), &names);
        let rate = (1 << 24) as f64 / p50_us / 1e3;
        let start = format!("| mission (1,8,512,64), causal | {} ({rate:.1} GB/s) | ", time(Some(p50_us)));
        assert!(row.starts_with(&start), "{row}");
        assert!(row.contains(" (100 %) |"), "{row}");
    }

    #[test]
    fn decoding_from_pages_stands_beside_reading_the_pages_and_the_tensors() {
        let group = fixed_data::paged_group();
        let names = contestants(std::slice::from_ref(&group));
        let row = beside_reading(&group, &BTreeSet::from([16, 64]), &names);
        let cells: Vec<&str> = row.split(" | ").skip(1).collect();
        assert_eq!(cells[..3], ["6.50 ms (20.6 GB/s)", "9.20 ms (14.6 GB/s)", "7.20 ms (18.6 GB/s)"]);
        assert_eq!(cells[3..], ["10.0 ms (65 %)", "10.0 ms (92 %, 65 %)", "8.00 ms (90 %, 81 %) |"]);
    }

    #[test]
    fn ours_stand_against_the_fastest_peer_with_errors_and_crashes_beside() {
        let groups = [fixed_data::group(true)];
        let names = contestants(&groups);
        assert_eq!(names[..3], ["torch-f32", "torch-bf16", "baseline"]);
        let (times, errors) = (times(&groups[0], &names), errors(&groups[0], &names));
        assert!(times.starts_with("| mission (1,8,512,64), causal | 1.98 ms | 988 µs | 210 ms (0.0047×) |"), "{times}");
        assert!(errors.contains("| 3.0e-7 | 4.0e-3 | 1.5e-7 |"), "{errors}");
        assert_eq!(output_formats(&groups), "Outputs are in f32.");
        let mut mixed = groups.clone();
        mixed[0].entries.iter_mut().find(|entry| entry.name == "torch-bf16").unwrap().output_format =
            Some("bf16".into());
        assert_eq!(output_formats(&mixed), "Outputs are in f32, of torch-bf16 in bf16.");
        let crashed = "`torch-bf16`: it crashed by signal 4 (illegal instruction), and was started again with \
                       ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16.";
        assert_eq!(crashes(&[groups[0].clone(), groups[0].clone()]), [crashed]);
    }
}
