//! What becomes of a candidate: restrictions, compiler, resources, correctness, a quick timing, and a full one for those
//! who may be the best. Each step costs more than the one before and sees fewer candidates.

use super::fate::{Depth, Evidence, Fate};
use super::protocol::{Examined, Request, Task};
use crate::build;
use crate::choice;
use crate::examine::{Candidate, Examination};
use crate::gates::{Case, Gate, Outcome, StandardCase, Thresholds, TimingPolicy, prepare_all, quantizer};
use crate::inputs::Family;
use crate::measure::{Contestant, Manner, Method, Race, Raced, Rotation, Samples, brief_contestant};
use crate::record::Entry;
use crate::verdict::SpeedUp;
use eightfold::cuda::compile;
use eightfold::cuda::driver::Device;
use eightfold::{Error, Mask, Problem, Result, Shape, Variant};
use std::collections::HashSet;
use std::time::Instant;

/// Arithmetic of the problem that candidates are checked on with inputs of their own: its float64 reference must not
/// take longer than the rest.
const FRESH_GFLOP: f64 = 0.06;

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
    /// What all are timed against.
    pub baseline: Candidate,
    problem: Problem,
    /// Inputs at full size; the first are timed.
    cases: &'a [Case],
    thresholds: &'a Thresholds,
    contestant: Box<dyn Contestant + 'a>,
    baseline_s: f64,
    seed: u64,
    /// Candidates that were compiled ahead of their turn.
    compiled: HashSet<String>,
}

/// The problem of a task.
pub fn problem(task: &Task) -> Result<Problem> {
    let shape: Shape = task.shape.parse()?;
    let problem = Problem::new(shape)?.with_mask(Mask::causal_if(task.causal));
    Ok(problem.with_output_format(task.output_format.parse()?))
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
    choice::check(problem, variant)
}

impl<'a> Bench<'a> {
    /// What all candidates of a task are timed against.
    pub fn baseline(task: &Task) -> Result<Candidate> {
        let baseline = |variant| Candidate::new("baseline", variant);
        let baseline = match &task.baseline {
            Some(text) => baseline(text.parse()?),
            None => {
                let problem = problem(task)?;
                baseline(shipped(&task.kernel, &problem)?).held_to(problem.accuracy())
            }
        };
        if baseline.on_gpu() {
            Device::default()?;
        }
        Ok(baseline)
    }

    /// Inputs at full size, the same for every worker of a search: those that are timed, and those on which sums that are
    /// too long show.
    pub fn cases(task: &Task, baseline: &Candidate) -> Result<Vec<Case>> {
        let problem = problem(task)?;
        let cases = [Family::Gaussian, Family::BiasedValues];
        let cases = cases.map(|family| StandardCase { problem, family, seed: task.seed });
        let quantizer = quantizer(&problem, std::slice::from_ref(baseline));
        prepare_all(&cases, &quantizer, &task.thresholds.correctness.reference)
    }

    /// Gates and prepares the baseline; without it nothing can be timed.
    pub fn new(task: &'a Task, baseline: Candidate, cases: &'a [Case]) -> Result<Bench<'a>> {
        let thresholds = &task.thresholds;
        let entry = gate(&baseline, cases, thresholds);
        if let Err(fate) = passed(&entry) {
            return Err(Error::unavailable(
                "the baseline",
                format!("{}: {fate}", baseline.variant),
                "see `eightfold run`",
            ));
        }
        let mut contestant = timed(&baseline, &entry, &cases[0])?;
        contestant.prepare()?;
        let baseline_s = fastest_s(&mut *contestant)?;
        Ok(Bench {
            baseline,
            problem: cases[0].problem,
            cases,
            thresholds,
            contestant,
            baseline_s,
            seed: task.seed,
            compiled: HashSet::new(),
        })
    }

    /// What the candidates run on.
    pub fn device(&self) -> Result<String> {
        if self.baseline.on_gpu() {
            return Ok(Device::default()?.info().name.clone());
        }
        Ok(crate::installed::cpu_device())
    }

    /// Takes a candidate as far as it comes. Whatever becomes of it is in the answer.
    pub fn examine(&mut self, request: &Request) -> Examined {
        let mut evidence = Evidence::default();
        let mut start = Instant::now();
        let fate = self.cascade(request, &mut evidence, &mut start).unwrap_or_else(|fate| fate);
        Examined { trial: request.trial, fate, evidence, device_s: start.elapsed().as_secs_f64() }
    }

    /// The steps, in their order. The error is the fate of one that does not come through.
    fn cascade(
        &mut self,
        request: &Request,
        evidence: &mut Evidence,
        start: &mut Instant,
    ) -> std::result::Result<Fate, Fate> {
        let restricted = |error: Error| Fate::Restricted { reason: error.to_string() };
        let variant: Variant = request.variant.parse().map_err(restricted)?;
        suits(&self.problem, &self.baseline.variant, &variant).map_err(restricted)?;
        let candidate = Candidate { accuracy: self.baseline.accuracy, ..Candidate::new(&request.variant, variant) };
        let _replaced = match &request.source {
            Some(text) => Some(Replaced::new(&variant, text).map_err(restricted)?),
            None => None,
        };
        let cases = self.fresh_cases(request.trial).map_err(restricted)?;
        if candidate.on_gpu() {
            self.compile_with(request, &cases);
            *start = Instant::now();
            self.resources(&candidate, request, evidence)?;
        }
        let entry = gate(&candidate, &cases, self.thresholds);
        note_errors(&entry, evidence);
        passed(&entry)?;
        let timed = self.time(&candidate, request.best, evidence)?;
        if let Fate::Measured { p50_us, .. } = &timed {
            evidence.exp_share = exp_share(&candidate, &self.problem, *p50_us);
        }
        Ok(timed)
    }

    /// Compiles the candidate together with those that come next, on all cores, unless it was compiled with one before:
    /// for what is timed and, since tails are compiled in, for what is checked. Failures show where they belong.
    fn compile_with(&mut self, request: &Request, checked: &[Case]) {
        let Ok(arch) = Device::default().and_then(|device| device.arch()) else { return };
        if request.source.is_some() || self.compiled.contains(&request.variant) {
            return;
        }
        let together = std::iter::once(&request.variant).chain(&request.ahead);
        let together = together.filter(|text| self.compiled.insert(text.to_string()));
        let parsed = together.filter_map(|text| Some(Candidate::new(text, text.parse().ok()?)));
        let together: Vec<Candidate> = parsed.collect();
        build::ahead(&together, checked.iter().chain(self.cases), arch);
    }

    /// The compiler and the resource gate.
    fn resources(
        &self,
        candidate: &Candidate,
        request: &Request,
        evidence: &mut Evidence,
    ) -> std::result::Result<(), Fate> {
        let examination = examination(&self.cases[..1], std::slice::from_ref(candidate), self.thresholds);
        let Some(built) = examination.resources(candidate) else { return Ok(()) };
        let reason = built.gate.summary.clone();
        let Some(build) = built.build else {
            return Err(match built.gate.outcome {
                Outcome::Fail => Fate::NotCompiled { reason },
                _ => Fate::Restricted { reason },
            });
        };
        evidence.registers = Some(build.registers);
        evidence.spill_bytes = Some(build.spill_store_bytes + build.spill_load_bytes);
        evidence.shared_bytes = Some(build.shared_bytes());
        evidence.blocks_per_multiprocessor = Some(build.blocks_per_multiprocessor);
        evidence.code_hash = Some(build.code_hash.clone());
        if built.gate.outcome == Outcome::Fail {
            return Err(Fate::OverResources { reason });
        }
        if request.known_code.contains(&build.code_hash) {
            return Err(Fate::Duplicate { of: format!("machine code {}", build.code_hash) });
        }
        Ok(())
    }

    /// Inputs that no candidate before has seen, on a smaller problem whose sizes divide nothing.
    fn fresh_cases(&self, trial: usize) -> Result<Vec<Case>> {
        let problem = fresh_problem(&self.problem)?;
        let quantizer = quantizer(&problem, std::slice::from_ref(&self.baseline));
        let policy = &self.thresholds.correctness.reference;
        let seed = self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(trial as u64);
        let other = Family::ALL[1 + trial % (Family::ALL.len() - 1)];
        [Family::Gaussian, other]
            .into_iter()
            .map(|family| StandardCase { problem, family, seed }.prepare(&quantizer, policy))
            .collect()
    }

    /// Against the baseline, as far as it is worth it. Whoever may be the best must be right at full size as well, and
    /// keep giving the bits that the gate saw there.
    fn time(&mut self, candidate: &Candidate, best: f64, evidence: &mut Evidence) -> std::result::Result<Fate, Fate> {
        let unsound = |error: Error| of_error(&error);
        let entry = Entry::new(&candidate.name, candidate.variant.to_string());
        let mut challenger = timed(candidate, &entry, &self.cases[0]).map_err(unsound)?;
        challenger.prepare().map_err(unsound)?;
        let fastest_s = fastest_s(&mut *challenger).map_err(unsound)?;
        let pilot = self.baseline_s / fastest_s;
        if pilot < HOPELESS * best {
            challenger.verify().map_err(unsound)?;
            let launches = challenger.launches_per_run() as f64;
            return Ok(Fate::Measured { speed_up: pilot, p50_us: fastest_s / launches * 1e6, timing: Depth::Pilot });
        }
        let (speed_up, p50_us) = self.race(&mut *challenger, QUICK_ROUNDS).map_err(unsound)?;
        if speed_up < CONTENDER * best {
            return Ok(Fate::Measured { speed_up, p50_us, timing: Depth::Quick });
        }
        drop(challenger);
        let entry = gate(candidate, self.cases, self.thresholds);
        note_errors(&entry, evidence);
        passed(&entry)?;
        let mut challenger = timed(candidate, &entry, &self.cases[0]).map_err(unsound)?;
        let (speed_up, p50_us) = self.race(&mut *challenger, FULL_ROUNDS).map_err(unsound)?;
        Ok(Fate::Measured { speed_up, p50_us, timing: Depth::Full })
    }

    fn race(&mut self, challenger: &mut dyn Contestant, most_rounds: usize) -> Result<(f64, f64)> {
        let on_gpu = self.baseline.on_gpu();
        let policy = if on_gpu { &self.thresholds.cuda_timing } else { &self.thresholds.timing };
        let policy = &TimingPolicy { warmup_iterations: WARM_UP_RUNS, ..*policy };
        let method = Method { policy, manner: Manner::default(), on_gpu };
        let race = Race { method, seed: self.seed, most_rounds, most_seconds: MOST_SECONDS };
        let contestants: &mut [&mut dyn Contestant] = &mut [&mut *self.contestant, challenger];
        let Raced { samples, .. } = race.run(contestants, &mut |_| false, &mut |_, _| {})?;
        let unclear = || Error::unavailable("the timing", "too few rounds", "give it a quieter machine");
        let speed_up = SpeedUp::between(&samples[0], &samples[1]).ok_or_else(unclear)?.ratio;
        let p50_us = samples[1].summary().ok_or_else(unclear)?.p50_us;
        self.baseline_s = pace_s(&samples[0], self.contestant.launches_per_run()).unwrap_or(self.baseline_s);
        Ok((speed_up, p50_us))
    }
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

/// A source that stands for the kernel's own until this is dropped.
struct Replaced(&'static str);

impl Replaced {
    fn new(variant: &Variant, text: &str) -> Result<Replaced> {
        let Some(file) = variant.file() else {
            return Err(Error::invalid(
                "source",
                format!("the {} kernel is not compiled at run time", variant.kernel()),
                "answer with a config",
            ));
        };
        compile::replace_source(file, Some(text));
        Ok(Replaced(file))
    }
}

impl Drop for Replaced {
    fn drop(&mut self) {
        compile::replace_source(self.0, None);
    }
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
    evidence.worst_l2 = [evidence.worst_l2, entry.worst_relative_l2()].into_iter().flatten().reduce(f64::max);
    let counts =
        entry.cases.iter().fold((0, 0), |(tiles, f32), case| (tiles + case.run.tiles, f32 + case.run.tiles_in_f32));
    if counts.1 > 0 {
        evidence.f32_tiles = Some(counts.1 as f64 / counts.0 as f64);
    }
}

/// The problem cut down until its reference is cheap, to sizes that leave tails; in f32, so that the kernel's own error is
/// seen.
fn fresh_problem(problem: &Problem) -> Result<Problem> {
    let Shape { mut batch, mut kv_heads, mut query_len, mut key_len, head_dim, .. } = problem.shape();
    let group = problem.shape().group();
    let cut = |batch: usize, kv_heads: usize, query_len: usize, key_len: usize| {
        let shape = Shape { batch, query_heads: kv_heads * group, kv_heads, query_len, key_len, head_dim };
        Problem::new(shape).map(|cut| cut.with_mask(problem.mask()).with_lse(true))
    };
    loop {
        let smaller = cut(batch, kv_heads, query_len, key_len)?;
        if smaller.flop() <= FRESH_GFLOP * 1e9 || (batch, kv_heads, query_len.max(key_len)) <= (1, 1, 64) {
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

    fn task() -> Task {
        Task {
            version: VERSION,
            kernel: "cpu".into(),
            shape: "1,2,96,16".into(),
            causal: false,
            output_format: "f32".into(),
            seed: 3,
            baseline: Some("cpu:lanes".into()),
            thresholds: Thresholds::embedded(),
        }
    }

    fn request(variant: &str, best: f64) -> Request {
        Request { trial: 4, variant: variant.into(), best, ..Request::default() }
    }

    #[test]
    fn a_candidate_goes_as_deep_as_it_is_worth() {
        let task = task();
        let baseline = Bench::baseline(&task).unwrap();
        let cases = Bench::cases(&task, &baseline).unwrap();
        let mut bench = Bench::new(&task, baseline.clone(), &cases).unwrap();
        let mut depth = |best| match bench.examine(&request("cpu:lanes", best)).fate {
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
        let baseline = Bench::baseline(&task).unwrap();
        let cases = Bench::cases(&task, &baseline).unwrap();
        let mut bench = Bench::new(&task, baseline.clone(), &cases).unwrap();
        let mut kind = |request: Request| bench.examine(&request).fate.failure();
        assert_eq!(kind(request("cpu:tile_keys=17", 1.0)), Some("restricted"));
        let source = Some("__global__".to_string());
        assert_eq!(kind(Request { source, ..request("cpu:lanes", 1.0) }), Some("restricted"));
        // A tolerance that nothing meets makes everything wrong.
        let mut strict = task.clone();
        strict.thresholds.correctness.tolerance.f32.relative_l2 = 1e-12;
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
        assert_eq!(bench.examine(&request("cpu:lanes", 1.0)).fate.failure(), Some("wrong"));
    }

    #[test]
    fn a_contender_is_right_at_full_size_on_means_of_v_too() {
        let task = task();
        let baseline = Bench::baseline(&task).unwrap();
        let cases = Bench::cases(&task, &baseline).unwrap();
        let mut strict = task.clone();
        strict.thresholds.correctness.tolerance.f32.families.insert(Family::BiasedValues, 1e-12);
        let lenient = Bench::new(&task, baseline, &cases).unwrap();
        let mut bench = Bench { thresholds: &strict.thresholds, ..lenient };
        assert!(bench.fresh_cases(4).unwrap().iter().all(|case| case.family != Some(Family::BiasedValues)));
        let mut fate = |best| bench.examine(&request("cpu:lanes", best)).fate;
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
            let fresh = fresh_problem(&problem).unwrap();
            assert!(fresh.flop() <= FRESH_GFLOP * 1e9, "{shape}: {fresh}");
            assert_eq!((fresh.mask(), fresh.shape().group()), (Mask::Causal, problem.shape().group()));
            let cut = fresh.shape().key_len < problem.shape().key_len;
            assert!(!cut || !fresh.shape().key_len.is_multiple_of(16), "{fresh}");
        }
    }
}
