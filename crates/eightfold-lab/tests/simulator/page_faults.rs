//! Faults planted in the kernels of pages and of prompts, one at a time: each must be found, by what the simulator sees or by
//! numbers that are not float64's.

use crate::pages::{Case, cases, ragged_cases, run};
use crate::support::simulator;
use eightfold_lab::simulate::{self, Edit, Schedule};
use std::process::{Command, Stdio};

/// What it is, the case that it is tried on, the kernel, the file, and what stands there with it in place of without.
type Fault = (&'static str, &'static str, &'static str, &'static str, &'static str, &'static str);

const PAGED: &str = "paged/attention.cu";
const GATHER: &str = "ragged/gather.cu";
const PLAN: &str = "ragged/plan.cu";
const HOPPER: &str = "hopper/attention.cu";

#[rustfmt::skip]
const FAULTS: &[Fault] = &[
    ("a row sees one key too many", "ragged", PAGED, "paged/attend.cuh", "key >= keys.end", "key > keys.end"),
    ("one group of copies too few is waited for", "ragged", PAGED, "paged/attend.cuh", "wait_for_copies<STAGES - 2>();", "wait_for_copies<STAGES - 1>();"),
    ("no barrier before results take the ring's place", "many parts", PAGED, "paged/merge.cuh", "__syncthreads();  // every warp is done with its ring", ""),
    ("a part is counted before all have stored it", "many parts", PAGED, "paged/merge.cuh", "__threadfence();\n    __syncthreads();\n    if (threadIdx.x == 0) {", "__threadfence();\n    if (threadIdx.x == 0) {"),
    ("every query is taken for the last", "four queries", PAGED, "paged/problem.cuh", "int own = length - queries + query", "int own = length - 1"),
    ("a window's first keys begin within a step", "window and sinks", PAGED, "paged/schedule.cuh", "first.first / STEP_KEYS * STEP_KEYS", "first.first"),
    ("no sinks", "window and sinks", PAGED, "paged/merge.cuh", "SINK_WEIGHT * exp2_hardware(sink - largest)", "0.0f"),
    ("a page is looked up where that of another step is", "many parts", PAGED, "paged/load.cuh", "step % SPAN * (32 / SPAN) + (first + row) / SPAN", "(first + row) / SPAN"),
    ("no launch is waited for", "many parts", PAGED, "paged/attention.cu", "wait_for_last_launch();", ""),
    ("all keys are gathered from where the first is", "gathered", PAGED, "paged/load.cuh", "int page = __shfl_sync(0xffffffff, now.page, from);", "int page = __shfl_sync(0xffffffff, now.page, 0);"),
    ("no barrier before tiles are counted in order", "prompts", PLAN, "ragged/plan.cu", "__syncthreads();\n    if (warp == 0) add_up(plan.places", "if (warp == 0) add_up(plan.places"),
    ("the last block's rest is whatever lies there", "prompts of mean 1", GATHER, "ragged/gather.cu", "if (of.key < left) {", "if (sequence >= 0) {"),
    ("a sequence reads the keys of the first", "prompts", HOPPER, "hopper/problem.cuh", "return rows(problem).first_key;", "return 0;"),
];

/// Schedules in at least one of which a fault must show.
const SCHEDULES: u64 = 18;

fn shows(case: &Case) -> bool {
    (0..SCHEDULES).any(|seed| {
        simulate::begin(Schedule { limit_seconds: Some(20.0), ..Schedule::of_seed(seed) });
        run(case).is_err() || !simulate::findings().is_empty()
    })
}

const PART: &str = "EIGHTFOLD_PAGE_FAULTS_PART";

fn parts() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from)
}

/// One part of the faults, in a process of its own: a fault is compiled into it under the name of the kernel.
#[test]
#[ignore = "run by the test below, once for each part"]
fn a_part_of_the_faults() {
    let part: usize = std::env::var(PART).unwrap().parse().unwrap();
    assert!(simulator());
    let all: Vec<Case> = cases().into_iter().chain(ragged_cases()).collect();
    for (name, case, main, file, before, after) in FAULTS.iter().skip(part).step_by(parts()) {
        let edit = Edit { file: (*file).into(), before: (*before).into(), after: (*after).into() };
        simulate::plant(main, vec![edit]);
        let case = all.iter().find(|one| one.name == *case).unwrap();
        println!("{} {name}", if shows(case) { "FOUND" } else { "MISSED" });
        simulate::plant(main, Vec::new());
    }
}

#[test]
fn every_planted_fault_is_found() {
    if !simulator() {
        return;
    }
    let start = |part: usize| {
        let arguments =
            ["--exact", "page_faults::a_part_of_the_faults", "--ignored", "--nocapture", "--test-threads=1"];
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(arguments).env(PART, part.to_string()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let children: Vec<_> = (0..parts()).map(start).collect();
    let (mut found, mut missed) = (0, Vec::new());
    for child in children {
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
        found += text.matches("FOUND ").count();
        missed.extend(text.lines().filter(|line| line.contains("MISSED ")).map(String::from));
    }
    assert_eq!(missed, Vec::<String>::new());
    assert_eq!(found, FAULTS.len());
}
