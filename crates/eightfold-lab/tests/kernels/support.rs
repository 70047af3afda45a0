//! A compiler to test with, and what is compiled.

use eightfold::cuda::Arch;
use eightfold::lab::Specialisation;
use eightfold::lab::compile::{Compiler, Program};
use eightfold::{Granularity, Mask, Problem, Shape};
use eightfold_lab::compile::early_touches as early_touches_in;
use eightfold_lab::compile::{Compiled, Disassembler, compile_all};
use eightfold_lab::environment;
use rayon::prelude::*;

/// The compiler; none where there is none, unless one is required.
pub fn compiler() -> Option<&'static Compiler> {
    // What was compiled before, by these tests or by the command, is not compiled again.
    match environment::compiler() {
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

/// Where there is a disassembler: what it says of accumulators that are touched before the wait for their product. Of no kernel
/// may there be any, and of each there must be some as soon as its waits are taken out.
pub fn early_touches(compiler: &Compiler, jobs: &[(String, Program, Arch)]) -> Vec<String> {
    let tool = match Disassembler::find() {
        Ok(tool) => tool,
        Err(error) if std::env::var_os("EIGHTFOLD_REQUIRE_NVDISASM").is_some() => panic!("{error}"),
        Err(error) => {
            eprintln!("skipped: {error}");
            return Vec::new();
        }
    };
    let judge = |(name, program, arch): &(String, Program, Arch)| {
        let text = compiler.compile(program, *arch).and_then(|cubin| tool.disassemble(&cubin));
        let text = text.unwrap_or_else(|error| panic!("{name}: {error}"));
        match early_touches_in(&text) {
            Ok(touches) if touches.is_empty() => {}
            found => return Some(format!("{name}: {found:?}")),
        }
        let without_waits = text.replace("WARPGROUP.DEPBAR.LE gsb0, 0x0", "NOP");
        let found = early_touches_in(&without_waits);
        (!found.as_ref().is_ok_and(|touches| !touches.is_empty())).then(|| format!("{name} without waits: {found:?}"))
    };
    jobs.par_iter().filter_map(judge).collect()
}
