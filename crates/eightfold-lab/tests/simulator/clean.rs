//! The kernels as they are: right, the same bits under every schedule, and nothing found.

use crate::support::{Bench, Ended, in_parallel, provenance, record_folder, simulator};
use eightfold::quantize::{Quantizer, SMALL_CODES};
use eightfold::{Fp8Format, Granularity, Layout, Mask, Output, OutputFormat, Problem, Shape};
use eightfold_lab::choice;
use eightfold_lab::examine::Candidate;
use eightfold_lab::gates::{self, Case, Outcome, Subject, Thresholds};
use eightfold_lab::inputs::{Family, Inputs};
use eightfold_lab::kernel::Kernel;
use eightfold_lab::simulate::{Schedule, Schedules, SimulatedVariant};
use std::fs::File;
use std::io::Write;
use std::sync::Mutex;
use std::time::Instant;

/// Tails in every dimension, odd numbers of tiles, grouped heads, rows that see no key: each variant takes the first
/// that it can.
const SHAPES: [&str; 4] = ["1,2,1,130,333,{}", "1,3,3,70,200,{}", "1,2,1,1,300,{}", "1,2,2,100,60,{}"];

struct Job {
    name: String,
    candidate: Candidate,
    problem: Problem,
    quantizer: Quantizer,
    center: bool,
}

fn quantizer(format: Fp8Format) -> Quantizer {
    Quantizer::new(format).with_largest_code(SMALL_CODES)
}

fn job(candidate: &Candidate, head_dim: usize, mask: Mask, index: usize) -> Option<Job> {
    // Another shape for each, so that all of them come up.
    let shapes = (0..SHAPES.len()).map(|i| SHAPES[(i + index) % SHAPES.len()]);
    let problems = shapes.map(|text| text.replace("{}", &head_dim.to_string()).parse::<Shape>().and_then(Problem::new));
    let problem = problems
        .map(|problem| problem.unwrap().with_mask(mask).with_lse(index.is_multiple_of(2)))
        .find(|problem| choice::check(problem, &candidate.variant).is_ok())?;
    let name = format!("{} {} {problem}", candidate.variant.kernel(), candidate.name);
    let quantizer = quantizer(problem.input_format());
    Some(Job { name, candidate: candidate.clone(), problem, quantizer, center: false })
}

/// Every stage and every mode, for both masks and both widths of heads. Where time is short, stages of the ladder are for
/// heads of 64 alone, and each of the other modes for one mask and width.
fn variants(all: bool) -> Vec<Job> {
    let mut jobs = Vec::new();
    for (turn, (head_dim, mask)) in
        [(64, Mask::None), (64, Mask::Causal), (128, Mask::None), (128, Mask::Causal)].into_iter().enumerate()
    {
        let stages = Kernel::HOPPER.stages(head_dim, mask).into_iter();
        let ladder = Kernel::LADDER.stages(head_dim, mask).into_iter().filter(|_| all || head_dim == 64);
        let others = Kernel::HOPPER.others(head_dim, mask).into_iter().enumerate();
        let others = others.filter(|(index, _)| all || index % 4 == turn).map(|(_, other)| other);
        for (index, candidate) in ladder.chain(stages).chain(others).enumerate() {
            jobs.extend(job(&candidate, head_dim, mask, index));
        }
    }
    jobs
}

/// Every kind of input, on one variant of each family that takes it.
fn inputs() -> Vec<Job> {
    let problem =
        |shape: &str, mask| Problem::new(shape.parse::<Shape>().unwrap()).unwrap().with_mask(mask).with_lse(true);
    let mut jobs = Vec::new();
    for (name, head_dim, mask) in [("hopper:fast", 64, Mask::Causal), ("ladder:fp8-mma", 128, Mask::None)] {
        let variant = eightfold_lab::kernel::suited(name, head_dim, mask).unwrap();
        let base = problem(&format!("1,2,2,70,300,{head_dim}"), mask);
        let kinds = [
            ("E5M2", base.with_input_format(Fp8Format::E5m2), Granularity::Head, false),
            ("blocks of scales", base, Granularity::Block { rows: 256 }, false),
            ("one scale", base.with_output_format(OutputFormat::F16), Granularity::Tensor, false),
            ("centred", base, Granularity::Head, true),
            (
                "rows that see nothing",
                problem(&format!("1,2,2,90,40,{head_dim}"), Mask::Causal),
                Granularity::Head,
                false,
            ),
        ];
        for (kind, problem, granularity, center) in kinds {
            let variant = if problem.mask() == mask {
                variant
            } else {
                eightfold_lab::kernel::suited(name, head_dim, problem.mask()).unwrap()
            };
            if choice::check(&problem, &variant).is_err() {
                continue;
            }
            jobs.push(Job {
                name: format!("{name} {kind}"),
                candidate: Candidate::new(name, variant),
                problem,
                quantizer: quantizer(problem.input_format()).with_granularity(granularity),
                center,
            });
        }
    }
    jobs
}

fn check(job: &Job, seeds: Vec<u64>, thresholds: &Thresholds) -> Result<(), String> {
    let inputs = Inputs::generate(job.problem.shape(), Family::BiasedValues, 1);
    let policy = &thresholds.correctness.reference;
    let case = if job.center {
        let shape = job.problem.shape();
        let quantize = |values: &[f32], dims, quantizer: Quantizer| quantizer.quantize(values, dims, Layout::Bhsd);
        let q = quantize(&inputs.q, shape.query_dims(), job.quantizer);
        let k = quantize(&inputs.k, shape.key_dims(), job.quantizer.centered());
        let v = quantize(&inputs.v, shape.key_dims(), Quantizer::new(job.problem.input_format()).centered());
        q.and_then(|q| Case::of_tensors(&job.problem, "centred", q, k?, v?, policy))
    } else {
        Case::prepare(&job.problem, &inputs, &job.quantizer, policy)
    };
    let case = case.map_err(|error| error.to_string())?;
    // The gate runs everything twice: of many schedules it meets the first alone.
    let (first, rest) = seeds.split_at(seeds.len().min(3));
    let variant = job.candidate.variant;
    let under = |seeds: &[u64]| SimulatedVariant {
        variant,
        schedules: Schedules { seeds: seeds.to_vec(), ..Schedules::default() },
    };
    let report =
        gates::check(&mut under(first), std::slice::from_ref(&case), thresholds.tolerance(&variant), thresholds);
    if report.gate.outcome != Outcome::Pass {
        return Err(report.gate.summary);
    }
    if rest.is_empty() {
        return Ok(());
    }
    let seeds = [&first[..1], rest].concat();
    let mut output = Output::zeros(&job.problem);
    let result = under(&seeds).run(&job.problem, &case.q, &case.k, &case.v, &mut output);
    result.map(|_| ()).map_err(|error| error.to_string())
}

fn check_all(jobs: Vec<Job>, seeds: impl Fn(usize) -> Vec<u64> + Sync) -> Vec<(String, f64, Result<(), String>)> {
    let thresholds = Thresholds::embedded();
    let numbered: Vec<_> = jobs.into_iter().enumerate().collect();
    in_parallel(numbered, |(index, job)| {
        let start = Instant::now();
        let result = check(&job, seeds(index), &thresholds);
        (job.name, start.elapsed().as_secs_f64(), result)
    })
}

fn failures(results: &[(String, f64, Result<(), String>)]) -> Vec<String> {
    let failed = results.iter().filter_map(|(name, _, result)| Some((name, result.as_ref().err()?)));
    failed.map(|(name, error)| format!("{name}: {error}")).collect()
}

/// Three of 36 schedules for each, others for the next.
fn few_seeds(index: usize) -> Vec<u64> {
    (0..3).map(|turn| 5 * (index as u64 + turn) % 36).collect()
}

#[test]
fn every_stage_and_mode_is_right_and_nothing_is_found() {
    if !simulator() {
        return;
    }
    let Some(folder) = record_folder() else {
        let results = check_all(variants(false), few_seeds);
        assert!(results.len() > 70, "{} variants", results.len());
        assert_eq!(failures(&results), Vec::<String>::new());
        return;
    };
    // What is done is kept, so that whoever is interrupted goes on.
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("clean.md");
    if !path.exists() {
        let head = "variant | schedules | seconds | found\n--- | --- | --- | ---\n";
        std::fs::write(&path, format!("{}\n\n{head}", provenance())).unwrap();
    }
    let done = std::fs::read_to_string(&path).unwrap();
    let mut jobs = variants(true);
    jobs.retain(|job| !done.lines().any(|line| line.starts_with(&format!("{} | ", job.name))));
    let file = Mutex::new(File::options().append(true).open(path).unwrap());
    let thresholds = Thresholds::embedded();
    let failed = in_parallel(jobs, |job| {
        let start = Instant::now();
        let result = check(&job, (0..100).collect(), &thresholds);
        let seconds = start.elapsed().as_secs_f64();
        let found = result.as_ref().err().map_or("nothing", String::as_str);
        writeln!(file.lock().unwrap(), "{} | 100 | {seconds:.1} | {found}", job.name).unwrap();
        result.err()
    });
    assert_eq!(failed.into_iter().flatten().collect::<Vec<_>>(), Vec::<String>::new());
}

#[test]
fn every_kind_of_input_is_right_and_nothing_is_found() {
    if !simulator() {
        return;
    }
    let results = check_all(inputs(), few_seeds);
    assert!(results.len() >= 8, "{} kinds", results.len());
    assert_eq!(failures(&results), Vec::<String>::new());
}

/// Launches that start before the one before has ended, and write where it writes.
#[test]
fn launches_that_overlap_are_right_and_nothing_is_found() {
    if !simulator() {
        return;
    }
    let few_keys =
        "hopper:warpgroups=1,tile_keys=256,stages=1,promote=0,sums=registers,keys=at-once,flight=2,launch=dependent";
    let streamed = "hopper:warpgroups=2,tile_keys=64,stages=3,promote=256,sums=registers,flight=2,launch=dependent";
    let split =
        "hopper:warpgroups=1,tile_keys=64,stages=2,linear=0,promote=0,sums=registers,split_keys=on,launch=dependent";
    let jobs = [(few_keys, "1,2,2,100,200,64"), (streamed, "1,2,2,100,300,64"), (split, "1,4,1,5,300,64")];
    let failed = in_parallel(jobs.to_vec(), |(variant, shape)| {
        let bench = Bench::new(variant, shape, Mask::Causal);
        let ended = (0..18).map(|seed| bench.run(3, Schedule::of_seed(seed)));
        ended.into_iter().find(|ended| !matches!(ended, Ended::Right(_))).map(|ended| format!("{variant}: {ended:?}"))
    });
    assert_eq!(failed.into_iter().flatten().collect::<Vec<_>>(), Vec::<String>::new());
}

/// A caller's V lies in rows: another kernel puts it in order first.
#[test]
fn values_in_rows_are_arranged_and_nothing_is_found() {
    if !simulator() {
        return;
    }
    let variant = "hopper:warpgroups=2,tile_keys=64,stages=3,promote=256,sums=registers,flight=2";
    let shapes = ["1,2,2,70,333,64", "2,4,2,33,129,128", "1,2,2,33,150,72"];
    let jobs: Vec<_> =
        [Layout::Bhsd, Layout::Bshd].into_iter().flat_map(|layout| shapes.map(|s| (layout, s))).collect();
    let failed = in_parallel(jobs, |(layout, shape)| {
        let bench = Bench::new(variant, shape, Mask::Causal).with_values_as(layout);
        let ended = (0..9).map(|seed| bench.run(2, Schedule::of_seed(seed)));
        ended.into_iter().find(|ended| !matches!(ended, Ended::Right(_))).map(|ended| format!("{shape}: {ended:?}"))
    });
    assert_eq!(failed.into_iter().flatten().collect::<Vec<_>>(), Vec::<String>::new());
}
