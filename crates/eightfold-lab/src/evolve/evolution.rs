//! What a record keeps of a search, and the short file that names its elite.

use super::budget::{Budget, Spent};
use super::insights::Insight;
use super::journal::Header;
use super::mutator::Ledger;
use super::population::Policy;
use super::search::Found;
use super::space::Space;
use super::trial::Trial;
use crate::compare::Comparison;
use crate::gates::Outcome;
use crate::record::ProblemRecord;
use crate::verdict::SpeedUp;
use serde::{Deserialize, Serialize};

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
    /// Its speed-up as the search measured it.
    pub searched: f64,
    /// Its speed-up on fresh inputs with many runs, with the interval; none where it was not validated.
    pub validated: Option<SpeedUp>,
    /// The verdict on that.
    pub outcome: Option<Outcome>,
    /// The verdict in words.
    pub summary: String,
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
            searched: trial.fate.speed_up().unwrap_or(0.0),
            validated: None,
            outcome: None,
            summary: "not validated".into(),
        });
        Evolution {
            kernel: header.kernel.clone(),
            source_hash: header.source_hash.clone(),
            device: header.device.clone(),
            shape: header.shape.clone(),
            problem: header.problem.clone(),
            baseline: header.baseline.clone(),
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

    /// The elite's variants that are worth a validation: the baseline need not be timed against itself.
    pub fn challengers(&self) -> Vec<String> {
        self.elite.iter().map(|member| member.variant.clone()).filter(|variant| *variant != self.baseline).collect()
    }

    /// Notes the verdicts.
    pub fn note(&mut self, comparisons: &[Comparison]) {
        for member in &mut self.elite {
            if member.variant == self.baseline {
                member.summary = "it is the baseline".into();
            }
            if let Some(found) = comparisons.iter().find(|one| one.candidate.implementation == member.variant) {
                member.validated = found.speed_up;
                member.outcome = Some(found.outcome);
                member.summary = found.summary.clone();
            }
        }
    }

    /// The member that is surely faster than the baseline, the fastest of those; none if the baseline stands.
    pub fn winner(&self) -> Option<&EliteMember> {
        let sure = self.elite.iter().filter(|member| member.outcome == Some(Outcome::Pass));
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
