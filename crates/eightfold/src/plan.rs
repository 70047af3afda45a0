//! Problem → (backend, kernel, config), and why.

use crate::cpu;
use crate::cuda::{self, Operands};
use crate::error::{Error, Result};
use crate::installed::{self, Installed};
use crate::output::Output;
use crate::problem::Problem;
use crate::tensor::{Dims, Fp8Tensor};
use crate::variant::Variant;

/// What will run for a problem.
#[derive(Debug, Clone)]
pub struct Plan {
    problem: Problem,
    variant: Variant,
    considered: Vec<Considered>,
    /// What runs where the tensors have scales that the device's kernel cannot use; none in a plan made by name.
    fallback: Option<cpu::Config>,
}

/// A variant that the plan looked at, and what it decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Considered {
    /// The variant.
    pub variant: Variant,
    /// Whether it is the one that runs.
    pub chosen: bool,
    /// Why, or why not.
    pub reason: String,
}

/// What a run did: the evidence that the plan's precautions were, or were not, needed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RunReport {
    /// Blocks of (query rows × key tile) that were computed.
    pub tiles: u64,
    /// Of those, blocks that the integer path handed to f32 because rounding would have shown.
    pub tiles_in_f32: u64,
    /// Rows of a tile whose weights needed a second 14-bit limb.
    pub rows_refined: u64,
}

impl Plan {
    /// The fastest variant that this machine can run for the problem: on its CUDA device if there is one that can, else
    /// on the CPU. With `EIGHTFOLD_DEVICE=cpu` in the environment no device is looked for. What was [`installed`] for a
    /// kernel, the problem and the device goes before what is chosen for that kernel by rule.
    ///
    /// Scales and codes are known only when the plan runs: where they do not suit the device's kernel, another does, and
    /// where they suit none (blocks of scales that no tile divides) the CPU computes.
    pub fn new(problem: &Problem) -> Result<Self> {
        Plan::choose(problem, &installed::find)
    }

    /// What [`Plan::new`] would be if nothing were installed.
    pub fn shipped(problem: &Problem) -> Result<Self> {
        Plan::choose(problem, &|_, _, _| None)
    }

    fn choose(problem: &Problem, find: installed::Find) -> Result<Self> {
        let mut considered: Vec<Considered> = cpu::candidates(problem)
            .into_iter()
            .map(|(config, chosen, reason)| Considered { variant: Variant::Cpu(config), chosen, reason })
            .collect();
        considered.sort_by_key(|candidate| !candidate.chosen);
        if let Some(choice) = find(&installed::cpu_device(), problem, "cpu")
            && let Variant::Cpu(config) = &choice.variant
            && config.check_machine().is_ok()
        {
            prefer(&mut considered, choice);
        }
        let Variant::Cpu(best_on_cpu) = considered[0].variant else { unreachable!("candidates of the CPU") };
        let on_device = cuda::choose(problem, find)?;
        let is_chosen = on_device.iter().any(|candidate| candidate.chosen);
        let fallback = is_chosen.then_some(best_on_cpu);
        if is_chosen {
            let cpu = &mut considered[0];
            cpu.chosen = false;
            cpu.reason = format!("where the scales of K or V do not suit the device's tiles: {}", cpu.reason);
            considered.splice(0..0, on_device);
        } else {
            considered.extend(on_device);
        }
        Ok(Plan { problem: *problem, variant: considered[0].variant, considered, fallback })
    }

    /// A plan that runs this variant and no other.
    ///
    /// A variant for a CUDA device can be planned and explained without one; running it then is an error.
    pub fn with_variant(problem: &Problem, variant: Variant) -> Result<Self> {
        match &variant {
            Variant::Cpu(config) => {
                config.check()?;
                config.check_machine()?;
            }
            Variant::Ladder(_) | Variant::Hopper(_) => {
                if let Some(config) = variant.on_device() {
                    check_on_device(&config, problem)?;
                }
            }
        }
        let considered = vec![Considered { variant, chosen: true, reason: "asked for by name".into() }];
        Ok(Plan { problem: *problem, variant, considered, fallback: None })
    }

    /// The problem.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// The variant that runs.
    pub fn variant(&self) -> Variant {
        self.variant
    }

    /// Everything that was looked at, the chosen variant first.
    pub fn considered(&self) -> &[Considered] {
        &self.considered
    }

    /// What runs, why, how it is cut into tasks, and why the others do not run: some lines for a person.
    pub fn explain(&self) -> String {
        let mut text = format!("problem  {}\n", self.problem);
        for Considered { variant, chosen, reason } in &self.considered {
            let verb = if *chosen { "runs" } else { "not" };
            text.push_str(&format!("{verb:<8} {variant}\n         {reason}\n"));
        }
        let how = match &self.variant {
            Variant::Cpu(config) => cpu::describe(config, &self.problem),
            Variant::Ladder(config) => cuda::Config::from(*config).describe(&self.problem),
            Variant::Hopper(config) => cuda::Config::from(*config).describe(&self.problem),
        };
        text.push_str(&format!("how      {how}\n"));
        text
    }

    /// Computes attention into `output`, which must have been made for the same problem.
    pub fn run(&self, q: &Fp8Tensor, k: &Fp8Tensor, v: &Fp8Tensor, output: &mut Output) -> Result<RunReport> {
        let shape = self.problem.shape();
        self.check_tensor("q", q, shape.query_dims())?;
        self.check_tensor("k", k, shape.key_dims())?;
        self.check_tensor("v", v, shape.key_dims())?;
        output.check(&self.problem)?;
        let planned: cuda::Config = match &self.variant {
            Variant::Cpu(config) => return cpu::run(config, &self.problem, q, k, v, output),
            Variant::Ladder(config) => (*config).into(),
            Variant::Hopper(config) => (*config).into(),
        };
        let Some(on_cpu) = &self.fallback else { return cuda::run(&planned, &self.problem, q, k, v, output) };
        match cuda::suiting(&planned, &self.problem, &Operands::of_host(q, k, v)) {
            Some(config) => cuda::run(&config, &self.problem, q, k, v, output),
            None => cpu::run(on_cpu, &self.problem, q, k, v, output),
        }
    }

    fn check_tensor(&self, name: &str, tensor: &Fp8Tensor, dims: Dims) -> Result<()> {
        if tensor.dims() != dims {
            return Err(Error::invalid(
                name,
                format!("has dims {}, but the problem {} needs {dims}", tensor.dims(), self.problem),
                "give tensor and problem the same sizes",
            ));
        }
        if tensor.format() != self.problem.input_format() {
            return Err(Error::invalid(
                name,
                format!("is in {}, but the problem says {}", tensor.format(), self.problem.input_format()),
                "quantise it to the same format, or set Problem::with_input_format",
            ));
        }
        if name == "q" && tensor.means().is_some() {
            return Err(Error::invalid(
                name,
                "is centred, which softmax does not forgive in Q",
                "quantise it without centring; K and V may be centred",
            ));
        }
        if name != "v" && tensor.layout().is_transposed() {
            return Err(Error::invalid(
                name,
                "is laid out transposed (bhds), which is for V alone",
                "lay it out as bhsd or bshd",
            ));
        }
        Ok(())
    }
}

/// Puts what was installed before what would have been chosen.
fn prefer(considered: &mut Vec<Considered>, choice: &Installed) {
    considered.retain(|candidate| candidate.chosen || candidate.variant != choice.variant);
    if considered[0].variant == choice.variant {
        considered.remove(0);
    } else {
        considered[0].chosen = false;
        considered[0].reason = format!("what would run if nothing were installed: {}", considered[0].reason);
    }
    considered.insert(0, Considered { variant: choice.variant, chosen: true, reason: choice.reason() });
}

/// Whether the knobs suit each other and the problem: on this machine's device, or without one on any architecture.
fn check_on_device(config: &cuda::Config, problem: &Problem) -> Result<()> {
    let check = |arch| config.check_uploaded(problem, &Operands::hoped(problem), arch);
    match cuda::driver::Device::default() {
        Ok(device) => check(device.arch()),
        Err(_) => {
            let outcomes = cuda::Arch::ALL.iter().filter(|arch| config.target(**arch).is_ok());
            outcomes.map(|arch| check(*arch)).reduce(|first, second| first.or(second)).unwrap_or(Ok(()))
        }
    }
}

/// Attention with the fastest variant that this machine can run.
pub fn attention(problem: &Problem, q: &Fp8Tensor, k: &Fp8Tensor, v: &Fp8Tensor) -> Result<Output> {
    let mut output = Output::zeros(problem);
    Plan::new(problem)?.run(q, k, v, &mut output)?;
    Ok(output)
}

impl std::ops::AddAssign for RunReport {
    fn add_assign(&mut self, other: RunReport) {
        self.tiles += other.tiles;
        self.tiles_in_f32 += other.tiles_in_f32;
        self.rows_refined += other.rows_refined;
    }
}

impl std::iter::Sum for RunReport {
    fn sum<I: Iterator<Item = RunReport>>(reports: I) -> RunReport {
        reports.fold(RunReport::default(), |mut total, report| {
            total += report;
            total
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::Shape;

    #[test]
    fn what_is_installed_goes_before_what_is_chosen_by_rule() {
        let problem = Problem::new(Shape::new(1, 8, 512, 64)).unwrap();
        let by_rule = |variant: &str, chosen| Considered {
            variant: variant.parse().unwrap(),
            chosen,
            reason: "the widest".into(),
        };
        let choice = |variant: &str| Installed {
            device: "here".into(),
            problem: problem.to_string(),
            variant: variant.parse().unwrap(),
            note: "1.10×, found by a search".into(),
        };
        let rules = [by_rule("cpu:lanes", true), by_rule("cpu:baseline", false), by_rule("cpu:queue", false)];
        for (variant, left) in [("cpu:baseline", 3), ("cpu:poly-exp", 4), ("cpu:lanes", 3)] {
            let mut considered = rules.to_vec();
            prefer(&mut considered, &choice(variant));
            assert_eq!((considered.len(), considered.iter().filter(|one| one.chosen).count()), (left, 1), "{variant}");
            assert_eq!(considered[0].variant, choice(variant).variant);
            assert!(considered[0].reason.contains("1.10×") && considered[0].reason.contains("EIGHTFOLD_PLANS=off"));
            let told = considered[1].reason == "what would run if nothing were installed: the widest";
            assert_eq!(told, variant != "cpu:lanes");
        }
    }
}
