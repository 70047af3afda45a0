//! What a record keeps of a search, and the short file that names its elite.

use super::budget::{Budget, Spent};
use super::insights::Insight;
use super::journal::{Header, Target};
use super::mutator::Ledger;
use super::population::Policy;
use super::protocol::{Challenger, Files};
use super::search::Found;
use super::space::Space;
use super::trial::Trial;
use super::validate::together;
use crate::compare::Comparison;
use crate::gates::Outcome;
use crate::record::ProblemRecord;
use crate::verdict::SpeedUp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The name of the short file.
pub const ELITE_FILE: &str = "elite.json";

/// A search, as a record keeps it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Evolution {
    /// The kernel family.
    pub kernel: String,
    /// The hash of its sources.
    pub source_hash: String,
    /// What the candidates ran on.
    pub device: String,
    /// What a person calls the shape.
    pub shape: String,
    /// What was computed.
    pub problem: ProblemRecord,
    /// What all were timed against.
    pub baseline: String,
    /// More problems that were searched for together with the first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub more: Vec<Target>,
    /// The accuracy mode that was searched, if not the library's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<String>,
    /// Whether steps on the simulated device were counted in place of time.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub on_simulator: bool,
    /// The seed.
    pub seed: u64,
    /// Who was kept.
    pub policy: Policy,
    /// The values that might be tried, as the user restricted them.
    pub restriction: String,
    /// Settings that the knobs' lists allow.
    pub settings: usize,
    /// Of those, the legal ones: the space.
    pub points: usize,
    /// What might be spent.
    pub budget: Budget,
    /// What was spent.
    pub spent: Spent,
    /// Why it ended.
    pub ended: String,
    /// Whether a recording stood for the device.
    pub replayed: bool,
    /// Every candidate, in order.
    pub trials: Vec<Trial>,
    /// What was learned.
    pub insights: Vec<Insight>,
    /// What the mutator cost, where there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mutator: Option<Ledger>,
    /// The best, the best first.
    pub elite: Vec<EliteMember>,
    /// The variant that was installed as the plan's choice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub installed: Option<String>,
}

/// One of the best.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EliteMember {
    /// Its trial.
    pub trial: usize,
    /// The variant with every knob.
    pub variant: String,
    /// The fingerprint of the source that it is compiled from, in place of the kernel's own: the folder's name beside the
    /// journal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Its speed-up as the search measured it.
    pub searched: f64,
    /// Its speed-up on fresh inputs with many runs, with the interval; none where it was not validated.
    pub validated: Option<SpeedUp>,
    /// The verdict on that.
    pub outcome: Option<Outcome>,
    /// The verdict in words.
    pub summary: String,
    /// The shapes on which it is surely faster, where there are several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub faster_on: Vec<String>,
}

/// The short file.
#[derive(Debug, Clone, Serialize)]
struct EliteFile<'a> {
    kernel: &'a str,
    source_hash: &'a str,
    device: &'a str,
    shape: &'a str,
    problem: &'a ProblemRecord,
    baseline: &'a str,
    seed: u64,
    policy: Policy,
    elite: &'a [EliteMember],
}

impl Evolution {
    /// What a search found, before its elite was validated.
    pub fn new(header: &Header, budget: Budget, space: &Space, found: &Found) -> Evolution {
        let elite = found.elite.iter().map(|trial| EliteMember {
            trial: trial.index,
            variant: trial.variant.clone(),
            source: trial.origin.source.clone(),
            searched: trial.fate.speed_up().unwrap_or(0.0),
            validated: None,
            outcome: None,
            summary: "not validated".into(),
            faster_on: Vec::new(),
        });
        Evolution {
            kernel: header.kernel.clone(),
            source_hash: header.source_hash.clone(),
            device: header.device.clone(),
            shape: header.shape.clone(),
            problem: header.problem.clone(),
            baseline: header.baseline.clone(),
            more: header.more.clone(),
            accuracy: header.accuracy.clone(),
            on_simulator: header.on_simulator,
            seed: header.seed,
            policy: header.policy,
            restriction: header.restriction.clone(),
            settings: space.settings(),
            points: space.points().len(),
            budget,
            spent: found.spent,
            ended: found.ended.clone(),
            replayed: header.replays.is_some(),
            trials: found.trials.clone(),
            insights: found.insights.clone(),
            mutator: header.mutator.as_ref().map(|_| found.ledger),
            elite: elite.collect(),
            installed: None,
        }
    }

    /// The elite as it is to be validated; `sources` are the files by fingerprint.
    pub fn challengers(&self, sources: &BTreeMap<String, Files>) -> Vec<Challenger> {
        let challenger = |member: &EliteMember| Challenger {
            variant: member.variant.clone(),
            source: member.source.as_ref().and_then(|source| sources.get(source)).cloned(),
        };
        self.elite.iter().map(challenger).collect()
    }

    /// Notes the verdicts: for each shape one for each of the elite.
    pub fn note(&mut self, comparisons: &[Vec<Comparison>]) {
        for (place, member) in self.elite.iter_mut().enumerate() {
            let each: Vec<&Comparison> = comparisons.iter().filter_map(|shape| shape.get(place)).collect();
            if each.is_empty() {
                continue;
            }
            let (outcome, summary, speed_up) = together(&each);
            if each.len() > 1 {
                let faster = each.iter().filter(|one| one.outcome == Outcome::Pass);
                member.faster_on = faster.map(|one| one.shape.clone()).collect();
            }
            (member.validated, member.outcome, member.summary) = (speed_up, Some(outcome), summary);
        }
    }

    /// The member that is surely faster than the baseline, the fastest of those; none if the baseline stands.
    pub fn winner(&self) -> Option<&EliteMember> {
        let sure = self.elite.iter().filter(|member| member.outcome == Some(Outcome::Pass));
        let ratio = |member: &&EliteMember| member.validated.map_or(0.0, |found| found.ratio);
        sure.max_by(|one, other| ratio(one).total_cmp(&ratio(other)))
    }

    /// The same among those that are compiled from the kernel's own source.
    pub fn best_of_knobs(&self) -> Option<&EliteMember> {
        let sure = self.elite.iter().filter(|member| member.outcome == Some(Outcome::Pass) && member.source.is_none());
        let ratio = |member: &&EliteMember| member.validated.map_or(0.0, |found| found.ratio);
        sure.max_by(|one, other| ratio(one).total_cmp(&ratio(other)))
    }

    /// The best speed-up after each trial; none before the first that was timed.
    pub fn best_so_far(&self) -> Vec<Option<f64>> {
        let mut best = None;
        let step = |trial: &Trial| {
            best = [best, trial.fate.speed_up()].into_iter().flatten().reduce(f64::max);
            best
        };
        self.trials.iter().map(step).collect()
    }

    /// The short file: who the elite is, on what, against what.
    pub fn elite_json(&self) -> String {
        let Evolution { kernel, source_hash, device, shape, problem, baseline, seed, policy, elite, .. } = self;
        let (seed, policy) = (*seed, *policy);
        let file = EliteFile { kernel, source_hash, device, shape, problem, baseline, seed, policy, elite };
        let mut text = serde_json::to_string_pretty(&file).expect("an elite holds only plain data with string keys");
        text.push('\n');
        text
    }
}
