//! Which kernel runs, and why: one list of candidates, for whoever asks.

use crate::cpu;
use crate::cuda::{self, Arch};
use crate::error::Result;
use crate::operands::{self, Operands};
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

/// Attention on this machine's CPU, by as many threads as rayon's current pool has.
pub fn attention(problem: &Problem, q: &Fp8Tensor, k: &Fp8Tensor, v: &Fp8Tensor) -> Result<Output> {
    let mut output = Output::zeros(problem);
    attention_into(problem, q, k, v, &mut output)?;
    Ok(output)
}

/// The same into an output that was made for the problem; tells what was done.
pub fn attention_into(
    problem: &Problem,
    q: &Fp8Tensor,
    k: &Fp8Tensor,
    v: &Fp8Tensor,
    output: &mut Output,
) -> Result<RunReport> {
    attention_with(&cpu::best(problem), problem, q, k, v, output)
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
    Operands::of_any_codes(q, k, v).check(problem)?;
    operands::check_sinks(problem, [q, k, v].map(|tensor| tensor.sinks().is_some()))?;
    output.check(problem)?;
    config.check()?;
    config.check_machine()?;
    cpu::run(config, problem, q, k, v, output).map(|report| report.of(Variant::Cpu(*config)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::{Accuracy, Shape, Window};
    use crate::tensor::{Fp8Format, Layout};

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
    fn what_is_quantised_for_attention_is_scored_in_f16() {
        let problem = Problem::new(Shape { kv_heads: 2, ..Shape::new(1, 8, 512, 64) }).unwrap();
        let [queries, keys] = [problem.shape().query_dims(), problem.shape().key_dims()]
            .map(|dims| (0..dims.count()).map(|index| (index as f32 * 0.7).sin()).collect::<Vec<_>>());
        let scores = |q: &Fp8Tensor, k: &Fp8Tensor, v: &Fp8Tensor| {
            let operands = Operands::of_host(q, k, v);
            select(&problem, &operands, Target::cuda(Arch::Sm90, 132)).unwrap().knob("scores").unwrap()
        };
        let [q, k, v] = crate::quantize::for_attention(&problem, [&queries[..], &keys, &keys]).unwrap();
        assert_eq!(scores(&q, &k, &v), "f16");
        // Codes up to 448, as others make them, do not fit.
        let q = crate::quantize(&queries, problem.shape().query_dims()).unwrap();
        assert_eq!(scores(&q, &k, &v), "f32");
        let error =
            crate::quantize::for_attention(&problem, [&queries[..], &keys[1..], &keys]).unwrap_err().to_string();
        assert!(error.starts_with("k: has 65535 elements"), "{error}");
    }

    #[test]
    fn a_device_that_cannot_says_why() {
        let problem = Problem::new(Shape::new(1, 2, 40, 64)).unwrap().with_input_format(Fp8Format::Int8);
        let operands = Operands::assumed(&problem);
        let ada = Target::cuda(Arch::Sm89, 58);
        let error = select(&problem, &operands, ada).unwrap_err().to_string();
        assert!(
            error.starts_with(
                "input_format: the ladder kernel computes no scores of int8; quantise to E4M3, or use the"
            ),
            "{error}"
        );
        let considered = consider(&problem, &operands, ada).unwrap();
        assert!(!considered.is_empty() && considered.iter().all(|one| !one.chosen), "{problem}");
        assert!(select(&problem, &operands, Target::Cpu).is_ok(), "{problem}");
        let gpu: Variant = "hopper".parse().unwrap();
        assert!(
            gpu.on_cpu().unwrap_err().to_string().starts_with("variant: the hopper kernel is for tensors in device")
        );
    }

    #[test]
    fn a_device_takes_every_problem_and_says_which_mode_serves_where_one_does_not_fit() {
        let target = Target::cuda(Arch::Sm90, 132);
        for head_dim in (8..=256).step_by(8) {
            let plain = Problem::new(Shape::new(1, 4, 300, head_dim).with_kv_heads(2)).unwrap().causal();
            let window = plain.with_window(Window::new(Some(64), None)).with_sinks();
            let values = [8, 128, 256].map(|value_dim| plain.with_value_dim(value_dim).unwrap());
            for problem in [plain, window, window.with_softcap(30.0).unwrap()].into_iter().chain(values) {
                for (target, kernel) in [(target, "hopper"), (Target::cuda(Arch::Sm89, 58), "ladder")] {
                    for layout in [Layout::Bhsd, Layout::Bhds] {
                        let mut operands = Operands::assumed(&problem);
                        operands.v.layout = layout;
                        let variant = select(&problem, &operands, target).unwrap();
                        assert_eq!(variant.kernel(), kernel, "{problem}");
                    }
                }
            }
        }
        // Sums of 256 products of codes up to 16 may not fit f16, for which the linear exponential is written; up to 15 they do.
        let wide = Problem::new(Shape::new(2, 8, 8192, 256)).unwrap();
        let mut operands = Operands::assumed(&wide);
        assert_eq!(select(&wide, &operands, target).unwrap().accuracy(), Some(Accuracy::Fast));
        operands.q.largest_code = 16.0;
        operands.k.largest_code = 16.0;
        let first = consider(&wide, &operands, target).unwrap().remove(0);
        assert_eq!((first.variant.accuracy(), first.chosen), (Some(Accuracy::ExactExp), true));
        assert!(first.reason.contains("scores in f32"), "{}", first.reason);
    }
}
