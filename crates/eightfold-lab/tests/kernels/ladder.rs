//! Every stage of the CUDA ladder.

use crate::support::{compiler, count_of_draws, failures, problem, specialised};
use eightfold::cuda::{Arch, Operands};
use eightfold::lab::Specialisation;
use eightfold::lab::ladder::{ARCHS, Config, STAGES, choose};
use eightfold::{Fp8Format, Mask, OutputFormat, Problem, Shape, Window};
use eightfold_lab::compile::compile_all;
use eightfold_lab::kernel::Kernel;

#[test]
fn every_stage_and_what_is_chosen_compile_without_spills_for_every_architecture() {
    let Some(compiler) = compiler() else { return };
    let mut jobs = Vec::new();
    for arch in ARCHS {
        for (head_dim, mask) in [64, 128].into_iter().flat_map(|dim| [(dim, Mask::None), (dim, Mask::Causal)]) {
            let problem = problem(head_dim, mask);
            let stages = STAGES.iter().map(|stage| (stage.name, stage.at(head_dim)));
            // On a small device and on a large one.
            let chosen = [58, 10_000].map(|multiprocessors| ("chosen", choose(&problem, multiprocessors).0));
            for (name, config) in stages.chain(chosen) {
                let name = format!("{name} {head_dim} {mask:?} {arch}");
                eightfold::lab::Config::from(config)
                    .check_uploaded(&problem, &Operands::assumed(&problem), *arch)
                    .unwrap_or_else(|error| panic!("{name}: {error}"));
                jobs.push((name, specialised(head_dim, mask).program(config), *arch));
            }
        }
    }
    let failures = failures(compiler, jobs);
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Heads that have tiles of their own beside 64 and 128, and V of other channels, with all that scores may have.
#[test]
fn every_head_dim_compiles_without_spills_for_every_architecture() {
    let Some(compiler) = compiler() else { return };
    let mut jobs = Vec::new();
    for (index, (head_dim, value_dim)) in
        [(24, 24), (96, 96), (192, 128), (192, 192), (256, 256)].into_iter().enumerate()
    {
        let shape = |len| Shape::new(1, 8, len, head_dim);
        let problem = |len| Problem::new(shape(len)).unwrap().with_value_dim(value_dim).unwrap().with_lse(true);
        let scored =
            |len| problem(len).with_window(Window::new(Some(100), Some(9))).with_softcap(50.0).unwrap().with_sinks();
        for arch in ARCHS {
            // Few keys, few queries, and many of both; without what is beyond the usual, and with.
            for (turn, len) in [64, 512, 16384].into_iter().enumerate() {
                let problem = if (index + turn) % 2 == 0 { scored(len) } else { problem(len).causal() };
                let operands = Operands::assumed(&problem);
                let (config, _) = choose(&problem, 132);
                jobs.push((
                    format!("{problem} {config} {arch}"),
                    operands.specialisation(&problem).program(config),
                    *arch,
                ));
            }
            let stage = &STAGES[(3 * index + usize::from(*arch == Arch::Sm90)) % STAGES.len()];
            let kind = Operands::assumed(&scored(512)).specialisation(&scored(512));
            let config = stage.at(head_dim.max(value_dim));
            jobs.push((format!("{} {kind:?} {arch}", stage.name), kind.program(config), *arch));
        }
    }
    let failures = failures(compiler, jobs);
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// What a problem may ask for beyond the usual, on a few stages that differ most.
#[test]
fn every_kind_of_problem_compiles() {
    let Some(compiler) = compiler() else { return };
    let mut jobs = Vec::new();
    for name in ["baseline", "fused-softmax", "fp8-mma", "split-keys", "tall-tiles"] {
        let config: Config = name.parse().unwrap();
        let usual = specialised(64, Mask::Causal);
        let kinds = [
            Specialisation { input: Fp8Format::E5m2, ..usual },
            Specialisation { output: OutputFormat::F16, key_blocks: true, ..usual },
            Specialisation { output: OutputFormat::Bf16, value_blocks: true, ..usual },
            Specialisation { query_blocks: true, key_blocks: true, value_blocks: true, ..usual },
        ];
        for kind in kinds {
            jobs.push((format!("{name} {kind:?}"), kind.program(config), Arch::Sm89));
        }
        // The debug mode may spill; it must compile.
        let dumping = Specialisation { dump: true, ..usual };
        compiler.compile(&dumping.program(config), Arch::Sm90).unwrap_or_else(|error| panic!("{name} dump: {error}"));
    }
    let failures = failures(compiler, jobs);
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Knobs in combinations that no stage has. They may spill, which is for the gate to find, but must compile, and take the
/// shared memory that the host counts.
#[test]
fn configs_drawn_at_random_compile() {
    let Some(compiler) = compiler() else { return };
    let count = count_of_draws(16);
    // Architectures, head dims and masks take turns with every config.
    let kinds: Vec<_> = ARCHS
        .iter()
        .flat_map(|arch| [64, 128].map(|head_dim| (*arch, head_dim)))
        .flat_map(|(arch, head_dim)| [Mask::None, Mask::Causal].map(|mask| (arch, head_dim, mask)))
        .collect();
    let drawn = Kernel::LADDER.draws(7).filter_map(|variant| variant.on_device());
    let fitting = drawn.zip(kinds.iter().cycle()).filter(|(config, (arch, head_dim, mask))| {
        let problem = problem(*head_dim, *mask);
        config.check_uploaded(&problem, &Operands::assumed(&problem), *arch).is_ok()
    });
    let jobs: Vec<_> = fitting
        .take(count)
        .map(|(config, (arch, head_dim, mask))| (specialised(*head_dim, *mask).program(config), *arch))
        .collect();
    for ((program, arch), result) in jobs.iter().zip(compile_all(compiler, &jobs)) {
        result.unwrap_or_else(|error| panic!("{:?} for {arch}: {error}", program.defines));
    }
}
