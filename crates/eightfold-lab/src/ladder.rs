//! The main job: every stage of a ladder on every shape.

use crate::examine::{Examination, Examined};
use crate::gates::{Thoroughness, Thresholds, prepare_all, quantizer, standard_cases};
use crate::kernel::Kernel;
use crate::measure::Manner;
use crate::peers::Torch;
use crate::progress::{Part, Progress};
use crate::record::{Entry, Group};
use crate::shapes::NamedShape;
use eightfold::{Error, Mask, OutputFormat, Problem, Result};

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
    /// What results are written as.
    pub output: OutputFormat,
    /// The limits and the timing policy.
    pub thresholds: &'a Thresholds,
    /// Who is measured in the same run.
    pub torch: Option<&'a mut Torch>,
    /// Who was to be measured and could not be had.
    pub missing: Option<Entry>,
}

impl Climb<'_> {
    /// Takes every stage through its gates and timing on every shape, and gives each shape's group to `keep` as soon as
    /// it is done. The error, if any, is why the climb ended early.
    pub fn run(
        mut self,
        progress: &mut dyn Progress,
        keep: &mut dyn FnMut(Group) -> Result<()>,
    ) -> Result<Option<Error>> {
        let thoroughness = match self.kernel {
            Kernel::Cpu => Thoroughness::Quick,
            Kernel::Ladder | Kernel::Hopper => Thoroughness::ThreeSeeds,
        };
        let mut rungs = Vec::new();
        for shape in self.shapes {
            rungs.push((shape, Problem::new(shape.shape)?.with_mask(self.mask).with_output_format(self.output)));
        }
        let total: f64 = rungs.iter().map(|(_, problem)| problem.flop()).sum();
        let mut done = 0.0;
        for (shape, problem) in rungs {
            let (start, share) = (done / total, problem.flop() / total);
            progress.at(start, &format!("{} {problem}: preparing inputs and references", shape.name));
            let candidates = self.kernel.stages(shape.shape.head_dim, self.mask);
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
                max_gate_seconds: match self.kernel {
                    Kernel::Cpu => MAX_CPU_GATE_SECONDS,
                    Kernel::Ladder | Kernel::Hopper => f64::INFINITY,
                },
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
