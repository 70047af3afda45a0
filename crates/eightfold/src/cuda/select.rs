//! Which CUDA kernel for which problem.

use super::{Arch, Config, hopper, ladder};
use crate::error::{Error, Result};
use crate::operands::Operands;
use crate::problem::Problem;
use crate::select::Considered;
use crate::tensor::Layout;
use std::fmt;

/// Why a config is a candidate.
#[derive(Debug, Clone, Copy)]
enum Why {
    Hopper(hopper::Reason),
    Ladder(&'static str),
    SmallerTiles,
    Stage,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Hopper(reason) => reason.fmt(f),
            Why::Ladder(reason) => f.write_str(reason),
            Why::SmallerTiles => f.write_str("for scales that change within larger tiles"),
            Why::Stage => f.write_str("for tensors that nothing before it takes"),
        }
    }
}

/// The first candidate that can take the tensors; if none can, the first says why.
pub(crate) fn select(problem: &Problem, operands: &Operands, arch: Arch, multiprocessors: usize) -> Result<Config> {
    let mut refusal = None;
    for (config, _) in candidates(&problem.deciding(), operands, arch, multiprocessors) {
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
    for (config, why) in candidates(&problem.deciding(), operands, arch, multiprocessors) {
        let chosen = considered.iter().any(|one| one.chosen);
        // What is for odd tensors is told where the tensors are odd.
        let is_best_of_its_family = matches!(why, Why::Hopper(_) | Why::Ladder(_));
        if considered.iter().any(|one| one.variant == config.into()) || (chosen && !is_best_of_its_family) {
            continue;
        }
        let (chosen, reason) = match config.check_problem(problem, operands, arch) {
            Ok(()) if chosen => (false, format!("if nothing before it could run: {why}")),
            Ok(()) => (true, why.to_string()),
            Err(error) => (false, error.to_string()),
        };
        considered.push(Considered { variant: config.into(), chosen, reason });
    }
    considered
}

/// What may run with tensors like these, the best first.
fn candidates(
    problem: &Problem,
    operands: &Operands,
    arch: Arch,
    multiprocessors: usize,
) -> impl Iterator<Item = (Config, Why)> {
    let layout = operands.v.layout;
    // Where nothing else reads the layout, the hopper kernel says that it is not for this device.
    let with_hopper = hopper::target(arch).is_ok() || layout == Layout::BhdsExchanged;
    let hopper = with_hopper.then(|| hopper_candidates(problem, operands, multiprocessors)).into_iter().flatten();
    let with_ladder = layout != Layout::BhdsExchanged;
    let ladder = with_ladder.then(|| ladder_candidates(problem, multiprocessors, layout)).into_iter().flatten();
    let hopper = hopper.map(|(config, why)| (Config::Hopper(config), why));
    hopper.chain(ladder.map(|(config, why)| (Config::Ladder(config), why)))
}

/// The chosen config, then smaller tiles for scales that change within its own.
fn hopper_candidates(problem: &Problem, operands: &Operands, multiprocessors: usize) -> [(hopper::Config, Why); 3] {
    let (best, reason) = hopper::choose(problem, operands, multiprocessors);
    let smaller = |tile_keys: usize| hopper::Config {
        tile_keys,
        flight: best.flight.min(tile_keys / 32),
        stages: best.stages.max(2),
        ..best.streamed()
    };
    [(best, Why::Hopper(reason)), (smaller(128), Why::SmallerTiles), (smaller(64), Why::SmallerTiles)]
}

/// What reads V in this layout, the best first: then, for scales that change within its tiles, smaller ones, and the stages from
/// the last to the first.
fn ladder_candidates(
    problem: &Problem,
    multiprocessors: usize,
    layout: Layout,
) -> impl Iterator<Item = (ladder::Config, Why)> {
    use ladder::{Config, Pv, STAGES};
    let (best, reason) = ladder::choose(problem, multiprocessors);
    let head_dim = problem.shape().head_dim;
    let stages = STAGES.iter().rev().map(move |stage| (stage.at(head_dim), Why::Stage));
    let small = [
        (best, Why::Ladder(reason)),
        (Config { tile_keys: 64, ..best }, Why::SmallerTiles),
        (Config { tile_keys: 32, key_groups: 1, ..best }, Why::SmallerTiles),
    ];
    let transposed = layout.is_transposed();
    let is_read = move |config: &Config| config.value_layout().is_transposed() == transposed;
    let reads = move |(config, why): (Config, Why)| match is_read(&config) || transposed {
        true => (config, why),
        false => (Config { pv: Pv::Mma, ..config }, why),
    };
    small.into_iter().chain(stages).map(reads).filter(move |(config, _)| is_read(config) && config.check().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::Shape;
    use crate::tensor::Granularity;

    fn serving(problem: &Problem, operands: &Operands, arch: Arch) -> Vec<Config> {
        let candidates = candidates(problem, operands, arch, 132).map(|(config, _)| config);
        candidates.filter(|config| config.check_problem(problem, operands, arch).is_ok()).collect()
    }

    #[test]
    fn values_are_served_in_every_layout() {
        for head_dim in [64, 128] {
            for len in [32, 512, 4096] {
                let problem = Problem::new(Shape::new(1, 8, len, head_dim)).unwrap();
                for layout in [Layout::Bhsd, Layout::Bhds, Layout::BhdsExchanged] {
                    let mut operands = Operands::assumed(&problem);
                    operands.v.layout = layout;
                    let serving = |arch| serving(&problem, &operands, arch);
                    assert!(matches!(serving(Arch::Sm90)[0], Config::Hopper(_)));
                    let by_ladder = serving(Arch::Sm90).iter().any(|config| matches!(config, Config::Ladder(_)));
                    assert_eq!(by_ladder, layout != Layout::BhdsExchanged, "{layout}");
                    assert_eq!(serving(Arch::Sm89).is_empty(), layout == Layout::BhdsExchanged, "{layout}");
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
