//! The main job: every stage of a ladder on every shape.

use crate::examine::{Candidate, Examination, Examined};
use crate::gates::{Thoroughness, Thresholds, prepare_all, quantizer, standard_cases};
use crate::kernel::Kernel;
use crate::measure::Manner;
use crate::peers::Torch;
use crate::progress::{Part, Progress};
use crate::record::{Entry, Group};
use crate::shapes::NamedShape;
use eightfold::{Accuracy, Error, Mask, OutputFormat, Problem, Result};

/// The whole job has to end within two minutes on two cores, and the scalar baseline of the CPU alone takes several
/// seconds per run on the longest shape.
const MAX_CPU_GATE_SECONDS: f64 = 10.0;

/// What to climb, and beside whom.
pub struct Climb<'a> {
    /// The kernel whose stages are climbed.
    pub kernel: Kernel,
    /// On which shapes.
    pub shapes: &'a [NamedShape],
    /// Under which mask.
    pub mask: Mask,
    /// Whether what is picked for each accuracy mode on a Hopper GPU stands beside the stages.
    pub flagship: bool,
    /// What results are written as.
    pub output: OutputFormat,
    /// The limits and the timing policy.
    pub thresholds: &'a Thresholds,
    /// Who is measured in the same run.
    pub torch: Option<&'a mut Torch>,
    /// Who was to be measured and could not be had.
    pub missing: Option<Entry>,
}

/// What is picked for a problem in each accuracy mode, where that is the kernel for Hopper.
fn flagship(problem: &Problem, planned: &dyn Fn(&Problem) -> Result<Candidate>) -> Result<Vec<Candidate>> {
    let mut rows = Vec::new();
    for accuracy in Accuracy::ALL {
        let row = planned(&problem.with_accuracy(*accuracy))?;
        if row.variant.kernel() == Kernel::HOPPER.to_string() {
            rows.push(Candidate { name: format!("{} {accuracy}", row.name), ..row });
        }
    }
    Ok(rows)
}

impl Climb<'_> {
    /// Takes every stage through its gates and timing on every shape, and gives each shape's group to `keep` as soon as
    /// it is done. The error, if any, is why the climb ended early.
    pub fn run(
        mut self,
        progress: &mut dyn Progress,
        keep: &mut dyn FnMut(Group) -> Result<()>,
    ) -> Result<Option<Error>> {
        let on_gpu = self.kernel.on_gpu();
        let thoroughness = if on_gpu { Thoroughness::ThreeSeeds } else { Thoroughness::Quick };
        let mut rungs = Vec::new();
        for shape in self.shapes {
            rungs.push((shape, Problem::new(shape.shape)?.with_mask(self.mask).with_output_format(self.output)));
        }
        let total: f64 = rungs.iter().map(|(_, problem)| problem.flop()).sum();
        let mut done = 0.0;
        for (shape, problem) in rungs {
            let (start, share) = (done / total, problem.flop() / total);
            progress.at(start, &format!("{} {problem}: preparing inputs and references", shape.name));
            let mut candidates = self.kernel.stages(shape.shape.head_dim, self.mask);
            if self.flagship {
                candidates.extend(flagship(&problem, &|problem| Candidate::planned(problem))?);
            }
            let quantizer = quantizer(&problem, &candidates);
            let cases = standard_cases(&problem, thoroughness);
            let cases = prepare_all(&cases, &quantizer, &self.thresholds.correctness.reference)?;
            let examination = Examination {
                shape: &shape.name,
                cases: &cases,
                candidates: &candidates,
                thresholds: self.thresholds,
                timed: Some(Manner::default()),
                ladder: self.kernel.climbs(),
                sweep: false,
                max_gate_seconds: if on_gpu { f64::INFINITY } else { MAX_CPU_GATE_SECONDS },
            };
            let problem = cases.first().map_or(problem, |case| case.problem);
            let part = &mut Part { whole: progress, start, share };
            let Examined { mut group, lost } = examination.run(&problem, self.torch.as_deref_mut(), part);
            group.entries.extend(self.missing.clone());
            keep(group)?;
            if lost.is_some() {
                return Ok(lost);
            }
            done += problem.flop();
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use eightfold::cuda::Arch;
    use eightfold::{Operands, Target, select};

    #[test]
    fn each_accuracy_mode_has_a_row_where_the_plan_picks_the_kernel_for_hopper() {
        let problem = Problem::new("1,8,512,64".parse().unwrap()).unwrap();
        let on = |arch| {
            move |problem: &Problem| {
                let variant = select(problem, &Operands::assumed(problem), Target::cuda(arch, 132))?;
                Ok(Candidate::new(variant.kernel(), variant).held_to(problem.accuracy()))
            }
        };
        let rows = flagship(&problem, &on(Arch::Sm90)).unwrap();
        let names: Vec<_> = rows.iter().map(|row| row.name.as_str()).collect();
        assert_eq!(names, ["hopper fast", "hopper balanced", "hopper exact-exp", "hopper precise"]);
        assert!(rows.iter().all(|row| row.accuracy == row.variant.accuracy()));
        assert_eq!(flagship(&problem, &on(Arch::Sm89)).unwrap(), []);
    }
}
