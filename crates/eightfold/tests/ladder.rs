//! Every stage of the CUDA ladder, compiled for every architecture: no device needed.

use eightfold::cuda::Arch;
use eightfold::cuda::compile::{Compiler, Program};
use eightfold::cuda::ladder::{Config, STAGES, Specialisation, draws};
use eightfold::{Fp8Format, Granularity, Mask, OutputFormat, Problem, Shape};

/// The compiler; none where there is none, unless one is required.
fn compiler() -> Option<&'static Compiler> {
    match Compiler::find() {
        Ok(compiler) => Some(compiler),
        Err(error) if std::env::var_os("EIGHTFOLD_REQUIRE_NVRTC").is_some() => panic!("{error}"),
        Err(error) => {
            eprintln!("skipped: {error}");
            None
        }
    }
}

fn problem(head_dim: usize, mask: Mask) -> Problem {
    Problem::new(Shape::new(1, 8, 512, head_dim)).unwrap().with_mask(mask)
}

fn specialised(head_dim: usize, mask: Mask) -> Specialisation {
    Specialisation::new(&problem(head_dim, mask), Granularity::Head, Granularity::Head, Granularity::Head)
}

/// Compiles all of them and returns the names of those that fail or spill.
fn failures(compiler: &Compiler, jobs: Vec<(String, Program, Arch)>) -> Vec<String> {
    let programs: Vec<(Program, Arch)> = jobs.iter().map(|(_, program, arch)| (program.clone(), *arch)).collect();
    let results = compiler.compile_all(&programs);
    let failure = |((name, _, _), result): (&(String, Program, Arch), _)| match result {
        Ok(cubin) => {
            let eightfold::cuda::compile::Cubin { resources, .. } = cubin;
            let sound = resources.spill_store_bytes == 0 && resources.stack_bytes == 0 && resources.warnings.is_empty();
            (!sound).then(|| format!("{name}: {resources:?}"))
        }
        Err(error) => Some(format!("{name}: {error}")),
    };
    jobs.iter().zip(results).filter_map(failure).collect()
}

#[test]
fn every_stage_compiles_without_spills_for_every_architecture() {
    let Some(compiler) = compiler() else { return };
    let mut jobs = Vec::new();
    for stage in STAGES {
        for arch in Arch::ALL {
            for head_dim in [64, 128] {
                for mask in [Mask::None, Mask::Causal] {
                    let config = stage.at(head_dim);
                    config
                        .check_problem(&problem(head_dim, mask), Granularity::Head, Granularity::Head, *arch)
                        .unwrap_or_else(|error| panic!("{} {head_dim} {arch}: {error}", stage.name));
                    let program = specialised(head_dim, mask).program(&config);
                    jobs.push((format!("{} {head_dim} {mask:?} {arch}", stage.name), program, *arch));
                }
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
            jobs.push((format!("{name} {kind:?}"), kind.program(&config), Arch::Sm89));
        }
        // The debug mode may spill; it must compile.
        let dumping = Specialisation { dump: true, ..usual };
        compiler.compile(&dumping.program(&config), Arch::Sm90).unwrap_or_else(|error| panic!("{name} dump: {error}"));
    }
    let failures = failures(compiler, jobs);
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Knobs in combinations that no stage has. They may spill, which is for the gate to find, but must compile, and take the
/// shared memory that the host counts.
#[test]
fn configs_drawn_at_random_compile() {
    let Some(compiler) = compiler() else { return };
    let count: usize = std::env::var("EIGHTFOLD_DRAWS").ok().and_then(|count| count.parse().ok()).unwrap_or(16);
    // Architectures, head dims and masks take turns with every config.
    let kinds: Vec<_> = Arch::ALL
        .iter()
        .flat_map(|arch| [64, 128].map(|head_dim| (*arch, head_dim)))
        .flat_map(|(arch, head_dim)| [Mask::None, Mask::Causal].map(|mask| (arch, head_dim, mask)))
        .collect();
    let fitting = draws(7).zip(kinds.iter().cycle()).filter(|(config, (arch, head_dim, mask))| {
        config.check_problem(&problem(*head_dim, *mask), Granularity::Head, Granularity::Head, *arch).is_ok()
    });
    let jobs: Vec<_> = fitting
        .take(count)
        .map(|(config, (arch, head_dim, mask))| (specialised(*head_dim, *mask).program(&config), *arch))
        .collect();
    for ((program, arch), result) in jobs.iter().zip(compiler.compile_all(&jobs)) {
        result.unwrap_or_else(|error| panic!("{:?} for {arch}: {error}", program.defines));
    }
}
