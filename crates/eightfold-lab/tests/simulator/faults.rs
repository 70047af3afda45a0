//! Faults planted in the kernels, one at a time: each must be found, by a race, a deadlock, a rule or wrong numbers.
//!
//! A fault is compiled into this process under the name of the kernel, so that two processes share the work.

use crate::support::{Bench, Ended, provenance, record_folder, simulator};
use eightfold::Mask;
use eightfold_lab::simulate::{self, Edit, Schedule};
use std::fmt::Write;
use std::process::{Command, Stdio};
use std::time::Instant;

/// What a fault is tried on.
#[derive(Clone, Copy)]
struct Target {
    main: &'static str,
    variant: &'static str,
    shape: &'static str,
    mask: Mask,
    launches: usize,
}

const HOPPER: &str = "hopper/attention.cu";
const STREAMED: Target = Target {
    main: HOPPER,
    variant: "hopper:warpgroups=3,tile_keys=64,stages=3,scores=f16,weights=fp8,linear=8,promote=256,sums=shared,flight=2",
    shape: "1,2,2,200,500,64",
    mask: Mask::None,
    launches: 1,
};
const IN_ROUNDS: Target = Target { shape: "1,4,4,200,300,64", ..STREAMED };
const CAUSAL: Target = Target { shape: "1,2,2,200,300,64", mask: Mask::Causal, ..STREAMED };
const PACKED: Target = Target { shape: "1,4,2,77,300,64", mask: Mask::Causal, ..STREAMED };
const SHORT: Target = Target {
    main: "hopper/short.cu",
    variant: "hopper:warpgroups=1,tile_keys=256,stages=1,scores=f16,weights=fp8,linear=8,promote=0,sums=registers,keys=at-once,flight=2",
    shape: "1,2,2,100,200,64",
    mask: Mask::None,
    launches: 1,
};
const DEPENDENT: Target = Target {
    variant: "hopper:warpgroups=1,tile_keys=256,stages=1,scores=f16,weights=fp8,linear=8,promote=0,sums=registers,keys=at-once,flight=2,launch=dependent",
    launches: 3,
    ..SHORT
};
const SHARED_VALUES: Target = Target {
    variant: "hopper:warpgroups=1,tile_keys=256,stages=1,scores=f16,weights=fp8,linear=0,promote=0,sums=registers,keys=at-once,share=values",
    shape: "1,2,2,128,256,64",
    ..SHORT
};
const SPLIT: Target = Target {
    variant: "hopper:warpgroups=1,tile_keys=64,stages=2,scores=f16,weights=fp8,linear=0,promote=0,sums=registers,split_keys=on",
    shape: "1,4,1,5,300,64",
    ..STREAMED
};
const LADDER: &str = "ladder/attention.cu";
const THREE_STAGE: Target =
    Target { main: LADDER, variant: "ladder:three-stage", shape: "1,2,2,100,500,64", mask: Mask::None, launches: 1 };
const REUSE: Target = Target { variant: "ladder:reuse-scores", shape: "1,2,2,100,200,64", ..THREE_STAGE };
const SPECIALISED: Target = Target { variant: "ladder:warp-specialised", ..THREE_STAGE };
const FP8: Target = Target { variant: "ladder:fp8-mma", shape: "1,8,8,100,300,64", ..THREE_STAGE };
const FP8_EMPTY: Target = Target { shape: "1,16,16,300,20,64", mask: Mask::Causal, ..FP8 };
const GROUPS: Target = Target { variant: "ladder:split-keys", shape: "1,2,2,100,300,64", ..THREE_STAGE };

/// A fault: what it is, where it is tried, in which file, and what stands there with it in place of without.
type Fault = (&'static str, Target, &'static str, &'static [(&'static str, &'static str)]);

const ATTENTION: &str = "hopper/attention.cu";
const PRODUCE: &str = "hopper/produce.cuh";
const ACCUMULATOR: &str = "hopper/accumulator.cuh";
const SHARED: &str = "hopper/shared.cuh";
const PIPELINE: &str = "ladder/pipeline.cuh";
const SOFTMAX: &str = "ladder/softmax.cuh";

#[rustfmt::skip]
const FAULTS: &[Fault] = &[
    // Hopper, tiles streamed through a ring of buffers.
    ("lane 0 hands an unused stage back before its warp has waited", CAUSAL, ATTENTION, &[("        __syncwarp();\n        release(empty);", "        release(empty);")]),
    ("no wait until V is there", STREAMED, ATTENTION, &[("update_row_max();\n        sleep_until_phase(shared.values_full(ring.stage), ring.parity);", "update_row_max();")]),
    ("no wait until K is there", STREAMED, ATTENTION, &[("__device__ void wait_for_keys() { sleep_until_phase(shared.keys_full(ring.stage), ring.parity); }", "__device__ void wait_for_keys() {}")]),
    ("no wait until Q is there", STREAMED, ATTENTION, &[("sleep_until_phase(shared.queries_full(), round % 2);", "")]),
    ("K is never handed back", STREAMED, ATTENTION, &[("wait_for_products<0>();\n        release(shared.keys_empty(ring.stage));", "wait_for_products<0>();")]),
    ("K is handed back before its product is done", STREAMED, ATTENTION, &[("wait_for_products<0>();\n        release(shared.keys_empty(ring.stage));", "release(shared.keys_empty(ring.stage));\n        wait_for_products<0>();")]),
    ("V is handed back while its products run", STREAMED, ATTENTION, &[("acc.fresh = false;\n        ring.advance();", "acc.fresh = false;\n        release(shared.values_empty(ring.stage));\n        ring.advance();"), ("if (visited > 0) release(shared.values_empty(before));", "")]),
    ("Q is handed back at the last tile, not the first", IN_ROUNDS, ATTENTION, &[("if (tile == first_seen()) release(shared.queries_empty());", "if (tile == work.last_tile - 1) release(shared.queries_empty());")]),
    ("barriers are not published to TMA", STREAMED, SHARED, &[("make_pair(values_full(stage), values_empty(stage));\n        publish_barriers();", "make_pair(values_full(stage), values_empty(stage));")]),
    ("a barrier is made for one warp too many", STREAMED, SHARED, &[("init_barrier(empty, 4 * WARPGROUPS);", "init_barrier(empty, 4 * WARPGROUPS + 1);")]),
    ("a barrier is made for one warp too few", STREAMED, SHARED, &[("init_barrier(empty, 4 * WARPGROUPS);", "init_barrier(empty, 4 * WARPGROUPS - 1);")]),
    ("the producer does not wait until K's place is empty", STREAMED, PRODUCE, &[("sleep_until_phase(shared.keys_empty(ring.stage), ring.parity ^ 1);", "")]),
    ("the producer does not wait until V's place is empty", STREAMED, PRODUCE, &[("sleep_until_phase(shared.values_empty(ring.stage), ring.parity ^ 1);", "")]),
    ("the producer does not wait until Q's place is empty", IN_ROUNDS, PRODUCE, &[("sleep_until_phase(shared.queries_empty(), queries_parity ^ 1);", "")]),
    ("too few bytes are expected", STREAMED, PRODUCE, &[("arrive_expecting(full, KEY_BYTES);", "arrive_expecting(full, KEY_BYTES / 2);")]),
    ("too many bytes are expected", STREAMED, PRODUCE, &[("arrive_expecting(full, TILE_KEYS * VALUE_TILE);", "arrive_expecting(full, TILE_KEYS * VALUE_TILE + 16);")]),
    ("a box goes to a misaligned place", STREAMED, PRODUCE, &[("copy_box(shared.queries() + line", "copy_box(shared.queries() + 16 + line")]),
    ("no wait for the product of scores", STREAMED, ATTENTION, &[("read_scales(tile);\n        wait_for_products<0>();", "read_scales(tile);")]),
    ("products with V are not committed", STREAMED, ACCUMULATOR, &[("commit_products();", "")]),
    ("no wgmma.fence before products with V", STREAMED, ACCUMULATOR, &[("fence_products();", "")]),
    ("one set of registers for all products in flight", STREAMED, ACCUMULATOR, &[("add_product(weights.words[step]", "auto& one = const_cast<Weights&>(weights).words[VALUE_STEPS - 1];\n        for (int i = 0; i < 4; ++i) one[i] = weights.words[step][i];\n        add_product(one")]),
    ("ones are not published to the tensor cores", STREAMED, SHARED, &[("            store_shared_16(address, make_uint4(word, word, word, word));\n        }\n        publish_stores();", "            store_shared_16(address, make_uint4(word, word, word, word));\n        }")]),
    ("computing threads do not wait until barriers are made", STREAMED, ATTENTION, &[("sync_threads_of_role<READY, THREADS>();", "")]),
    ("two numbers of threads at one barrier", STREAMED, ATTENTION, &[("arrive_numbered(READY, THREADS);", "arrive_numbered(READY, THREADS + 32);")]),
    ("the parity never flips", STREAMED, "attention/ring.cuh", &[("parity ^= 1;", "")]),
    ("registers that the producers keep are taken as well", STREAMED, ATTENTION, &[("take_registers<COMPUTE_REGISTERS>();", "take_registers<COMPUTE_REGISTERS + 16>();")]),
    ("no bound on rows of the output", STREAMED, "hopper/store.cuh", &[("if (!row.exists) continue;", "")]),
    ("rows that a copy brings are cleared as well", PACKED, ATTENTION, &[("if (problem.packed_heads > 1) shared.clear_queries(problem.packed_heads * problem.query_len);", "if (problem.packed_heads > 1) shared.clear_queries(0);")]),
    // All keys at once.
    ("copies are not published to the tensor cores", SHORT, "hopper/short.cu", &[("publish_stores();", "")]),
    ("no barrier after copies", SHORT, "hopper/short.cu", &[("publish_stores();\n        __syncthreads();", "publish_stores();")]),
    ("one group of copies too few is waited for", SHORT, "hopper/short.cu", &[("wait_for_copies<PARTS - 1 - PART>();", "wait_for_copies<PARTS - PART>();")]),
    ("copies of a part are not committed", SHORT, "hopper/short.cu", &[("seen ? 16 : 0);\n        }\n        commit_copies();", "seen ? 16 : 0);\n        }")]),
    ("no wait for a part of V", SHORT, "hopper/short.cu", &[("sleep_until_phase(shared.part_full(part), 0);", "")]),
    ("no barrier after barriers are made", SHORT, "hopper/short.cu", &[("shared.write_ones(-tile.start);\n    __syncthreads();", "shared.write_ones(-tile.start);")]),
    ("no bound on lines of Q", SHORT, "hopper/short.cu", &[("is_query[i] ? 16 : 0", "16")]),
    ("no wait for the launch before", DEPENDENT, "hopper/short.cu", &[("if constexpr (DEPENDENT) wait_for_last_launch();\n        float scales", "float scales")]),
    ("no wait for the other block of the cluster", SHARED_VALUES, "hopper/short.cu", &[("if constexpr (SHARE_VALUES) wait_for_cluster();", "")]),
    ("the box is for a block that is not there", SHARED_VALUES, "hopper/short.cu", &[("copy_box_to_blocks((1 << PAIR) - 1,", "copy_box_to_blocks(1 << PAIR,")]),
    // Split keys.
    ("a part is counted before all threads have stored it", SPLIT, "hopper/merge.cuh", &[("__threadfence();\n    sync_threads_of_role<1, WARPGROUPS * WARPGROUP>();", "__threadfence();")]),
    ("no fence after a part is stored", SPLIT, "hopper/merge.cuh", &[("    __threadfence();\n    sync_threads", "    sync_threads")]),
    ("no fence before other parts are read", SPLIT, "hopper/merge.cuh", &[("if (any) __threadfence();", "")]),
    // The ladder.
    ("no barrier after copies", THREE_STAGE, PIPELINE, &[("sync_compute_warps();  // everyone's copies have landed, and everyone is done with the tile before", "")]),
    ("groups are committed only where there is a tile", THREE_STAGE, PIPELINE, &[("thread);\n        commit_copies();", "thread), commit_copies();")]),
    ("one group of copies too few is waited for", THREE_STAGE, PIPELINE, &[("wait_for_copies<AHEAD - 1>();", "wait_for_copies<AHEAD>();")]),
    ("no barrier after widening", THREE_STAGE, PIPELINE, &[("widen_stage(shared, stage, thread);\n            sync_compute_warps();", "widen_stage(shared, stage, thread);")]),
    ("no bound on queries", THREE_STAGE, "ladder/scores.cuh", &[("bool exists = query < problem.query_len;", "bool exists = true;")]),
    ("no bound on keys", THREE_STAGE, "ladder/load.cuh", &[("bool exists = key < problem.key_len && bytes > 0;", "bool exists = bytes > 0;")]),
    ("no bound on rows of the output", THREE_STAGE, "ladder/store.cuh", &[("if (end.query >= problem.query_len) continue;", "")]),
    ("no __syncwarp after scores", REUSE, SOFTMAX, &[("make_float2(pair[2 * row] * scale, pair[2 * row + 1] * scale);\n        }\n    }\n    __syncwarp();", "make_float2(pair[2 * row] * scale, pair[2 * row + 1] * scale);\n        }\n    }")]),
    ("no __syncwarp before weights take the scores' place", REUSE, SOFTMAX, &[("__syncwarp();  // weights may lie where the scores were", "")]),
    ("a stage is never handed back", SPECIALISED, PIPELINE, &[("if constexpr (PRODUCERS > 0) arrive(emptied_barrier(shared, stage));", "")]),
    ("the producer does not wait", SPECIALISED, PIPELINE, &[("wait_for_phase(emptied_barrier(shared, ring.stage), ring.parity ^ 1);", "")]),
    ("no wait for a stage", SPECIALISED, PIPELINE, &[("wait_for_phase(filled_barrier(shared, stage), ring.parity);", "")]),
    ("no barrier before widening", SPECIALISED, PIPELINE, &[("sync_compute_warps();  // everyone is done with the widened tile before", ";")]),
    ("no barrier after barriers are made", SPECIALISED, PIPELINE, &[("        }\n    }\n    __syncthreads();\n}", "        }\n    }\n}")]),
    ("no wait for a stage that stays FP8", FP8, PIPELINE, &[("wait_for_phase(filled_barrier(shared, stage), ring.parity);", "")]),
    ("no barrier after the next work is told", FP8, PIPELINE, &[("atomicAdd(&counters[0], 1);\n        __syncthreads();", "atomicAdd(&counters[0], 1);")]),
    ("no barrier before the next work is told", FP8_EMPTY, PIPELINE, &[("__syncthreads();  // everyone has read the last answer, and is done with the tiles", "")]),
    ("no barrier before sums take the tiles' place", GROUPS, "ladder/merge.cuh", &[("sync_compute_warps();  // everyone is done with the tiles, whose place is taken now", "")]),
    ("no barrier after sums are handed over", GROUPS, "ladder/merge.cuh", &[("    sync_compute_warps();\n    if (group > 0) return;", "    if (group > 0) return;")]),
];

/// Schedules in at least one of which a fault must show.
const SCHEDULES: u64 = 54;

/// How a fault showed: by what, in how many of how many schedules, first after so long.
struct Shown {
    kind: String,
    text: String,
    schedules: u64,
    of: u64,
    seconds: f64,
}

fn kind_of(ended: &Ended) -> Option<(String, String)> {
    match ended {
        Ended::Right(_) => None,
        Ended::Wrong(error) => Some(("wrong numbers".into(), format!("relative L2 {error:.2}"))),
        Ended::Found(found) => {
            let text = found[0].text.split('\n').take(3).map(str::trim).collect::<Vec<_>>().join("; ");
            Some((found[0].kind.clone(), text))
        }
        Ended::Failed(error) => Some(("error".into(), error.clone())),
    }
}

/// Tries a fault under schedules until one shows it, or under all of them.
fn try_fault((_, target, file, edits): &Fault, all: bool) -> Option<Shown> {
    let edit = |(before, after): &(&str, &str)| Edit {
        file: (*file).to_owned(),
        before: (*before).to_owned(),
        after: (*after).to_owned(),
    };
    simulate::plant(target.main, edits.iter().map(edit).collect());
    let bench = Bench::new(target.variant, target.shape, target.mask);
    let start = Instant::now();
    let mut shown: Option<Shown> = None;
    for seed in 0..SCHEDULES {
        let schedule = Schedule { limit_seconds: Some(20.0), ..Schedule::of_seed(seed) };
        if let Some((kind, text)) = kind_of(&bench.run(target.launches, schedule)) {
            let seconds = start.elapsed().as_secs_f64();
            let first = shown.get_or_insert(Shown { kind, text, schedules: 0, of: 0, seconds });
            first.schedules += 1;
            if !all {
                break;
            }
        }
    }
    simulate::plant(target.main, Vec::new());
    shown.map(|shown| Shown { of: if all { SCHEDULES } else { 0 }, ..shown })
}

/// The first fault as it was found in the kernel, and the kernel without it.
#[test]
fn no_schedule_hangs_where_stages_go_unused() {
    if !simulator() {
        return;
    }
    let bench = Bench::new(CAUSAL.variant, CAUSAL.shape, CAUSAL.mask);
    let schedule = |seed| Schedule { races: false, ..Schedule::of_seed(seed) };
    let ended = (0..SCHEDULES).map(|seed| (seed, bench.run(1, schedule(seed))));
    let wrong: Vec<_> = ended.filter(|(_, ended)| !matches!(ended, Ended::Right(_))).collect();
    assert_eq!(wrong, Vec::new());
}

const PART: &str = "EIGHTFOLD_FAULTS_PART";

fn parts() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from)
}

/// One part of the faults, in a process of its own; each a line of a table.
#[test]
#[ignore = "run by the test below, once for each part"]
fn a_part_of_the_faults() {
    let part: usize = std::env::var(PART).unwrap().parse().unwrap();
    assert!(simulator());
    for fault in FAULTS.iter().skip(part).step_by(parts()) {
        let (name, target, ..) = fault;
        let what = target.variant.split([',', ':']).next().unwrap();
        match try_fault(fault, record_folder().is_some()) {
            Some(Shown { kind, text, schedules, of, seconds }) => {
                let count = if of > 0 { format!("{schedules} of {of}") } else { format!("{schedules}") };
                println!(
                    "FAULT {name} | {what}, {} | {kind}: {} | {count} | {seconds:.1}",
                    target.shape,
                    text.replace('|', "/")
                );
            }
            None => println!("MISSED {name} | {what}, {}", target.shape),
        }
    }
}

#[test]
fn every_planted_fault_is_found() {
    if !simulator() {
        return;
    }
    let start = |part: usize| {
        let arguments = ["--exact", "faults::a_part_of_the_faults", "--ignored", "--nocapture", "--test-threads=1"];
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(arguments).env(PART, part.to_string()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let children: Vec<_> = (0..parts()).map(start).collect();
    let mut told = Vec::new();
    for child in children {
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
        let line = |line: &str| line.find("FAULT ").or_else(|| line.find("MISSED ")).map(|at| line[at..].to_owned());
        told.push(text.lines().filter_map(line).collect::<Vec<_>>());
    }
    // As they are listed above.
    let parts = told.len();
    let lines: Vec<String> = (0..FAULTS.len()).filter_map(|i| told[i % parts].get(i / parts).cloned()).collect();
    let missed: Vec<_> = lines.iter().filter(|line| line.starts_with("MISSED")).collect();
    assert_eq!(missed, Vec::<&String>::new());
    assert_eq!(lines.len(), FAULTS.len());
    if let Some(folder) = record_folder() {
        let mut table = format!(
            "{}\n\nfault | where | found | schedules | seconds to the first\n--- | --- | --- | --- | ---\n",
            provenance()
        );
        for line in &lines {
            writeln!(table, "{}", line.trim_start_matches("FAULT ")).unwrap();
        }
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("faults.md"), table).unwrap();
    }
}
