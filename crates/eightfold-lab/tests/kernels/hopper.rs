//! Every stage of the hopper kernel.

use crate::support::{compiler, count_of_draws, early_touches, failures, problem, specialised};
use eightfold::cuda::{Arch, Operands};
use eightfold::lab::Specialisation;
use eightfold::lab::compile::Cubin;
use eightfold::lab::hopper::{ARCHS, STAGES, choose};
use eightfold::{Accuracy, Fp8Format, Mask, OutputFormat, Problem, Shape, Window};
use eightfold_lab::compile::compile_all;
use eightfold_lab::kernel::Kernel;
use object::{Object, ObjectSection};
use std::collections::HashMap;
use std::fs;
use std::path::Path;

#[test]
fn every_stage_compiles_without_spills_or_loss() {
    let Some(compiler) = compiler() else { return };
    let mut jobs = Vec::new();
    for stage in STAGES {
        for arch in ARCHS {
            for head_dim in [64, 128] {
                for mask in [Mask::None, Mask::Causal] {
                    let usual = specialised(head_dim, mask);
                    // What is compiled in beside, in turn: a log-sum-exp and a tail of keys, V with its means taken from it.
                    let beside = match mask {
                        Mask::Causal => Specialisation { centred: true, ..usual },
                        _ => Specialisation { lse: true, key_len: 4097, ..usual },
                    };
                    for kind in [usual, beside] {
                        jobs.push((
                            format!("{} {arch} {kind:?}", stage.name),
                            kind.program(stage.at(head_dim, mask)),
                            *arch,
                        ));
                    }
                }
            }
        }
    }
    let failures = failures(compiler, jobs);
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// What a problem may ask for beyond the usual.
#[test]
fn every_kind_of_problem_compiles() {
    let Some(compiler) = compiler() else { return };
    let mut jobs = Vec::new();
    for (name, head_dim) in [("fast", 128), ("precise", 64)] {
        let stage = STAGES.iter().find(|stage| stage.name == name).unwrap();
        let usual = specialised(head_dim, Mask::Causal);
        let kinds = [
            Specialisation { input: Fp8Format::E5m2, ..usual },
            Specialisation { output: OutputFormat::F16, key_blocks: true, ..usual },
            Specialisation { output: OutputFormat::Bf16, value_blocks: true, ..usual },
            Specialisation { mask: Mask::None, key_len: 4097, ..usual },
            Specialisation { key_len: 300, ..usual },
            Specialisation { window: true, sinks: true, lse: true, ..usual },
            Specialisation { mask: Mask::None, window: true, centred: true, ..usual },
        ];
        for kind in kinds {
            jobs.push((format!("{name} {kind:?}"), kind.program(stage.at(head_dim, kind.mask)), Arch::Sm90a));
        }
        // The debug mode may spill, too; it must compile.
        let dumping = Specialisation { dump: true, ..usual };
        compiler
            .compile(&dumping.program(stage.at(head_dim, dumping.mask)), Arch::Sm90a)
            .unwrap_or_else(|error| panic!("{name} dump: {error}"));
        // Blocks of scales everywhere may spill a word; they must compile.
        let blocks = Specialisation { query_blocks: true, key_blocks: true, value_blocks: true, ..usual };
        compiler
            .compile(&blocks.program(stage.at(head_dim, blocks.mask)), Arch::Sm90a)
            .unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    let failures = failures(compiler, jobs);
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Every regime of the plan, for codes of small and of wide range.
#[test]
fn whatever_is_chosen_compiles_without_spills_or_loss() {
    let Some(compiler) = compiler() else { return };
    let decode = Shape::new(1, 32, 1, 128).with_kv_heads(4).with_key_len(8192);
    let large = [64, 128].map(|head_dim| Shape::new(4, 16, 4096, head_dim));
    let small = [Shape::new(1, 8, 32, 64), Shape::new(1, 8, 200, 128)];
    let mission = [64, 128].map(|head_dim| Shape::new(1, 8, 512, head_dim));
    let between = [Shape::new(1, 8, 1000, 64), Shape::new(1, 8, 1000, 128), Shape::new(2, 8, 2048, 64)];
    let shapes = [&small[..], &mission, &between, &large, &[decode]].concat();
    let mut jobs = HashMap::new();
    for (accuracy, mask) in
        [(Accuracy::Fast, Mask::None), (Accuracy::Balanced, Mask::Causal), (Accuracy::Precise, Mask::Causal)]
    {
        for shape in &shapes {
            for largest_code in [16.0, 448.0] {
                let more = mask == Mask::Causal;
                let problem = Problem::new(*shape).unwrap().with_accuracy(accuracy).with_mask(mask).with_lse(more);
                let mut operands = Operands::assumed(&problem);
                operands.v.centred = more;
                operands.q.largest_code = largest_code;
                let (config, _) = choose(&problem, &operands, 132);
                let program = operands.specialisation(&problem).program(config);
                jobs.insert(program, format!("{problem} {config}"));
            }
        }
    }
    let jobs: Vec<_> = jobs.into_iter().map(|(program, name)| (name, program, Arch::Sm90a)).collect();
    let early_touches = early_touches(compiler, &jobs);
    assert!(early_touches.is_empty(), "{}", early_touches.join("\n"));
    let failures = failures(compiler, jobs);
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Heads that have tiles of their own beside 64 and 128, and V of other channels; plain, and with all that scores may have.
#[test]
fn whatever_is_chosen_for_other_heads_compiles_without_spills_or_loss() {
    let Some(compiler) = compiler() else { return };
    let mut jobs = HashMap::new();
    for (index, (head_dim, value_dim)) in
        [(32, 32), (96, 96), (192, 192), (192, 128), (256, 256)].into_iter().enumerate()
    {
        let decode = Shape::new(1, 32, 1, head_dim).with_kv_heads(4).with_key_len(8192);
        let shapes = [Shape::new(4, 16, 4096, head_dim), Shape::new(1, 8, 200, head_dim), decode];
        for (turn, accuracy) in Accuracy::ALL.iter().enumerate() {
            for (place, shape) in shapes.into_iter().enumerate() {
                let mask = [Mask::None, Mask::Causal][(index + turn + place) % 2];
                let problem = Problem::new(shape).unwrap().with_value_dim(value_dim).unwrap();
                let plain = problem.with_accuracy(*accuracy).with_mask(mask).with_lse(true);
                let scored = plain.with_window(Window::new(Some(1000), None)).with_softcap(50.0).unwrap().with_sinks();
                let problem = if (index + turn) % 2 == 0 || place == 2 { plain } else { scored };
                let operands = Operands::assumed(&problem);
                let (config, _) = choose(&problem, &operands, 132);
                jobs.insert(operands.specialisation(&problem).program(config), format!("{problem} {config}"));
            }
        }
    }
    let jobs: Vec<_> = jobs.into_iter().map(|(program, name)| (name, program, Arch::Sm90a)).collect();
    let early_touches = early_touches(compiler, &jobs);
    assert!(early_touches.is_empty(), "{}", early_touches.join("\n"));
    let failures = failures(compiler, jobs);
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Results of 16 bits change places within a quad before they are stored. Where the compiler makes a choice between words into
/// two bodies of code, the lanes of a warp go different ways, and each shuffle gathers them first: one such costs as much as
/// dozens of others, and kernels for few keys took twice as long.
#[test]
fn no_shuffle_gathers_a_parted_warp() {
    let Some(compiler) = compiler() else { return };
    let shapes = [(8, 32, 64), (8, 200, 128), (32, 256, 128), (8, 512, 64), (64, 4096, 128)];
    let mut jobs = Vec::new();
    for (heads, len, head_dim) in shapes {
        for largest_code in [16.0, 448.0] {
            let problem = Problem::new(Shape::new(1, heads, len, head_dim)).unwrap();
            let problem = problem.with_output_format(OutputFormat::Bf16);
            let mut operands = Operands::assumed(&problem);
            operands.k.largest_code = largest_code;
            let (config, _) = choose(&problem, &operands, 132);
            jobs.push((operands.specialisation(&problem).program(config), Arch::Sm90a));
        }
    }
    for ((program, _), cubin) in jobs.iter().zip(compile_all(compiler, &jobs)) {
        assert_eq!(gathering_instructions(&cubin.unwrap().cubin), 0, "{:?}", program.defines);
    }
}

/// A launch may start before the last one has ended, and then waits for it before it reads what that one may have written.
/// Loads through the read-only cache are moved before the wait, since to the compiler nothing can change what they read: they
/// are for the list of causal tiles alone, which is complete before the launch is made.
#[test]
fn nothing_that_a_launch_writes_is_read_through_the_read_only_cache() {
    let kernels = Path::new(env!("CARGO_MANIFEST_DIR")).join("../eightfold/kernels");
    let files =
        ["attention", "hopper", "ptx"].into_iter().flat_map(|folder| fs::read_dir(kernels.join(folder)).unwrap());
    // The quantiser's loads, which no file of the kernel reaches.
    let paths = files.map(|file| file.unwrap().path()).filter(|path| !path.ends_with("ptx/load.cuh"));
    let texts = paths.map(|path| fs::read_to_string(path).unwrap()).collect::<String>();
    assert!(!texts.contains("ptx/load.cuh"));
    let through_the_cache = |line: &&str| ["__ldg", "global.nc", "__restrict__"].iter().any(|load| line.contains(load));
    let lines: Vec<_> = texts.lines().filter(through_the_cache).map(str::trim).collect();
    assert_eq!(
        lines,
        ["if (problem.tile_list) return __ldg(problem.tile_list + blockIdx.x * problem.tile_list_len + round);"]
    );
}

/// Instructions of machine code for Hopper that gather lanes of a warp before a shuffle.
fn gathering_instructions(cubin: &Cubin) -> usize {
    const WARPSYNC: u64 = 0x348; // in the lowest 12 of an instruction's 128 bits
    let file = object::File::parse(&*cubin.image).unwrap();
    let code = file.section_by_name(&format!(".text.{}", cubin.entry)).unwrap().data().unwrap();
    let low = |instruction: &[u8]| u64::from_le_bytes(instruction[..8].try_into().unwrap());
    code.chunks_exact(16).filter(|instruction| low(instruction) & 0xfff == WARPSYNC).count()
}

/// Knobs in combinations that no stage has. They may spill, which is for the gate to find, but must compile, and take the
/// shared memory that the host counts.
#[test]
fn configs_drawn_at_random_compile() {
    let Some(compiler) = compiler() else { return };
    let kinds = [(64, Mask::None), (128, Mask::Causal), (64, Mask::Causal), (128, Mask::None)];
    let drawn = Kernel::HOPPER.draws(7).filter_map(|variant| variant.on_device());
    let fitting = drawn.zip(kinds.iter().cycle()).filter(|(config, (head_dim, mask))| {
        let problem = problem(*head_dim, *mask);
        config.check_uploaded(&problem, &Operands::assumed(&problem), Arch::Sm90a).is_ok()
    });
    let jobs: Vec<_> = fitting
        .take(count_of_draws(8))
        .map(|(config, (head_dim, mask))| (specialised(*head_dim, *mask).program(config), Arch::Sm90a))
        .collect();
    for ((program, arch), result) in jobs.iter().zip(compile_all(compiler, &jobs)) {
        result.unwrap_or_else(|error| panic!("{:?} for {arch}: {error}", program.defines));
    }
}
