//! The main job: every stage of the ladder on every shape.

use crate::examine::{Candidate, Examination};
use crate::gates::{Thoroughness, Thresholds, standard_cases};
use crate::progress::{Part, Progress};
use crate::record::Group;
use crate::shapes::NamedShape;
use eightfold::quantize::Quantizer;
use eightfold::{Mask, Problem, Result, Variant, cpu};

/// The whole job has to end within two minutes on two cores, and the scalar baseline alone takes several seconds
/// per run on the longest shape.
const MAX_GATE_SECONDS: f64 = 10.0;

/// Every stage of the CPU ladder, from the baseline to the best.
pub fn stages() -> Vec<Candidate> {
    let candidate = |stage: &cpu::Stage| Candidate { name: stage.name.into(), variant: Variant::Cpu(stage.config) };
    cpu::STAGES.iter().map(candidate).collect()
}

/// Takes every stage through correctness and timing on every shape.
pub fn climb(
    shapes: &[NamedShape],
    masks: &[Mask],
    thresholds: &Thresholds,
    progress: &mut dyn Progress,
) -> Result<Vec<Group>> {
    let candidates = stages();
    let mut rungs = Vec::new();
    for mask in masks {
        for shape in shapes {
            rungs.push((shape, Problem::new(shape.shape)?.with_mask(*mask)));
        }
    }
    let total: f64 = rungs.iter().map(|(_, problem)| problem.flop()).sum();
    let mut done = 0.0;
    let mut groups = Vec::new();
    for (shape, problem) in rungs {
        let (start, share) = (done / total, problem.flop() / total);
        progress.at(start, &format!("{} {problem}: preparing inputs and references", shape.name));
        let quantizer = Quantizer::new(problem.input_format());
        let cases = standard_cases(shape.shape, problem.mask(), Thoroughness::Quick)?
            .iter()
            .map(|case| case.prepare(&quantizer, &thresholds.correctness.reference))
            .collect::<Result<Vec<_>>>()?;
        let examination = Examination {
            shape: &shape.name,
            cases: &cases,
            candidates: &candidates,
            thresholds,
            timed: true,
            max_gate_seconds: MAX_GATE_SECONDS,
        };
        let problem = cases.first().map_or(problem, |case| case.problem);
        groups.push(examination.run(&problem, None, &mut Part { whole: progress, start, share }));
        done += problem.flop();
    }
    Ok(groups)
}
