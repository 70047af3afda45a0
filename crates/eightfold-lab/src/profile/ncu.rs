//! Running Nsight Compute on this program.

use super::bottleneck::{Bottleneck, floor_words};
use super::csv::STALL;
use super::metric::base;
use super::{Claims, Metric, Position, Profiled, check, claims_compute_bound, parse};
use crate::bound::Peaks;
use crate::gates::resource::plain_specialisation;
use crate::gates::{Outcome, ProfilePolicy};
use crate::measure::Cache;
use crate::record::{Entry, Group, Record};
use crate::store::RECORD_FILE;
use eightfold::lab::Config;
use eightfold::{Error, Mask, Problem, Result, Variant};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Nsight Compute, with the names that it knows.
pub struct Ncu {
    program: PathBuf,
    version: String,
    stalls: Vec<String>,
}

/// What is profiled: this program's own gates for one variant on one problem.
pub struct Target<'a> {
    /// This program.
    pub program: &'a Path,
    /// Arguments that it gets besides: where its compiler is, which limits apply.
    pub arguments: &'a [OsString],
    /// What a person calls the variant.
    pub name: &'a str,
    /// Its knobs.
    pub config: Config,
    /// What a person calls the shape.
    pub shape: &'a str,
    /// The problem.
    pub problem: Problem,
    /// Where the inputs are when the launch begins.
    pub cache: Cache,
    /// The limits of the profile gate.
    pub policy: ProfilePolicy,
    /// Whether bank conflicts are a fault, and no mere finding.
    pub conflict_free: bool,
}

/// The gate runs a kernel twice: the first launch, which loads code, is let pass.
const LAUNCHES_LET_PASS: usize = 1;

impl Ncu {
    /// Asks the profiler for its version and the metrics that it knows on this device; an error names the first metric
    /// that is not among them.
    pub fn open(program: impl Into<PathBuf>) -> Result<Ncu> {
        let program = program.into();
        let version = said(&output(command(&program).arg("--version"))?);
        let version = version.lines().find_map(|line| line.trim().strip_prefix("Version ")).unwrap_or("?").to_string();
        let known = known(&said(&output(command(&program).arg("--query-metrics"))?))?;
        validate(&known)?;
        let stalls = known.iter().filter(|name| is_stall(name)).map(|name| format!("{name}.ratio")).collect();
        Ok(Ncu { program, version, stalls })
    }

    /// Profiles one launch: the group of one entry with the gates that it met, what was counted, and the profile gate.
    /// The record that the profiled program itself wrote says on which device that was.
    pub fn profile(&self, target: &Target) -> Result<(Record, Group)> {
        let scratch = tempfile::tempdir().map_err(|error| {
            Error::unavailable("profiling", format!("no temporary folder: {error}"), "set TMPDIR to a writable folder")
        })?;
        let mut command = command(&self.program);
        command.args(self.arguments(target));
        command.arg(target.program).args(target.command_line(scratch.path()));
        let output = output(&mut command)?;
        let text = said(&output);
        let record = own_record(scratch.path()).map_err(|error| explain(&output, error))?;
        let mut group = record.groups.first().cloned().ok_or_else(|| {
            explain(
                &output,
                Error::unavailable("profiling", "the program gated nothing", "see what eightfold run says"),
            )
        })?;
        let Some(entry) = group.entries.first_mut() else {
            return Err(Error::unavailable("profiling", "the program gated nothing", "see what eightfold run says"));
        };
        entry.name = target.name.into();
        group.shape = target.shape.into();
        if entry.correctness().is_some_and(|gate| gate.outcome == Outcome::Pass) {
            let profiles = parse(&text).map_err(|error| explain(&output, error))?;
            self.note(entry, target, &profiles[0], &record)?;
        } else {
            entry.note = Some("not profiled: what a wrong kernel does is of no interest".into());
        }
        Ok((record, group))
    }

    /// Adds what was counted, what it says, and the gate.
    fn note(&self, entry: &mut Entry, target: &Target, profile: &super::Profile, record: &Record) -> Result<()> {
        profile.check_complete()?;
        let head_dim = target.problem.shape().head_dim;
        let variant = Variant::from(target.config);
        let floor = match target.problem.mask() {
            Mask::None => floor_words(&variant, target.shape, head_dim, profile.time_us()?, &record.provenance),
            _ => None,
        };
        let position = match record.provenance.gpu.as_ref().and_then(Peaks::of_gpu) {
            Some(peaks) => Position::of(profile, target.problem.flop(), &peaks)?,
            None => None,
        };
        let compute_bound = claims_compute_bound(&variant, target.shape, &target.problem);
        let claims = Claims { compute_bound, conflict_free: target.conflict_free };
        entry.gates.push(check(profile, &target.policy, claims)?);
        entry.profile = Some(Profiled {
            bottleneck: Bottleneck::of(profile, floor.as_deref())?,
            position,
            profile: profile.clone(),
            profiler: format!("Nsight Compute {}, clocks as they were, {}", self.version, caches(target.cache).1),
        });
        Ok(())
    }

    /// What the profiler is told, up to the program that it runs.
    fn arguments(&self, target: &Target) -> Vec<String> {
        let asked = Metric::ALL.into_iter().filter(|metric| metric.asked_for()).map(|metric| metric.name().to_string());
        let metrics: Vec<String> = asked.chain(self.stalls.iter().cloned()).collect();
        let mut arguments: Vec<String> = ["--csv", "--page", "raw", "--print-units", "base"].map(Into::into).into();
        // Locked clocks would be another machine than the one that is timed.
        arguments.extend(["--clock-control", "none", "--cache-control", caches(target.cache).0].map(Into::into));
        // By its whole name: other kernels of ours prepare its inputs.
        arguments.extend(["-k".into(), target.entry().into()]);
        arguments.extend(["--launch-skip".into(), LAUNCHES_LET_PASS.to_string()]);
        arguments.extend(["--launch-count".into(), "1".into()]);
        arguments.extend(["--metrics".into(), metrics.join(",")]);
        arguments
    }
}

/// What the profiler is told to do with the caches before each of its passes, and what a record says about that.
fn caches(cache: Cache) -> (&'static str, &'static str) {
    match cache {
        Cache::Hot => ("none", "caches as the pass before left them"),
        Cache::Cold => ("all", "caches emptied before every pass"),
    }
}

impl Target<'_> {
    /// The name of the function that the variant is compiled to.
    fn entry(&self) -> &'static str {
        plain_specialisation(self.problem.shape().head_dim, self.problem.mask()).program(self.config).entry
    }

    /// What the profiled program is told: the gates for one variant on one set of inputs, the problem as it is timed, the
    /// record to this folder.
    fn command_line(&self, folder: &Path) -> Vec<OsString> {
        let variant = Variant::from(self.config).to_string();
        let mut line: Vec<OsString> = ["run", "--variant", &variant, "--shape", self.shape].map(Into::into).into();
        line.extend(["--families", "gaussian", "--seeds", "1"].map(Into::into));
        line.extend((self.problem.mask() == Mask::Causal).then(|| "--causal".into()));
        line.extend(["--dtype".into(), self.problem.output_format().to_string().into(), "--no-lse".into()]);
        line.extend(["--records".into(), folder.into()]);
        line.extend(self.arguments.iter().cloned());
        line
    }
}

/// The profiler as it is always called: numbers with a point, whatever the user's language.
fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.env("LC_ALL", "C");
    command
}

fn output(command: &mut Command) -> Result<Output> {
    command.output().map_err(|error| {
        let program = command.get_program().to_string_lossy().into_owned();
        let fix = "install Nsight Compute, or say where it is with --ncu";
        Error::unavailable("profiling", format!("`{program}` cannot be started: {error}"), fix)
    })
}

/// Everything it said, on whichever stream.
fn said(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|stream| String::from_utf8_lossy(stream)).concat()
}

/// The names in the answer to `--query-metrics`: the first word of each line. Names that are cut into two lines there are
/// none of those that are asked for.
fn known(answer: &str) -> Result<BTreeSet<String>> {
    if let Err(error @ Error::Unavailable { .. }) = parse(answer) {
        return Err(error);
    }
    let names: BTreeSet<String> = answer
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .filter(|word| word.contains("__"))
        .map(str::to_string)
        .collect();
    if names.is_empty() {
        let last = answer.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("nothing").trim().to_string();
        let reason = format!("ncu --query-metrics lists no metric, and says: {last}");
        return Err(Error::unavailable("profiling", reason, "check that ncu runs on this machine and sees a GPU"));
    }
    Ok(names)
}

fn validate(known: &BTreeSet<String>) -> Result<()> {
    let asked = Metric::ALL.into_iter().filter(|metric| metric.asked_for());
    if let Some(missing) = { asked }.map(Metric::base).find(|name| !known.contains(*name)) {
        let reason = format!("this ncu does not know the metric `{missing}` on this GPU");
        return Err(Error::unavailable("profiling", reason, "use Nsight Compute 2023.1 or later, on sm_80 or later"));
    }
    if !known.iter().any(|name| is_stall(name)) {
        let reason = "this ncu knows no stall reason on this GPU";
        return Err(Error::unavailable("profiling", reason, "use Nsight Compute 2023.1 or later"));
    }
    Ok(())
}

fn is_stall(name: &str) -> bool {
    name.starts_with(STALL.0) && name.ends_with(base(STALL.1))
}

/// The record that the profiled program left in this folder.
fn own_record(folder: &Path) -> Result<Record> {
    let nothing = || Error::unavailable("profiling", "the program left no record", "see what eightfold run says");
    let runs = std::fs::read_dir(folder).map_err(|_| nothing())?;
    let file = runs.flatten().map(|run| run.path().join(RECORD_FILE)).find(|file| file.is_file());
    Record::read(&file.ok_or_else(nothing)?)
}

/// The reason that the profiler itself gives for something that went wrong, where it gives one.
fn explain(output: &Output, error: Error) -> Error {
    let text = said(output);
    if let Err(permission @ Error::Unavailable { .. }) = parse(&text) {
        return permission;
    }
    let told = text.lines().rev().find_map(|line| {
        let line = line.trim();
        line.strip_prefix("==ERROR==").or_else(|| line.strip_prefix("error: ")).map(str::trim)
    });
    match told {
        Some(told) => {
            Error::unavailable("profiling", format!("{error}; it said: {told}"), "see what eightfold run says")
        }
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use eightfold::OutputFormat;

    /// What ncu 2025.3 answers to `--query-metrics` on an H200.
    const QUERY: &str = include_str!("h200_query.txt");

    #[test]
    fn every_metric_that_is_asked_for_exists_on_an_h200() {
        let known = known(QUERY).unwrap();
        assert_eq!(validate(&known), Ok(()));
        assert_eq!(known.iter().filter(|name| is_stall(name)).count(), 19);
    }

    #[test]
    fn a_metric_that_is_not_known_is_found_before_anything_runs() {
        let without = QUERY.replace("dram__throughput\n", "dram__throughputs\n");
        let error = validate(&known(&without).unwrap()).unwrap_err().to_string();
        assert!(error.contains("does not know the metric `dram__throughput`"), "{error}");
        let none: String =
            QUERY.lines().filter(|line| !line.contains("_stalled_")).map(|line| format!("{line}\n")).collect();
        assert!(validate(&known(&none).unwrap()).unwrap_err().to_string().contains("no stall reason"));
    }

    #[test]
    fn an_answer_without_names_is_quoted() {
        let error = known("==PROF== hello\n==ERROR== no device\n").unwrap_err().to_string();
        assert!(error.contains("lists no metric, and says: ==ERROR== no device"), "{error}");
        let error = known("==ERROR== ERR_NVGPUCTRPERM - no\n").unwrap_err().to_string();
        assert!(error.contains("ERR_NVGPUCTRPERM") && error.contains("as root"), "{error}");
    }

    fn target(variant: &str, cache: Cache) -> Target<'_> {
        let problem = Problem::new("1,8,512,64".parse().unwrap()).unwrap().causal();
        Target {
            program: Path::new("eightfold"),
            arguments: &[],
            name: variant,
            config: variant.parse::<Variant>().unwrap().on_device().unwrap(),
            shape: "mission",
            problem: problem.with_output_format(OutputFormat::Bf16),
            cache,
            policy: crate::gates::Thresholds::embedded().profile,
            conflict_free: false,
        }
    }

    fn told(target: &Target) -> String {
        let ncu = Ncu { program: "ncu".into(), version: "1".into(), stalls: vec!["a.ratio".into()] };
        ncu.arguments(target).join(" ")
    }

    #[test]
    fn clocks_are_left_alone_and_one_launch_is_counted() {
        let line = told(&target("ladder:unpack", Cache::Cold));
        assert!(line.starts_with(
            "--csv --page raw --print-units base --clock-control none --cache-control all -k ladder_attention \
             --launch-skip 1 --launch-count 1 --metrics gpu__time_duration.sum,"
        ));
        assert!(line.ends_with(",a.ratio") && !line.contains("launch__"), "{line}");
        assert!(told(&target("ladder:unpack", Cache::Hot)).contains(" --cache-control none "));
    }

    /// `regex:hopper` would count the kernel that puts V in order, where there is one.
    #[test]
    fn each_kernel_is_told_from_the_others_of_its_family_by_its_whole_name() {
        let filter = |variant: &str| {
            let line = told(&target(variant, Cache::Hot));
            line.split(" -k ").nth(1).unwrap().split(' ').next().unwrap().to_string()
        };
        assert_eq!(filter("hopper:fast"), "hopper_attention");
        assert_eq!(filter("hopper:fast,warpgroups=1,split_keys=on,tile_keys=128,stages=2"), "hopper_attention");
        let few_keys = "hopper:fast,warpgroups=1,tile_keys=512,stages=1,promote=0,sums=registers,keys=at-once";
        assert_eq!(filter(few_keys), "hopper_short");
    }

    #[test]
    fn the_program_is_told_every_knob_the_shape_the_mask_and_what_to_write() {
        let arguments = ["--nvrtc".into(), "x".into()];
        let target = Target { arguments: &arguments, ..target("ladder:unpack", Cache::Cold) };
        let line: Vec<String> =
            target.command_line(Path::new("o")).iter().map(|word| word.to_string_lossy().into_owned()).collect();
        let line = line.join(" ");
        let variant = Variant::from(target.config);
        assert!(line.starts_with(&format!("run --variant {variant} --shape mission --families")), "{line}");
        assert!(line.ends_with("--seeds 1 --causal --dtype bf16 --no-lse --records o --nvrtc x"), "{line}");
    }
}
