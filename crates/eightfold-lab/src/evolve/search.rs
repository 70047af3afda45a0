//! The search itself: propose, evaluate, keep, learn, until the budget is spent.
//!
//! The candidate of trial k is made from the outcomes of the trials before k − window and from nothing else, in their
//! order, however many workers there are and whoever answers first. So the course of a search follows from its header and
//! its outcomes, and a search that finds outcomes in its journal goes through them again without evaluating anything.

use super::budget::{Budget, Spent};
use super::fate::{Evidence, Fate};
use super::insights::{Insight, Insights};
use super::journal::{Contents, Header, Journal};
use super::mutator::{Bundle, Call, KnobText, Ledger, Mutator, Told};
use super::population::{Member, Policy, Population};
use super::protocol::{Examined, Request};
use super::replay::Recording;
use super::space::{Point, Space};
use super::traverse::{View, decide, generator, propose};
use super::trial::{Information, Operator, Origin, Trial};
use super::workers::Workers;
use crate::progress::Progress;
use eightfold::cuda::compile;
use eightfold::{Error, Result, Variant};
use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Who says what becomes of candidates.
pub enum Evaluator {
    /// Processes that run them.
    Workers(Workers),
    /// A recording of such.
    Recorded(Box<Recording>),
}

/// Every so many trials the mutator is asked, if there is one.
const MUTATOR_EVERY: usize = 4;

/// The first trials are the search's own: a mutator needs something to look at.
const MUTATOR_AFTER: usize = 8;

/// Failures that a mutator is told of.
const FAILURES_TOLD: usize = 5;

/// How long an answer is waited for before the clock is looked at again.
const PATIENCE: Duration = Duration::from_millis(200);

/// A candidate that is under way.
struct Pending {
    point: Option<Point>,
    variant: String,
    source: Option<String>,
    origin: Origin,
    submitted: bool,
    /// What became of it, once that is known.
    outcome: Option<Trial>,
}

/// A search that is under way.
pub struct Search {
    header: Header,
    space: Space,
    budget: Budget,
    journal: Option<Journal>,
    evaluator: Evaluator,
    mutator: Option<Mutator>,
    /// Outcomes and calls of an earlier process, by trial.
    known: BTreeMap<usize, Trial>,
    known_calls: BTreeMap<usize, Call>,
    trials: Vec<Trial>,
    tried: HashSet<Point>,
    order: Vec<Point>,
    pending: BTreeMap<usize, Pending>,
    population: Box<dyn Population>,
    insights: Insights,
    ledger: Ledger,
    best: f64,
    best_at: usize,
    began: Instant,
    /// The clock of an earlier process, or of a recording.
    clock_s: f64,
}

/// What a search found.
#[derive(Debug, Clone)]
pub struct Found {
    /// Every candidate, in order.
    pub trials: Vec<Trial>,
    /// The best, the best first.
    pub elite: Vec<Trial>,
    /// What was learned.
    pub insights: Vec<Insight>,
    /// What was spent.
    pub spent: Spent,
    /// What the mutator cost.
    pub ledger: Ledger,
    /// Why it ended.
    pub ended: String,
    /// Whether it was told to stop before its budget was spent.
    pub interrupted: bool,
}

impl Search {
    /// A search that begins, or goes on where the contents of its journal end. Without a journal nothing is kept.
    pub fn new(
        header: Header,
        space: Space,
        journal: Option<(Journal, Option<Contents>)>,
        evaluator: Evaluator,
        mutator: Option<Mutator>,
    ) -> Search {
        let (journal, contents) = journal.map_or((None, None), |(journal, contents)| (Some(journal), contents));
        let (known, known_calls) = contents.map_or_else(Default::default, |contents| {
            let trials = contents.trials.into_iter().map(|trial| (trial.index, trial)).collect();
            let calls = contents.calls.into_iter().map(|call| (call.trial, call)).collect();
            (trials, calls)
        });
        Search {
            budget: header.budget,
            population: header.policy.population(header.keep),
            header,
            space,
            journal,
            evaluator,
            mutator,
            known,
            known_calls,
            trials: Vec::new(),
            tried: HashSet::new(),
            order: Vec::new(),
            pending: BTreeMap::new(),
            insights: Insights::default(),
            ledger: Ledger::default(),
            best: 0.0,
            best_at: 0,
            began: Instant::now(),
            clock_s: 0.0,
        }
    }

    /// Lets it end at another budget than its header's.
    pub fn with_budget(self, budget: Budget) -> Search {
        Search { budget, ..self }
    }

    /// Runs until the budget is spent, the space is exhausted, or someone says stop.
    pub fn run(&mut self, stop: &AtomicBool, progress: &mut dyn Progress) -> Result<Found> {
        self.began = Instant::now();
        let mut ended: Option<String> = None;
        let mut interrupted = false;
        loop {
            while ended.is_none() && self.pending.len() < self.header.window.max(1) {
                if stop.load(Ordering::Relaxed) {
                    (interrupted, ended) = (true, Some("it was interrupted".into()));
                } else if let Some(reason) = self.budget.reached(&self.spent_with_pending()) {
                    ended = Some(reason);
                } else if !self.propose()? {
                    ended = Some(format!("all {} points of the space were tried", self.space.points().len()));
                }
            }
            if self.pending.is_empty() {
                break;
            }
            self.submit();
            if self.absorb()? {
                progress.at(self.budget.share(&self.spent()), &self.in_words());
                continue;
            }
            self.wait()?;
        }
        let elite = self.elite();
        Ok(Found {
            elite: elite.iter().map(|member| self.trials[member.trial].clone()).collect(),
            insights: self.insights.list(&self.space),
            spent: self.spent(),
            ledger: self.ledger,
            trials: self.trials.clone(),
            ended: ended.unwrap_or_default(),
            interrupted,
        })
    }

    /// Gives the workers back, for the validation of the elite.
    pub fn into_evaluator(self) -> Evaluator {
        self.evaluator
    }

    fn elite(&self) -> Vec<Member> {
        let mut kept = self.population.kept();
        kept.truncate(self.header.keep);
        kept
    }

    fn clock_s(&self) -> f64 {
        match self.evaluator {
            Evaluator::Workers(_) => self.clock_s + self.began.elapsed().as_secs_f64(),
            Evaluator::Recorded(_) => self.clock_s,
        }
    }

    fn spent(&self) -> Spent {
        Spent {
            trials: self.trials.len(),
            wall_s: self.trials.iter().map(|trial| trial.at_s).fold(0.0, f64::max),
            device_s: self.trials.iter().map(|trial| trial.device_s).sum(),
            stale: self.trials.len().saturating_sub(self.best_at + 1),
        }
    }

    /// What is spent when those under way are done; and the clock, which does not wait for outcomes.
    fn spent_with_pending(&self) -> Spent {
        let spent = self.spent();
        let index = self.trials.len() + self.pending.len();
        // While an earlier process's outcomes are gone through again, its clock counts and not this one's.
        let live = !self.known.contains_key(&index) && matches!(self.evaluator, Evaluator::Workers(_));
        let wall_s = if live { spent.wall_s.max(self.clock_s()) } else { spent.wall_s };
        Spent { trials: index, wall_s, ..spent }
    }

    /// Makes the next candidate; false where there is nothing left to try.
    fn propose(&mut self) -> Result<bool> {
        let trial = self.trials.len() + self.pending.len();
        let made = self.first(trial).or_else(|| self.asked(trial)).transpose()?.or_else(|| self.guided(trial));
        let Some(mut pending) = made else { return Ok(false) };
        if let Some(point) = &pending.point {
            self.tried.insert(point.clone());
            self.order.push(point.clone());
        }
        if let Some(known) = self.known.remove(&trial) {
            if known.variant != pending.variant || known.origin != pending.origin {
                return Err(Error::invalid(
                    "resume",
                    format!("trial {trial} was {} in the journal and is {} now", known.variant, pending.variant),
                    "resume it with the version that began it, or begin a new search",
                ));
            }
            self.clock_s = self.clock_s.max(known.at_s);
            self.began = Instant::now();
            pending.outcome = Some(known);
        }
        self.pending.insert(trial, pending);
        Ok(true)
    }

    /// The baseline, where every search begins.
    fn first(&self, trial: usize) -> Option<Result<Pending>> {
        let variant: Variant =
            (trial == 0 && self.header.from_baseline).then(|| self.header.baseline.parse().ok())??;
        let point = self.space.point(&variant).filter(|point| self.space.contains(point))?;
        let origin = Origin { used: vec![Information::Context], ..origin(Operator::Baseline) };
        Some(Ok(pending(Some(point), variant.to_string(), origin)))
    }

    /// The mutator's candidate, when it is its turn.
    fn asked(&mut self, trial: usize) -> Option<Result<Pending>> {
        self.mutator.as_ref()?;
        if trial < MUTATOR_AFTER || !trial.is_multiple_of(MUTATOR_EVERY) {
            return None;
        }
        let call = match self.known_calls.remove(&trial) {
            Some(call) => call,
            None => match self.call(trial) {
                Ok(call) => call,
                Err(error) => return Some(Err(error)),
            },
        };
        self.ledger.add(&call);
        let used = vec![Information::Context, Information::Solutions, Information::Insights];
        let parents = self.elite().iter().map(|member| member.trial).collect();
        let origin = Origin { used, parents, ..origin(Operator::Mutator) };
        Some(Ok(self.understand(trial, call, origin)))
    }

    fn call(&mut self, trial: usize) -> Result<Call> {
        let told = |trial: &'_ Trial| -> (usize, bool) { (trial.index, trial.fate.failure().is_some()) };
        let failures: Vec<usize> =
            self.trials.iter().map(told).filter(|(_, failed)| *failed).map(|(index, _)| index).collect();
        let failures = &failures[failures.len().saturating_sub(FAILURES_TOLD)..];
        let elite: Vec<usize> = self.elite().iter().map(|member| member.trial).collect();
        let tell = |index: &usize| {
            let Trial { variant, fate, evidence, .. } = &self.trials[*index];
            Told { variant, fate, evidence }
        };
        let family = self.space.family();
        let bundle = Bundle {
            version: 1,
            trial,
            problem: &self.header.problem,
            kernel: family.name,
            device: &self.header.device,
            baseline: &self.header.baseline,
            knobs: { family.knobs.iter() }
                .map(|knob| KnobText { name: knob.name, values: knob.values, what: knob.what })
                .collect(),
            elite: elite.iter().map(tell).collect(),
            failures: failures.iter().map(tell).collect(),
            insights: self.insights.list(&self.space),
            source: { self.header.baseline.parse::<Variant>().ok() }
                .and_then(|variant| variant.file())
                .and_then(compile::source_text),
        };
        let Some(mutator) = &mut self.mutator else {
            return Err(Error::invalid("mutator", "there is none", "name one with --mutator"));
        };
        let call = mutator.call(&bundle);
        if let Some(journal) = &mut self.journal {
            journal.keep_call(&call)?;
        }
        Ok(call)
    }

    /// The mutator's answer as a candidate, or as the outcome that it is.
    fn understand(&self, trial: usize, call: Call, mut origin: Origin) -> Pending {
        let failed = |variant: String, fate: Fate, origin: Origin| {
            let outcome = Trial {
                index: trial,
                variant: variant.clone(),
                origin: origin.clone(),
                fate,
                evidence: Evidence::default(),
                device_s: 0.0,
                at_s: self.clock_s(),
            };
            Pending { outcome: Some(outcome), ..pending(None, variant, origin) }
        };
        let best = self.elite().first().map(|member| self.trials[member.trial].variant.clone());
        let best = best.unwrap_or_else(|| self.header.baseline.clone());
        let reply = match call.reply {
            Ok(reply) => reply,
            Err(reason) => return failed(String::new(), Fate::NoAnswer { reason }, origin),
        };
        let text = format!("{best},{}", reply.config.unwrap_or_default());
        let variant = match text.parse::<Variant>() {
            Ok(variant) => variant,
            Err(error) => return failed(text, Fate::Restricted { reason: error.to_string() }, origin),
        };
        if let Some(source) = reply.source {
            origin.source = Some(format!("{:016x}", super::journal::checksum(source.as_bytes())));
            return Pending { source: Some(source), ..pending(None, variant.to_string(), origin) };
        }
        let point = self.space.point(&variant).filter(|point| self.space.contains(point));
        let Some(point) = point else {
            let reason = "it is outside the space that is searched".to_string();
            return failed(variant.to_string(), Fate::Restricted { reason }, origin);
        };
        if self.tried.contains(&point) {
            let of = "a config that was tried before".to_string();
            return failed(variant.to_string(), Fate::Duplicate { of }, origin);
        }
        pending(Some(point), variant.to_string(), origin)
    }

    /// The guide's and the proposal's candidate; none where everything was tried.
    fn guided(&self, trial: usize) -> Option<Pending> {
        let generator = &mut generator(self.header.seed, trial);
        let parents = self.population.parents(trial);
        let view = View {
            space: &self.space,
            policy: self.header.policy,
            trial,
            history: &self.trials,
            tried: &self.tried,
            order: &self.order,
            parents: &parents,
            insights: &self.insights,
        };
        let guidance = decide(&view, generator);
        let (point, operator) = propose(&view, &guidance, generator)?;
        let variant = self.space.variant(&point).ok()?.to_string();
        let followed =
            guidance.insight.filter(|(_, step)| operator == Operator::Mutation && point.0[step.knob] == step.to);
        let parents = if operator == Operator::Sample { Vec::new() } else { guidance.parents };
        let used = if operator == guidance.operator { guidance.used } else { vec![Information::Territory] };
        let used = if self.header.policy == Policy::Random { Vec::new() } else { used };
        let origin = Origin {
            operator,
            used,
            parents: parents.iter().map(|member| member.trial).collect(),
            insight: followed.map(|(name, _)| name),
            source: None,
        };
        Some(pending(Some(point), variant, origin))
    }

    /// Gives what waits to whoever is idle.
    fn submit(&mut self) {
        let waiting: Vec<usize> = { self.pending.iter() }
            .filter(|(_, pending)| !pending.submitted && pending.outcome.is_none())
            .map(|(trial, _)| *trial)
            .collect();
        let known_code: Vec<String> = { self.trials.iter() }
            .filter(|trial| trial.fate.speed_up().is_some())
            .filter_map(|trial| trial.evidence.code_hash.clone())
            .collect();
        let compiled = self.space.family().on_gpu();
        for (place, trial) in waiting.iter().enumerate() {
            let ahead = waiting[place + 1..].iter().filter(|_| compiled).map(|later| &self.pending[later]);
            let ahead = ahead.filter(|later| later.source.is_none()).map(|later| later.variant.clone()).collect();
            let Some(pending) = self.pending.get(trial) else { continue };
            let request = Request {
                trial: *trial,
                variant: pending.variant.clone(),
                source: pending.source.clone(),
                best: self.best,
                known_code: known_code.clone(),
                ahead,
            };
            let taken = match &mut self.evaluator {
                Evaluator::Workers(workers) => workers.submit(&request),
                Evaluator::Recorded(_) => true,
            };
            if !taken {
                break;
            }
            if let Some(pending) = self.pending.get_mut(trial) {
                pending.submitted = true;
            }
        }
    }

    /// Waits for an outcome and writes it down.
    fn wait(&mut self) -> Result<()> {
        let examined = match &mut self.evaluator {
            Evaluator::Workers(workers) => workers.wait(PATIENCE)?,
            Evaluator::Recorded(recording) => {
                let next = self.pending.iter().find(|(_, pending)| pending.submitted && pending.outcome.is_none());
                let examined = next.map(|(trial, pending)| recording.examine(*trial, &pending.variant));
                self.clock_s += examined.as_ref().map_or(0.0, |examined| examined.device_s);
                examined
            }
        };
        let Some(Examined { trial, fate, evidence, device_s }) = examined else { return Ok(()) };
        let at_s = self.clock_s();
        if let Some(pending) = self.pending.get_mut(&trial) {
            let (variant, origin) = (pending.variant.clone(), pending.origin.clone());
            let outcome = Trial { index: trial, variant, origin, fate, evidence, device_s, at_s };
            if let Some(journal) = &mut self.journal {
                journal.keep_trial(&outcome)?;
            }
            pending.outcome = Some(outcome);
        }
        Ok(())
    }

    /// Takes in the next outcome in order, if it is there.
    fn absorb(&mut self) -> Result<bool> {
        let index = self.trials.len();
        if self.pending.get(&index).is_none_or(|pending| pending.outcome.is_none()) {
            return Ok(false);
        }
        let Some(Pending { point, outcome: Some(trial), .. }) = self.pending.remove(&index) else { return Ok(false) };
        let speed_up = trial.fate.speed_up();
        if let Some(point) = &point {
            if !matches!(trial.fate, Fate::Duplicate { .. } | Fate::NoAnswer { .. }) {
                self.insights.learn(point, speed_up);
            }
            if let Some(speed_up) = speed_up {
                self.population.add(Member { trial: index, point: point.clone(), speed_up });
            }
        }
        if let Some(name) = &trial.origin.insight {
            let parent = trial.origin.parents.first().and_then(|parent| self.trials[*parent].fate.speed_up());
            self.insights.judge(name, speed_up, parent);
        }
        if let Some(speed_up) = speed_up.filter(|speed_up| *speed_up > self.best) {
            (self.best, self.best_at) = (speed_up, index);
        }
        self.trials.push(trial);
        Ok(true)
    }

    /// The state for a person: how many, the best, the elite, the failures by kind.
    fn in_words(&self) -> String {
        let elite: Vec<_> = self.elite().iter().map(|member| format!("{:.3}", member.speed_up)).collect();
        let failures = failures(&self.trials);
        let failures: Vec<_> = failures.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        let failures = if failures.is_empty() { String::new() } else { format!("; {}", failures.join(", ")) };
        format!("{} trials, best {:.3}×, elite {}{failures}", self.trials.len(), self.best, elite.join(" "))
    }
}

/// How many candidates failed, by kind.
pub fn failures(trials: &[Trial]) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    for kind in trials.iter().filter_map(|trial| trial.fate.failure()) {
        *counts.entry(kind).or_default() += 1;
    }
    counts
}

fn origin(operator: Operator) -> Origin {
    Origin { operator, used: Vec::new(), parents: Vec::new(), insight: None, source: None }
}

fn pending(point: Option<Point>, variant: String, origin: Origin) -> Pending {
    Pending { point, variant, source: None, origin, submitted: false, outcome: None }
}
