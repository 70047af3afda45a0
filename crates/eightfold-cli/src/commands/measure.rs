//! `eightfold ledger --measure`: every optimisation compared now, each in a process of its own, so that a kernel that takes
//! the device's context with it costs that one alone.

use crate::output;
use eightfold::cuda::Arch;
use eightfold::cuda::driver::Device;
use eightfold::lab::suggest;
use eightfold::{Error, Result, Variant};
use eightfold_lab::kernel::Kernel;
use eightfold_lab::ledger::{self, Ledger, OptimisationEntry};
use eightfold_lab::record::Kind;
use eightfold_lab::store::Store;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What came of it.
pub struct Measured {
    /// The records that were made, newest first.
    pub runs: Vec<PathBuf>,
    /// The optimisations without a sound comparison.
    pub failed: Vec<String>,
}

/// Compares the optimisations of these kernels, or those of these names, without and with them. An error where nothing
/// could be.
pub fn all(kernels: &[Kernel], only: &[String], out: &Path, nvrtc: Option<&Path>) -> Result<Measured> {
    let mut known = Vec::new();
    let mut on_gpu = Vec::new();
    for kernel in kernels {
        let mut optimisations = Ledger::of(*kernel).optimisations;
        optimisations.retain(|entry| !entry.retired);
        on_gpu.extend((kernel.on_gpu() && !optimisations.is_empty()).then_some(*kernel));
        known.extend(optimisations);
    }
    let entries = chosen(known, only)?;
    on_gpu.into_iter().try_for_each(check_device)?;
    if entries.is_empty() {
        let names = kernels.iter().map(Kernel::to_string).collect::<Vec<_>>().join(", ");
        let rule = format!("the ledger of {names} has stages alone, and no optimisations");
        return Err(Error::invalid(
            "measure",
            rule,
            "take --kernel hopper; `eightfold ladder --kernel K` measures stages",
        ));
    }
    Store::open(out)?;
    let program = std::env::current_exe()
        .map_err(|error| Error::unavailable("this program", error.to_string(), "start it by its path"))?;
    let before = ledger::runs(&[out], Kind::Compare);
    let failed = each(&entries, &mut |entry| {
        let mut command = Command::new(&program);
        command.args(line(entry, out, nvrtc)).stdin(Stdio::null()).stdout(Stdio::null());
        command.status().ok().and_then(|status| status.code())
    });
    let mut runs = ledger::runs(&[out], Kind::Compare);
    runs.retain(|run| !before.contains(run));
    Ok(Measured { runs, failed })
}

/// Those of these names; all if none is given.
fn chosen(known: Vec<OptimisationEntry>, only: &[String]) -> Result<Vec<OptimisationEntry>> {
    if let Some(unknown) = only.iter().find(|name| known.iter().all(|entry| entry.name != **name)) {
        let names: Vec<&str> = known.iter().map(|entry| entry.name.as_str()).collect();
        return Err(suggest::unknown("only", unknown, &names));
    }
    Ok(known.into_iter().filter(|entry| only.is_empty() || only.contains(&entry.name)).collect())
}

/// Without a device that the kernel is written for nothing at all would run. It is not opened here: some devices admit one
/// process alone, and that is the one that measures.
fn check_device(kernel: Kernel) -> Result<()> {
    let devices = Device::list()?;
    let arch = devices.first().and_then(|device| Arch::of_capability(device.capability.0, device.capability.1));
    let Some(arch) = arch else {
        // Opening it says what is missing.
        return Device::default().map(drop);
    };
    let config = kernel.to_string().parse::<Variant>()?.on_device();
    config.map_or(Ok(()), |config| config.target(arch).map(drop))
}

/// One after the other, whatever comes of each; says what goes wrong, and returns whose.
fn each(entries: &[OptimisationEntry], compare: &mut dyn FnMut(&OptimisationEntry) -> Option<i32>) -> Vec<String> {
    let mut failed = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        output::note(&format!("{} of {}: {} at {}", index + 1, entries.len(), entry.name, entry.shape));
        let reason = match compare(entry) {
            Some(0) => continue,
            Some(1) => "a gate failed, as its record says",
            Some(2) => "it could not be compared, or the run was unsound",
            _ => "its process did not end by itself",
        };
        output::complain(&format!("{}: {reason}", entry.name));
        failed.push(entry.name.clone());
    }
    failed
}

/// The arguments of the comparison. With rests, since the larger problems meet the device's limit of power, and who
/// meets another clock than the other cannot be compared.
fn line(entry: &OptimisationEntry, out: &Path, nvrtc: Option<&Path>) -> Vec<OsString> {
    let mut line: Vec<OsString> = vec!["compare".into(), (&entry.without).into(), (&entry.with).into()];
    line.push("--burst".into());
    line.extend(["--shape".into(), (&entry.shape).into(), "--records".into(), out.into()]);
    line.extend(["--threads".into(), rayon::current_num_threads().to_string().into()]);
    line.extend(entry.causal.then(|| "--causal".into()));
    line.extend(nvrtc.iter().flat_map(|path| ["--nvrtc".into(), path.into()]));
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::{self, CommandLine};
    use clap::Parser;

    #[test]
    fn one_that_fails_is_named_and_the_others_are_measured() {
        let entries = Ledger::of(Kernel::HOPPER).optimisations;
        let mut codes = [Some(0), Some(1), Some(2), None].into_iter();
        let mut compared = Vec::new();
        let failed = each(&entries, &mut |entry| {
            compared.push(entry.name.clone());
            codes.next().unwrap_or(Some(0))
        });
        assert_eq!(compared, entries.iter().map(|entry| entry.name.clone()).collect::<Vec<_>>());
        assert_eq!(failed, compared[1..4]);
    }

    #[test]
    fn optimisations_are_chosen_by_name() {
        let known = || Ledger::of(Kernel::HOPPER).optimisations;
        let names = |only: &[&str]| {
            let only: Vec<String> = only.iter().map(|name| name.to_string()).collect();
            chosen(known(), &only).map(|entries| entries.into_iter().map(|entry| entry.name).collect::<Vec<_>>())
        };
        assert_eq!(names(&[]).unwrap().len(), known().len());
        assert_eq!(names(&["split keys", "deeper ring"]).unwrap(), ["split keys", "deeper ring"]);
        let error = names(&["split keys", "wider ring"]).unwrap_err().to_string();
        assert!(error.starts_with("only: `wider ring` is unknown; did you mean `deeper ring`?"), "{error}");
        assert!(error.contains("scores in f16, all keys at once, all keys at once under the mask,"), "{error}");
    }

    #[test]
    fn every_optimisation_is_a_comparison_that_the_command_line_understands() {
        for entry in Ledger::of(Kernel::HOPPER).optimisations {
            let line = line(&entry, Path::new("there"), Some(Path::new("nvrtc.so")));
            let parsed = CommandLine::try_parse_from(std::iter::once("eightfold".into()).chain(line)).unwrap();
            assert!(matches!(parsed.command, Some(arguments::Command::Compare(_))));
            assert_eq!(parsed.nvrtc.as_deref(), Some(Path::new("nvrtc.so")));
        }
    }

    #[test]
    fn a_ledger_without_optimisations_is_told_from_one_without_a_device() {
        let place = tempfile::tempdir().unwrap();
        let error = |kernels: &[Kernel]| all(kernels, &[], place.path(), None).err().map(|error| error.to_string());
        let none = error(&[Kernel::CPU]).unwrap();
        assert!(none.contains("the ledger of cpu has stages alone"), "{none}");
        if Device::default().is_err() {
            let none = error(&Kernel::all().collect::<Vec<_>>()).unwrap();
            assert!(!none.contains("stages alone"), "{none}");
        }
    }
}
