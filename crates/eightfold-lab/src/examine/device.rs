//! The gates of a candidate that runs on a GPU.

use super::{Candidate, Examination, unavailable};
use crate::compile;
use crate::gates::resource::{self, Built};
use crate::gates::{Case, Outcome};
use crate::record::Entry;
use crate::simulate;
use eightfold::cuda::Arch;
use eightfold::cuda::driver::Device;
use eightfold::lab::Config;
use eightfold::lab::compile::Compiler;
use eightfold::{Error, Result};

/// An examination with the device that it needs.
pub(super) struct OnDevice<'a> {
    examination: &'a Examination<'a>,
    arch: Arch,
}

impl<'a> OnDevice<'a> {
    pub fn new(examination: &'a Examination<'a>) -> Result<Self> {
        Ok(OnDevice { examination, arch: Device::default()?.arch()? })
    }

    pub fn arch(&self) -> Arch {
        self.arch
    }

    /// Resources, then correctness; what a restriction rules out is unavailable with its reason.
    pub fn gate(&self, candidate: &Candidate) -> Entry {
        let Some(config) = candidate.variant.on_device() else {
            return unavailable(candidate, "it does not run on a GPU".into());
        };
        let (possible, restriction) = self.possible(&config);
        let Some(first) = possible.first() else {
            return unavailable(candidate, restriction.map_or("no case was given".into(), |error| error.to_string()));
        };
        let Built { gate, build } = self.build(&config, first);
        let compiled = build.is_some() || gate.outcome == Outcome::Unavailable;
        if !compiled {
            return Entry { gates: vec![gate], ..Entry::new(&candidate.name, candidate.implementation()) };
        }
        let mut entry = match restriction {
            None => self.examination.check(candidate, self.examination.cases),
            Some(error) => {
                let cases: Vec<Case> = possible.iter().map(|case| (*case).clone()).collect();
                let note = format!("checked on {} of {} cases: {error}", cases.len(), self.examination.cases.len());
                Entry { note: Some(note), ..self.examination.check(candidate, &cases) }
            }
        };
        entry.gates.insert(0, gate);
        entry.build = build;
        entry
    }

    /// The compiler's and the resource gate's word on the first case.
    pub fn resources(&self, candidate: &Candidate) -> Built {
        match (candidate.variant.on_device(), self.examination.cases.first()) {
            (Some(config), Some(case)) => self.build(&config, case),
            _ => Built::unavailable("it does not run on a GPU"),
        }
    }

    /// The cases that no rule keeps the config from, and the first rule that does.
    fn possible(&self, config: &Config) -> (Vec<&Case>, Option<Error>) {
        let mut restriction = None;
        let mut possible = Vec::new();
        for case in self.examination.cases {
            match config.check_uploaded(&case.problem, case.operands(), self.arch()) {
                Ok(()) => possible.push(case),
                Err(error) => restriction = restriction.or(Some(error)),
            }
        }
        (possible, restriction)
    }

    fn build(&self, config: &Config, case: &Case) -> Built {
        if simulate::is_installed() {
            return Built::unavailable("the simulator counts no registers and no spills");
        }
        let compiler = match Compiler::find() {
            Ok(compiler) => compiler,
            Err(error) => return Built::unavailable(error),
        };
        let compile = |program: &_, arch| compile::compile(compiler, program, arch);
        let policy = &self.examination.thresholds.resource;
        resource::examine(config, &case.specialisation(), self.arch(), &compile, policy)
    }
}
