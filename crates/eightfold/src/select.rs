//! Which kernel runs, and why: one list of candidates, for whoever asks.

use crate::cpu;
use crate::cuda::{self, Arch};
use crate::error::Result;
use crate::operands::Operands;
use crate::output::Output;
use crate::problem::Problem;
use crate::report::RunReport;
use crate::tensor::Fp8Tensor;
use crate::variant::Variant;

/// What a kernel is to run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Target {
    /// This machine's CPU.
    Cpu,
    /// A CUDA device.
    #[non_exhaustive]
    Cuda {
        /// The architecture that kernels are compiled for on it.
        arch: Arch,
        /// Its streaming multiprocessors.
        multiprocessors: usize,
    },
}

impl Target {
    /// A CUDA device of this architecture with this many multiprocessors.
    pub fn cuda(arch: Arch, multiprocessors: usize) -> Target {
        Target::Cuda { arch, multiprocessors }
    }
}

/// A variant that was considered, and what was decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Considered {
    /// The variant.
    pub variant: Variant,
    /// Whether it is the one that runs.
    pub chosen: bool,
    /// Why, or why not.
    pub reason: String,
}

/// The fastest kernel for a problem with tensors like these, as exact as the problem asks for. It depends on nothing else: what
/// it names is what a call with such tensors runs.
pub fn select(problem: &Problem, operands: &Operands, target: Target) -> Result<Variant> {
    operands.check(problem)?;
    match target {
        Target::Cpu => Ok(Variant::Cpu(cpu::best(problem))),
        Target::Cuda { arch, multiprocessors } => {
            cuda::select(problem, operands, arch, multiprocessors).map(Variant::from)
        }
    }
}

/// Every kernel that was considered, the one that [`select`] names first, with reasons for a person.
pub fn consider(problem: &Problem, operands: &Operands, target: Target) -> Result<Vec<Considered>> {
    operands.check(problem)?;
    let mut considered = match target {
        Target::Cpu => cpu::consider(problem),
        Target::Cuda { arch, multiprocessors } => cuda::consider(problem, operands, arch, multiprocessors),
    };
    considered.sort_by_key(|one| !one.chosen);
    Ok(considered)
}

/// Attention on this machine's CPU.
pub fn attention(problem: &Problem, q: &Fp8Tensor, k: &Fp8Tensor, v: &Fp8Tensor) -> Result<Output> {
    let mut output = Output::zeros(problem);
    attention_with(&cpu::best(problem), problem, q, k, v, &mut output)?;
    Ok(output)
}

/// Attention on this machine's CPU with these knobs, into an output that was made for the problem.
pub fn attention_with(
    config: &cpu::Config,
    problem: &Problem,
    q: &Fp8Tensor,
    k: &Fp8Tensor,
    v: &Fp8Tensor,
    output: &mut Output,
) -> Result<RunReport> {
    Operands::of_host(q, k, v).check(problem)?;
    output.check(problem)?;
    config.check()?;
    config.check_machine()?;
    cpu::run(config, problem, q, k, v, output).map(|report| report.of(Variant::Cpu(*config)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::Shape;

    #[test]
    fn what_is_selected_comes_first_among_what_is_considered() {
        let targets = [Target::Cpu, Target::cuda(Arch::Sm89, 58), Target::cuda(Arch::Sm90, 132)];
        for shape in ["1,8,512,64", "4,16,4096,128", "1,32,4,1,8192,128", "1,1,1,64"] {
            for target in targets {
                let problem = Problem::new(shape.parse::<Shape>().unwrap()).unwrap().causal();
                let operands = Operands::assumed(&problem);
                let considered = consider(&problem, &operands, target).unwrap();
                assert_eq!(considered[0].variant, select(&problem, &operands, target).unwrap(), "{shape} {target:?}");
                assert_eq!(considered.iter().filter(|one| one.chosen).count(), 1, "{shape} {target:?}");
                assert!(considered.iter().all(|one| !one.reason.is_empty()));
            }
        }
    }

    #[test]
    fn a_device_that_cannot_says_why() {
        let problem = Problem::new(Shape::new(1, 2, 40, 72)).unwrap();
        let operands = Operands::assumed(&problem);
        let error = select(&problem, &operands, Target::cuda(Arch::Sm90, 132)).unwrap_err().to_string();
        assert!(error.starts_with("head_dim: 72 is not one of"), "{error}");
        assert!(consider(&problem, &operands, Target::cuda(Arch::Sm90, 132)).unwrap().iter().all(|one| !one.chosen));
        assert!(select(&problem, &operands, Target::Cpu).is_ok());
        let gpu: Variant = "hopper".parse().unwrap();
        assert!(
            gpu.on_cpu().unwrap_err().to_string().starts_with("variant: the hopper kernel is for tensors in device")
        );
    }
}
