//! `eightfold profile`: what Nsight Compute counts for chosen variants, what that says bounds them, and the profile gate.

use super::recording::{RecordArguments, Recording, Show, tables};
use super::selection::{CacheArgument, ShapeArguments, TimedOutputArguments, VariantArguments};
use super::tools;
use crate::Verdict;
use crate::output::{self, profile_difference, profile_table};
use crate::progress::Bar;
use clap::Args;
use eightfold::lab::Config;
use eightfold::{Error, Problem, Result};
use eightfold_lab::choice;
use eightfold_lab::examine::Candidate;
use eightfold_lab::measure::Cache;
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
    /// Where the inputs are when the launch begins: in the caches, as where launches are timed, or in memory
    #[arg(long, value_enum, default_value_t = CacheArgument::Cold)]
    cache: CacheArgument,
    /// Nsight Compute's ncu [default: what doctor finds]
    #[arg(long, value_name = "PATH")]
    ncu: Option<PathBuf>,
    /// Profile nothing, but show how two profiles differ: records of this command, as RECORD or RECORD#STAGE
    #[arg(long, value_names = ["A", "B"], num_args = 2, conflicts_with_all = ["variant", "kernel", "shape", "causal", "dtype", "cache", "ncu"])]
    diff: Option<Vec<String>>,
    #[command(flatten)]
    record: RecordArguments,
}

/// A shape's name, its problem, and who computes it.
type Job = (String, Problem, Vec<(String, Config)>);

/// Profiles every chosen variant on every chosen shape, prints the tables, writes the record; or shows a difference.
pub fn execute(arguments: &Arguments, nvrtc: Option<&Path>, json: bool) -> Result<Verdict> {
    if let Some([before, after]) = arguments.diff.as_deref() {
        return difference(before, after, json);
    }
    let jobs = arguments.jobs()?;
    let ncu = Ncu::open(tools::find_ncu(arguments.ncu.as_deref())?)?;
    let mut recording = Recording::open(Kind::Profile, &arguments.record)?;
    let ended = work(
        &jobs,
        &ncu,
        arguments.cache.into(),
        &passed_on(arguments.record.gates.as_deref(), nvrtc)?,
        &mut recording,
    );
    recording.finish(ended, &Show::new(json, |record| tables(record, profile_table::render)))
}

fn work(jobs: &[Job], ncu: &Ncu, cache: Cache, passed_on: &[OsString], recording: &mut Recording) -> Result<()> {
    let program = std::env::current_exe()
        .map_err(|error| Error::unavailable("profiling", error.to_string(), "call eightfold by its full path"))?;
    let policy = recording.thresholds().profile;
    let total: usize = jobs.iter().map(|(_, _, configs)| configs.len()).sum();
    let mut progress = Bar::new();
    let mut done = 0;
    for (shape, problem, configs) in jobs {
        for (name, config) in configs {
            progress.at(done as f64 / total as f64, &format!("{shape} {problem}: profiling {name}"));
            let target = Target {
                program: &program,
                arguments: passed_on,
                name,
                config: *config,
                shape,
                problem: *problem,
                cache,
                policy,
                conflict_free: false,
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
            let problem = problem.with_output_format(self.output.format(true));
            let candidates = match self.variants.named(&problem)? {
                Some(named) => named,
                None => self.variants.planned(&problem)?,
            };
            let configs = candidates.iter().map(|candidate| on_gpu(candidate, &problem)).collect::<Result<_>>()?;
            jobs.push((shape.name, problem, configs));
        }
        Ok(jobs)
    }
}

/// What the profiled program needs to know as well, with paths that do not depend on the folder.
pub fn passed_on(gates: Option<&Path>, nvrtc: Option<&Path>) -> Result<Vec<OsString>> {
    let mut arguments = Vec::new();
    for (flag, path) in [("--nvrtc", nvrtc), ("--gates", gates)] {
        if let Some(path) = path {
            let whole = std::path::absolute(path)
                .map_err(|error| Error::invalid(&flag[2..], error.to_string(), "give the path of a file"))?;
            arguments.extend([flag.into(), whole.into_os_string()]);
        }
    }
    Ok(arguments)
}

/// A candidate's name and knobs; an error if it does not run on a GPU or not on this problem.
fn on_gpu(Candidate { name, variant, .. }: &Candidate, problem: &Problem) -> Result<(String, Config)> {
    let Some(config) = variant.on_device() else {
        let rule = format!("{name} does not run on a GPU");
        return Err(Error::invalid("variant", rule, "profile variants of the kernels ladder and hopper"));
    };
    choice::check(problem, variant)?;
    Ok((name.clone(), config))
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
