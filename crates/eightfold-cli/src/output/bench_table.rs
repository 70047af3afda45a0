//! Times side by side, the verdict last: how many times faster than the yardstick.

use super::compare_table::gpu_words;
use super::csv::{self, number};
use super::ladder_table::{remarks, title};
use super::numbers::{NONE, error, ratio, time};
use super::table::Table;
use super::{table, text};
use eightfold_lab::bound::Bound;
use eightfold_lab::measure::{Cache, PageReading, Reading, Timer};
use eightfold_lab::numbers;
use eightfold_lab::record::{Entry, Group, Record};

/// The table of one shape, with what needs more words below it.
pub fn render(group: &Group) -> String {
    format!("{}\n{}{}{}", title(group), text(&rows(group)), circumstances(group), remarks(group))
}

/// The same for documents, with every column.
pub fn markdown(group: &Group) -> String {
    let below: String =
        { circumstances(group) + &remarks(group) }.lines().map(|line| format!("- {}\n", line.trim())).collect();
    let gap = if below.is_empty() { "" } else { "\n" };
    format!("### {}\n\n{}{gap}{below}", title(group), rows(group).markdown())
}

const CSV_HEADER: [&str; 20] = [
    "shape",
    "problem",
    "contestant",
    "implementation",
    "peer",
    "output_format",
    "timer",
    "runs",
    "p50_us",
    "std_us",
    "p90_us",
    "p99_us",
    "event_p50_us",
    "gflop_per_second",
    "bound_us",
    "reading_us",
    "relative_l2",
    "yardstick",
    "speed_up_over_yardstick",
    "pages",
];

/// Every contestant on every shape, for programs.
pub fn csv(record: &Record) -> String {
    let of_group = |group: &Group| -> Vec<Vec<String>> {
        let yardstick = yardstick(group);
        let over = |entry: &Entry| Some(yardstick?.p50_us()? / entry.p50_us()?);
        let row = |entry: &Entry| {
            let summary = entry.timing.as_ref().map(|timing| timing.summary);
            let event = entry.launch_timing.as_ref().map(|timing| timing.summary.p50_us);
            vec![
                group.shape.clone(),
                group.problem.title(&group.shape),
                entry.name.clone(),
                entry.implementation.clone(),
                entry.peer.to_string(),
                entry.output_format.clone().unwrap_or_else(|| group.problem.output_format.clone()),
                entry.timing.as_ref().map_or("", |timing| timer(timing.timer)).into(),
                summary.map_or(String::new(), |summary| summary.iterations.to_string()),
                number(summary.map(|summary| summary.p50_us)),
                number(summary.map(|summary| summary.std_us)),
                number(summary.map(|summary| summary.p90_us)),
                number(summary.map(|summary| summary.p99_us)),
                number(event),
                number(entry.p50_us().map(|p50_us| group.problem.gflop / (p50_us * 1e-6))),
                number(group.bound.as_ref().map(|bound| bound.floor_us)),
                number(group.reading_of(entry).map(Reading::p50_us)),
                number(entry.worst_relative_l2()),
                yardstick.map_or(String::new(), |entry| entry.name.clone()),
                number(over(entry)),
                entry.pages.map_or(String::new(), |pages| pages.to_string()),
            ]
        };
        group.entries.iter().map(row).collect()
    };
    csv::csv(&CSV_HEADER, record.groups.iter().flat_map(of_group))
}

/// The yardstick is the fastest peer, or else the first variant.
fn rows(group: &Group) -> Table {
    let yardstick = yardstick(group);
    let last = format!("× {}", yardstick.map_or("", |entry| &entry.name));
    let launched = group.entries.iter().any(|entry| entry.launch_timing.is_some());
    let mut header = vec!["contestant", "runs", "p50", "±", "p90", "p99"];
    header.extend(launched.then_some("event p50"));
    header.push("rate");
    header.extend(group.bound.is_some().then_some("of bound"));
    header.extend(group.reading.is_some().then_some("of reading"));
    header.extend(["rel. L2", &last]);
    let mut table = table(&header, false).with_extras(&["event p50", "of bound", "±", "p90", "p99", "runs"]);
    let yardstick = yardstick.and_then(Entry::p50_us);
    for entry in &group.entries {
        let summary = entry.timing.as_ref().map(|timing| timing.summary);
        let mut row = vec![
            entry.name.clone(),
            summary.map_or(NONE.into(), |summary| summary.iterations.to_string()),
            time(summary.map(|summary| summary.p50_us)),
            time(summary.map(|summary| summary.std_us)),
            time(summary.map(|summary| summary.p90_us)),
            time(summary.map(|summary| summary.p99_us)),
        ];
        row.extend(launched.then(|| time(entry.launch_timing.as_ref().map(|timing| timing.summary.p50_us))));
        let gflop_per_second = entry.p50_us().map(|p50_us| group.problem.gflop / (p50_us * 1e-6));
        row.push(gflop_per_second.map_or(NONE.into(), numbers::rate));
        row.extend(
            group.bound.as_ref().map(|bound| {
                entry.p50_us().map_or(NONE.into(), |p50_us| format!("{:.1} %", 100.0 * bound.share(p50_us)))
            }),
        );
        row.extend(group.reading.is_some().then(|| {
            let share = group.reading_of(entry).zip(entry.p50_us()).map(|(reading, p50_us)| reading.p50_us() / p50_us);
            share.map_or(NONE.into(), |share| format!("{:.1} %", 100.0 * share))
        }));
        row.extend([
            error(entry.worst_relative_l2()),
            ratio(yardstick.zip(entry.p50_us()).map(|(yardstick, p50)| yardstick / p50)),
        ]);
        table.add_row(row);
    }
    table
}

/// What the bound is, what reading alone takes, the state of the caches, and what the GPU's clocks did, where they are known.
fn circumstances(group: &Group) -> String {
    let mut lines = String::new();
    if let Some(Bound { floor_us, by }) = &group.bound {
        lines.push_str(&format!("  bound: {}, {by}\n", time(Some(*floor_us))));
    }
    if let Some(reading) = &group.reading {
        lines.push_str(&reading_line("K and V alone", reading));
    }
    for PageReading { page_size, reading } in &group.page_readings {
        lines.push_str(&reading_line(&format!("pages of {page_size}"), reading));
    }
    if !group.page_readings.is_empty() {
        lines.push_str("  of reading: for a row from pages, the share that reading those pages takes\n");
    }
    if group.entries.iter().filter_map(|entry| entry.timing.as_ref()).any(|timing| timing.cache == Cache::Cold) {
        lines.push_str("  caches were emptied before every run\n");
    }
    if let Some(gpu) = group.conditions.as_ref().and_then(|conditions| conditions.gpu.as_ref()) {
        lines.push_str(&format!("  {}\n", gpu_words(gpu)));
    }
    lines
}

fn reading_line(what: &str, reading: &Reading) -> String {
    let (bytes, rate) = (numbers::memory(reading.bytes), reading.bytes_per_second() / 1e9);
    format!("  reading {bytes} of {what}: {}, {rate:.1} GB/s\n", time(Some(reading.p50_us())))
}

fn timer(timer: Timer) -> &'static str {
    match timer {
        Timer::HostClock => "host_clock",
        Timer::GraphReplay => "graph_replay",
        Timer::SeparateReplay => "graph_replay_without_overlap",
        Timer::Event => "event",
    }
}

fn yardstick(group: &Group) -> Option<&Entry> {
    let peers = || group.entries.iter().filter(|entry| entry.peer);
    let timed = peers().filter_map(|entry| Some((entry, entry.p50_us()?)));
    let fastest = timed.min_by(|one, other| one.1.total_cmp(&other.1)).map(|(entry, _)| entry);
    fastest.or(peers().next()).or(group.entries.first())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::fixed_data;
    use eightfold_lab::measure::{Conditions, GpuConditions};

    #[test]
    fn layout() {
        insta::assert_snapshot!(render(&fixed_data::group(true)));
    }

    #[test]
    fn on_a_gpu_single_launches_are_shown_and_the_fastest_peer_is_the_yardstick() {
        let bound = Some(Bound { floor_us: 8.0, by: "so much work at such a rate".into() });
        let gpu = GpuConditions {
            source: "NVML".into(),
            sm_clock_mhz: vec![Some(1980.0), Some(1965.0)],
            most_power_w: Some(412.3),
            most_temperature_c: Some(47.0),
            held_down_by: vec!["software power cap".into()],
            ..GpuConditions::default()
        };
        let conditions = Some(Conditions { gpu: Some(gpu), ..Conditions::default() });
        insta::assert_snapshot!(render(&Group { bound, conditions, ..fixed_data::gpu_group(true) }));
    }

    #[test]
    fn as_csv_and_as_markdown_every_contestant_has_a_row() {
        let record = Record { groups: vec![fixed_data::group(true)], ..fixed_data::builds() };
        let count = record.groups[0].entries.len();
        let rows = csv(&record);
        assert_eq!(rows.lines().count(), count + 1);
        assert!(rows.starts_with("shape,problem,contestant,implementation,peer,"), "{rows}");
        let torch = rows.lines().find(|line| line.contains(",true,")).unwrap();
        assert!(torch.contains(",torch-f32,") && torch.ends_with(",torch-bf16,0.5,"), "{torch}");
        let markdown = markdown(&record.groups[0]);
        assert!(markdown.starts_with("### mission") && markdown.contains("| torch-f32 | 1 | 1.98 ms |"), "{markdown}");
        assert!(markdown.contains("\n- racy: the timed runs differed\n"), "{markdown}");
    }

    #[test]
    fn reading_alone_stands_beside_what_few_queries_take() {
        let group = fixed_data::group(true);
        let timing = group.entries[0].timing.clone().unwrap();
        let text = render(&Group { reading: Some(Reading { bytes: 8 << 20, timing }), ..group });
        assert!(text.contains("of reading") && text.contains("100.0 %"), "{text}");
        assert!(text.contains("  reading 8.00 MiB of K and V alone: 210 ms, 0.0 GB/s\n"), "{text}");
    }

    #[test]
    fn a_row_from_pages_stands_beside_reading_its_own_pages() {
        let mut group = fixed_data::paged_group();
        let text = render(&group);
        let shares = ["cpu:queue ", "cpu:queue pages=16 ", "cpu:queue pages=64 "]
            .into_iter()
            .zip([" 65.0 % ", " 92.0 % ", " 90.0 % "]);
        for (name, share) in shares {
            let row = text.lines().find(|line| line.trim_start().starts_with(name));
            assert!(row.is_some_and(|row| row.contains(share)), "{text}");
        }
        let below = "  reading 128 MiB of K and V alone: 6.50 ms, 20.6 GB/s\n\
                     \x20 reading 128 MiB of pages of 16: 9.20 ms, 14.6 GB/s\n\
                     \x20 reading 128 MiB of pages of 64: 7.20 ms, 18.6 GB/s\n\
                     \x20 of reading: for a row from pages, the share that reading those pages takes\n";
        assert!(text.contains(below), "{text}");
        // One that was not timed stands beside nothing.
        group.page_readings.pop();
        assert!(render(&group).lines().any(|line| line.contains("pages=64") && !line.contains('%')));
        let rows = csv(&Record { groups: vec![group], ..fixed_data::builds() });
        let column = |name: &str| -> Vec<&str> {
            // The problem has commas, and stands before these columns.
            let from_the_end = CSV_HEADER.iter().rev().position(|one| *one == name).unwrap();
            rows.lines().skip(1).map(|row| row.rsplit(',').nth(from_the_end).unwrap()).collect()
        };
        assert_eq!(column("pages"), ["", "16", "64"]);
        assert_eq!(column("reading_us"), ["6500", "9200", ""]);
    }

    #[test]
    fn without_a_peer_the_first_variant_is_the_yardstick() {
        insta::assert_snapshot!(render(&fixed_data::group(false)));
    }
}
