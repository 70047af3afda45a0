//! `eightfold gate`: one variant through every gate in a row, each of them hard.

use super::profile::passed_on;
use super::recording::{RecordArguments, Recording, Show};
use super::selection::{MannerArguments, SourceArguments, TimedOutputArguments, variant};
use super::tools;
use crate::Verdict;
use crate::output::passage_table;
use crate::progress::KeepingBar;
use clap::{ArgAction, Args, ValueEnum};
use eightfold::cuda::driver::Device;
use eightfold::lab::suggest;
use eightfold::{Error, Mask, Problem, Result};
use eightfold_lab::choice;
use eightfold_lab::compare;
use eightfold_lab::examine::Candidate;
use eightfold_lab::gates::{Gate, PerformancePolicy};
use eightfold_lab::passage::{self, Passage, Passed, Requirement};
use eightfold_lab::peers::{Backend, HostDtype, Torch};
use eightfold_lab::profile::{Ncu, Target};
use eightfold_lab::record::{Group, Kind, Record};
use eightfold_lab::shapes;
use std::cell::RefCell;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Which variant, and what is asked of it.
#[derive(Args, Debug)]
pub struct Arguments {
    /// The variant, such as ladder:mma-pv, or gpu for what runs on this machine's GPU
    variant: String,
    #[command(flatten)]
    source: SourceArguments,
    /// A named shape, or B,H,S,D or B,Hq,Hkv,Sq,Skv,D
    #[arg(long, value_name = "SHAPE", default_value = "mission")]
    shape: String,
    /// Causal mask: the last query sees every key
    #[arg(long)]
    causal: bool,
    #[command(flatten)]
    output: TimedOutputArguments,
    /// What it must be faster than [default: of a stage what it extends, which is the stage before unless the ledger names another]
    #[arg(long, value_name = "VARIANT")]
    over: Option<String>,
    /// The speed-up that it must show over that, such as +10% [default: as gates.toml says of the stage]
    #[arg(long, value_name = "GAIN")]
    gain: Option<String>,
    /// A peer, and how many times as fast as that it must be, such as 15x torch-math; may be repeated
    #[arg(long, value_names = ["FACTOR", "PEER"], num_args = 2, action = ArgAction::Append)]
    require: Vec<String>,
    /// The Python that has PyTorch
    #[arg(long, value_name = "PATH", default_value = super::doctor::PYTHON)]
    python: String,
    /// The last gate
    #[arg(long, value_enum, value_name = "GATE", default_value_t = Last::Profile)]
    until: Last,
    /// Nsight Compute's ncu [default: what doctor finds]
    #[arg(long, value_name = "PATH")]
    ncu: Option<PathBuf>,
    #[command(flatten)]
    manner: MannerArguments,
    #[command(flatten)]
    record: RecordArguments,
}

/// The gate that ends it.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
enum Last {
    /// Registers, shared memory, spills, warnings
    Resources,
    /// The numbers, on all kinds of inputs
    Correctness,
    /// The gain over another variant, and over peers
    Performance,
    /// What Nsight Compute counts
    Profile,
}

impl From<Last> for Gate {
    fn from(last: Last) -> Gate {
        match last {
            Last::Resources => Gate::Resource,
            Last::Correctness => Gate::Correctness,
            Last::Performance => Gate::Performance,
            Last::Profile => Gate::Profile,
        }
    }
}

/// Takes the variant as far as it comes, prints a row for each gate, writes the record.
pub fn execute(arguments: &Arguments, nvrtc: Option<&Path>, json: bool) -> Result<Verdict> {
    let shape = shapes::parse(&arguments.shape)?;
    let problem = Problem::new(shape.shape)?.with_mask(Mask::causal_if(arguments.causal));
    let candidate = Candidate::new(&arguments.variant, variant(&arguments.variant, &problem)?);
    choice::check(&problem, &candidate.variant)?;
    let candidate = candidate.with_source(arguments.source.read()?)?;
    let problem = arguments.output.apply(problem, std::slice::from_ref(&candidate));
    let required = arguments.requirements(candidate.on_gpu())?;
    let recording = RefCell::new(Recording::open(Kind::Gate, &arguments.record)?);
    let thresholds = recording.borrow_mut().thresholds().clone();
    let over = arguments.over(&candidate, &problem, &thresholds.performance)?;
    let last = Gate::from(arguments.until);
    if last >= Gate::Performance && over.is_none() && required.is_empty() {
        let rule = format!("nothing says how fast {} must be", arguments.variant);
        let fix = "give --over VARIANT, --require 15x torch-math, or --until correctness";
        return Err(Error::invalid("gate", rule, fix));
    }
    let mut recording = recording;
    if candidate.on_gpu() {
        Device::default()?;
        recording = RefCell::new(recording.into_inner().with_cuda());
    }
    let mut torch = match required.is_empty() || last < Gate::Performance {
        true => None,
        false => Some(Torch::start(&arguments.python, rayon::current_num_threads())?),
    };
    let passage = Passage {
        shape: &shape.name,
        problem,
        candidate: &candidate,
        over: over.as_ref().map(|(candidate, gain)| (candidate, *gain)),
        required: &required,
        thresholds: &thresholds,
        manner: arguments.manner.manner(),
        last,
    };
    let mut bar = KeepingBar::new(&recording);
    let profile = &mut || arguments.profile(&passage, nvrtc);
    let passed = passage.run(torch.as_mut(), profile, &mut bar);
    drop(bar);
    let mut recording = recording.into_inner();
    let mut stopped = None;
    let ended = passed.and_then(|Passed { group, lost }| {
        stopped = passage.stopped_by(&group);
        recording.keep(group)?;
        lost.map_or(Ok(()), Err)
    });
    let verdict = recording.finish(ended, &Show::new(json, tables))?;
    Ok(if verdict == Verdict::Passed && stopped.is_some() { Verdict::GateFailed } else { verdict })
}

fn tables(record: &Record) -> String {
    super::recording::tables(record, passage_table::render)
}

impl Arguments {
    /// What it is held against, and what it must gain over that.
    fn over(
        &self,
        candidate: &Candidate,
        problem: &Problem,
        policy: &PerformancePolicy,
    ) -> Result<Option<(Candidate, f64)>> {
        let gain = self.gain.as_deref().map(|text| compare::parse_percentage("gain", text)).transpose()?;
        let over = match &self.over {
            Some(text) => {
                let over = Candidate::new(text, variant(text, problem)?);
                choice::check(problem, &over.variant)?;
                Some((over, policy.required_gain))
            }
            None => passage::before(&candidate.variant, problem, policy),
        };
        if over.as_ref().is_some_and(|(over, _)| over.name == candidate.name) {
            let rule = format!("{} is the variant itself", candidate.name);
            return Err(Error::invalid("over", rule, "name another"));
        }
        if over.is_none() && gain.is_some() {
            return Err(Error::invalid("gain", "is over nothing", "name what with --over"));
        }
        Ok(over.map(|(over, usual)| (over, gain.unwrap_or(usual))))
    }

    /// What was asked of peers, each of which there is where the variant runs.
    fn requirements(&self, on_gpu: bool) -> Result<Vec<Requirement>> {
        let names: Vec<&str> = match on_gpu {
            true => Backend::ALL.iter().map(|backend| backend.name()).collect(),
            false => HostDtype::ALL.iter().map(|dtype| dtype.name()).collect(),
        };
        let requirement = |pair: &[String]| {
            let requirement = Requirement::parse(&pair[0], &pair[1])?;
            let known = names.contains(&requirement.peer.as_str());
            if known { Ok(requirement) } else { Err(suggest::unknown("require", &requirement.peer, &names)) }
        };
        self.require.chunks_exact(2).map(requirement).collect()
    }

    /// Profiles the variant on the problem as it is timed.
    fn profile(&self, passage: &Passage, nvrtc: Option<&Path>) -> Result<Group> {
        let Passage { shape, problem, candidate, thresholds, .. } = passage;
        let config = candidate.variant.on_device();
        let config =
            config.ok_or_else(|| Error::invalid("gate", "there is no kernel on a GPU to profile", "name one"))?;
        let ncu = Ncu::open(tools::find_ncu(self.ncu.as_deref())?)?;
        let program = std::env::current_exe()
            .map_err(|error| Error::unavailable("profiling", error.to_string(), "call eightfold by its full path"))?;
        let mut arguments: Vec<OsString> = passed_on(self.record.gates.as_deref(), nvrtc)?;
        if let Some(source) = &self.source.source {
            arguments.extend(["--source".into(), source.into()]);
        }
        let target = Target {
            program: &program,
            arguments: &arguments,
            name: &candidate.name,
            config,
            shape,
            problem: *problem,
            cache: passage.manner.cache,
            policy: thresholds.profile,
            conflict_free: true,
        };
        Ok(ncu.profile(&target)?.1)
    }
}
