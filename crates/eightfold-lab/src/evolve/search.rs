//! The search itself: propose, evaluate, keep, learn, until the budget is spent.
//!
//! The candidate of trial k is made from the outcomes of the trials before k − window and from nothing else, in their
//! order, however many workers there are and whoever answers first. So the course of a search follows from its header and
//! its outcomes, and a search that finds outcomes in its journal goes through them again without evaluating anything.

use super::budget::{Budget, Spent};
use super::fate::{Evidence, Fate, Flaw, Refused};
use super::genome::Genome;
use super::insights::{Insight, Insights};
use super::journal::{Contents, Header, Journal};
use super::mutator::{BUNDLE_VERSION, Bundle, Call, KnobText, Ledger, Mutator, Parent, Reply, Told, to_json};
use super::population::{Member, Policy, Population, insert};
use super::protocol::{Examined, Files, Request};
use super::replay::Recording;
use super::space::{Point, Space, point};
use super::traverse::{View, ask, decide, generator, propose};
use super::trial::{Asked, Information, Operator, Origin, Trial};
use super::workers::Workers;
use crate::kernel::recorded;
use crate::overlay::{check, keep, reached};
use crate::progress::Progress;
use eightfold::lab::compile::Overlay;
use eightfold::{Error, Result, Variant};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Who says what becomes of candidates.
pub enum Evaluator {
    /// Processes that run them.
    Workers(Workers),
    /// A recording of such.
    Recorded(Box<Recording>),
}

/// The first turns of the mutator are the search's own: it needs something to look at.
const TURNS_BEFORE_MUTATOR: usize = 2;

/// Stands for the random numbers of what the mutator is asked, among those of the trials.
const ASK: usize = usize::MAX / 2;

/// Failures that a mutator is told of.
const FAILURES_TOLD: usize = 5;

/// How long an answer is waited for before the clock is looked at again.
const PATIENCE: Duration = Duration::from_millis(200);

/// A candidate that is under way.
struct Pending {
    genome: Option<Genome>,
    variant: String,
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
    tried: HashSet<Genome>,
    order: Vec<Point>,
    /// Every source that was made, by its fingerprint.
    sources: BTreeMap<Arc<str>, Arc<Overlay>>,
    /// What every search begins from; its speed-up is known.
    baseline: Option<Member>,
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
    /// The best, the best first; the baseline is none of them.
    pub elite: Vec<Trial>,
    /// The files of those that are compiled from others than the kernel's own, by fingerprint.
    pub sources: BTreeMap<String, Files>,
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
        let baseline = { header.from_baseline.then(|| header.baseline.parse().ok()).flatten() }
            .and_then(|variant| space.point(&variant))
            .filter(|point| space.contains(point))
            .map(|point| Member { trial: 0, genome: Genome::shipped(point), speed_up: 1.0 });
        let mut search = Search {
            baseline,
            budget: header.budget,
            population: header.policy.population(header.keep),
            header,
            space,
            journal,
            evaluator,
            mutator,
            known: BTreeMap::new(),
            known_calls: BTreeMap::new(),
            trials: Vec::new(),
            tried: HashSet::new(),
            order: Vec::new(),
            sources: BTreeMap::new(),
            pending: BTreeMap::new(),
            insights: Insights::default(),
            ledger: Ledger::default(),
            best: 0.0,
            best_at: 0,
            began: Instant::now(),
            clock_s: 0.0,
        };
        search.know(contents);
        search
    }

    /// One that knows what a journal says, to be asked what follows from it.
    pub fn of_known(contents: Contents) -> Result<Search> {
        let recording = Recording::new(vec![contents.clone()])?;
        let family = recording.space().family();
        // What was tried is all that need be known of the space.
        let known = contents.trials.iter().filter_map(|trial| point(family, &recorded(&trial.variant).ok()?));
        let space = Space::of_points(family, known.collect());
        let header = contents.header.clone();
        let mut search = Search::new(header, space, None, Evaluator::Recorded(Box::new(recording)), None);
        search.know(Some(contents));
        loop {
            let index = search.trials.len();
            let call = search.known_calls.remove(&index);
            call.iter().for_each(|call| search.ledger.add(call));
            let pending = match (search.known.remove(&index), call) {
                (Some(trial), call) => {
                    if let Some(call) = call {
                        // For its source.
                        let _ = search.made_of(call, &trial.origin);
                    }
                    let point = recorded(&trial.variant).ok().and_then(|variant| search.space.point(&variant));
                    let source = trial.origin.source.as_deref().map(Arc::from);
                    let genome = point.map(|point| Genome { point, source });
                    let (variant, origin) = (trial.variant.clone(), trial.origin.clone());
                    Pending { outcome: Some(trial), ..pending(genome, variant, origin) }
                }
                (None, Some(call)) => {
                    let (asked, parents) = search.question(index);
                    let origin = Origin { parents, asked: Some(asked), ..Origin::of(Operator::Mutator) };
                    search.understand(index, call, origin)?
                }
                (None, None) => return Ok(search),
            };
            search.tried.extend(pending.genome.clone());
            let mut pending = pending;
            if pending.outcome.is_none() {
                if search.known.is_empty() && search.known_calls.is_empty() {
                    return Ok(search);
                }
                let reason = "what became of it is not in the journal".to_string();
                let Pending { variant, origin, .. } = pending;
                let trial = Trial {
                    index,
                    variant: variant.clone(),
                    origin: origin.clone(),
                    fate: Fate::NoAnswer { reason },
                    evidence: Evidence::default(),
                    device_s: 0.0,
                    at_s: 0.0,
                };
                pending = Pending { outcome: Some(trial), ..self::pending(None, variant, origin) };
            }
            search.pending.insert(index, pending);
            search.absorb()?;
        }
    }

    fn know(&mut self, contents: Option<Contents>) {
        let Some(Contents { trials, calls, .. }) = contents else { return };
        self.known = trials.into_iter().map(|trial| (trial.index, trial)).collect();
        self.known_calls = calls.into_iter().map(|call| (call.trial, call)).collect();
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
            sources: { elite.iter() }
                .filter_map(|member| self.sources.get_key_value(member.genome.source.as_ref()?))
                .map(|(fingerprint, source)| (fingerprint.to_string(), source.files().clone()))
                .collect(),
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

    /// Whom the candidate of a trial may be made from: those who are kept and, until as many are better, the baseline.
    fn parents(&self, trial: usize) -> Vec<Member> {
        let mut parents = self.population.parents(trial);
        let better = |one: &Member| parents.iter().filter(|other| other.speed_up >= one.speed_up).count();
        if let Some(baseline) = self.baseline.as_ref().filter(|baseline| better(baseline) < self.header.keep) {
            insert(&mut parents, baseline.clone());
        }
        parents
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
        let every = self.header.mutator_every.max(1);
        let is_mutators = trial >= TURNS_BEFORE_MUTATOR * every && trial.is_multiple_of(every);
        let mut made = self.first(trial);
        if made.is_none() && is_mutators {
            made = self.asked(trial)?;
        }
        if made.is_none() {
            made = self.guided(trial);
        }
        // Where all knobs were tried, there are sources that were not.
        if made.is_none() && !matches!(&self.mutator, Some(Mutator::Recorded(calls)) if calls.is_empty()) {
            made = self.asked(trial)?;
        }
        let Some(mut pending) = made else { return Ok(false) };
        if let Some(genome) = &pending.genome {
            self.tried.insert(genome.clone());
            self.order.push(genome.point.clone());
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
    fn first(&self, trial: usize) -> Option<Pending> {
        let Member { genome, .. } = self.baseline.clone().filter(|_| trial == 0)?;
        let origin = Origin { used: vec![Information::Context], ..Origin::of(Operator::Baseline) };
        Some(pending(Some(genome), self.header.baseline.clone(), origin))
    }

    /// The mutator's candidate, if there is one.
    fn asked(&mut self, trial: usize) -> Result<Option<Pending>> {
        if self.mutator.is_none() {
            return Ok(None);
        }
        let (asked, parents) = self.question(trial);
        let call = match self.known_calls.remove(&trial) {
            Some(call) => call,
            None => self.call(trial, asked, &parents)?,
        };
        self.ledger.add(&call);
        let used = vec![Information::Context, Information::Solutions, Information::Insights];
        let origin = Origin { used, parents, asked: Some(asked), ..Origin::of(Operator::Mutator) };
        self.understand(trial, call, origin).map(Some)
    }

    fn view<'a>(&'a self, trial: usize, parents: &'a [Member]) -> View<'a> {
        View {
            space: &self.space,
            policy: self.header.policy,
            trial,
            history: &self.trials,
            tried: &self.tried,
            order: &self.order,
            parents,
            insights: &self.insights,
        }
    }

    /// What the mutator is to be asked for a trial.
    fn question(&self, trial: usize) -> (Asked, Vec<usize>) {
        let mut parents = self.parents(trial);
        // The baseline's own outcome is told, which may not be there yet.
        parents.retain(|member| member.trial < self.trials.len());
        ask(&self.view(trial, &parents), &mut generator(self.header.seed, ASK + trial))
    }

    fn call(&mut self, trial: usize, asked: Asked, parents: &[usize]) -> Result<Call> {
        let bundle = self.bundle(trial, asked, parents)?;
        let Some(mut mutator) = self.mutator.clone() else {
            return Err(Error::invalid("mutator", "there is none", "name one with --mutator"));
        };
        let call = mutator.call(&bundle);
        self.mutator = Some(mutator);
        if let Some(journal) = &mut self.journal {
            journal.keep_call(&call)?;
        }
        Ok(call)
    }

    /// What the mutator would be given next, as it would get it.
    pub fn next_bundle(&mut self) -> Result<String> {
        let trial = self.trials.len();
        let (asked, parents) = self.question(trial);
        self.bundle(trial, asked, &parents).map(|bundle| to_json(&bundle))
    }

    fn bundle(&self, trial: usize, asked: Asked, parents: &[usize]) -> Result<Bundle<'_>> {
        let is_failure =
            |trial: &&Trial| trial.fate.failure().is_some() && !matches!(trial.fate, Fate::Duplicate { .. });
        let failures = self.trials.iter().rev().filter(is_failure).take(FAILURES_TOLD);
        let mut failures: Vec<Told> = failures.map(tell).collect();
        failures.reverse();
        let family = self.space.family();
        let source = |trial: &Trial| trial.origin.source.as_deref().and_then(|source| self.sources.get(source));
        let changed =
            { parents.first() }.filter(|_| asked != Asked::Initial).and_then(|parent| source(&self.trials[*parent]));
        let parent = |index: &usize| {
            let trial = &self.trials[*index];
            // An answer to this begins from the shipped source, whatever its parent's is.
            let files = source(trial).filter(|_| asked != Asked::Initial).map(|source| source.files().clone());
            Parent { told: tell(trial), files: files.unwrap_or_default() }
        };
        let bundle = Bundle {
            version: BUNDLE_VERSION,
            trial,
            asked,
            prompt: String::new(),
            folder: self.journal.as_ref().map(|journal| journal.folder().display().to_string()),
            targets: self.header.targets(),
            accuracy: self.header.accuracy.as_deref(),
            kernel: family.name,
            device: &self.header.device,
            clock: if self.header.on_simulator {
                "its steps on a simulated device are counted (memory accesses, meetings of threads, products, copies), which is no time"
            } else {
                "its time against the baseline's, in turns"
            },
            knobs: { family.knobs.iter() }
                .map(|knob| KnobText { name: knob.name, values: knob.values, what: knob.what })
                .collect(),
            parents: parents.iter().map(parent).collect(),
            elite: self.elite().iter().map(|member| tell(&self.trials[member.trial])).collect(),
            failures,
            insights: self.insights.list(&self.space),
            sources: reached(family, changed.map(|source| &**source))?,
        };
        Ok(bundle.with_prompt())
    }

    /// The mutator's answer as a candidate, or as the outcome that it is.
    fn understand(&mut self, trial: usize, call: Call, origin: Origin) -> Result<Pending> {
        let insight = call.reply.as_ref().ok().and_then(Reply::insight);
        let origin = Origin { insight, ..origin };
        Ok(match self.made_of(call, &origin) {
            Ok((genome, variant, source)) => {
                if let (Some(source), Some(journal)) = (source, &self.journal) {
                    keep(journal.folder(), &source)?;
                }
                let fingerprint = genome.source.as_deref().map(str::to_string);
                pending(Some(genome), variant, Origin { source: fingerprint, ..origin })
            }
            Err((variant, fate)) => {
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
            }
        })
    }

    /// What the mutator's answer makes of the first parent, with its source if that is new; or why it cannot be tried.
    #[allow(clippy::type_complexity, reason = "used once, right above")]
    fn made_of(
        &mut self,
        call: Call,
        origin: &Origin,
    ) -> std::result::Result<(Genome, String, Option<Arc<Overlay>>), (String, Fate)> {
        let reply = call.reply.map_err(|reason| {
            let none = Fate::NoAnswer { reason: reason.clone() };
            (String::new(), call.flaw.map_or(none, |flaw| Fate::BadAnswer { flaw, reason }))
        })?;
        let parent = origin.parents.first().and_then(|parent| self.trials.get(*parent));
        let base = parent.map_or(&self.header.baseline, |parent| &parent.variant);
        let text = format!("{base},{}", reply.config.as_deref().unwrap_or_default());
        let restricted = |text: &str, reason: String| (text.to_string(), Fate::Restricted { reason });
        let variant: Variant = text.parse().map_err(|error: Error| restricted(&text, error.to_string()))?;
        let text = variant.to_string();
        let point = self.space.point(&variant).filter(|point| self.space.contains(point));
        let point = point.ok_or_else(|| restricted(&text, "it is outside the space that is searched".into()))?;
        let inherited = { parent.and_then(|parent| parent.origin.source.as_deref()) }
            .filter(|_| origin.asked != Some(Asked::Initial))
            .and_then(|source| self.sources.get(source));
        let mut new = None;
        let source = if reply.has_source() {
            let main = variant.file().ok_or_else(|| {
                restricted(
                    &text,
                    format!("the {} kernel is not compiled at run time: answer with a config", variant.kernel()),
                )
            })?;
            let applied = reply.apply(self.space.family(), main, inherited.map(|source| &**source));
            let overlay = applied.map_err(|refused| (text.clone(), refused.into()))?;
            if let Some(overlay) = &overlay {
                let bad = |error: Error| Refused(Flaw::BadSource, error.to_string());
                check(&variant, overlay).map_err(|error| (text.clone(), bad(error).into()))?;
            }
            overlay.map(|overlay| {
                let fingerprint: Arc<str> = overlay.fingerprint().into();
                let overlay = self.sources.entry(fingerprint.clone()).or_insert_with(|| Arc::new(overlay));
                new = Some(overlay.clone());
                fingerprint
            })
        } else {
            inherited.map(|source| source.fingerprint().into())
        };
        let genome = Genome { point, source };
        if self.tried.contains(&genome) {
            return Err((text, Fate::Duplicate { of: "one that was tried before".into() }));
        }
        Ok((genome, text, new))
    }

    /// The guide's and the proposal's candidate; none where everything was tried.
    fn guided(&self, trial: usize) -> Option<Pending> {
        let generator = &mut generator(self.header.seed, trial);
        let parents = self.parents(trial);
        let view = self.view(trial, &parents);
        let guidance = decide(&view, generator);
        let (genome, operator) = propose(&view, &guidance, generator)?;
        let variant = self.space.variant(&genome.point).ok()?.to_string();
        let followed =
            guidance.insight.filter(|(_, step)| operator == Operator::Mutation && genome.point.0[step.knob] == step.to);
        let parents = if operator == Operator::Sample { Vec::new() } else { guidance.parents };
        let used = if operator == guidance.operator { guidance.used } else { vec![Information::Territory] };
        let used = if self.header.policy == Policy::Random { Vec::new() } else { used };
        let origin = Origin {
            used,
            parents: parents.iter().map(|member| member.trial).collect(),
            insight: followed.map(|(name, _)| name),
            source: genome.source.as_deref().map(str::to_string),
            ..Origin::of(operator)
        };
        Some(pending(Some(genome), variant, origin))
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
            let ahead =
                ahead.filter(|later| later.origin.source.is_none()).map(|later| later.variant.clone()).collect();
            let Some(pending) = self.pending.get(trial) else { continue };
            let source = pending.origin.source.as_deref().and_then(|source| self.sources.get(source));
            let request = Request {
                trial: *trial,
                variant: pending.variant.clone(),
                source: source.map(|source| source.files().clone()),
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
                let examined = next.map(|(trial, Pending { variant, origin, .. })| {
                    recording.examine(*trial, variant, origin.source.as_deref())
                });
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
        let Some(Pending { genome, outcome: Some(trial), .. }) = self.pending.remove(&index) else { return Ok(false) };
        let speed_up = trial.fate.speed_up();
        if let Some(genome) = genome {
            if !matches!(trial.fate, Fate::Duplicate { .. } | Fate::NoAnswer { .. }) {
                self.insights.learn(&genome, speed_up);
            }
            // The places of the elite belong to what was found.
            let is_baseline = self.baseline.as_ref().is_some_and(|baseline| baseline.genome == genome);
            if let Some(speed_up) = speed_up.filter(|_| !is_baseline) {
                self.population.add(Member { trial: index, genome, speed_up });
            }
        }
        if let Some(name) = &trial.origin.insight {
            if trial.origin.operator == Operator::Mutator {
                self.insights.note(name);
            }
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

/// A candidate as a mutator is told of it.
fn tell(trial: &Trial) -> Told<'_> {
    let Trial { index, variant, origin, fate, evidence, .. } = trial;
    let (source, note) = (origin.source.as_deref(), origin.insight.as_deref());
    Told { trial: *index, variant, source, note, fate, evidence }
}

fn pending(genome: Option<Genome>, variant: String, origin: Origin) -> Pending {
    Pending { genome, variant, origin, submitted: false, outcome: None }
}
