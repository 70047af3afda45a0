//! Nsight Compute's CSV into profiles. Two layouts: `--page raw`, a column per metric with a row of units below the names;
//! and `--page details`, a row per metric. Lines before the header are the profiler's or the program's own.

use super::{Metric, Profile, Stall, Unit};
use eightfold::{Error, Result};
use std::collections::BTreeMap;

/// What the names of stall reasons begin and end with.
pub(super) const STALL: (&str, &str) = ("smsp__average_warps_issue_stalled_", "_per_issue_active.ratio");
/// Counted with the stalls, but these warps issue.
const NO_STALL: &str = "selected";

/// What the profiler prints where the driver keeps its counters from ordinary users.
const NO_PERMISSION: &str = "ERR_NVGPUCTRPERM";

/// Every launch in the profiler's output, in order. Metrics that nobody asked for are left out.
pub fn parse(text: &str) -> Result<Vec<Profile>> {
    if text.contains(NO_PERMISSION) {
        return Err(Error::unavailable(
            "profiling",
            format!("the driver keeps its counters from this user ({NO_PERMISSION})"),
            "profile as root, or load the driver with NVreg_RestrictProfilingToAdminUsers=0",
        ));
    }
    let mut rows = text.lines().filter(|line| !line.starts_with("==")).map(fields);
    let header = rows
        .by_ref()
        .find(|row| row.first().is_some_and(|field| field == "ID") && row.iter().any(|field| field == KERNEL))
        .ok_or_else(|| broken("holds no table", "run ncu with --csv and give its whole output"))?;
    let rows: Vec<Vec<String>> = rows.filter(|row| row.iter().any(|field| !field.is_empty())).collect();
    if text.lines().next_back().is_some_and(|line| line.matches('"').count() % 2 == 1) {
        return Err(broken("ends within a value", "give its whole output, cut nowhere"));
    }
    let profiles = match header.iter().any(|field| field == "Metric Name") {
        true => row_per_metric(&header, &rows),
        false => column_per_metric(&header, &rows),
    }?;
    if profiles.is_empty() {
        return Err(broken("holds no launch", "check the kernel filter, and that the program launched the kernel"));
    }
    Ok(profiles)
}

const KERNEL: &str = "Kernel Name";

fn broken(rule: impl Into<String>, fix: &str) -> Error {
    Error::invalid("profile", format!("ncu's output {}", rule.into()), fix)
}

fn cell<'a>(header: &[String], row: &'a [String], column: &str) -> Result<&'a str> {
    let place = header.iter().position(|field| field == column);
    place
        .and_then(|place| row.get(place))
        .map(String::as_str)
        .ok_or_else(|| broken(format!("has a row without the column `{column}`"), "give its whole output, cut nowhere"))
}

fn column_per_metric(header: &[String], rows: &[Vec<String>]) -> Result<Vec<Profile>> {
    let Some((units, launches)) = rows.split_first() else { return Ok(Vec::new()) };
    if !cell(header, units, "ID")?.is_empty() {
        return Err(broken("has no row of units below its names", "run ncu with --page raw --csv"));
    }
    let mut profiles = Vec::new();
    for row in launches {
        let mut profile = empty(header, row)?;
        if row.len() != header.len() {
            return Err(broken("has a row of another length than its header", "give its whole output, cut nowhere"));
        }
        for ((name, value), unit) in header.iter().zip(row).zip(units) {
            profile.note(name, unit, value)?;
        }
        profile.sort_stalls();
        profiles.push(profile);
    }
    Ok(profiles)
}

fn row_per_metric(header: &[String], rows: &[Vec<String>]) -> Result<Vec<Profile>> {
    let mut profiles: Vec<Profile> = Vec::new();
    for row in rows {
        let launch = cell(header, row, "ID")?;
        if profiles.last().is_none_or(|profile| profile.launch != launch) {
            profiles.push(empty(header, row)?);
        }
        let (name, unit) = (cell(header, row, "Metric Name")?, cell(header, row, "Metric Unit")?);
        let value = cell(header, row, "Metric Value")?;
        if let Some(profile) = profiles.last_mut() {
            profile.note(name, unit, value)?;
        }
    }
    profiles.iter_mut().for_each(Profile::sort_stalls);
    Ok(profiles)
}

fn empty(header: &[String], row: &[String]) -> Result<Profile> {
    Ok(Profile {
        launch: cell(header, row, "ID")?.into(),
        kernel: cell(header, row, KERNEL)?.into(),
        metrics: BTreeMap::new(),
        stalls: Vec::new(),
    })
}

impl Profile {
    /// Takes in a metric, if it is one of ours.
    fn note(&mut self, name: &str, unit: &str, value: &str) -> Result<()> {
        if let Some(metric) = Metric::ALL.into_iter().find(|metric| metric.name() == name) {
            let value = number(name, value)? * factor(metric, unit)?;
            self.metrics.insert(metric, value);
        } else if let Some(reason) = name.strip_prefix(STALL.0).and_then(|rest| rest.strip_suffix(STALL.1))
            && reason != NO_STALL
        {
            self.stalls.push(Stall { reason: reason.into(), warps: number(name, value)? });
        }
        Ok(())
    }

    fn sort_stalls(&mut self) {
        self.stalls.sort_by(|a, b| b.warps.total_cmp(&a.warps));
    }
}

/// The number in a cell. `n/a` and an empty cell are what the profiler writes for a metric that it does not know.
fn number(name: &str, text: &str) -> Result<f64> {
    if text.is_empty() || text.eq_ignore_ascii_case("n/a") {
        return Err(broken(
            format!("has `{name}` as n/a"),
            "this ncu or GPU does not have that metric: see ncu --query-metrics",
        ));
    }
    let value = without_separators(text).and_then(|text| text.parse::<f64>().ok()).filter(|value| value.is_finite());
    value.ok_or_else(|| {
        broken(format!("has `{name}` as `{text}`, which is no number"), "run ncu under LC_ALL=C, with a decimal point")
    })
}

/// The digits without the commas that part thousands; none where a comma parts something else, such as decimals.
fn without_separators(text: &str) -> Option<String> {
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let mut groups = whole.split(',');
    let first = groups.next()?;
    let groups: Vec<&str> = groups.collect();
    let parted = groups.is_empty() || (1..=3).contains(&first.trim_start_matches('-').len());
    (parted && groups.iter().all(|group| group.len() == 3) && !rest.contains(','))
        .then(|| format!("{first}{}{rest}", groups.concat()))
}

/// What a value in this unit is multiplied by to be in the metric's own.
fn factor(metric: Metric, unit: &str) -> Result<f64> {
    let factor = match (metric.unit(), unit) {
        (Unit::Percent, "%") | (Unit::Bytes, "byte") => Some(1.0),
        (Unit::Bytes, "Kbyte") => Some(1e3),
        (Unit::Bytes, "Mbyte") => Some(1e6),
        (Unit::Bytes, "Gbyte") => Some(1e9),
        (Unit::Bytes, "Tbyte") => Some(1e12),
        (Unit::Nanoseconds, "ns" | "nsecond") => Some(1.0),
        (Unit::Nanoseconds, "us" | "usecond") => Some(1e3),
        (Unit::Nanoseconds, "ms" | "msecond") => Some(1e6),
        (Unit::Count, "" | "inst" | "conflict" | "SM") => Some(1.0),
        _ => None,
    };
    factor.ok_or_else(|| {
        broken(format!("has `{}` in `{unit}`, which is not expected", metric.name()), "run ncu with --print-units base")
    })
}

/// The fields of a line: parted by commas, in quotes where they hold commas, quotes within doubled.
fn fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut quoted = false;
    let mut letters = line.trim_end_matches('\r').chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '"' if quoted && letters.peek() == Some(&'"') => {
                letters.next();
                fields.last_mut().expect("there is always a field").push('"');
            }
            '"' => quoted = !quoted,
            ',' if !quoted => fields.push(String::new()),
            letter => fields.last_mut().expect("there is always a field").push(letter),
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    // What ncu 2025.3 printed on an H200: the baseline with a column per metric, tall-tiles with a row per metric, and
    // the answer to metrics that do not exist.
    const RAW: &str = include_str!("h200_raw.txt");
    const DETAILS: &str = include_str!("h200_details.txt");
    const UNKNOWN: &str = include_str!("h200_unknown_metrics.txt");

    #[test]
    fn a_column_per_metric() {
        let profiles = parse(RAW).unwrap();
        let [profile] = &profiles[..] else { panic!("{profiles:?}") };
        assert_eq!((profile.launch.as_str(), profile.kernel.as_str()), ("0", "ladder_attention"));
        assert_eq!(profile.get(Metric::TensorPipe), Ok(0.96));
        assert_eq!(profile.get(Metric::DramBytes), Ok(828_928.0));
        assert_eq!(profile.get(Metric::XuInstructions), Ok(102_400.0));
        assert_eq!(profile.get(Metric::BankConflicts), Ok(196_608.0));
        assert_eq!(profile.time_us(), Ok(85.024));
        assert_eq!((profile.get(Metric::Blocks), profile.get(Metric::Multiprocessors)), (Ok(64.0), Ok(132.0)));
        let reasons: Vec<_> = profile.top_stalls(3).iter().map(|stall| stall.reason.as_str()).collect();
        assert_eq!(reasons, ["wait", "short_scoreboard", "long_scoreboard"]);
        assert!(profile.stalls.iter().all(|stall| stall.reason != "selected"), "issuing is no stall");
        let share = profile.share(&profile.stalls[0]);
        assert!((share - 0.87 / 2.78).abs() < 0.01, "{share}");
    }

    #[test]
    fn a_row_per_metric() {
        let profiles = parse(DETAILS).unwrap();
        let [profile] = &profiles[..] else { panic!("{profiles:?}") };
        assert_eq!(profile.get(Metric::TensorPipe), Ok(25.13));
        assert_eq!(profile.get(Metric::LocalInstructions), Ok(0.0));
        assert_eq!(profile.time_us(), Ok(15.04));
        let error = profile.get(Metric::FmaPipe).unwrap_err().to_string();
        assert!(error.contains("sm__pipe_fma_cycles_active") && error.contains("was not collected"), "{error}");
    }

    #[test]
    fn metrics_that_do_not_exist_are_left_out_by_the_profiler_and_missed_here() {
        let profiles = parse(UNKNOWN).unwrap();
        let error = profiles[0].check_complete().unwrap_err().to_string();
        assert!(error.contains("gpu__time_duration.sum of ladder_attention was not collected"), "{error}");
    }

    #[test]
    fn launches_follow_each_other_and_kernels_may_have_any_name() {
        let last = RAW.lines().last().unwrap();
        let second = last.replacen("\"0\"", "\"1\"", 1).replace("\"ladder_attention\"", "\"f(A, \"\"x\"\")\"");
        let profiles = parse(&format!("{RAW}{second}\n")).unwrap();
        assert_eq!(profiles.len(), 2);
        assert_eq!((profiles[1].launch.as_str(), profiles[1].kernel.as_str()), ("1", "f(A, \"x\")"));
        assert_eq!(profiles[1].metrics, profiles[0].metrics);
    }

    #[test]
    fn what_was_not_counted_is_an_error_and_never_a_zero() {
        for value in ["n/a", "N/A", ""] {
            let error = parse(&RAW.replace("\"17.05\"", &format!("\"{value}\""))).unwrap_err().to_string();
            assert!(error.contains("sm__throughput") && error.contains("as n/a"), "{error}");
        }
        for value in ["nan", "inf", "17,05", "1,7.05", "many"] {
            let error = parse(&RAW.replace("\"17.05\"", &format!("\"{value}\""))).unwrap_err().to_string();
            assert!(error.contains("which is no number"), "{value}: {error}");
        }
        let error = parse(&RAW.replace("\"ns\"", "\"furlong\"")).unwrap_err().to_string();
        assert!(error.contains("gpu__time_duration.sum` in `furlong`"), "{error}");
    }

    #[test]
    fn other_units_than_the_base_ones_are_understood() {
        let scaled = RAW.replace("\"byte\"", "\"Mbyte\"").replace("\"ns\"", "\"us\"");
        let profile = &parse(&scaled).unwrap()[0];
        assert_eq!(profile.get(Metric::DramBytes), Ok(828_928e6));
        assert_eq!(profile.time_us(), Ok(85_024.0));
    }

    #[test]
    fn missing_permission_is_unavailable() {
        let text =
            "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters";
        assert!(matches!(parse(text), Err(Error::Unavailable { .. })));
    }

    #[test]
    fn output_without_launches_and_output_that_was_cut_is_refused() {
        assert!(parse("").unwrap_err().to_string().contains("holds no table"));
        assert!(parse("==WARNING== No kernels were profiled.\n").is_err());
        let head: String = RAW.lines().take(RAW.lines().count() - 1).map(|line| format!("{line}\n")).collect();
        assert!(parse(&head).unwrap_err().to_string().contains("holds no launch"));
        // Cut anywhere, it is an error or the whole launch, and no panic.
        let whole = parse(RAW).unwrap();
        let start = RAW.find("\"ID\"").unwrap();
        for end in (start..RAW.len()).step_by(7).filter(|end| RAW.is_char_boundary(*end)) {
            if let Ok(profiles) = parse(&RAW[..end]) {
                assert_eq!(profiles, whole, "cut at {end}");
            }
        }
    }

    #[test]
    fn commas_part_thousands_and_nothing_else() {
        let read = |text| without_separators(text);
        assert_eq!(read("1,234,567.5").as_deref(), Some("1234567.5"));
        assert_eq!(read("12345").as_deref(), Some("12345"));
        assert_eq!(read("-1,234").as_deref(), Some("-1234"));
        for text in ["9,00", "1234,567", ",123", "1,23,456", "1.5,000"] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
