//! `eightfold doctor`: what was found on this machine, and how to get what is missing.

use super::recording::DEFAULT_FOLDER;
use crate::{Verdict, output};
use clap::Args;
use eightfold::cpu::Features;
use eightfold::{Error, Result};
use eightfold_lab::peers::Torch;
use eightfold_lab::provenance::{Checkout, Provenance};
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
    /// The folder of the records
    #[arg(long, value_name = "DIR", default_value = DEFAULT_FOLDER)]
    out: String,
}

#[derive(Serialize)]
struct Finding {
    what: &'static str,
    found: bool,
    detail: String,
    /// What to do about it, where something can be done.
    fix: Option<String>,
}

/// Looks at everything and prints what was found; something missing is no failure.
pub fn execute(arguments: &Arguments, json: bool) -> Result<Verdict> {
    let findings = examine(arguments);
    if json {
        output::print_json(&findings)?;
    } else {
        output::print(&findings.iter().map(line).collect::<String>())?;
    }
    Ok(Verdict::Passed)
}

fn examine(arguments: &Arguments) -> Vec<Finding> {
    let Provenance { machine, threads, eightfold, built_from, rustc, release, .. } =
        Provenance::capture(rayon::current_num_threads());
    let found = |what, detail| Finding { what, found: true, detail, fix: None };
    let features = Features::detect();
    let feature = |what, found, missing: &str| Finding {
        what,
        found,
        detail: if found { "yes" } else { missing }.into(),
        fix: None,
    };
    let unknown = || "unknown".to_string();
    vec![
        Finding {
            what: "eightfold",
            found: release,
            detail: format!(
                "{eightfold}, commit {}, {}{}",
                built_from.unwrap_or_else(unknown),
                rustc.unwrap_or_else(unknown),
                if release { "" } else { ", not a release build" }
            ),
            fix: (!release).then(|| "build with `cargo build --release`: other builds are slower".into()),
        },
        found("CPU", format!("{}, {} ({})", machine.cpu, machine.arch, machine.os)),
        found("threads", format!("{threads} of {} cores", machine.cores)),
        feature("AVX2, FMA, F16C", features.avx2, "this CPU has none: the portable kernels run"),
        feature("AVX-512", features.avx512, "this CPU has none: narrower kernels run"),
        feature("AVX-512 VNNI", features.avx512_vnni, "this CPU has none: two instructions do its work"),
        torch(&arguments.python),
        git(),
        records(&arguments.out),
    ]
}

fn torch(python: &str) -> Finding {
    let what = "PyTorch";
    match Torch::start(python, 1) {
        Ok(torch) => Finding { what, found: true, detail: torch.version().into(), fix: None },
        Err(error) => missing(what, error),
    }
}

fn git() -> Finding {
    match Checkout::here() {
        Some(Checkout { commit, dirty }) => Finding {
            what: "git checkout",
            found: true,
            detail: format!("{commit}{}", if dirty { ", with changes" } else { "" }),
            fix: None,
        },
        None => Finding {
            what: "git checkout",
            found: false,
            detail: "not in a checkout of this project: records name the commit of the build alone".into(),
            fix: None,
        },
    }
}

fn records(folder: &str) -> Finding {
    match Store::open(folder) {
        Ok(store) => {
            Finding { what: "records", found: true, detail: format!("go to {}", store.folder().display()), fix: None }
        }
        Err(error) => missing("records", error),
    }
}

fn missing(what: &'static str, error: Error) -> Finding {
    let (detail, fix) = match error {
        Error::Unavailable { reason, fix, .. } => (reason, Some(fix)),
        Error::Invalid { rule, fix, .. } => (rule, Some(fix)),
        other => (other.to_string(), None),
    };
    Finding { what, found: false, detail, fix }
}

fn line(finding: &Finding) -> String {
    let Finding { what, found, detail, fix } = finding;
    let mark = if *found { "+" } else { "-" };
    let fix = fix.as_ref().map(|fix| format!("; {fix}")).unwrap_or_default();
    format!("{mark} {what}: {detail}{fix}\n")
}
