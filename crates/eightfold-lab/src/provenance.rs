//! Where a result comes from: code, machine, compiler, time.

use eightfold::cuda::driver::Device;
use eightfold::lab::compile::Compiler;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

/// Everything one needs to judge, and to repeat, a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Provenance {
    /// When the run began.
    pub time_utc: TimeUtc,
    /// The version of this software.
    pub eightfold: String,
    /// The commit that the binary was built from, where it was built in a checkout.
    pub built_from: Option<String>,
    /// The checkout of this project that the run happened in, if any.
    pub checkout: Option<Checkout>,
    /// The compiler.
    pub rustc: Option<String>,
    /// Whether it was built for release: other builds are slower and their times say little.
    pub release: bool,
    /// The command line, with absolute paths cut down to file names.
    pub command: Vec<String>,
    /// The machine.
    pub machine: Machine,
    /// Threads that the kernels ran on.
    pub threads: usize,
    /// The GPU, where a job used it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<Gpu>,
    /// The compiler of the GPU's kernels, where a job used it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvrtc: Option<String>,
}

/// The GPU that a run happened on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// Its own name.
    pub name: String,
    /// The architecture that kernels are compiled for.
    pub arch: String,
    /// The version of the driver.
    pub driver: String,
    /// Streaming multiprocessors.
    pub multiprocessors: usize,
    /// Device memory.
    pub memory_bytes: usize,
    /// The second-level cache.
    pub l2_bytes: usize,
    /// The highest clock of the multiprocessors.
    pub clock_khz: usize,
    /// The clock of its memory; 0 in records from before this was kept.
    #[serde(default)]
    pub memory_clock_khz: usize,
    /// The width of the bus to its memory.
    #[serde(default)]
    pub memory_bus_bits: usize,
}

impl From<&Device> for Gpu {
    fn from(device: &Device) -> Gpu {
        let info = device.info();
        Gpu {
            name: info.name.clone(),
            arch: device
                .arch()
                .map_or_else(|_| format!("sm_{}{}", info.capability.0, info.capability.1), |arch| arch.to_string()),
            driver: info.driver.clone(),
            multiprocessors: info.multiprocessors,
            memory_bytes: info.memory_bytes,
            l2_bytes: info.l2_bytes,
            clock_khz: info.clock_khz,
            memory_clock_khz: info.memory_clock_khz,
            memory_bus_bits: info.memory_bus_bits,
        }
    }
}

/// The state of a git checkout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkout {
    /// The commit.
    pub commit: String,
    /// Whether tracked files differ from it.
    pub dirty: bool,
}

/// The machine that a run happened on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The CPU's own name.
    pub cpu: String,
    /// The instruction set extensions that matter here, of those that were found.
    pub features: Vec<String>,
    /// Logical cores that this process may use.
    pub cores: usize,
    /// The operating system and its release.
    pub os: String,
    /// The architecture that the binary was built for.
    pub arch: String,
}

impl Provenance {
    /// The commit of what ran: that of the checkout where it ran, or where that had changes, as on a machine that a program was
    /// carried to, that which the program was built from.
    pub fn commit(&self) -> Option<&str> {
        let checkout = self.checkout.as_ref();
        let clean = checkout.filter(|checkout| !checkout.dirty).map(|checkout| &*checkout.commit);
        clean.or(self.built_from.as_deref()).or(checkout.map(|checkout| &*checkout.commit))
    }

    /// Whether what ran is what its commit holds: it was not built and run in one checkout with changes.
    pub fn is_of_its_commit(&self) -> bool {
        let changed = |checkout: &Checkout| checkout.dirty && self.commit() == Some(&*checkout.commit);
        self.commit().is_some() && !self.checkout.as_ref().is_some_and(changed)
    }

    /// Looks at everything, now.
    pub fn capture(threads: usize) -> Self {
        Provenance {
            time_utc: TimeUtc::now(),
            eightfold: env!("CARGO_PKG_VERSION").into(),
            built_from: option_env!("EIGHTFOLD_COMMIT").map(Into::into),
            checkout: Checkout::here(),
            rustc: option_env!("EIGHTFOLD_RUSTC").map(Into::into),
            release: !cfg!(debug_assertions),
            command: command_line(std::env::args()),
            machine: Machine::detect(),
            threads,
            gpu: None,
            nvrtc: None,
        }
    }

    /// The same with the compiler of the GPU's kernels, and the GPU where there is one. Not looked at by jobs on the
    /// CPU, because opening a device takes longer than many of them.
    pub fn with_cuda(self) -> Self {
        Provenance { gpu: Device::default().ok().as_ref().map(Gpu::from), ..self.with_compiler() }
    }

    /// The same with the compiler of the GPU's kernels.
    pub fn with_compiler(self) -> Self {
        Provenance { nvrtc: Compiler::find().ok().map(|compiler| compiler.version().to_string()), ..self }
    }
}

impl Checkout {
    /// The checkout of this project around the current folder; somebody else's repository does not count.
    pub fn here() -> Option<Self> {
        let top = git(&["rev-parse", "--show-toplevel"])?;
        let ours = Path::new(&top).join("crates/eightfold-lab/Cargo.toml").exists();
        let commit = git(&["rev-parse", "HEAD"]).filter(|_| ours)?;
        let dirty = !git(&["status", "--porcelain", "--untracked-files=no"])?.is_empty();
        Some(Checkout { commit, dirty })
    }
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_string())
}

/// The text as typed, but of an absolute path the last name alone: the rest says nothing to a reader on another machine and
/// too much about this one.
pub fn without_folders(text: &str) -> String {
    match Path::new(text).file_name() {
        Some(name) if Path::new(text).is_absolute() => name.to_string_lossy().into_owned(),
        _ => text.to_string(),
    }
}

/// The arguments without the folders of this machine.
fn command_line(arguments: impl Iterator<Item = String>) -> Vec<String> {
    let shorten = |argument: String| match argument.split_once('=') {
        Some((flag, value)) if flag.starts_with("--") => format!("{flag}={}", without_folders(value)),
        _ => without_folders(&argument),
    };
    std::iter::once("eightfold".to_string()).chain(arguments.skip(1).map(shorten)).collect()
}

/// The CPU's own name, `unknown` where the system does not tell.
pub fn cpu_name() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| {
        let linux = || {
            let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
            let line = text.lines().find(|line| line.starts_with("model name"))?;
            Some(line.split_once(':')?.1.trim().to_string())
        };
        let mac = || {
            let output = Command::new("sysctl").args(["-n", "machdep.cpu.brand_string"]).output().ok()?;
            Some(String::from_utf8(output.stdout).ok()?.trim().to_string())
        };
        let windows = || std::env::var("PROCESSOR_IDENTIFIER").ok();
        linux().or_else(mac).or_else(windows).filter(|name| !name.is_empty()).unwrap_or_else(|| "unknown".into())
    })
}

impl Machine {
    /// Looks at the machine this runs on.
    pub fn detect() -> Self {
        let features = eightfold::lab::cpu::Features::detect();
        let found = [
            ("avx2+fma+f16c", features.avx2),
            ("avx512", features.avx512),
            ("avx512-vnni", features.avx512_vnni),
            ("amx", features.amx.is_ok()),
            ("neon", features.neon),
        ];
        Machine {
            cpu: cpu_name().into(),
            features: found.iter().filter(|(_, has)| *has).map(|(name, _)| name.to_string()).collect(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            os: match std::fs::read_to_string("/proc/sys/kernel/osrelease") {
                Ok(release) => format!("{} {}", std::env::consts::OS, release.trim()),
                Err(_) => std::env::consts::OS.into(),
            },
            arch: std::env::consts::ARCH.into(),
        }
    }
}

/// A moment, to the second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct TimeUtc {
    seconds: u64,
}

impl TimeUtc {
    /// This moment.
    pub fn now() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        TimeUtc { seconds: since.map_or(0, |since| since.as_secs()) }
    }

    /// `20260131T235959Z`: sorts by time and is a legal file name everywhere.
    pub fn compact(&self) -> String {
        self.to_string().replace(['-', ':'], "")
    }
}

/// `2026-01-31T23:59:59Z`.
impl fmt::Display for TimeUtc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = civil_date(self.seconds / 86_400);
        let second = self.seconds % 86_400;
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
    }
}

impl From<TimeUtc> for String {
    fn from(time: TimeUtc) -> String {
        time.to_string()
    }
}

impl TryFrom<String> for TimeUtc {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let invalid = || format!("`{text}` is not a time like 2026-01-31T23:59:59Z");
        let fields: Vec<u64> = text
            .strip_suffix('Z')
            .ok_or_else(invalid)?
            .split(['-', 'T', ':'])
            .map(|field| field.parse().map_err(|_| invalid()))
            .collect::<Result<_, _>>()?;
        let &[year, month, day, hour, minute, second] = &fields[..] else { return Err(invalid()) };
        let time = TimeUtc {
            seconds: days_since_epoch(year, month, day).ok_or_else(invalid)? * 86_400
                + hour * 3600
                + minute * 60
                + second,
        };
        if time.to_string() == text { Ok(time) } else { Err(invalid()) }
    }
}

/// Days in the 400 years after which the Gregorian calendar repeats.
const DAYS_PER_ERA: u64 = 146_097;
/// Days from 0000-03-01 to 1970-01-01: counting years from March puts the leap day last.
const EPOCH_OFFSET: u64 = 719_468;

/// Year, month and day of a day counted from 1970-01-01 (Hinnant's `civil_from_days`).
fn civil_date(days: u64) -> (u64, u64, u64) {
    let days = days + EPOCH_OFFSET;
    let (era, day_of_era) = (days / DAYS_PER_ERA, days % DAYS_PER_ERA);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

/// The inverse of [`civil_date`], for years that a four-digit date can hold.
fn days_since_epoch(year: u64, month: u64, day: u64) -> Option<u64> {
    if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let year = year - u64::from(month <= 2);
    let (era, year_of_era) = (year / 400, year % 400);
    let month_from_march = (month + 9) % 12;
    let day_of_year = (153 * month_from_march + 2) / 5 + day - 1;
    let day_of_era = 365 * year_of_era + year_of_era / 4 - year_of_era / 100 + day_of_year;
    (era * DAYS_PER_ERA + day_of_era).checked_sub(EPOCH_OFFSET)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_moments_print_as_everyone_else_prints_them() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_000_000_000, "2001-09-09T01:46:40Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(TimeUtc { seconds }.to_string(), text);
            assert_eq!(TimeUtc::try_from(text.to_string()), Ok(TimeUtc { seconds }));
        }
    }

    #[test]
    fn every_day_of_four_centuries_survives_the_round_trip() {
        for day in 0..DAYS_PER_ERA {
            let (year, month, date) = civil_date(day);
            assert_eq!(days_since_epoch(year, month, date), Some(day));
        }
    }

    #[test]
    fn what_is_not_a_moment_is_refused() {
        for text in ["", "now", "2026-02-30T00:00:00Z", "2026-01-01T24:00:00Z", "2026-01-01"] {
            assert!(TimeUtc::try_from(text.to_string()).is_err(), "{text}");
        }
    }

    #[test]
    fn the_command_line_keeps_no_machine_paths() {
        let typed = ["/opt/bin/eightfold", "run", "--inputs", "/home/me/x.safetensors", "--out=/tmp/runs"];
        let kept = command_line(typed.iter().map(|text| text.to_string()));
        assert_eq!(kept, ["eightfold", "run", "--inputs", "x.safetensors", "--out=runs"]);
    }

    #[test]
    fn the_machine_has_a_name_and_cores() {
        let machine = Machine::detect();
        assert!(!machine.cpu.is_empty() && machine.cores >= 1);
    }
}
