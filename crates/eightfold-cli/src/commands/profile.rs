//! `eightfold profile`: what Nsight Compute counts for chosen variants, what that says bounds them, and the profile gate.

use super::recording::{RecordArguments, Recording, tables};
use super::selection::{ShapeArguments, TimedOutputArguments, VariantArguments};
use super::tools;
use crate::Verdict;
use crate::output::{self, profile_difference, profile_table};
use crate::progress::Bar;
use clap::Args;
use eightfold::{Error, Plan, Problem, Result};
use eightfold_lab::examine::Candidate;
use eightfold_lab::profile::{self, Ncu, Target};
use eightfold_lab::progress::Progress;
use eightfold_lab::record::Kind;
use eightfold_lab::report::Source;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// What may be asked of the profiler.
#[derive(Args, Debug)]
pub struct Arguments {
    #[command(flatten)]
    variants: VariantArguments,
    #[command(flatten)]
    shapes: ShapeArguments,
    #[command(flatten)]
    output: TimedOutputArguments,
    /// Nsight Compute's ncu [default: what doctor finds]
    #[arg(long, value_name = "PATH")]
    ncu: Option<PathBuf>,
    /// Profile nothing, but show how two profiles differ: records of this command, as RECORD or RECORD#STAGE
    #[arg(long, value_names = ["A", "B"], num_args = 2, conflicts_with_all = ["variant", "kernel", "shape", "causal", "output", "ncu"])]
    diff: Option<Vec<String>>,
    #[command(flatten)]
    record: RecordArguments,
}

/// A shape's name, its problem, and who computes it.
type Job = (String, Problem, Vec<Candidate>);

/// Profiles every chosen variant on every chosen shape, prints the tables, writes the record; or shows a difference.
pub fn execute(arguments: &Arguments, nvrtc: Option<&Path>, json: bool) -> Result<Verdict> {
    if let Some([before, after]) = arguments.diff.as_deref() {
        return difference(before, after, json);
    }
    let jobs = arguments.jobs()?;
    let ncu = Ncu::open(tools::find_ncu(arguments.ncu.as_deref())?)?;
    let mut recording = Recording::open(Kind::Profile, &arguments.record)?;
    let ended = work(&jobs, &ncu, &arguments.passed_on(nvrtc)?, &mut recording);
    recording.finish(ended, json, |record| tables(record, profile_table::render))
}

fn work(jobs: &[Job], ncu: &Ncu, passed_on: &[OsString], recording: &mut Recording) -> Result<()> {
    let program = std::env::current_exe()
        .map_err(|error| Error::unavailable("profiling", error.to_string(), "call eightfold by its full path"))?;
    let total: usize = jobs.iter().map(|(_, _, candidates)| candidates.len()).sum();
    let mut progress = Bar::new();
    let mut done = 0;
    for (shape, problem, candidates) in jobs {
        for candidate in candidates {
            progress.at(done as f64 / total as f64, &format!("{shape} {problem}: profiling {}", candidate.name));
            let target = Target {
                program: &program,
                arguments: passed_on,
                name: &candidate.name,
                variant: candidate.variant,
                shape,
                problem: *problem,
            };
            let (child, group) = ncu.profile(&target)?;
            recording.keep_profile(&child.provenance, group)?;
            done += 1;
        }
    }
    Ok(())
}

impl Arguments {
    /// The problems and the variants that can run on them. Whether there is a device is for the profiled program to say.
    fn jobs(&self) -> Result<Vec<Job>> {
        let mut jobs = Vec::new();
        for shape in self.shapes.shapes()? {
            let problem = Problem::new(shape.shape)?.with_mask(self.shapes.mask());
            let head_dim = shape.shape.head_dim;
            let candidates = match self.variants.named(head_dim, problem.mask())? {
                Some(named) => named,
                None => {
                    let variant = Plan::new(&problem)?.variant();
                    vec![Candidate { name: variant.kernel().into(), variant }]
                }
            };
            if let Some(candidate) = candidates.iter().find(|candidate| !candidate.on_gpu()) {
                let rule = format!("{} does not run on a GPU", candidate.name);
                return Err(Error::invalid("variant", rule, "profile variants of the kernels ladder and hopper"));
            }
            for candidate in &candidates {
                Plan::with_variant(&problem, candidate.variant)?;
            }
            jobs.push((shape.name, self.output.apply(problem, &candidates), candidates));
        }
        Ok(jobs)
    }

    /// What the profiled program needs to know as well, with paths that do not depend on the folder.
    fn passed_on(&self, nvrtc: Option<&Path>) -> Result<Vec<OsString>> {
        let mut arguments = Vec::new();
        for (flag, path) in [("--nvrtc", nvrtc), ("--gates", self.record.gates.as_deref())] {
            if let Some(path) = path {
                let whole = std::path::absolute(path)
                    .map_err(|error| Error::invalid(&flag[2..], error.to_string(), "give the path of a file"))?;
                arguments.extend([flag.into(), whole.into_os_string()]);
            }
        }
        Ok(arguments)
    }
}

/// Shows how the profiles of two records differ.
fn difference(before: &str, after: &str, json: bool) -> Result<Verdict> {
    let [(before, before_name), (after, after_name)] = [read(before)?, read(after)?];
    let pairs = profile::pairs((&before.record, before_name.as_deref()), (&after.record, after_name.as_deref()))?;
    if json {
        output::print_json(&profile_difference::data(&pairs))?;
    } else {
        output::print(&profile_difference::render(&pairs))?;
    }
    Ok(Verdict::Passed)
}

/// A record, and the name of the variant that is meant, if one is.
fn read(text: &str) -> Result<(Source, Option<String>)> {
    let (path, name) = match text.rsplit_once('#') {
        Some((path, name)) => (path, Some(name.to_string())),
        None => (text, None),
    };
    Ok((Source::read(Path::new(path))?, name))
}
