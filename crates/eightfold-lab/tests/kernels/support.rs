//! A compiler to test with, and what is compiled.

use eightfold::cuda::compile::{Compiler, Program};
use eightfold::cuda::{Arch, Specialisation};
use eightfold::{Granularity, Mask, Problem, Shape};
use eightfold_lab::compile::{Compiled, compile_all};
use eightfold_lab::environment;
use std::sync::Once;

/// The compiler; none where there is none, unless one is required.
pub fn compiler() -> Option<&'static Compiler> {
    static SETTLED: Once = Once::new();
    // What was compiled before, by these tests or by the command, is not compiled again.
    SETTLED.call_once(|| environment::settle(None).unwrap());
    match Compiler::find() {
        Ok(compiler) => Some(compiler),
        Err(error) if std::env::var_os("EIGHTFOLD_REQUIRE_NVRTC").is_some() => panic!("{error}"),
        Err(error) => {
            eprintln!("skipped: {error}");
            None
        }
    }
}

pub fn problem(head_dim: usize, mask: Mask) -> Problem {
    Problem::new(Shape::new(1, 8, 4096, head_dim)).unwrap().with_mask(mask)
}

pub fn specialised(head_dim: usize, mask: Mask) -> Specialisation {
    Specialisation::new(&problem(head_dim, mask), Granularity::Head, Granularity::Head, Granularity::Head)
}

/// Compiles all of them and returns the names of those that fail or spill.
pub fn failures(compiler: &Compiler, jobs: Vec<(String, Program, Arch)>) -> Vec<String> {
    let programs: Vec<(Program, Arch)> = jobs.iter().map(|(_, program, arch)| (program.clone(), *arch)).collect();
    let results = compile_all(compiler, &programs);
    let failure = |((name, _, _), result): (&(String, Program, Arch), _)| match result {
        Ok(Compiled { resources, .. }) => {
            let sound = resources.spill_store_bytes == 0 && resources.stack_bytes == 0 && resources.warnings.is_empty();
            (!sound).then(|| format!("{name}: {resources:?}"))
        }
        Err(error) => Some(format!("{name}: {error}")),
    };
    jobs.iter().zip(results).filter_map(failure).collect()
}

/// How many random configs are compiled: as many as `EIGHTFOLD_DRAWS` says.
pub fn count_of_draws(usual: usize) -> usize {
    std::env::var("EIGHTFOLD_DRAWS").ok().and_then(|count| count.parse().ok()).unwrap_or(usual)
}
