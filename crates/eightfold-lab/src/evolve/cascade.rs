//! What becomes of a candidate: restrictions, compiler, resources, correctness, a quick timing, and a full one for those
//! who may be the best. Each step costs more than the one before and sees fewer candidates.

use super::fate::{Depth, Evidence, Fate};
use super::protocol::{Examined, Request, Step, Task};
use crate::build;
use crate::choice;
use crate::examine::{Candidate, Examination};
use crate::gates::{Case, Gate, Outcome, StandardCase, Thresholds, TimingPolicy, prepare_all, quantizer};
use crate::inputs::Family;
use crate::measure::{Contestant, Manner, Method, Race, Raced, Rotation, Samples, brief_contestant};
use crate::record::{Entry, ProblemRecord};
use crate::simulate::{self, Work};
use crate::verdict::SpeedUp;
use eightfold::cuda::driver::Device;
use eightfold::lab::compile::Overlay;
use eightfold::lab::cpu::Numbers;
use eightfold::{Accuracy, Error, Output, Problem, Result, Shape, Variant};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

/// Arithmetic of the problem that candidates are checked on with inputs of their own: its float64 reference must not
/// take longer than the rest.
const FRESH_GFLOP: f64 = 0.06;

/// The same on the simulated device, which takes seconds for what an H200 does in a microsecond.
const SIMULATED_GFLOP: f64 = 0.004;

/// Keys of several tiles, whatever the knobs, the last of them cut; and queries of more than one.
const MANY_KEYS: usize = 600;
const SOME_QUERIES: usize = 77;

/// Rounds of a quick timing, and of a full one.
const QUICK_ROUNDS: usize = 6;
const FULL_ROUNDS: usize = 24;

/// A timing ends after about this long, whatever it has.
const MOST_SECONDS: f64 = 2.0;

/// What is slower than this share of the best in a few runs is not timed further.
const HOPELESS: f64 = 0.65;
const PILOT_RUNS: usize = 2;

/// A pilot is at least this long, where that is not too many runs: threads that sleep take longer to wake than a small
/// problem takes to compute (`small` looked half as fast as it is in three runs).
const PILOT_SECONDS: f64 = 0.005;
const MOST_PILOT_RUNS: usize = 500;

/// What is at least this share of the best after a quick timing may be the best.
const CONTENDER: f64 = 0.97;

/// A candidate warms up in the correctness gate; this is for caches and clocks alone.
const WARM_UP_RUNS: usize = 3;

/// A task with everything that its candidates have in common.
pub struct Bench<'a> {
    /// One for each problem.
    seats: Vec<Seat<'a>>,
    thresholds: &'a Thresholds,
    seed: u64,
    /// Candidates that were compiled ahead of their turn.
    compiled: HashSet<String>,
}

/// One problem, and the baseline that candidates are held against on it.
struct Seat<'a> {
    baseline: Candidate,
    problem: Problem,
    /// Inputs at full size; the first are timed.
    cases: &'a [Case],
    clock: Clock<'a>,
}

/// What candidates are held against.
enum Clock<'a> {
    /// The baseline, which takes turns with them, and the seconds that it takes.
    Timed { baseline: Box<dyn Contestant + 'a>, seconds: f64 },
    /// The baseline's steps on the simulated device.
    Counted { steps: u64 },
}

/// The problems of a task.
pub fn problems(task: &Task) -> Result<Vec<Problem>> {
    let accuracy = task.accuracy.as_deref().map(str::parse).transpose()?;
    let problem = |problem: &ProblemRecord| {
        let problem = problem.to_problem()?;
        Ok(accuracy.map_or(problem, |accuracy| problem.with_accuracy(accuracy)))
    };
    task.problems.iter().map(problem).collect()
}

/// The variant of a kernel that a plan runs on this machine, if nothing is installed: the baseline of every search.
pub fn shipped(kernel: &str, problem: &Problem) -> Result<Variant> {
    let choice = choice::shipped(problem)?;
    let mut considered = choice.considered.iter().filter(|one| one.variant.kernel() == kernel);
    // The kernel's own best goes first, whether or not another kernel is better.
    let variant = considered.next().map_or_else(|| kernel.parse(), |one| Ok(one.variant))?;
    choice::check(problem, &variant).map(|()| variant)
}

/// Whether a variant may stand for the baseline: it can run the problem here, and is exact in the same mode. Each mode has
/// tolerances of its own, so what is faster by being less exact would pass for better.
pub fn suits(problem: &Problem, baseline: &Variant, variant: &Variant) -> Result<()> {
    if let (Some(asked), Some(found)) = (baseline.accuracy(), variant.accuracy())
        && asked != found
    {
        return Err(Error::invalid(
            "accuracy",
            format!("a search keeps to the accuracy of its baseline, which is {asked}, and this is {found}"),
            "keep `weights` and `linear` to what that accuracy allows",
        ));
    }
    if let Ok(config) = variant.on_cpu()
        && config.numbers == Numbers::Bf16
        && problem.accuracy() == Accuracy::Precise
    {
        let rule = "weights of one bf16 are less exact than accuracy=precise asks for";
        return Err(Error::invalid("numbers", rule, "set numbers=bf16x2"));
    }
    choice::check(problem, variant)
}

impl<'a> Bench<'a> {
    /// What all candidates of a task are held against, for each of its problems.
    pub fn baselines(task: &Task) -> Result<Vec<Candidate>> {
        let problems = problems(task)?;
        let baselines = problems.iter().enumerate().map(|(place, problem)| match task.baselines.get(place) {
            Some(text) => Ok(Candidate::new("baseline", text.parse()?)),
            None => {
                let variant = shipped(&task.kernel, problem)?;
                Ok(Candidate::new("baseline", variant).held_to(problem.accuracy()))
            }
        });
        let baselines: Vec<Candidate> = baselines.collect::<Result<_>>()?;
        if baselines.iter().any(Candidate::on_gpu) {
            Device::default()?;
        }
        Ok(baselines)
    }

    /// Inputs at full size for each problem, the same for every worker of a search: those that are timed, and those on which
    /// sums that are too long show.
    pub fn cases(task: &Task, baselines: &[Candidate]) -> Result<Vec<Vec<Case>>> {
        let problems = problems(task)?;
        let each = problems.into_iter().zip(baselines).map(|(problem, baseline)| {
            let cases = [Family::Gaussian, Family::BiasedValues];
            let cases = cases.map(|family| StandardCase { problem, family, seed: task.seed });
            let quantizer = quantizer(&problem, std::slice::from_ref(baseline));
            prepare_all(&cases, &quantizer, &task.thresholds.correctness.reference)
        });
        each.collect()
    }

    /// Gates and prepares the baselines; without them nothing can be timed.
    pub fn new(task: &'a Task, baselines: Vec<Candidate>, cases: &'a [Vec<Case>]) -> Result<Bench<'a>> {
        let thresholds = &task.thresholds;
        let seat = |(baseline, cases): (Candidate, &'a Vec<Case>)| {
            let entry = gate(&baseline, cases, thresholds);
            if let Err(fate) = passed(&entry) {
                let reason = format!("{}: {fate}", baseline.variant);
                return Err(Error::unavailable("the baseline", reason, "see `eightfold run`"));
            }
            let clock = if task.on_simulator {
                Clock::Counted { steps: steps(&baseline, &cases[0])?.steps() }
            } else {
                let mut contestant = timed(&baseline, &entry, &cases[0])?;
                contestant.prepare()?;
                let seconds = fastest_s(&mut *contestant)?;
                Clock::Timed { baseline: contestant, seconds }
            };
            Ok(Seat { problem: cases[0].problem, baseline, cases, clock })
        };
        let seats = baselines.into_iter().zip(cases).map(seat).collect::<Result<_>>()?;
        Ok(Bench { seats, thresholds, seed: task.seed, compiled: HashSet::new() })
    }

    /// What the candidates run on.
    pub fn device(&self) -> Result<String> {
        if self.on_gpu() {
            return Ok(Device::default()?.info().name.clone());
        }
        Ok(crate::installed::cpu_device())
    }

    /// What all are held against.
    pub fn held_against(&self) -> impl Iterator<Item = &Candidate> {
        self.seats.iter().map(|seat| &seat.baseline)
    }

    fn on_gpu(&self) -> bool {
        self.seats[0].baseline.on_gpu()
    }

    /// Takes a candidate as far as it comes. Whatever becomes of it is in the answer.
    pub fn examine(&mut self, request: &Request, begins: &mut dyn FnMut(Step)) -> Examined {
        let mut evidence = Evidence::default();
        let mut start = Instant::now();
        let fate = self.cascade(request, &mut evidence, &mut start, begins).unwrap_or_else(|fate| fate);
        Examined { trial: request.trial, fate, evidence, device_s: start.elapsed().as_secs_f64() }
    }

    /// The steps, in their order. The error is the fate of one that does not come through.
    fn cascade(
        &mut self,
        request: &Request,
        evidence: &mut Evidence,
        start: &mut Instant,
        begins: &mut dyn FnMut(Step),
    ) -> std::result::Result<Fate, Fate> {
        let restricted = |error: Error| Fate::Restricted { reason: error.to_string() };
        let variant: Variant = request.variant.parse().map_err(restricted)?;
        for Seat { problem, baseline, .. } in &self.seats {
            suits(problem, &baseline.variant, &variant).map_err(restricted)?;
        }
        let source = request.source.clone().map(Overlay::new).transpose().map_err(restricted)?;
        let candidate = Candidate::new(&request.variant, variant).with_source(source.map(Arc::new));
        let accuracy = self.seats[0].baseline.accuracy;
        let candidate = Candidate { accuracy, ..candidate.map_err(restricted)? };
        let cases =
            self.fresh_cases(request.trial, candidate.source.is_some().then_some(&variant)).map_err(restricted)?;
        if candidate.on_gpu() {
            begins(Step::Compile);
            self.compile_with(&candidate, request, &cases);
            self.compiles(&candidate, request, evidence)?;
            begins(Step::Run);
            *start = Instant::now();
        }
        for cases in cases.chunk_by(|one, other| one.problem == other.problem) {
            self.right(&candidate, cases, evidence)?;
        }
        match &self.seats[0].clock {
            Clock::Counted { .. } => self.count(&candidate, request.best, evidence),
            Clock::Timed { .. } => {
                let timed = self.time(&candidate, request.best, evidence)?;
                if let Fate::Measured { p50_us, .. } = &timed {
                    evidence.exp_share = exp_share(&candidate, &self.seats[0].problem, *p50_us);
                }
                Ok(timed)
            }
        }
    }

    /// The correctness gate on these inputs, with what it saw.
    fn right(&self, candidate: &Candidate, cases: &[Case], evidence: &mut Evidence) -> std::result::Result<(), Fate> {
        let entry = gate(candidate, cases, self.thresholds);
        note_errors(&entry, evidence);
        passed(&entry)
    }

    /// Compiles the candidate together with those that come next, on all cores, unless it was compiled with one before:
    /// for what is timed and, since tails are compiled in, for what is checked. Failures show where they belong.
    fn compile_with(&mut self, candidate: &Candidate, request: &Request, checked: &[Case]) {
        let Ok(arch) = Device::default().and_then(|device| device.arch()) else { return };
        let mut together = vec![candidate.clone()];
        if candidate.source.is_none() {
            if !self.compiled.insert(request.variant.clone()) {
                return;
            }
            let ahead = request.ahead.iter().filter(|text| self.compiled.insert(text.to_string()));
            together.extend(ahead.filter_map(|text| Some(Candidate::new(text, text.parse().ok()?))));
        }
        let cases = checked.iter().chain(self.seats.iter().flat_map(|seat| seat.cases));
        build::ahead(&together, cases, arch);
    }

    /// The compiler and the resource gate, for each problem.
    fn compiles(
        &self,
        candidate: &Candidate,
        request: &Request,
        evidence: &mut Evidence,
    ) -> std::result::Result<(), Fate> {
        for (place, seat) in self.seats.iter().enumerate() {
            if simulate::is_installed() {
                // It counts no registers; what does not compile is told apart from what computes wrongly all the same.
                let built = build::now(candidate, &seat.cases[0]);
                built.map_err(|error| not_compiled(candidate, error.to_string(), evidence))?;
                continue;
            }
            let examination = examination(&seat.cases[..1], std::slice::from_ref(candidate), self.thresholds);
            let Some(built) = examination.resources(candidate) else { return Ok(()) };
            let reason = built.gate.summary.clone();
            let Some(build) = built.build else {
                return Err(match built.gate.outcome {
                    Outcome::Fail => not_compiled(candidate, reason, evidence),
                    _ => Fate::Restricted { reason },
                });
            };
            if place == 0 {
                evidence.registers = Some(build.registers);
                evidence.spill_bytes = Some(build.spill_store_bytes + build.spill_load_bytes);
                evidence.shared_bytes = Some(build.shared_bytes());
                evidence.blocks_per_multiprocessor = Some(build.blocks_per_multiprocessor);
                evidence.code_hash = Some(build.code_hash.clone());
            }
            if built.gate.outcome == Outcome::Fail {
                evidence.failed.extend(built.gate.failed().cloned());
                return Err(Fate::OverResources { reason });
            }
            if place == 0 && request.known_code.contains(&build.code_hash) {
                return Err(Fate::Duplicate { of: format!("machine code {}", build.code_hash) });
            }
        }
        Ok(())
    }

    /// Inputs that no candidate before has seen, on smaller problems whose sizes divide nothing.
    ///
    /// Knobs are right on many tiles of keys where they are on one, which does not hold of whatever a mutator wrote: a
    /// variant that is compiled from such meets more keys, too, if it can.
    fn fresh_cases(&self, trial: usize, changed: Option<&Variant>) -> Result<Vec<Case>> {
        let policy = &self.thresholds.correctness.reference;
        let mut fresh = Vec::new();
        for Seat { problem, baseline, .. } in &self.seats {
            let flop = if simulate::is_installed() { SIMULATED_GFLOP } else { FRESH_GFLOP } * 1e9;
            let problem = fresh_problem(problem, flop)?;
            let quantizer = quantizer(&problem, std::slice::from_ref(baseline));
            let seed = self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(trial as u64);
            let other = Family::ALL[1 + trial % (Family::ALL.len() - 1)];
            for family in [Family::Gaussian, other] {
                fresh.push(StandardCase { problem, family, seed }.prepare(&quantizer, policy)?);
            }
            let Shape { head_dim, key_len, .. } = problem.shape();
            if let Some(changed) = changed.filter(|_| key_len < MANY_KEYS) {
                let heads = problem.shape().group();
                let shape = Shape::new(1, heads, SOME_QUERIES, head_dim).with_kv_heads(1).with_key_len(MANY_KEYS);
                let problem = of_shape(&problem, shape)?;
                if choice::check(&problem, changed).is_ok() {
                    fresh.push(StandardCase { problem, family: Family::Gaussian, seed }.prepare(&quantizer, policy)?);
                }
            }
        }
        Ok(fresh)
    }

    /// Against the baselines by steps. Whoever may be the best must be right at full size as well.
    fn count(&self, candidate: &Candidate, best: f64, evidence: &mut Evidence) -> std::result::Result<Fate, Fate> {
        let mut ratios = Vec::new();
        let mut first = 0;
        for (place, seat) in self.seats.iter().enumerate() {
            let Clock::Counted { steps: of_baseline } = seat.clock else { continue };
            let work = steps(candidate, &seat.cases[0]).map_err(|error| of_error(&error))?;
            if place == 0 {
                first = work.steps();
                evidence.counters = work.named().map(|(name, count)| (name.to_string(), count as f64)).into();
            }
            ratios.push(of_baseline as f64 / work.steps().max(1) as f64);
        }
        let speed_up = self.mean(&ratios, evidence);
        if speed_up >= CONTENDER * best {
            for seat in &self.seats {
                self.right(candidate, seat.cases, evidence)?;
            }
        }
        Ok(Fate::Counted { speed_up, steps: first })
    }

    /// The geometric mean of what was gained on each problem; each is kept where there are several.
    fn mean(&self, ratios: &[f64], evidence: &mut Evidence) -> f64 {
        if ratios.len() > 1 {
            evidence.speed_ups = ratios.to_vec();
        }
        geometric_mean(ratios)
    }

    /// Against the baselines, as far as it is worth it. Whoever may be the best must be right at full size as well, and
    /// keep giving the bits that the gate saw there.
    fn time(&mut self, candidate: &Candidate, best: f64, evidence: &mut Evidence) -> std::result::Result<Fate, Fate> {
        let unsound = |error: Error| of_error(&error);
        let entry = Entry::new(&candidate.name, candidate.implementation());
        let mut challengers = Vec::new();
        let (mut pilots, mut first_us) = (Vec::new(), None);
        for seat in &self.seats {
            let mut challenger = timed(candidate, &entry, &seat.cases[0]).map_err(unsound)?;
            challenger.prepare().map_err(unsound)?;
            let fastest_s = fastest_s(&mut *challenger).map_err(unsound)?;
            pilots.push(seat.seconds() / fastest_s);
            first_us.get_or_insert(fastest_s / challenger.launches_per_run() as f64 * 1e6);
            challengers.push(challenger);
        }
        let pilot = self.mean(&pilots, evidence);
        if pilot < HOPELESS * best {
            challengers.iter_mut().try_for_each(|challenger| challenger.verify()).map_err(unsound)?;
            let p50_us = first_us.unwrap_or_default();
            return Ok(Fate::Measured { speed_up: pilot, p50_us, timing: Depth::Pilot });
        }
        let (speed_up, p50_us) = self.race(&mut challengers, QUICK_ROUNDS, evidence).map_err(unsound)?;
        if speed_up < CONTENDER * best {
            return Ok(Fate::Measured { speed_up, p50_us, timing: Depth::Quick });
        }
        drop(challengers);
        let mut challengers = Vec::new();
        for seat in &self.seats {
            let entry = gate(candidate, seat.cases, self.thresholds);
            note_errors(&entry, evidence);
            passed(&entry)?;
            challengers.push(timed(candidate, &entry, &seat.cases[0]).map_err(unsound)?);
        }
        let (speed_up, p50_us) = self.race(&mut challengers, FULL_ROUNDS, evidence).map_err(unsound)?;
        Ok(Fate::Measured { speed_up, p50_us, timing: Depth::Full })
    }

    /// The mean speed-up over all problems, and the median time on the first.
    fn race(
        &mut self,
        challengers: &mut [Box<dyn Contestant + 'a>],
        most_rounds: usize,
        evidence: &mut Evidence,
    ) -> Result<(f64, f64)> {
        let on_gpu = self.on_gpu();
        let policy = if on_gpu { &self.thresholds.cuda_timing } else { &self.thresholds.timing };
        let policy = &TimingPolicy { warmup_iterations: WARM_UP_RUNS, ..*policy };
        let method = Method { policy, manner: Manner::default(), on_gpu };
        let race = Race { method, seed: self.seed, most_rounds, most_seconds: MOST_SECONDS };
        let (mut ratios, mut first_us) = (Vec::new(), None);
        for (seat, challenger) in self.seats.iter_mut().zip(challengers) {
            let Clock::Timed { baseline, seconds } = &mut seat.clock else { continue };
            let contestants: &mut [&mut dyn Contestant] = &mut [&mut **baseline, &mut **challenger];
            let Raced { samples, .. } = race.run(contestants, &mut |_| false, &mut |_, _| {})?;
            let unclear = || Error::unavailable("the timing", "too few rounds", "give it a quieter machine");
            ratios.push(SpeedUp::between(&samples[0], &samples[1]).ok_or_else(unclear)?.ratio);
            first_us.get_or_insert(samples[1].summary().ok_or_else(unclear)?.p50_us);
            *seconds = pace_s(&samples[0], baseline.launches_per_run()).unwrap_or(*seconds);
        }
        Ok((self.mean(&ratios, evidence), first_us.unwrap_or_default()))
    }
}

impl Seat<'_> {
    fn seconds(&self) -> f64 {
        match self.clock {
            Clock::Timed { seconds, .. } => seconds,
            Clock::Counted { .. } => f64::NAN,
        }
    }
}

/// The geometric mean; of nothing, 1.
pub fn geometric_mean(ratios: &[f64]) -> f64 {
    (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len().max(1) as f64).exp()
}

/// What a candidate does on the simulated device with these inputs.
pub fn steps(candidate: &Candidate, case: &Case) -> Result<Work> {
    let mut output = Output::zeros(&case.problem);
    let run = || choice::run(&candidate.variant, &case.problem, &case.q, &case.k, &case.v, &mut output);
    simulate::count(simulate::schedules().limit_seconds, || candidate.from_source(run))
}

/// A candidate that does not compile; of one with a source of its own the compiler's words are kept.
fn not_compiled(candidate: &Candidate, reason: String, evidence: &mut Evidence) -> Fate {
    if candidate.source.is_some() {
        evidence.log = reason.split(" / ").map(str::to_string).collect();
    }
    Fate::NotCompiled { reason }
}

/// A candidate as a contestant on the inputs that are timed; it must give the bits that the entry's gate saw there.
fn timed<'a>(candidate: &Candidate, entry: &Entry, case: &'a Case) -> Result<Box<dyn Contestant + 'a>> {
    let seen = entry.cases.first().filter(|seen| seen.repeatable).map(|seen| seen.output_hash);
    brief_contestant(candidate, Rotation::one(case, seen))
}

/// The seconds of the fastest run.
fn pace_s(samples: &Samples, launches: usize) -> Option<f64> {
    samples.ns.iter().min().map(|ns| *ns as f64 * launches as f64 / 1e9)
}

/// The seconds of the fastest run of a pilot.
fn fastest_s(contestant: &mut dyn Contestant) -> Result<f64> {
    let launches = contestant.launches_per_run();
    let mut pace = |runs| -> Result<f64> {
        let samples = Samples { ns: contestant.run_block(runs)?, rounds: Vec::new() };
        Ok(pace_s(&samples, launches).unwrap_or(f64::INFINITY).max(1e-9))
    };
    let first = pace(1)?;
    let runs = ((PILOT_SECONDS / first) as usize).clamp(PILOT_RUNS, MOST_PILOT_RUNS);
    Ok(first.min(pace(runs)?))
}

fn examination<'a>(cases: &'a [Case], candidates: &'a [Candidate], thresholds: &'a Thresholds) -> Examination<'a> {
    Examination {
        shape: "",
        cases,
        candidates,
        thresholds,
        timed: None,
        ladder: false,
        sweep: false,
        max_gate_seconds: f64::INFINITY,
    }
}

/// The gates of one candidate; a lost device is a failure of the gate.
fn gate(candidate: &Candidate, cases: &[Case], thresholds: &Thresholds) -> Entry {
    let candidates = std::slice::from_ref(candidate);
    let examined = examination(cases, candidates, thresholds).run(&cases[0].problem, None, &mut ());
    let mut entries = examined.group.entries;
    let mut entry = entries.swap_remove(0);
    entry.note = examined.lost.map(|error| error.to_string()).or(entry.note);
    entry
}

/// Nothing, or what became of one that did not pass.
fn passed(entry: &Entry) -> std::result::Result<(), Fate> {
    let failed = entry.gates.iter().find(|gate| gate.gate == Gate::Correctness && gate.outcome != Outcome::Pass);
    let Some(gate) = failed else {
        return match entry.correctness() {
            Some(_) => Ok(()),
            None => Err(Fate::NotCompiled {
                reason: entry.gates.first().map(|gate| gate.summary.clone()).unwrap_or_default(),
            }),
        };
    };
    let reason = gate.summary.clone();
    let said = format!("{reason} {}", entry.note.clone().unwrap_or_default());
    Err(device_trouble(&said).unwrap_or(match gate.outcome {
        Outcome::Unavailable => Fate::Restricted { reason },
        _ => Fate::Wrong { reason },
    }))
}

fn of_error(error: &Error) -> Fate {
    let reason = error.to_string();
    device_trouble(&reason).unwrap_or(Fate::Unsound { reason })
}

/// Memory that ran out, or a fault of the device: the driver's own names tell.
fn device_trouble(said: &str) -> Option<Fate> {
    let name = said.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    let name = { name }.find(|word| word.starts_with("CUDA_ERROR_"))?;
    let reason = said.trim().to_string();
    Some(if name.contains("OUT_OF_MEMORY") { Fate::OutOfMemory { reason } } else { Fate::DeviceFault { reason } })
}

fn note_errors(entry: &Entry, evidence: &mut Evidence) {
    evidence.failed.extend(
        entry.gates.iter().filter(|gate| gate.gate == Gate::Correctness).flat_map(|gate| gate.failed()).cloned(),
    );
    evidence.worst_l2 = [evidence.worst_l2, entry.worst_relative_l2()].into_iter().flatten().reduce(f64::max);
    let counts =
        entry.cases.iter().fold((0, 0), |(tiles, f32), case| (tiles + case.run.tiles, f32 + case.run.tiles_in_f32));
    if counts.1 > 0 {
        evidence.f32_tiles = Some(counts.1 as f64 / counts.0 as f64);
    }
}

/// The same problem of another shape, in f32 and with its log-sum-exp.
fn of_shape(problem: &Problem, shape: Shape) -> Result<Problem> {
    let mut other = Problem::new(shape)?.with_value_dim(problem.value_dims().head_dim)?;
    if let Some(softcap) = problem.softcap() {
        other = other.with_softcap(softcap)?;
    }
    if problem.has_sinks() {
        other = other.with_sinks();
    }
    Ok(other.with_mask(problem.mask()).with_window(problem.window()).with_lse(true))
}

/// The problem cut down until its reference is cheap, to sizes that leave tails; in f32, so that the kernel's own error is
/// seen.
fn fresh_problem(problem: &Problem, flop: f64) -> Result<Problem> {
    let Shape { mut batch, mut kv_heads, mut query_len, mut key_len, head_dim, .. } = problem.shape();
    let group = problem.shape().group();
    let cut = |batch: usize, kv_heads: usize, query_len: usize, key_len: usize| {
        let shape =
            Shape::new(batch, kv_heads * group, query_len, head_dim).with_kv_heads(kv_heads).with_key_len(key_len);
        of_shape(problem, shape)
    };
    loop {
        let smaller = cut(batch, kv_heads, query_len, key_len)?;
        if smaller.flop() <= flop || (batch, kv_heads, query_len.max(key_len)) <= (1, 1, 64) {
            return Ok(smaller);
        }
        if batch > 1 {
            batch = batch.div_ceil(2);
        } else if kv_heads > 2 {
            kv_heads = kv_heads.div_ceil(2);
        } else if query_len >= key_len {
            // Not by half: what is left over from a power of two must be a tail.
            query_len = (query_len * 3 / 5) | 1;
        } else {
            key_len = (key_len * 3 / 5) | 1;
        }
    }
}

/// Exponentials per clock of a multiprocessor's special-function units, on every architecture here.
const EXPS_PER_CLOCK: f64 = 16.0;

/// The share of the time that the exponentials take if nothing else did; none where no special unit computes them.
fn exp_share(candidate: &Candidate, problem: &Problem, p50_us: f64) -> Option<f64> {
    if !candidate.on_gpu() || candidate.variant.knob("exp").as_deref() != Some("hardware") {
        return None;
    }
    let device = Device::default().ok()?;
    let info = device.info();
    let per_us = info.multiprocessors as f64 * EXPS_PER_CLOCK * info.clock_khz as f64 / 1e3;
    // Two products of head_dim multiply-adds for every exponential.
    let exps = problem.flop() / (4.0 * problem.shape().head_dim as f64);
    Some(exps / per_us / p50_us)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evolve::protocol::VERSION;
    use eightfold::Mask;

    fn task() -> Task {
        Task {
            version: VERSION,
            kernel: "cpu".into(),
            problems: vec![(&Problem::new(Shape::new(1, 2, 96, 16)).unwrap()).into()],
            accuracy: None,
            on_simulator: false,
            seed: 3,
            baselines: vec!["cpu:lanes".into()],
            thresholds: Thresholds::embedded(),
        }
    }

    fn request(variant: &str, best: f64) -> Request {
        Request { trial: 4, variant: variant.into(), best, ..Request::default() }
    }

    #[test]
    fn a_candidate_goes_as_deep_as_it_is_worth() {
        let task = task();
        let baseline = Bench::baselines(&task).unwrap();
        let cases = Bench::cases(&task, &baseline).unwrap();
        let mut bench = Bench::new(&task, baseline.clone(), &cases).unwrap();
        let mut depth = |best| match bench.examine(&request("cpu:lanes", best), &mut |_| {}).fate {
            Fate::Measured { timing, speed_up, p50_us } => {
                assert!(speed_up > 0.0 && p50_us > 0.0);
                let suits = match timing {
                    Depth::Pilot => speed_up < HOPELESS * best,
                    Depth::Quick => speed_up < CONTENDER * best,
                    Depth::Full => true,
                };
                assert!(suits, "{timing:?} ended at {speed_up} of {best}");
                timing
            }
            other => panic!("{other}"),
        };
        assert_eq!([depth(1e6), depth(0.1)], [Depth::Pilot, Depth::Full]);
        // In between the clock decides, on a busy machine now and then otherwise.
        assert!((0..20).any(|_| depth(1.25) == Depth::Quick));
    }

    #[test]
    fn failures_have_their_kinds() {
        let task = task();
        let baseline = Bench::baselines(&task).unwrap();
        let cases = Bench::cases(&task, &baseline).unwrap();
        let mut bench = Bench::new(&task, baseline.clone(), &cases).unwrap();
        let mut kind = |request: Request| bench.examine(&request, &mut |_| {}).fate.failure();
        assert_eq!(kind(request("cpu:tile_keys=17", 1.0)), Some("restricted"));
        let source = Some([("hopper/tile.cuh".to_string(), "//".to_string())].into());
        assert_eq!(kind(Request { source, ..request("cpu:lanes", 1.0) }), Some("restricted"));
        // A tolerance that nothing meets makes everything wrong.
        let mut strict = task.clone();
        strict.thresholds.correctness.tolerance.f32.user.relative_l2 = 1e-12;
        strict.thresholds.correctness.tolerance.f32.families.clear();
        assert!(
            Bench::new(&strict, baseline.clone(), &cases)
                .err()
                .unwrap()
                .to_string()
                .contains("the baseline is not available")
        );
        let lenient = Bench::new(&task, baseline, &cases).unwrap();
        let mut bench = Bench { thresholds: &strict.thresholds, ..lenient };
        assert_eq!(bench.examine(&request("cpu:lanes", 1.0), &mut |_| {}).fate.failure(), Some("wrong"));
    }

    #[test]
    fn a_contender_is_right_at_full_size_on_means_of_v_too() {
        let task = task();
        let baseline = Bench::baselines(&task).unwrap();
        let cases = Bench::cases(&task, &baseline).unwrap();
        let mut strict = task.clone();
        let biased = strict.thresholds.correctness.tolerance.f32.families.get_mut(&Family::BiasedValues);
        biased.unwrap().relative_l2 = 1e-12;
        let lenient = Bench::new(&task, baseline, &cases).unwrap();
        let mut bench = Bench { thresholds: &strict.thresholds, ..lenient };
        assert!(bench.fresh_cases(4, None).unwrap().iter().all(|case| case.family != Some(Family::BiasedValues)));
        let mut fate = |best| bench.examine(&request("cpu:lanes", best), &mut |_| {}).fate;
        assert_eq!(fate(1.25).failure(), None);
        assert_eq!(fate(0.1).failure(), Some("wrong"));
    }

    #[test]
    fn the_drivers_names_tell_what_kind_of_trouble_it_was() {
        let kind = |said: &str| device_trouble(said).and_then(|fate| fate.failure());
        assert_eq!(kind("cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY; free some"), Some("out of memory"));
        assert_eq!(kind("it took the context with it: x: CUDA_ERROR_ILLEGAL_ADDRESS; y"), Some("device fault"));
        assert_eq!(kind("kernel max_abs 3 is above 0.06"), None);
    }

    #[test]
    fn fresh_problems_are_small_and_leave_tails() {
        for shape in ["1,8,512,64", "2,8,2048,64", "4,16,4096,128", "1,32,4,1,8192,128", "1,1,1,8", "1,4,64,64"] {
            let problem = Problem::new(shape.parse().unwrap()).unwrap().causal();
            let fresh = fresh_problem(&problem, FRESH_GFLOP * 1e9).unwrap();
            assert!(fresh.flop() <= FRESH_GFLOP * 1e9, "{shape}: {fresh}");
            assert_eq!((fresh.mask(), fresh.shape().group()), (Mask::Causal, problem.shape().group()));
            let cut = fresh.shape().key_len < problem.shape().key_len;
            assert!(!cut || !fresh.shape().key_len.is_multiple_of(16), "{fresh}");
        }
    }
}
