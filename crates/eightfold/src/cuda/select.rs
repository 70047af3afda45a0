//! Which CUDA kernel for which problem.

use super::family::{Candidate, REGISTRY, Why};
use super::{Arch, Config};
use crate::error::{Error, Result};
use crate::operands::Operands;
use crate::problem::Problem;
use crate::select::Considered;

/// The first candidate that can take the tensors; if none can, the first says why.
pub(crate) fn select(problem: &Problem, operands: &Operands, arch: Arch, multiprocessors: usize) -> Result<Config> {
    let mut refusal = None;
    for (config, ..) in candidates(&problem.deciding(), operands, arch, multiprocessors) {
        match config.check_problem(problem, operands, arch) {
            Ok(()) => return Ok(config),
            Err(error) => refusal = refusal.or(Some(error)),
        }
    }
    Err(refusal.unwrap_or_else(|| Error::unavailable("CUDA", "no kernel was considered", "use the CPU")))
}

/// Every candidate, and what becomes of it.
pub(crate) fn consider(problem: &Problem, operands: &Operands, arch: Arch, multiprocessors: usize) -> Vec<Considered> {
    let mut considered: Vec<Considered> = Vec::new();
    for (config, why, reason) in candidates(&problem.deciding(), operands, arch, multiprocessors) {
        let chosen = considered.iter().any(|one| one.chosen);
        // What is for odd tensors is told where the tensors are odd.
        if considered.iter().any(|one| one.variant == config.into()) || (chosen && why == Why::OddTensors) {
            continue;
        }
        let (chosen, reason) = match config.check_problem(problem, operands, arch) {
            Ok(()) if chosen => (false, format!("if nothing before it could run: {reason}")),
            Ok(()) => (true, reason.to_string()),
            Err(error) => (false, error.to_string()),
        };
        considered.push(Considered { variant: config.into(), chosen, reason });
    }
    considered
}

/// What may run with tensors like these, the best first: families from the newest to the oldest.
fn candidates(
    problem: &Problem,
    operands: &Operands,
    arch: Arch,
    multiprocessors: usize,
) -> impl Iterator<Item = Candidate> {
    REGISTRY.iter().rev().flat_map(move |family| (family.candidates)(problem, operands, arch, multiprocessors))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::Shape;
    use crate::tensor::{Granularity, Layout};

    fn serving(problem: &Problem, operands: &Operands, arch: Arch) -> Vec<Config> {
        let candidates = candidates(problem, operands, arch, 132).map(|(config, ..)| config);
        candidates.filter(|config| config.check_problem(problem, operands, arch).is_ok()).collect()
    }

    #[test]
    fn values_are_served_in_every_layout() {
        for head_dim in [64, 128] {
            for len in [32, 512, 4096] {
                let problem = Problem::new(Shape::new(1, 8, len, head_dim)).unwrap();
                for layout in [Layout::Bhsd, Layout::Bhds, Layout::Packed] {
                    let mut operands = Operands::assumed(&problem);
                    operands.v.layout = layout;
                    let serving = |arch| serving(&problem, &operands, arch);
                    assert!(matches!(serving(Arch::Sm90)[0], Config::Hopper(_)));
                    let by_ladder = serving(Arch::Sm90).iter().any(|config| matches!(config, Config::Ladder(_)));
                    assert_eq!(by_ladder, layout != Layout::Packed, "{layout}");
                    assert_eq!(serving(Arch::Sm89).is_empty(), layout == Layout::Packed, "{layout}");
                }
            }
        }
    }

    #[test]
    fn scales_that_change_often_are_served_with_smaller_tiles() {
        let problem = Problem::new(Shape::new(4, 16, 4096, 64)).unwrap();
        let mut operands = Operands::assumed(&problem);
        operands.k.granularity = Granularity::Block { rows: 64 };
        let Ok(Config::Hopper(config)) = select(&problem, &operands, Arch::Sm90, 132) else { panic!("not hopper") };
        assert_eq!(config.tile_keys, 64);
        let considered = consider(&problem, &operands, Arch::Sm90, 132);
        assert!(considered[0].reason.starts_with("k scales: a scale for every 64 rows"), "{}", considered[0].reason);
        assert_eq!(
            considered.iter().find(|one| one.chosen).unwrap().reason,
            "for scales that change within larger tiles"
        );
    }
}
