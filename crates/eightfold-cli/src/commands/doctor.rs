//! `eightfold doctor`: what was found on this machine, and how to get what is missing.

use super::recording::DEFAULT_FOLDER;
use super::tools::{self, Tool};
use crate::Verdict;
use crate::output::{self, page::page};
use clap::Args;
use eightfold::cuda::driver::Device;
use eightfold::lab::compile::{Compiler, Tried};
use eightfold::lab::cpu::Features;
use eightfold::{Error, Result};
use eightfold_lab::environment;
use eightfold_lab::installed;
use eightfold_lab::numbers::counted;
use eightfold_lab::peers::Torch;
use eightfold_lab::provenance::{Checkout, Provenance};
use eightfold_lab::simulate::CxxCompiler;
use eightfold_lab::store::Store;
use serde::Serialize;

/// The Python that is asked for PyTorch unless told otherwise.
pub const PYTHON: &str = "python3";

/// What may be asked of the doctor.
#[derive(Args, Debug)]
pub struct Arguments {
    /// The Python to look for PyTorch in
    #[arg(long, value_name = "PATH", default_value = PYTHON)]
    python: String,
    /// Folder of the records
    #[arg(long, value_name = "DIR", default_value = DEFAULT_FOLDER)]
    records: String,
}

#[derive(Serialize, Clone)]
struct Finding {
    what: &'static str,
    found: bool,
    detail: String,
    /// What to do about it, where something can be done.
    fix: Option<String>,
    /// Where it was looked for, and what was there.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tried: Vec<String>,
}

impl Finding {
    fn new(what: &'static str, found: bool, detail: impl Into<String>) -> Self {
        Finding { what, found, detail: detail.into(), fix: None, tried: Vec::new() }
    }

    fn missing(what: &'static str, error: Error) -> Self {
        let (detail, fix) = match error {
            Error::Unavailable { reason, fix, .. } => (reason, Some(fix)),
            Error::Invalid { rule, fix, .. } => (rule, Some(fix)),
            other => (other.to_string(), None),
        };
        Finding { fix, ..Finding::new(what, false, detail) }
    }
}

/// Looks at everything and prints what was found; something missing is no failure.
pub fn execute(arguments: &Arguments, json: bool) -> Result<Verdict> {
    let findings = examine(arguments);
    if json {
        output::print_json(&findings)?;
    } else {
        output::print(&shown(&findings, page().verbose))?;
    }
    Ok(Verdict::Passed)
}

fn examine(arguments: &Arguments) -> Vec<Finding> {
    let features = Features::detect();
    let feature = |what, found, missing: &str| Finding::new(what, found, if found { "yes" } else { missing });
    let Provenance { machine, threads, .. } = Provenance::capture(rayon::current_num_threads());
    let mut findings = vec![
        build(),
        Finding::new("CPU", true, format!("{}, {} ({})", machine.cpu, machine.arch, machine.os)),
        Finding::new("threads", true, format!("{threads} of {} cores", machine.cores)),
    ];
    if cfg!(target_arch = "aarch64") {
        findings.push(feature("NEON", features.neon, "this build has none: the portable kernels run"));
    } else {
        findings.extend([
            feature("AVX2, FMA, F16C", features.avx2, "this CPU has none: the portable kernels run"),
            feature("AVX-512", features.avx512, "this CPU has none: narrower kernels run"),
            feature("AVX-512 VNNI", features.avx512_vnni, "this CPU has none: two instructions do its work"),
            amx(&features),
        ]);
    }
    findings.extend([gpu(), nvrtc(), simulator()]);
    findings.extend(kernel_cache());
    findings.extend(plans());
    findings.extend(tools::ALL.iter().map(tool));
    findings.extend([torch(&arguments.python), git(), records(&arguments.records)]);
    findings
}

/// Whether tiles may be used, and what tests of them run on.
fn amx(features: &Features) -> Finding {
    let (found, detail) = match features.amx {
        Ok(()) => (true, "allowed to this process; tests of tiles run on them".to_string()),
        Err(missing) => (false, format!("{missing}; tests of tiles run on their portable twin, cpu:amx,simd=amx-twin")),
    };
    Finding::new("AMX", found, detail)
}

fn build() -> Finding {
    let Provenance { eightfold, built_from, rustc, release, .. } = Provenance::capture(1);
    let unknown = || "unknown".to_string();
    let detail = format!(
        "{eightfold}, commit {}, {}{}",
        built_from.map_or_else(unknown, |commit| short_commit(&commit)),
        rustc.unwrap_or_else(unknown),
        if release { "" } else { ", not a release build" }
    );
    let fix = (!release).then(|| "build with `cargo build --release`: other builds are slower".into());
    Finding { fix, ..Finding::new("eightfold", release, detail) }
}

/// What a search installed, where anything is.
fn plans() -> Option<Finding> {
    let path = installed::file().filter(|path| path.exists())?;
    let count = installed::read(&path).len();
    let detail = format!("{} in {}", counted(count, "choice", "choices"), path.display());
    Some(Finding::new("installed plans", true, detail))
}

fn gpu() -> Finding {
    const GIB: f64 = (1u64 << 30) as f64;
    match Device::default().and_then(|device| Ok((device.arch()?, device))) {
        Ok((arch, device)) => {
            let info = device.info();
            let detail = format!(
                "{}, {}, {} multiprocessors, {:.0} GiB, driver {}",
                info.name,
                arch,
                info.multiprocessors,
                info.memory_bytes as f64 / GIB,
                info.driver
            );
            Finding::new("GPU", true, detail)
        }
        Err(error) => Finding::missing("GPU", error),
    }
}

/// Which NVRTC compiles, and every place that was looked at before.
fn nvrtc() -> Finding {
    let tried = |tried: &Tried| {
        let found = tried.found.as_ref().unwrap_or_else(|reason| reason);
        format!("{}: {}: {found}", tried.origin, tried.path.display())
    };
    let finding = match Compiler::find() {
        Ok(compiler) => Finding::new("NVRTC", true, compiler.version()),
        Err(error) => Finding::missing("NVRTC", error),
    };
    Finding { tried: Compiler::search().iter().map(tried).collect(), ..finding }
}

/// What compiles kernels for the simulated device.
fn simulator() -> Finding {
    let what = "simulator";
    match CxxCompiler::find() {
        Ok(compiler) => {
            let detail = format!("kernels for GPUs run on this CPU with `run --on simulator`: {}", compiler.version);
            Finding::new(what, true, detail)
        }
        Err(error) => Finding::missing(what, error),
    }
}

/// Whether compiled kernels are kept; none without a compiler.
fn kernel_cache() -> Option<Finding> {
    let what = "kernel cache";
    let compiler = Compiler::find().ok()?;
    let not_kept =
        environment::cache_folder().is_none().then_some("there is no home folder to keep compiled kernels in");
    Some(match not_kept.or(compiler.cache_note()) {
        None => Finding::new(what, true, "compiled kernels are kept on disk"),
        Some(note) => Finding {
            fix: Some("set EIGHTFOLD_CACHE to a folder that can be written".into()),
            ..Finding::new(what, false, note)
        },
    })
}

fn tool(tool: &Tool) -> Finding {
    match tools::find(tool) {
        Some(path) => Finding::new(tool.name, true, path.display().to_string()),
        None => Finding {
            fix: Some(tool.fix.into()),
            ..Finding::new(tool.name, false, format!("neither on the search path nor in a CUDA folder; {}", tool.what))
        },
    }
}

fn torch(python: &str) -> Finding {
    let what = "PyTorch";
    match Torch::start(python, 1) {
        Ok(torch) => {
            let gpu = torch.cuda().map_or("no GPU".to_string(), |name| format!("on {name}"));
            Finding::new(what, true, format!("{}, {gpu}", torch.version()))
        }
        Err(error) => Finding::missing(what, error),
    }
}

/// So much of a commit that git finds it.
fn short_commit(commit: &str) -> String {
    commit.chars().take(9).collect()
}

fn git() -> Finding {
    let what = "git checkout";
    match Checkout::here() {
        Some(Checkout { commit, dirty }) => {
            Finding::new(what, true, format!("{}{}", short_commit(&commit), if dirty { ", with changes" } else { "" }))
        }
        None => {
            Finding::new(what, false, "not in a checkout of this project: records name the commit of the build alone")
        }
    }
}

fn records(folder: &str) -> Finding {
    match Store::open(folder) {
        Ok(store) => Finding::new("records", true, format!("go to {}", store.folder().display())),
        Err(error) => Finding::missing("records", error),
    }
}

/// Most people want to know what these are and what is missing; the rest is for --verbose.
const IN_SHORT: &[&str] = &["eightfold", "CPU", "GPU", "NVRTC", "simulator", "PyTorch", "ncu", "records"];

/// The findings as lines: the important ones and what was refused, or all of them with every place that was searched.
fn shown(findings: &[Finding], verbose: bool) -> String {
    if verbose {
        return findings.iter().map(line).collect();
    }
    let important = findings.iter().filter(|finding| IN_SHORT.contains(&finding.what));
    let mut text: String = important.map(|finding| line(&Finding { tried: Vec::new(), ..finding.clone() })).collect();
    text.push_str("--verbose shows every tool, every instruction set, and every place that was searched\n");
    text
}

fn line(finding: &Finding) -> String {
    let Finding { what, found, detail, fix, tried } = finding;
    let mark = if *found { "+" } else { "-" };
    let fix = fix.as_ref().map(|fix| format!("; {fix}")).unwrap_or_default();
    let tried: String = tried.iter().map(|place| format!("    {place}\n")).collect();
    format!("{mark} {what}: {detail}{fix}\n{tried}")
}
