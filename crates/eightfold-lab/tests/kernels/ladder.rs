//! Every stage of the CUDA ladder.

use crate::support::{compiler, count_of_draws, failures, problem, specialised};
use eightfold::cuda::Arch;
use eightfold::cuda::Specialisation;
use eightfold::cuda::ladder::{ARCHS, Config, STAGES, choose, draws};
use eightfold::{Fp8Format, Granularity, Mask, OutputFormat};
use eightfold_lab::compile::compile_all;

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
                config
                    .check_problem(&problem, Granularity::Head, Granularity::Head, *arch)
                    .unwrap_or_else(|error| panic!("{name}: {error}"));
                jobs.push((name, specialised(head_dim, mask).program(config), *arch));
            }
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
    let fitting = draws(7).zip(kinds.iter().cycle()).filter(|(config, (arch, head_dim, mask))| {
        config.check_problem(&problem(*head_dim, *mask), Granularity::Head, Granularity::Head, *arch).is_ok()
    });
    let jobs: Vec<_> = fitting
        .take(count)
        .map(|(config, (arch, head_dim, mask))| (specialised(*head_dim, *mask).program(config), *arch))
        .collect();
    for ((program, arch), result) in jobs.iter().zip(compile_all(compiler, &jobs)) {
        result.unwrap_or_else(|error| panic!("{:?} for {arch}: {error}", program.defines));
    }
}
