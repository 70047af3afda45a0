//! A GPU watched while contestants take their turns: clocks, power, temperature, what holds the clocks down.

use super::GpuConditions;
use super::monitor::{Monitor, Reading as Nvml};
use eightfold::cuda::driver::Device;
use std::collections::BTreeSet;
use std::process::Command;
use std::time::{Duration, Instant};

/// What a GPU says about itself at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Reading {
    sm_clock_mhz: Option<f64>,
    power_w: Option<f64>,
    temperature_c: Option<f64>,
    /// NVML's bits for what holds the clocks down.
    held_down_by: u64,
}

/// Who is asked.
enum Source {
    /// The driver's own library: a fraction of a millisecond.
    Nvml(Monitor),
    /// The driver's program, where the library cannot be loaded: too slow to be asked after every turn.
    Smi { pci_bus_id: String, last: Option<Instant> },
    /// Nobody, and why.
    Nobody(String),
}

/// Something that can be asked again and again.
pub(super) struct Watch {
    source: Source,
}

/// The least time between two calls of nvidia-smi.
const SMI_EVERY: Duration = Duration::from_secs(1);

/// What is asked of nvidia-smi; the last has a newer name, and this one is understood by old and new.
const SMI_FIELDS: &str = "clocks.sm,power.draw,temperature.gpu,clocks_throttle_reasons.active";

/// NVML's bits, what they mean, and whether the GPU then protects itself.
const REASONS: [(u64, &str, bool); 9] = [
    (0x1, "idle", false),
    (0x2, "clocks set by an application", false),
    (0x4, "software power cap", false),
    (0x8, "hardware slowdown", true),
    (0x10, "sync boost", false),
    (0x20, "software thermal slowdown", true),
    (0x40, "hardware thermal slowdown", true),
    (0x80, "hardware power brake", true),
    (0x100, "display clocks", false),
];

impl Watch {
    /// Finds out whom to ask about the default device.
    pub fn start() -> Watch {
        let device = match Device::default() {
            Ok(device) => device,
            Err(error) => return Watch { source: Source::Nobody(error.to_string()) },
        };
        let nvml = match Monitor::of(&device) {
            Ok(monitor) => return Watch { source: Source::Nvml(monitor) },
            Err(error) => error.to_string(),
        };
        let source = match device.pci_bus_id() {
            Ok(pci_bus_id) if smi(&pci_bus_id).is_some() => Source::Smi { pci_bus_id, last: None },
            _ => Source::Nobody(format!("{nvml}; nor does nvidia-smi answer")),
        };
        Watch { source }
    }

    /// How it is now; none where nobody can be asked, or was asked a moment ago.
    pub fn read(&mut self) -> Option<Reading> {
        match &mut self.source {
            Source::Nvml(monitor) => Some(monitor.read().into()),
            Source::Smi { last, .. } if last.is_some_and(|last| last.elapsed() < SMI_EVERY) => None,
            Source::Smi { pci_bus_id, last } => {
                *last = Some(Instant::now());
                smi(pci_bus_id)
            }
            Source::Nobody(_) => None,
        }
    }

    /// What the readings after each contestant's turns say.
    pub fn conditions(&self, readings: &[Vec<Reading>]) -> GpuConditions {
        let source = match &self.source {
            Source::Nvml(_) => "NVML".into(),
            Source::Smi { .. } => "nvidia-smi".into(),
            Source::Nobody(reason) => format!("unavailable: {reason}"),
        };
        summary(source, readings)
    }
}

fn summary(source: String, readings: &[Vec<Reading>]) -> GpuConditions {
    let all = || readings.iter().flatten();
    let median = |readings: &Vec<Reading>| {
        let mut clocks: Vec<f64> = readings.iter().filter_map(|reading| reading.sm_clock_mhz).collect();
        clocks.sort_unstable_by(f64::total_cmp);
        clocks.get(clocks.len() / 2).copied()
    };
    let bits = all().fold(0, |bits, reading| bits | reading.held_down_by);
    let named = |only_slowdowns: bool| -> Vec<String> {
        let found = REASONS.iter().filter(|(bit, _, slowdown)| bits & bit != 0 && (*slowdown || !only_slowdowns));
        found.map(|(_, name, _)| name.to_string()).collect::<BTreeSet<_>>().into_iter().collect()
    };
    GpuConditions {
        source,
        readings: all().count(),
        sm_clock_mhz: readings.iter().map(median).collect(),
        most_temperature_c: all().filter_map(|reading| reading.temperature_c).reduce(f64::max),
        most_power_w: all().filter_map(|reading| reading.power_w).reduce(f64::max),
        held_down_by: named(false),
        slowdowns: named(true),
    }
}

impl From<Nvml> for Reading {
    fn from(reading: Nvml) -> Reading {
        Reading {
            sm_clock_mhz: reading.sm_clock_mhz.map(f64::from),
            power_w: reading.power_mw.map(|milliwatts| f64::from(milliwatts) / 1e3),
            temperature_c: reading.temperature_c.map(f64::from),
            held_down_by: reading.throttle_reasons.unwrap_or(0),
        }
    }
}

/// One answer of nvidia-smi; none where it is not there or says something else.
fn smi(pci_bus_id: &str) -> Option<Reading> {
    let query = format!("--query-gpu={SMI_FIELDS}");
    let output = Command::new("nvidia-smi").args([&query, "--format=csv,noheader,nounits", "-i", pci_bus_id]).output();
    let output = output.ok().filter(|output| output.status.success())?;
    parse_smi(&String::from_utf8(output.stdout).ok()?)
}

/// `1980, 118.45, 31, 0x0000000000000000`; what a GPU does not tell is `[N/A]`.
fn parse_smi(text: &str) -> Option<Reading> {
    let fields: Vec<&str> = text.lines().next()?.split(',').map(str::trim).collect();
    let [clock, power, temperature, reasons] = fields[..] else { return None };
    let bits = reasons.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok());
    Some(Reading {
        sm_clock_mhz: clock.parse().ok(),
        power_w: power.parse().ok(),
        temperature_c: temperature.parse().ok(),
        held_down_by: bits.unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nvidia_smi_prints() {
        let reading = parse_smi("1980, 118.45, 31, 0x0000000000000004\n").unwrap();
        let expected =
            Reading { sm_clock_mhz: Some(1980.0), power_w: Some(118.45), temperature_c: Some(31.0), held_down_by: 4 };
        assert_eq!(reading, expected);
        let partly = parse_smi("1980, [N/A], 31, [N/A]\n").unwrap();
        assert_eq!((partly.power_w, partly.held_down_by), (None, 0));
        assert_eq!((parse_smi(""), parse_smi("No devices were found\n")), (None, None));
    }

    #[test]
    fn readings_are_summed_up_by_contestant() {
        let at = |mhz, bits| Reading { sm_clock_mhz: Some(mhz), held_down_by: bits, ..Reading::default() };
        let found = summary("NVML".into(), &[vec![at(1980.0, 0), at(1900.0, 4), at(1980.0, 0)], vec![]]);
        assert_eq!((found.readings, &found.sm_clock_mhz[..]), (3, &[Some(1980.0), None][..]));
        assert_eq!((&found.held_down_by[..], found.slowdowns.len()), (&["software power cap".to_string()][..], 0));
        let hot = summary("NVML".into(), &[vec![at(1200.0, 0x44)]]);
        assert_eq!(hot.slowdowns, ["hardware thermal slowdown"]);
    }

    #[test]
    fn without_a_gpu_nobody_is_asked_and_the_reason_is_kept() {
        let mut watch = Watch { source: Source::Nobody("there is no driver".into()) };
        assert_eq!(watch.read(), None);
        assert_eq!(watch.conditions(&[]).source, "unavailable: there is no driver");
    }
}
